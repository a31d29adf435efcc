"""Scan schedule: the pauses between scans of the lease table, and the segments of it that a worker scans.

In a small fleet each worker scans all of the table about once a second. The cost of that grows with leases times
workers, and in a large fleet exceeds that of all heartbeats. There each worker scans its own segments (of a parallel
scan) every few seconds: together the workers see each row twice in that time, for the price of two scans, whatever
their number. A ring of the workers assigns the segments: when a worker leaves, only its segments go to others, which
have to see them for the failover time before they know that a lease stands still.

All of the table is scanned seldom, and at once when a segment shows something new: a lease that is free or silent, a
new row, a shard that has ended. Nothing is decided by a segment alone; a lease is silent by the ordinary rule. A worker
that sees a free or silent lease in its segments prefers it to others, and soon takes it even beyond its share: the
others may not know of it for long, and will even it out.
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

LeaseScanMode = Literal["auto", "full", "segmented"]
"""As in `pykcl.config`, which lies below."""

WORKERS_PER_SEGMENT = 2
"""More than one, because workers know each other from rows, and at times not all know the same."""
MIN_SEGMENT_UNITS = 1.0
"""Read units of a segment, at least: a scan of less costs hardly less."""
UNITS_PER_LEASE = 0.045
"""Read units a second that the fleet spends on scans of all the table, for each lease: 4.5 % of what its heartbeats
cost (0.2 write units a second, of which each costs as much as 5 read units)."""
_MAX_IDLE_PAUSE = 30.0
"""Failover times between two scans of all the table, at most."""
_MAX_SEGMENT_PAUSE = 0.25
"""Failover times between two scans of a segment, at most: that is how late a free or silent lease is noticed."""
_WORKERS_PER_SECOND = 50.0
"""The size of a fleet in which a segment is scanned every second; in one twice as large every two."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Pauses between scans, in seconds.

    busy_pause, idle_pause: between two scans of all the table, while there is something to do and while there is not.
    segment_pause: between two scans of the segments `my_segments` of `segments`; None: the table is not divided.
    """

    busy_pause: float
    idle_pause: float
    segment_pause: float | None = None
    my_segments: tuple[int, ...] = ()
    segments: int = 1


def plan_scans(
    *,
    mode: LeaseScanMode,
    worker: str,
    others: Collection[str],
    leases: int,
    read_units: float,
    failover_time: float,
    max_leases: int = 1000,
) -> ScanPlan:
    """Return the plan until the next scan of all the table.

    others: the pykcl workers beside `worker` that hold leases; Java's scan for themselves. leases: rows of the table.
    read_units: of the last scan of all of it. failover_time: seconds. max_leases: of each worker.
    """
    busy = _busy_pause(read_units, failover_time)
    fleet = {worker, *others}
    segments = _segments(mode, len(fleet), leases, read_units, failover_time, max_leases)
    if segments == 0:
        return ScanPlan(busy, busy)
    mine = tuple(n for n, workers in enumerate(_workers_of(fleet, segments)) if worker in workers)
    segment_pause = _segment_pause(len(fleet), len(mine) * read_units / segments, failover_time)
    idle = _idle_pause(len(fleet), leases, read_units, failover_time)
    if len(mine) == segments:
        mine, segments = (0,), 1
    return ScanPlan(busy, idle, segment_pause, mine, segments)


def _shortest_pause(failover_time: float) -> float:
    """Return the pause between two scans of any kind: about a second."""
    return min(1.0, failover_time / 2)


def _busy_pause(read_units: float, failover_time: float) -> float:
    wanted = max(_shortest_pause(failover_time), read_units / READ_UNITS_PER_SECOND)
    return min(wanted, 2 * failover_time)


def _idle_pause(workers: int, leases: int, read_units: float, failover_time: float) -> float:
    wanted = workers * read_units / (UNITS_PER_LEASE * max(1, leases))
    return min(max(_busy_pause(read_units, failover_time), wanted), _MAX_IDLE_PAUSE * failover_time)


def _segment_pause(workers: int, read_units: float, failover_time: float) -> float:
    """read_units: of one scan of a worker's segments."""
    by_workers = min(workers / _WORKERS_PER_SECOND, _MAX_SEGMENT_PAUSE * failover_time)
    wanted = max(_shortest_pause(failover_time), by_workers)
    return min(max(wanted, read_units / READ_UNITS_PER_SECOND), failover_time / 2)


def _segments(
    mode: LeaseScanMode, workers: int, leases: int, read_units: float, failover_time: float, max_leases: int
) -> int:
    """Return the number of segments for the fleet; 0: the table is not divided. max_leases: of each worker."""
    if mode == "full":
        return 0
    if mode == "segmented":
        return _power_of_two(workers // WORKERS_PER_SEGMENT)
    # Where the fleet hardly has room for all leases, those who scan one may be full, and the others not know of it.
    is_tight = max_leases * workers < 2 * leases
    wanted = min(workers // WORKERS_PER_SEGMENT, int(read_units / MIN_SEGMENT_UNITS))
    if is_tight or wanted < 2:
        return 0
    segments = _power_of_two(wanted)
    undivided = workers * read_units / _busy_pause(read_units, failover_time)
    return segments if _divided(workers, segments, leases, read_units, failover_time) < undivided else 0


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`, at least 1: it seldom changes, and with it all segments do."""
    return 1 << max(0, number.bit_length() - 1)


def _workers_of(fleet: Collection[str], segments: int) -> list[set[str]]:
    """Return the workers of each segment: those that come next to it on the ring."""
    ring = sorted((crc32(name.encode()), name) for name in fleet)
    found = []
    for number in range(segments):
        first = bisect_left(ring, (crc32(b"segment %d" % number), ""))
        found.append({ring[(first + step) % len(ring)][1] for step in range(WORKERS_PER_SEGMENT)})
    return found


def units_per_second(
    *,
    mode: LeaseScanMode,
    workers: int,
    leases: int,
    read_units: float,
    failover_time: float,
    max_leases: int = 1000,
) -> float:
    """Return the read units a second that an idle fleet of pykcl workers spends on scans.

    read_units: of one scan of all the table.
    """
    segments = _segments(mode, workers, leases, read_units, failover_time, max_leases)
    if segments:
        return _divided(workers, segments, leases, read_units, failover_time)
    pause = _busy_pause(read_units, failover_time)
    # Alone a worker holds every lease.
    return workers * read_units / (max(pause, failover_time / 2) if workers == 1 else pause)


def _divided(workers: int, segments: int, leases: int, read_units: float, failover_time: float) -> float:
    """Return the read units a second of an idle fleet that scans segments."""
    # An eventually consistent read counts in steps of half a unit.
    of_each, scans = math.ceil(2 * read_units / segments) / 2, segments * min(WORKERS_PER_SEGMENT, workers)
    segment_pause = _segment_pause(workers, max(1.0, scans / workers) * of_each, failover_time)
    idle = _idle_pause(workers, leases, read_units, failover_time)
    return scans * of_each / segment_pause + workers * read_units / idle


def shows_news(before: LeaseView, after: LeaseView, keys: Iterable[str], failover_time: float) -> bool:
    """Return whether one of these rows has come into a state that a worker may have to act on."""
    for key in keys:
        state = _state(after, key, failover_time)
        if state != "held" and state != _state(before, key, failover_time):
            return True
    return False


def may_be_taken(view: LeaseView, keys: Iterable[str], failover_time: float) -> bool:
    """Return whether one of these rows is free or silent. Quick, as it does not check that the lease may be read."""
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
