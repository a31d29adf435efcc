"""One kept-open HTTP/1.1 connection to one host: a request out, an answer in.

http.client spends more on an answer's head (it parses it as an e-mail) than everything else here together costs. What
is read instead is the plain middle of RFC 9112: a status line, header lines, and a body with a length, in chunks, or up
to the end of the connection. Anything else is a ProtocolError, and the connection is not used again. Raises that and
OSError; whoever calls turns both into botocore's errors.

`PendingAnswer` is a request that was sent and is not waited for: one thread has many of them, and polls them.
"""

from __future__ import annotations

import math
import re
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, NamedTuple

from pykcl.interfaces import PageStatus

MOST_HEAD: Final = 64 * 1024
MOST_BODY: Final = 32 * 1024 * 1024
"""Kinesis sends 10 MiB of data at most, in base64 14 MiB, and its keys and names beside them."""
_MAX_INTERIM: Final = 8
_ONE_READ: Final = 16 * 1024  # the largest TLS record; more is never there at once
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?\Z")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?\Z", re.DOTALL)
_LENGTH = re.compile(r"[0-9]{1,12}\Z")
_HEAD_END: Final = b"\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)


class Answer(NamedTuple):
    """headers: lower-case name -> value; of several with one name the last."""

    status: int
    headers: dict[str, str]
    body: bytes


class ProtocolError(Exception):
    """An answer that is not HTTP, is cut off, or is too large. The text shows none of its content."""


class Unanswered(ProtocolError):
    """The other side closed before the first byte of an answer."""


class Unsent(Unanswered):
    """Failure in which not one byte of the request went out: it cannot have been carried out."""


