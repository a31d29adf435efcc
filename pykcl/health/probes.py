"""Liveness and readiness of a worker by its status, that status as JSON, and the sources of both.

Live means that the process should be left alone, ready that it does its work. A source is one worker here, or the
processes of a command that starts several.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pykcl import __version__
from pykcl.status import Activity, LoopStatus, WorkerState, WorkerStatus

STOPPING_TOO_LONG_AFTER = 30.0
"""Seconds beyond the grace period."""
_OF_ALL_LEASES = (Activity.MANAGING_LEASES, Activity.RENEWING_LEASES, Activity.HAVING_ITS_OWN_NAME)


@dataclass(frozen=True, slots=True)
class Verdict:
    """why: one line for each reason; empty where all is well."""

    why: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.why


def liveness(status: WorkerStatus | None) -> Verdict:
    """Bad: only a new process will help. None: there is no worker yet.

    AWS being out of reach, a record processor that hangs and a stop under way are no such reasons.
    """
    return Verdict(tuple(_why_dead(status))) if status is not None else Verdict()


def readiness(status: WorkerStatus | None) -> Verdict:
    """Bad: this worker does not do its part now, though it may again. None: there is no worker yet."""
    if status is None:
        return Verdict(("there is no worker yet",))
    return Verdict((*_why_dead(status), *_why_idle(status)))


def _why_dead(status: WorkerStatus) -> Iterator[str]:
    if status.state == "stopped":
        yield "the worker has stopped"
        return
    for loop in status.loops:
        if loop.state == "died":
            yield f"thread {loop.name} died of {loop.died_of or 'something unknown'}"
        elif loop.state == "ended" and status.state == "running":
            yield f"thread {loop.name} has ended though the worker runs"
        elif loop.state == "running" and loop.overdue > allowed(loop, status):
            yield f"thread {loop.name} should have begun its work {loop.overdue:.0f} s ago"
    too_long = status.shutdown_grace + STOPPING_TOO_LONG_AFTER
    if status.state == "draining" and status.state_age > too_long:
        yield f"the worker has been stopping for {status.state_age:.0f} s"


def allowed(loop: LoopStatus, status: WorkerStatus) -> float:
    """Seconds that it may be overdue: a failover time, and what one piece of its work may take."""
    return status.failover_time + loop.patience


def _why_idle(status: WorkerStatus) -> Iterator[str]:
    if status.state != "running":
        if status.state != "stopped":
            yield f"the worker is {status.state}"
        return
    if not status.initialized:
        yield "the first leases are not being read yet"
    lasting = [trouble for trouble in status.troubles if trouble.seconds >= status.failover_time]
    for trouble in lasting:
        if trouble.shard is None and trouble.what in _OF_ALL_LEASES:
            yield f"{trouble.what} has been failing for {trouble.seconds:.0f} s"
    doubted = [-(lease.lease_valid_for or 0.0) for lease in status.leases if lease.in_doubt]
    if doubted:
        yield (
            f"{len(doubted)} of {len(status.leases)} leases have been in doubt for up to {max(doubted):.0f} s: their "
            "heartbeats are not answered"
        )
    unread = {trouble.shard for trouble in lasting if trouble.what == Activity.READING}
    unsent = {trouble.shard for trouble in lasting if trouble.what == Activity.SENDING_DEAD_LETTERS}
    if status.leases and all(lease.shard in unread | unsent for lease in status.leases):
        also = ", or their dead letters are not kept" if unsent else ""
        yield f"none of {len(status.leases)} shards can be read{also}"


FORMAT = 1
"""Of the JSON; grows when a field goes or changes its meaning."""
_LIBRARIES = ("boto3", "botocore", "prometheus_client", "opentelemetry")


def report(status: WorkerStatus | None) -> dict[str, Any]:
    """Return the answer of /status: the fields of WorkerStatus by name; `worker` is null where there is none yet."""
    live, ready = liveness(status), readiness(status)
    behind = [
        lease.millis_behind_latest
        for lease in (status.leases if status else ())
        if lease.millis_behind_latest is not None
    ]
    return {
        "format": FORMAT,
        "live": live.is_good,
        "ready": ready.is_good,
        "why": list(dict.fromkeys((*live.why, *ready.why))),
        "max_millis_behind_latest": max(behind, default=None),
        "stalled": [lease.shard for lease in (status.leases if status else ()) if _is_stalled(lease)],
        "paused": [lease.shard for lease in (status.leases if status else ()) if lease.paused],
        "versions": versions(),
        "worker": asdict(status) if status is not None else None,
    }


def as_json(page: Mapping[str, Any]) -> bytes:
    """ASCII: whatever a shard or a worker calls itself, it is inert here."""
    return json.dumps(page, allow_nan=False).encode("ascii") + b"\n"


def versions() -> dict[str, str]:
    """Versions of Python, pykcl, and those libraries that are loaded."""
    found = {"pykcl": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def _is_stalled(lease: Any) -> bool:
    return lease.call is not None and lease.call.stalled


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
