"""Listed shards without a lease whose records nobody reads: what each waits for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pykcl.model.checkpoint import AT_START_TIMESTAMP, AT_TRIM_HORIZON, StartPosition
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.planning.lease_creation import create_new_leases
from pykcl.planning.run_end import part_of_run
from pykcl.planning.shard_graph import FamilyTree


@dataclass(frozen=True, slots=True)
class Unleased:
    """One shard. lease: the row that it is to get, where its reader will begin. waits_for: the nearest ancestors that
    are to be read first, sorted; empty where a worker can create the row now.
    """

    lease: Lease
    waits_for: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.lease.key

    @property
    def reason(self) -> str:
        """The reason for which it has no lease, with its verb, as text."""
        if not self.waits_for:
            return "waits for a worker that creates its lease"
        return f"waits for the end of {' and '.join(self.waits_for)}"


def unleased_shards(
    start: StartPosition,
    shards: Sequence[Shard],
    leases: Mapping[str, Lease],
    unreadable: Collection[str] = frozenset(),
) -> list[Unleased]:
    """Return the shards that are still to be read and have no row, by shard id.

    Shards that were read, or that the start passed over, are none of them. shards: a complete listing. leases: every
    readable row by key. unreadable: keys of the other rows.
    """
    shards = part_of_run(shards, leases)
    tree = FamilyTree.of(shards, leases)
    leased = leases.keys() | set(unreadable)
    done = tree.ancestors_of(leased)
    below = tree.descendants_of(leased)
    creatable = {
        creation.lease.key: creation.lease
        for creation in create_new_leases(start, shards, leases, unreadable)
    }
    first = AT_START_TIMESTAMP if start.kind == "AT_TIMESTAMP" else AT_TRIM_HORIZON
    found: dict[str, Unleased] = {}
    for shard in sorted(shards, key=lambda one: one.shard_id):
        key = shard.shard_id
        if key in leased or key in done:
            continue
        if key in creatable:
            found[key] = Unleased(creatable[key])
        elif start.kind != "LATEST" or key in below:
            waits_for = _waits_for(key, tree, leases, unreadable, done)
            if waits_for:
                row = Lease(key, first, parents=shard.parents, hash_range=shard.hash_range)
                found[key] = Unleased(row, waits_for)
    return list(found.values())


def _waits_for(
    key: str,
    tree: FamilyTree,
    leases: Mapping[str, Lease],
    unreadable: Collection[str],
    done: Collection[str],
) -> tuple[str, ...]:
    """Return the nearest ancestors with a row that has not ended; without any, the oldest ones without a row."""
    unfinished, oldest = set(), set()
    seen, waiting = {key}, [key]
    while waiting:
        at = waiting.pop()
        above = set(tree.parents_of(at)) - seen
        seen |= above
        unfinished |= {
            one for one in above if one in unreadable or (one in leases and not leases[one].is_ended)
        }
        further = [
            one
            for one in above
            if one in tree.listed and one not in leases and one not in unreadable and one not in done
        ]
        waiting += further
        if not further and at != key:
            oldest.add(at)
    return tuple(sorted(unfinished or oldest))
