"""State of the page in memory: rows, owners, events, and the history of the charts (lag, owner and state, throughput);
and the broadcast of each change to the browsers that have the page open.

A new viewer gets the whole state, and then a frame of each change: one server-sent event, the same bytes for every
viewer. All times are epoch milliseconds. Nothing is stored on disk: a page that is started later has an empty history.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pykcl.operate.states import LeaseStatus
from pykcl.operate.worker_status import WorkerReport
from pykcl.runtime import Runtime
from pykcl.ui.view import Measured, PageView

WINDOW_MILLIS = 15 * 60_000
MAX_POINTS = 450_000
"""Of lag, of all leases together: some 40 MB."""
_SHORTEST_STEP = 900
GONE = "GONE"
"""The state of a lease whose row was deleted."""

Point = tuple[int, float | None]


class LagHistory:
    """Points by lease, with a min distance that bounds memory."""

    def __init__(self, window: int = WINDOW_MILLIS) -> None:
        self._window = window
        self._points: dict[str, deque[Point]] = {}

    def add(self, lags: Mapping[str, Measured], now: int) -> dict[str, Point]:
        """Add lags; return the new points, by lease key."""
        step = max(_SHORTEST_STEP, self._window * len(lags) // MAX_POINTS)
        fresh: dict[str, Point] = {}
        for key, lag in lags.items():
            points = self._points.setdefault(key, deque())
            if not points or lag.at >= points[-1][0] + step:
                fresh[key] = point = (lag.at, None if lag.behind is None else round(lag.behind, 3))
                points.append(point)
        self._drop(now - self._window)
        return fresh

    def all(self) -> dict[str, list[Point]]:
        return {key: list(points) for key, points in self._points.items() if points}

    def _drop(self, before: int) -> None:
        for key in list(self._points):
            points = self._points[key]
            # One point from before stays, so that a line begins at the edge of its chart.
            while len(points) > 1 and points[1][0] < before:
                points.popleft()
            if points[-1][0] < before:
                del self._points[key]


@dataclass(frozen=True, slots=True)
class Span:
    """Owner and state of a lease from `at` until the next span."""

    at: int
    owner: str | None
    state: str


class OwnerHistory:
    """Spans by lease. parents: of every lease that was seen in the window."""

    def __init__(self, window: int = WINDOW_MILLIS) -> None:
        self._window = window
        self._spans: dict[str, list[Span]] = {}
        self.parents: dict[str, tuple[str, ...]] = {}

    def add(self, states: Mapping[str, LeaseStatus], now: int) -> dict[str, Span]:
        """Add states; return the new spans, by lease key."""
        fresh: dict[str, Span] = {}
        for key, status in states.items():
            if status.lease is None:
                continue
            self.parents[key] = status.lease.parents
            self._note(fresh, key, Span(now, status.owner, status.state.value))
        for key in self._spans.keys() - states.keys():
            self._note(fresh, key, Span(now, None, GONE))
        self._drop(now - self._window)
        return fresh

    def all(self) -> dict[str, list[Span]]:
        return {key: list(spans) for key, spans in self._spans.items()}

    def _note(self, fresh: dict[str, Span], key: str, span: Span) -> None:
        spans = self._spans.setdefault(key, [])
        if not spans or (spans[-1].owner, spans[-1].state) != (span.owner, span.state):
            spans.append(span)
            fresh[key] = span

    def _drop(self, before: int) -> None:
        for key in list(self._spans):
            spans = self._spans[key]
            while len(spans) > 1 and spans[1].at < before:
                del spans[0]
            if spans[-1].state == GONE and spans[-1].at < before:
                del self._spans[key]
                self.parents.pop(key, None)


@dataclass(slots=True)
class RateHistory:
    """Rate by worker, from totals that only grow. Points are at least `step` apart."""

    step: int = 2000
    window: int = WINDOW_MILLIS
    _last: dict[str, tuple[int, float]] = field(default_factory=dict)
    _due: int = 0
    _points: deque[tuple[int, dict[str, float]]] = field(default_factory=deque)

    def add(self, totals: Mapping[str, float], now: int) -> tuple[int, dict[str, float]] | None:
        """Return the new point if one is due: rate per second by worker; missing workers are unknown."""
        if now < self._due:
            return None
        self._due = now + self.step
        rates = {}
        for worker, total in totals.items():
            before = self._last.get(worker)
            self._last[worker] = (now, total)
            # A total that fell is of another process with that name: unknown until the next scan.
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
"""Milliseconds between points: a worker may checkpoint a few times a minute only."""
_NOT_REPORTED = (
    "No worker reports the records it has processed. Do: run them with --http and "
    "--option metrics=prometheus."
)


class Rates:
    """Throughput by worker. unit: fixed from the start. note: explains missing values, for the page.

    totals: returns the records so far by worker; None: from the workers' own pages, if there are any.
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
        self, now: int, moves: Mapping[str, int], pages: Sequence[WorkerReport]
    ) -> tuple[int, dict[str, float]] | None:
        """Return the new point if one is due: rate per second by worker. moves: checkpoints since the last scan."""
        return self.history.add(self._counted(moves, pages), now)

    def _counted(self, moves: Mapping[str, int], pages: Sequence[WorkerReport]) -> Mapping[str, float]:
        if self._totals is not None:
            return self._totals()
        if self.unit == "checkpoints":
            self._moves = {owner: self._moves.get(owner, 0) + count for owner, count in moves.items()}
            self.note = (
                "The lease table does not say how many records are processed, only where each checkpoint is. For "
                "records per second, name the workers' health endpoints: --status-url URL."
            )
            return self._moves
        reported: dict[str, float] = {}
        for page in pages:
            if page.worker is not None and page.records is not None:
                reported[page.worker] = page.records
        self.note = self._missing_workers(set(reported), moves) if reported else _NOT_REPORTED
        return reported

    def _missing_workers(self, reported: set[str], owners: Mapping[str, int]) -> str:
        silent = len(owners.keys() - reported)
        return (
            f"{silent} of {len(owners)} owners report no records and are not in this chart." if silent else ""
        )


