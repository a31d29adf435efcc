"""Problems of a lease table in sentences, with what to do. Pure.

Names from the table stand in the sentences unescaped: the caller escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykcl.model.lease import Lease, UnreadableRow
from pykcl.model.lease_item import LEASE_OWNER
from pykcl.operate.sampler import Observation
from pykcl.operate.snapshot import short_shard
from pykcl.operate.states import LeaseState, LeaseStatus

_MAX_NAMES = 5
_MANY_SWITCHES = 5


def hints_of(
    found: Observation, states: Mapping[str, LeaseStatus], failover: float, *, is_known: bool
) -> list[str]:
    """Return the hints, the most urgent first. failover: seconds; is_known: False for a guess."""
    if not states:
        return ["The table has no rows: no worker has started yet, or its leases were deleted."]
    return [
        *_about_life(found, states, failover, is_known=is_known),
        *_about_endings(states),
        *_about_oddities(states),
        *_about_others(states),
        *_about_the_table(found),
    ]


def _keys(states: Mapping[str, LeaseStatus], state: LeaseState) -> list[str]:
    return [key for key, status in states.items() if status.state is state]


def _about_life(
    found: Observation, states: Mapping[str, LeaseStatus], failover: float, *, is_known: bool
) -> Iterable[str]:
    active = _keys(states, LeaseState.ACTIVE)
    if stale := _keys(states, LeaseState.STALE):
        yield f"{_named(stale)} did not move for the failover time ({failover:g} s): {_what_follows(active)}"
    waiting = [
        key
        for key in _keys(states, LeaseState.WAITING)
        if states[key].owner is not None and states[key].unmoved_for >= failover
    ]
    if waiting:
        yield f"The owner of {_named(waiting)}, which waits for its parents, did not move for {failover:g} s."
    still = _keys(states, LeaseState.UNKNOWN)
    if still and found.samples > 1:
        guess = "" if is_known else " (a guess: give it with --failover, -c or -p)"
        yield (
            f"{_named(still)} did not move in {found.span:.1f} s; if that holds for the failover time of {failover:g} "
            f"s{guess}, any worker may take it. Do: --sample {failover:g}s, or --watch."
        )
    unowned = _keys(states, LeaseState.UNOWNED)
    if unowned and (active or found.samples > 1):
        yield f"Nobody owns {_named(unowned)}: {_what_follows(active)}"
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


def _what_follows(active: Sequence[str]) -> str:
    if active:
        return "a live worker takes it on its next scan, unless it already holds max_leases."
    return "no counter moved, so perhaps no worker is running."


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
        yield f"{_named(handed)} is being handed over to its next owner by a KCL 3.x leader."
    typed = [key for key, lease in leases.items() if lease.owner is None and LEASE_OWNER in lease.extra]
    if typed:
        yield (
            f"leaseOwner of {_named(typed)} is present and empty: KCL 3.x cannot assign such a row. A worker of 2.x, "
            "or pykcl, repairs it when it takes the lease."
        )
    fought = [key for key, lease in leases.items() if lease.owner_switches >= _MANY_SWITCHES]
    if fought:
        yield (
            f"{_named(fought)} changed hands {_MANY_SWITCHES} times or more without a checkpoint: workers may crash on "
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
