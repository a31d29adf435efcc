"""Worker: the composition root. Builds the adapters, starts and stops the threads in order, handles signals."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from pykcl.config import Config
from pykcl.errors import PyKclError, StopTimedOut
from pykcl.event_dispatch import EventFan, Listener, Relay
from pykcl.events import (
    LeasesInFile,
    ProgramEnded,
    StopReason,
    ThreadsNotStopped,
    WholeBatchesAreGivenUp,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pykcl.interfaces import DeadLetterDestination, LeaseTable, Stream
from pykcl.metrics.cloudwatch import Sender
from pykcl.metrics.host_cpu import HostCpu, HostSource
from pykcl.metrics.meter import MetricsSink
from pykcl.metrics.setup import MetricsPipeline, given_sinks
from pykcl.model.dead_letter import Address
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Event, SystemRuntime, Task
from pykcl.status import WorkerStatus
from pykcl.stores import SQLiteLeaseTable
from pykcl.worker.collector import tune_process
from pykcl.worker.context import Context
from pykcl.worker.failure_tracker import FailureTracker, named, names_of
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_renewer import LeaseRenewer
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.measurements import RenewalRounds
from pykcl.worker.options import (
    DeadLetters,
    Surroundings,
    WorkerOptions,
    WorkerSeams,
    clients_with,
    config_of,
    given_destination,
    given_listeners,
)
from pykcl.worker.pausing import Pauses
from pykcl.worker.processor_factory import checked_processor
from pykcl.worker.signals import OwnProcess, StopSignals, end_with_the_program, live_with_the_process
from pykcl.worker.starting import Start
from pykcl.worker.threads import Helpers
from pykcl.worker.turns import CallThread, is_called_by, turns_of
from pykcl.worker.worker_status import WorkerStatusReporter, WorkerThreads

if TYPE_CHECKING:
    # Part of what a type checker knows by itself: it need not be installed, and no program imports it.
    from typing_extensions import Unpack


_LAST_METRICS_WITHIN = _LAST_EVENTS_WITHIN = 2.0
"""Seconds a stop waits for the last metrics, and for a listener to have the last events, behind everything else."""


class Worker:
    """One member of the fleet that reads a stream.

    processor: a RecordProcessor subclass or a zero-argument factory; one instance is made per lease.
    session: a boto3.Session; clients: {"kinesis": …, "dynamodb": …}, and "cloudwatch" where metrics go there; by
    default boto3's own chain is used. lease_table: in place of a table in DynamoDB, for the workers of one machine.
    on_event: called with every event, each in a thread of its own, where it may
    wait and raise. metrics_sinks: take what is measured, besides those that the option `metrics` names.
    dead_letters: the option of that name, or what keeps the letters: a DeadLetterDestination, or a function of a
    sequence of DeadLetter, called in the thread of the shard, that returns when they are kept.
    options: the fields of Config by name; or pass a whole `config`.

    Raises ConfigError for options that are unknown or contradict each other.
    """

    _seams = WorkerSeams()

    @overload
    def __init__(self, application: str, *, stream: str, **options: Unpack[WorkerOptions]) -> None: ...
    @overload
    def __init__(
        self, application: str | None = None, *, config: Config, **options: Unpack[Surroundings]
    ) -> None: ...
    def __init__(
        self,
        application: str | None = None,
        *,
        processor: ProcessorFactory,
        config: Config | None = None,
        session: Any = None,
        clients: Mapping[str, Any] | None = None,
        lease_table: SQLiteLeaseTable | None = None,
        on_event: Listener | Sequence[Listener | None] | None = None,
        metrics_sinks: Sequence[MetricsSink] | None = None,
        dead_letters: DeadLetters | None = None,
        **options: Any,
    ) -> None:
        self.config = config_of(application, config, options, dead_letters)
        self._dead_letters = given_destination(self.config, dead_letters)
        self._processor = checked_processor(processor)
        self._turns = turns_of(processor)
        self._runtime = self._seams.runtime or SystemRuntime()
        self._session, self._adapters, self._lease_table = session, self._seams.adapters, lease_table
        self._clients = clients_with(lease_table, clients, self.config)
        self._listeners = given_listeners(on_event)
        self._pauses = Pauses()
        self._metering = MetricsPipeline(self.config, self._runtime, given_sinks(metrics_sinks))
        self._made_in = OwnProcess()
        self._belong_to_this_process()
        if self._seams.runtime is None:
            live_with_the_process(self)

    def _belong_to_this_process(self) -> None:
        """Make all that one process alone may have; in each process that is forked, anew.

        1) A server loads the program, and forks its processes; 2) each starts the worker that it has got. Under one
        name each would take the leases of the others for its own. And what a thread had locked at the fork, or was to
        do, nobody unlocks or does in the new process.
        """
        self.worker_id = (
            self.config.worker_id or f"{socket.gethostname()}:{os.getpid()}:{self._runtime.token()}"
        )
        self._metering.begin_anew(self.worker_id)
        self._reporter = WorkerStatusReporter(self.config, self.worker_id, self._runtime)
        self._relays = [Relay(listener, self._runtime) for listener in self._listeners]
        own = (self._metering.meter.hear, self._reporter.errors.on_event)
        self._events = EventFan(
            (*self._seams.listeners, *own, *(relay.hear for relay in self._relays)),
            names_of(self.config),
            self._runtime.monotonic,
        )
        self._held = HeldLeases(self._runtime, in_time=self.config.request_timeout / 2)
        self._lock = self._runtime.lock()
        self._be_new()

    @classmethod
    def _with(cls, seams: WorkerSeams, application: str | None = None, **arguments: Any) -> Worker:
        """Create a worker with these seams, for simulations, tests and tools of pykcl."""
        worker = cls.__new__(cls)
        worker._seams = seams
        cls.__init__(worker, application, **arguments)
        return worker

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, *, tune_gc: bool = True) -> None:
        """Work until `stop()`, SIGTERM or SIGINT, or until every shard was read as far as the option `until` says; then
        finish, checkpoint and release.

        A second signal, a second later or more, does not wait for calls of the processor that run.

        A `lambda_processor` whose handler is not thread-safe is called in the thread that calls this. In the main
        thread a call that runs longer than the stop waits is broken off by an exception; in another one `run` returns
        when the call does.

        tune_gc: once in a process, after the start, exclude the objects that exist by then from garbage collection
        (`gc.freeze`), and collect when there are 50,000 new ones instead of 700. On Linux with glibc also let freed
        blocks of 4 MiB or more return to the system at once, unless MALLOC_MMAP_THRESHOLD_ is set.

        Raises what stopped it: SetupError (or WrongStream, TableGone…), ProcessorFailed, StopTimedOut, InternalError.
        """
        # Here, too: a signal that came between `heard` and `start` would be forgotten by the latter.
        self._begin_anew(starts=False)
        with ExitStack() as held:
            calls = None if self._turns is None else held.enter_context(self._turns.served(self._runtime))
            held.enter_context(
                self._signals.heard() if calls is None else self._signals.heard(calls.on_signal)
            )
            join = self.join if calls is None else self._joined_beside(calls)
            self.start()
            if tune_gc:
                tune_process()
            join()

    def _joined_beside(self, calls: CallThread) -> Callable[[], object]:
        """Begin to `join` in another thread. Return a function that makes the calls of the handler in this one, until
        that has ended, and raises what it has raised."""
        errors: list[BaseException] = []

        def join() -> None:
            try:
                self.join()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
            finally:
                calls.end(self._runtime)

        task = self._runtime.spawn("pykcl-run", join)

        def serve() -> None:
            calls.serve()
            # Also for the last signal that it sends to this thread: it must not come once nobody takes signals.
            task.join()
            if errors:
                raise errors.pop()

        return serve

    def join(self, timeout: float | None = None) -> bool:
        """Wait until something stops the worker, then do what `stop()` does, and raise its failure as `run` does.

        False if nothing stopped it within `timeout` seconds: it goes on.
        """
        asked = self._stop_asked
        if not asked.wait(timeout):
            return False
        self._end_run(asked)
        if self._failure is not None:
            raise self._failure
        return True

    def start(self) -> None:
        """Connect, check the stream and the table, and start the threads. Raises SetupError and its kin.

        After a stop that left no thread behind the worker can be started again.

        Unlike `run`, it leaves the garbage collector as it is. A program that has created all that it keeps may call
        `gc.collect()`, `gc.freeze()` and `gc.set_threshold(50_000)` after the start: a full collection then walks
        75,000 objects fewer, and collections are rarer while the program keeps the records of a batch.
        """
        if self._seams.runtime is None:
            end_with_the_program()
        self._begin_anew(starts=True)
        self._reporter.enter("starting")
        try:
            context = self._connect()
            if context is None or not self._start_threads(context):
                return
        except PyKclError as error:
            named(error, self.config)
            raise
        finally:
            if self._manager is None:
                # Nobody need wait for it any longer, and the next start is a new one.
                self._stop_asked.set()
                self._is_over = True
            self._is_starting = False
        if self.config.max_attempts is not None and not self.config.bisect:
            context.events.emit(WholeBatchesAreGivenUp(max_attempts=self.config.max_attempts))
        if self._lease_table is not None:
            context.events.emit(LeasesInFile(worker_id=self.worker_id, store=str(self._lease_table)))
        context.events.emit(
            WorkerStarted(
                worker_id=self.worker_id,
                application=self.config.application,
                stream_arn=context.identity.description.arn,
                table=self.config.table,
                failover_time=self.config.failover_time,
            )
        )

    def _begin_anew(self, *, starts: bool) -> None:
        """Return to the state before a run, after it.

        Raises PyKclError while anything of it is left, or another thread starts it.
        """
        with self._lock:
            if self._is_starting:
                raise PyKclError(
                    "Another thread is still starting this worker. Do: call start() once, and wait until it returns."
                )
            if self._is_over:
                self._refuse_what_is_left()
                self._reporter.begin_anew()
                self._be_new()
            elif self._manager is not None:
                raise PyKclError("This worker still runs. Do: stop() it first, or make a new Worker.")
            # In the same step: of two threads that start it at once, each would find it new.
            self._is_starting = starts

    def _refuse_what_is_left(self) -> None:
        left = [task.name for task in self._parts.all_tasks if task.is_alive()] if self._parts else []
        if left:
            raise PyKclError(
                f"Threads of this worker's last run are still busy: {', '.join(left)}. Do: make a new Worker."
            )

    def _be_new(self) -> None:
        # Set by `stop`, by a failure and by signals, whose handlers may set no other event.
        self._stop_asked = self._runtime.signal_event()
        self._stopped = self._runtime.event()
        self._forced = self._runtime.event()
        self._failure: Exception | None = None
        self._manager: LeaseManager | None = None
        self._parts: WorkerThreads | None = None
        self._signals = StopSignals(self._stop_asked.set, self._runtime.monotonic)
        self._helpers = Helpers(self._runtime, self._fail)
        self._stopping = self._is_over = self._is_starting = self._is_run_over = False

    def _start_threads(self, context: Context) -> bool:
        """Start manager and renewer, unless `stop` came first; under the lock, so that it sees all or nothing."""
        name = "pykcl"
        with self._lock:
            if self._stop_asked.is_set():
                return False
            renewer = LeaseRenewer(
                context.held,
                context.runtime,
                context.failures,
                name=name,
                on_fatal=self._fail,
                rounds=RenewalRounds(
                    context.meter,
                    context.runtime,
                    self.config.renew_interval,
                    is_pushed=context.consumer is not None,
                ),
            )
            self._manager = LeaseManager(context, name=name)
            self._parts = self._reporter.parts = WorkerThreads(self._manager, renewer, context.idle_poller)
            self._reporter.enter("running")
            self._metering.start(f"{name}-metrics")
            for relay in self._relays:
                relay.keep(True)
            renewer.start()
            context.idle_poller.start()
            self._manager.start()
        return True

    def stop(self, grace: float | None = None) -> None:
        """Stop in order: no new leases, running batches end, last checkpoints, releases, then heartbeats.

        grace: seconds to wait, by default `shutdown_grace`. Raises StopTimedOut with the names of threads that were
        still busy; their leases expire. Called again, it waits for the first call and raises nothing; called before
        `start`, that start will start nothing. Called by a processor it only asks: the worker cannot wait for the very
        batch that stops it.
        """
        self._end_run(self._stop_asked, grace)

    def _end_run(self, asked: Event, grace: float | None = None) -> None:
        """Stop the run that this event belongs to, and no later one.

        1) Two threads are about to stop a worker; 2) one of them has done so, and starts it again; 3) the other one
        would stop, or take for its own, a run that nobody wants to end.
        """
        asked.set()
        with self._lock:
            if asked is not self._stop_asked:
                return
            manager, parts, stopped = self._manager, self._parts, self._stopped
            begins = self._reporter.enter("draining" if manager else "stopped")
            is_own = is_called_by(self._runtime)
            is_own |= parts is not None and any(map(self._runtime.is_current, parts.all_tasks))
            first = parts is not None and not is_own and not self._stopping
            self._stopping |= first
        if manager is None or parts is None:
            return
        if begins:
            self._events.emit(
                WorkerStopping(worker_id=self.worker_id, cause=self._cause, reason=self._stop_reason)
            )
        grace = self.config.shutdown_grace if grace is None else grace
        deadline = self._runtime.monotonic() + grace
        # Acks are waited for while there is time left to write what they come to, and to release the leases.
        acks_until = deadline - min(self.config.write_timeout, grace / 5)
        manager.stop()
        manager.stop_workers(acks_until)
        if is_own:
            return
        if first:
            self._finish(parts, deadline, acks_until)
        else:
            # The first one asks the heartbeats to end when the grace is over. 1) Both wait for the same time; 2) this
            # one would return with threads still there that nobody names.
            stopped.wait(grace + self.config.request_timeout + 1.0)

    def _finish(self, parts: WorkerThreads, deadline: float, acks_until: float) -> None:
        manager = parts.manager
        self._join(manager.tasks, deadline, *(worker for worker, _ in manager.workers()))
        # The manager may just have started one more lease worker; asked again once it has ended, none is missed.
        manager.stop_workers(acks_until)
        left = [name for worker, task in manager.workers() for name in self._join([task], deadline, worker)]
        was_forced = self._is_forced and any(worker.busy for worker, _ in manager.workers())
        if left:
            self._forced.set()
        elif not was_forced:
            manager.release_assigned()
        parts.renewer.stop()
        parts.reads.stop()
        # No user code runs in these: they get their moment also when a second signal ended the wait for user code.
        soon = self._runtime.monotonic() + self.config.request_timeout + 0.5
        left += self._join(parts.tasks, soon if was_forced else max(deadline, soon))
        left += self._helpers.close(soon if left else max(deadline, soon))
        self._metering.stop(0.0 if self._is_forced else _LAST_METRICS_WITHIN)
        self._reporter.enter("stopped")
        # From here on another thread may start the next run.
        failure, cause, is_forced = self._failure, self._cause, self._is_forced
        self._is_over = True
        self._stopped.set()
        if left:
            self._events.emit(ThreadsNotStopped(threads=tuple(left)))
        self._events.emit(WorkerStopped(worker_id=self.worker_id, cause=cause))
        for relay in self._relays:
            relay.keep(False)
            relay.drain(0.0 if is_forced else _LAST_EVENTS_WITHIN)
        if left and failure is None:
            why = "a second signal came" if was_forced else "the grace period was over"
            raise StopTimedOut(
                f"These threads were still busy when {why}: {', '.join(left)}. Their leases expire within "
                f"{self.config.failover_time:g} s. Do: raise shutdown_grace (shutdownGraceMillis), or make batches "
                "shorter (max_records, maxRecords); of a child that hangs timeoutInSeconds makes an end.",
                tuple(left),
            )

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every open lease in the table is owned and this worker's own have answered GetRecords.

        From then on nothing that is put is missed, even with initial_position="LATEST". False if that did not come
        within `timeout` seconds, while there are no leases, and as soon as the worker stops or fails. A start that
        comes in another thread meanwhile is waited for, after a stop only where there is a `timeout`.
        """
        until = None if timeout is None else self._runtime.monotonic() + timeout
        # Of a run that was stopped; not for ever, as nobody may mean to start it again.
        is_over = until is not None and self._is_over and self._manager is not None
        while is_over or not self._stop_asked.is_set():
            left = 0.1 if until is None else until - self._runtime.monotonic()
            # In steps: one event can be waited for, and a worker that fails is never ready.
            manager, step = self._manager, max(0.0, min(left, 0.1))
            if is_over:
                self._runtime.event().wait(step)
                is_over = self._is_over
            elif manager is None:
                self._stop_asked.wait(step)
            elif manager.readiness.everywhere.wait(step):
                return not self._stop_asked.is_set()
            if left <= 0:
                return False
        return False

    @property
    def initialized(self) -> bool:
        """True if it has done its part at least once, or stands by as a spare worker; as in `WorkerStatus`."""
        return self._manager is not None and self._manager.readiness.initialized

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the worker by itself, or None."""
        return self._failure

    @property
    def _stop_reason(self) -> StopReason:
        unfailed = StopReason.RUN_OVER if self._is_run_over else StopReason.ASKED
        return StopReason.FAILED if self._failure else unfailed

    @property
    def _cause(self) -> str:
        return type(self._failure).__name__ if self._failure else self._stop_reason.value

    def status(self) -> WorkerStatus:
        """Snapshot of the current state: threads, leases, positions, lag, failures. Cheap, from any thread."""
        return self._reporter.status(self._failure)

    def prometheus_page(self) -> tuple[bytes, str] | None:
        """Return the page for a scrape and its content type; None unless `metrics` names "prometheus"."""
        return self._metering.exposition()

    def prometheus_collector(self) -> Any:
        """Return a collector for a registry of prometheus_client; None unless `metrics` names "prometheus"."""
        return self._metering.prometheus

    @property
    def leases(self) -> tuple[str, ...]:
        """Keys of the leases this worker holds or is about to take, sorted."""
        return tuple(sorted(worker.key for worker, _ in self._manager.workers())) if self._manager else ()

    def pause(self, shards: Iterable[str] | None = None) -> None:
        """Deliver and read nothing more of these shards behind the batch that runs, and keep their leases.

        None: of all shards, and of those that come, until `resume()`, also over a stop. Otherwise the pause ends with
        the lease: a shard that is lost and taken again is not paused. Shards that are not in `leases` are left out.

        It is of this worker: another owner of the lease reads. Does not wait; any thread, processor and signal handler
        may call it. Raises ConfigError for what is no collection of texts.
        """
        self._pauses.set(shards, True)

    def resume(self, shards: Iterable[str] | None = None) -> None:
        """Go on with these shards within a second, each behind its last batch that returned. None: with all of them.

        Is called, and raises, as `pause`.
        """
        self._pauses.set(shards, False)

    @property
    def paused(self) -> frozenset[str]:
        """Those of `leases` that are paused."""
        return self._pauses.among(self.leases)

    @property
    def activities(self) -> dict[str, str]:
        """Current activity of each lease, by key: a state such as "waiting for parents", the
        processor method that runs, or "acks" while it waits for those."""
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
        failures = self._reporter.failures = FailureTracker(
            self._events, self._runtime, self.config, lambda: len(self._held.snapshot())
        )
        self._metering.connect(self._cloudwatch, failures)
        return Start(
            config=self.config,
            worker_id=self.worker_id,
            table=table,
            stream=stream,
            runtime=self._runtime,
            events=self._events,
            meter=self._metering.meter,
            failures=failures,
            held=self._held,
            processor=self._processor,
            on_fatal=self._fail,
            on_run_over=self._run_is_over,
            pulse=self._reporter.starting,
            stop_asked=self._stop_asked,
            cpu=HostCpu(self._host(), self._runtime),
            dead_letters=self._destination(),
            helpers=self._helpers,
            pauses=self._pauses,
        ).context()

    def _host(self) -> HostSource | None:
        """Return the host that this process runs on; None for a simulation."""
        if self._seams.host is not None or self._adapters is not None:
            return self._seams.host
        from pykcl.aws.host import SystemHost

        return SystemHost(self._runtime)

    def _destination(self) -> DeadLetterDestination | None:
        """Return the destination of dead letters; None: they are discarded, or there are none."""
        text = self.config.dead_letters
        if self._dead_letters is not None or text in (None, "discard"):
            return self._dead_letters
        from pykcl.dead_letters import open_destination

        return open_destination(
            Address.parse(text),
            self.config,
            self._runtime,
            worker_id=self.worker_id,
            session=self._session,
            clients=self._clients,
        )

    def _aws_adapters(self) -> tuple[LeaseTable, Stream]:
        from pykcl.aws.clients import connect, drop_connections

        if not self._made_in.is_this:
            drop_connections(self._clients)
        return connect(
            self.config, self._runtime, session=self._session, clients=self._clients, stop=self._forced
        )

    def _cloudwatch(self) -> Sender:
        from pykcl.aws.cloudwatch import cloudwatch_sender

        return cloudwatch_sender(self.config, self.worker_id, session=self._session, clients=self._clients)

    def _fail(self, error: Exception) -> None:
        """Called by any thread that found a reason to stop the whole worker. The first one counts."""
        self._begin_to_end(error)

    def _run_is_over(self) -> None:
        """Called once every shard was read as far as `until`."""
        self._is_run_over = True
        self._begin_to_end()

    @property
    def _is_left(self) -> bool:
        """True for a worker that runs."""
        return (self._manager is not None or self._is_starting) and not self._is_over

    def _end_with_program(self, signals: StopSignals) -> None:
        """Begin to stop, as the program has ended. signals: further requests to stop."""
        self._events.emit(ProgramEnded(worker_id=self.worker_id))
        self._signals = signals
        self._begin_to_end()

    def _begin_to_end(self, failure: Exception | None = None) -> None:
        """Let nothing new begin, and ask what runs to end; `run` or the user's `stop` does the waiting."""
        with self._lock:
            if failure is not None and self._failure is None:
                self._failure = named(failure, self.config)
            manager = self._manager
            begins = self._reporter.enter("draining")
        self._stop_asked.set()
        if begins:
            self._events.emit(
                WorkerStopping(worker_id=self.worker_id, cause=self._cause, reason=self._stop_reason)
            )
        if manager is not None:
            manager.stop()
            manager.stop_workers()

    @property
    def _is_forced(self) -> bool:
        return self._signals.count > 1

    def _join(self, tasks: Sequence[Task], deadline: float, *workers: LeaseWorker) -> list[str]:
        """Wait for the tasks; return the names of those still alive at the deadline, or at a second signal while the
        application's code runs in one of these workers."""
        for task in tasks:
            while task.is_alive() and not (self._is_forced and any(worker.busy for worker in workers)):
                left = deadline - self._runtime.monotonic()
                if left <= 0:
                    break
                task.join(min(left, 0.1))
        return [task.name for task in tasks if task.is_alive()]


