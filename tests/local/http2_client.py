"""A small HTTP/2 client with prior knowledge, as the Java SDK's Kinesis client connects: no boto3, no upgrade."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from types import TracebackType

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

CBOR = "application/x-amz-cbor-1.1"
LONG = 300
"""Seconds after which a silent server fails the test."""


@dataclass
class Reply:
    """What came back on one stream so far. reset: the stream was reset instead."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers.get(":status", 0))


class Http2Client:
    """One connection; any number of requests at once. window: how much a stream may send before it is told to go on."""

    def __init__(self, port: int, *, window: int = 512 * 1024) -> None:
        self.wire = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.replies: dict[int, Reply] = {}
        self.closed = False
        self.goaway: int | None = None
        self.flush()

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wire.close()

    def flush(self) -> None:
        self.wire.sendall(self.h2.data_to_send())

    def send(self, operation: str, body: bytes, content_type: str = CBOR) -> int:
        """Send one Kinesis request; the number of its stream."""
        stream = self.open(operation, len(body), content_type)
        self.send_body(stream, body)
        return stream

    def open(self, operation: str, length: int, content_type: str = CBOR) -> int:
        """Send the headers of a Kinesis request."""
        stream = self.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "localhost")]
        headers += [
            ("x-amz-target", f"Kinesis_20131202.{operation}"),
            ("content-type", content_type),
            ("content-length", str(length)),
        ]
        self.h2.send_headers(stream, headers)
        self.replies[stream] = Reply()
        self.flush()
        return stream

    def send_body(self, stream: int, body: bytes) -> None:
        """The whole body, as fast as the server's windows allow."""
        rest = memoryview(body)
        while rest:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(rest))
            if room == 0:
                self.hear()
                continue
            self.h2.send_data(stream, bytes(rest[:room]))
            rest = rest[room:]
        self.h2.end_stream(stream)
        self.flush()

    def reset(self, stream: int) -> None:
        """Give one request up, as a client does that waited long enough."""
        self.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self.flush()

    def hear(self) -> None:
        """Take what the server sent next. Sets `closed` at the end of the connection."""
        try:
            self.flush()
            data = self.wire.recv(1 << 18)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.replies[event.stream_id].headers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.replies[event.stream_id].body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.replies[event.stream_id].ended = True
        elif isinstance(event, h2.events.StreamReset):
            self.replies[event.stream_id].reset = event.error_code
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event.error_code

    def reply(self, stream: int) -> Reply:
        """Wait for the answer of one request. Raises ConnectionError when the connection ends before it."""
        found = self.replies[stream]
        while not found.ended:
            if self.closed or found.reset is not None:
                raise ConnectionError("The stream or its connection ended without an answer.")
            self.hear()
        return found

    def ask(self, operation: str, body: bytes, content_type: str = CBOR) -> Reply:
        return self.reply(self.send(operation, body, content_type))
