"""Who is answered, over HTTP and without a browser: what another site, another name and a stranger get."""

import http.client
import json
import socket

import pytest
from ui_page import Page

from pykcl.errors import ConfigError, SetupError
from pykcl.ui.app import OPEN_PATHS

SECRETS = ["/api/state", "/api/events", "/static/main.js", "/static/vendor/uPlot.iife.min.js"]


@pytest.mark.parametrize("path", [*SECRETS, "/nothing", "/static/../app.py"])
def test_without_a_cookie_nothing_is_told(page, path):
    answer = page.ask("GET", path)
    assert answer.status == 401
    assert b"orders" not in answer.body


def test_without_a_cookie_the_front_page_asks_for_the_token_and_tells_nothing(page):
    answer = page.ask("GET", "/")
    assert answer.status == 200
    assert "Token" in answer.text
    assert "main.js" not in answer.text
    assert "orders" not in answer.text


def test_what_the_sign_in_page_needs_is_open_and_nothing_else_is(page):
    for path in OPEN_PATHS:
        assert page.ask("GET", path).status in (200, 405), path
    assert not any("/api/" in path or path.endswith("main.js") for path in OPEN_PATHS)


@pytest.mark.parametrize(
    "cookie", ["pykcl_ui_{port}=", "pykcl_ui_{port}=guessed", "pykcl_ui_{port}={token}", "other=1", "=;;\x01"]
)
def test_a_cookie_that_was_not_given_here_opens_nothing(page, cookie):
    text = cookie.format(port=page.port, token=page.server.token)
    assert page.ask("GET", "/api/state", Cookie=text).status == 401


def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_cannot_use(page):
    answer = page.ask("POST", "/session", {"token": page.server.token}, Origin=f"http://{page.host}")
    cookie = answer.headers["set-cookie"]
    assert {part.strip() for part in cookie.split(";")[1:]} == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert page.server.token not in cookie
    assert cookie.startswith(f"pykcl_ui_{page.port}=")


@pytest.mark.parametrize(
    "body",
    [
        {"token": "wrong"},
        {"token": ""},
        {"token": None},
        {"token": ["x"]},
        {"token": "\ud800"},
        {"token": "\xfc"},
        {},
        [1],
        b"{",
        b"\xff",
        b'{"token":' + b"[" * 5000,
    ],
)
def test_a_wrong_token_gets_no_cookie(page, body):
    answer = page.ask("POST", "/session", body, Origin=f"http://{page.host}")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_a_token_is_made_anew_each_time_and_is_not_sent_to_the_server_with_the_address(live_table):
    with Page(live_table) as one, Page(live_table) as other:
        assert one.server.token != other.server.token
        assert len(one.server.token) >= 32
        assert one.server.link == f"{one.server.url}/#token={one.server.token}"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.nip.io:{port}",
        "127.0.0.1:1",
        "127.0.0.1",
        "0.0.0.0:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "",
        None,
    ],
)
def test_another_name_is_refused_even_with_the_cookie(page, host):
    """DNS rebinding: a name of the attacker's that was made to point here; the browser sends that name."""
    browser = page.browser()
    told = None if host is None else host.format(port=page.port)
    for path in ("/", "/api/state"):
        answer = page.ask("GET", path, Host=told, Cookie=browser.cookie)
        # Without any Host the server itself refuses: HTTP/1.1 asks for one.
        assert answer.status in (421, 400), (path, answer.status)
        assert b"orders" not in answer.body
    answer = page.ask("POST", "/session", {"token": page.server.token}, Host=told, Origin=f"http://{told}")
    assert answer.status in (421, 400)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_its_own_names_are_answered(page, host):
    browser = page.browser()
    assert (
        page.ask("GET", "/api/state", Host=host.format(port=page.port), Cookie=browser.cookie).status == 200
    )


def test_two_hosts_in_one_request_are_refused(page):
    with socket.create_connection(("127.0.0.1", page.port)) as line:
        line.sendall(
            f"GET / HTTP/1.1\r\nHost: {page.host}\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode()
        )
        answer = line.makefile("rb").readline()
    assert answer.split()[1] in (b"400", b"421")


