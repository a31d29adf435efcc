"""One line in the log for each row that a tool has written, or may have: who moved which checkpoint, and where to."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pykcl.errors import printable
from pykcl.model.lease import Lease
from pykcl.operate.checkpoints.plan import Step

AUDIT_LOG = "pykcl.audit"
UNKNOWN_CALLER = "unknown caller"
log = logging.getLogger(AUDIT_LOG)


@dataclass(frozen=True, slots=True)
class Audit:
    """What all the lines of one move have in common.

    who: the ARN of whoever calls AWS, or `UNKNOWN_CALLER`. table: its name. backup: the file of the rows before.
    """

    who: str
    table: str
    backup: str

    def wrote(self, step: Step) -> None:
        """The table said that it was written."""
        self._tell("checkpoint moved", step)

    def may_have_written(self, step: Step) -> None:
        """Nobody can tell, or it was written and reads otherwise."""
        self._tell("checkpoint may have been moved", step)

    def _tell(self, what: str, step: Step) -> None:
        # A warning, so that it is seen also where nobody has set up logging.
        log.warning(
            "%s: table=%s shard=%s action=%s from=%s to=%s by=%s backup=%s",
            what,
            *map(printable, (self.table, step.key, step.action, *positions(step), self.who, self.backup)),
        )


def positions(step: Step) -> tuple[str, str]:
    """Where the shard was, and where it is now; "-" where there is no row."""
    after = None if step.action == "delete" else (step.new or step.seen)
    return _text(step.seen), _text(after)


def _text(row: Lease | None) -> str:
    return "-" if row is None else str(row.checkpoint)
