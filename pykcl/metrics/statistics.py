"""Statistics of each metric and minute, as CloudWatch takes them; bounded, and lossy rather than slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pykcl.metrics.meter import Value
from pykcl.metrics.names import Measure
from pykcl.runtime import Runtime

Key = tuple[int, Measure, str]
_MINUTE = 60_000


@dataclass(slots=True)
class StatisticSet:
    """One metric in one minute. at_millis: when that began, epoch milliseconds."""

    measure: Measure
    label: str
    at_millis: int
    count: int
    sum: float
    least: float
    most: float


class Statistics:
    """A sink that waits to be emptied. Thread-safe.

    limit: how many sets it holds at most; beyond it the oldest go, and `dropped` counts the values in them.
    """

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self._runtime = runtime
        self._limit = limit
        self._lock = runtime.lock()
        self._sets: OrderedDict[Key, StatisticSet] = OrderedDict()
        self._dropped = 0

    def take(self, label: str, values: Sequence[Value]) -> None:
        minute = self._runtime.utcnow_millis() // _MINUTE
        with self._lock:
            for measure, value in values:
                key = (minute, measure, label if measure.is_labelled else "")
                found = self._sets.get(key)
                if found is None:
                    self._make_room()
                    self._sets[key] = StatisticSet(measure, key[2], minute * _MINUTE, 1, value, value, value)
                    continue
                found.count += 1
                found.sum += value
                # Not min() and max(): this is on the way of every page, and they cost three times as much.
                if value < found.least:  # noqa: PLR1730
                    found.least = value
                if value > found.most:  # noqa: PLR1730
                    found.most = value

    def forget(self, shard: str) -> None:
        """What was measured of it was so, and is sent all the same."""

    def drain(self, most: int, *, only_finished: bool = False) -> list[StatisticSet]:
        """Take out the oldest. only_finished: none of the minute that runs."""
        before = self._runtime.utcnow_millis() // _MINUTE * _MINUTE if only_finished else None
        found: list[StatisticSet] = []
        with self._lock:
            while self._sets and len(found) < most:
                key, oldest = self._sets.popitem(last=False)
                if before is not None and oldest.at_millis >= before:
                    self._sets[key] = oldest
                    self._sets.move_to_end(key, last=False)
                    break
                found.append(oldest)
        return found

    def put_back(self, sets: Iterable[StatisticSet]) -> None:
        """What was drained and could not be sent, to be drained first again. Where there is no room it is dropped."""
        with self._lock:
            for one in reversed(list(sets)):
                key = (one.at_millis // _MINUTE, one.measure, one.label)
                newer = self._sets.get(key)
                if newer is not None:
                    newer.count += one.count
                    newer.sum += one.sum
                    newer.least, newer.most = min(newer.least, one.least), max(newer.most, one.most)
                elif len(self._sets) < self._limit:
                    self._sets[key] = one
                    self._sets.move_to_end(key, last=False)
                else:
                    self._dropped += one.count

    def drop(self, sets: Iterable[StatisticSet]) -> None:
        """Count the values of what was drained and is given up."""
        with self._lock:
            self._dropped += sum(one.count for one in sets)

    def take_dropped(self) -> int:
        """How many values were dropped since the last time this was asked."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def __len__(self) -> int:
        with self._lock:
            return len(self._sets)

    def _make_room(self) -> None:
        if len(self._sets) >= self._limit:
            # The oldest: what is wrong now matters more to who is looking than what was, an hour ago.
            self._dropped += self._sets.popitem(last=False)[1].count
