"""Taking a lease away from its owner, so that any living worker may take it at once.

What is written is what the owner itself writes when it stops: the owner's name is removed, the counter moves on by one,
and the checkpoint stays. The owner notices at its next renewal, which is refused; until then it goes on delivering, so
records may come twice, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pykcl.aws.operator_table import OperatorTable
from pykcl.errors import Refused, TemporaryError
from pykcl.interfaces import Applied, Rejected
from pykcl.model import lease_writes
from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE

_TRIES = 3


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """seen: the row as it is. write: what would be sent, fenced by the counter and the owner of `seen`."""

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
    """What would be written to this row. Raises Refused for a row that is no lease, has no owner or needs none."""
    if row is None:
        raise Refused(f"There is no lease {key!r}. Do: pykcl leases list, which shows what there is.")
    if isinstance(row, ForeignRow):
        what = "a lease of several streams" if row.kind == MULTI_STREAM_LEASE else f"a row of {row.kind}"
        raise Refused(f"{key!r} is {what}; pykcl never writes to such a row.")
    if not isinstance(row, Lease):
        raise Refused(f"{key!r} cannot be understood ({row.problem}); it is left alone.")
    if row.is_ended:
        raise Refused(f"{key!r} has ended: nobody reads it, and its owner keeps nobody from anything.")
    if row.checkpoint_owner is not None:
        raise Refused(
            f"{key!r} is being handed over by a KCL 3.x leader, from {row.checkpoint_owner!r} to {row.owner!r}. "
            "Do: wait until that is over."
        )
    if row.owner is None:
        raise Refused(f"{key!r} has no owner: any worker may take it already.")
    return ReleasePlan(row, lease_writes.release(row))


def release(table: OperatorTable, plan: ReleasePlan, shown: Callable[[ReleasePlan], None]) -> ReleaseResult:
    """Write it and read it again.

    A living owner moves the counter every few seconds. Where it was faster than the write and nothing else has changed
    but its counter and checkpoint, the new plan is shown by `shown` and tried, three times in all.

    Raises Refused where the row is another's by now, TemporaryError where nobody can tell whether it was written.
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
                f"{plan.seen.key!r} is owned by {again.owner!r} by now, no longer by {plan.owner!r}. Nothing was "
                "written. Do: look again."
            )
        plan = again
        shown(plan)
    raise Refused(
        f"The owner of {plan.seen.key!r} was faster {_TRIES} times: its counter moved between the look and the "
        "write. Nothing was written. Do: run it again."
    )


def _verified(table: OperatorTable, plan: ReleasePlan) -> ReleaseResult:
    row = table.read(plan.seen.key)
    if not isinstance(row, Lease) or row.counter <= plan.seen.counter:
        raise Refused(
            f"{plan.seen.key!r} was released, but is not so when it is read again: somebody else has changed it. "
            "Do: look at it with leases describe."
        )
    return ReleaseResult("released" if row.owner is None else "taken", row, plan)


def _unknown(plan: ReleasePlan, cause: str) -> TemporaryError:
    return TemporaryError(
        f"Nobody can tell whether {plan.seen.key!r} was released: {cause} Do: look at it with leases describe."
    )
