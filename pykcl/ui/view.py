"""Leases, owners and events as plain values for the page's JSON. Pure.

Names of the lease table are in these values in two forms: as they are, as keys, and escaped, which the page shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pykcl.model.lease import ForeignRow, Lease, UnreadableRow
from pykcl.model.shard import short_shard
from pykcl.operate.fleet import (
    FleetOverview,
    Member,
    Standing,
    leader_text,
    metric_text,
    throughput_of,
)
from pykcl.operate.hints import LeaseChange
from pykcl.operate.snapshot import shown
from pykcl.operate.states import (
    COLOURS,
    NOBODY,
    SHAPES,
    UNKNOWN_KIND,
    LeaseStatus,
    Marks,
    OwnerKind,
    OwnerMark,
)
from pykcl.operate.unleased import Unleased
from pykcl.operate.worker_status import WorkerReport


@dataclass(frozen=True, slots=True)
class Measured:
    """Lag of one lease. at: epoch milliseconds. behind: seconds; None if unknown, for the reason in `why`.

    source: "worker", or "Kinesis".
    """

    at: int
    behind: float | None
    source: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class PageView:
    """Values for the page from one scan. at: epoch milliseconds. rows: by lease key. owners: by worker identifier."""

    at: int
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    owners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class ViewBuilder:
    """Builder of one view after another; an unchanged row is the same object again."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[LeaseStatus, Measured | None, Mapping[str, Any]]] = {}

    def view(
        self,
        states: Mapping[str, LeaseStatus],
        kinds: Mapping[str, OwnerKind],
        lags: Mapping[str, Measured],
        marks: Marks,
        at: int,
    ) -> PageView:
        """states: by lease key; kinds: by worker identifier; lags: by lease key, for those that are known."""
        rows = {}
        for key, status in states.items():
            lag = lags.get(key)
            known = self._rows.get(key)
            if known is not None and known[1] == lag and _is_same(known[0], status):
                rows[key] = known[2]
            else:
                rows[key] = row = _row(status, lag, at)
                self._rows[key] = (status, lag, row)
        for key in self._rows.keys() - states.keys():
            del self._rows[key]
        return PageView(at, rows, _owners(states, kinds, marks))


def _is_same(before: LeaseStatus, after: LeaseStatus) -> bool:
    """Return True if nothing changed but the age of the counter, which the page gets as a time."""
    return (
        before.state is after.state
        and before.waits_for == after.waits_for
        and before.lease == after.lease
        and before.other == after.other
    )


def places_of(mark: OwnerMark) -> dict[str, int]:
    """Return the indexes of colour and shape in `owner_marks`; -1 for no owner."""
    if mark == NOBODY:
        return {"colour": -1, "shape": -1}
    return {"colour": COLOURS.index(mark.colour), "shape": SHAPES.index(mark.shape)}


def event_of(edge: LeaseChange, marks: Marks, at: int) -> dict[str, Any]:
    """Return the values of an event. at: epoch milliseconds."""
    found: dict[str, Any] = {"at": at, **asdict(edge), "name": shown(short_shard(edge.shard))}
    for side in ("before", "after"):
        owner = found[side]
        found[side] = {"name": shown(owner), **places_of(marks.of(owner))} if owner else None
    return found


