"""When retention may have taken records in front of a reader: a position in stream time, held against the retention."""

from __future__ import annotations

from math import inf
from typing import Final

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
