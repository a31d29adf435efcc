"""Statistics of each metric and minute, as CloudWatch takes them, and the thread that sends them in batches.

They are bounded, and lossy rather than slow: sending is never in the way of the worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pykcl.errors import InternalError, PyKclError
from pykcl.metrics.catalog import DROPPED_METRICS, Measure
from pykcl.metrics.meter import Value
from pykcl.runtime import Runtime, Task
from pykcl.status import Activity

Key = tuple[int, Measure, str]
_MINUTE_MILLIS = 60_000


@dataclass(slots=True)
class StatisticSet:
    """One metric in one minute. at_millis: start of the minute, epoch milliseconds."""

    measure: Measure
    label: str
    at_millis: int
    count: int
    sum: float
    minimum: float
    maximum: float


class Statistics:
    """A sink that keeps statistics until they are drained. Thread-safe.

    limit: the maximum of sets it holds; beyond it the oldest are dropped, and their values counted.
    """

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self._runtime = runtime
        self._limit = limit
        self._lock = runtime.lock()
        self._sets: OrderedDict[Key, StatisticSet] = OrderedDict()
        self._dropped = 0

    def take(self, label: str, values: Sequence[Value]) -> None:
        minute = self._runtime.utcnow_millis() // _MINUTE_MILLIS
        with self._lock:
            for measure, value, own in _keyed(label, values):
                key = (minute, measure, own)
                found = self._sets.get(key)
                if found is None:
                    self._make_room()
                    self._sets[key] = StatisticSet(
                        measure, key[2], minute * _MINUTE_MILLIS, 1, value, value, value
                    )
                    continue
                found.count += 1
                found.sum += value
                # Not min() and max(): this is on the way of every page, and they cost three times as much.
                if value < found.minimum:  # noqa: PLR1730
                    found.minimum = value
                if value > found.maximum:  # noqa: PLR1730
                    found.maximum = value

    def forget(self, shard: str) -> None:
        """Do nothing: what was measured of the shard is still sent."""

    def drain(self, limit: int, *, only_finished: bool = False) -> list[StatisticSet]:
        """Remove and return the oldest sets. only_finished: none of the current minute."""
        before = self._runtime.utcnow_millis() // _MINUTE_MILLIS * _MINUTE_MILLIS if only_finished else None
        found: list[StatisticSet] = []
        with self._lock:
            while self._sets and len(found) < limit:
                key, oldest = self._sets.popitem(last=False)
                if before is not None and oldest.at_millis >= before:
                    self._sets[key] = oldest
                    self._sets.move_to_end(key, last=False)
                    break
                found.append(oldest)
        return found

    def put_back(self, sets: Iterable[StatisticSet]) -> None:
        """Put back what was drained and could not be sent, to be drained first again. Without room it is dropped."""
        with self._lock:
            for one in reversed(list(sets)):
                key = (one.at_millis // _MINUTE_MILLIS, one.measure, one.label)
                newer = self._sets.get(key)
                if newer is not None:
                    newer.count += one.count
                    newer.sum += one.sum
                    newer.minimum, newer.maximum = (
                        min(newer.minimum, one.minimum),
                        max(newer.maximum, one.maximum),
                    )
                elif len(self._sets) < self._limit:
                    self._sets[key] = one
                    self._sets.move_to_end(key, last=False)
                else:
                    self._dropped += one.count

    def drop(self, sets: Iterable[StatisticSet]) -> None:
        """Count the values of sets that were drained and are not sent."""
        with self._lock:
            self._dropped += sum(one.count for one in sets)

    def take_dropped(self) -> int:
        """Return the number of values dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def __len__(self) -> int:
        with self._lock:
            return len(self._sets)

    def _make_room(self) -> None:
        if len(self._sets) >= self._limit:
            # The oldest: the present matters more to an operator than an hour ago.
            self._dropped += self._sets.popitem(last=False)[1].count


