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


def measured(event: Event) -> Iterator[tuple[str, tuple[Measure, float]]]:
    """Labels and values."""
    if isinstance(event, LeaseTaken):
        yield "", (names.TAKEN_LEASES, 1.0)
    elif isinstance(event, LeaseWentElsewhere):
        yield "", (names.UNTAKEN_LEASES, 1.0)
    elif isinstance(event, LeaseTakenAway):
        yield "", (names.LOST_LEASES, 1.0)
        yield event.reason.value, (names.LEASES_LOST_BY_CAUSE, 1.0)
    elif isinstance(event, ProcessorRaised):
        if event.next_attempt_in is not None:
            yield event.shard, (names.PROCESSOR_RETRIES, 1.0)
    elif isinstance(event, BatchSkipped):
        yield event.shard, (names.SKIPPED_RECORDS, float(event.records))
    elif isinstance(event, ProcessorSlow):
        yield event.shard, (names.PROCESSOR_STALLED, 1.0)
    elif isinstance(event, DataLost):
        yield event.shard, (names.DATA_LOST, 1.0)