def _row(status: LeaseStatus, lag: Measured | None, at: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": shown(short_shard(status.key)), "state": status.state.value}
    lease = status.lease
    if lease is None:
        row["what"] = _what(status.other)
        if isinstance(status.other, Unleased):
            row |= {"parents": list(status.other.lease.parents), "waits": list(status.waits_for), **_lag(lag)}
        return row
    row |= {
        "owner": lease.actual_owner,
        "checkpoint": shown(str(lease.checkpoint)),
        "counter": lease.counter,
        # A time, not an age: it stays the same while nothing moves.
        "moved": at - round(status.unmoved_for * 1000),
        "switches": lease.owner_switches,
        "parents": list(lease.parents),
        "children": list(lease.children),
        "waits": list(status.waits_for),
    }
    if lease.checkpoint_owner is not None and lease.owner is not None:
        row |= {"next": lease.owner, "nextName": shown(lease.owner)}
    if lease.consumer is not None:
        row["consumer"] = shown(lease.consumer)
    kib = throughput_of(lease)
    if kib is not None:
        row["kib"] = round(kib, 3)
    return row if lease.is_ended else {**row, **_lag(lag)}


def _lag(lag: Measured | None) -> dict[str, Any]:
    if lag is None:
        return {}
    return {
        "lag": {
            "at": lag.at,
            "behind": None if lag.behind is None else round(lag.behind, 3),
            "source": lag.source,
            **({"why": shown(lag.why)} if lag.why else {}),
        }
    }


def _what(other: ForeignRow | UnreadableRow | Unleased | None) -> str:
    if isinstance(other, Unleased):
        return shown(other.reason)
    if isinstance(other, ForeignRow):
        return shown(other.kind)
    return shown(other.problem) if other is not None else ""


def _owners(
    states: Mapping[str, LeaseStatus], kinds: Mapping[str, OwnerKind], marks: Marks
) -> dict[str, dict[str, Any]]:
    held: dict[str, list[Lease]] = {}
    quiet: dict[str, int] = {}
    for status in states.values():
        owner = status.owner
        if owner is None or status.lease is None:
            continue
        held.setdefault(owner, []).append(status.lease)
        quiet[owner] = quiet.get(owner, 0) + (status.state.value == "STALE")
    found = {}
    for owner, leases in sorted(held.items()):
        kind = kinds.get(owner, UNKNOWN_KIND)
        working = sum(not lease.is_ended for lease in leases)
        found[owner] = {
            "name": shown(owner),
            **places_of(marks.of(owner)),
            "kind": kind.kind,
            "why": shown(kind.why),
            "version": shown(kind.version) if kind.version else None,
            "leases": working,
            "stale": quiet[owner],
        }
    return found


_SKEW_STEP = 5.0
"""Seconds. A difference of clocks is in steps, as a Date is cut to the second: else it would differ in every scan."""


def fleet_values(
    overview: FleetOverview, marks: Marks, *, at: int, server_time: float, lock_since: int
) -> dict[str, Any]:
    """Return the fleet of KCL 3.x: the same values until something changes, so times and no ages.

    at: of the scan, epoch milliseconds by this machine's clock; server_time: epoch seconds by AWS'. lock_since: epoch
    milliseconds of the first scan that showed the lock as it is.
    """
    leader = overview.leader_name
    return {
        "clientVersion": overview.client_version,
        "native": overview.is_native,
        "leader": shown(leader) if leader is not None else None,
        "leaderText": shown(f"leader: {leader_text(overview)}") if leader is None else "",
        "lacksLeader": overview.lacks_leader,
        "lockSince": lock_since if leader is not None else None,
        "tableMigration": overview.table_migration,
        "unread": shown(overview.unread),
        "skew": round((server_time - at / 1000) / _SKEW_STEP) * _SKEW_STEP,
        "members": [
            {
                "id": member.worker,
                "name": shown(member.worker),
                **places_of(marks.of(member.worker)),
                "standing": member.standing.value,
                "why": _SHOWN_AS_AGE.get(member.standing, shown(member.why)),
                "leases": member.leases,
                "reported": None if member.reported_ago is None else round(server_time - member.reported_ago),
                "metrics": _metrics(member),
                "leads": member.worker == leader,
            }
            for member in overview.members
        ],
    }


_SHOWN_AS_AGE = {Standing.SILENT: "dead for the leader", Standing.AHEAD: "alive for the leader until then"}


def _metrics(member: Member) -> str | None:
    if member.metrics is None:
        return None
    return shown(metric_text(member.metrics)) or "none reported"


MAX_REMEMBERED = 500
"""Max number of owners without leases: their marks are still in the charts."""


class OwnerBook:
    """Used by one thread."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._troubles: frozenset[tuple[str, str]] = frozenset()
        self._silent: frozenset[str] = frozenset()

    def fold(
        self, owners: Mapping[str, Mapping[str, Any]], pages: Sequence[WorkerReport], marks: Marks
    ) -> dict[str, dict[str, Any]]:
        """Return all owners and workers of the page, by worker identifier."""
        for name, values in owners.items():
            self._known.pop(name, None)
            self._known[name] = dict(values)
        for name in self._known.keys() - owners.keys():
            self._known[name] = {**self._known[name], "leases": 0, "stale": 0}
        for page in pages:
            if page.worker is not None:
                self._add_report(page.worker, page, marks)
        for name in list(self._known)[: max(0, len(self._known) - len(owners) - MAX_REMEMBERED)]:
            if name not in owners:
                del self._known[name]
        return dict(self._known)

    def _add_report(self, name: str, page: WorkerReport, marks: Marks) -> None:
        nobody = {
            "name": shown(name), **places_of(marks.of(name)), "kind": "pykcl", "why": "it says so itself",
            "version": None, "leases": 0, "stale": 0,
        }  # fmt: skip
        known = self._known.get(name, nobody)
        self._known[name] = {
            **known,
            "says": {
                "state": shown(page.state),
                "ready": page.ready,
                "stalled": len(page.stalled),
                "paused": len(page.paused),
                "troubles": [shown(one) for one in page.troubles[:5]],
            },
        }

    def edges(
        self, owners: Mapping[str, Mapping[str, Any]], pages: Sequence[WorkerReport]
    ) -> list[LeaseChange]:
        """Return the changes of owners, and of the problems that workers report. Call it before `fold`."""
        found = []
        holding = {name for name, values in owners.items() if values["leases"]}
        held = {name for name, values in self._known.items() if values["leases"]}
        found += [
            LeaseChange("worker", "has its first lease", after=name, tone="good")
            for name in sorted(holding - held)
        ]
        found += [
            LeaseChange("worker", "owns nothing any more", before=name) for name in sorted(held - holding)
        ]
        return found + self._edges_of_pages(pages)

    def _edges_of_pages(self, pages: Sequence[WorkerReport]) -> list[LeaseChange]:
        troubles = frozenset(
            (page.worker, text)
            for page in pages
            if page.worker is not None
            for text in (*page.troubles, *(f"the processor of {one} does not return" for one in page.stalled))
        )
        silent = frozenset(f"{page.url} {page.problem}" for page in pages if page.problem)
        found = [
            LeaseChange("worker", shown(text), before=name, tone="bad")
            for name, text in sorted(troubles - self._troubles)
        ]
        found += [
            LeaseChange("worker", f"over: {shown(text)}", before=name, tone="good")
            for name, text in sorted(self._troubles - troubles)
        ]
        found += [LeaseChange("worker", shown(text), tone="bad") for text in sorted(silent - self._silent)]
        again = {text.split(" ", 1)[0] for text in self._silent} - {text.split(" ", 1)[0] for text in silent}
        found += [LeaseChange("worker", f"{shown(url)} answers again", tone="good") for url in sorted(again)]
        self._troubles, self._silent = troubles, silent
        return found
