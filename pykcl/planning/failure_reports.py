"""Reports of failures of one kind: one once they have lasted, for all shards together, and one when they have passed.

A retry or two is no trouble. Trouble has lasted when one shard has failed for 10 s without a break; or when for 10 s
others began to fail, as many within half a minute as there are shards: AWS is flaky, and no failure lasts. Lines of one
kind are at least 10 s apart, so there are six a minute at most; each counts the failures that got no line of their own.
Times are of a monotonic clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

LASTS_AFTER: Final = 10.0
"""Seconds that it lasts until it is reported."""
WINDOW: Final = 30.0
"""Seconds over which failures are counted that do not last."""
LEAST: Final = 3
"""Failures within WINDOW that make trouble, however few the shards are."""
APART: Final = 10.0
"""Seconds between two lines at least; and those after which failures begin no longer, if none has begun."""
PASSED_AFTER: Final = 30.0
"""Seconds without trouble after which it has passed: what comes and goes is one trouble."""
AGAIN_AFTER: Final = 600.0
"""Seconds after which trouble that goes on is reported again; sooner if twice as many shards fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """Report about one kind of failure. has_passed: it is over. shard: the one that has failed longest, if one does.

    failing: shards that fail now. seconds: that it has lasted. failures: that began since the last report.
    """

    has_passed: bool
    shard: str | None
    failing: int
    seconds: float
    failures: int


@dataclass(slots=True)
class FailureKind:
    """State of one kind of failure. at_once: what fails there has lasted already, or somebody waits for the worker.

    failing: since when, by shard (None: the whole worker).
    """

    at_once: bool = False
    failing: dict[str | None, float] = field(default_factory=dict)
    # Since when it is trouble (infinite: it is none), and when it was so last.
    _since: float = inf
    _last_bad: float = -inf
    # When the last one began, and how many did in the present window, and in the one before.
    _began_at: float = -inf
    _window: float = -inf
    _in_window: int = 0
    _in_last: int = 0
    _unreported: int = 0
    _line_at: float = -inf
    # Shards that failed by the last report of trouble that goes on; None: none was made.
    _reported: int | None = None

    @property
    def is_quiet(self) -> bool:
        """True if nothing of it need be remembered."""
        return self._reported is None and not (self.failing or self._in_window or self._in_last)

    def began(self, shard: str | None, now: float) -> None:
        """Note that something fails from now on."""
        self._turn_over(now)
        self.failing[shard] = now
        self._began_at = now
        self._in_window += 1
        self._unreported += 1

    def ended(self, shard: str | None) -> None:
        """Note that it works again."""
        self.failing.pop(shard, None)

    def report(self, now: float, shards: int) -> FailureReport | None:
        """Return the report that is due, if one is. shards: the number of those that could fail."""
        self._turn_over(now)
        shard, since = min(self.failing.items(), key=lambda entry: entry[1], default=(None, inf))
        lasts = now - since >= (0.0 if self.at_once else LASTS_AFTER)
        flaky_since = self._flaky_since(now, max(LEAST, shards))
        if lasts or flaky_since < inf:
            self._last_bad = now
            self._since = min(self._since, since if lasts else inf, flaky_since)
        has_passed = now - self._last_bad >= PASSED_AFTER
        if has_passed and self._reported is None:
            self._since = inf
            return None
        if now - self._line_at < APART or not (has_passed or self._is_news(now)):
            return None
        report = FailureReport(
            has_passed=has_passed,
            shard=shard,
            failing=len(self.failing),
            seconds=self._last_bad - self._since,
            failures=self._unreported,
        )
        self._line_at, self._unreported = now, 0
        self._reported = None if has_passed else len(self.failing)
        self._since = inf if has_passed else self._since
        return report

    def _flaky_since(self, now: float, least: int) -> float:
        """Return the begin of the first window in which so many failures began; infinity if none is still going on."""
        if now - self._began_at >= APART:
            return inf
        since = self._window - WINDOW if self._in_last >= least else self._window
        return since if max(self._in_window, self._in_last) >= least and now - since >= LASTS_AFTER else inf

    def _is_news(self, now: float) -> bool:
        if self._reported is None:
            return self._last_bad == now
        return now - self._line_at >= AGAIN_AFTER or len(self.failing) >= 2 * max(1, self._reported)

    def _turn_over(self, now: float) -> None:
        """Begin a new window if the present one is over."""
        if now - self._window < WINDOW:
            return
        self._in_last = self._in_window if now - self._window < 2 * WINDOW else 0
        self._in_window = 0
        self._window = now
        if self._since == inf:
            self._unreported = self._in_last
