"""What has been, for as long as the charts reach back: lag per lease, who had it when, and records by worker.

All times are epoch milliseconds. Nothing here is written anywhere: a page that is started later begins empty.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pykcl.operate.lease_states import LeaseStatus
from pykcl.operate.worker_pages import WorkerPage
from pykcl.runtime import Runtime
from pykcl.ui.view import Frame, Measured

WINDOW_MILLIS = 15 * 60_000
MAX_POINTS = 450_000
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
        step = max(_SHORTEST_STEP, self._window * len(lags) // MAX_POINTS)
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


Unit = Literal["records", "checkpoints"]
RECORDS_STEP = 2000
CHECKPOINTS_STEP = 10_000
"""Milliseconds from point to point: a worker may checkpoint a few times a minute only."""
_NOT_TOLD = (
    "No worker tells how many records it has processed. Do: run them with --http and "
    "--option metrics=prometheus."
)


class Rates:
    """unit: fixed from the start. note: why there is nothing to see, or what is to be known about it.

    totals: who counts records, worker -> how many so far; None: the workers' own pages do, where there are any.
    """

    def __init__(
        self, *, asks_workers: bool, totals: Callable[[], Mapping[str, float]] | None = None
    ) -> None:
        self.unit: Unit = "records" if asks_workers or totals is not None else "checkpoints"
        self.note = ""
        self._totals = totals
        self._moves: dict[str, float] = {}
        self.history = RateHistory(RECORDS_STEP if self.unit == "records" else CHECKPOINTS_STEP)

    def observe(
        self, now: int, moves: Mapping[str, int], pages: Sequence[WorkerPage]
    ) -> tuple[int, dict[str, float]] | None:
        """The new point, if it is time for one: worker -> per second. moves: checkpoints since the look before."""
        return self.history.add(self._counted(moves, pages), now)

    def _counted(self, moves: Mapping[str, int], pages: Sequence[WorkerPage]) -> Mapping[str, float]:
        if self._totals is not None:
            return self._totals()
        if self.unit == "checkpoints":
            self._moves = {owner: self._moves.get(owner, 0) + count for owner, count in moves.items()}
            self.note = (
                "The lease table does not say how many records are processed, only where each checkpoint is. For "
                "records per second, name the workers' health endpoints: --worker URL."
            )
            return self._moves
        told: dict[str, float] = {}
        for page in pages:
            if page.worker is not None and page.records is not None:
                told[page.worker] = page.records
        self.note = self._who_is_silent(set(told), moves) if told else _NOT_TOLD
        return told

    def _who_is_silent(self, told: set[str], owners: Mapping[str, int]) -> str:
        silent = len(owners.keys() - told)
        return (
            f"{silent} of {len(owners)} owners do not tell their records: not in this chart."
            if silent
            else ""
        )


MAX_EVENTS = 500
RatePoint = tuple[int, dict[str, float]]


def frame(kind: str, number: int, told: Mapping[str, Any]) -> bytes:
    """As it goes over the wire. ASCII on one line: nothing in it can begin another event."""
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    return f"event: {kind}\nid: {number}\ndata: {text}\n\n".encode("ascii")


class StateStore:
    """Written by the thread that looks, read by those that serve."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._number = 0
        self._picture = Frame(0)
        self._facts: dict[str, Any] = {}
        self._lags, self._spans = LagHistory(), OwnerHistory()
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._rates: deque[RatePoint] = deque()

    def fold(
        self,
        picture: Frame,
        *,
        states: Mapping[str, LeaseStatus],
        lags: Mapping[str, Measured],
        rate: RatePoint | None,
        events: Sequence[dict[str, Any]],
        facts: dict[str, Any],
    ) -> tuple[int, bytes]:
        """The number and the frame of what has changed."""
        with self._lock:
            before = self._picture
            change: dict[str, Any] = {
                "at": picture.at,
                "rows": _changed(before.rows, picture.rows),
                "gone": sorted(before.rows.keys() - picture.rows.keys()),
                "owners": _changed(before.owners, picture.owners),
                "lag": self._lags.add(lags, picture.at),
                "spans": {key: _told(span) for key, span in self._spans.add(states, picture.at).items()},
                "events": list(events),
            }
            if rate is not None:
                change["rate"] = rate
                self._rates.append(rate)
                while self._rates[0][0] < picture.at - WINDOW_MILLIS:
                    self._rates.popleft()
            if facts != self._facts:
                change["facts"] = facts
            self._picture, self._facts = picture, facts
            self._events.extend(events)
            return self._next(change)

    def trouble(
        self, at: int, told: dict[str, Any], events: Sequence[dict[str, Any]]
    ) -> tuple[int, bytes] | None:
        """A look that failed: what is known stays, and is told to be old."""
        with self._lock:
            self._facts = {**self._facts, **told}
            self._events.extend(events)
            return self._next({"facts": self._facts, "events": list(events)})

    def whole(self) -> tuple[int, dict[str, Any]]:
        """All of it, and the number of the last change that is in it."""
        with self._lock:
            return self._number, {
                "at": self._picture.at,
                "window": WINDOW_MILLIS,
                "facts": self._facts,
                "rows": dict(self._picture.rows),
                "owners": dict(self._picture.owners),
                "lag": self._lags.all(),
                "spans": {key: list(map(_told, spans)) for key, spans in self._spans.all().items()},
                "parents": {key: one for key, one in self._spans.parents.items() if one},
                "rates": list(self._rates),
                "events": list(self._events),
            }

    def _next(self, change: dict[str, Any]) -> tuple[int, bytes]:
        self._number += 1
        slim = {name: value for name, value in change.items() if value or name == "at"}
        return self._number, frame("change", self._number, slim)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: told for key, told in after.items() if before.get(key) is not told and before.get(key) != told
    }


def _told(span: Span) -> tuple[int, str | None, str]:
    return span.at, span.owner, span.state
