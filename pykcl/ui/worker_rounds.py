"""Asks the workers' own pages again and again, in a thread of its own: one that does not answer delays nothing else."""

from __future__ import annotations

from pykcl.operate.worker_pages import WorkerPage, WorkerPages
from pykcl.runtime import Runtime, Task

WORKERS_PER_SECOND = 8.0


class WorkerRounds:
    """latest: of each worker its last answer, in order; nothing of one that was not waited for to the end yet."""

    def __init__(self, pages: WorkerPages, every: float, runtime: Runtime) -> None:
        self._pages, self._runtime = pages, runtime
        self._every = max(every, len(pages.endpoints) / WORKERS_PER_SECOND)
        self._lock = runtime.lock()
        self._over = runtime.event()
        self._latest: dict[int, list[WorkerPage]] = {}

    def start(self) -> Task:
        return self._runtime.spawn("pykcl-ui-workers", self._run)

    def stop(self) -> None:
        self._over.set()

    def latest(self) -> list[WorkerPage]:
        with self._lock:
            return [page for number in sorted(self._latest) for page in self._latest[number]]

    def _run(self) -> None:
        while not self._over.is_set():
            began = self._runtime.monotonic()
            self._pages.ask(on_answer=self._take)
            self._over.wait(max(0.1, self._every - (self._runtime.monotonic() - began)))

    def _take(self, number: int, pages: list[WorkerPage]) -> None:
        with self._lock:
            self._latest[number] = pages
