"""Decisions of a Java worker about the fleet: the leases to create, to take and to delete, and holes in the hash keys.

Java KCL 2.7.3: `leases/HierarchicalShardSyncer.java`, `coordinator/PeriodicShardSyncManager.java`,
`leases/dynamodb/DynamoDBLeaseTaker.java` and `leases/LeaseCleanupManager.java`, which deletes without a condition. The
leader is elected by `planning/leader.py`, which was checked against Java's own class. Creating and taking are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from pykcl.errors import IteratorExpired, ShardGone, TemporaryError
from pykcl.interfaces import Stream
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.shard import HashRange, Shard
from tests.java_peer.lease import DependencyFailed, JavaLease, new_lease
from tests.java_peer.lease_table import JavaTable

_LAST_HASH_KEY = 2**128 - 1


def first_leases(shards: Sequence[Shard], start: StartPosition) -> list[JavaLease]:
    """Leases for an empty table: the shards that were open at the start.

    Java asks ListShards with a filter. For AT_TIMESTAMP this begins, unlike Java, with the oldest shards.
    """
    listed = {shard.shard_id for shard in shards}
    if start.kind == "LATEST":
        chosen = [shard for shard in shards if shard.is_open]
    else:
        chosen = [shard for shard in shards if listed.isdisjoint(shard.parents)]
    return _in_order(chosen, start)


def missing_leases(shards: Sequence[Shard], leased: Collection[str], start: StartPosition) -> list[JavaLease]:
    """Leases that a table with leases lacks.

    A shard below any lease, an ended one too, gets none: the lease's owner makes it.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    chosen: dict[str, Shard] = {}
    below: dict[str, bool] = {}

    def parents(shard: Shard) -> list[Shard]:
        return [by_id[parent] for parent in shard.parents if parent in by_id]

    def is_below(shard: Shard) -> bool:
        if shard.shard_id not in below:
            # All of them, and eagerly: the answers are kept.
            found = [parent.shard_id in leased or is_below(parent) for parent in parents(shard)]
            below[shard.shard_id] = any(found)
        return below[shard.shard_id]

    def begin(shard: Shard) -> None:
        if start.kind != "LATEST" and parents(shard):
            for parent in parents(shard):
                begin(parent)
        else:
            chosen[shard.shard_id] = shard

    def consider(shard: Shard) -> None:
        if shard.shard_id in leased:
            return
        if not is_below(shard):
            begin(shard)
            return
        # The other parent of a merge, which nobody would begin otherwise.
        for parent in parents(shard):
            consider(parent)

    for shard in shards:
        if shard.is_open:
            consider(shard)
    return _in_order(chosen.values(), start)


def _in_order(shards: Iterable[Shard], start: StartPosition) -> list[JavaLease]:
    ordered = sorted(shards, key=lambda shard: (int(shard.starting_sequence_number or 0), shard.shard_id))
    return [new_lease(shard, Checkpoint(start.kind)) for shard in ordered]


def first_hole(leases: Iterable[JavaLease]) -> tuple[int, int] | None:
    """The first range of hash keys that no unended lease covers; None when all are covered."""
    ranges = sorted(
        (lease.hash_range.first, lease.hash_range.last)
        for lease in leases
        if not lease.is_ended and lease.hash_range is not None
    )
    covered = -1
    for first, last in ranges:
        if first > covered + 1:
            return covered + 1, first - 1
        covered = max(covered, last)
    return None if covered == _LAST_HASH_KEY else (covered + 1, _LAST_HASH_KEY)


def ranges_to_fill(leases: Iterable[JavaLease], shards: Mapping[str, Shard]) -> dict[str, HashRange]:
    """The hash ranges of rows that have none, as far as their shards are still listed."""
    found = {}
    for lease in leases:
        shard = shards.get(lease.key)
        if lease.hash_range is None and shard is not None and shard.hash_range is not None:
            found[lease.key] = shard.hash_range
    return found


_NEVER = float("-inf")
_VERY_OLD = 3


@dataclass(slots=True)
class _Seen:
    lease: JavaLease
    moved_at: float


class LeaseTaker:
    """Memory of one worker from scan to scan. Times are monotonic seconds."""

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
        """Return the leases to take, and those of them that are stolen from live owners."""
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


_BEFORE_READING = ("TRIM_HORIZON", "AT_TIMESTAMP")


class LeaseCleanup:
    """A queue in memory: whoever dies leaves it to the next owner of the ended lease."""

    def __init__(self, table: JavaTable, stream: Stream, on_deleted: Callable[[str], None]) -> None:
        self._table = table
        self._stream = stream
        self._on_deleted = on_deleted
        self._waiting: dict[str, None] = {}

    def add(self, key: str) -> None:
        self._waiting[key] = None

    def run(self) -> None:
        """One round over the queue; what fails stays in it."""
        for key in list(self._waiting):
            try:
                if self._is_done_with(key):
                    del self._waiting[key]
            except (DependencyFailed, TemporaryError, IteratorExpired):
                continue

    def _is_done_with(self, key: str) -> bool:
        row = self._table.get(key)
        if row is None:
            return True
        try:
            children = row.children or self._children_from_kinesis(key)
        except ShardGone:
            return self._delete(key)
        if not children or not self._may_go(row, children):
            return False
        return self._delete(key)

    def _delete(self, key: str) -> bool:
        self._table.delete(key)
        self._on_deleted(key)
        return True

    def _may_go(self, row: JavaLease, children: tuple[str, ...]) -> bool:
        """Every child has begun, and no parent's row is left."""
        for child in children:
            found = self._table.get(child)
            if found is None or found.checkpoint.sequence_number in _BEFORE_READING:
                return False
        return all(self._table.get(parent) is None for parent in row.parents)

    def _children_from_kinesis(self, key: str) -> tuple[str, ...]:
        iterator = self._stream.open(key, ReadFrom("LATEST"))
        found = self._stream.fetch(key, iterator, 1).children
        children = tuple(sorted(child.shard_id for child in found))
        if children:
            self._table.set_children(key, children)
        return children
