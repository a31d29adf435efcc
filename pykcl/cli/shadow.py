"""`pykcl run --shadow APP2`: the same stream under another lease table, everything counted and nothing done.

The shadow has leases, checkpoints and workers of its own, so it can be stopped, started and shared between processes
like any application; the original one notices nothing of it but the reads of its shards.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pykcl.aws.table_admin import METRICS_SUFFIX, STATE_SUFFIX
from pykcl.cli.console import announce
from pykcl.cli.output import Column, render
from pykcl.cli.settings import Settings
from pykcl.config import Config
from pykcl.errors import ConfigError, SetupError, TableGone
from pykcl.model.lease import Lease
from pykcl.model.record import data_bytes
from pykcl.processor import (
    Batch,
    InitializationInput,
    LeaseLostInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.runtime import SystemRuntime
from pykcl.worker.processor_factory import checked_processor, must_have_run
from pykcl.worker.turns import Turns, turn_of, turns_of
from pykcl.worker.window_delivery import windows_of

log = logging.getLogger("pykcl.shadow")

OWNER_PREFIX = "shadow:"
"""Prefix of the worker identifiers of shadows, by which their rows differ from those of an application that works."""


@dataclass(slots=True)
class Count:
    """The counts of one shard. millis_behind: of the last page; None before the first. raised: calls that raised."""

    records: int = 0
    data_bytes: int = 0
    millis_behind: int | None = None
    raised: int = 0


class Tally:
    """The counts of all shards. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[str, Count] = {}

    def add(self, batch: Batch) -> None:
        """A batch that is done. Its data are the records' own, without what an aggregate adds."""
        size = data_bytes(batch.records)
        with self._lock:
            count = self._shards.setdefault(batch.shard_id, Count())
            count.records += len(batch)
            count.data_bytes += size
            if batch.millis_behind_latest is not None:
                count.millis_behind = batch.millis_behind_latest

    def add_failure(self, shard: str) -> None:
        with self._lock:
            self._shards.setdefault(shard, Count()).raised += 1

    def counts(self) -> dict[str, Count]:
        """A copy of the counts, by shard."""
        with self._lock:
            return {shard: replace(count) for shard, count in sorted(self._shards.items())}


class Counter(RecordProcessor):
    """Counts. around: the processor that is called besides; whether empty batches are for it, too, it says itself."""

    def __init__(self, tally: Tally, around: RecordProcessor | None = None, empty: bool = False) -> None:
        self._tally, self._around, self._empty = tally, around, empty
        self.turn, self.windows = turn_of(around), windows_of(around)

    def initialize(self, init: InitializationInput) -> None:
        if self._around is not None:
            self._around.initialize(init)

    def process_records(self, batch: Batch) -> None:
        if self._around is not None and (len(batch) or self._empty or self.windows is not None):
            try:
                process_records: Callable[[Batch], object] = self._around.process_records
                must_have_run("process_records", process_records(batch))
            except BaseException:
                self._tally.add_failure(batch.shard_id)
                raise
        self._tally.add(batch)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        if self._around is not None:
            self._around.lease_lost(loss)

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        if self._around is not None:
            self._around.shutdown_requested(request)


class CounterWithEnd(Counter):
    """A Counter around a processor with a shard_ended of its own, which only then ends the shard."""

    def shard_ended(self, end: ShardEndedInput) -> None:
        if self._around is not None:
            self._around.shard_ended(end)


@dataclass(frozen=True, slots=True)
class _Counting:
    """A factory around another one, and the turns that the processors of both take."""

    make: Callable[[], RecordProcessor]
    turns: Turns | None

    def __call__(self) -> RecordProcessor:
        return self.make()


