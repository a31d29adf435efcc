"""How often a worker looks at the lease table, and at how much of it.

In a small fleet each worker scans all of it about once a second. What that costs grows with leases times workers, and
in a large fleet is more than all heartbeats. There each worker looks at a part of its own (some segments of a parallel
scan) every few seconds: together they see each row twice in that time, for the price of two scans, whatever their
number. Who looks at which segment follows from a ring of the workers: when one leaves, only its segments go to others,
who have to see them for the fail-over time before they can tell that a lease stands still.

All of the table is scanned seldom, and at once when a part shows something new: a lease that is free or silent, a row
that was not there, a shard that has ended. Nothing is decided by a part; a lease is silent by the ordinary rule alone.
Who sees a free or silent lease in its part takes it rather than another, and soon even beyond its share: the others may
not know of it for long, and will even it out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from pykcl.planning.lease_view import LeaseView
from pykcl.planning.read_schedule import READ_UNITS_PER_SECOND

TableLooks = Literal["auto", "whole", "parts"]
"""As in `pykcl.config`, which lies below."""

WATCHERS = 2
"""How many workers look at the same segment: who is there is known from rows, and not the same to all at any time."""
SMALLEST_PART = 1.0
"""Read units that a part has at least: a look at less costs hardly less."""
UNITS_PER_LEASE = 0.045
"""Read units a second that the fleet spends on scans of all the table, for each lease: 4.5 % of what its heartbeats
cost (0.2 write units a second, of which each costs as much as 5 read units)."""
_LONGEST = 30.0
"""Fail-over times between two scans of all the table, at most."""
_LONGEST_PART = 0.25
"""Fail-over times between two looks at a part, at most: a lease that is free or silent is noticed so late."""
_WORKERS_PER_SECOND = 50.0
"""In how large a fleet a part is looked at each second, and in one twice as large each two."""


@dataclass(frozen=True, slots=True)
class Looks:
    """busy, whole: seconds between two scans of all the table, while there is something to do and while there is not.
    part: seconds between two looks at the segments `watched` of `segments`; None: there are none."""

    busy: float
    whole: float
    part: float | None = None
    watched: tuple[int, ...] = ()
    segments: int = 1


def plan_looks(
    *,
    mode: TableLooks,
    worker: str,
    others: Collection[str],
    leases: int,
    read_units: float,
    failover_time: float,
    max_leases: int = 1000,
) -> Looks:
    """The pace until the next scan of all the table.

    others: the pykcl workers beside `worker` that hold leases; Java's look for themselves. leases: rows of the table.
    read_units: what the last scan of it cost. failover_time: seconds. max_leases: of each worker.
    """
    busy = _busy_pause(read_units, failover_time)
    fleet = {worker, *others}
    segments = _segments(mode, len(fleet), leases, read_units, failover_time, max_leases)
    if segments == 0:
        return Looks(busy, busy)
    watched = tuple(n for n, watchers in enumerate(_watchers(fleet, segments)) if worker in watchers)
    part = _part_pause(len(fleet), len(watched) * read_units / segments, failover_time)
    whole = _whole_pause(len(fleet), leases, read_units, failover_time)
    if len(watched) == segments:
        watched, segments = (0,), 1
    return Looks(busy, whole, part, watched, segments)


def _shortest_pause(failover_time: float) -> float:
    """Between two looks, however small and many: about a second."""
    return min(1.0, failover_time / 2)


def _busy_pause(read_units: float, failover_time: float) -> float:
    wanted = max(_shortest_pause(failover_time), read_units / READ_UNITS_PER_SECOND)
    return min(wanted, 2 * failover_time)


def _whole_pause(workers: int, leases: int, read_units: float, failover_time: float) -> float:
    wanted = workers * read_units / (UNITS_PER_LEASE * max(1, leases))
    return min(max(_busy_pause(read_units, failover_time), wanted), _LONGEST * failover_time)


def _part_pause(workers: int, read_units: float, failover_time: float) -> float:
    """read_units: of one look at a worker's part."""
    by_workers = min(workers / _WORKERS_PER_SECOND, _LONGEST_PART * failover_time)
    wanted = max(_shortest_pause(failover_time), by_workers)
    return min(max(wanted, read_units / READ_UNITS_PER_SECOND), failover_time / 2)


