"""What KCL measures of each page: its lag, its records and bytes, and how long all of it took."""

from __future__ import annotations

from collections.abc import Sequence

from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter, Value
from pykcl.model.record import Record, data_bytes


class PageMeasures:
    """Of one shard, used by one thread at a time, the one that reads: `began`, then for each batch `delivering` and,
    if it returned, `delivered`, then `ended`.

    A page that is broken off is not ended: neither stopping nor losing a lease is a failure of the work.
    """

    def __init__(self, meter: Meter, shard: str) -> None:
        self._meter = meter
        self._shard = shard
        self._began = 0.0
        self._is_empty = True
        self._lag: list[Value] = []

    def began(self, millis_behind: int | None) -> None:
        if not self._meter.is_on:
            return
        self._began, self._is_empty = self._meter.clock(), True
        if millis_behind is not None:
            lag = float(millis_behind)
            self._lag = [(catalog.MILLIS_BEHIND_LATEST, lag), (catalog.APPLICATION_BEHIND_LATEST, lag)]

    def delivering(self) -> None:
        # Told before the call: a processor may take its time, and the lag is what then matters.
        if self._lag:
            self._meter.summary(self._shard, self._lag)
            self._lag = []

    def delivered(self, records: Sequence[Record]) -> None:
        if not self._meter.is_on:
            return
        self._is_empty = False
        self._meter.summary(
            self._shard,
            (
                (catalog.RECORDS_PROCESSED, float(len(records))),
                (catalog.DATA_BYTES_PROCESSED, float(data_bytes(records))),
            ),
        )

    def ended(self, *, worked: bool = True) -> None:
        if not self._meter.is_on:
            return
        values = [
            *self._lag,
            (catalog.PROCESS_TASK.success, float(worked)),
            (catalog.PROCESS_TASK.time, self._meter.since(self._began)),
        ]
        if self._is_empty:
            # A shard on which nothing happens has data, too: without, an alarm could not tell it from a dead worker.
            values += [(catalog.RECORDS_PROCESSED, 0.0), (catalog.DATA_BYTES_PROCESSED, 0.0)]
        self._lag = []
        self._meter.summary(self._shard, values)
