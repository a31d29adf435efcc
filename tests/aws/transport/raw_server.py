"""A server that reads requests and sends what a test has written for each, and clients for it."""

import json
import re
import socket
import ssl
import threading
from dataclasses import dataclass

import boto3
from botocore.config import Config

from pykcl.aws.kinesis import KinesisStream
from pykcl.runtime import SystemRuntime

SHARD = "shardId-000000000000"
EMPTY = {"Records": [], "NextShardIterator": "AAAA-next", "MillisBehindLatest": 0}
JSON, CBOR = "application/x-amz-json-1.1", "application/x-amz-cbor-1.1"
JSON_1_0 = "application/x-amz-json-1.0"
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # 1_700_000_000

CLOSE = object()
"""In the place of an answer: close the connection without a word."""
HANG = object()
"""Say nothing until the test is over."""


@dataclass(frozen=True)
class Then:
    """Send this, then do that (CLOSE or HANG)."""

    first: bytes
    then: object


@dataclass(frozen=True)
class Drip:
    """Send this byte by byte, a hundred in a second at most; nothing more once the test is over."""

    answer: bytes


def http(body, status=200, *, content_type=JSON, **headers):
    """An HTTP answer. body: bytes, or anything else as JSON."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    told = {"Date": DATE, "Content-Type": content_type, "Content-Length": len(body)}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in told.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *lines, "", ""]).encode() + body


def refusal(code, status=400, message="", **headers):
    return http({"__type": code, "message": message}, status, **headers)


class Request:
    def __init__(self, head, body, connection):
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = first.split(" ")
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.body, self.connection = body, connection

    @property
    def by_boto3(self):
        return "amz-sdk-invocation-id" in self.headers


class RawServer:
    """`say` what is answered, in order; the last one again and again. `requests`: what came."""

    def __init__(self, certificate=None):
        self.requests = []
        self._answers = [http(EMPTY)]
        self._over = threading.Event()
        self._context = None
        if certificate:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open, self._threads, self._connections = [], [], 0
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        if not self._over.is_set():
            self.stop()

    def stop(self):
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            close(connection)
        for thread in self._threads:
            thread.join(300)

    def say(self, *answers):
        self._answers = list(answers)

    @property
    def lean_requests(self):
        return [request for request in self.requests if not request.by_boto3]

    def _start(self, body, *arguments):
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections += 1
            self._start(self._converse, connection, self._connections)

    def _converse(self, connection, number):
        try:
            if self._context:
                connection = self._context.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            while request := read_request(connection, number):
                self.requests.append(request)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if isinstance(answer, Then):
                    connection.sendall(answer.first)
                    answer = answer.then
                if isinstance(answer, Drip):
                    for byte in answer.answer:
                        if not self._over.wait(0.01):
                            connection.sendall(bytes((byte,)))
                    continue
                if answer is HANG:
                    self._over.wait(30)
                if not isinstance(answer, bytes):
                    break
                connection.sendall(answer)
        except OSError:
            return
        finally:
            close(connection)


def close(connection):
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        connection.close()
    else:
        connection.close()


def read_request(connection, number):
    received = b""
    while True:
        head, found, body = received.partition(b"\r\n\r\n")
        if found:
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
            if len(body) == length:
                return Request(head, body, number)
        part = connection.recv(65536)
        if not part:
            return None
        received += part


def client_of(url, service="kinesis", *, read_timeout=60, token=None, verify=None, **more):
    return boto3.client(
        service,
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="AKIDLOCAL",
        aws_secret_access_key="secret",
        aws_session_token=token,
        verify=verify,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=2,
            read_timeout=read_timeout,
            proxies={},
            **more,
        ),
    )


def stream_of(client, runtime=None, **way):
    return KinesisStream(client, "orders", runtime or SystemRuntime(), **way)


def direct_stream(server, *, client=None, runtime=None, record_encoding="json", **how):
    """A stream whose next page comes over the direct transport."""
    stream = stream_of(
        client or client_of(server.url, **how),
        runtime,
        http_transport="direct",
        record_encoding=record_encoding,
    )
    fetch(stream)
    assert stream.transport.startswith("direct")
    return stream


def transport_of(stream):
    return stream._reads._selector._transports["get_records"][1]


def fetch(stream, iterator="AAAA-first"):
    return stream.fetch(SHARD, iterator, 1000)
