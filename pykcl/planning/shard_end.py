"""Which leases must exist before a shard may be marked as ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter

from pykcl.model.checkpoint import AT_LATEST, AT_START_TIMESTAMP, AT_TRIM_HORIZON, StartPosition
from pykcl.model.lease import Lease, PrivateNote
from pykcl.model.shard import Shard
from pykcl.planning.lineage import FamilyTree
from pykcl.planning.plans import CreationReason, LeaseCreation


def leases_before_end(
    child: Shard,
    start: StartPosition,
    shards: Mapping[str, Shard],
    leased: Collection[str],
    started_at: int | None = None,
) -> list[LeaseCreation]:
    """The lease of `child`, preceded by those of its ancestors that are still to be read and have none.

    shards: a complete listing by id, made before the scan. leased: the keys of all rows. Both may be left empty when
    every other parent of the child has its row. started_at: when a start at LATEST was, epoch milliseconds, as far as
    the rows tell.

    No shard with a leased descendant ever gets a lease. So the lease of a merge's child settles it that no ancestor
    without a lease is ever read: the parent on the other side, the parents of that one, and so on, up to what is
    leased or was. Each of them gets its lease first; the readers then wait for their parents as for any others. (Java
    lets the reader of the ended shard wait until the other parent has its lease. That could wait for ever, for a lease
    this very worker has no room for, and would end nothing sooner.)
    Under LATEST ancestors that descend from nothing leased were passed over by the start, all but the parent itself:
    Java creates that one at TRIM_HORIZON, too. But where retention took what is between an ancestor and what was
    leased, nobody can say that it was passed over: it is read, from the time of the start where that is known.
    Every row starts at TRIM_HORIZON, as Java's do (v3.5.1 `lifecycle/ShutdownTask.java`), or at AT_TIMESTAMP where
    the application starts at a time: the parent may have ended before it.
    """
    tree = FamilyTree.of(shards.values())
    was_read = tree.ancestors_of(leased)
    if child.shard_id in was_read:
        return []
    settled = was_read | set(leased)
    below_a_lease = tree.descendants_of(leased)
    below_a_gap = _below_a_gap(tree, shards, leased) - below_a_lease
    missing: dict[str, Shard] = {child.shard_id: child}
    waiting = [child]
    while waiting:
        shard = waiting.pop()
        for parent in shard.parents:
            if parent not in shards or parent in settled or parent in missing:
                continue
            if start.kind == "LATEST" and shard is not child and parent not in below_a_lease | below_a_gap:
                continue
            missing[parent] = shards[parent]
            waiting.append(shards[parent])
    first = AT_START_TIMESTAMP if start.kind == "AT_TIMESTAMP" else AT_TRIM_HORIZON

    def lease_of(key: str) -> Lease:
        lease = Lease(key, first, parents=missing[key].parents, hash_range=missing[key].hash_range)
        if start.kind != "LATEST" or started_at is None or key not in below_a_gap:
            return lease
        return lease.with_(checkpoint=AT_LATEST, note=PrivateNote(latest_from=started_at))

    return [
        LeaseCreation(
            lease_of(key),
            CreationReason.CHILD if key == child.shard_id else CreationReason.ANCESTOR_OF_MERGE,
        )
        for key in _ancestors_first(missing)
    ]


def _below_a_gap(tree: FamilyTree, shards: Mapping[str, Shard], leased: Collection[str]) -> set[str]:
    """Shards without a lease that name a parent with neither a lease nor a listed shard, and all below them."""
    known = shards.keys() | set(leased)
    torn = {key for key, shard in shards.items() if key not in leased and not known.issuperset(shard.parents)}
    return torn | tree.descendants_of(torn)


def _ancestors_first(shards: Mapping[str, Shard]) -> list[str]:
    order: TopologicalSorter[str] = TopologicalSorter()
    for key in sorted(shards):
        order.add(key, *(parent for parent in shards[key].parents if parent in shards and parent != key))
    return list(order.static_order())
