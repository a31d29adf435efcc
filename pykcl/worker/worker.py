"""Worker: the composition root. Builds the adapters, starts and stops the threads in order, handles signals."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from pykcl.config import Config
from pykcl.errors import PyKclError, StopTimedOut, TemporaryError
from pykcl.events import TableCreated, ThreadsLeft, WorkerStarted, WorkerStopped, WorkerStopping
from pykcl.listeners import EventFan, Listener, Relay
from pykcl.metrics.meter import Sink
from pykcl.metrics.metering import Metering
from pykcl.metrics.publisher import Sender
from pykcl.planning.pace import backoff
from pykcl.ports import LeaseTable, Stream
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Runtime, SystemRuntime, Task
from pykcl.status import WorkerStatus
from pykcl.worker.arguments import checked_processor, config_of
from pykcl.worker.buffer_gate import BufferGate
from pykcl.worker.context import Context
from pykcl.worker.fleet_watch import FleetWatch
from pykcl.worker.gone_shards import GoneShards
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.identity import StreamIdentity, readable
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_renewer import LeaseRenewer
from pykcl.worker.naming import explaining, named, names_of
from pykcl.worker.renewal_rounds import RenewalRounds
from pykcl.worker.shared_reads import SharedReads
from pykcl.worker.signals import StopSignals
from pykcl.worker.standing import Parts, Standing
from pykcl.worker.trouble import Trouble

_LAST_METRICS_WITHIN = _LAST_EVENTS_WITHIN = 2.0
"""Seconds a stop waits for the last metrics, and for a listener to have the last events, behind everything else."""


class Worker:
    """One member of the fleet that reads a stream.

    processor: a RecordProcessor subclass or a zero-argument factory; one instance is made per lease.
    session: a boto3.Session; clients: {"kinesis": …, "dynamodb": …}, and "cloudwatch" where metrics go there; by
    default boto3's own chain is used. on_event: called with every event, each in a thread of its own, where it may
    wait and raise. listeners: the same at once, in the thread to which it happens; they must be quick.
    metrics_sinks: take what is measured, besides those that the option `metrics` names.
    options: the fields of Config by name; or pass a whole `config`. held: the leases this worker believes it holds.
    signals: those that ask it to stop.

    Raises ConfigError for options that are unknown or contradict each other.
    """

    def __init__(
        self,
        application: str | None = None,
        *,
        processor: ProcessorFactory,
        config: Config | None = None,
        session: Any = None,
        clients: Mapping[str, Any] | None = None,
        adapters: tuple[LeaseTable, Stream] | None = None,
        listeners: Sequence[Listener] = (),
        on_event: Listener | Sequence[Listener] = (),
        metrics_sinks: Sequence[Sink] = (),
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self.config = config_of(application, config, options)
        self._processor = checked_processor(processor)
        self._runtime = runtime or SystemRuntime()
        self._session, self._clients, self._adapters = session, clients, adapters
        self.worker_id = (
            self.config.worker_id or f"{socket.gethostname()}:{os.getpid()}:{self._runtime.token()}"
        )
        self.metering = Metering(self.config, self._runtime, self.worker_id, metrics_sinks)
        self._standing = Standing(self.config, self.worker_id, self._runtime)
        patient = (on_event,) if callable(on_event) else on_event
        self._relays = [Relay(listener, self._runtime) for listener in patient]
        own = (self.metering.meter.hear, self._standing.errors.hear)
        self._events = EventFan(
            (*listeners, *own, *(relay.hear for relay in self._relays)), names_of(self.config)
        )
        self.held = HeldLeases(self._runtime)
        # Set by `stop`, by a failure and by signals, whose handlers may set no other event.
        self._stop_asked = self._runtime.signal_event()
        self._stopped = self._runtime.event()
        self._forced = self._runtime.event()
        self._lock = self._runtime.lock()
        self._failure: Exception | None = None
        self._manager: LeaseManager | None = None
        self._parts: Parts | None = None
        self.signals = StopSignals(self._stop_asked.set)
        self._stopping = False

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop()`, SIGTERM or SIGINT; then finish, checkpoint and release. A second signal forces.

        Raises what stopped it: SetupError (or WrongStream, TableGone…), ProcessorFailed, StopTimedOut, InternalError.
        """
        with self.signals.heard():
            self.start()
            self._stop_asked.wait()
            self.stop()
        if self._failure is not None:
            raise self._failure

    @explaining
    def start(self) -> None:
        """Connect, check the stream and the table, and start the threads. Raises SetupError and its kin."""
        if self._manager is not None:
            raise PyKclError("This worker was started before. Make a new Worker for another run.")
        self._standing.enter("starting")
        context = self._connect()
        if context is None or not self._start_threads(context):
            return
        context.events.emit(
            WorkerStarted(
                worker_id=self.worker_id,
                application=self.config.application,
                stream_arn=context.identity.description.arn,
                table=self.config.table,
                failover_time=self.config.failover_time,
            )
        )

    def _start_threads(self, context: Context) -> bool:
        """Start manager and renewer, unless `stop` came first; under the lock, so that it sees all or nothing."""
        name = "pykcl"
        with self._lock:
            if self._stop_asked.is_set():
                return False
            renewer = LeaseRenewer(
                context.held,
                context.runtime,
                context.trouble,
                name=name,
                on_fatal=self._fail,
                rounds=RenewalRounds(context.meter, context.runtime, self.config.renew_interval),
            )
            self._manager = LeaseManager(context, name=name)
            self._parts = self._standing.parts = Parts(self._manager, renewer, context.shared_reads)
            self._standing.enter("running")
            self.metering.start(f"{name}-metrics")
            renewer.start()
            context.shared_reads.start()
            self._manager.start()
        return True

    def stop(self, grace: float | None = None) -> None:
        """Stop in order: no new leases, running batches end, last checkpoints, releases, then heartbeats.

        grace: seconds to wait, by default `shutdown_grace`. Raises StopTimedOut with the names of threads that were
        still busy; their leases expire. Called again, it waits for the first call and raises nothing; called before
        `start`, that start will start nothing. Called by a processor it only asks: the worker cannot wait for the very
        batch that stops it.
        """
        self._stop_asked.set()
        with self._lock:
            manager, parts = self._manager, self._parts
            begins = self._standing.enter("draining" if manager else "stopped")
        if manager is None or parts is None:
            return
        if begins:
            self._events.emit(WorkerStopping(worker_id=self.worker_id, cause=self._cause))
        manager.stop()
        manager.stop_workers()
        own = [*parts.tasks, *(task for _, task in manager.workers())]
        if any(self._runtime.is_current(task) for task in own):
            return
        with self._lock:
            first, self._stopping = not self._stopping, True
        grace = self.config.shutdown_grace if grace is None else grace
        if first:
            self._finish(parts, self._runtime.monotonic() + grace)
        else:
            # The first one asks the heartbeats to end when the grace is over. 1) Both wait for the same time; 2) this
            # one would return with threads still there that nobody names.
            self._stopped.wait(grace + self.config.request_timeout + 1.0)

    def _finish(self, parts: Parts, deadline: float) -> None:
        manager = parts.manager
        self._join(manager.tasks, deadline)
        # The manager may just have started one more lease worker; asked again once it has ended, none is missed.
        manager.stop_workers()
        left = self._join([task for _, task in manager.workers()], deadline)
        if left:
            self._forced.set()
        parts.renewer.stop()
        parts.reads.stop()
        # No user code runs in these: they get their moment also when a second signal ended all other waiting.
        soon = self._runtime.monotonic() + self.config.request_timeout + 0.5
        left += self._join(
            parts.tasks, soon if self.signals.count > 1 else max(deadline, soon), any_signals=True
        )
        self.metering.stop(_LAST_METRICS_WITHIN if self.signals.count < 2 else 0.0)
        self._stopped.set()
        self._standing.enter("stopped")
        if left:
            self._events.emit(ThreadsLeft(threads=tuple(left)))
        self._events.emit(WorkerStopped(worker_id=self.worker_id, cause=self._cause))
        for relay in self._relays:
            relay.drain(_LAST_EVENTS_WITHIN if self.signals.count < 2 else 0.0)
        if left and self._failure is None:
            why = "a second signal came" if self.signals.count > 1 else "the grace period was over"
            raise StopTimedOut(
                f"These threads were still busy when {why}: {', '.join(left)}. Their leases expire within "
                f"{self.config.failover_time:g} s. Do: raise shutdown_grace (shutdownGraceMillis), or make batches "
                "shorter (max_records, maxRecords); of a child that hangs timeoutInSeconds makes an end.",
                tuple(left),
            )

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every open lease in the table is owned and this worker's own have answered GetRecords.

        From then on nothing that is put is missed, even with start="LATEST". False if that did not come within
        `timeout` seconds, while there are no leases, and as soon as the worker stops or fails.
        """
        manager = self._manager
        if manager is None:
            return False
        until = None if timeout is None else self._runtime.monotonic() + timeout
        while not self._stop_asked.is_set():
            left = 0.1 if until is None else until - self._runtime.monotonic()
            # In steps: one event can be waited for, and a worker that fails is never ready.
            if manager.readiness.everywhere.wait(max(0.0, min(left, 0.1))):
                return not self._stop_asked.is_set()
            if left <= 0:
                return False
        return False

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the worker by itself, or None."""
        return self._failure

    @property
    def _cause(self) -> str:
        return type(self._failure).__name__ if self._failure else "asked to"

    def status(self) -> WorkerStatus:
        """How it stands at this moment: threads, leases, positions, lag, what fails. Cheap, from any thread."""
        return self._standing.status(self._failure)

    @property
    def leases(self) -> tuple[str, ...]:
        """Keys of the leases this worker holds or is about to take, sorted."""
        return tuple(sorted(worker.key for worker, _ in self._manager.workers())) if self._manager else ()

    @property
    def activities(self) -> dict[str, str]:
        """What is being done for each lease at this moment, by key: a state such as "waiting for parents", or the
        processor method that runs."""
        if self._manager is None:
            return {}
        # Asked once each: the call may return between two questions.
        states = ((worker.key, worker.busy, worker.state) for worker, _ in self._manager.workers())
        return {key: busy[0] if busy else state.value for key, busy, state in states}

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None and self._failure is not None:
            raise self._failure

    # -- parts -------------------------------------------------------------------------------------------------

    def _connect(self) -> Context | None:
        """Everything the threads share; None when stopped meanwhile."""
        table, stream = self._adapters or self._aws_adapters()
        trouble = self._standing.trouble = Trouble(self._events, self._runtime, self.config)
        self.metering.connect(self._cloudwatch, trouble)
        description = self._patiently(trouble, "finding the stream", lambda: readable(stream))
        if description is None:
            return None
        created = self._patiently(
            trouble, "preparing the lease table", lambda: table.prepare(create=self.config.create_table)
        )
        if created:
            self._events.emit(TableCreated(table=self.config.table))
        from pykcl import __version__

        token = self._runtime.token()
        gate = BufferGate(self.config.max_buffered_bytes, self._runtime)
        limit = self.config.max_records
        context = Context(
            config=self.config,
            worker_id=self.worker_id,
            process_token=token,
            version=__version__,
            identity=StreamIdentity(description, stream, self._runtime, self.config.table),
            table=table,
            stream=stream,
            runtime=self._runtime,
            events=self._events,
            meter=self.metering.meter,
            trouble=trouble,
            held=self.held,
            gone=GoneShards(stream, self._runtime),
            fleet=FleetWatch(self.config, self.worker_id, token, table, self._events, self._runtime),
            gate=gate,
            shared_reads=SharedReads(
                stream, self._runtime, gate, self.metering.meter, limit=limit, on_fatal=self._fail
            ),
            processor=self._processor,
            on_fatal=self._fail,
            has_taken=self._runtime.event(),
            has_read=self._runtime.event(),
        )
        scan = self._patiently(trouble, "reading the lease table", context.fleet.scan)
        if scan is None:
            return None
        context.identity.refuse_foreign_leases(scan.rows)
        context.fleet.join(scan.rows)
        return context

    def _aws_adapters(self) -> tuple[LeaseTable, Stream]:
        from pykcl.aws.clients import connect

        return connect(
            self.config, self._runtime, session=self._session, clients=self._clients, stop=self._forced
        )

    def _cloudwatch(self) -> Sender:
        from pykcl.aws.cloudwatch import cloudwatch_sender

        return cloudwatch_sender(self.config, self.worker_id, session=self._session, clients=self._clients)

    def _patiently(self, trouble: Trouble, what: str, attempt: Callable[[], Any]) -> Any:
        """`attempt()`, again while it fails for a time; None when the worker is stopped meanwhile."""
        failures = 0
        again_at = 0.0
        while not self._stop_asked.wait(0.0 if again_at == 0.0 else 0.1):
            if self._runtime.monotonic() < again_at:
                continue
            self._standing.starting.beat()
            try:
                result = attempt()
            except TemporaryError as error:
                failures += 1
                trouble.failed(what, error)
                pause = backoff(failures, self._runtime.random(), first=0.5, longest=5.0)
                again_at = self._runtime.monotonic() + pause
                self._standing.starting.rest(pause)
            else:
                trouble.worked(what)
                return result
        return None

    def _fail(self, error: Exception) -> None:
        """Called by any thread that found a reason to stop the whole worker. The first one counts.

        Nothing new begins from here on, and what runs is asked to end; `run` or the user's `stop` does the waiting.
        """
        with self._lock:
            if self._failure is None:
                self._failure = named(error, self.config)
            manager = self._manager
            begins = self._standing.enter("draining")
        self._stop_asked.set()
        if begins:
            self._events.emit(WorkerStopping(worker_id=self.worker_id, cause=self._cause))
        if manager is not None:
            manager.stop()
            manager.stop_workers()

    def _join(self, tasks: Sequence[Task], deadline: float, *, any_signals: bool = False) -> list[str]:
        """Wait for the tasks; the names of those still alive at the deadline, or (else) at a second signal."""
        for task in tasks:
            while task.is_alive() and (any_signals or self.signals.count < 2):
                left = deadline - self._runtime.monotonic()
                if left <= 0:
                    break
                task.join(min(left, 0.1))
        return [task.name for task in tasks if task.is_alive()]
