"""When shards are read next, when heartbeats are sent, and when retention may have overtaken a reader.

A shard answers five reads and 2 MiB a second to all its readers together (Kinesis quotas; after a page of 10 MiB it
answers nobody for five seconds). One that lags is read as soon as it allows, one that is caught up at rest, later where
others read it, too. A thread that wakes up finds cold CPU caches: a read or a heartbeat right after another one costs a
fraction of one by itself, so those that may move a little are sent together.

Times are of a monotonic clock, in seconds, and count from the answer: the shard counted that read at some moment before
it, so that no delay on the way brings two reads closer together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Final, TypeVar

SHARD_READ_INTERVAL = 0.2
"""Kinesis allows five reads per second and shard."""
READ_UNITS_PER_SECOND = 5.0
"""What one worker spends at most on scanning the lease table."""


def jittered(seconds: float, rng: Random) -> float:
    """So that a fleet that started at once does not look at once for ever."""
    return seconds * rng.uniform(0.9, 1.1)


def backoff(attempt: int, rng: Random, *, first: float = 0.1, longest: float = 30.0) -> float:
    """Seconds before attempt `attempt` + 1 (1 = after the first failure): exponential, with jitter."""
    return min(longest, first * 2.0 ** min(attempt - 1, 32)) * rng.uniform(0.5, 1.0)


BYTES_PER_SECOND: Final = 2 * 1024 * 1024
SMALL_PAGE: Final = int(SHARD_READ_INTERVAL * BYTES_PER_SECOND)
"""Bytes up to which the reads a second are what bounds, whatever the page weighs exactly."""
BUSY_INTERVAL: Final = 0.25
QUIET_INTERVAL: Final = 1.0
SOONER: Final = 0.1
LATER, QUIET_LATER = 0.05, 0.5
"""Parts of a caught-up shard's pause by which its next read may come sooner, or later, to come together with others,
and later where nothing has come for a while. That is once: together they stay together."""
_QUIET: Final = 3
LEAST_SHARE: Final = 1 / 20
SHARE_REGAINED_PER_SECOND: Final = 1 / 60


@dataclass(frozen=True, slots=True)
class ReadPace:
    """What is known about one shard's reads so far.

    share: the part of the shard's rate that we ask for, as of `at`; less than 1 after others were seen to use it, too.
    pause: seconds, as last decided; never less than `least`, and a caught-up shard may be left alone for `most`.
    quiet_reads: how many reads in a row brought nothing.
    """

    share: float = 1.0
    at: float = 0.0
    pause: float = SHARD_READ_INTERVAL
    least: float = SHARD_READ_INTERVAL
    most: float = SHARD_READ_INTERVAL
    quiet_reads: int = 0

    def share_at(self, now: float) -> float:
        """It grows by the second, not by the read: then all readers of a shard grow alike, and end up with as much."""
        return min(1.0, self.share + max(0.0, now - self.at) * SHARE_REGAINED_PER_SECOND)


def after_page(
    pace: ReadPace, now: float, *, records: int, size: int, millis_behind: int | None, idle_time: float | None
) -> ReadPace:
    """The next read comes `pause` seconds after `now`, when the page was there.

    size: bytes of data and partition keys; of a page up to SMALL_PAGE any number up to that will do. idle_time: between
    reads of a shard that is caught up; None: BUSY_INTERVAL while records come, up to QUIET_INTERVAL while none do.
    """
    share = pace.share_at(now)
    allowed = max(SHARD_READ_INTERVAL, size / BYTES_PER_SECOND) / share
    quiet_reads = 0 if records else pace.quiet_reads + 1
    if millis_behind:
        return ReadPace(share, now, allowed, allowed, allowed, quiet_reads)
    if idle_time is not None:
        pause = least = max(allowed, idle_time)
    else:
        pause = max(allowed, min(BUSY_INTERVAL * 2.0 ** min(quiet_reads, 8), QUIET_INTERVAL))
        least = max(allowed, pause * (1 - SOONER))
    later = QUIET_LATER if quiet_reads >= _QUIET else LATER
    return ReadPace(share, now, pause, least, pause * (1 + later), quiet_reads)


def after_throttling(pace: ReadPace, now: float) -> ReadPace:
    """A read was refused for its rate: ask for half as much, and grow again slowly."""
    share = max(pace.share_at(now) / 2, LEAST_SHARE)
    return replace(pace, share=share, at=now)


def throttled_pause(pace: ReadPace, rng: Random) -> float:
    """Seconds from a refusal to the next attempt: never sooner than a page would have been followed by the next read.

    Spread, because those who were refused together would else come back together.
    """
    return max(pace.pause, SHARD_READ_INTERVAL / pace.share) * rng.uniform(1.0, 1.5)


@dataclass(frozen=True, slots=True)
class Window:
    """When a shard is read next, in monotonic seconds: not before `earliest`, best at `due`, and not after `latest`."""

    earliest: float
    due: float
    latest: float


def window_of(pace: ReadPace) -> Window:
    """Of the read that follows the one after which this pace was decided."""
    return Window(pace.at + pace.least, pace.at + pace.pause, pace.at + pace.most)


def next_round(windows: Iterable[Window]) -> float:
    """When to read again: as soon as the first shard is due, or later, with the last of those that are due before that
    one's latest time. All whose earliest time has come by then are read. Infinity where there are no windows."""
    windows = list(windows)
    deadline = min((window.latest for window in windows), default=float("inf"))
    return max((window.due for window in windows if window.due <= deadline), default=deadline)


