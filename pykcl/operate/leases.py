"""Release of one lease, and deletion of leases that no worker needs any more.

A release is written in the name of the owner, as the owner does when it stops: the owner is removed, the counter moves
on by one, and the checkpoint stays. Any live worker may then take the lease at once. The owner notices at its next
renewal, which is rejected; until then it delivers records, so some may come twice, and none is lost.

Leases are deleted by the rules of a worker (`planning.lease_deletion`). A running fleet deletes them itself; this is
for tables whose fleet is gone or never did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.errors import Refused, ShardGone, TemporaryError
from pykcl.interfaces import Applied, Rejected, Stream
from pykcl.model import lease_writes
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.operate.aws.lease_table import RowWriter
from pykcl.operate.snapshot import TableSnapshot
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE
from pykcl.planning.lease_deletion import Deletion, garbage_candidates, plan_deletions
from pykcl.planning.run_end import range_of

_TRIES = 3


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """seen: the row as it is. write: the request, conditional on the counter and the owner of `seen`."""

    seen: Lease
    write: LeaseWrite

    @property
    def owner(self) -> str:
        return str(self.seen.owner)


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """outcome: "released": the row was read again and has no owner; "taken": it was released, and has a new owner
    already. row: as it was read after the write. plan: the one that took effect.
    """

    outcome: Literal["released", "taken"]
    row: Lease
    plan: ReleasePlan


def end_of_run(view: TableSnapshot) -> int:
    """Return the end of the run that all rows of a table belong to, epoch milliseconds. Raises Refused without one."""
    found = {range_of(lease)[1] for lease in view.leases.values()}
    (end,) = found if len(found) == 1 else (None,)
    if end is None or view.foreign or view.unreadable:
        rows = len(view.leases) + len(view.foreign) + len(view.unreadable)
        raise Refused(
            f"This table is not of a run that ends: not all of its {rows} rows are leases of one. An application whose "
            "lease table is gone begins anew. Do: check the name of the table."
        )
    return end


def plan_release(key: str, row: Row | None) -> ReleasePlan:
    """Return the write that releases this row. Raises Refused for a row that is not a lease, or has or needs no
    owner."""
    if row is None:
        raise Refused(f"There is no lease {key!r}. Do: pykcl leases list.")
    if isinstance(row, ForeignRow):
        what = "a lease of several streams" if row.kind == MULTI_STREAM_LEASE else f"a row of {row.kind}"
        raise Refused(f"{key!r} is {what}; pykcl never writes to such a row.")
    if not isinstance(row, Lease):
        raise Refused(f"{key!r} cannot be understood ({row.problem}); pykcl does not write to it.")
    if row.is_ended:
        raise Refused(f"{key!r} has ended: there is nothing left to read, so its owner does not matter.")
    if row.checkpoint_owner is not None:
        raise Refused(
            f"{key!r} is being handed over by a KCL 3.x leader, from {row.checkpoint_owner!r} to {row.owner!r}. Do: "
            "wait until that is over."
        )
    if row.owner is None:
        raise Refused(f"{key!r} has no owner: any worker may take it already.")
    return ReleasePlan(row, lease_writes.release(row))


def release(table: RowWriter, plan: ReleasePlan, shown: Callable[[ReleasePlan], None]) -> ReleaseResult:
    """Write the plan and read the row again.

    A live owner moves the counter every few seconds. If it was faster than the write and only its counter and
    checkpoint changed, the new plan is passed to `shown` and tried, up to three times in all.

    Raises Refused if the row has another owner by now, TemporaryError if the outcome of the write is unknown.
    """
    for _ in range(_TRIES):
        answer = table.write(plan.write)
        if isinstance(answer, Applied):
            return _verified(table, plan)
        if not isinstance(answer, Rejected):
            raise _unknown(plan, answer.cause)
        again = plan_release(plan.seen.key, answer.row)
        if again.owner != plan.owner:
            raise Refused(
                f"{plan.seen.key!r} is now owned by {again.owner!r}, no longer by {plan.owner!r}. Nothing was "
                "written. Do: list the leases again."
            )
        plan = again
        shown(plan)
    raise Refused(
        f"The owner of {plan.seen.key!r} was faster {_TRIES} times: its counter moved between the read and the write. "
        "Nothing was written. Do: run it again."
    )


def _verified(table: RowWriter, plan: ReleasePlan) -> ReleaseResult:
    row = table.read(plan.seen.key)
    if not isinstance(row, Lease) or row.counter <= plan.seen.counter:
        raise Refused(
            f"{plan.seen.key!r} was released, but somebody has changed it before it was read again. "
            "Do: pykcl leases describe."
        )
    return ReleaseResult("released" if row.owner is None else "taken", row, plan)


def _unknown(plan: ReleasePlan, cause: str) -> TemporaryError:
    return TemporaryError(
        f"It is unknown whether {plan.seen.key!r} was released: {cause} Do: pykcl leases describe."
    )


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
