"""The host itself: files, the endpoint of an ECS task and the metadata service of EC2, played by a local server."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pykcl.aws import host as module
from pykcl.aws.host import SystemHost
from pykcl.runtime import SystemRuntime
from pykcl.testing.fleet import Fleet, Ledger, RecordingProcessor
from pykcl.testing.runtime import Simulation
from pykcl.worker.worker import Worker


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.command, self.path, self.headers.get("x-aws-ec2-metadata-token")))
        self.server.answer(self)

    do_PUT = do_GET  # noqa: N815 - the name is that of http.server

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """answer: called with the handler of each request."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.answer = [], said("{}")
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def said(body, status=200, headers=()):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


@pytest.fixture
def host():
    return SystemHost(SystemRuntime())


def test_files_and_variables_are_those_of_this_process(host, monkeypatch, tmp_path):
    monkeypatch.setenv("SOMETHING", "set")
    assert (host.environment("SOMETHING"), host.environment("NOTHING_OF_THIS")) == ("set", "")
    path = tmp_path / "cpu.max"
    assert not host.exists(str(path))
    with pytest.raises(OSError, match=r"cpu\.max"):
        host.read(str(path))
    path.write_bytes(b"max 100000\n\xff")
    assert host.exists(str(path))
    assert host.read(str(path)) == "max 100000\n\N{REPLACEMENT CHARACTER}"


def test_an_answer_is_its_text(host, server):
    server.answer = said('{"a": 1}')
    assert host.get(server.url + "/v4/id/stats") == '{"a": 1}'
    assert [path for _, path, _ in server.asked] == ["/v4/id/stats"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said("", 500), "status 500"),
        (said("", 302, [("Location", "http://169.254.169.254/latest/meta-data")]), "status 302"),
        (said("x" * (1024 * 1024 + 1)), "too long"),
        (lambda handler: handler.wfile.write(b"SSH-2.0\r\n\r\n"), "not HTTP"),
    ],
)
def test_another_answer_is_refused(host, server, answer, error):
    server.answer = answer
    with pytest.raises(ValueError, match=error):
        host.get(server.url + "/stats")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url", ["", "/stats", "file:///etc/passwd", "https://127.0.0.1/x", "http://", "http://h:x/"]
)
def test_another_address_is_refused(host, url):
    with pytest.raises(ValueError, match=r"form|port|Port"):
        host.get(url)


def test_an_answer_that_does_not_come_or_drips_is_given_up(host, server, monkeypatch):
    monkeypatch.setattr(module, "_WAIT", 0.2)
    monkeypatch.setattr(module, "_LONGEST", 0.3)
    is_over = threading.Event()

    def silent(_):
        is_over.wait(300)

    def dripping(handler):
        handler.send_response(200)
        handler.end_headers()
        while not is_over.wait(0.05):
            handler.wfile.write(b" ")

    try:
        for answer, error in ((silent, OSError), (dripping, ValueError)):
            server.answer = answer
            began = time.monotonic()
            with pytest.raises(error):
                host.get(server.url + "/stats")
            assert time.monotonic() - began < 60.0
    finally:
        is_over.set()


def test_an_endpoint_without_a_server_is_an_error_of_the_system(host, server):
    server.answer = None
    url = "http://127.0.0.1:9/stats"
    with pytest.raises(OSError, match="refused"):
        host.get(url)


# -- EC2 -------------------------------------------------------------------------------------------------------


def metadata(handler):
    body = "token" if handler.command == "PUT" else "eu-west-1a"
    said(body)(handler)


@pytest.fixture
def imds(server, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url + "/")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    server.answer = metadata
    return server


def test_ec2_is_where_the_metadata_service_answers_to_a_token(host, imds):
    assert host.is_ec2()
    assert [(method, token) for method, _, token in imds.asked] == [("PUT", None), ("GET", "token")]


def test_a_service_that_refuses_is_asked_once_and_is_not_ec2(host, imds):
    imds.answer = said("", 404)
    assert not host.is_ec2()
    assert [method for method, _, _ in imds.asked] == ["PUT", "GET"]


def test_the_metadata_service_is_not_asked_where_that_is_disabled(host, imds, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert not host.is_ec2()
    assert imds.asked == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_EC2_METADATA_SERVICE_ENDPOINT", "no address"), ("AWS_PROFILE", "missing-profile")],
)
def test_a_configuration_that_is_wrong_is_not_ec2(host, imds, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not host.is_ec2()
    assert imds.asked == []


def test_time_outs_of_the_configuration_do_not_hold_up_the_worker(host, imds, monkeypatch):
    monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "50")
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "60")
    imds.answer = said("", 500)
    assert not host.is_ec2()
    assert len(imds.asked) == 2


# -- the worker ------------------------------------------------------------------------------------------------


def test_a_worker_measures_its_own_host_and_in_a_simulation_none():
    worker = Worker("orders-app", stream="orders", processor=lambda: RecordingProcessor("w1", Ledger()))
    assert isinstance(worker._host(), SystemHost)
    with Simulation(7) as simulation:
        assert Fleet(simulation).worker("w1")._host() is None
