"""Deletion of rows nobody needs any more, on the evidence by which workers delete them (`planning.lease_deletion`).

A fleet does this by itself; it is for tables whose fleet is gone, or never did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.aws.operator_table import OperatorTable
from pykcl.errors import Refused, ShardGone, TemporaryError
from pykcl.interfaces import Applied, Rejected, Stream
from pykcl.model import lease_writes
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.lease import Lease
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.operate.table_view import TableView
from pykcl.planning.lease_deletion import Deletion, garbage_candidates, plan_deletions


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """deletions: parents before children, each with the row as it was seen. kept: how many leases stay."""

    deletions: tuple[Deletion, ...]
    kept: int
    stream: StreamDescription


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of one deletion. "changed": the row is another by now and stays; "held back": an ancestor stayed."""

    deletion: Deletion
    outcome: Literal["deleted", "changed", "unknown", "held back"]
    why: str = ""


def plan_prune(view: TableView, stream: Stream) -> PrunePlan:
    """What could be deleted, all rounds together.

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
    # The stream may have been deleted and made again meanwhile: then its old shards are unknown, rightly.
    if stream.describe().created_at != description.created_at:
        raise Refused(
            "The stream was deleted and created again while it was looked at. Nothing may be concluded."
        )
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
    view: TableView, listing: ShardListing, gone: set[str], description: StreamDescription
) -> Iterator[Deletion]:
    """Round after round, as a worker would in pass after pass: a row goes only after its parents' rows."""
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


def prune(table: OperatorTable, plan: PrunePlan) -> Iterator[Pruned]:
    """Delete one row after the other, each only if it is still as it was seen; tells of each as it is done.

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


def _is_gone(table: OperatorTable, key: str) -> bool:
    try:
        return table.read(key) is None
    except TemporaryError:
        return False
