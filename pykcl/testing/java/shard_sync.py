"""What Java's leader does for the fleet: which leases are missing, where the hash keys have holes.

Pure. Java KCL 2.7.3: `leases/HierarchicalShardSyncer.java`, `coordinator/PeriodicShardSyncManager.java`. Who leads is
told by `planning/leader.py`, which was checked against Java's own class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pykcl.model.checkpoint import Checkpoint, StartPosition
from pykcl.model.shard import HashRange, Shard
from pykcl.testing.java.lease import JavaLease, new_lease

_LAST_HASH_KEY = 2**128 - 1


def first_leases(shards: Sequence[Shard], start: StartPosition) -> list[JavaLease]:
    """For an empty table: what was open at the start.

    Java asks ListShards with a filter. For AT_TIMESTAMP this begins, unlike Java, with the oldest shards.
    """
    listed = {shard.shard_id for shard in shards}
    if start.kind == "LATEST":
        chosen = [shard for shard in shards if shard.is_open]
    else:
        chosen = [shard for shard in shards if listed.isdisjoint(shard.parents)]
    return _in_order(chosen, start)


def missing_leases(shards: Sequence[Shard], leased: Collection[str], start: StartPosition) -> list[JavaLease]:
    """For a table with leases. A shard below any lease, an ended one too, gets none: the lease's owner makes it."""
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
