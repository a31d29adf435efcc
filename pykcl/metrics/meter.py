"""The meter that a worker measures with: it hands each value to its sinks, and counts rare failures from events."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

from pykcl.errors import CheckpointRefused, LeaseLostError
from pykcl.events import (
    BatchSkipped,
    BatchSplit,
    DataLost,
    Event,
    LeaseLost,
    LeaseReleased,
    LeaseTakeFailed,
    LeaseTaken,
    ProcessorRaised,
    ProcessorSlow,
    RecordsDeadLettered,
    RecordsDiscarded,
    ReleaseUnacknowledged,
    ShardEnded,
)
from pykcl.metrics import catalog
from pykcl.metrics.catalog import DIMENSIONS, Measure, Timed
from pykcl.runtime import Runtime


def measured(event: Event) -> Iterator[tuple[str, tuple[Measure, float]]]:
    """Labels and values."""
    if isinstance(event, LeaseTaken):
        yield "", (catalog.TAKEN_LEASES, 1.0)
    elif isinstance(event, LeaseTakeFailed):
        yield "", (catalog.UNTAKEN_LEASES, 1.0)
    elif isinstance(event, LeaseLost):
        yield "", (catalog.LOST_LEASES, 1.0)
        yield event.reason.value, (catalog.LEASES_LOST_BY_CAUSE, 1.0)
    elif isinstance(event, ProcessorRaised):
        if event.next_attempt_in is not None:
            yield event.shard, (catalog.PROCESSOR_RETRIES, 1.0)
    elif isinstance(event, BatchSkipped):
        yield event.shard, (catalog.SKIPPED_RECORDS, float(event.records))
    elif isinstance(event, BatchSplit):
        yield event.shard, (catalog.BATCH_SPLITS, 1.0)
    elif isinstance(event, RecordsDeadLettered):
        yield event.shard, (catalog.RECORDS_DEAD_LETTERED, float(event.records))
    elif isinstance(event, RecordsDiscarded):
        yield event.shard, (catalog.RECORDS_DISCARDED, float(event.records))
    elif isinstance(event, ProcessorSlow):
        yield event.shard, (catalog.PROCESSOR_STALLED, 1.0)
    elif isinstance(event, DataLost):
        yield event.shard, (catalog.DATA_LOST, 1.0)


log = logging.getLogger("pykcl.metrics")

Value = tuple[Measure, float]
_NOTHING: AbstractContextManager[None] = nullcontext()


class MetricsSink(Protocol):
    """Takes what was measured. Called from any thread, on the way of the records: it must be quick and not wait."""

    def take(self, label: str, values: Sequence[tuple[Measure, float]]) -> None:
        """Take values of this moment. label: the shard, or the cause, of those values whose measure is labelled."""

    def forget(self, shard: str) -> None:
        """Drop the present state of the shard: this worker no longer has its lease, or to a producer it has ended."""


class Meter:
    """Measures, unless it has no sinks: then `is_on` is False, and nothing below does anything.

    level: "SUMMARY" leaves out what is DETAILED. dimensions: names as in `metrics_dimensions`; others are summed over.
    """

    def __init__(
        self,
        runtime: Runtime,
        sinks: Sequence[MetricsSink] = (),
        *,
        level: str = "DETAILED",
        dimensions: Sequence[str] = DIMENSIONS,
    ) -> None:
        self.is_on = bool(sinks) and level != "NONE"
        self._sinks = tuple(sinks) if self.is_on else ()
        self._runtime = runtime
        self._is_detailed = level == "DETAILED"
        # None: every label counts, which is the ordinary case and costs no check of each value.
        self._dimensions = None if {"ShardId", "Cause"} <= set(dimensions) else frozenset(dimensions)

    def clock(self) -> float:
        """Monotonic seconds, to be given to `since`; 0 where nothing is measured."""
        return self._runtime.monotonic() if self.is_on else 0.0

    def since(self, began: float) -> float:
        """Milliseconds since `began`."""
        return (self._runtime.monotonic() - began) * 1000.0

    def measure(self, label: str, *values: Value) -> None:
        """Hand the values to every sink. Never raises, never waits. label: see `MetricsSink.take`."""
        if not self.is_on:
            return
        wanted: Sequence[Value] = values
        if not self._is_detailed:
            wanted = [value for value in values if value[0].level == "SUMMARY"]
        if wanted:
            self.summary(label, wanted)

    def summary(self, label: str, values: Sequence[Value]) -> None:
        """The same, of values that are all of the level SUMMARY: for what happens with every page."""
        if self._dimensions is None:
            self._give(label, values)
            return
        for value in values:
            self._give(label if value[0].dimension in self._dimensions else "", (value,))

    def timed(self, what: Timed, label: str = "") -> AbstractContextManager[None]:
        """Measures the block: its time, and whether it raised. (To lose a lease, or to be refused a
        position, is no failure of what was tried.)"""
        if not self.is_on or (what.time.level == "DETAILED" and not self._is_detailed):
            return _NOTHING
        return _Timing(self, what, label)

    def took(self, what: Timed, label: str, began: float, *, worked: bool) -> None:
        """The same, of what ends now and began at `began` (monotonic seconds)."""
        if self.is_on:
            self.measure(label, (what.success, float(worked)), (what.time, self.since(began)))

    def hear(self, event: Event) -> None:
        """A listener: what follows from events."""
        if not self.is_on:
            return
        for label, value in measured(event):
            self.measure(label, value)
        if isinstance(event, LeaseLost | LeaseReleased | ReleaseUnacknowledged | ShardEnded):
            self.forget(event.shard)

    def forget(self, shard: str) -> None:
        """Have every sink forget the shard. Never raises."""
        for sink in self._sinks:
            try:
                sink.forget(shard)
            except Exception as error:  # noqa: BLE001 - nor end a thread of a producer
                self._leave_out(sink, error)

    def _give(self, label: str, values: Sequence[Value]) -> None:
        for sink in self._sinks:
            try:
                sink.take(label, values)
            except Exception as error:  # noqa: BLE001 - a sink must never end a lease
                self._leave_out(sink, error)

    def _leave_out(self, sink: MetricsSink, error: Exception) -> None:
        # A new tuple, so that two threads that meet the same failing sink do not trip over each other.
        self._sinks = tuple(other for other in self._sinks if other is not sink)
        log.error(
            "metrics sink raised and is left out from now on sink=%r error=%s",
            type(sink).__name__,
            type(error).__name__,
        )


class _Timing:
    __slots__ = ("_began", "_label", "_meter", "_what")

    def __init__(self, meter: Meter, what: Timed, label: str) -> None:
        self._meter, self._what, self._label = meter, what, label

    def __enter__(self) -> None:
        self._began = self._meter.clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        worked = error is None or isinstance(error, LeaseLostError | CheckpointRefused)
        self._meter.took(self._what, self._label, self._began, worked=worked)
