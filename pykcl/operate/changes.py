"""Changes of leases between two scans, as events with a text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.operate.snapshot import short_shard, shown
from pykcl.operate.states import LeaseState, LeaseStatus

Tone = Literal["", "good", "bad"]
MAX_PER_KIND = 20
"""Changes of one kind in one scan that are listed one by one."""


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """One change. shard: a lease key, "" for a change of no lease. before, after: owners, if they changed."""

    kind: str
    text: str
    shard: str = ""
    before: str | None = None
    after: str | None = None
    tone: Tone = ""


def changes_between(before: Mapping[str, LeaseStatus], after: Mapping[str, LeaseStatus]) -> list[LeaseChange]:
    """Return the changes by lease key; of many of one kind the rest is counted in one line."""
    found: list[LeaseChange] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            found += _appeared(new)
        elif new is None and old is not None:
            found += _vanished(old)
        elif old is not None and new is not None:
            found += _changed(old, new)
    return shortened(found)


def shortened(changes: list[LeaseChange]) -> list[LeaseChange]:
    """Return at most `MAX_PER_KIND` of each kind, and one line for the rest of it."""
    kept: list[LeaseChange] = []
    counted: dict[str, int] = {}
    for change in changes:
        counted[change.kind] = counted.get(change.kind, 0) + 1
        if counted[change.kind] <= MAX_PER_KIND:
            kept.append(change)
    for kind, many in counted.items():
        if many > MAX_PER_KIND:
            tone: Tone = next(change.tone for change in kept if change.kind == kind)
            kept.append(LeaseChange(kind, f"and the same of {many - MAX_PER_KIND} more", tone=tone))
    return kept


def _appeared(new: LeaseStatus) -> Iterator[LeaseChange]:
    if new.state is LeaseState.UNREADABLE:
        yield LeaseChange("unreadable", "a row that cannot be understood", new.key, tone="bad")
    if new.lease is None:
        return
    family = ""
    if new.lease.parents:
        family = f", from {' and '.join(shown(short_shard(one)) for one in new.lease.parents)}"
    yield LeaseChange("new", f"new lease{family}", new.key, after=new.owner)


def _vanished(old: LeaseStatus) -> Iterator[LeaseChange]:
    if old.lease is None:
        return
    if old.lease.is_ended:
        yield LeaseChange("cleaned up", "row deleted: it was read to its end", old.key)
    else:
        yield LeaseChange("deleted", "row deleted before its end", old.key, before=old.owner, tone="bad")


def _changed(old: LeaseStatus, new: LeaseStatus) -> Iterator[LeaseChange]:
    if old.lease is None or new.lease is None:
        if new.state is not old.state:
            yield LeaseChange("unreadable", f"its row is {new.state.value} now", new.key, tone="bad")
        return
    if new.lease.is_ended and not old.lease.is_ended:
        yield LeaseChange("ended", "read to its end", new.key, before=old.owner, tone="good")
        return
    if old.lease.is_ended and not new.lease.is_ended:
        yield LeaseChange("moved", "its end was taken back: it is read again", new.key, tone="bad")
    elif new.lease.checkpoint < old.lease.checkpoint:
        yield LeaseChange("moved", "its checkpoint was moved back", new.key, tone="bad")
    if old.owner != new.owner:
        yield _new_owner(old, new)
    elif new.state is LeaseState.STALE and old.state is not LeaseState.STALE:
        text = f"has not moved for {new.unmoved_for:.0f} s"
        yield LeaseChange("stale", text, new.key, before=new.owner, tone="bad")
    elif old.state is LeaseState.STALE and new.state is LeaseState.ACTIVE:
        yield LeaseChange("alive", "moves again", new.key, before=new.owner, tone="good")


def _new_owner(old: LeaseStatus, new: LeaseStatus) -> LeaseChange:
    if new.owner is None:
        return LeaseChange("released", "released", new.key, before=old.owner)
    if old.owner is None:
        return LeaseChange("taken", "taken", new.key, after=new.owner)
    if old.state is LeaseState.STALE or old.unmoved_for > new.unmoved_for + 1:
        text = f"taken over; had been idle for {old.unmoved_for:.0f} s or more"
        return LeaseChange("taken over", text, new.key, old.owner, new.owner)
    return LeaseChange("taken over", "changed hands", new.key, old.owner, new.owner)
