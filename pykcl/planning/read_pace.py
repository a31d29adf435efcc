"""When one shard is read next: as soon as it allows while behind, at rest while caught up, later where others read too.

A shard answers five reads and 2 MiB a second to all its readers together (Kinesis quotas; after a page of 10 MiB it
answers nobody for five seconds). Times are of a monotonic clock, in seconds, and count from the answer: the shard
counted that read at some moment before it, so that no delay on the way brings two reads closer together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from pykcl.planning.pace import SHARD_READ_INTERVAL

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
