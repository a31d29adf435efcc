"""Who the local AWS answers: clients of this machine, and no web page that somebody there has open."""

from __future__ import annotations

import http.client
import json
import socket

import pytest

from pykcl.errors import ConfigError
from pykcl.local.faults import CONTROL_PATH
from pykcl.local.server import LocalAws

LIST = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Content-Type": "application/x-amz-json-1.1"}
DELETE_TABLE = {
    "X-Amz-Target": "DynamoDB_20120810.DeleteTable",
    "Content-Type": "application/x-amz-json-1.0",
}
RULES = json.dumps({"rules": [{"kind": "error"}]}).encode()
JSON = {"Content-Type": "application/json"}


def ask(aws, headers, body=b"{}", *, method="POST", path="/", host="127.0.0.1"):
    """Status and answer, as text."""
    connection = http.client.HTTPConnection(host, aws.port, timeout=300)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]", "[::1]:4567", "kinesis.localhost",
        "000000000000.ddb.localhost:4567",
    ],
)  # fmt: skip
def test_names_of_this_machine_are_answered(aws, host):
    assert ask(aws, {**LIST, "Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:4567", "localhost.attacker.example", "127.0.0.1.attacker.example",
        "attackerlocalhost", "192.0.2.1", "[2001:db8::1]", "127.0.0.1@attacker.example", "a b", "[::1",
        "localhost:x", "::1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("headers", [LIST, DELETE_TABLE], ids=["kinesis", "dynamodb"])
def test_another_name_is_refused_with_the_way_to_allow_it(aws, host, headers):
    status, text = ask(aws, {**headers, "Host": host})
    assert status == 403
    answer = json.loads(text)
    assert answer["__type"] == "AccessDeniedException"
    assert repr(host) in answer["message"]
    assert "--allow-host" in answer["message"]


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:4567"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "same-origin"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("headers", [LIST, DELETE_TABLE], ids=["kinesis", "dynamodb"])
def test_what_a_web_page_sends_is_refused(aws, sent, headers):
    status, text = ask(aws, {**headers, **sent})
    assert status == 403
    assert "web page" in json.loads(text)["message"]


@pytest.mark.parametrize(
    "sent",
    [
        {"Host": "attacker.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_no_web_page_sets_or_sees_faults(aws, sent, method):
    body = RULES if method == "POST" else None
    assert ask(aws, {**JSON, **sent}, body, method=method, path=CONTROL_PATH)[0] == 403
    assert aws.faults.choose("kinesis", "ListStreams") is None


@pytest.mark.parametrize(
    "sent", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}]
)
def test_fault_rules_need_the_content_type_of_json(aws, sent):
    """A form of another site can send every content type but this without asking first."""
    status, text = ask(aws, sent, RULES, path=CONTROL_PATH)
    assert status == 415
    assert "application/json" in json.loads(text)["error"]
    assert aws.faults.choose("kinesis", "ListStreams") is None
    assert ask(aws, {"Content-Type": "application/json; charset=utf-8"}, RULES, path=CONTROL_PATH)[0] == 200


def test_the_address_bar_of_a_browser_shows_the_faults(aws):
    assert ask(aws, {"Sec-Fetch-Site": "none"}, None, method="GET", path=CONTROL_PATH)[0] == 200


def test_a_refused_name_is_logged_once(aws, caplog):
    for _ in range(3):
        ask(aws, {**LIST, "Host": "attacker.example"})
        ask(aws, {**LIST, "Origin": "http://evil.example"})
    assert caplog.text.count("request refused") == 2
    assert "'attacker.example'" in caplog.text


def test_allowed_names_are_answered():
    with LocalAws(allow_hosts=["pykcl", "Aws.Test", "192.0.2.7", "2001:db8::1"]) as aws:
        for host in ("pykcl:4567", "PYKCL", "aws.test", "192.0.2.7", "[2001:db8::1]:80"):
            assert ask(aws, {**LIST, "Host": host})[0] == 200, host
        for host in ("kinesis.pykcl", "192.0.2.8"):
            assert ask(aws, {**LIST, "Host": host})[0] == 403, host


@pytest.mark.parametrize("name", ["", "http://pykcl", "pykcl:4567", "a b", "*", "x" * 300, "[::1]"])
def test_what_is_no_host_name_cannot_be_allowed(name):
    with pytest.raises(ConfigError, match="is not a host name"):
        LocalAws(allow_hosts=[name])


def test_it_listens_where_it_is_asked_to():
    with LocalAws(host="127.0.0.2") as aws:
        assert aws.url == f"http://127.0.0.2:{aws.port}"
        assert ask(aws, LIST, host="127.0.0.2")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            ask(aws, LIST, host="127.0.0.1")


def test_on_all_addresses_the_one_that_was_asked_is_its_own_and_names_are_not():
    with LocalAws(host="0.0.0.0") as aws:
        assert aws.url == f"http://127.0.0.1:{aws.port}"
        assert ask(aws, LIST, host="127.0.0.3")[0] == 200
        assert ask(aws, {**LIST, "Host": "attacker.example"})[0] == 403
        assert ask(aws, {**LIST, "Host": "192.0.2.1"})[0] == 403


@pytest.mark.parametrize("host", ["::1", "::"])
def test_it_listens_on_addresses_of_ipv6(host):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with LocalAws(host=host) as aws:
        assert aws.url == f"http://[::1]:{aws.port}"
        assert ask(aws, LIST, host="::1")[0] == 200
        assert ask(aws, {**LIST, "Host": "attacker.example"}, host="::1")[0] == 403


def test_an_address_that_is_not_of_this_machine_is_an_error_of_start():
    with pytest.raises(OSError, match="assign"):
        LocalAws(host="192.0.2.1").start()
