"""The fleet of KCL 3.x by its rows: client version, leader, and the workers with their reports. Pure.

In KCL 3.x's own mode one worker holds a lock and assigns every lease to workers that report metrics. A report older
than `REPORT_LIFE` is that of a dead worker; one that is not of the form that Java accepts counts as none. All of it is
input from outside: whatever a row holds, it is shown and never raised for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pykcl.model.fleet_rows import WorkerMetrics, metrics_of
from pykcl.model.lease import ForeignRow, JavaState, Lease
from pykcl.model.lease_item import METRICS_KIND, MIGRATION_KIND, TABLE_MIGRATION_KIND, is_lease_key
from pykcl.operate.snapshot import Observation, TableSnapshot
from pykcl.planning.assignment_decider import is_failing, is_valid
from pykcl.planning.fleet_protocol import sense_fleet
from pykcl.planning.leader_lock import LeaderWatch
from pykcl.times import format_duration

REPORT_LIFE = 60.0
"""Seconds: twice the interval of reports at its default, after which Java's leader takes a worker for dead."""
METRIC_NAMES: Mapping[str, str] = {
    "C": "CPU", "M": "memory", "NI": "network in", "NO": "network out", "T": "throughput",
}  # fmt: skip
"""Names of Java's kinds of metrics (`WorkerMetricType.java`)."""
_MAX_RATE = 1e12


class Standing(Enum):
    """The standing of a worker with the leader.

    MEMBER: may be given leases. SILENT: its last report is too old, so it is dead for the leader. AHEAD: its last
    report is of a time to come, so it lives for the leader until then. UNFIT: its report counts as none. NO_REPORT: it
    owns leases and reports nothing; the leader gives it no leases.
    """

    MEMBER = "member"
    SILENT = "silent"
    AHEAD = "ahead"
    UNFIT = "unfit"
    NO_REPORT = "no report"


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that owns leases, reports metrics, or leads.

    leases: open ones that it works on. throughput: KiB a second, of all of them; None if no row says. reported_ago:
    seconds, below 0 for a report ahead of AWS' clock; None without one. metrics: the last value of each kind, percent;
    empty where the leader goes by throughput alone; None without a report.
    why: of the standing, in a few words; "" for a member.
    """

    worker: str
    standing: Standing
    leases: int = 0
    throughput: float | None = None
    reported_ago: float | None = None
    metrics: Mapping[str, float] | None = None
    why: str = ""
    is_leader: bool = False


@dataclass(frozen=True, slots=True)
class FleetOverview:
    """A fleet of KCL 3.x. Sorted members.

    client_version: None if no row says. is_native: a leader assigns the leases. leader: its lock as the scans showed
    it. leader_beats: its version was seen changing. table_migration: phase of KCL 3.5's move into the lease table, if
    it has not ended. unread: the reason for which the tables of KCL 3.0-3.4 are not known, or "".
    """

    client_version: str | None
    is_native: bool
    leader: LeaderWatch | None
    leader_beats: bool
    members: tuple[Member, ...]
    table_migration: str | None = None
    unread: str = ""

    @property
    def leader_name(self) -> str | None:
        """The worker that holds the lock; None if nobody does."""
        lock = self.leader.lock if self.leader is not None else None
        return lock.owner if lock is not None and not lock.is_released else None

    @property
    def lock_unchanged(self) -> float:
        """Seconds for which scans have shown the lock as it is."""
        return self.leader.unchanged_for if self.leader is not None else 0.0

    @property
    def lacks_leader(self) -> bool:
        """True if nobody leads a native fleet, as far as it was watched."""
        if not self.is_native or (self.unread and self.leader_name is None):
            return False
        return self.leader_name is None or (self.leader is not None and self.leader.is_absent)

    def with_standing(self, *standings: Standing) -> list[Member]:
        return [member for member in self.members if member.standing in standings]


def fleet_of(found: Observation) -> FleetOverview | None:
    """Return the fleet as the scans show it; None for a table that no worker of KCL 3.x has touched."""
    view = found.snapshot
    reports = [row for row in view.fleet_rows if row.kind == METRICS_KIND]
    lock = found.leader.lock if found.leader is not None else None
    protocol = sense_fleet(view.rows, worker="", state=_own_state(view))
    phase = table_migration(view.fleet_rows)
    known = protocol.client_version is not None or lock is not None or phase is not None
    if not (known or reports or view.own_tables.unread):
        return None
    return FleetOverview(
        client_version=protocol.client_version,
        is_native=bool(protocol.why_native),
        leader=found.leader,
        leader_beats=found.leader_beats,
        members=tuple(_members(view, reports, found.at, lock.owner if lock is not None else None)),
        table_migration=phase,
        unread=view.own_tables.unread,
    )


def is_native(view: TableSnapshot) -> bool:
    """Return whether a leader of KCL 3.x assigns the leases."""
    return bool(sense_fleet(view.rows, worker="", state=_own_state(view)).why_native)


def table_migration(rows: Iterable[ForeignRow]) -> str | None:
    """Return the phase of KCL 3.5's move of its rows into the lease table; None if none is going on."""
    for row in rows:
        if row.kind == TABLE_MIGRATION_KIND:
            phase = row.item.get("tm")
            text = phase.get("S") if isinstance(phase, Mapping) else None
            if not isinstance(text, str):
                return "a phase that cannot be read"
            return None if text.endswith("COMPLETE") else text[:64]
    return None


