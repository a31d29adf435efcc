"""Who holds connections open and asks nothing: others are answered meanwhile."""

import http.client
import select
import socket

import h2.config
import h2.connection
import h2.events
import pytest
from fleet_table import lease
from ui_page import Page, until

from pykcl.ui import app, server
from pykcl.ui.server import MAX_CONNECTIONS
from tests.descriptors import assert_connections_end_with_clients, connected

HEAD = "GET / HTTP/1.1\r\nHost: {host}\r\n"
BODY = (
    "POST /session HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Type: application/json\r\n"
    'Content-Length: 60000\r\n\r\n{{"token": "'
)


@pytest.fixture
def lines(page):
    """lines(text, count): so many connections over which only that was sent."""
    opened = []

    def open_them(text, count):
        for _ in range(count):
            line = socket.create_connection(("127.0.0.1", page.port), timeout=300)
            opened.append(line)
            line.sendall(text.format(host=page.host).encode())
        return opened

    yield open_them
    for line in opened:
        line.close()


def ended(line):
    """Whether the other side has closed it."""
    if not select.select([line], [], [], 0)[0]:
        return False
    try:
        return line.recv(65536) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("text", [HEAD, BODY], ids=["half a head", "half a body"])
def test_the_oldest_of_too_many_connections_goes(page, lines, text):
    opened = lines(text, MAX_CONNECTIONS + 40)
    until(lambda: all(map(ended, opened[:40])), bool, "the end of the first ones")
    assert page.ask("GET", "/").status == 200
    assert not any(map(ended, opened[-40:]))


def test_who_has_a_session_stays(page, lines, live_table):
    browser = page.browser()
    watching = http.client.HTTPConnection("127.0.0.1", page.port, timeout=300)
    watching.request("GET", "/api/events", headers={"Host": page.host, "Cookie": browser.cookie})
    events = watching.getresponse()
    opened = lines(HEAD, 2 * MAX_CONNECTIONS)
    until(lambda: ended(opened[0]), bool, "the end of the first one")
    live_table.put(lease(1, "newcomer"))
    while "newcomer" not in events.readline().decode():
        pass
    watching.close()


@pytest.mark.parametrize("text", ["", HEAD], ids=["nothing", "half a head"])
def test_who_does_not_end_a_head_is_cut_off(monkeypatch, live_table, text):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    with Page(live_table) as page, socket.create_connection(("127.0.0.1", page.port), timeout=300) as line:
        line.sendall(text.format(host=page.host).encode())
        assert line.recv(65536) == b""


@pytest.mark.parametrize("text", ["", HEAD + "\r\n"], ids=["nothing asked", "idle"])
def test_connections_end_with_their_clients(monkeypatch, live_table, text):
    monkeypatch.setattr(server, "HEAD_SECONDS", 3600.0)
    with Page(live_table) as page:
        request = text.format(host=page.host).encode()
        assert_connections_end_with_clients(lambda: connected(page.port, request))


def test_who_does_not_end_a_body_is_refused(monkeypatch, page, lines):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
    (line,) = lines(BODY, 1)
    assert line.recv(65536).startswith(b"HTTP/1.1 403")
    until(lambda: ended(line), bool, "the end of the connection")


def test_http_2_is_not_spoken(page):
    browser = page.browser()
    with socket.create_connection(("127.0.0.1", page.port), timeout=300) as line:
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        headers = [
            (":method", "GET"),
            (":path", "/api/state"),
            (":scheme", "http"),
            (":authority", page.host),
        ]
        client.send_headers(1, [*headers, ("cookie", browser.cookie)], end_stream=True)
        line.sendall(client.data_to_send())
        assert status_of(client, line) == "505"


def test_nobody_is_led_to_http_2(page):
    browser = page.browser()
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": ""}
    with socket.create_connection(("127.0.0.1", page.port), timeout=300) as line:
        told = {"Host": page.host, "Cookie": browser.cookie, **upgrade}
        text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
        line.sendall(f"GET /api/state HTTP/1.1\r\n{text}\r\n".encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += line.recv(1)
        assert received.startswith(b"HTTP/1.1 101"), "its server does so by itself"
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_upgrade_connection()
        line.sendall(client.data_to_send())
        assert status_of(client, line) == "505"


def status_of(client, line):
    while data := line.recv(65536):
        for event in client.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                return dict(event.headers)[":status"]
        line.sendall(client.data_to_send())
    return None
