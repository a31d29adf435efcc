"""The thread that sends statistics on: at intervals, in batches, and never in anybody's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pykcl.errors import InternalError, PyKclError
from pykcl.metrics.names import DROPPED_METRICS
from pykcl.metrics.statistics import Statistics, StatisticSet
from pykcl.runtime import Runtime, Task
from pykcl.status import Activity

MOST_AT_ONCE = 1000
"""Metrics in one PutMetricData request, at most; CloudWatch allows no more."""
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """sent: taken. later: certainly not taken; may be sent again. lost: refused for good, or nobody knows: sent again
    it might count twice. error: why, unless it was sent."""

    outcome: Literal["sent", "later", "lost"]
    error: PyKclError | None = None


class Sender(Protocol):
    """Sends one batch. Never raises what can be foreseen."""

    def send(self, sets: Sequence[StatisticSet], /) -> SendAnswer: ...


class Troubles(Protocol):
    """Hears of failures and of their end; tells the first of each."""

    def failed(self, what: Activity, error: Exception, /) -> None: ...
    def worked(self, what: Activity, /) -> None: ...


class Publisher:
    """One thread. A failure of it is told, and never the worker's end.

    interval: seconds between two times it sends all there is. From a minute on, it sends minutes that are over, so that
    each metric is sent once for each minute, which costs the least; at a time of the minute that each process draws, so
    that a fleet does not send as one.
    """

    def __init__(
        self, statistics: Statistics, sender: Sender, runtime: Runtime, trouble: Troubles, *, interval: float
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
        """Send what is left, and wait for that so many seconds at most."""
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
        """Send what there is now, until AWS refuses. only_finished: not of the minute that runs."""
        left = len(self._statistics)
        dropped = self._statistics.take_dropped()
        if dropped:
            self._statistics.take("", ((DROPPED_METRICS, float(dropped)),))
            left += 1
        while left > 0:
            batch = self._statistics.drain(min(left, MOST_AT_ONCE), only_finished=only_finished)
            left -= MOST_AT_ONCE
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
