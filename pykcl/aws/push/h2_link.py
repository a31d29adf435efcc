"""One HTTP/2 connection with the subscriptions that it carries. For one thread: nothing here waits.

h2 does the protocol. Windows: the service may send 512 KiB on a stream ahead of what its reader has taken. An event
that is longer would never be complete that way, so the bytes of the event that is next are acknowledged as they come.
The window of the connection holds those of all its streams: one reader that stops does not stop the others.

A connection that says nothing for 30 seconds is asked by a PING, and is condemned if nothing comes for 10 seconds then.
GOAWAY ends it with all its streams, because h2 reads nothing behind one; their readers subscribe anew, on another.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from pykcl.aws.push.subscription import MAX_FULL, MAX_UNREAD, PushedEvents
from pykcl.errors import AnswerRefused, PyKclError
from pykcl.runtime import Event

MAX_STREAMS: Final = 100
MAX_SILENCE: Final = 30.0
"""Seconds without a byte until a PING."""
MAX_PING: Final = 10.0
"""Seconds until something has to come for it."""
_ONE_READ: Final = 256 * 1024
_MAX_ERROR_BODY: Final = 64 * 1024
_SETTINGS_FRAME: Final = 4
_SMALL_WINDOW: Final = 4096
"""Bytes of a window that is left, with which the service does nothing."""

Headers = list[tuple[str, str]]


class NoHttp2(Exception):
    """The other side does not speak HTTP/2."""


class Exchange:
    """One request, and its answer as far as it has come. answered: set once `status` or `failure` is there.

    body: of an error. The events of a good answer go to `events`.
    """

    def __init__(self, headers: Headers, body: bytes, events: PushedEvents, answered: Event) -> None:
        self.request_headers, self.request_body = headers, body
        self.events, self.answered = events, answered
        self.stream_id = self.unacknowledged = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.failure: Exception | None = None

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def fail(self, error: Exception, sort: Callable[[Exception], PyKclError]) -> None:
        """End it without, or within, its answer. sort: makes the error for its reader."""
        if not self.answered.is_set():
            self.failure = error
            self.answered.set()
        elif self.is_good:
            self.events.end(sort(error))


class Link:
    """An open connection. load: subscriptions that it has, or is to get."""

    def __init__(self, opened: socket.socket, now: float, sort: Callable[[Exception], PyKclError]) -> None:
        self.load = 0
        self.is_closed = False
        self._socket, self._sort = opened, sort
        self._heard_at, self._asked_at = now, 0.0
        self._exchanges: dict[int, Exchange] = {}
        # Since when the window of an exchange is used up.
        self._full: dict[int, float] = {}
        self._unsent = b""
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=True, initial_values={codes.ENABLE_PUSH: 0, codes.INITIAL_WINDOW_SIZE: MAX_UNREAD}
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(MAX_STREAMS * MAX_UNREAD + (1 << 20))

    def agree(self) -> None:
        """Greet, and wait for the other side's greeting. Before any other thread has the link.

        Raises NoHttp2 and OSError.
        """
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.selected_alpn_protocol() != "h2":
            raise NoHttp2
        self._socket.sendall(self._h2.data_to_send())
        received = b""
        while len(received) < 9:
            part = self._socket.recv(_ONE_READ)
            if not part:
                raise NoHttp2
            received += part
        if received[3] != _SETTINGS_FRAME:
            raise NoHttp2
        self._socket.setblocking(False)
        self._take(received, self._heard_at)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def max_streams(self) -> int:
        return min(self._h2.remote_settings.max_concurrent_streams, MAX_STREAMS)

    @property
    def wants_to_send(self) -> bool:
        return bool(self._unsent)

    @property
    def due_at(self) -> float:
        """Time of the next `check`, monotonic seconds."""
        return min(self._ping_at, min(self._full.values(), default=inf) + MAX_FULL)

    @property
    def _ping_at(self) -> float:
        return self._asked_at + MAX_PING if self._asked_at else self._heard_at + MAX_SILENCE

    def send(self, exchange: Exchange) -> None:
        """Send a request."""
        if self.is_closed:
            exchange.fail(ConnectionResetError("the connection has ended"), self._sort)
            return
        try:
            exchange.stream_id = stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, exchange.request_headers)
            self._exchanges[stream_id] = exchange
            self._h2.send_data(stream_id, exchange.request_body, end_stream=True)
        except h2.exceptions.ProtocolError as error:
            self._exchanges.pop(exchange.stream_id, None)
            exchange.fail(error, self._sort)
            return
        self.flush()

    def cancel(self, exchange: Exchange) -> None:
        """End a stream that is still open."""
        found = self._exchanges.pop(exchange.stream_id, None)
        self._full.pop(exchange.stream_id, None)
        if found is None or self.is_closed:
            return
        self._acknowledge(found, found.unacknowledged)
        with suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(found.stream_id, h2.errors.ErrorCodes.CANCEL)
        self.flush()

    def taken(self, exchange: Exchange) -> None:
        """Let the service send on, as much as the reader has taken."""
        if exchange.unacknowledged and not self.is_closed:
            self._make_room(exchange)
            self.flush()
        if not self._is_full(exchange):
            self._full.pop(exchange.stream_id, None)

    def receive(self, now: float) -> None:
        """Take in all that has come."""
        try:
            while not self.is_closed:
                received = self._socket.recv(_ONE_READ)
                if not received:
                    self.close(ConnectionResetError("the connection was closed"))
                    return
                self._take(received, now)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def check(self, now: float) -> None:
        """Ask whether the other side lives, if it has said nothing for long; condemn the link if that had no answer.

        End what has been full for long, too: no window stands still for minutes, and nothing is held for nobody.
        """
        for stream_id in [one for one, since in self._full.items() if now >= since + MAX_FULL]:
            exchange = self._exchanges[stream_id]
            self.cancel(exchange)
            exchange.events.give_up()
        if now < self._ping_at or self.is_closed:
            return
        if self._asked_at:
            self.close(TimeoutError("a PING was not answered"))
            return
        self._asked_at = now
        self._h2.ping(b"pykcl...")
        self.flush()

    def flush(self) -> None:
        """Send what is to be sent, as far as the socket takes it."""
        self._unsent += self._h2.data_to_send()
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def close(self, error: Exception) -> None:
        """End the connection, and all exchanges with the error."""
        if self.is_closed:
            return
        self.is_closed = True
        # The connection ends also if a process that was forked has another handle of it.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()
        exchanges, self._exchanges = self._exchanges, {}
        self._full.clear()
        for exchange in exchanges.values():
            exchange.fail(error, self._sort)

    def _take(self, received: bytes, now: float) -> None:
        self._heard_at, self._asked_at = now, 0.0
        for event in self._h2.receive_data(received):
            if isinstance(event, h2.events.ConnectionTerminated):
                self.close(ConnectionResetError("the server ends the connection (GOAWAY)"))
                return
            exchange = self._exchanges.get(getattr(event, "stream_id", None) or 0)
            if exchange is not None:
                self._take_event(exchange, event)
        self.flush()

    def _take_event(self, exchange: Exchange, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            exchange.headers = {_text(name): _text(value) for name, value in event.headers or ()}
            exchange.status = int(exchange.headers.get(":status", 0))
            if exchange.is_good:
                exchange.answered.set()
        elif isinstance(event, h2.events.DataReceived):
            self._take_data(exchange, event)
            # It may have been ended for what came.
            if exchange.stream_id in self._exchanges and self._is_full(exchange):
                self._full.setdefault(exchange.stream_id, self._heard_at)
        elif isinstance(event, h2.events.StreamEnded):
            self._forget(exchange)
            if exchange.is_good:
                exchange.events.end()
            exchange.answered.set()
        elif isinstance(event, h2.events.StreamReset):
            self._forget(exchange)
            exchange.fail(ConnectionResetError("the stream was reset"), self._sort)

    def _forget(self, exchange: Exchange) -> None:
        # Nothing follows on it. 1) Its reader closes it with events that it has not taken; 2) nobody acknowledges them;
        # 3) after some hundred such streams the window of the connection is used up, and all others get nothing.
        self._acknowledge(exchange, exchange.unacknowledged)
        del self._exchanges[exchange.stream_id]
        self._full.pop(exchange.stream_id, None)

    @staticmethod
    def _is_full(exchange: Exchange) -> bool:
        # h2 keeps acknowledgements back until they are worth a frame.
        return exchange.events.unread_behind_first > MAX_UNREAD - _SMALL_WINDOW

    def _take_data(self, exchange: Exchange, event: h2.events.DataReceived) -> None:
        data = event.data or b""
        exchange.unacknowledged += len(data)
        self._acknowledge(exchange, (event.flow_controlled_length or 0) - len(data), is_padding=True)
        if not exchange.is_good:
            exchange.body = (exchange.body + data)[:_MAX_ERROR_BODY]
            self._acknowledge(exchange, exchange.unacknowledged)
            return
        try:
            exchange.events.receive(data)
        except AnswerRefused as error:
            self.cancel(exchange)
            exchange.events.end(error)
        else:
            self._make_room(exchange)

    def _make_room(self, exchange: Exchange) -> None:
        self._acknowledge(exchange, exchange.unacknowledged - exchange.events.unread_behind_first)

    def _acknowledge(self, exchange: Exchange, size: int, *, is_padding: bool = False) -> None:
        if size > 0:
            self._h2.acknowledge_received_data(size, exchange.stream_id)
            exchange.unacknowledged -= 0 if is_padding else size


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
