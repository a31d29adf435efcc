"""What has been, for as long as the charts reach back: lag per lease, who had it when, and records by worker.

All times are epoch milliseconds. Nothing here is written anywhere: a page that is started later begins empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pykcl.operate.lease_states import LeaseStatus
from pykcl.ui.rows import Measured

WINDOW_MILLIS = 15 * 60_000
MOST_POINTS = 450_000
"""Of lag, of all leases together: some 40 MB."""
_SHORTEST_STEP = 900
GONE = "GONE"
"""The state of a lease whose row was deleted."""

Point = tuple[int, float | None]


class LagHistory:
    """Points per lease, not closer together than memory allows."""

    def __init__(self, window: int = WINDOW_MILLIS) -> None:
        self._window = window
        self._points: dict[str, deque[Point]] = {}

    def add(self, lags: Mapping[str, Measured], now: int) -> dict[str, Point]:
        """What is new among these, by lease key."""
        step = max(_SHORTEST_STEP, self._window * len(lags) // MOST_POINTS)
        fresh: dict[str, Point] = {}
        for key, lag in lags.items():
            points = self._points.setdefault(key, deque())
            if not points or lag.at >= points[-1][0] + step:
                fresh[key] = point = (lag.at, None if lag.behind is None else round(lag.behind, 3))
                points.append(point)
        self._forget(now - self._window)
        return fresh

    def all(self) -> dict[str, list[Point]]:
        return {key: list(points) for key, points in self._points.items() if points}

    def _forget(self, before: int) -> None:
        for key in list(self._points):
            points = self._points[key]
            # One point from before stays, so that a line begins at the edge of its chart.
            while len(points) > 1 and points[1][0] < before:
                points.popleft()
            if points[-1][0] < before:
                del self._points[key]


@dataclass(frozen=True, slots=True)
class Span:
    """From `at` on, until the next one: whose it is, and in which state."""

    at: int
    owner: str | None
    state: str


class OwnerHistory:
    """Who had each lease when. parents: of every lease that was seen in the window."""

    def __init__(self, window: int = WINDOW_MILLIS) -> None:
        self._window = window
        self._spans: dict[str, list[Span]] = {}
        self.parents: dict[str, tuple[str, ...]] = {}

    def add(self, states: Mapping[str, LeaseStatus], now: int) -> dict[str, Span]:
        """What has changed, by lease key."""
        fresh: dict[str, Span] = {}
        for key, status in states.items():
            if status.lease is None:
                continue
            self.parents[key] = status.lease.parents
            self._note(fresh, key, Span(now, status.owner, status.state.value))
        for key in self._spans.keys() - states.keys():
            self._note(fresh, key, Span(now, None, GONE))
        self._forget(now - self._window)
        return fresh

    def all(self) -> dict[str, list[Span]]:
        return {key: list(spans) for key, spans in self._spans.items()}

    def _note(self, fresh: dict[str, Span], key: str, span: Span) -> None:
        spans = self._spans.setdefault(key, [])
        if not spans or (spans[-1].owner, spans[-1].state) != (span.owner, span.state):
            spans.append(span)
            fresh[key] = span

    def _forget(self, before: int) -> None:
        for key in list(self._spans):
            spans = self._spans[key]
            while len(spans) > 1 and spans[1].at < before:
                del spans[0]
            if spans[-1].state == GONE and spans[-1].at < before:
                del self._spans[key]
                self.parents.pop(key, None)


@dataclass(slots=True)
class RateHistory:
    """How much each worker does per second, from totals that only grow. Points are `step` apart at least."""

    step: int = 2000
    window: int = WINDOW_MILLIS
    _last: dict[str, tuple[int, float]] = field(default_factory=dict)
    _due: int = 0
    _points: deque[tuple[int, dict[str, float]]] = field(default_factory=deque)

    def add(self, totals: Mapping[str, float], now: int) -> tuple[int, dict[str, float]] | None:
        """The new point, if it is time for one: worker -> per second; who is not in it is unknown."""
        if now < self._due:
            return None
        self._due = now + self.step
        rates = {}
        for worker, total in totals.items():
            before = self._last.get(worker)
            self._last[worker] = (now, total)
            # A total that fell is another process of that name: unknown until the next look.
            if before is not None and total >= before[1] and now > before[0]:
                rates[worker] = round((total - before[1]) * 1000 / (now - before[0]), 3)
        for worker in self._last.keys() - totals.keys():
            del self._last[worker]
        if not rates and not self._points:
            return None
        self._points.append((now, rates))
        while self._points and self._points[0][0] < now - self.window:
            self._points.popleft()
        return now, rates

    def all(self) -> list[tuple[int, dict[str, float]]]:
        return list(self._points)
