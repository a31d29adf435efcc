"""What follows from events: counts of what went wrong, which happen too seldom to be measured where they do."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.events import (
    BatchSkipped,
    DataLost,
    Event,
    LeaseTaken,
    LeaseTakenAway,
    LeaseWentElsewhere,
    ProcessorRaised,
    ProcessorSlow,
)
from pykcl.metrics import names
from pykcl.metrics.names import Measure

CAUSES = (
    ("another worker took it", "Taken"),
    ("no heartbeat succeeded", "Expired"),
    ("its row is gone", "RowDeleted"),
    ("another process uses the worker identifier", "WorkerIdentifierInUse"),
    ("its release got no answer", "ReleaseUnanswered"),
    ("the lease table is gone", "TableGone"),
)
"""How the texts of LeaseTakenAway.cause begin, and the value of the dimension Cause."""
STALLED = "Stalled"
OTHER = "Other"


def cause_of(text: str) -> str:
    """The value of the dimension Cause: one of few, whatever names the text holds."""
    if "did not return within" in text:
        return STALLED
    return next((cause for begin, cause in CAUSES if text.startswith(begin)), OTHER)


def measured(event: Event) -> Iterator[tuple[str, tuple[Measure, float]]]:
    """Labels and values."""
    if isinstance(event, LeaseTaken):
        yield "", (names.TAKEN_LEASES, 1.0)
    elif isinstance(event, LeaseWentElsewhere):
        yield "", (names.UNTAKEN_LEASES, 1.0)
    elif isinstance(event, LeaseTakenAway):
        yield "", (names.LOST_LEASES, 1.0)
        yield cause_of(event.cause), (names.LEASES_LOST_BY_CAUSE, 1.0)
    elif isinstance(event, ProcessorRaised):
        if event.next_attempt_in is not None:
            yield event.shard, (names.PROCESSOR_RETRIES, 1.0)
    elif isinstance(event, BatchSkipped):
        yield event.shard, (names.SKIPPED_RECORDS, float(event.records))
    elif isinstance(event, ProcessorSlow):
        yield event.shard, (names.PROCESSOR_STALLED, 1.0)
    elif isinstance(event, DataLost):
        yield event.shard, (names.DATA_LOST, 1.0)
