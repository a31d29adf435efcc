"""The rows of the lease table that may be deleted: only on evidence, never because one listing does not show a
shard.

Two kinds of evidence (Java: `LeaseCleanupManager`, v3.5.1): every child of an ended lease is being read
beyond its start; or Kinesis itself, asked for that shard, no longer knows it, while it lists the rest of the
stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.model.checkpoint import AT_TIMESTAMP, TRIM_HORIZON
from pykcl.model.lease import Lease
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.planning.shard_graph import FamilyTree, is_youngest


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete this row, provided that it still is as `seen`."""

    seen: Lease
    reason: Literal["every child has been started", "Kinesis no longer knows the shard"]


_NOT_STARTED = (TRIM_HORIZON, AT_TIMESTAMP)
# As in Java a child at LATEST counts as started: it was made by a start at LATEST, which owes it nothing
# older.


def plan_deletions(
    leases: Mapping[str, Lease],
    *,
    listing: ShardListing,
    gone: Collection[str] = frozenset(),
    unreadable: Collection[str] = frozenset(),
    stream: StreamDescription | None = None,
) -> list[Deletion]:
    """The rows to delete, sorted by key; none at all while the listing is incomplete or empty.

    gone: shard ids for which Kinesis answered ResourceNotFound, asked since `listing` was made.
    unreadable: keys of rows that cannot be understood; as a parent, child or sibling they speak against
    deletion.
    stream: the stream that was listed. Rows whose metadata names another one (the stream was deleted and
    created again) are never deleted: their evidence would be about somebody else's shards.
    """
    if not listing.complete or not listing.shards:
        return []
    tree = FamilyTree.of(listing.shards, leases)
    found = []
    for key in sorted(leases):
        lease = leases[key]
        if _is_of_another_stream(lease, stream):
            continue
        if _is_completed(lease, tree, leases, unreadable):
            found.append(Deletion(lease, "every child has been started"))
        elif (
            key in gone and key not in tree.listed and _leaves_nothing_behind(lease, tree, leases, unreadable)
        ):
            found.append(Deletion(lease, "Kinesis no longer knows the shard"))
    return found


def garbage_candidates(
    leases: Mapping[str, Lease], listing: ShardListing, stream: StreamDescription | None = None
) -> list[str]:
    """Keys worth asking Kinesis about, sorted: leased, but absent from a complete and non-empty listing.

    Not the youngest shard, if it has an owner or nobody has read it: the listing may be older than the shard, and the
    host that is asked may not have heard of it yet. Whoever holds its lease finds out, in time.
    """
    if not listing.complete or not listing.shards:
        return []
    listed = {shard.shard_id for shard in listing.shards}
    return sorted(
        key
        for key, lease in leases.items()
        if key not in listed
        and not _is_of_another_stream(lease, stream)
        and not ((lease.owner or lease.checkpoint.is_start) and is_youngest(key, listed))
    )


def _is_completed(
    lease: Lease, tree: FamilyTree, leases: Mapping[str, Lease], unreadable: Collection[str]
) -> bool:
    """Ended, no parent row left, and every child (there must be one) started with all its parents ended.

    Parents before children: a child row without its parent's looks like one whose parent was cleaned up, so
    the rows of a family are deleted from the oldest on. The other parent of a merge matters because Java's
    reader of it waits until both parent rows are there, or neither is (`ShutdownTask`): deleting the first
    one early blocks it for ever.
    """
    children = tree.children_of(lease.key)
    if not lease.is_ended or not children:
        return False
    if any(parent in leases or parent in unreadable for parent in tree.parents_of(lease.key)):
        return False
    return all(
        child in leases
        and leases[child].checkpoint.sequence_number not in _NOT_STARTED
        and tree.parents_ended(child, leases, unreadable)
        for child in children
    )


def _leaves_nothing_behind(
    lease: Lease, tree: FamilyTree, leases: Mapping[str, Lease], unreadable: Collection[str]
) -> bool:
    """Return whether the listed children of a gone shard have their leases, and a listed shard is still being read.

    The row may be the only sign that its shard was read. Without it the children look like the start of an
    application, which LATEST would begin now. The same where the fleet slept for longer than retention: 1) its shards
    end, or are trimmed away, with descendants that are not listed any more; 2) their rows are deleted, the last of the
    table; 3) the shards that are listed by now are begun at LATEST, and what was put into them since 1 is skipped.
    An ended lease does not speak against that: it may be deleted in the same pass, and the listing may be older than
    its end.
    """
    has_lease = leases.keys() | set(unreadable)
    children = tree.listed.intersection(tree.children_of(lease.key))
    being_read = {key for key in has_lease if key not in leases or not leases[key].is_ended}
    return children <= has_lease and not tree.listed.isdisjoint(being_read)


def _is_of_another_stream(lease: Lease, stream: StreamDescription | None) -> bool:
    return stream is not None and lease.metadata is not None and lease.metadata.conflicts_with(stream)
