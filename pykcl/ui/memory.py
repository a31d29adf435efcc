"""What the page is told, and what was told already: whole once, then only what has changed.

A frame is one server-sent event. Every viewer is sent the same bytes, made once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pykcl.operate.lease_states import LeaseStatus
from pykcl.runtime import Runtime
from pykcl.ui.history import WINDOW_MILLIS, LagHistory, OwnerHistory, Span
from pykcl.ui.rows import Measured, Picture

MOST_EVENTS = 500
RatePoint = tuple[int, dict[str, float]]


def frame(kind: str, number: int, told: Mapping[str, Any]) -> bytes:
    """As it goes over the wire. ASCII on one line: nothing in it can begin another event."""
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    return f"event: {kind}\nid: {number}\ndata: {text}\n\n".encode("ascii")


class Memory:
    """Written by the thread that looks, read by those that serve."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._number = 0
        self._picture = Picture(0)
        self._facts: dict[str, Any] = {}
        self._lags, self._spans = LagHistory(), OwnerHistory()
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._rates: deque[RatePoint] = deque()

    def fold(
        self,
        picture: Picture,
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
