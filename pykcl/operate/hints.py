"""Problems of a lease table, with what to do, and its changes between two scans, in sentences. Pure.

Names from the table stand in the sentences unescaped: the caller escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pykcl.model.lease import Lease, UnreadableRow
from pykcl.model.lease_item import LEASE_OWNER
from pykcl.model.shard import short_shard
from pykcl.operate.fleet import fleet_hints, fleet_of, ids_of_shards
from pykcl.operate.snapshot import Observation, shown
from pykcl.operate.states import LeaseState, LeaseStatus
from pykcl.times import format_time

_MAX_NAMES = 5
MANY_SWITCHES = 5
"""Changes of the owner without a checkpoint that are no chance."""


def hints_of(
    found: Observation,
    states: Mapping[str, LeaseStatus],
    failover: float,
    *,
    is_known: bool,
    is_whole: bool = True,
) -> list[str]:
    """Return the hints, the most urgent first.

    failover: seconds; is_known: False for a guess. is_whole: the states are those of all rows, so that hints on the
    fleet are wanted, too.
    """
    if not states:
        return ["The table has no rows: no worker has started yet, or its leases were deleted."]
    fleet = fleet_of(found)
    is_led = fleet is not None and fleet.is_native
    return [
        *_about_life(found, states, failover, is_known=is_known, is_led=is_led),
        *(fleet_hints(fleet) if is_whole else ()),
        *_about_unleased(states),
        *_about_endings(states),
        *_about_oddities(states),
        *_about_others(states),
        *_about_the_table(found),
    ]


def standstill_of(lease: Lease) -> str:
    """Return since when its shard stands, and why, by the note of its worker; "" where no note counts."""
    note = lease.standstill
    if note is None:
        return ""
    over = f" over {note.records} record{'s' if note.records > 1 else ''}" if note.records else ""
    code = f" ({note.code})" if note.code else ""
    times = {0: "not yet handed back", 1: "handed back once"}.get(
        note.handed_back, f"handed back {note.handed_back} times"
    )
    since = format_time(note.since, milliseconds=False)
    return f"stands since {since}: {note.cause or 'its worker could not go on'}{over}{code}, {times}"


def _keys(states: Mapping[str, LeaseStatus], state: LeaseState) -> list[str]:
    return [key for key, status in states.items() if status.state is state]


def _about_life(
    found: Observation, states: Mapping[str, LeaseStatus], failover: float, *, is_known: bool, is_led: bool
) -> Iterable[str]:
    active = _keys(states, LeaseState.ACTIVE)
    if stale := _keys(states, LeaseState.STALE):
        yield f"{_named(stale)} did not move for the failover time ({failover:g} s): {_what_follows(active, is_led)}"
    waiting = [
        key
        for key in _keys(states, LeaseState.WAITING)
        if states[key].owner is not None and states[key].unmoved_for >= failover
    ]
    if waiting:
        yield f"The owner of {_named(waiting)}, which waits for its parents, did not move for {failover:g} s."
    still = _keys(states, LeaseState.UNKNOWN)
    if still and found.samples > 1:
        then = "the leader gives it to another worker" if is_led else "any worker may take it"
        guess = "" if is_known else " (a guess: give it with --failover, -c or -p)"
        yield (
            f"{_named(still)} did not move in {found.span:.1f} s; if that holds for the failover time of {failover:g} "
            f"s{guess}, {then}. Do: --sample {failover:g}s, or --watch."
        )
    unowned = _keys(states, LeaseState.UNOWNED)
    if unowned and (active or found.samples > 1):
        yield f"Nobody owns {_named(unowned)}: {_what_follows(active, is_led)}"
    blocked = _keys(states, LeaseState.WAITING)
    culprits = sorted(
        {
            parent
            for key in blocked
            for parent in states[key].waits_for
            if states[parent].state in (LeaseState.STALE, LeaseState.UNOWNED, LeaseState.UNREADABLE)
        }
    )
    if culprits:
        yield f"{_named(blocked)} cannot start before {_named(culprits)} has ended, which nobody reads."


def _what_follows(active: Sequence[str], is_led: bool) -> str:
    if active and is_led:
        return "the leader gives it to a worker at one of its next runs."
    if active:
        return "a live worker takes it on its next scan, unless it already holds max_leases."
    return "no counter moved, so perhaps no worker is running."


def _about_unleased(states: Mapping[str, LeaseStatus]) -> Iterable[str]:
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for key in _keys(states, LeaseState.NO_LEASE):
        by_reason.setdefault(states[key].waits_for, []).append(key)
    for waits_for, keys in list(by_reason.items())[:_MAX_NAMES]:
        if waits_for:
            what = f"{_named(waits_for)} has ended. Do: pykcl lag shows how long they wait."
        else:
            what = "a worker creates it: workers do that when they list the shards (shard_sync_interval)."
        yield f"{_named(keys)} {'has' if len(keys) == 1 else 'have'} no lease. Nobody can read that before {what}"


def _about_endings(states: Mapping[str, LeaseStatus]) -> Iterable[str]:
    leases = _leases(states)
    bent = [key for key, lease in leases.items() if lease.is_ended and lease.checkpoint.sub_sequence_number]
    if bent:
        yield (
            f"{_named(bent)} ended with a sub-sequence number: Java workers do not see the end, and never start the "
            "children. Another library wrote that."
        )
    early = [
        key
        for key, lease in leases.items()
        if states[key].state is LeaseState.WAITING
        and not lease.checkpoint.is_start
        and any(parent in leases for parent in states[key].waits_for)
    ]
    if early:
        yield f"{_named(early)} has been read although a parent has not ended: records may come out of order."


def _about_oddities(states: Mapping[str, LeaseStatus]) -> Iterable[str]:
    leases = _leases(states)
    back = [key for key, status in states.items() if status.moved is not None and status.moved < 0]
    if back:
        yield f"The counter of {_named(back)} went back: something other than a KCL writes this table."
    handed = [key for key, lease in leases.items() if lease.checkpoint_owner is not None]
    if handed:
        ways = (f"{leases[key].checkpoint_owner} → {leases[key].owner}" for key in handed[:_MAX_NAMES])
        yield f"{_named(handed)} is being handed over by a KCL 3.x leader ({', '.join(ways)})."
    typed = [key for key, lease in leases.items() if lease.owner is None and LEASE_OWNER in lease.extra]
    if typed:
        yield (
            f"leaseOwner of {_named(typed)} is present and empty: KCL 3.x cannot assign such a row. A worker of 2.x, "
            "or pykcl, repairs it when it takes the lease."
        )
    for key in [key for key, lease in leases.items() if lease.standstill is not None][:_MAX_NAMES]:
        yield f"{_named([key])} {standstill_of(leases[key])}. Do: pykcl doctor shows the commands."
    fought = [key for key, lease in leases.items() if lease.owner_switches >= MANY_SWITCHES]
    if fought:
        yield (
            f"{_named(fought)} changed hands {MANY_SWITCHES} times or more without a checkpoint: workers may crash on "
            "what is in it, or are too slow to checkpoint."
        )
    pending = [key for key, lease in leases.items() if lease.pending is not None and lease.owner is None]
    if pending:
        yield f"{_named(pending)} has a checkpoint that was prepared and never completed; its next owner gets it."


def _about_others(states: Mapping[str, LeaseStatus]) -> Iterable[str]:
    for key in _keys(states, LeaseState.UNREADABLE)[:_MAX_NAMES]:
        row = states[key].other
        problem = row.problem if isinstance(row, UnreadableRow) else ""
        yield f"{key or 'A row without a key'} cannot be understood: {problem}. It is ignored."


def _about_the_table(found: Observation) -> Iterable[str]:
    if taken := ids_of_shards(found.snapshot):
        yield (
            f"{_named(taken)} is the identifier of a worker and of a shard: KCL 3.x writes the worker's metrics over "
            "that lease, and its position is lost. Do: give the worker another worker_id (workerId)."
        )
    arns = found.snapshot.stream_arns
    if len(arns) > 1:
        yield (
            f"This table has leases of {len(arns)} streams ({_named(arns)}): every stream needs an application of its "
            "own."
        )


def _leases(states: Mapping[str, LeaseStatus]) -> dict[str, Lease]:
    return {key: status.lease for key, status in states.items() if status.lease is not None}


def _named(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MAX_NAMES} more" if len(keys) > _MAX_NAMES else ""
    return ", ".join(short_shard(key) for key in keys[:_MAX_NAMES]) + more


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
    if old.state is LeaseState.NO_LEASE:
        yield from _appeared(new)
        return
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
