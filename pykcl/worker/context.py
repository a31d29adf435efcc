"""Context of one worker, shared by its threads: configuration, adapters, and the identity of the worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pykcl.config import Config
from pykcl.errors import FatalError, PyKclError, SetupError
from pykcl.interfaces import DeadLetterDestination, Events, LeaseTable, Stream
from pykcl.metrics.host_cpu import HostCpu
from pykcl.metrics.meter import Meter
from pykcl.model.lease import Lease, PykclMetadata, Row, metadata_for
from pykcl.model.shard import consumer_name, shards_named, short_shard
from pykcl.planning.run_end import NO_END, Range, range_of, row_of_another_run
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Event, Runtime
from pykcl.times import format_time
from pykcl.worker.batch_window import Pace
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.fan_out_consumer import FanOutConsumer
from pykcl.worker.fleet_monitor import FleetMonitor
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.idle_reads import IdleShardPoller
from pykcl.worker.pausing import Pauses
from pykcl.worker.prefetch import MemoryBudget
from pykcl.worker.stream_identity import ExpiredShardCheck, StreamIdentity
from pykcl.worker.threads import Helpers

_ANOTHER_NAME = "give this run an application of its own"
_MOST_NAMES = 20
"""Shards that an error names."""
_TAKE_APART = (
    "stop all workers of both, delete the rows of the one (those of a run have `until` in the map `pykcl`), and start "
    "it as an application of its own"
)


@dataclass(frozen=True, slots=True)
class Context:
    """Made once by Worker.

    on_fatal: called with an error that the whole worker must stop for. on_run_over: called when a run that ends by
    itself has come to its end. initialized: set once a first round worked, and
    whatever was taken in it is read; see `Readiness`. has_taken, has_read: set once a lease was taken or a shard read,
    by any thread. Each is proof that it can work: see `must_stop`. dead_letters: None: given-up records are discarded.
    consumer: None: records are read by polls. pace: None: records are delivered as they come.
    """

    config: Config
    worker_id: str
    process_token: str
    version: str
    identity: StreamIdentity
    table: LeaseTable
    stream: Stream
    runtime: Runtime
    events: Events
    meter: Meter
    failures: FailureTracker
    held: HeldLeases
    memory: MemoryBudget
    expired_shards: ExpiredShardCheck
    fleet: FleetMonitor
    cpu: HostCpu
    idle_poller: IdleShardPoller
    processor: ProcessorFactory
    on_fatal: Callable[[Exception], None]
    on_run_over: Callable[[], None]
    initialized: Event
    has_taken: Event
    has_read: Event
    helpers: Helpers
    pauses: Pauses
    dead_letters: DeadLetterDestination | None = None
    pace: Pace | None = None
    consumer: FanOutConsumer | None = None

    def must_stop(self, error: PyKclError, proof: Event) -> bool:
        """Decide whether the whole worker must stop for this error.

        A FatalError always stops it. Any other set-up error does before the first success: the worker cannot work at
        all. Later it is trouble that may pass, such as a policy changed by mistake.
        proof: set by the first success of what failed. Having joined the fleet is one, too: a spare worker does its
        part by standing by.
        """
        if isinstance(error, FatalError):
            return True
        return isinstance(error, SetupError) and not (self.initialized.is_set() or proof.is_set())

    @property
    def chosen(self) -> tuple[str, ...]:
        """The shards that the run was given, by id; none: it reads all of the stream."""
        return shards_named(self.config.shards)

    @property
    def run(self) -> Range:
        """The range of a run that ends by itself; NO_END for another one."""
        until = self.config.until_millis
        if until is None:
            return NO_END
        start = self.config.start_position
        begin = start.kind if start.at_millis is None else format_time(start.at_millis)
        return begin, until, ",".join(map(short_shard, self.chosen)) or None

    def refuse_other_runs(self, rows: Sequence[Row]) -> None:
        """Raise FatalError if the lease table has rows of a run over another range, or of one without an end."""
        own = self.run
        row = row_of_another_run(rows, own)
        if row is None:
            return
        if not isinstance(row, Lease):
            what, do = "is no lease of pykcl", _ANOTHER_NAME
        elif range_of(row) == own:
            what = f"has the owner {row.owner!r}, which is no worker of pykcl"
            do = _ANOTHER_NAME
        else:
            begin, end, shards = range_of(row)
            what = "is of an application whose run has no end"
            do = f"{_ANOTHER_NAME}, or leave out until"
            if end is not None:
                part = f"of the shards {shards} " if shards else ""
                what = f"is of a run {part}from {begin} until {format_time(end)}"
                do = (
                    f"{_ANOTHER_NAME}, or that range"
                    if own != NO_END
                    else "give this application another table"
                )
            if any(isinstance(one, Lease) and range_of(one) == own for one in rows):
                # Both began in an empty table, and did not come upon each other in time.
                what, do = f"{what}, and others are its own", _TAKE_APART
        raise FatalError(
            f"Table {self.config.table!r} is not of this run alone: its row {row.key!r} {what}. This worker stops. "
            f"Do: {do}."
        )

    def refuse_unknown_shards(self, listed: Collection[str], leased: Collection[str]) -> None:
        """Raise FatalError if the run was given a shard that there is none of.

        listed: ids of all shards of the stream. leased: of the rows; a shard that expires keeps its row.
        """
        unknown = [key for key in self.chosen if key not in listed and key not in leased]
        if unknown:
            names = sorted(listed)
            raise FatalError(
                f"Stream {self.stream.name!r} lists no {unknown[0]}, and shards={self.config.shards!r} names it. This "
                f"worker stops. The stream lists {len(names)}: {', '.join(names[:_MOST_NAMES])}"
                f"{', …' if len(names) > _MOST_NAMES else ''}. Do: name shards of these."
            )

    def metadata_for(self, lease: Lease) -> PykclMetadata:
        """The private attribute for a row this worker creates or takes."""
        begin, until, shards = self.run
        return metadata_for(
            lease,
            stream=self.identity.description,
            owner=self.worker_id,
            version=self.version,
            process_token=self.process_token,
            now_millis=self.stream.server_time_millis(),
            failover_time=self.config.failover_time,
            consumer=consumer_name(self.config.consumer, self.config.application) if self.consumer else None,
            until=until,
            begin=begin,
            shards=shards,
        )
