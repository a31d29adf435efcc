"""Membership in a fleet that a leader of KCL 3.x runs: who may join, what is adopted, and what is rescued.

In KCL 3.x's own mode one worker holds a lock and assigns every lease; the others find their leases in the index of
owners, and report metrics, without which nothing is assigned to them. Metrics come last at the start and end first at
the stop: whoever reports and does not query its leases holds up its shards for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Final, Literal, TypeGuard

from pykcl.model.fleet_rows import CPU, WorkerMetrics, metrics_of
from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_item import (
    LEADER_KEY,
    MIGRATION_KEY,
    TABLE_MIGRATION_KEY,
    TABLE_MIGRATION_KIND,
    is_lease_key,
)
from pykcl.planning.fleet_protocol import COMPATIBLE_VERSIONS, NATIVE_VERSIONS, Fleet, is_of_pykcl
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_assignment import Fleet as Assignment
from pykcl.planning.lease_view import LeaseView

FleetMode = Literal["auto", "2x", "3x"]
WorkerMetricsKind = Literal["auto", "cpu", "throughput"]
"""The options, as in `pykcl.config`, which lies below."""

RESCUE_AFTER: Final = 3
"""Failover times that a lease must have stood still before a follower takes it from a fleet without a leader."""
_SOON, _LATER, _LIVELY_FOR = 2.0, 5.0, 30.0


_FLEET_KEYS = frozenset({LEADER_KEY, MIGRATION_KEY, TABLE_MIGRATION_KEY})


def why_not_to_follow(
    fleet: Fleet, mode: FleetMode, rows: Iterable[Row], *, worker: str = "", has_owner_index: bool
) -> str:
    """Return why a worker must not join a fleet in KCL 3.x's own mode as a follower; "" where it may.

    rows: of a whole scan. has_owner_index: the lease table has KCL 3.x's index. worker: its identifier, which becomes
    the key of its metrics: 1) it is that of a shard, or of the lock, and there is no such row yet; 2) the metrics are
    put there; 3) nobody can put the lease, or take the lock.
    """
    if worker in _FLEET_KEYS or is_lease_key(worker):
        return f"its worker identifier is the name of a row of others ({worker})"
    if mode == "2x":
        return 'fleet_mode="2x" wants the protocol of KCL 2.x'
    if fleet.client_version is None:
        return "no client version says by which protocol the fleet works"
    if fleet.client_version not in NATIVE_VERSIONS | COMPATIBLE_VERSIONS:
        return f"{fleet.client_version} is later than the versions that pykcl knows"
    if any(
        isinstance(row, ForeignRow) and row.kind == TABLE_MIGRATION_KIND and _is_running(row) for row in rows
    ):
        return "KCL 3.x is moving its state into the lease table"
    return "" if has_owner_index else "the lease table has no index of owners yet"


def _is_running(row: ForeignRow) -> bool:
    phase = row.item.get("tm", {}).get("S")
    return not isinstance(phase, str) or not phase.endswith("COMPLETE")


def reports_in(rows: Iterable[Row]) -> tuple[WorkerMetrics, ...]:
    """Return the reports of all workers."""
    found = (metrics_of(row) for row in rows if isinstance(row, ForeignRow))
    return tuple(each for each in found if each is not None)


def wants_cpu(
    kind: WorkerMetricsKind, reports: Iterable[WorkerMetrics], worker: str, *, since: float
) -> bool:
    """Return whether a worker should report its CPU utilisation.

    The leader compares each metric with its mean over the workers that report it, so that a fleet of two kinds is
    balanced in two parts that know nothing of each other.

    reports: of the fleet, as it was last read. since: epoch seconds; an older report is of a dead worker.
    """
    if kind != "auto":
        return kind == "cpu"
    return any(
        CPU in other.values and other.worker != worker and other.reported_at >= since for other in reports
    )


def discovery_pause(quiet_for: float) -> float:
    """Return the seconds until the index of owners is read again. quiet_for: seconds since it last showed news.

    Java queries it every five seconds at its defaults; a lease that was handed over is read by nobody until then.
    """
    return _SOON if quiet_for < _LIVELY_FOR else _LATER


def is_assigned(
    row: Row | None, worker: str, process_token: str, still_for: float, failover_time: float
) -> TypeGuard[Lease]:
    """Return whether a row that the index showed is this worker's to adopt.

    Not while another worker still works on it. Nor while another process of the same worker identifier may: its private
    attribute names that process, and it counts as gone once the lease has stood still for the failover time.
    """
    if not isinstance(row, Lease) or row.owner != worker or row.checkpoint_owner is not None:
        return False
    written = row.metadata
    is_anothers = (
        written is not None
        and written.owner == worker
        and written.process_token is not None
        and written.process_token != process_token
    )
    return not is_anothers or still_for > failover_time


def rescue(
    worker: str,
    view: LeaseView,
    rng: Random,
    *,
    failover_time: float,
    max_leases: int,
    in_hand: Collection[str],
) -> list[Acquisition]:
    """Return the leases that a follower takes in a fleet without a leader. in_hand: leases it has or is taking.

    Its share is that among workers of pykcl: 1) a leader dies, and Java workers have fewer leases than others; 2) by a
    share among all, the rest would be theirs; 3) but Java takes nothing without a leader. What is still there after as
    long again goes to whoever has room, as in KCL 2.x: another worker of pykcl may be limited, or rescue nothing.
    """
    after = RESCUE_AFTER * failover_time
    assignment = Assignment.seen_by(
        worker,
        view,
        failover_time=after,
        in_hand=in_hand,
        left_alone=_held_by_java(worker, view, after).difference(in_hand),
    )
    plans = assignment.choose(
        assignment.room(max_leases), rng, max_leases=max_leases, max_steal=0, overdue_after=after
    )
    return rescued(assignment, plans)


def _held_by_java(worker: str, view: LeaseView, after: float) -> set[str]:
    """Return the keys of the leases of Java workers that have not stood still for so long. worker: one of pykcl."""
    pykcl = {worker, *(lease.actual_owner for lease in view.leases.values() if is_of_pykcl(lease))}
    return {
        key
        for key, lease in view.leases.items()
        if lease.actual_owner is not None
        and lease.actual_owner not in pykcl
        and not view.is_expired(key, after)
    }


def rescued(assignment: Assignment, plans: Sequence[Acquisition]) -> list[Acquisition]:
    """Return those of the plans that take a lease which has stood still for long enough to rescue it.

    assignment: made with RESCUE_AFTER times the failover time.
    """
    view, after = assignment.view, assignment.failover_time
    return [plan for plan in plans if not plan.is_steal and view.unchanged_for(plan.lease_key) > after]
