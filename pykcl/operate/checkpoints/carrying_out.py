"""Writes a plan: one fenced write after the other, each verified by reading the row again."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import PyKclError, Refused, TemporaryError
from pykcl.interfaces import Applied, LeaseTable, Rejected
from pykcl.model.lease import Lease, Row
from pykcl.operate.checkpoints.audit import Audit
from pykcl.operate.checkpoints.plan import Plan, Step
from pykcl.runtime import Runtime

WRITE_SECONDS = 20.0
"""How long one write is tried while AWS does not answer."""


def carry_out(
    plan: Plan,
    table: LeaseTable,
    runtime: Runtime,
    audit: Audit,
    on_done: Callable[[Step], None] = lambda _: None,
) -> int:
    """How many rows were written. audit: told of each that was written or may have been; on_done: once it was verified.

    Every write expects the counter and the owner that were seen. Raises Refused when the first one finds another row,
    PyKclError when a later one does or nobody can tell what became of one: the rest is not written, and the same
    command, run again, does it. SetupError and TemporaryError as the table raises them.
    """
    done = 0
    for step in plan.changes:
        write = step.write()
        answer = table.write(write, until=runtime.monotonic() + WRITE_SECONDS)
        if isinstance(answer, Rejected):
            raise _changed(step, answer.row, done, len(plan.changes))
        if not isinstance(answer, Applied):
            audit.may_have_written(step)
            raise TemporaryError(
                f"Nobody can tell whether the row of {step.key} was written ({answer.cause}). "
                f"{_so_far(done, len(plan.changes))} Do: run the same command again; what is done is left as it is."
            )
        # Before it is read again: that may fail, and it is written all the same.
        audit.wrote(step)
        _verify(step, table.read(step.key), write.after)
        done += 1
        on_done(step)
    return done


def _verify(step: Step, row: Row | None, wanted: Lease | None) -> None:
    """Raises PyKclError. A worker that has taken the lease in the meantime is as good: it began at what was written."""
    if wanted is None:
        good = row is None or (
            isinstance(row, Lease) and step.seen is not None and row.counter < step.seen.counter
        )
    else:
        same = isinstance(row, Lease) and row.checkpoint == wanted.checkpoint
        good = same or (isinstance(row, Lease) and row.counter > wanted.counter)
    if not good:
        raise PyKclError(
            f"The row of {step.key} was written, and reading it again shows something else. Nothing more was written. "
            "Do: look at it with `checkpoints show`."
        )


def _changed(step: Step, row: Row | None, done: int, total: int) -> PyKclError:
    who = (
        f"{row.actual_owner!r} has it"
        if isinstance(row, Lease) and row.actual_owner
        else "somebody else wrote it"
    )
    text = f"The row of {step.key} is not as it was seen ({who if row is not None else 'it is gone'})."
    if done == 0:
        return Refused(f"{text} Nothing was written. Do: see that the fleet is stopped, and plan again.")
    return PyKclError(
        f"{text} {_so_far(done, total)} Do: see that the fleet is stopped, and run the same command again; or put the "
        "backup back with `checkpoints reset --from-file`."
    )


def _so_far(done: int, total: int) -> str:
    return f"{done} of {total} rows were written before."
