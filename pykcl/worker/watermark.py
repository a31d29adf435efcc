"""The watermark of one shard: records are settled in any order, and a checkpoint may follow those without a gap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Key
from pykcl.runtime import Runtime


@dataclass(slots=True)
class _Run:
    """Records that were registered together.

    end: number of records that were registered by then. since: time of their delivery, monotonic seconds. size: bytes
    that stay reserved until all of them are settled.
    """

    end: int
    since: float
    size: int = 0


class Watermark:
    """Keys of the delivered records of one shard, from the first one that is not settled on. Thread-safe.

    Every method works under one lock of its own, and calls nothing of others under it: a thread of the application that
    settles a record never waits for a request.

    release: called, outside of the lock, with the bytes that are not needed any more. on_settled: called, outside of
    the lock, after each record that is settled while `is_awaited`. since: turns the time of the delivery of the first
    record that is not settled into the one since when its ack is waited for.
    """

    def __init__(
        self, runtime: Runtime, release: Callable[[int], None], on_settled: Callable[[], None] = lambda: None
    ) -> None:
        self._lock = runtime.lock()
        self._release, self._on_settled = release, on_settled
        # In order of delivery. is_settled has exactly these keys.
        self._keys: deque[Key] = deque()
        self._is_settled: dict[Key, bool] = {}
        self._runs: deque[_Run] = deque()
        self._registered = self._passed = 0
        self._low: Key | None = None
        self._last: Key | None = None
        self._is_closed = False
        self.is_awaited = False
        self.since: Callable[[float], float] = float

    # -- for the shard's thread ----------------------------------------------------------------------------------

    def register(self, keys: Sequence[Key], now: float) -> None:
        """Add records that are about to be delivered, in order, behind all others."""
        with self._lock:
            if self._is_closed or not keys:
                return
            self._keys.extend(keys)
            self._is_settled.update(dict.fromkeys(keys, False))
            self._registered += len(keys)
            self._last = keys[-1]
            self._runs.append(_Run(self._registered, now))

    def delivered_again(self, now: float) -> None:
        """Count the time of the newest records from now: they are handed over once more."""
        with self._lock:
            if self._runs:
                self._runs[-1].since = now

    def hold(self, size: int) -> int:
        """Keep so many bytes until every record registered by now is settled; return how many are kept: all or 0."""
        with self._lock:
            if self._is_closed or not self._runs:
                return 0
            self._runs[-1].size += size
            return size

    def close(self) -> None:
        """Accept nothing any more, and release the bytes. `low` stays."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            freed = sum(run.size for run in self._runs)
            self._runs.clear()
            self._keys.clear()
            self._is_settled.clear()
        if freed:
            self._release(freed)

    @property
    def registered(self) -> int:
        """Number of records that were registered in all."""
        with self._lock:
            return self._registered

    @property
    def passed(self) -> int:
        """Number of records that are settled without a gap, from the first one on."""
        with self._lock:
            return self._passed

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(run.size for run in self._runs)

    def unsettled(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether the record is still to be settled."""
        with self._lock:
            return [self._is_settled.get(key) is False for key in keys]

    # -- for any thread ------------------------------------------------------------------------------------------

    def settle(self, key: Key) -> bool:
        """Settle a record; False if it was settled before, or after `close`. Raises LookupError: never registered."""
        freed = 0
        with self._lock:
            if self._is_settled.get(key) is not False:
                self._refuse_unknown(key)
                return False
            if key == self._keys[0]:
                freed = self._advance()
            else:
                self._is_settled[key] = True
        if freed:
            self._release(freed)
        if self.is_awaited:
            self._on_settled()
        return True

    def is_open(self, key: Key) -> bool:
        """Return True if the record is to be settled. Raises LookupError for one that was never registered."""
        with self._lock:
            is_open = self._is_settled.get(key) is False
            if not is_open:
                self._refuse_unknown(key)
        return is_open

    @property
    def low(self) -> Checkpoint | None:
        """Position of the last record up to which everything is settled; None: not even the first one is."""
        with self._lock:
            low = self._low
        return None if low is None else Checkpoint(*low)

    @property
    def last(self) -> Checkpoint | None:
        """Position of the last registered record."""
        with self._lock:
            last = self._last
        return None if last is None else Checkpoint(*last)

    @property
    def count(self) -> int:
        """Number of records above `low`, settled ones behind a gap, too: all of them would be delivered again."""
        with self._lock:
            return len(self._keys)

    @property
    def oldest(self) -> tuple[Checkpoint, float, int] | None:
        """The first record that is not settled, since when its ack is waited for, and how many are not settled."""
        with self._lock:
            if self._is_closed or not self._keys:
                return None
            key, since = self._keys[0], self._runs[0].since
            count = sum(not is_settled for is_settled in self._is_settled.values())
        return Checkpoint(*key), self.since(since), count

    @property
    def oldest_since(self) -> float | None:
        """The time since when the ack of the first record that is not settled is waited for."""
        with self._lock:
            since = self._runs[0].since if self._runs else None
        return None if since is None else self.since(since)

    def count_unsettled(self, upto: Checkpoint) -> int:
        """Return how many records at or before that position are not settled."""
        with self._lock:
            keys = [key for key, is_settled in self._is_settled.items() if not is_settled]
        return sum(not upto < Checkpoint(*key) for key in keys)

    # -- under the lock ------------------------------------------------------------------------------------------

    def _advance(self) -> int:
        """Move `low` over the first record and the settled ones after it; return the bytes that nobody needs now."""
        keys, is_settled = self._keys, self._is_settled
        is_settled[keys[0]] = True
        while keys and is_settled[keys[0]]:
            self._low = low = keys.popleft()
            del is_settled[low]
            self._passed += 1
        freed = 0
        while self._runs and self._runs[0].end <= self._passed:
            freed += self._runs.popleft().size
        return freed

    def _refuse_unknown(self, key: Key) -> None:
        """Raise LookupError unless the record may be one of those at or below `low`, which are forgotten."""
        if self._is_closed or key in self._is_settled:
            return
        if self._low is None or Checkpoint(*self._low) < Checkpoint(*key):
            raise LookupError(key)