_GIVE: Final = 0.1

Key = TypeVar("Key", bound=Hashable)


def heartbeat_give(interval: float) -> float:
    """Seconds by which a heartbeat may come too soon, to come together with others. Never too late.

    interval: from one heartbeat to the next. Leases that have theirs together keep them so: then none comes too soon.
    """
    return interval * _GIVE


def heartbeats_due(left: Mapping[Key, float], give: float) -> tuple[tuple[Key, ...], float]:
    """The leases to send heartbeats for now, and the seconds until the next one is due; infinity if there is none.

    left: seconds until each one's is due. Where one is due, those go along that will be within `give` seconds.
    """
    now = (
        [key for key, seconds in left.items() if seconds <= give]
        if min(left.values(), default=1.0) <= 0
        else []
    )
    chosen = set(now)
    later = [seconds for key, seconds in left.items() if key not in chosen]
    return tuple(sorted(now, key=lambda key: left[key])), min(later, default=float("inf"))


_NEAR: Final = 0.9
"""Part of the retention period from which on trimming is watched for at every page that brings records."""
_SAFE: Final = 0.99
"""Part of a retention period within which nothing is trimmed, however MillisBehindLatest is rounded."""
ALWAYS_KEPT_MILLIS: Final = 24 * 3_600_000 * _SAFE
"""No stream keeps its records for less than 24 h (API reference, DecreaseStreamRetentionPeriod)."""
_ORDINARY_GAP_MILLIS: Final = 60_000
"""Between two records of a stream that nobody wrote to for as long."""


def is_near(millis_behind: int, retention_millis: int) -> bool:
    """Whether a position so far behind the tip is about to be trimmed."""
    return millis_behind > retention_millis * _NEAR


def least_doubtful_gap(reached_behind: float, retention_millis: int, last_age_millis: float) -> float:
    """The gap, in milliseconds, between the last delivered record and the next one from which on records may be
    missing, which a good iterator passes in silence. Infinite where nothing can be missing, 0 at the trim horizon.

    Judged at each page, also at empty ones. reached_behind: how far behind the tip the iterator stood before, in
    milliseconds. retention_millis: as Kinesis said last; it may have been lowered since. last_age_millis: since the
    last delivered record arrived.

    1) The retention is lowered from 168 h to 24 h while a reader is 40 h behind; 2) its iterator is still good, and the
    next page begins 24 h behind; 3) until the next listing the reader takes 40 h for far from the horizon. So it counts
    wherever the least retention could have trimmed, but only as long as the last delivered record itself must be there
    by what is known: one that may be gone by its age proves nothing.
    """
    if reached_behind < ALWAYS_KEPT_MILLIS:
        return inf
    if reached_behind >= retention_millis * _SAFE:
        return 0.0
    return _ORDINARY_GAP_MILLIS if last_age_millis < retention_millis * _SAFE else inf