def _keyed(label: str, values: Sequence[Value]) -> Iterator[tuple[Measure, float, str]]:
    for measure, value in values:
        own = label if measure.is_labelled else ""
        yield measure, value, own
        if own and measure.has_total:
            yield measure, value, ""


MAX_METRICS_PER_REQUEST = 1000
"""Metrics in one PutMetricData request, as CloudWatch allows."""
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """sent: accepted. later: certainly not accepted; may be sent again. lost: refused for good, or unknown: sent again
    it might count twice. error: unless it was sent."""

    outcome: Literal["sent", "later", "lost"]
    error: PyKclError | None = None


class Sender(Protocol):
    """Sends one batch. Never raises what can be foreseen."""

    def send(self, sets: Sequence[StatisticSet], /) -> SendAnswer: ...


class Failures(Protocol):
    """Records failures and their end, and reports the first of each."""

    def failed(self, what: Activity, error: Exception, /) -> None: ...
    def worked(self, what: Activity, /) -> None: ...


class Publisher:
    """A thread that sends statistics. Its failures are reported, and never stop the worker.

    interval: seconds between two publications. From a minute on, only minutes that are over are sent, so that each
    metric is sent once a minute, which costs the least; each process draws its own second of the minute, so that a
    fleet does not send all at once.
    """

    def __init__(
        self, statistics: Statistics, sender: Sender, runtime: Runtime, trouble: Failures, *, interval: float
    ) -> None:
        self._statistics = statistics
        self._sender = sender
        self._runtime = runtime
        self._trouble = trouble
        self._interval = interval
        self._only_finished = interval >= _MINUTE
        self._offset = 1 + runtime.random().random() * 10 if self._only_finished else 0.0
        self._stop = runtime.event()
        self._task: Task | None = None

    def start(self, name: str) -> None:
        self._task = self._runtime.spawn(name, self._run)

    def stop(self, within: float) -> None:
        """Send what is left, and wait for that for `within` seconds at most."""
        self._stop.set()
        if self._task is not None:
            self._task.join(within)

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            self._publish_safely(only_finished=self._only_finished)
        self._publish_safely(only_finished=False)

    def _pause(self) -> float:
        if not self._only_finished:
            return self._interval
        past = (self._runtime.utcnow_millis() / 1000 - self._offset) % _MINUTE
        return self._interval - self._interval % _MINUTE - past

    def _publish_safely(self, *, only_finished: bool) -> None:
        try:
            self.publish(only_finished=only_finished)
        except Exception as error:  # noqa: BLE001 - whatever it is, records are worth more than numbers about them
            failure = InternalError(
                f"Publishing metrics met a {type(error).__name__}, which is a bug in pykcl."
            )
            self._trouble.failed(Activity.PUBLISHING_METRICS, failure)

    def publish(self, *, only_finished: bool = False) -> None:
        """Send all sets, until AWS refuses one. only_finished: none of the current minute."""
        left = len(self._statistics)
        dropped = self._statistics.take_dropped()
        if dropped:
            self._statistics.take("", ((DROPPED_METRICS, float(dropped)),))
            left += 1
        while left > 0:
            batch = self._statistics.drain(min(left, MAX_METRICS_PER_REQUEST), only_finished=only_finished)
            left -= MAX_METRICS_PER_REQUEST
            if not batch or not self._send(batch):
                return

    def _send(self, batch: list[StatisticSet]) -> bool:
        try:
            answer = self._sender.send(batch)
        except BaseException:
            self._statistics.drop(batch)
            raise
        if answer.outcome == "sent":
            self._trouble.worked(Activity.PUBLISHING_METRICS)
            return True
        if answer.outcome == "later":
            self._statistics.put_back(batch)
        else:
            self._statistics.drop(batch)
        self._trouble.failed(
            Activity.PUBLISHING_METRICS, answer.error or InternalError("no reason was given")
        )
        return False
