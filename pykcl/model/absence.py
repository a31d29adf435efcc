"""Evidence that something which AWS had does not exist any more: one answer that denies it is no proof."""

from __future__ import annotations

from typing import Final

GONE_AFTER: Final = 3.0
"""Seconds for which AWS has to say that something does not exist before a worker believes it."""

_FORGOTTEN_AFTER: Final = 600.0
"""Seconds after which an answer that was not repeated counts no more: two mistakes an hour apart prove nothing."""


class Absence:
    """Evidence that something does not exist: the same answer twice, some seconds apart, and no other in between.

    One ResourceNotFoundException is no proof. DynamoDB may answer so for some seconds about a table that is new; and
    while an endpoint or a proxy is switched, or the credentials are those of another account for a moment, so does any
    service. A worker that stops for it takes its fleet along, for the others are given the same answer.

    seconds: between the two; 0: the first one is believed, for a command that a person has typed. All times are
    monotonic seconds.
    """

    __slots__ = ("_last", "_seconds", "_since")

    def __init__(self, seconds: float = GONE_AFTER) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._last = 0.0

    def found(self) -> None:
        """Note that it is there."""
        self._since = None

    def is_proven(self, now: float, asked_at: float | None = None) -> bool:
        """Note that it was not found; return True if that is proof by now.

        asked_at: the time of the question, from which the first answer counts; by default that of the answer.
        """
        # Read once: another thread may find it meanwhile.
        since = self._since
        if since is None or now - self._last > _FORGOTTEN_AFTER:
            since = self._since = now if asked_at is None else asked_at
        self._last = now
        return now - since >= self._seconds

    def seconds(self, now: float) -> float:
        """Return for how long it was not found by now, seconds; 0 where it was there last."""
        since = self._since
        return 0.0 if since is None else now - since

    def is_fresh(self, now: float) -> bool:
        """Return True if it was noted so lately that asking again would prove nothing."""
        since = self._since
        return since is not None and now - since < self._seconds