MAX_EVENTS = 500
RatePoint = tuple[int, dict[str, float]]


def frame(kind: str, number: int, values: Mapping[str, Any]) -> bytes:
    """Return a server-sent event. ASCII on one line: no value in it can start another event."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return f"event: {kind}\nid: {number}\ndata: {text}\n\n".encode("ascii")


class StateStore:
    """State of the page and its changes. Written by the poller's thread, read by those that serve."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._number = 0
        self._view = PageView(0)
        self._facts: dict[str, Any] = {}
        self._lags, self._spans = LagHistory(), OwnerHistory()
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._rates: deque[RatePoint] = deque()

    def fold(
        self,
        view: PageView,
        *,
        states: Mapping[str, LeaseStatus],
        lags: Mapping[str, Measured],
        rate: RatePoint | None,
        events: Sequence[dict[str, Any]],
        facts: dict[str, Any],
    ) -> tuple[int, bytes]:
        """Add a scan; return the number and the frame of the change."""
        with self._lock:
            before = self._view
            change: dict[str, Any] = {
                "at": view.at,
                "rows": _changed(before.rows, view.rows),
                "gone": sorted(before.rows.keys() - view.rows.keys()),
                "owners": _changed(before.owners, view.owners),
                "lag": self._lags.add(lags, view.at),
                "spans": {key: _values(span) for key, span in self._spans.add(states, view.at).items()},
                "events": list(events),
            }
            if rate is not None:
                change["rate"] = rate
                self._rates.append(rate)
                while self._rates[0][0] < view.at - WINDOW_MILLIS:
                    self._rates.popleft()
            if facts != self._facts:
                change["facts"] = facts
            self._view, self._facts = view, facts
            self._events.extend(events)
            return self._next(change)

    def trouble(
        self, at: int, facts: dict[str, Any], events: Sequence[dict[str, Any]]
    ) -> tuple[int, bytes] | None:
        """Add a scan that failed: the state stays, and the page shows that it is old."""
        with self._lock:
            self._facts = {**self._facts, **facts}
            self._events.extend(events)
            return self._next({"facts": self._facts, "events": list(events)})

    def whole(self) -> tuple[int, dict[str, Any]]:
        """Return the number of the last change, and the whole state."""
        with self._lock:
            return self._number, {
                "at": self._view.at,
                "window": WINDOW_MILLIS,
                "facts": self._facts,
                "rows": dict(self._view.rows),
                "owners": dict(self._view.owners),
                "lag": self._lags.all(),
                "spans": {key: list(map(_values, spans)) for key, spans in self._spans.all().items()},
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
        key: value
        for key, value in after.items()
        if before.get(key) is not value and before.get(key) != value
    }


def _values(span: Span) -> tuple[int, str | None, str]:
    return span.at, span.owner, span.state


MAX_VIEWERS = 24
MAX_WAITING = 30
"""Frames queued for a slow viewer; then it is disconnected, reconnects and gets the whole state."""
BEAT_SECONDS = 15.0
VISIT_SECONDS = 10.0
RETRY = b"retry: 2000\n\n"
_END = (0, b"")


class Broadcast:
    """Queues of frames, one for each viewer. whole: the state for a new viewer, and the number of its last change."""

    def __init__(
        self, whole: Callable[[], tuple[int, dict[str, Any]]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._whole, self._now = whole, now
        self._visited: float | None = None
        self._queues: set[asyncio.Queue[tuple[int, bytes]]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    @property
    def viewers(self) -> int:
        return len(self._queues)

    @property
    def is_watched(self) -> bool:
        """True if a page is open, or requested the state in the last seconds."""
        visited = self._visited
        return bool(self._queues) or (visited is not None and self._now() - visited < VISIT_SECONDS)

    def visit(self) -> bool:
        """Record a request for the state; return True if there were no viewers before."""
        was_watched, self._visited = self.is_watched, self._now()
        return not was_watched

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def publish(self, number: int, change: bytes) -> None:
        """Send a change to every viewer. Callable from any thread."""
        if self._loop is not None and not self._is_over:
            self._loop.call_soon_threadsafe(self._spread, number, change)

    def end(self) -> None:
        """End every viewer's stream. Called in the loop's thread."""
        self._is_over = True
        for queue in list(self._queues):
            _last(queue)

    def is_full(self) -> bool:
        return len(self._queues) >= MAX_VIEWERS

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames for one viewer, until it disconnects or is too slow."""
        queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(MAX_WAITING + 1)
        # Before the whole state is read: a later change is either in it or in the queue.
        self._queues.add(queue)
        try:
            yield RETRY
            last, whole = await asyncio.to_thread(self._first)
            yield whole
            while not self._is_over:
                try:
                    number, change = await asyncio.wait_for(queue.get(), BEAT_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if (number, change) == _END:
                    return
                if number > last:
                    yield change
        finally:
            self._queues.discard(queue)

    def _first(self) -> tuple[int, bytes]:
        number, state = self._whole()
        return number, frame("whole", number, state)

    def _spread(self, number: int, change: bytes) -> None:
        for queue in list(self._queues):
            if queue.qsize() >= MAX_WAITING:
                self._queues.discard(queue)
                _last(queue)
            else:
                queue.put_nowait((number, change))


def _last(queue: asyncio.Queue[tuple[int, bytes]]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(_END)