class Shadow:
    """settings: the shadow's own. Raises ConfigError for a name that is none, or the original's own."""

    def __init__(self, original: Settings, application: str, *, calls: bool, interval: float) -> None:
        self.settings = replace(original, config=shadow_config(original.config, application, calls=calls))
        self.tally = Tally()
        self._original = original.config
        self.calls = calls
        self._interval = interval

    def factory(self) -> RecordProcessor:
        """A processor that only counts."""
        return Counter(self.tally)

    def watch(self, processor: Any) -> Any:
        """A factory of processors that count around those that `processor` makes. What is no factory stays as it is."""
        if isinstance(processor, RecordProcessor) or not callable(processor):
            return processor
        make = checked_processor(processor)

        def counting() -> RecordProcessor:
            inner = make()
            kind = CounterWithEnd if type(inner).shard_ended is not RecordProcessor.shard_ended else Counter
            return kind(self.tally, inner, self._original.call_with_empty_batches)

        # For `Worker.run`, as of the factory itself.
        return _Counting(counting, turns_of(processor))

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Log what the shadow does, then the counts at intervals, and print them at the end."""
        config, calls = self.settings.config, "called on every record" if self.calls else "not called"
        log.warning(
            "shadow: application %s reads stream %s and counts; the processor is %s, and table %s is not touched. "
            "It shares the five reads and 2 MB a second that Kinesis allows for each shard with whoever reads it now.",
            config.application,
            config.stream_name,
            calls,
            self._original.table,
        )
        over = threading.Event()
        logger = threading.Thread(target=self._log_until, args=(over,), name="pykcl-shadow", daemon=True)
        logger.start()
        has_table = True
        try:
            yield
        except (ConfigError, SetupError):
            # Most likely the table was not created.
            has_table = False
            raise
        finally:
            over.set()
            logger.join()
            announce(table_of(self.tally.counts()))
            if has_table:
                log.info(
                    "shadow: lease table %s stays, and the next start goes on from it. To remove it: "
                    "aws dynamodb delete-table --table-name %s",
                    config.table,
                    config.table,
                )

    def refuse_a_living_application(self) -> None:
        """Raise SetupError if the shadow's table has rows that no shadow wrote; nothing has been written by then.

        Another application would lose its leases to the shadow, and its checkpoints would be moved by one that has
        done nothing.
        """
        from pykcl.aws.clients import connect

        table, _ = connect(
            self.settings.config, SystemRuntime(), clients=self.settings.clients(), gone_after=0.0
        )
        try:
            rows = table.scan().rows
        except TableGone:
            return
        strangers = [row.key for row in rows if not _is_of_a_shadow(row)]
        if strangers:
            raise SetupError(
                f"Table {self.settings.config.table!r} belongs to an application that works: its row {strangers[0]!r} "
                "was not written by a shadow. Nothing was changed. Do: name one of which there is no table yet."
            )

    def _log_until(self, over: threading.Event) -> None:
        while not over.wait(self._interval):
            for shard, count in self.tally.counts().items():
                log.info(
                    "shadow counted shard=%s records=%d bytes=%d millis_behind_latest=%s raised=%d",
                    shard,
                    count.records,
                    count.data_bytes,
                    "-" if count.millis_behind is None else count.millis_behind,
                    count.raised,
                )


_POLLED: Final[dict[str, Any]] = {
    name: Config.__dataclass_fields__[name].default
    for name in ("retrieval", "consumer", "register_consumer", "fanout_transport")
}


def shadow_config(original: Config, application: str, *, calls: bool) -> Config:
    """The Config of a shadow: everything but what leads to the original's tables, and checkpoints of its own.

    Raises ConfigError.
    """
    taken = {
        original.application,
        original.table,
        original.coordinator_state_table,
        original.worker_metrics_table,
    }
    taken |= {original.application + suffix for suffix in (STATE_SUFFIX, METRICS_SUFFIX)}
    if application in taken:
        raise ConfigError(
            f"--shadow {application!r} is a name of the application itself. Do: --shadow {original.application}-shadow."
        )
    # Whether the processor checkpoints is its own business; who only counts need not write after each batch.
    checkpoint: dict[str, Any] = {} if calls else {"checkpoint_mode": "interval", "checkpoint_interval": 10.0}
    if not calls:
        checkpoint["max_unacked"] = Config.__dataclass_fields__["max_unacked"].default
    own = original.worker_id or f"{socket.gethostname()}:{os.getpid()}:{SystemRuntime().token()}"
    return replace(
        original,
        application=application,
        table_name=None,
        coordinator_state_table=None,
        worker_metrics_table=None,
        worker_id=f"{OWNER_PREFIX}{own}",
        # So that the lag of a shard without records is known, too.
        call_with_empty_batches=True,
        table_deletion_protection=False,
        point_in_time_recovery=False,
        fleet_mode="auto",
        # 1) The consumer is the application's; 2) a subscription of the shadow takes over that of the fleet, which
        # takes it back, and so on. One of its own would be billed.
        **_POLLED,
        # A rehearsal counts, and what it counts is not the application's.
        metrics="none",
        **checkpoint,
    )


def table_of(counts: dict[str, Count]) -> str:
    """Return the counts as a table, a line for each shard and one for all."""
    behind = [count.millis_behind for count in counts.values() if count.millis_behind is not None]
    total = Count(
        sum(count.records for count in counts.values()),
        sum(count.data_bytes for count in counts.values()),
        max(behind, default=None),
        sum(count.raised for count in counts.values()),
    )
    rows = [{"shard": shard, **asdict(count)} for shard, count in {**counts, "all": total}.items()]
    columns = [
        Column("shard"),
        Column("records", right=True),
        Column("data_bytes", "BYTES", right=True),
        Column("millis_behind", right=True),
        Column("raised", right=True),
    ]
    return render(rows, columns, "wide")


def _is_of_a_shadow(row: object) -> bool:
    return (
        isinstance(row, Lease)
        and row.metadata is not None
        and row.metadata.owner is not None
        and row.metadata.owner.startswith(OWNER_PREFIX)
        and (row.owner is None or row.owner.startswith(OWNER_PREFIX))
    )
