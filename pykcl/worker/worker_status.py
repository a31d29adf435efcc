"""Snapshot of the worker: its state, and what all of its threads are doing."""

from __future__ import annotations

from typing import NamedTuple

from pykcl.config import Config
from pykcl.runtime import Runtime, Task
from pykcl.status import (
    WORKER_STATES,
    CallStatus,
    LeaseStatus,
    LoopStatus,
    WorkerState,
    WorkerStatus,
)
from pykcl.worker.failure_tracker import FailureTracker, LastErrors
from pykcl.worker.idle_reads import IdleShardPoller
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_renewer import LeaseRenewer
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.threads import ThreadHeartbeat

_LONGEST_ATTEMPT = 60.0
"""Seconds that one attempt to start may take: the whole lease table is scanned in one of them."""


class WorkerThreads(NamedTuple):
    """The parts of a running worker that its status is made of."""

    manager: LeaseManager
    renewer: LeaseRenewer
    reads: IdleShardPoller

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All threads but those of the leases."""
        return (*self.manager.tasks, *self.renewer.tasks, *self.reads.tasks)

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        return (*self.tasks, *(task for _, task in self.manager.workers()))

    @property
    def pulses(self) -> tuple[ThreadHeartbeat, ...]:
        return (self.manager.pulse, *self.renewer.pulses, *([self.reads.pulse] if self.reads.tasks else ()))


class WorkerStatusReporter:
    """Written by Worker; any thread may ask.

    starting: of the thread that starts the worker. errors: a listener. trouble, parts: once they are there.
    """

    def __init__(self, config: Config, worker_id: str, runtime: Runtime) -> None:
        self._config = config
        self._worker_id = worker_id
        self._runtime = runtime
        self.errors = LastErrors(runtime)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Reset the state before each run of the worker."""
        self._state: tuple[WorkerState, float] = ("new", self._runtime.monotonic())
        self.starting = ThreadHeartbeat("start", self._runtime, patience=_LONGEST_ATTEMPT)
        self.failures: FailureTracker | None = None
        self.parts: WorkerThreads | None = None

    def enter(self, state: WorkerState) -> bool:
        """Come into a later state of this run; whether it was not there before. Never back: a stop may overtake a
        start."""
        moves = WORKER_STATES.index(state) > WORKER_STATES.index(self._state[0])
        if moves:
            self._state = (state, self._runtime.monotonic())
            if state == "starting":
                self.starting.beat()
        return moves

    def status(self, failure: Exception | None) -> WorkerStatus:
        """Snapshot of the current state. No network calls, no long-held locks."""
        from pykcl import __version__

        config, now, (state, since), parts = self._config, self._runtime.monotonic(), self._state, self.parts
        readiness = parts.manager.readiness if parts else None
        return WorkerStatus(
            worker_id=self._worker_id,
            application=config.application,
            stream=config.stream,
            table=config.table,
            version=__version__,
            state=state,
            state_age=max(0.0, now - since),
            failure=type(failure).__name__ if failure else None,
            initialized=readiness.initialized if readiness else False,
            all_shards_assigned=readiness.everywhere.is_set() if readiness else False,
            failover_time=config.failover_time,
            shutdown_grace=config.shutdown_grace,
            loops=self._loops(now),
            leases=tuple(self._lease(worker, task, now) for worker, task in sorted_workers(parts)),
            troubles=self.failures.status(now) if self.failures else (),
            last_error=self.errors.of(None, now),
        )

    def _loops(self, now: float) -> tuple[LoopStatus, ...]:
        if self._state[0] == "starting":
            return (self.starting.status(now),)
        if self.parts is None:
            return ()
        return tuple(pulse.status(now) for pulse in self.parts.pulses)

    def _lease(self, worker: LeaseWorker, task: Task, now: float) -> LeaseStatus:
        # Each asked once: the thread goes on meanwhile.
        busy, held, behind = worker.busy, worker.scope.held, worker.scope.lag
        if (since := worker.unwritten_end) is not None:
            # Nobody reads its children meanwhile.
            behind = round(max(0.0, now - since) * 1000), now
        lease = held.lease if held else None
        call = None
        if busy is not None:
            seconds = max(0.0, now - busy[1])
            stalled = seconds >= self._config.processor_warn_after
            call = CallStatus(method=busy[0], seconds=seconds, stalled=stalled)
        return LeaseStatus(
            shard=worker.key,
            state=worker.state.value,
            thread=task.name,
            alive=task.is_alive(),
            checkpoint=str(lease.checkpoint) if lease else None,
            counter=lease.counter if lease else None,
            lease_valid_for=None if held is None else 0.0 if held.is_over else held.deadline - now,
            in_doubt=held is not None and held.is_in_doubt,
            has_answered=worker.scope.has_answered,
            millis_behind_latest=behind[0] if behind else None,
            lag_age=max(0.0, now - behind[1]) if behind else None,
            first_arrival_millis=worker.scope.first_arrival,
            call=call,
            last_error=self.errors.of(worker.key, now),
            subscribed_for=_ago(held.subscribed_at, now) if held else None,
            silent_for=_ago(held.silent_since, now) if held else None,
            paused=worker.scope.is_paused,
        )


def _ago(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def sorted_workers(parts: WorkerThreads | None) -> list[tuple[LeaseWorker, Task]]:
    """Return the lease workers by shard; none before the worker runs."""
    return sorted(parts.manager.workers(), key=lambda entry: entry[0].key) if parts else []