def run_together(workers: Sequence[Worker], *, tune_gc: bool = True) -> None:
    """Run several workers in this process, as `Worker.run` does one; stop all when one of them fails or is stopped.

    One that has come to its `until` ends alone. A signal is one for each of them. Raises what stopped the first one.
    """
    if len(workers) == 1:
        workers[0].run(tune_gc=tune_gc)
        return
    runtime = SystemRuntime()
    news = runtime.signal_event()
    started, ended, errors = list[Worker](), list[Worker](), list[BaseException]()
    signals = StopSignals(news.set, runtime.monotonic)

    def work(worker: Worker) -> None:
        try:
            worker.start()
            started.append(worker)
            news.set()
            worker.join()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the caller
            errors.append(error)
        finally:
            ended.append(worker)
            news.set()

    with signals.heard():
        tasks = [
            runtime.spawn(f"pykcl-run-{worker.config.stream_name}", partial(work, worker))
            for worker in workers
        ]
        while True:
            # Before everything is read: 1) all is read; 2) news comes; 3) it is cleared, and waited for.
            news.clear()
            must_stop = bool(errors) or not all(
                worker._stop_reason is StopReason.RUN_OVER for worker in ended
            )
            times = max(signals.count, int(must_stop))
            if len(ended) == len(workers):
                break
            for worker in workers if times else ():
                worker._signals.ask(times)
            if tune_gc and len(started) == len(workers):
                tune_process()
                tune_gc = False
            news.wait()
        for task in tasks:
            task.join()
    if errors:
        raise errors[0]
