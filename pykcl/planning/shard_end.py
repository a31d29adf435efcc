"""Which leases must exist before a shard may be marked as ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pykcl.model.checkpoint import AT_START_TIMESTAMP, AT_TRIM_HORIZON, StartPosition
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.planning.plans import LeaseCreation


def leases_before_end(
    child: Shard, missing_parents: Collection[str], listed: Mapping[str, Shard], start: StartPosition
) -> list[LeaseCreation]:
    """The lease of `child`, preceded by one for each parent of it that has none though Kinesis still lists it.

    A child without a lease whose other parent has none either is not what any healthy fleet leaves behind. Creating
    just the child would settle it that the other parent is never read (no shard with a leased descendant ever gets a
    lease), so that one gets its lease first and the child waits for both.
    Children of an ended shard start at TRIM_HORIZON, as Java's do (v3.5.1 `lifecycle/ShutdownTask.java`), or at
    AT_TIMESTAMP where the application starts at a time: the parent may have ended before it.
    """
    first = AT_START_TIMESTAMP if start.kind == "AT_TIMESTAMP" else AT_TRIM_HORIZON
    needed = [listed[parent] for parent in sorted(missing_parents) if parent in listed]
    return [
        LeaseCreation(
            Lease(shard.shard_id, first, parents=shard.parents, hash_range=shard.hash_range),
            "child of an ended lease" if shard is child else "oldest shard still listed",
        )
        for shard in (*needed, child)
    ]
