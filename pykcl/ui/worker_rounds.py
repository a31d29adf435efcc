"""Asks the workers' own pages again and again, in a thread of its own: one that does not answer delays nothing else."""

from __future__ import annotations

from pykcl.operate.worker_pages import WorkerPage, WorkerPages
from pykcl.runtime import Runtime, Task

WORKERS_PER_SECOND = 8.0


class WorkerRounds:
    """latest: the answers of the last whole round."""

    def __init__(self, pages: WorkerPages, every: float, runtime: Runtime) -> None:
        self._pages, self._runtime = pages, runtime
        self._every = max(every, len(pages.endpoints) / WORKERS_PER_SECOND)
        self._lock = runtime.lock()
        self._over = runtime.event()
        self._latest: list[WorkerPage] = []
        self._asked_at = 0.0

    def start(self) -> Task:
        return self._runtime.spawn("pykcl-ui-workers", self._run)

    def stop(self) -> None:
        self._over.set()

    def latest(self) -> list[WorkerPage]:
        with self._lock:
            return list(self._latest)

    def _run(self) -> None:
        while not self._over.is_set():
            began = self._runtime.monotonic()
            found = self._pages.ask()
            with self._lock:
                self._latest = found
            self._over.wait(max(0.1, self._every - (self._runtime.monotonic() - began)))
