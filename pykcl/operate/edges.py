"""What happened between two looks at a lease table, as events a person would tell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.operate.hints import short_shard
from pykcl.operate.lease_states import LeaseState, LeaseStatus
from pykcl.operate.names import shown

Tone = Literal["", "good", "bad"]
MOST_OF_A_KIND = 20
"""Events of one kind that are told one by one when they come together."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One event. shard: a lease key, "" where it is about none. before, after: owners, if they changed."""

    kind: str
    text: str
    shard: str = ""
    before: str | None = None
    after: str | None = None
    tone: Tone = ""


def edges_between(before: Mapping[str, LeaseStatus], after: Mapping[str, LeaseStatus]) -> list[Edge]:
    """Sorted by lease key. Many of one kind are told in one line, behind the first few."""
    found: list[Edge] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            found += _appeared(new)
        elif new is None and old is not None:
            found += _vanished(old)
        elif old is not None and new is not None:
            found += _changed(old, new)
    return shortened(found)


def shortened(edges: list[Edge]) -> list[Edge]:
    """At most `MOST_OF_A_KIND` of each kind, and one line for the rest of it."""
    kept: list[Edge] = []
    counted: dict[str, int] = {}
    for edge in edges:
        counted[edge.kind] = counted.get(edge.kind, 0) + 1
        if counted[edge.kind] <= MOST_OF_A_KIND:
            kept.append(edge)
    for kind, many in counted.items():
        if many > MOST_OF_A_KIND:
            tone: Tone = next(edge.tone for edge in kept if edge.kind == kind)
            kept.append(Edge(kind, f"and the same of {many - MOST_OF_A_KIND} more", tone=tone))
    return kept


def _appeared(new: LeaseStatus) -> Iterator[Edge]:
    if new.state is LeaseState.UNREADABLE:
        yield Edge("unreadable", "a row that cannot be understood", new.key, tone="bad")
    if new.lease is None:
        return
    family = ""
    if new.lease.parents:
        family = f", from {' and '.join(shown(short_shard(one)) for one in new.lease.parents)}"
    yield Edge("new", f"new lease{family}", new.key, after=new.owner)


def _vanished(old: LeaseStatus) -> Iterator[Edge]:
    if old.lease is None:
        return
    if old.lease.is_ended:
        yield Edge("cleaned up", "row deleted: it was read to its end", old.key)
    else:
        yield Edge("deleted", "row deleted before its end", old.key, before=old.owner, tone="bad")


def _changed(old: LeaseStatus, new: LeaseStatus) -> Iterator[Edge]:
    if old.lease is None or new.lease is None:
        if new.state is not old.state:
            yield Edge("unreadable", f"its row is {new.state.value} now", new.key, tone="bad")
        return
    if new.lease.is_ended and not old.lease.is_ended:
        yield Edge("ended", "read to its end", new.key, before=old.owner, tone="good")
        return
    if old.lease.is_ended and not new.lease.is_ended:
        yield Edge("moved", "its end was taken back: it is read again", new.key, tone="bad")
    elif new.lease.checkpoint < old.lease.checkpoint:
        yield Edge("moved", "its checkpoint was moved back", new.key, tone="bad")
    if old.owner != new.owner:
        yield _new_owner(old, new)
    elif new.state is LeaseState.STALE and old.state is not LeaseState.STALE:
        text = f"has not moved for {new.unmoved_for:.0f} s"
        yield Edge("stale", text, new.key, before=new.owner, tone="bad")
    elif old.state is LeaseState.STALE and new.state is LeaseState.ACTIVE:
        yield Edge("alive", "moves again", new.key, before=new.owner, tone="good")


def _new_owner(old: LeaseStatus, new: LeaseStatus) -> Edge:
    if new.owner is None:
        return Edge("released", "released", new.key, before=old.owner)
    if old.owner is None:
        return Edge("taken", "taken", new.key, after=new.owner)
    if old.state is LeaseState.STALE or old.unmoved_for > new.unmoved_for + 1:
        text = f"taken over; had stood still for {old.unmoved_for:.0f} s or more"
        return Edge("taken over", text, new.key, old.owner, new.owner)
    return Edge("taken over", "changed hands", new.key, old.owner, new.owner)
