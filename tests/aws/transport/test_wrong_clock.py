"""A machine whose clock is wrong: AWS refuses the time of a signature, and every call is signed with AWS' time then."""

import http.client
import json
import re
import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from raw_server import client_of

from pykcl.aws.clients import connect
from pykcl.aws.transport.request_template import Signer, canonical_request
from pykcl.config import Config
from pykcl.errors import SetupError
from pykcl.interfaces import Applied
from pykcl.local.server import LocalAws
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, ReadFrom
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.runtime import SystemRuntime

TOLERANCE = 300.0
_SIGNED = re.compile(
    r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=(\w+)"
)


class StrictAws:
    """A local AWS whose clock is `ahead` seconds ahead of ours, and that looks at time and signature of each request.

    refused: the operations that were refused for their time. unsigned: those with a wrong signature.
    """

    def __init__(self, aws, ahead):
        self.aws, self.ahead = aws, ahead
        self.refused, self.unsigned = [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, content_type, answer = outer.answer(self.headers, body)
                self.send_response_only(status)
                self.send_header("Date", formatdate(outer.now(), usegmt=True))
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def now(self):
        return time.time() + self.ahead

    def stop(self):
        self._server.shutdown()
        self._thread.join(300)
        self._server.server_close()

    def answer(self, headers, body):
        operation = headers["X-Amz-Target"].partition(".")[2]
        signed = datetime.strptime(headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        kind, code = headers["Content-Type"], None
        if not self.is_signed(headers, body):
            self.unsigned.append(operation)
            code = "InvalidSignatureException"
        elif abs(signed.timestamp() - self.now()) > TOLERANCE:
            self.refused.append(operation)
            code = "InvalidSignatureException"
        if code is not None:
            return 400, kind, json.dumps({"__type": code, "message": "Signature expired"}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", int(self.aws.url.rpartition(":")[2]))
        connection.request("POST", "/", body, dict(headers.items()))
        found = connection.getresponse()
        content = found.read()
        connection.close()
        return found.status, found.headers["Content-Type"], content

    @staticmethod
    def is_signed(headers, body):
        region, service, names, signature = _SIGNED.search(headers["Authorization"]).groups()
        told = {name: headers[name] for name in names.split(";")}
        expected = Signer(region, service).signature(
            "secret", headers["X-Amz-Date"], canonical_request("/", told, body)
        )
        return signature == expected


@pytest.fixture(scope="module")
def aws():
    with LocalAws() as local:
        yield local


@pytest.fixture
def strict(aws):
    found = StrictAws(aws, 3600.0)
    yield found
    found.stop()


def _worked(table, stream):
    """One of each call; the names of the operations."""
    assert table.prepare(create=True) in (True, False)
    stream.describe()
    (shard,) = stream.list_shards().shards
    page = stream.fetch(shard.shard_id, stream.open(shard.shard_id, ReadFrom("TRIM_HORIZON")), 10)
    assert page.millis_behind_latest == 0
    table.scan()
    lease = Lease(shard.shard_id, AT_TRIM_HORIZON)
    runtime = SystemRuntime()
    if table.read(shard.shard_id) is None:
        assert isinstance(table.write(lease_writes.create(lease), until=runtime.monotonic() + 5), Applied)
    seen = table.read(shard.shard_id)
    write = lease_writes.renew(seen) if seen.owner else lease_writes.take(seen, "w", PykclMetadata())
    assert isinstance(table.write(write, until=runtime.monotonic() + 5), Applied)


@pytest.mark.parametrize("way", ["boto3", "auto"])
def test_every_call_of_a_worker_is_signed_with_the_time_of_aws(strict, aws, way, caplog):
    name = f"orders-{way}"
    aws.kinesis.create_stream(name, 1)
    clients = {service: client_of(strict.url, service) for service in ("kinesis", "dynamodb")}
    config = Config(application=name, stream=name, region="eu-west-1", http_transport=way)
    table, stream = connect(config, SystemRuntime(), clients=clients)
    _worked(table, stream)
    _worked(table, stream)
    assert len(strict.refused) == 2, "once for each service"
    strict.ahead = 0.0  # as where NTP puts our clock right
    _worked(table, stream)
    _worked(table, stream)
    assert len(strict.refused) == 4
    assert not strict.unsigned
    assert caplog.text.count("our clock differs") == 4


@pytest.mark.parametrize("way", ["boto3", "auto"])
def test_a_signature_that_is_refused_at_the_right_time_is_not_sent_again(strict, aws, way, monkeypatch):
    strict.ahead = 0.0
    name = f"wrong-{way}"
    aws.kinesis.create_stream(name, 1)
    clients = {service: client_of(strict.url, service) for service in ("kinesis", "dynamodb")}
    config = Config(application=name, stream=name, region="eu-west-1", http_transport=way)
    table, stream = connect(config, SystemRuntime(), clients=clients)
    _worked(table, stream)
    _worked(table, stream)
    monkeypatch.setattr(strict, "is_signed", lambda headers, body: False)
    for call in (stream.describe, stream.list_shards, table.scan):
        strict.unsigned.clear()
        with pytest.raises(SetupError):
            call()
        assert len(strict.unsigned) == 1


def test_a_call_of_somebody_else_on_the_same_client_is_left_alone(strict, aws):
    name = "shared"
    aws.kinesis.create_stream(name, 1)
    clients = {service: client_of(strict.url, service) for service in ("kinesis", "dynamodb")}
    _, stream = connect(
        Config(application=name, stream=name, region="eu-west-1"), SystemRuntime(), clients=clients
    )
    stream.describe()
    strict.refused.clear()
    with pytest.raises(clients["kinesis"].exceptions.ClientError):
        clients["kinesis"].list_shards(StreamName=name)
    assert strict.refused == ["ListShards"]