def _segments(
    mode: TableLooks, workers: int, leases: int, read_units: float, failover_time: float, max_leases: int
) -> int:
    """How many there are for the fleet; 0: the table is not to be divided. max_leases: of each worker."""
    if mode == "whole":
        return 0
    if mode == "parts":
        return _power_of_two(workers // WATCHERS)
    # Where the fleet has hardly room for all leases, those who look at one may be full, and the others not know of it.
    is_tight = max_leases * workers < 2 * leases
    wanted = min(workers // WATCHERS, int(read_units / SMALLEST_PART))
    if is_tight or wanted < 2:
        return 0
    segments = _power_of_two(wanted)
    undivided = workers * read_units / _busy_pause(read_units, failover_time)
    return segments if _divided(workers, segments, leases, read_units, failover_time) < undivided else 0


def _power_of_two(most: int) -> int:
    """The greatest that is no greater, at least 1: so the number seldom changes, and with it all segments do."""
    return 1 << max(0, most.bit_length() - 1)


def _watchers(fleet: Collection[str], segments: int) -> list[set[str]]:
    """Of each segment: those who come next to it on the ring."""
    ring = sorted((crc32(name.encode()), name) for name in fleet)
    found = []
    for number in range(segments):
        first = bisect_left(ring, (crc32(b"segment %d" % number), ""))
        found.append({ring[(first + step) % len(ring)][1] for step in range(WATCHERS)})
    return found


def units_per_second(
    *,
    mode: TableLooks,
    workers: int,
    leases: int,
    read_units: float,
    failover_time: float,
    max_leases: int = 1000,
) -> float:
    """Read units a second that a fleet of pykcl workers at rest spends on looks. read_units: of one scan of it all."""
    segments = _segments(mode, workers, leases, read_units, failover_time, max_leases)
    if segments:
        return _divided(workers, segments, leases, read_units, failover_time)
    pause = _busy_pause(read_units, failover_time)
    # Alone a worker holds every lease.
    return workers * read_units / (max(pause, failover_time / 2) if workers == 1 else pause)


def _divided(workers: int, segments: int, leases: int, read_units: float, failover_time: float) -> float:
    """Read units a second of a fleet that looks at parts."""
    # An eventually consistent read counts in steps of half a unit.
    of_each, looks = math.ceil(2 * read_units / segments) / 2, segments * min(WATCHERS, workers)
    part = _part_pause(workers, max(1.0, looks / workers) * of_each, failover_time)
    whole = _whole_pause(workers, leases, read_units, failover_time)
    return looks * of_each / part + workers * read_units / whole


def shows_news(before: LeaseView, after: LeaseView, keys: Iterable[str], failover_time: float) -> bool:
    """Whether one of these rows is in a state that somebody may have to act on, and was not before."""
    for key in keys:
        state = _state(after, key, failover_time)
        if state != "held" and state != _state(before, key, failover_time):
            return True
    return False


def may_be_taken(view: LeaseView, keys: Iterable[str], failover_time: float) -> bool:
    """Whether one of these rows is free or silent; whether anybody may read from it yet is not looked at. Quick."""
    return any(_state(view, key, failover_time) in ("free", "silent") for key in keys)


def _state(view: LeaseView, key: str, failover_time: float) -> str:
    lease = view.leases.get(key)
    if lease is None:
        return "missing"
    if lease.is_ended:
        return "ended"
    if lease.owner is None:
        return "free"
    return "silent" if view.is_expired(key, failover_time) else "held"