class Connection:
    """An open socket. For one thread at a time. `is_reusable`: whether the next request may use it, too.

    until: when the answer has to be there, to its last byte, by `clock`. The socket's own time-out is for each piece of
    it: one byte in each would hold the thread, and with it a heartbeat, for as long as the other side likes.
    """

    __slots__ = ("_clock", "_poll", "_socket", "is_reusable", "until", "used_at")

    def __init__(self, opened: socket.socket, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._socket = opened
        self._clock = clock
        self.until = math.inf
        self._poll = None
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(opened, select.POLLIN)
        self.is_reusable = True
        self.used_at = 0.0

    def close(self) -> None:
        self.is_reusable = False
        self._socket.close()

    def is_quiet(self) -> bool:
        """Return whether nothing waits to be read, not even the end: only then is the next answer ours."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False  # decrypted already, so the socket does not show it
        if self._poll is not None:
            return not self._poll.poll(0)
        return not select.select([self._socket], [], [], 0)[0]

    def exchange(self, request: bytes) -> Answer:
        self.send(request)
        return self.answer([])

    def send(self, request: bytes) -> None:
        """The request, to its last byte. `answer` follows, or `close`."""
        self.is_reusable = False  # until the answer is in, to its last byte
        try:
            sent = self._socket.send(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Unsent("the connection was closed") from error
        if sent == len(request):
            return
        # A server may answer before it has read all of a long request, and close: that answer waits to be read. Without
        # one, reading fails at once.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(request[sent:])

    def answer(self, parts: list[bytes]) -> Answer:
        """Wait for the rest of it. parts: what `take_in` has found of it."""
        if self.until == math.inf:
            return self._answer(parts)
        timeout = self._socket.gettimeout()
        try:
            return self._answer(parts)
        finally:
            if self._socket.gettimeout() != timeout:
                self._socket.settimeout(timeout)

    def _answer(self, parts: list[bytes]) -> Answer:
        received, *more = parts or [self._first()]
        if more and _HEAD_END not in received:
            received, more = b"".join(parts), []
        status, headers, rest = self._head(received)
        if more:
            rest = b"".join([rest, *more])
        for _ in range(_MAX_INTERIM):
            if status >= 200:
                break
            status, headers, rest = self._head(rest)
        body = self._body(status, headers, rest)
        return Answer(status, headers, body)

    def _first(self) -> bytes:
        # For nearly all answers that is all: it has the socket's time-out, as it always had.
        try:
            first = self._socket.recv(_ONE_READ)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Unanswered("the connection was closed") from error
        if not first:
            raise Unanswered("the connection was closed without an answer")
        return first

    def take_in(self, parts: list[bytes], most: int) -> bool:
        """Add to `parts` what has come, without waiting, until they are `most` bytes.

        Whether the other side has ended the connection.
        """
        timeout = self._socket.gettimeout()
        self._socket.settimeout(0.0)
        missing = most - sum(map(len, parts))
        try:
            while missing > 0:
                part = self._socket.recv(min(missing, _ONE_READ))
                if not part:
                    return True
                parts.append(part)
                missing -= len(part)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            self._socket.settimeout(timeout)
        return False

    def fileno(self) -> int:
        return self._socket.fileno()

    def _head(self, received: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, and what of the body came with them."""
        while (end := received.find(_HEAD_END)) < 0:
            if len(received) > MOST_HEAD:
                raise ProtocolError("the head of the answer has no end")
            received += self._more(_ONE_READ)
        first, *lines = received[:end].decode("latin-1").split("\r\n")
        found = _STATUS_LINE.match(first)
        if found is None:
            raise ProtocolError("the answer does not begin as HTTP/1.1 does")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or (name == "content-length" and headers.get(name, value.strip()) != value.strip()):
                raise ProtocolError("a header of the answer cannot be read")
            headers[name] = value.strip()
        if found[1] == "0":
            headers.setdefault("connection", "close")
        return int(found[2]), headers, received[end + 4 :]

    def _body(self, status: int, headers: dict[str, str], rest: bytes) -> bytes:
        is_kept = "close" not in headers.get("connection", "").lower()
        coding = headers.get("transfer-encoding")
        length = headers.get("content-length")
        if status < 200:
            raise ProtocolError("nothing but interim answers came")
        if status in (204, 304):
            length, coding = "0", None
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise ProtocolError("the answer says in no known way how long it is")
            body, rest = self._chunks(rest)
        elif length is not None:
            if not _LENGTH.match(length):
                raise ProtocolError("the answer has a length that is no number")
            body, rest = self._exactly(int(length), rest)
        else:
            return self._to_the_end(rest)
        # More than the answer would be taken for the next one: such a connection is not used again.
        self.is_reusable = is_kept and not rest
        return body

    def _exactly(self, length: int, rest: bytes) -> tuple[bytes, bytes]:
        """The next `length` bytes, and what came after them."""
        if length <= len(rest):
            return rest[:length], rest[length:]
        if length > MOST_BODY:
            raise ProtocolError("the answer is larger than any that AWS sends")
        # Received where it stays: BytesIO gives out the very bytes it was made of. Parts that are joined take twice the
        # memory, and for a page of a megabyte a quarter more CPU.
        body, there, receive = BytesIO(bytes(length)), len(rest), self._socket.recv_into
        with body.getbuffer() as space:
            space[:there] = rest
            while there < length:
                self._mind_time()
                received = receive(space[there : there + _ONE_READ])
                if not received:
                    raise ProtocolError("the answer was cut off")
                there += received
        return body.getvalue(), b""

    def _chunks(self, rest: bytes) -> tuple[bytes, bytes]:
        body = bytearray()
        while True:
            line, rest = self._line(rest)
            found = _CHUNK_SIZE.match(line)
            if found is None:
                raise ProtocolError("a chunk of the answer has no size")
            size = int(found[1], 16)
            if len(body) + size > MOST_BODY:
                raise ProtocolError("the answer is larger than any that AWS sends")
            if size == 0:
                break
            part, rest = self._exactly(size + 2, rest)
            if not part.endswith(b"\r\n"):
                raise ProtocolError("a chunk of the answer is not as long as it says")
            body += part[:-2]
        trailers = 0
        while line:
            line, rest = self._line(rest)
            trailers += len(line)
            if trailers > MOST_HEAD:
                raise ProtocolError("the answer has trailers without end")
        return bytes(body), rest

    def _line(self, rest: bytes) -> tuple[bytes, bytes]:
        while (end := rest.find(b"\r\n")) < 0:
            if len(rest) > MOST_HEAD:
                raise ProtocolError("a line of the answer has no end")
            rest += self._more(_ONE_READ)
        return rest[:end], rest[end + 2 :]

    def _to_the_end(self, rest: bytes) -> bytes:
        parts, total = [rest], len(rest)
        while part := self._received(_ONE_READ):
            parts.append(part)
            total += len(part)
            if total > MOST_BODY:
                raise ProtocolError("the answer is larger than any that AWS sends")
        return b"".join(parts)

    def _more(self, most: int) -> bytes:
        part = self._received(most)
        if not part:
            raise ProtocolError("the answer was cut off")
        return part

    def _received(self, most: int) -> bytes:
        self._mind_time()
        return self._socket.recv(most)

    def _mind_time(self) -> None:
        """Check the time before each read but the first. Raises TimeoutError where none is left."""
        if self.until == math.inf:
            return
        left = self.until - self._clock()
        if left <= 0:
            raise TimeoutError("the answer has not ended in time")
        if left < (self._socket.gettimeout() or math.inf):
            self._socket.settimeout(left)


def content_length(received: bytes) -> int | None:
    """Return the size of an answer that starts so. None: its head is not complete; 0: its head does not say."""
    end = received.find(_HEAD_END)
    if end < 0:
        return None
    found = _CONTENT_LENGTH.search(received, 0, end + 2)
    return end + len(_HEAD_END) + int(found[1]) if found else 0


def open_socket(
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None,
    connect_timeout: float,
    read_timeout: float,
    options: list[tuple[int, int, Any]],
) -> socket.socket:
    """Connect, and agree on TLS where a context is given. Raises OSError (ssl.SSLError is one)."""
    opened = socket.create_connection((host, port), connect_timeout)
    try:
        for option in options:
            opened.setsockopt(*option)
        if context is not None:
            opened = context.wrap_socket(opened, server_hostname=host)
        opened.settimeout(read_timeout)
    except BaseException:
        opened.close()
        raise
    return opened


_GOOD: Final = b"HTTP/1.1 200 "
MAX_TAKEN_IN: Final = 256 * 1024
"""Bytes of an answer that are held while nobody has reserved any space for it."""
_TOGETHER: Final = 2
"""Milliseconds between two answers that are taken in together: so a thread wakes up once for many of them."""


class PendingAnswer:
    """One request and its answer. For one thread at a time. body, content_type: as they were sent. began: when, in
    monotonic seconds."""

    __slots__ = (
        "_ended", "_is_good", "_length", "_parts", "_size", "began", "body", "connection", "content_type"
    )  # fmt: skip

    def __init__(
        self, connection: Connection, body: bytes, content_type: str | None, began: float = 0.0
    ) -> None:
        self.connection, self.began = connection, began
        self.body, self.content_type = body, content_type
        self._parts: list[bytes] = []
        self._size = 0
        self._length: int | None = None
        self._ended = self._is_good = False

    def poll(self) -> PageStatus:
        """Take in what has come, without waiting. Whatever is no good answer is to be waited for."""
        if not self._ended and not self._is_whole:
            self._take_in()
        if self._is_whole and self._is_good:
            return PageStatus.READY
        return PageStatus.NEEDS_WAIT if self._is_whole or self._ended else PageStatus.PENDING

    @property
    def _is_whole(self) -> bool:
        return bool(self._length) and self._size >= (self._length or 0)

    def _take_in(self) -> None:
        try:
            self._ended = self.connection.take_in(self._parts, self._length or MAX_TAKEN_IN)
        except OSError:
            self._ended = True  # `answer` meets it, too
        self._size = sum(map(len, self._parts))
        if self._length is None and self._parts:
            received = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._length, self._is_good = content_length(received), received.startswith(_GOOD)
        # Without waiting, the end of an answer that does not say its length is unknown. And a large one is left where
        # it is, until whoever waits for it has reserved the space.
        if self._length == 0 or (self._length or self._size) >= MAX_TAKEN_IN:
            self._ended = True

    def answer(self) -> Answer:
        """Wait for it. Raises ProtocolError and OSError."""
        return self.connection.answer(self._parts)


def wait_for_any(underway: Sequence[PendingAnswer], timeout: float) -> None:
    """Wait until something has come for one of them, and then for the others, as long as they come one after another.

    timeout: seconds at most until the first.
    """
    # A socket that was closed meanwhile has a number below 0, and nothing will come.
    missing = {number for one in underway if (number := one.connection.fileno()) >= 0}
    if not missing or len(missing) < len(underway):
        return
    if not hasattr(select, "poll"):
        # Another thread may close one of them meanwhile, which is of no harm to `poll`.
        with suppress(OSError, ValueError):
            select.select(missing, [], [], timeout)
        return
    poll = select.poll()
    for number in missing:
        poll.register(number, select.POLLIN)
    # Rounded up: a wait that ends a moment too early is begun again and again.
    milliseconds = int(timeout * 1000) + 1
    while missing and (found := poll.poll(milliseconds)):
        milliseconds = _TOGETHER
        for number, _ in found:
            missing.discard(number)
            poll.unregister(number)
