"""Deletion of leases of shards that are gone, by the rules of a worker (`planning.lease_deletion`).

A running fleet deletes them itself; this is for tables whose fleet is gone or never did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.errors import Refused, ShardGone, TemporaryError
from pykcl.interfaces import Applied, Rejected, Stream
from pykcl.model import lease_writes
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.lease import Lease
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.operate.aws.row_writes import RowWriter
from pykcl.operate.snapshot import TableSnapshot
from pykcl.planning.lease_deletion import Deletion, garbage_candidates, plan_deletions


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """deletions: parents before children, each with the row as it was seen. kept: how many leases stay."""

    deletions: tuple[Deletion, ...]
    kept: int
    stream: StreamDescription


@dataclass(frozen=True, slots=True)
class Pruned:
    """The outcome of one deletion. "changed": the row was written since and stays; "held back": a parent's row
    stayed."""

    deletion: Deletion
    outcome: Literal["deleted", "changed", "unknown", "held back"]
    why: str = ""


def plan_prune(view: TableSnapshot, stream: Stream) -> PrunePlan:
    """Return all deletions that are possible.

    Raises Refused for a table of several streams or of another stream, and when the shards cannot all be listed;
    StreamMissing, TemporaryError, SetupError.
    """
    if view.streams:
        raise Refused("This table holds leases of several streams; only its own workers may clean it up.")
    description = stream.describe()
    for lease in view.leases.values():
        if lease.metadata is not None and lease.metadata.conflicts_with(description):
            raise Refused(
                f"{lease.key!r} is a lease of another stream ({lease.metadata.stream_arn}), or of an earlier one of "
                f"that name, not of {description.arn}. Do: name the right --stream."
            )
    listing = stream.list_shards()
    if not listing.complete or not listing.shards:
        raise Refused(
            "The shards could not be listed completely, so nothing is known to be gone. Do: run it again."
        )
    gone = _gone(stream, garbage_candidates(view.leases, listing, description))
    # The stream may have been deleted and created again meanwhile: then its old shards are unknown for that reason.
    if stream.describe().created_at != description.created_at:
        raise Refused("The stream was deleted and created again during the check. Do: run it again.")
    found = list(_rounds(view, listing, gone, description))
    return PrunePlan(tuple(found), len(view.leases) - len(found), description)


def _gone(stream: Stream, candidates: list[str]) -> set[str]:
    gone = set()
    for shard in candidates:
        try:
            stream.open(shard, ReadFrom("TRIM_HORIZON"))
        except ShardGone:
            gone.add(shard)
    return gone


def _rounds(
    view: TableSnapshot, listing: ShardListing, gone: set[str], description: StreamDescription
) -> Iterator[Deletion]:
    """Yield the deletions in the order of a worker's passes: a row is deleted only after its parents' rows."""
    leases: Mapping[str, Lease] = view.leases
    while True:
        found = plan_deletions(
            leases, listing=listing, gone=gone, unreadable=view.unreadable.keys(), stream=description
        )
        if not found:
            return
        yield from found
        going = {deletion.seen.key for deletion in found}
        leases = {key: lease for key, lease in leases.items() if key not in going}


def prune(table: RowWriter, plan: PrunePlan) -> Iterator[Pruned]:
    """Delete one row after the other, each only if it is unchanged, and yield each outcome.

    Each deletion is verified by reading. Raises SetupError, TableGone.
    """
    stayed: set[str] = set()
    for deletion in plan.deletions:
        seen = deletion.seen
        if not stayed.isdisjoint(seen.parents):
            stayed.add(seen.key)
            yield Pruned(deletion, "held back", "the row of a parent is still there")
            continue
        answer = table.write(lease_writes.delete(seen, ended=seen.is_ended))
        if isinstance(answer, Applied) and _is_gone(table, seen.key):
            yield Pruned(deletion, "deleted")
            continue
        stayed.add(seen.key)
        if isinstance(answer, Rejected):
            yield Pruned(deletion, "changed", "somebody has written to it since it was seen")
        else:
            cause = "it is there again" if isinstance(answer, Applied) else answer.cause
            yield Pruned(deletion, "unknown", cause)


def _is_gone(table: RowWriter, key: str) -> bool:
    try:
        return table.read(key) is None
    except TemporaryError:
        return False
