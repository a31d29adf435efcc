"""Reports processor calls that do not return, and takes the lease from those that never seem to."""

from __future__ import annotations

from collections.abc import Iterable

from pykcl.events import LossReason, ProcessorReturned, ProcessorSlow
from pykcl.mistake_events import ProcessorGivenUp
from pykcl.runtime import Task
from pykcl.worker.context import Context
from pykcl.worker.held_leases import Loss
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.processor_calls import CALLS_THE_PROCESSOR

_MOST_FRAMES = 30


class ProcessorWatch:
    """Used by the LeaseManager's thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: dict[tuple[str, float], str] = {}

    def look(self, workers: Iterable[tuple[LeaseWorker, Task]], now: float) -> None:
        """Each call is reported once, after `processor_warn_after`, and again when it returned; `processor_timeout`
        costs it the lease, and that is told, too: the lease worker itself tells of the loss when the call returns, and
        that may never be."""
        config = self._context.config
        current: dict[tuple[str, float], str] = {}
        for worker, task in workers:
            busy = worker.busy
            if busy is None or now - busy[1] < config.processor_warn_after:
                continue
            method, since = busy
            current[worker.key, since] = method
            if (worker.key, since) not in self._told:
                self._report(worker.key, method, now - since, task)
            if config.processor_timeout is not None and now - since >= config.processor_timeout:
                self._give_up(worker, method, now - since, config.processor_timeout)
        for (shard, since), method in self._told.items():
            if (shard, since) not in current:
                self._context.events.emit(ProcessorReturned(shard=shard, method=method, seconds=now - since))
        self._told = current

    def _give_up(self, worker: LeaseWorker, method: str, seconds: float, timeout: float) -> None:
        loss = Loss.of(LossReason.STALLED, method=method, timeout=timeout)
        if worker.abandon(loss):
            event = ProcessorGivenUp(shard=worker.key, method=method, seconds=seconds, cause=loss.cause)
            self._context.events.emit(event)

    def _report(self, shard: str, method: str, seconds: float, task: Task) -> None:
        stack = self._context.runtime.stack(task, below=CALLS_THE_PROCESSOR)[-_MOST_FRAMES:]
        self._context.events.emit(
            ProcessorSlow(shard=shard, method=method, seconds=seconds, thread=task.name, stack=stack)
        )
