"""Signs of life of a fleet, and the wait until there are none.

Leases show their owners' heartbeats. A fleet of KCL 3.x has two more signs, and a worker without a lease has no other:
its reports of metrics, and the version of the lock, both every 30 seconds. The report of a Java worker that has stopped
stays in the table, so it counts for as long as the leader believes it. A lock whose owner reports nothing is watched
for longer than its heartbeats are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pykcl.errors import Refused
from pykcl.model.fleet_rows import LeaderLock, lock_of, metrics_of
from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_item import LEADER_KIND, METRICS_KIND
from pykcl.operate.fleet import REPORT_LIFE
from pykcl.operate.snapshot import TableSnapshot, known_failover, time_of
from pykcl.planning.leader_lock import heartbeat_interval
from pykcl.runtime import Runtime
from pykcl.times import format_duration

_MAX_PAUSE = 2.0
"""Seconds between two scans: a live worker shows with its next heartbeat, and the refusal should follow soon."""
_SPARE = 5.0
"""Seconds by which a heartbeat of the lock may be late."""
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Activity:
    """Signs of life between two scans.

    leases: lease key -> worker, as far as the rows name it. reports: worker -> age of its last report in seconds, None
    for one that has just changed. leader: the worker that renewed the lock, or "".
    """

    leases: Mapping[str, str] = field(default_factory=dict)
    reports: Mapping[str, float | None] = field(default_factory=dict)
    leader: str = ""

    def __bool__(self) -> bool:
        return bool(self.leases or self.reports or self.leader)

    @property
    def text(self) -> str:
        """All of it in one line: "2 leases moved during the check; active: w1, w2"."""
        parts = []
        if self.leases:
            leases = "1 lease" if len(self.leases) == 1 else f"{len(self.leases)} leases"
            parts.append(
                f"{leases} moved during the check; active: {_named(dict.fromkeys(self.leases.values()))}"
            )
        if self.leader:
            parts.append(f"{self.leader} renewed the lock of the leader")
        if self.reports:
            ages = (
                worker if age is None else f"{worker} ({format_duration(max(0.0, age))} ago)"
                for worker, age in sorted(self.reports.items())
            )
            parts.append(f"metrics reported by {_named(ages)}")
        return "; ".join(parts)


def activity_between(before: Iterable[Row], after: TableSnapshot, at: float) -> Activity:
    """Return the signs of life in two scans. at: epoch seconds of the second one, by AWS' clock."""
    before = tuple(before)
    reports: dict[str, float | None] = {}
    earlier = {
        row.key: row.item for row in before if isinstance(row, ForeignRow) and row.kind == METRICS_KIND
    }
    for row in after.fleet_rows:
        if row.kind != METRICS_KIND:
            continue
        report = metrics_of(row)
        age = at - report.reported_at if report is not None else None
        if row.key in earlier and earlier[row.key] != row.item:
            reports[row.key] = None
        elif age is not None and abs(age) <= REPORT_LIFE:
            reports[row.key] = age
    lock, lock_before = _lock_in(after.fleet_rows), _lock_in(before)
    is_renewed = lock is not None and lock_before is not None and lock.version != lock_before.version
    return Activity(
        moved_leases(before, after.rows), reports, lock.owner if lock is not None and is_renewed else ""
    )


def moved_leases(before: Iterable[Row], after: Iterable[Row]) -> dict[str, str]:
    """Return lease key -> worker, as far as the rows name it, of every lease that changed between two scans.

    A row that appeared or disappeared was changed, too.
    """
    first, second = _leases(before), _leases(after)
    return {
        key: _worker(second.get(key) or first[key])
        for key in sorted(first.keys() | second.keys())
        if _heartbeat(first.get(key)) != _heartbeat(second.get(key))
    }


def watch_time(given: float | None, leases: Iterable[Lease]) -> float:
    """Return two failover times in seconds: what would harm a worker is done after so long without a sign of one.

    given: the failover time by flag or file; without it, the one noted on the leases.
    """
    return 2 * known_failover(given, leases)[0]


def wait_until_idle(
    scan: Callable[[], TableSnapshot],
    runtime: Runtime,
    *,
    failover: float,
    patience: float = 0.0,
    on_moving: Callable[[Activity], None] = lambda _: None,
    remedy: str = "stop its workers, or wait for them with --wait-idle 5m",
) -> TableSnapshot:
    """Return the last scan once no worker has shown a sign of life for `failover` seconds.

    patience: seconds to wait for the fleet to stop, in addition. on_moving: called with the signs of life. remedy: for
    the refusal.
    Raises Refused when the fleet does not stop, TemporaryError, SetupError.
    """
    pause = runtime.event()
    started = runtime.monotonic()
    last, since = scan(), runtime.monotonic()
    while (left := since + _quiet_time(last, failover) - runtime.monotonic()) > 0:
        pause.wait(min(left, _MAX_PAUSE))
        now = scan()
        moving = activity_between((*last.rows, *last.own_tables.rows), now, time_of(now, runtime))
        if moving:
            on_moving(moving)
            if runtime.monotonic() - started >= patience:
                raise Refused(_refusal(moving, failover, patience, remedy))
            since = runtime.monotonic()
        last = now
    return last


def _quiet_time(view: TableSnapshot, failover: float) -> float:
    """Return the seconds without a sign of life after which the fleet has stopped."""
    lock = _lock_in(view.fleet_rows)
    if lock is None or lock.is_released:
        return failover
    reported = {row.key for row in view.fleet_rows if metrics_of(row) is not None}
    return failover if lock.owner in reported else max(failover, heartbeat_interval(lock) + _SPARE)


def _refusal(moving: Activity, failover: float, patience: float, remedy: str) -> str:
    waited = f" within {patience:g} s" if patience else ""
    counts = f"A lease counts as idle after {failover:g} s without a change"
    if moving.reports:
        counts += f", a worker that reports metrics {REPORT_LIFE:g} s after its last report"
    return f"The fleet has not stopped{waited}: {moving.text}. Nothing was written. Do: {remedy}. {counts}."


def _named(workers: Iterable[str]) -> str:
    names = list(workers)
    return ", ".join(names[:_MAX_SHOWN]) + (", …" if len(names) > _MAX_SHOWN else "")


def _lock_in(rows: Iterable[Row]) -> LeaderLock | None:
    locks = (lock_of(row) for row in rows if isinstance(row, ForeignRow) and row.kind == LEADER_KIND)
    return next((lock for lock in locks if lock is not None), None)


def _leases(rows: Iterable[Row]) -> dict[str, Lease]:
    return {row.key: row for row in rows if isinstance(row, Lease)}


def _heartbeat(lease: Lease | None) -> tuple[int, str | None, str | None] | None:
    return None if lease is None else (lease.counter, lease.owner, lease.checkpoint_owner)


def _worker(lease: Lease) -> str:
    return lease.actual_owner or "somebody unknown"