def test_a_name_that_was_allowed_is_answered(live_table):
    with Page(live_table, names=("fleet.example", "other.example:8443")) as page:
        assert page.ask("GET", "/", Host=f"fleet.example:{page.port}").status == 200
        assert page.ask("GET", "/", Host="other.example:8443").status == 200
        assert page.ask("GET", "/", Host="fleet.example:1").status == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://{host}",
        "http://127.0.0.1:1",
        "http://localhost:{port}",
        None,
        "",
    ],
)
def test_a_post_of_another_site_is_refused_even_with_the_cookie(page, origin):
    told = None if origin is None else origin.format(host=page.host, port=page.port)
    assert page.browser().post("/session", {"token": page.server.token}, Origin=told).status == 403


def test_a_form_of_another_site_is_refused(page):
    body = json.dumps({"token": page.server.token}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert page.browser().post("/session", body, Content_Type=kind).status == 415


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_gets_nothing_to_embed_or_to_fetch(page, site):
    """same-site: another port of this machine, which cookies do not tell apart from this one."""
    browser = page.browser()
    for path in ("/api/state", "/api/events", "/static/main.js", "/"):
        answer = page.ask("GET", path, Cookie=browser.cookie, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")
        assert answer.status == 403, path
    assert page.ask("GET", "/api/state", Cookie=browser.cookie, Origin="http://evil.example").status == 403


def test_a_link_of_another_site_may_lead_to_the_front_page_only(page):
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert page.ask("GET", "/", **link).status == 200
    assert page.ask("GET", "/api/state", Cookie=page.browser().cookie, **link).status == 403


def test_nothing_but_the_token_can_be_posted(page, live_table):
    browser = page.browser()
    for path in ("/", "/api/state", "/api/events", "/static/main.js", "/api/jobs"):
        assert browser.post(path, {"do": "release"}).status in (404, 405), path
    assert live_table.writes() == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(page, method):
    browser = page.browser()
    assert page.ask(method, "/api/state", Cookie=browser.cookie).status == 405


def test_every_answer_has_the_policy_refusals_too(page):
    answers = [
        page.ask("GET", "/"),
        page.ask("GET", "/api/state"),
        page.ask("GET", "/", Host="evil.example"),
        page.browser().get("/nothing"),
        page.browser().get("/api/state"),
    ]
    for answer in answers:
        policy = dict(
            part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/%2e%2e/guard.py",
        "/static/vendor/../../app.py",
        "/static//etc/passwd",
        "/static/",
    ],
)
def test_no_request_names_a_file_of_its_own(page, path):
    assert page.browser().get(path).status == 404


def test_a_body_without_end_is_cut_off(page):
    answer = page.browser().post("/session", b'{"token":"' + b"x" * 200_000 + b'"}')
    assert answer.status in (403, 413)


def test_more_viewers_than_there_is_room_for_are_refused(page):
    browser = page.browser()
    lines = []
    try:
        for _ in range(24):
            line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=300)
            line.request("GET", "/api/events", headers={"Host": page.host, "Cookie": browser.cookie})
            answer = line.getresponse()
            assert answer.status == 200
            # Its first words: from then on it counts.
            assert answer.readline() == b"retry: 2000\n"
            lines.append(line)
        assert browser.get("/api/events").status == 503
        assert browser.get("/api/state").status == 200
    finally:
        for line in lines:
            line.close()


def test_an_address_that_others_reach_is_refused_unless_it_is_named(live_table):
    from pykcl.runtime import SystemRuntime
    from pykcl.ui.poller import Fleet
    from pykcl.ui.server import page_server
    from pykcl.ui.state_store import Rates

    def server(**more):
        return page_server(
            Fleet(application="a"),
            live_table.scanner,
            SystemRuntime(),
            bind="0.0.0.0:0",
            rates=Rates(asks_workers=False),
            **more,
        )

    with pytest.raises(ConfigError, match="ssh -L"):
        server().__enter__()
    with server(names=("fleet.example",)) as served:
        line = http.client.HTTPConnection("127.0.0.1", int(served.url.rpartition(":")[2]), timeout=300)
        line.request("GET", "/", headers={"Host": "127.0.0.1"})
        assert line.getresponse().status == 421
        line.close()


def test_a_port_that_is_taken_is_said(live_table):
    with Page(live_table) as page:
        other = Page(live_table)
        other.server._address = type(other.server._address).of(page.host)
        with pytest.raises(SetupError, match="Cannot listen"):
            other.server.__enter__()