def ids_of_shards(view: TableSnapshot) -> list[str]:
    """Return the worker identifiers that are the key of a lease, too, or have the form of a shard id.

    A Java worker writes its report over the lease of that key.
    """
    reports = (row.key for row in view.foreign if row.kind == METRICS_KIND)
    owners = (
        name for lease in view.leases.values() for name in (lease.owner, lease.checkpoint_owner) if name
    )
    return sorted({name for name in (*reports, *owners) if name in view.leases or is_lease_key(name)})


def throughput_of(lease: Lease) -> float | None:
    """Return the KiB a second that the owner delivers; None if the row does not say, or names no number."""
    rate = float(lease.throughput) if lease.throughput is not None else math.inf
    return rate if rate < _MAX_RATE else None


def _own_state(view: TableSnapshot) -> JavaState:
    rows = (row for row in view.own_tables.rows if row.kind == MIGRATION_KIND)
    return JavaState(migration=next(rows, None), unread=view.own_tables.unread)


def _members(
    view: TableSnapshot, reports: Iterable[ForeignRow], at: float, leader: str | None
) -> Iterator[Member]:
    held: dict[str, list[Lease]] = {}
    for lease in view.leases.values():
        if lease.actual_owner is not None:
            held.setdefault(lease.actual_owner, []).append(lease)
    rows = {row.key: row for row in reports}
    for worker in sorted(held.keys() | rows.keys() | ({leader} if leader is not None else set())):
        leases = [lease for lease in held.get(worker, ()) if not lease.is_ended]
        rates = [rate for lease in leases if (rate := throughput_of(lease)) is not None]
        row = rows.get(worker)
        report = metrics_of(row) if row is not None else None
        ago = at - report.reported_at if report is not None else None
        standing, why = _standing(row, report, ago)
        yield Member(
            worker,
            standing,
            len(leases),
            sum(rates) if rates else None,
            ago,
            _last_values(report),
            why,
            worker == leader,
        )


def _last_values(report: WorkerMetrics | None) -> dict[str, float] | None:
    if report is None:
        return None
    return {kind: values[-1] for kind, values in sorted(report.values.items()) if values}


def _standing(
    row: ForeignRow | None, report: WorkerMetrics | None, ago: float | None
) -> tuple[Standing, str]:
    if row is None:
        return Standing.NO_REPORT, "reports no metrics"
    if report is None or ago is None:
        return Standing.UNFIT, "its metrics cannot be understood"
    problem = unfit(report)
    if problem:
        return Standing.UNFIT, problem
    if ago > REPORT_LIFE:
        return Standing.SILENT, f"last report {format_duration(ago)} ago"
    if ago < -REPORT_LIFE:
        return Standing.AHEAD, f"last report {format_duration(-ago)} ahead of AWS' clock"
    return Standing.MEMBER, ""


