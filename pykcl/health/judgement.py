"""What a status means: whether the process should be left alone, and whether it does its work. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pykcl.status import Activity, LoopStatus, WorkerStatus

STOPPING_TOO_LONG_AFTER = 30.0
"""Seconds beyond the grace period."""
_OF_ALL_LEASES = (Activity.MANAGING_LEASES, Activity.RENEWING_LEASES)


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
    if status.state == "draining" and status.state_for > too_long:
        yield f"the worker has been stopping for {status.state_for:.0f} s"


def allowed(loop: LoopStatus, status: WorkerStatus) -> float:
    """Seconds that it may be overdue: a fail-over time, and what one piece of its work may take."""
    return status.failover_time + loop.patience


def _why_idle(status: WorkerStatus) -> Iterator[str]:
    if status.state != "running":
        if status.state != "stopped":
            yield f"the worker is {status.state}"
        return
    if not status.has_joined:
        yield "the first leases are not being read yet"
    lasting = [trouble for trouble in status.troubles if trouble.seconds >= status.failover_time]
    for trouble in lasting:
        if trouble.shard is None and trouble.what in _OF_ALL_LEASES:
            yield f"{trouble.what} has been failing for {trouble.seconds:.0f} s"
    unread = {trouble.shard for trouble in lasting if trouble.what == Activity.READING}
    if status.leases and all(lease.shard in unread for lease in status.leases):
        yield f"none of {len(status.leases)} shards can be read"
