"""What the page is told of each lease and each owner, as plain values for JSON. Pure.

Names out of the lease table go into these values in two forms: as they are, because the page has to name a lease when
it asks for something, and made inert, which is what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pykcl.model.lease import ForeignRow, Lease, UnreadableRow
from pykcl.operate.edges import Edge
from pykcl.operate.hints import short_shard
from pykcl.operate.lease_states import LeaseStatus
from pykcl.operate.names import shown
from pykcl.operate.owner_kind import UNKNOWN_KIND, OwnerKind
from pykcl.operate.owner_marks import COLOURS, NOBODY, SHAPES, Marks, OwnerMark


@dataclass(frozen=True, slots=True)
class Measured:
    """The lag of one lease. at: epoch milliseconds. behind: seconds; None: nobody knows, and `why` says why.

    source: "worker", or "Kinesis".
    """

    at: int
    behind: float | None
    source: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything there is to see at one moment.

    at: epoch milliseconds. rows: lease key -> what is told of it. owners: worker identifier -> what is told of it.
    """

    at: int
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    owners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Painter:
    """Makes picture after picture; a row that has not changed is the very same object again."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[LeaseStatus, Measured | None, Mapping[str, Any]]] = {}

    def picture(
        self,
        states: Mapping[str, LeaseStatus],
        kinds: Mapping[str, OwnerKind],
        lags: Mapping[str, Measured],
        marks: Marks,
        at: int,
    ) -> Picture:
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
        return Picture(at, rows, _owners(states, kinds, marks))


def _is_same(before: LeaseStatus, after: LeaseStatus) -> bool:
    """But for how long ago its counter has moved, which is told as a moment."""
    return (
        before.state is after.state
        and before.waits_for == after.waits_for
        and before.lease == after.lease
        and before.other == after.other
    )


def places_of(mark: OwnerMark) -> dict[str, int]:
    """Colour and shape by their places in `owner_marks`; -1 for nobody."""
    if mark == NOBODY:
        return {"colour": -1, "shape": -1}
    return {"colour": COLOURS.index(mark.colour), "shape": SHAPES.index(mark.shape)}


def edge_told(edge: Edge, marks: Marks, at: int) -> dict[str, Any]:
    """An event for the page. at: epoch milliseconds."""
    found: dict[str, Any] = {"at": at, **asdict(edge), "name": shown(short_shard(edge.shard))}
    for side in ("before", "after"):
        owner = found[side]
        found[side] = {"name": shown(owner), **places_of(marks.of(owner))} if owner else None
    return found


def _row(status: LeaseStatus, lag: Measured | None, at: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": shown(short_shard(status.key)), "state": status.state.value}
    lease = status.lease
    if lease is None:
        return {**row, "what": _what(status.other)}
    row |= {
        "owner": lease.actual_owner,
        "checkpoint": shown(str(lease.checkpoint)),
        "counter": lease.counter,
        # A moment, not an age: it stays the same while nothing moves.
        "moved": at - round(status.unmoved_for * 1000),
        "switches": lease.owner_switches,
        "parents": list(lease.parents),
        "children": list(lease.children),
        "waits": list(status.waits_for),
    }
    if lease.checkpoint_owner is not None and lease.owner is not None:
        row["next"] = lease.owner
    if lag is not None and not lease.is_ended:
        row["lag"] = {
            "at": lag.at,
            "behind": None if lag.behind is None else round(lag.behind, 3),
            "source": lag.source,
            **({"why": shown(lag.why)} if lag.why else {}),
        }
    return row


def _what(other: ForeignRow | UnreadableRow | None) -> str:
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
