"""The bound on how many bytes of GetRecords answers a process holds at any time."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.runtime import Event, Runtime


class BufferGate:
    """Bytes are reserved before a fetch, corrected when its size is known, and given back after delivery.

    First come, first served: a shard with large batches cannot be starved by many small ones.
    """

    def __init__(self, limit: int, runtime: Runtime) -> None:
        self._free = limit
        self._spare_above = limit // 2
        self._runtime = runtime
        self._lock = runtime.lock()
        self._queue: list[tuple[int, Event]] = []

    def reserve(self, size: int, *, give_up: Callable[[], bool], timeout: float) -> bool:
        """Wait until `size` bytes are free and take them. False if `timeout` passed or `give_up()` came true first."""
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
            # One event can be waited for, and giving up is another: look at it often enough.
            turn.wait(min(left, 0.1))
        with self._lock:
            # Our turn may have come between the last look and this lock: then the bytes are ours.
            if turn.is_set():
                return True
            self._queue.remove(entry)
            self._admit()
            return False

    def reserve_spare(self, size: int) -> bool:
        """Take `size` bytes if nobody waits for any and half of all stays free: for what can be done without."""
        with self._lock:
            if self._queue or self._free - size < self._spare_above:
                return False
            self._free -= size
            return True

    def release(self, size: int) -> None:
        with self._lock:
            self._free += size
            self._admit()

    def _admit(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            size, turn = self._queue.pop(0)
            self._free -= size
            turn.set()
