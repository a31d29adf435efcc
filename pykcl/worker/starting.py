"""The steps of a start that AWS must answer: each is tried again while it fails for a time, and the log says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pykcl.config import Config
from pykcl.errors import SetupError, TemporaryError
from pykcl.events import StillStarting, TableCreated
from pykcl.interfaces import DeadLetterDestination, Events, LeaseTable, Stream
from pykcl.metrics.host_cpu import HostCpu
from pykcl.metrics.meter import Meter
from pykcl.model.lease import Lease, Row
from pykcl.planning.read_schedule import backoff
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Event, Runtime
from pykcl.status import Activity
from pykcl.times import format_time
from pykcl.worker.batch_window import Pace
from pykcl.worker.context import Context
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.fan_out_consumer import FanOutConsumer
from pykcl.worker.fleet_monitor import FleetMonitor
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.idle_reads import IdleShardPoller
from pykcl.worker.pausing import Pauses
from pykcl.worker.prefetch import MemoryBudget
from pykcl.worker.stream_identity import ExpiredShardCheck, StreamIdentity, readable
from pykcl.worker.threads import Helpers, ThreadHeartbeat

Answer = TypeVar("Answer")

_REMIND_EVERY = 30.0
"""Seconds. A wrong endpoint cannot be distinguished from one that is down: it does not end the start, but is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a worker. pulse: of the thread that starts it. stop_asked: set once the start is to be given up."""

    config: Config
    worker_id: str
    table: LeaseTable
    stream: Stream
    runtime: Runtime
    events: Events
    meter: Meter
    failures: FailureTracker
    held: HeldLeases
    processor: ProcessorFactory
    on_fatal: Callable[[Exception], None]
    on_run_over: Callable[[], None]
    pulse: ThreadHeartbeat
    stop_asked: Event
    cpu: HostCpu
    helpers: Helpers
    pauses: Pauses
    dead_letters: DeadLetterDestination | None = None

    def context(self) -> Context | None:
        """Everything the threads share; None when stopped meanwhile. Raises SetupError and its kin."""
        from pykcl import __version__

        config, runtime, table, stream = self.config, self.runtime, self.table, self.stream
        self._refuse_unmeasured_cpu()
        consumer = None
        if config.retrieval != "polling":
            may_poll = config.retrieval == "fanout-or-polling"
            consumer = FanOutConsumer(stream, runtime, self.events, may_poll=may_poll)
        description = self._until_it_works(Activity.FINDING_STREAM, lambda: readable(stream))
        if description is None:
            return None
        if consumer is not None and not self._until_it_works(Activity.FINDING_CONSUMER, consumer.prepare):
            return None
        created = self._until_it_works(
            Activity.PREPARING_TABLE, lambda: table.prepare(create=config.create_table)
        )
        if created:
            self.events.emit(TableCreated(table=config.table))
        memory = MemoryBudget(config.max_buffered_bytes, runtime)
        context = Context(
            config=config,
            worker_id=self.worker_id,
            process_token=runtime.token(),
            version=__version__,
            identity=StreamIdentity(description, stream, runtime, config.table),
            table=table,
            stream=stream,
            runtime=runtime,
            events=self.events,
            meter=self.meter,
            failures=self.failures,
            held=self.held,
            expired_shards=ExpiredShardCheck(stream, runtime),
            fleet=FleetMonitor(config, self.worker_id, table, self.events, runtime),
            cpu=self.cpu,
            memory=memory,
            idle_poller=IdleShardPoller(
                stream, runtime, memory, self.meter, limit=config.max_records, on_fatal=self.on_fatal
            ),
            processor=self.processor,
            on_fatal=self.on_fatal,
            on_run_over=self.on_run_over,
            initialized=runtime.event(),
            has_taken=runtime.event(),
            has_read=runtime.event(),
            helpers=self.helpers,
            pauses=self.pauses,
            dead_letters=self.dead_letters,
            pace=Pace(rate, runtime) if (rate := config.max_records_per_second) else None,
            consumer=consumer,
        )
        scan = self._until_it_works(Activity.READING_TABLE, context.fleet.scan)
        if scan is None:
            return None
        context.identity.refuse_foreign_leases(scan.rows)
        self._refuse_other_runs(context, scan.rows)
        context.fleet.join(scan.rows)
        return context

    def _refuse_other_runs(self, context: Context, rows: Sequence[Row]) -> None:
        """Raise FatalError for rows of another run, SetupError for a run that would begin now, at LATEST, behind its
        end. One that has begun goes on."""
        context.refuse_other_runs(rows)
        until, now = self.config.until_millis, self.stream.server_time_millis()
        is_new = self.config.start_position.kind == "LATEST" and not any(
            isinstance(row, Lease) for row in rows
        )
        if until is not None and is_new and until <= now:
            raise SetupError(
                f"until={format_time(until)} is over: no record lies between a start at LATEST, now, and that. "
                "Do: say an earlier initial_position, or a later end."
            )

    def _refuse_unmeasured_cpu(self) -> None:
        """Raise SetupError if the CPU is to be reported and cannot be: refused later, the leases would have no leader.

        Whatever the protocol of the fleet is at this moment: it may come to follow a leader while this worker runs.
        """
        if (
            self.config.worker_metrics == "cpu"
            and self.config.fleet_mode != "2x"
            and (why := self.cpu.begin())
        ):
            raise SetupError(
                f'worker_metrics="cpu", and the CPU utilisation cannot be measured: {why}. Do: leave worker_metrics '
                'out, which reports CPU only where it can be measured, or say "throughput".'
            )

    def _until_it_works(self, what: Activity, attempt: Callable[[], Answer]) -> Answer | None:
        """`attempt()`, again while it fails for a time; None when the worker is stopped meanwhile."""
        began = reminded = self.runtime.monotonic()
        failures = 0
        again_at = 0.0
        while not self.stop_asked.wait(0.0 if again_at == 0.0 else 0.1):
            if self.runtime.monotonic() < again_at:
                continue
            self.pulse.beat()
            try:
                result = attempt()
            except TemporaryError as error:
                failures += 1
                self.failures.failed(what, error)
                now = self.runtime.monotonic()
                if now - reminded >= _REMIND_EVERY:
                    reminded = now
                    self.events.emit(StillStarting(what=what.value, seconds=now - began, cause=str(error)))
                pause = backoff(failures, self.runtime.random(), first=0.5, longest=5.0)
                again_at = now + pause
                self.pulse.rest(pause)
            else:
                self.failures.worked(what)
                return result
        return None
