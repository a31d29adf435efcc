"""The client of the health endpoints: what workers report, and what is no report."""

import json
import socket
import threading
from contextlib import suppress

import pytest
from fleet_table import shard
from status_server import TOKEN, Worker, status

from pykcl.errors import ConfigError
from pykcl.operate.worker_status import PATIENCE, Endpoint, StatusClient, parse_record_count, parse_status
from pykcl.runtime import SystemRuntime


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.shutdown()
    made.server_close()


def ask(*urls, token=None):
    return StatusClient(urls, SystemRuntime(), token).ask()


def test_a_worker_tells_its_lag_and_its_records(worker):
    worker.metrics = b'pykcl_records_processed_total{operation="ProcessTask",shard="a"} 1200.0\npykcl_records_processed_total{operation="ProcessTask",shard="b"} 34\n# HELP x\nother 5\n'
    (page,) = ask(worker.url, token=TOKEN)
    assert (page.worker, page.state, page.ready) == ("w", "running", True)
    assert page.behind == {shard(1): (4.2, 0.5)}
    assert page.records == 1234.0


def test_the_token_goes_to_the_status_only(worker):
    ask(worker.url, token=TOKEN)
    assert worker.asked == [("/status", f"Bearer {TOKEN}"), ("/metrics", None)]


def test_a_redirect_is_not_followed_with_the_token(worker):
    worker.code = 302
    (page,) = ask(worker.url, token=TOKEN)
    assert page.worker is None
    assert "302" in page.problem
    assert len(worker.asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"worker": 3}',
        b'{"worker": {"leases": 3}}',
        b'{"worker":{"worker_id":"w","state":"x","leases":[3]}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_status_is_a_problem_and_no_crash(worker, body):
    worker.status = body
    (page,) = ask(worker.url)
    assert page.worker is None
    assert page.problem


def test_who_does_not_answer_is_a_problem(worker):
    found = ask("http://127.0.0.1:9", "http://no..name:9", worker.url)
    assert found[0].problem.startswith("does not answer")
    assert found[1].problem.startswith("does not answer")
    assert found[2].worker == "w"


def test_a_refused_token_says_what_to_do(worker):
    worker.code = 401
    assert "PYKCL_HTTP_TOKEN" in ask(worker.url)[0].problem


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://x", "http://x/path", "http://user@x", "http://x:99999", "http://[::1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="--http"):
        Endpoint.of(text)


def test_addresses_may_be_short():
    assert Endpoint.of("10.0.0.1:8080") == Endpoint("http://10.0.0.1:8080", "10.0.0.1", 8080)
    assert Endpoint.of("https://x").port == 443


def test_without_the_metric_records_are_unknown_and_not_zero():
    assert parse_record_count(b"other_total 5\n") is None
    (page,) = parse_status("u", json.dumps(status(millis_behind_latest=None)).encode())
    assert page.behind == {}


def test_a_parent_of_several_processes_is_as_many_workers(worker):
    first, second = status("w-1"), status("w-2")
    idle = {"process": 3, "live": False, "ready": False, "worker": None}
    told = {"processes": [{"process": 1, **first}, {"process": 2, **second}, idle]}
    worker.status = json.dumps(told).encode()
    worker.metrics = (
        b'pykcl_records_processed_total{process="1",shard="a"} 3\n'
        b'pykcl_records_processed_total{process="1",shard="b"} 4\n'
        b'pykcl_records_processed_total{process="2",shard="a"} 5\n'
    )
    pages = ask(worker.url)
    assert [(page.worker, page.records) for page in pages] == [("w-1", 7.0), ("w-2", 5.0), (None, None)]
    assert len({page.url for page in pages}) == 3
    assert pages[2].problem == "has no worker yet"


@pytest.mark.parametrize("body", [b'{"processes": 3}', b'{"processes": [3]}', b'{"processes": [{}]}'])
def test_what_is_no_status_of_processes_is_a_problem_and_no_crash(worker, body):
    worker.status = body
    assert ask(worker.url)[0].problem


class Trickle:
    """Answers with `first`, and with more of `rest` for as long as anybody reads."""

    def __init__(self, first, rest):
        self._first, self._rest = first, rest
        self._connections = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                with suppress(OSError), connection:
                    connection.recv(65536)
                    connection.sendall(self._first)
                    while self._rest:
                        connection.sendall(self._rest)
                    connection.recv(1)

    def close(self):
        """Also what was accepted: who still waits for an answer must not outlive the test."""
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Hasty(SystemRuntime):
    """Its clock goes on by half of all patience whenever somebody looks at it."""

    def __init__(self):
        super().__init__()
        self._now = 0.0

    def monotonic(self):
        self._now += PATIENCE / 2
        return self._now


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n", b" " * 1000),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["body", "head", "chunks"],
)
def test_the_time_of_an_answer_is_counted_from_its_beginning_to_its_end(first, rest):
    trickle = Trickle(first, rest)
    (page,) = StatusClient([trickle.url], Hasty()).ask()
    trickle.close()
    assert page.problem == "does not answer (TimeoutError)"


@pytest.mark.parametrize("number", [b"Infinity", b"-Infinity", b"NaN", b"1e999", b"9" * 4000])
def test_numbers_without_measure_are_a_problem_or_unknown(worker, number):
    worker.status = b'{"processes": [{"process": %s, "worker": null}]}' % number
    (page,) = ask(worker.url)
    assert page.problem
    worker.status = json.dumps(status(lag_age="@")).encode().replace(b'"@"', number)
    (page,) = ask(worker.url)
    assert page.problem or (page.worker, page.behind) == ("w", {})


@pytest.mark.parametrize("number", [b"e", b"1e999", b"..", b"+"])
def test_a_count_of_records_that_is_no_number_is_unknown(number):
    assert parse_record_count(b"pykcl_records_processed_total %s\n" % number) is None
