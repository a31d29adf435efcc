"""Release of a lease in the name of its owner, so that any live worker may take it at once.

The write is the one that an owner sends when it stops: the owner is removed, the counter moves on by one, and the
checkpoint stays. The owner notices at its next renewal, which is rejected; until then it delivers records, so some may
come twice, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pykcl.errors import Refused, TemporaryError
from pykcl.interfaces import Applied, Rejected
from pykcl.model import lease_writes
from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.operate.aws.row_writes import RowWriter
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE

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
