"""Read schedule: the next read of a shard, the next heartbeats, and a reader that retention may have overtaken.

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
"""The most that one worker spends on scanning the lease table."""


def jittered(seconds: float, rng: Random) -> float:
    """Spread a pause by 10 %, so that a fleet that started together does not scan together for ever."""
    return seconds * rng.uniform(0.9, 1.1)


def backoff(attempt: int, rng: Random, *, first: float = 0.1, longest: float = 30.0) -> float:
    """Return the seconds before attempt `attempt` + 1 (1 = after the first failure): exponential, with jitter."""
    return min(longest, first * 2.0 ** min(attempt - 1, 32)) * rng.uniform(0.5, 1.0)


BYTES_PER_SECOND: Final = 2 * 1024 * 1024
SMALL_PAGE: Final = int(SHARD_READ_INTERVAL * BYTES_PER_SECOND)
"""Bytes of a page up to which the limit is the reads a second, not the bytes a second."""
BUSY_INTERVAL: Final = 0.25
QUIET_INTERVAL: Final = 1.0
SOONER: Final = 0.1
LATER, QUIET_LATER = 0.05, 0.5
"""Parts of a caught-up shard's pause by which its next read may come sooner, or later, to come together with others,
and later where nothing has come for a while. That is once: together they stay together."""
_QUIET: Final = 3
MIN_SHARE: Final = 1 / 20
SHARE_REGAINED_PER_SECOND: Final = 1 / 60


@dataclass(frozen=True, slots=True)
class ReadSchedule:
    """The schedule of one shard's reads.

    share: the part of the shard's rate to ask for, as of `at`; less than 1 after a refusal showed that others read it,
    too. pause: seconds, as last decided; at least `min_pause`, and at most `max_pause` for a shard that is caught up.
    quiet_reads: the number of reads in a row that returned no records.
    """

    share: float = 1.0
    at: float = 0.0
    pause: float = SHARD_READ_INTERVAL
    min_pause: float = SHARD_READ_INTERVAL
    max_pause: float = SHARD_READ_INTERVAL
    quiet_reads: int = 0

    def share_at(self, now: float) -> float:
        """The share grows by the second, not by the read: so all readers of a shard end up with the same."""
        return min(1.0, self.share + max(0.0, now - self.at) * SHARE_REGAINED_PER_SECOND)


def after_page(
    schedule: ReadSchedule,
    now: float,
    *,
    records: int,
    size: int,
    millis_behind: int | None,
    idle_time_between_reads: float | None,
) -> ReadSchedule:
    """Return the schedule after a page that came at `now`: the next read is due `pause` seconds later.

    size: bytes of data and partition keys; of a page up to SMALL_PAGE any number up to that will do.
    idle_time_between_reads: seconds between reads of a shard that is caught up; None: BUSY_INTERVAL while
    records come, up to QUIET_INTERVAL while none do.
    """
    share = schedule.share_at(now)
    allowed = max(SHARD_READ_INTERVAL, size / BYTES_PER_SECOND) / share
    quiet_reads = 0 if records else schedule.quiet_reads + 1
    if millis_behind:
        return ReadSchedule(share, now, allowed, allowed, allowed, quiet_reads)
    if idle_time_between_reads is not None:
        pause = min_pause = max(allowed, idle_time_between_reads)
    else:
        pause = max(allowed, min(BUSY_INTERVAL * 2.0 ** min(quiet_reads, 8), QUIET_INTERVAL))
        min_pause = max(allowed, pause * (1 - SOONER))
    later = QUIET_LATER if quiet_reads >= _QUIET else LATER
    return ReadSchedule(share, now, pause, min_pause, pause * (1 + later), quiet_reads)


def after_throttling(schedule: ReadSchedule, now: float) -> ReadSchedule:
    """Return the schedule after a throttled read: half the share, which grows again slowly."""
    share = max(schedule.share_at(now) / 2, MIN_SHARE)
    return replace(schedule, share=share, at=now)


def throttled_pause(schedule: ReadSchedule, rng: Random) -> float:
    """Return the seconds from a throttled read to the next attempt: at least as long as after a page.

    Spread, because readers that were throttled together would otherwise come back together.
    """
    return max(schedule.pause, SHARD_READ_INTERVAL / schedule.share) * rng.uniform(1.0, 1.5)


@dataclass(frozen=True, slots=True)
class PollWindow:
    """The time of a shard's next read, in monotonic seconds: from `earliest` to `latest`, best at `due`."""

    earliest: float
    due: float
    latest: float


