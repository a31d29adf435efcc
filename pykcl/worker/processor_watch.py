"""Reports processor calls that do not return, and takes the lease from those that never seem to."""

from __future__ import annotations

from collections.abc import Iterable

from pykcl.events import ProcessorSlow
from pykcl.worker.context import Context
from pykcl.worker.lease_worker import LeaseWorker


class ProcessorWatch:
    """Used by the LeaseManager's thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: set[tuple[str, float]] = set()

    def look(self, workers: Iterable[LeaseWorker], now: float) -> None:
        """Each call is reported once, after `processor_warn_after`; `processor_timeout` costs it the lease."""
        config = self._context.config
        current: set[tuple[str, float]] = set()
        for worker in workers:
            busy = worker.busy
            if busy is None or now - busy[1] < config.processor_warn_after:
                continue
            method, since = busy
            current.add((worker.key, since))
            if (worker.key, since) not in self._told:
                self._context.events.emit(ProcessorSlow(shard=worker.key, method=method, seconds=now - since))
            if config.processor_timeout is not None and now - since >= config.processor_timeout:
                worker.abandon(
                    f"{method} did not return within processor_timeout={config.processor_timeout:g} s"
                )
        self._told = current