def unfit(report: WorkerMetrics) -> str:
    """Return the reason for which Java's leader does not count a report; "" for one that it counts.

    Java: `WorkerMetricStats.isValidWorkerMetric`, `isAnyWorkerMetricFailing`.
    """
    if not is_valid(report):
        kinds = [kind for kind in report.values if kind not in report.limits] or sorted(report.limits)
        return f"no valid upper limit of {_listed(kinds)}"
    if is_failing(report):
        failed = [kind for kind, values in report.values.items() if values and values[-1] < 0]
        return f"its last measurement of {_listed(failed)} failed"
    return ""


def _listed(kinds: Iterable[str]) -> str:
    return ", ".join(METRIC_NAMES.get(kind, kind) for kind in kinds)


def metric_text(metrics: Mapping[str, float]) -> str:
    """Return "CPU 12 %, memory 40 %"; "" without metrics."""
    return ", ".join(
        f"{METRIC_NAMES.get(kind, kind)} {'failed' if value == -1 else f'{value:.0f} %'}"
        for kind, value in metrics.items()
    )


def leader_text(overview: FleetOverview) -> str:
    """Return the leader and the state of its lock, in a few words."""
    lock = overview.leader.lock if overview.leader is not None else None
    still = overview.lock_unchanged
    if lock is None:
        return "unknown" if overview.unread else "none"
    if lock.is_released:
        return f"none ({lock.owner} released the lock)"
    if overview.lacks_leader:
        return f"none ({lock.owner} has not renewed the lock for {format_duration(still)})"
    return f"{lock.owner} (lock unchanged for {format_duration(still)})" if still else lock.owner


def plain(overview: FleetOverview) -> dict[str, Any]:
    """Return the overview as values for JSON, without the members."""
    lock = overview.leader.lock if overview.leader is not None else None
    leader = {
        "owner": lock.owner,
        "released": lock.is_released,
        "lock_seconds": lock.lease_seconds,
        "unchanged_seconds": round(overview.lock_unchanged, 1),
        "renewed": overview.leader_beats,
    } if lock is not None else None  # fmt: skip
    return {
        "client_version": overview.client_version,
        "is_native": overview.is_native,
        "leader": leader,
        "table_migration": overview.table_migration,
        "unread": overview.unread or None,
    }


_MAX_NAMES = 5


def fleet_hints(overview: FleetOverview | None) -> Iterator[str]:
    """Yield sentences on what is unusual in a fleet of KCL 3.x. Names stand in them unescaped."""
    if overview is None:
        return
    if overview.unread:
        yield f"The tables of KCL 3.0-3.4 are not shown: {overview.unread}"
    if overview.table_migration is not None:
        yield (
            f"KCL 3.5 is moving its rows into this table ({overview.table_migration}); pykcl workers do not join "
            "meanwhile."
        )
    if not overview.is_native:
        return
    if overview.lacks_leader:
        yield (
            f"Nobody leads this fleet (leader: {leader_text(overview)}), so nobody assigns leases: pykcl workers take "
            "what stands still, until one worker leads."
        )
    guests = [one.worker for one in overview.with_standing(Standing.NO_REPORT) if one.leases]
    if guests:
        yield f"{_named(guests)} reports no metrics: the leader never gives it a lease, and relieves it of none."
    for standing, then in (
        (Standing.SILENT, "it is dead for the leader, which gives its leases away"),
        (Standing.AHEAD, "it lives for the leader until then, even if it has ended"),
        (Standing.UNFIT, "the leader does not count it"),
    ):
        for member in overview.with_standing(standing)[:_MAX_NAMES]:
            yield f"{member.worker}: {member.why}; {then}."


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
