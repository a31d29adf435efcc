"""Records that wait: for others, so that a batch is larger than what one read of a quiet shard brings; and for their
turn, where a worker delivers so many a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from pykcl.config import Config
from pykcl.model.record import Record, data_bytes, joined
from pykcl.runtime import Runtime

MOST_BYTES = 6 * 1024 * 1024
"""Bytes of data at which a batch is delivered, however few its records are. As in Lambda."""


def most_in_batch(config: Config) -> int:
    """Return the most records of one batch; at most those of a second, where a worker delivers so many a second."""
    most, rate = config.batch_size or config.max_records, config.max_records_per_second
    return most if rate is None else min(most, max(1, int(rate)))


class BatchWindow:
    """Gathered records of one shard, in order. Used by the shard's thread.

    They are neither delivered nor settled: when they are dropped, the next owner reads them again. Their bytes stay
    taken from the memory budget. size: most records of a batch. seconds: that the first of them waits; 0: none does.
    release: called with bytes that the window does not need any more.
    """

    def __init__(self, size: int, seconds: float, release: Callable[[int], None], runtime: Runtime) -> None:
        self._size, self._seconds = size, seconds
        self._release, self._runtime = release, runtime
        self._parts: list[Sequence[Record]] = []
        self._count = self._bytes = self._reserved = 0
        self._due_at = inf

    def __len__(self) -> int:
        return self._count

    @property
    def left(self) -> float:
        """Seconds until the window is over; infinite if nothing is gathered."""
        return self._due_at - self._runtime.monotonic()

    @property
    def is_due(self) -> bool:
        """True if what is gathered is to be delivered now."""
        return self._count >= self._size or self._bytes >= MOST_BYTES or self.left <= 0

    def add(self, records: Sequence[Record]) -> None:
        if not self._parts:
            self._due_at = self._runtime.monotonic() + self._seconds
        self._parts.append(records)
        self._count += len(records)
        self._bytes += data_bytes(records)

    def take(self) -> Sequence[Record]:
        """Return the next batch. What is left waits for a window of its own."""
        found = joined(self._parts)
        batch, rest = found[: self._size], found[self._size :]
        self._forget()
        if rest:
            self.add(rest)
        return batch

    def reserve(self, most: int) -> int:
        """Take over the reservation for what is gathered, of at most so many bytes more; return how many they are."""
        more = max(0, min(self._bytes - self._reserved, most))
        self._reserved += more
        return more

    def give_back(self) -> None:
        """Give back the bytes of what was taken, which is delivered now."""
        kept = min(self._reserved, self._bytes)
        self._release(self._reserved - kept)
        self._reserved = kept

    def clear(self) -> int:
        """Forget the records; return the bytes that were kept for them, for the caller to release."""
        self._forget()
        kept, self._reserved = self._reserved, 0
        return kept

    def _forget(self) -> None:
        self._parts = []
        self._count = self._bytes = 0
        self._due_at = inf


class Pace:
    """The rate at which the shards of a worker deliver, all together. Thread-safe.

    rate: records a second. Turns are given in the order in which they are asked for, and each takes as long as its
    records may: what was not used before is not made up for by a burst.
    """

    def __init__(self, rate: float, runtime: Runtime) -> None:
        self._rate, self._runtime = rate, runtime
        self._lock = runtime.lock()
        self._next = runtime.monotonic()

    def turn_of(self, records: int) -> float:
        """Return the time from which so many records may be delivered, monotonic seconds."""
        with self._lock:
            turn = max(self._next, self._runtime.monotonic())
            self._next = turn + records / self._rate
            return turn
