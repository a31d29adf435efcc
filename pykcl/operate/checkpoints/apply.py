"""Writes a plan: one conditional write after the other, each verified by reading the row again and logged for audit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pykcl.errors import PyKclError, Refused, TemporaryError, printable
from pykcl.interfaces import Applied, LeaseTable, Rejected
from pykcl.model.lease import Lease, Row
from pykcl.operate.checkpoints.plan import Plan, Step
from pykcl.runtime import Runtime

AUDIT_LOG = "pykcl.audit"
UNKNOWN_CALLER = "unknown caller"
log = logging.getLogger(AUDIT_LOG)


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit log: one line for each row that was written or may have been.

    who: the ARN of the caller, or `UNKNOWN_CALLER`. table: its name. backup: the file with the rows from before.
    """

    who: str
    table: str
    backup: str

    def wrote(self, step: Step) -> None:
        """Log a confirmed write."""
        self._log("checkpoint moved", step)

    def may_have_written(self, step: Step) -> None:
        """Log a write with an unknown outcome."""
        self._log("checkpoint may have been moved", step)

    def _log(self, what: str, step: Step) -> None:
        # A warning, so that it is visible without any logging configuration.
        log.warning(
            "%s: table=%s shard=%s action=%s from=%s to=%s by=%s backup=%s",
            what,
            *map(printable, (self.table, step.key, step.action, *positions(step), self.who, self.backup)),
        )


def positions(step: Step) -> tuple[str, str]:
    """Return the position of the shard before and after; "-" without a row."""
    return _text(step.seen), _text(step.after)


def _text(row: Lease | None) -> str:
    return "-" if row is None else str(row.checkpoint)


WRITE_SECONDS = 20.0
"""Time for the attempts of one write while AWS does not answer."""


def apply_plan(
    plan: Plan,
    table: LeaseTable,
    runtime: Runtime,
    audit: Audit,
    on_done: Callable[[Step], None] = lambda _: None,
) -> int:
    """Write the plan, and return the number of rows written. on_done: called with each step once it was verified.

    Every write expects the counter and the owner that were seen. Raises Refused when the first row has changed,
    PyKclError when a later one has, or when the outcome of a write is unknown: the rest is not written then, and the
    same command, run again, writes it. SetupError and TemporaryError as the table raises them.
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
                f"It is unknown whether the row of {step.key} was written ({answer.cause}). "
                f"{_so_far(done, len(plan.changes))} Do: run the same command again; rows already written stay as they "
                "are."
            )
        # Before it is read again: the read may fail, and the row is written all the same.
        audit.wrote(step)
        _verify(step, table.read(step.key), write.after)
        done += 1
        on_done(step)
    return done


def _verify(step: Step, row: Row | None, wanted: Lease | None) -> None:
    """Raise PyKclError for another row. A worker that has taken the lease since is fine: it started at the new
    checkpoint."""
    if wanted is None:
        good = row is None or (
            isinstance(row, Lease) and step.seen is not None and row.counter < step.seen.counter
        )
    else:
        same = isinstance(row, Lease) and row.checkpoint == wanted.checkpoint
        good = same or (isinstance(row, Lease) and row.counter > wanted.counter)
    if not good:
        raise PyKclError(
            f"The row of {step.key} was written, but reads differently now. Nothing more was written. Do: `checkpoints "
            "show`."
        )


def _changed(step: Step, row: Row | None, done: int, total: int) -> PyKclError:
    who = (
        f"{row.actual_owner!r} has it"
        if isinstance(row, Lease) and row.actual_owner
        else "somebody else wrote it"
    )
    text = f"The row of {step.key} is not as it was seen ({who if row is not None else 'it is gone'})."
    if done == 0:
        return Refused(f"{text} Nothing was written. Do: stop the fleet, and plan again.")
    return PyKclError(
        f"{text} {_so_far(done, total)} Do: stop the fleet, and run the same command again; or restore the backup with "
        "`checkpoints reset --from-file`."
    )


def _so_far(done: int, total: int) -> str:
    return f"{done} of {total} rows were written before."
