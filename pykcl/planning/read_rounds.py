"""When shards at rest are read next, and together: a read right behind another costs a fraction of one by itself.

What a thread needs to ask for a page and to take it in is gone from the processor's caches when it has slept. So reads
that may come a little sooner or later come in one go; and shards with the same pause, once together, stay together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pykcl.planning.read_pace import ReadPace


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
