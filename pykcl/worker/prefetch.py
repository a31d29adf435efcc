"""Read the next page while the processor works, within the bytes that a process may hold."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import PyKclError, TemporaryError
from pykcl.interfaces import Fetched, HoldsBytes, Subscription
from pykcl.runtime import Event, Lock, Runtime, Task


class MemoryBudget:
    """Bytes that fetched pages may take. Reserved before a fetch, corrected by its size, and released after delivery.

    First come, first served: many small batches cannot starve a shard with large ones.
    """

    def __init__(self, limit: int, runtime: Runtime) -> None:
        self._free = limit
        self._spare_above = limit // 2
        self._runtime = runtime
        self._lock = runtime.lock()
        self._queue: list[tuple[int, Event]] = []

    def reserve(self, size: int, *, give_up: Callable[[], bool], timeout: float) -> bool:
        """Wait until `size` bytes are free and take them. False if `timeout` passed or `give_up()` was True first.

        0 waits for its turn, too, and until the limit is kept; but it is never refused, as it takes nothing.
        """
        with self._lock:
            if not self._queue and size <= self._free:
                self._free -= size
                return True
            turn = self._runtime.event()
            entry = (size, turn)
            self._queue.append(entry)
        deadline = self._runtime.monotonic() + timeout
        while not turn.is_set() and not give_up():
            left = deadline - self._runtime.monotonic()
            if left <= 0:
                break
            # One event can be waited for, and giving up is another: check it often enough.
            turn.wait(min(left, 0.1))
        with self._lock:
            # Our turn may have come between the last check and this lock: then the bytes are ours.
            if turn.is_set():
                return True
            self._queue.remove(entry)
            self._admit()
            return size == 0

    def reserve_page(self, size: int, give_up: Callable[[], bool]) -> bool:
        """Reserve for a page that is to be read now; who gets no bytes for a second has other things to do."""
        return self.reserve(size, give_up=give_up, timeout=1.0)

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes for an optional read: only if no other waits and half of all bytes stays free."""
        with self._lock:
            if self._queue or self._free - size < self._spare_above:
                return False
            self._free -= size
            return True

    def count(self, size: int) -> None:
        """Take bytes that are there already, even if they are more than are free: others wait for the rest, too."""
        self.release(-size)

    def release(self, size: int) -> None:
        with self._lock:
            self._free += size
            self._admit()

    def _admit(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            size, turn = self._queue.pop(0)
            self._free -= size
            turn.set()


class UnreadBytes:
    """Bytes of one subscription that nobody has taken yet, counted in the budget. Thread-safe.

    subscription: one that holds none in a way that is known is not counted.
    """

    def __init__(self, subscription: Subscription, memory: MemoryBudget, lock: Lock) -> None:
        self._source = subscription if isinstance(subscription, HoldsBytes) else None
        self._memory, self._lock = memory, lock
        self._counted = 0

    def update(self) -> None:
        """Count what is held now."""
        source = self._source
        if source is None:
            return
        with self._lock:
            if self._source is source:
                self._count(source.held_bytes)

    def close(self) -> None:
        """Give them back: whatever comes later is thrown away."""
        with self._lock:
            self._source = None
            self._count(0)

    def _count(self, held: int) -> None:
        self._memory.count(held - self._counted)
        self._counted = held


log = logging.getLogger("pykcl.worker")

Answer = tuple[Fetched, float]
"""A page, and the monotonic time at which it arrived."""


def bytes_kept(answer: Answer) -> int:
    """Return the reserved bytes that a page keeps."""
    return min(answer[0].body_bytes, LARGEST_FETCH_BYTES)


class Prefetcher:
    """Fetches the next page of a shard in a short-lived thread. Used by the shard's thread.

    ask: fetches the page of an iterator. gate: the budget of the process. `LARGEST_FETCH_BYTES` are reserved if they
    can be spared, and released except for the size of the page.
    """

    def __init__(
        self, shard_id: str, ask: Callable[[str], Answer], gate: MemoryBudget, runtime: Runtime
    ) -> None:
        self._name = f"pykcl-{shard_id}-ahead"
        self._ask, self._gate, self._runtime = ask, gate, runtime
        self._request: _PrefetchRequest | None = None
        self._task: Task | None = None
        self._was_refused = False

    def start(self, iterator: str, pause: float, may_ask: Callable[[], bool]) -> None:
        """Fetch after `pause` seconds, unless the page was taken or dropped by then. may_ask: called just before.

        Does nothing while a dropped request is still pending, because there is at most one such thread, and nothing
        where no thread can be started.
        """
        self.drop()
        if self._task is not None and self._task.is_alive():
            return
        request = _PrefetchRequest(iterator, self._ask, self._gate, self._runtime)
        try:
            self._task = self._runtime.spawn(self._name, lambda: request.run(pause, may_ask))
        except TemporaryError as error:
            # The system has no free thread (a limit of pids, say): the shard's own thread fetches the page later.
            if not self._was_refused:
                log.warning("no page is asked for ahead thread=%r: %s", self._name, error)
            self._was_refused = True
            return
        self._request, self._was_refused = request, False

    def take(self, iterator: str) -> Answer | None:
        """Return the page of this iterator, whose bytes the caller releases. Waits for a pending request.

        None: no request was or will be sent. Raises the error of the request.
        """
        if self._request is None:
            return None
        if self._request.iterator != iterator:
            self.drop()
            return None
        request, self._request = self._request, None
        try:
            return request.result()
        finally:
            self._join()  # it has nothing left to do

    def drop(self) -> None:
        """Cancel the request, or discard its page. Does not wait."""
        request, self._request = self._request, None
        if request is not None:
            request.cancel()

    def close(self) -> None:
        """Drop the request and wait until its thread has ended: the next owner is then the shard's only reader."""
        self.drop()
        self._join()

    def _join(self) -> None:
        if self._task is not None:
            self._task.join()
            self._task = None


class _PrefetchRequest:
    """One page to fetch. `run` is called in its own thread; the shard's thread calls `result` or `cancel`.

    Both may run at the same moment. The lock decides: either the shard's thread cancels before the request is sent, or
    the request is pending, and its outcome is waited for (`result`) or discarded (`cancel`).
    """

    def __init__(
        self, iterator: str, ask: Callable[[str], Answer], gate: MemoryBudget, runtime: Runtime
    ) -> None:
        self.iterator = iterator
        self._ask, self._gate = ask, gate
        self._lock = runtime.lock()
        self._cancelled = runtime.event()
        self._over = runtime.event()
        # Stays True when it is over: a request that was sent has an outcome.
        self._is_started = False
        self._answer: Answer | None = None
        self._error: PyKclError | None = None

    def run(self, pause: float, may_ask: Callable[[], bool]) -> None:
        answer, error = None, None
        try:
            self._cancelled.wait(pause)
            if self._try_start(may_ask):
                answer = self._fetch()
        except PyKclError as found:
            error = found
        finally:
            # Also if a bug ends the thread: the shard's thread then fetches the page itself, and meets the same bug.
            self._complete(answer, error)

    def _try_start(self, may_ask: Callable[[], bool]) -> bool:
        with self._lock:
            if not self._cancelled.is_set() and may_ask():
                self._is_started = True
            return self._is_started

    def _fetch(self) -> Answer | None:
        if not self._gate.try_reserve(LARGEST_FETCH_BYTES):
            return None
        kept = 0
        try:
            answer = self._ask(self.iterator)
            kept = bytes_kept(answer)
            return answer
        finally:
            self._gate.release(LARGEST_FETCH_BYTES - kept)

    def _complete(self, answer: Answer | None, error: PyKclError | None) -> None:
        with self._lock:
            is_wanted = not self._cancelled.is_set()
            if is_wanted:
                self._answer, self._error = answer, error
        self._over.set()
        if not is_wanted:
            self._give_back(answer)

    def result(self) -> Answer | None:
        with self._lock:
            if not self._is_started:
                # Prevents the request: the caller sends it.
                self._cancelled.set()
                return None
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._answer

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            answer, self._answer = self._answer, None
        self._give_back(answer)

    def _give_back(self, answer: Answer | None) -> None:
        if answer is not None:
            self._gate.release(bytes_kept(answer))
