"""The endpoint on a real socket: what it answers, and what clients that are slow, many, broken or curious get of it."""

import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http import HTTPStatus

import pytest
from health_kit import WELL, Frozen, lease

from pykcl.errors import ConfigError, SetupError
from pykcl.health.http import Address, Answer, HttpServer, Request, listen, parsed
from pykcl.health.pages import Pages, checked_token, is_authorized, new_token, token_from_file
from pykcl.health.probes import WorkerHealth
from pykcl.health.service import HealthService
from pykcl.host_names import allowed_names, is_own
from tests.descriptors import assert_connections_end_with_clients, connected

TOKEN = "a-token-of-16-letters-or-more"


@contextmanager
def serving(handle, **options):
    server = HttpServer(listen(Address("127.0.0.1", 0)), handle, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def pages(status=WELL, token=None, worker=None):
    found = worker or Frozen(status)
    with serving(Pages(WorkerHealth(lambda: found), token).answer) as server:
        yield server


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=300)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def exchange(server, request):
    """Everything that comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=300) as client:
        client.sendall(request)
        return _all_of(client)


def _all_of(client):
    found = b""
    try:
        while chunk := client.recv(65_536):
            found += chunk
    except ConnectionError:
        return found
    return found


def test_the_pages_are_answered():
    with pages() as server:
        assert get(server, "/livez")[:2] == (200, b"ok\n")
        assert get(server, "/readyz")[:2] == (200, b"ok\n")
        code, body, headers = get(server, "/status")
        assert code == 200
        assert headers["Content-Type"] == "application/json"
        told = json.loads(body)
        assert told["live"] is told["ready"] is True
        assert [found["shard"] for found in told["worker"]["leases"]] == ["shardId-0", "shardId-1"]
        assert set(told["versions"]) >= {"pykcl", "python"}
        assert get(server, "/metrics")[0] == 404
        code, body, _ = get(server, "/")
        assert (code, b"/livez" in body) == (404, True)


def test_why_it_is_bad_is_told_line_by_line():
    with pages(replace(WELL, state="stopped")) as server:
        assert get(server, "/livez")[:2] == (503, b"the worker has stopped\n")


def test_metrics_are_the_page_of_the_sink_that_has_one():
    class Metered(Frozen):
        def prometheus_page(self):
            return b"pykcl_records_processed_total 7\n", "text/plain; version=0.0.4"

    with pages(worker=Metered(WELL)) as server:
        code, body, headers = get(server, "/metrics")
        assert (code, body) == (200, b"pykcl_records_processed_total 7\n")
        assert headers["Content-Type"] == "text/plain; version=0.0.4"


def test_head_has_no_body_and_other_methods_are_refused():
    with pages() as server:
        code, body, headers = get(server, "/livez", method="HEAD")
        assert (code, body, headers["Content-Length"]) == (200, b"", "3")
        code, _, headers = get(server, "/livez", method="POST")
        assert (code, headers["Allow"]) == (405, "GET, HEAD")
        assert get(server, "/status", method="DELETE")[0] == 405


def test_every_answer_forbids_to_keep_embed_or_guess_it():
    with pages() as server:
        _, _, headers = get(server, "/status")
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "Server" not in headers


BROKEN = {
    "no http": b"hello\r\n\r\n",
    "of another version": b"GET /livez HTTP/2.0\r\n\r\n",
    "not a path": b"GET http://x/livez HTTP/1.1\r\n\r\n",
    "four words": b"GET /livez x HTTP/1.1\r\n\r\n",
    "no ascii": b"GET /\xff HTTP/1.1\r\n\r\n",
    "a header without a colon": b"GET /livez HTTP/1.1\r\nHost\r\n\r\n",
    "a folded header": b"GET /livez HTTP/1.1\r\nHost: x\r\n y: z\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_request_is_a_bad_one(name):
    assert parsed(BROKEN[name]) is None
    with pages() as server:
        assert exchange(server, BROKEN[name]).startswith(b"HTTP/1.1 400 ")


def test_a_request_of_many_headers_is_too_large():
    with pages() as server:
        answer = exchange(server, b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n")
        # Nothing at all, where the rest of the request came behind the answer and broke the connection.
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
        answer = exchange(server, b"GET /livez HTTP/1.1\r\nX: " + b"y" * 8_300)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
        assert get(server, "/livez")[0] == 200


def test_what_goes_wrong_inside_is_told_to_no_client(caplog):
    def broken(request):
        raise ValueError("CANARY")

    with serving(broken) as server:
        code, body, _ = get(server, "/status")
        assert (code, body) == (500, b"Internal Server Error\n")
        assert get(server, "/status")[0] == 500, "it lives on"
    assert "ValueError" in caplog.text
    assert "CANARY" not in caplog.text


# -- clients that are slow, or many ----------------------------------------------------------------------------


def test_who_never_finishes_a_request_is_cut_off_though_bytes_keep_coming():
    with serving(lambda request: Answer.of(HTTPStatus.OK), connection_seconds=0.5) as server:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.address.port), timeout=300) as client:
            client.settimeout(0.05)
            while True:
                assert time.monotonic() < began + 10, "it was never cut off"
                try:
                    client.sendall(b"G")
                    if client.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        assert time.monotonic() - began >= 0.4


def test_who_never_reads_the_answer_is_cut_off():
    asked = threading.Event()

    def answer(request):
        asked.set()
        return Answer(HTTPStatus.OK, b"x" * 20_000_000)

    with serving(answer, connection_seconds=0.5) as server:
        with socket.create_connection(("127.0.0.1", server.address.port), timeout=300) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert asked.wait(300)
            deadline = time.monotonic() + 300
            while server._connections:
                assert time.monotonic() < deadline, "it is still there"
                time.sleep(0.01)
        assert server._thread.is_alive()


def test_an_answer_that_takes_its_client_a_while_comes_whole():
    body = bytes(range(256)) * 40_000
    with serving(lambda request: Answer(HTTPStatus.OK, body)) as server:
        assert get(server, "/")[:2] == (200, body)
        deadline = time.monotonic() + 300
        while server._connections:
            assert time.monotonic() < deadline, "it is over, and still counts"
            time.sleep(0.01)


def test_any_number_of_idle_connections_neither_grows_nor_keeps_a_probe_waiting():
    handle = Pages(WorkerHealth(lambda: Frozen(WELL)), None).answer
    with ExitStack() as stack, serving(handle, max_connections=8, connection_seconds=60.0) as server:
        place = ("127.0.0.1", server.address.port)
        clients = [stack.enter_context(socket.create_connection(place, timeout=300)) for _ in range(60)]
        assert get(server, "/livez")[0] == 200
        assert len(server._connections) <= 8
        assert [_all_of(client) for client in clients[:50]] == [b""] * 50, "the oldest were closed"


def test_many_who_ask_at_once_are_all_answered_or_cut_off_and_it_lives():
    with pages() as server:
        codes = []

        def probe():
            for _ in range(20):
                try:
                    codes.append(get(server, "/status")[0])
                except OSError:
                    codes.append(0)

        threads = [threading.Thread(target=probe) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert codes.count(200) == 320
        assert get(server, "/livez")[0] == 200


def test_however_often_it_is_asked_the_worker_is_looked_at_a_few_times_a_second_only():
    looks = []

    class Counting(Frozen):
        def status(self):
            looks.append(None)
            return WELL

    now = [0.0]
    found = Pages(WorkerHealth(lambda: Counting(WELL)), None, lambda: now[0])
    with serving(found.answer) as server:
        for _ in range(20):
            assert get(server, "/status")[0] == 200
        assert len(looks) == 1
        now[0] = 0.25
        assert get(server, "/status")[0] == 200
        assert len(looks) == 2


def test_after_stop_the_port_is_free_and_its_thread_gone():
    with pages() as server:
        port = server.address.port
        with socket.create_connection(("127.0.0.1", port), timeout=300):
            server.stop()
            assert not server._thread.is_alive()
    again = listen(Address("127.0.0.1", port))
    again.socket.close()


# -- who may ask -----------------------------------------------------------------------------------------------


def test_status_needs_the_token_and_nothing_else_does():
    with pages(token=TOKEN) as server:
        for header in (
            None,
            "",
            TOKEN,
            "Bearer",
            "Bearer ",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
        ):
            headers = {} if header is None else {"Authorization": header}
            code, body, answered = get(server, "/status", **headers)
            assert code == 401, header
            assert answered["WWW-Authenticate"].startswith("Bearer")
            assert b"shardId" not in body
        assert get(server, "/status", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(server, "/status", Authorization=f"bearer {TOKEN}")[0] == 200
        assert get(server, f"/status?token={TOKEN}")[0] == 401, "an address is written into logs"
        assert get(server, "/livez")[0] == get(server, "/readyz")[0] == 200


FOREIGN = (
    "evil.example:80",
    "127.0.0.1.evil.example",
    "pod.cluster.local",
    "192.0.2.1",
    "[2001:db8::1]:80",
    "",
    "[evil]",
)


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_web_page_whose_name_was_pointed_at_this_machine_reads_nothing(host, token):
    headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
    with pages(replace(WELL, state="stopped"), token=token) as server:
        for path in ("/status", "/metrics"):
            code, body, _ = get(server, path, **headers)
            assert code == 403
            assert b"--allow-host" in body
        for path in ("/livez", "/readyz"):
            assert get(server, path, **headers)[:2] == (503, b"")
            assert get(server, path)[:2] == (503, b"the worker has stopped\n")


def test_a_probe_by_another_name_gets_its_code():
    with pages() as server:
        for path in ("/livez", "/readyz"):
            assert get(server, path, Host="pod.cluster.local:8080")[:2] == (200, b"")


def test_its_own_names_are_answered_and_so_are_those_that_are_allowed():
    def allowing(*names):
        return serving(Pages(WorkerHealth(lambda: Frozen(WELL)), None, allowed=allowed_names(names)).answer)

    own = ("localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:80", "[::1]:80")
    with allowing("Orders.internal", "192.0.2.7") as server:
        for host in (*own, "orders.internal:8080", "192.0.2.7:8080"):
            assert get(server, "/status", Host=host)[0] == 200, host
        for host in ("internal", "192.0.2.8", "a.orders.internal"):
            assert get(server, "/status", Host=host)[0] == 403, host


def test_the_address_that_a_request_came_in_on_is_its_own():
    """Kubernetes and Prometheus ask a pod by its address."""
    handle = Pages(WorkerHealth(lambda: Frozen(WELL)), None).answer
    pod = Request("GET", "/status", {"host": "10.0.0.7:8080"}, "10.0.0.7")
    assert handle(pod).status == 200
    assert handle(replace(pod, headers={"host": "10.0.0.8:8080"})).status == 403
    assert handle(replace(pod, local_address="::ffff:10.0.0.7")).status == 200
    assert handle(Request("GET", "/status", {"host": "[fe80::1]:80"}, "fe80::1%eth0")).status == 200


def test_the_server_knows_the_address_that_a_request_came_in_on():
    asked = []

    def answer(request):
        asked.append(request.local_address)
        return Answer.of(HTTPStatus.OK)

    server = HttpServer(listen(Address("0.0.0.0", 0)), answer)
    server.start()
    try:
        for address in ("127.0.0.1", "127.0.0.3"):
            with socket.create_connection((address, server.address.port), timeout=300) as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert _all_of(client).startswith(b"HTTP/1.1 200 ")
    finally:
        server.stop()
    assert asked == ["127.0.0.1", "127.0.0.3"]


def test_of_two_names_none_is_believed():
    with pages() as server:
        for hosts in (
            b"Host: evil.example\r\nHost: localhost\r\n",
            b"Host: localhost\r\nhost: localhost\r\n",
        ):
            for path in (b"/livez", b"/status"):
                answer = exchange(server, b"GET " + path + b" HTTP/1.1\r\n" + hosts + b"\r\n")
                assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:80", True), ("[::1]:80", True), ("[::1]", True), ("10.0.0.7", False), ("LOCALHOST", True),
        ("a.localhost:1", True), (None, True), ("", False), ("localhost.evil", False), ("[evil]", False), ("1.2.3", False),
        ("localhost:x", False), ("localhost:1:2", False), ("127.0.0.1]", False), ("[::1", False), (".localhost", False),
    ],
)  # fmt: skip
def test_only_loopback_and_localhost_are_always_own_names(host, own):
    assert is_own(host, "10.0.0.9") is own


def test_a_service_answers_to_the_names_it_is_given():
    with HealthService(http="0", allow_hosts=["orders.internal"]) as health:
        assert get(health._server, "/status", Host="orders.internal:80")[0] == 200
        assert get(health._server, "/status", Host="others.internal:80")[0] == 403
    with pytest.raises(ConfigError, match="is not a host name"):
        HealthService(http="0", allow_hosts=["http://orders"])


def test_tokens_are_compared_as_a_whole_and_new_ones_differ():
    assert new_token() != new_token()
    assert len(new_token()) >= 32
    assert is_authorized(f"Bearer {TOKEN}", TOKEN)
    assert not is_authorized(None, TOKEN)
    assert not is_authorized("Bearer ümlaut", TOKEN)


def test_a_token_file_holds_one_token(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_from_file(file) == TOKEN
    for bad in ("", "short", "two words that are long enough", "x" * 20 + "\x1b[2J"):
        file.write_text(bad)
        with pytest.raises(ConfigError, match="holds no token") as caught:
            token_from_file(file)
        assert "two words" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        token_from_file(tmp_path / "none")
    with pytest.raises(ConfigError, match="PYKCL_HTTP_TOKEN holds no token"):
        checked_token("x", "PYKCL_HTTP_TOKEN")


# -- where it listens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8080", "127.0.0.1", 8080), (":8080", "127.0.0.1", 8080), ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]:0", "::1", 0), ("[::]:9", "::", 9), ("my-host.local:1", "my-host.local", 1),
    ],
)  # fmt: skip
def test_an_address_is_read(text, host, port):
    assert Address.of(text) == Address(host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:x", "1:2:3", "::1:80", "x:65536", "http://x:80", "a b:1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="is no address"):
        Address.of(text)


def test_a_port_that_is_taken_is_told_and_so_is_a_host_that_is_not_ours():
    first = listen(Address("127.0.0.1", 0))
    with first.socket, pytest.raises(SetupError, match="Address already in use"):
        listen(first.address)
    with pytest.raises(SetupError, match=r"Cannot listen on 192\.0\.2\.1:0"):
        listen(Address("192.0.2.1", 0))


@pytest.mark.parametrize(
    ("text", "open_to_all"),
    [("0", False), ("127.0.0.1:0", False), ("localhost:0", False), ("0.0.0.0:0", True)],
)
def test_a_token_is_made_exactly_where_others_can_reach_it(text, open_to_all):
    with HealthService(http=text) as health:
        health.watch(Frozen(replace(WELL, leases=(lease(),))))
        assert health.has_made_token is open_to_all
        server = health._server
        assert get(server, "/status")[0] == (401 if open_to_all else 200)
        assert get(server, "/livez")[0] == 200
    assert health.has_made_token == (health.token is not None)


def test_a_token_that_was_given_counts_on_this_machine_too():
    with HealthService(http="0", token=TOKEN) as health:
        assert not health.has_made_token
        assert get(health._server, "/status")[0] == 401


def test_hostile_names_are_inert_in_the_status():
    hostile = "<script>\x1b]0;x\x07\u202e\n"
    with pages(replace(WELL, worker_id=hostile, leases=(lease(hostile),))) as server:
        _, body, headers = get(server, "/status")
        assert json.loads(body)["worker"]["worker_id"] == hostile
        assert body.decode("ascii").strip().isprintable()
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("request_sent", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing asked", "answered"])
def test_connections_end_with_their_clients(request_sent):
    with serving(lambda request: Answer.of(HTTPStatus.OK), connection_seconds=3600.0) as server:
        port = server.address.port
        assert_connections_end_with_clients(lambda: connected(port, request_sent), stay=not request_sent)
