"""What was done to a host, and when: an excuse for what it does shortly after, and not for the rest of its life."""

from __future__ import annotations

from collections.abc import Callable


class Marks:
    """When something was done to which host. now: virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last: dict[str, float] = {}

    def add(self, host: str) -> None:
        self._last[host] = self._now()

    def __contains__(self, host: str) -> bool:
        """Whether it was ever done."""
        return host in self._last

    def since(self, host: str, then: float) -> bool:
        """Whether it was done at that time or later."""
        return self._last.get(host, float("-inf")) >= then


class Freezes:
    """When which host stood still. A host that stands still is not frozen once more."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._times: dict[str, list[tuple[float, float]]] = {}

    def add(self, host: str, seconds: float) -> None:
        """From now on, for so long."""
        self._times.setdefault(host, []).append((self._now(), self._now() + seconds))

    def just_ended(self, host: str) -> bool:
        """Whether it goes on at this very moment."""
        return any(end == self._now() for _, end in self._times.get(host, ()))

    def seconds_since(self, host: str, then: float) -> float:
        """For how many of the seconds since `then` it stood still; what lies ahead does not count."""
        now = self._now()
        return sum(max(0.0, min(end, now) - max(begin, then)) for begin, end in self._times.get(host, ()))

    def awake_seconds_before(self, host: str, then: float, seconds: float) -> float:
        """The time so many seconds before `then`, of those in which it did not stand still."""
        for begin, end in reversed(self._times.get(host, ())):
            if begin < then and end > then - seconds:
                seconds += min(end, then) - begin
        return then - seconds