def poll_window(schedule: ReadSchedule) -> PollWindow:
    """Return the window of the next read."""
    return PollWindow(
        schedule.at + schedule.min_pause, schedule.at + schedule.pause, schedule.at + schedule.max_pause
    )


def next_poll(windows: Iterable[PollWindow]) -> float:
    """Return the time of the next reads; infinity without windows.

    That is the due time of the first shard, or later, with the last of those that are due before that one's latest
    time. All shards whose earliest time has come by then are read.
    """
    windows = list(windows)
    deadline = min((window.latest for window in windows), default=float("inf"))
    return max((window.due for window in windows if window.due <= deadline), default=deadline)


_SLACK: Final = 0.1

Key = TypeVar("Key", bound=Hashable)


def heartbeat_slack(interval: float) -> float:
    """Return the seconds by which a heartbeat may be early, to be sent together with others. It is never late.

    interval: from one heartbeat to the next. Leases whose heartbeats are sent together stay together: then none is
    early.
    """
    return interval * _SLACK


def heartbeats_due(left: Mapping[Key, float], slack: float) -> tuple[tuple[Key, ...], float]:
    """Return the leases to send heartbeats for now, and the seconds until the next one is due; infinity without one.

    left: seconds until the heartbeat of each lease is due. Once one is due, those due within `slack` seconds are sent
    with it.
    """
    now = (
        [key for key, seconds in left.items() if seconds <= slack]
        if min(left.values(), default=1.0) <= 0
        else []
    )
    chosen = set(now)
    later = [seconds for key, seconds in left.items() if key not in chosen]
    return tuple(sorted(now, key=lambda key: left[key])), min(later, default=float("inf"))


_NEAR: Final = 0.9
"""The part of the retention period after which every page that brings records is checked for trimming."""
_SAFE: Final = 0.99
"""The part of a retention period in which nothing is trimmed, however MillisBehindLatest is rounded."""
ALWAYS_KEPT_MILLIS: Final = 24 * 3_600_000 * _SAFE
"""No stream keeps its records for less than 24 h (API reference, DecreaseStreamRetentionPeriod)."""
_ORDINARY_GAP_MILLIS: Final = 60_000
"""Between two records of a stream that nobody wrote to for as long."""


def is_near(millis_behind: int, retention_millis: int) -> bool:
    """Return whether a position so far behind the tip is about to be trimmed."""
    return millis_behind > retention_millis * _NEAR


def min_doubtful_gap(reached_behind: float, retention_millis: int, last_age_millis: float) -> float:
    """Return the smallest gap, in milliseconds, between two delivered records in which records may be missing.

    An iterator that is still good passes over trimmed records in silence. Infinite where nothing can be missing, 0 at
    the trim horizon. Asked at each page, also at empty ones.

    reached_behind: milliseconds behind the tip at which the iterator stood before. retention_millis: as Kinesis said
    last; it may have been lowered since. last_age_millis: since the last delivered record arrived.

    1) The retention is lowered from 168 h to 24 h while a reader is 40 h behind; 2) its iterator is still good, and the
    next page begins 24 h behind; 3) until the next listing the reader takes 40 h for far from the horizon. So it counts
    wherever the shortest retention could have trimmed, but only as long as the last delivered record itself must be
    there by what is known: one that may be gone by its age proves nothing.
    """
    if reached_behind < ALWAYS_KEPT_MILLIS:
        return inf
    if reached_behind >= retention_millis * _SAFE:
        return 0.0
    return _ORDINARY_GAP_MILLIS if last_age_millis < retention_millis * _SAFE else inf
