"""Sources of health: one worker here, or the processes of a command that starts several. As values, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pykcl.health.probes import Verdict, liveness, readiness, report
from pykcl.status import WorkerState, WorkerStatus


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The verdicts of one moment."""

    live: Verdict
    ready: Verdict
    state: WorkerState


class HealthSource(Protocol):
    """A source of health. Called again and again, from several threads."""

    def check(self) -> HealthCheck: ...

    def report(self) -> dict[str, Any]:
        """Return the content of /status, to be written as JSON."""

    def exposition(self) -> tuple[bytes, str] | None:
        """Return the page for Prometheus and its content type; None where such metrics are off."""


class Watched(Protocol):
    """A worker, as far as its health is concerned: pykcl.Worker is one."""

    def status(self) -> WorkerStatus: ...

    def prometheus_page(self) -> tuple[bytes, str] | None: ...


class WorkerHealth:
    """The health of one worker. worker: called each time, as the worker may be created later."""

    def __init__(self, worker: Callable[[], Watched | None]) -> None:
        self._worker = worker

    def check(self) -> HealthCheck:
        status = self._status()
        return HealthCheck(liveness(status), readiness(status), status.state if status is not None else "new")

    def report(self) -> dict[str, Any]:
        return report(self._status())

    def exposition(self) -> tuple[bytes, str] | None:
        worker = self._worker()
        return worker.prometheus_page() if worker is not None else None

    def _status(self) -> WorkerStatus | None:
        worker = self._worker()
        return worker.status() if worker is not None else None
