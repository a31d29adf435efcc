"""Broadcast of changes to the browsers that have the page open, in the server's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from pykcl.ui.state_store import frame

MAX_VIEWERS = 24
MAX_WAITING = 30
"""Frames queued for a slow viewer; then it is disconnected, reconnects and gets the whole state."""
BEAT_SECONDS = 15.0
VISIT_SECONDS = 10.0
RETRY = b"retry: 2000\n\n"
_END = (0, b"")


class Broadcast:
    """Queues of frames, one for each viewer. whole: the state for a new viewer, and the number of its last change."""

    def __init__(
        self, whole: Callable[[], tuple[int, dict[str, Any]]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._whole, self._now = whole, now
        self._visited: float | None = None
        self._queues: set[asyncio.Queue[tuple[int, bytes]]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    @property
    def viewers(self) -> int:
        return len(self._queues)

    @property
    def is_watched(self) -> bool:
        """True if a page is open, or requested the state in the last seconds."""
        visited = self._visited
        return bool(self._queues) or (visited is not None and self._now() - visited < VISIT_SECONDS)

    def visit(self) -> bool:
        """Record a request for the state; return True if there were no viewers before."""
        was_watched, self._visited = self.is_watched, self._now()
        return not was_watched

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def publish(self, number: int, change: bytes) -> None:
        """Send a change to every viewer. Callable from any thread."""
        if self._loop is not None and not self._is_over:
            self._loop.call_soon_threadsafe(self._spread, number, change)

    def end(self) -> None:
        """End every viewer's stream. Called in the loop's thread."""
        self._is_over = True
        for queue in list(self._queues):
            _last(queue)

    def is_full(self) -> bool:
        return len(self._queues) >= MAX_VIEWERS

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames for one viewer, until it disconnects or is too slow."""
        queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(MAX_WAITING + 1)
        # Before the whole state is read: a later change is either in it or in the queue.
        self._queues.add(queue)
        try:
            yield RETRY
            last, whole = await asyncio.to_thread(self._first)
            yield whole
            while not self._is_over:
                try:
                    number, change = await asyncio.wait_for(queue.get(), BEAT_SECONDS)
                except asyncio.TimeoutError:
                    yield b": still here\n\n"
                    continue
                if (number, change) == _END:
                    return
                if number > last:
                    yield change
        finally:
            self._queues.discard(queue)

    def _first(self) -> tuple[int, bytes]:
        number, state = self._whole()
        return number, frame("whole", number, state)

    def _spread(self, number: int, change: bytes) -> None:
        for queue in list(self._queues):
            if queue.qsize() >= MAX_WAITING:
                self._queues.discard(queue)
                _last(queue)
            else:
                queue.put_nowait((number, change))


def _last(queue: asyncio.Queue[tuple[int, bytes]]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(_END)
