"""Requests that were sent and are not waited for: one thread has many of them, and looks which is answered."""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pykcl.aws.lean.connection import Answer, Connection, told_length
from pykcl.ports import Coming

_GOOD: Final = b"HTTP/1.1 200 "
MOST_TAKEN_IN: Final = 256 * 1024
"""Bytes of an answer that are held while nobody has reserved any space for it."""
_TOGETHER: Final = 2
"""Milliseconds between two answers that are taken in together: so a thread wakes up once for many of them."""


class Underway:
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

    def look(self) -> Coming:
        """Take in what has come, without waiting. Whatever is no good answer is to be waited for."""
        if not self._ended and not self._is_whole:
            self._take_in()
        if self._is_whole and self._is_good:
            return Coming.THERE
        return Coming.TO_BE_WAITED_FOR if self._is_whole or self._ended else Coming.NOT_YET

    @property
    def _is_whole(self) -> bool:
        return bool(self._length) and self._size >= (self._length or 0)

    def _take_in(self) -> None:
        try:
            self._ended = self.connection.take_in(self._parts, self._length or MOST_TAKEN_IN)
        except OSError:
            self._ended = True  # `answer` meets it, too
        self._size = sum(map(len, self._parts))
        if self._length is None and self._parts:
            received = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._length, self._is_good = told_length(received), received.startswith(_GOOD)
        # Nobody can tell without waiting where an answer ends that does not say so. And a large one is left where it
        # is, until whoever waits for it has reserved the space.
        if self._length == 0 or (self._length or self._size) >= MOST_TAKEN_IN:
            self._ended = True

    def answer(self) -> Answer:
        """Wait for it. Raises ProtocolTrouble and OSError."""
        return self.connection.answer(self._parts)


def wait_for_answers(underway: Sequence[Underway], timeout: float) -> None:
    """Until something has come for one of them, and then for the others, as long as they come one after another.

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
