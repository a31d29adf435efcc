"""A small HTTP server for a few short GETs: one thread, few connections, each over within seconds.

It listens on HOST:PORT as people write it. Not http.server: a thread for each connection, and its time-outs begin anew
with every byte a slow client sends. Here one deadline covers a whole connection, and when there are too many the oldest
unfinished one goes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from pykcl.errors import ConfigError, SetupError

LOOPBACK = "127.0.0.1"
_BACKLOG = 64
_FORM = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]:|(?P<host>[^\s:\[\]/@]*):)?(?P<port>[0-9]{1,5})\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """host: a name or an IP address; without one in the text 127.0.0.1. port: 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """`8080`, `:8080`, `HOST:8080` or `[::1]:8080`. Raises ConfigError."""
        found = _FORM.match(text.strip())
        if found is None or int(found["port"]) > 65_535:
            raise ConfigError(
                f"{text[:200]!r} is no address. Use PORT for 127.0.0.1 only, HOST:PORT, or [::1]:PORT."
            )
        return cls(found["six"] or found["host"] or LOOPBACK, int(found["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. is_loopback: nobody but this machine can reach it."""

    socket: socket.socket
    address: Address
    is_loopback: bool


def listen(address: Address) -> Listener:
    """Raises SetupError where that cannot be had: a name nobody knows, a port that is taken, or one of the system's."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # One of them: a name with several addresses is listened on at its first, which is reported.
        family, kind, protocol, _, place = found[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unusable(address, error) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise _unusable(address, error) from None
    host, port = str(place[0]), int(made.getsockname()[1])
    return Listener(made, Address(host, port), ipaddress.ip_address(host.partition("%")[0]).is_loopback)


def _unusable(address: Address, error: OSError) -> SetupError:
    return SetupError(
        f"Cannot listen on {address}: {error.strerror or type(error).__name__}. Do: name another port or address."
    )


log = logging.getLogger("pykcl.health")

MAX_CONNECTIONS = 32
CONNECTION_SECONDS = 5.0
MAX_HEAD_BYTES = 8192
TEXT = "text/plain; charset=utf-8"
_STOP_SECONDS = 2.0
_LAST_ROUNDS = 8
_ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Connection": "close",
}


@dataclass(frozen=True, slots=True)
class Request:
    """path: without the query. headers: by their names in small letters; of several alike the last. local_address: of
    this machine, where the request came in."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    local_address: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """text: the whole body."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: HTTPStatus, text: str = "", **headers: str) -> Answer:
        """A line of text, by default the status's own words."""
        return cls(status, f"{text or status.phrase}\n".encode(), headers=headers)


class HttpServer:
    """Answers with what `handle` returns for a GET or HEAD. It is called in the server's thread: it must be quick.

    Whatever it raises becomes a 500 without a word of it.
    """

    def __init__(
        self,
        listener: Listener,
        handle: Callable[[Request], Answer],
        *,
        max_connections: int = MAX_CONNECTIONS,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._most = max_connections
        self._seconds = connection_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        # In the order in which they came.
        self._connections: dict[asyncio.Task[bool], None] = {}

    @property
    def address(self) -> Address:
        return self._listener.address

    def start(self) -> None:
        """Start to answer."""
        self._thread = threading.Thread(target=self._run, name="pykcl-http", daemon=True)
        self._thread.start()
        # Who connects before is queued by the system; this only makes sure that `stop` finds the loop.
        self._ready.wait(_STOP_SECONDS)

    def stop(self) -> None:
        """Break off what is under way, and free the port."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or loop is None or stop is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(stop.set)
        thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - the worker works without it
            log.error("health endpoint died error=%s", type(error).__name__)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_log_type_only)
        server = await asyncio.start_server(self._connected, sock=self._listener.socket, limit=MAX_HEAD_BYTES)
        self._ready.set()
        try:
            await self._stop.wait()
        finally:
            # Nobody new from here on. Who was accepted becomes a connection in the loop's next rounds; what is broken
            # off is closed in them. A server closed before would lose the one that is on its way between the two.
            self._loop.remove_reader(self._listener.socket)
            for _ in range(_LAST_ROUNDS):
                for task in list(self._connections):
                    task.cancel()
                await asyncio.sleep(0)
            server.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._connections[task] = None
        task.add_done_callback(lambda done: self._over(done, writer))
        if len(self._connections) > self._most:
            # Who sent its request is answered within a moment, so the oldest is one that has not. It counts no more
            # from now on: many may come before it notices.
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()

    def _over(self, done: asyncio.Task[bool], writer: asyncio.StreamWriter) -> None:
        self._connections.pop(done, None)
        # Not in the task itself: its body never runs if it is cancelled before it starts. A closed connection must not
        # be aborted: asyncio raises for it.
        if done.cancelled() or done.exception() is not None or not done.result():
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Return True if it was answered and the connection is closed."""
        try:
            await asyncio.wait_for(self._exchange(reader, writer), self._seconds)
            return True
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            log.debug("connection broken off error=%s", type(error).__name__)
            return False

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            answer, has_body = Answer.of(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        else:
            request = parsed(head, str(writer.get_extra_info("sockname")[0]))
            answer = Answer.of(HTTPStatus.BAD_REQUEST) if request is None else self._answer(request)
            has_body = request is None or request.method != "HEAD"
        writer.write(encoded(answer, has_body=has_body))
        writer.close()
        # Until all of it is with the client: one that does not read runs into the deadline.
        await writer.wait_closed()

    def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer.of(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        try:
            return self._handle(request)
        except Exception as error:  # noqa: BLE001 - a client learns nothing of it
            log.error("health page failed path=%r error=%s", request.path[:100], type(error).__name__)
            return Answer.of(HTTPStatus.INTERNAL_SERVER_ERROR)


def parsed(head: bytes, local_address: str = "") -> Request | None:
    """The request, or None for what is none of HTTP/1, such as one with two Host headers."""
    try:
        first, *lines = head[:-4].decode("ascii").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        return None
    if version not in ("HTTP/1.0", "HTTP/1.1") or not target.startswith("/") or not method.isalpha():
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or ("host" in headers and name.lower() == "host"):
            return None
        headers[name.lower()] = value.strip()
    return Request(method, target.partition("?")[0], headers, local_address)


def encoded(answer: Answer, *, has_body: bool) -> bytes:
    """Encode the answer for the wire. has_body: False for a HEAD."""
    headers = {
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        **_ALWAYS,
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode("ascii") + (answer.body if has_body else b"")


def _log_type_only(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    log.debug("health endpoint error=%s", type(error).__name__ if error else "unknown")
