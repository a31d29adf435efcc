"""Which leases a Java worker takes: its memory of counters, and its idea of a fair share.

Pure. Java KCL 2.7.3 `leases/dynamodb/DynamoDBLeaseTaker.java`. Ended leases count and are taken like any others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from pykcl.testing.java.lease import JavaLease

_NEVER = float("-inf")
_VERY_OLD = 3


@dataclass(slots=True)
class _Seen:
    lease: JavaLease
    moved_at: float


class LeaseTaker:
    """What one worker remembers from scan to scan. Times are monotonic seconds."""

    def __init__(self, worker: str, failover: float, max_leases: int, max_steal: int) -> None:
        self._worker = worker
        self._failover = failover
        self._max_leases = max_leases
        self._max_steal = max_steal
        self._seen: dict[str, _Seen] = {}

    def observe(self, leases: Iterable[JavaLease], now: float) -> None:
        """Fold in a complete scan. A lease seen first is as old as can be if nobody owns it."""
        before, self._seen = self._seen, {}
        for lease in sorted(leases, key=lambda lease: lease.key):
            known = before.get(lease.key)
            if known is None:
                moved_at = now if lease.owner is not None else _NEVER
            else:
                moved_at = known.moved_at if known.lease.counter == lease.counter else now
            self._seen[lease.key] = _Seen(lease, moved_at)

    def taken(self, lease: JavaLease, now: float) -> None:
        """We own it: as the row now is."""
        self._seen[lease.key] = _Seen(lease, now)

    def choose(self, now: float, rng: Random) -> tuple[list[JavaLease], bool]:
        """What to take, and whether it is stolen from the living."""
        available = [seen.lease for seen in self._seen.values() if self._is_available(seen, now)]
        load = self._load(now)
        mine = load[self._worker]
        old = [seen.lease for seen in self._seen.values() if now - seen.moved_at > _VERY_OLD * self._failover]
        if first := rng.sample(old, max(0, min(self._max_leases - mine, len(old)))):
            return first, False
        target = self._target(len(load))
        needed = target - mine
        if needed <= 0:
            return [], False
        if available:
            return rng.sample(available, min(needed, len(available))), False
        return self._steal(load, needed, target, rng), True

    def _is_available(self, seen: _Seen, now: float) -> bool:
        return seen.lease.owner is None or now - seen.moved_at > self._failover

    def _load(self, now: float) -> Counter[str]:
        load: Counter[str] = Counter({self._worker: 0})
        for seen in self._seen.values():
            if seen.lease.owner is not None and not self._is_available(seen, now):
                load[seen.lease.owner] += 1
        return load

    def _target(self, workers: int) -> int:
        if workers >= len(self._seen):
            return 1
        return min(self._max_leases, -(-len(self._seen) // workers))

    def _steal(self, load: Counter[str], needed: int, target: int, rng: Random) -> list[JavaLease]:
        victim = max(load, key=lambda owner: load[owner])
        if load[victim] < target:
            return []
        count = min(needed, load[victim] - target)
        if count == 0 and needed > 1:
            count = 1
        theirs = [seen.lease for seen in self._seen.values() if seen.lease.owner == victim]
        return rng.sample(theirs, min(count, self._max_steal, len(theirs)))
