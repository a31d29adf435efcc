"""AWS' clock, as the Date headers of its answers show it, and what of it may be believed.

Anything between this process and AWS may write a Date: the page of a proxy, or a proxy that stamps the answers of AWS
with a clock of its own. So only answers that AWS must have given count, and no position to read from follows a Date
alone. 1) A worker starts at LATEST, and a proxy's clock is 20 s ahead; 2) the time in the lease row is 20 s ahead of
Kinesis' clock; 3) the worker dies before its first checkpoint; 4) the next one reads from that time on, and what was
put in between is skipped. A time that is too early costs duplicates only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from pykcl.runtime import Runtime

REQUEST_ID: Final = "x-amzn-requestid"
"""Header with the id that AWS gives to each request."""

_REPORTED_MILLIS: Final = 15_000
"""Difference of the clocks that is logged: more than an answer is on its way."""


def millis_of_date(date: object) -> int | None:
    """Return the epoch milliseconds of a Date header, which is cut to the second; None where it is none."""
    try:
        return int(parsedate_to_datetime(str(date)).timestamp()) * 1000
    except (ValueError, TypeError, OverflowError):
        return None


def vouched_millis(seen: int, own: int) -> int:
    """Return the earlier of AWS' clock as its answers show it and our own clock, both epoch milliseconds."""
    return min(seen, own)


def date_of(answer: Any) -> str | None:
    """Return the Date header of an answer to a client's call; None unless the answer is a success of AWS' own."""
    metadata = answer.get("ResponseMetadata") if isinstance(answer, Mapping) else None
    headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    if not isinstance(metadata, Mapping) or not isinstance(headers, Mapping):
        return None
    date = headers.get("date")
    is_of_aws = metadata.get("HTTPStatusCode") == 200 and bool(headers.get(REQUEST_ID))
    return date if is_of_aws and isinstance(date, str) else None


class _Reading(NamedTuple):
    """millis: what the Date said. arrived_at: monotonic seconds. date: the header itself."""

    millis: int
    arrived_at: float
    date: str


class ServerClock:
    """AWS' clock, carried forward by our monotonic one. May be used by any number of threads at once."""

    def __init__(self, runtime: Runtime, log: logging.Logger) -> None:
        self._runtime, self._log = runtime, log
        # Replaced as a whole, so that threads need no lock.
        self._reading: _Reading | None = None
        self._has_reported = False

    def note(self, date: str | None) -> None:
        """Take over the date of an answer that has just come; see `date_of`."""
        before = self._reading
        # The same second again: parse nothing, and keep the earlier arrival, which is nearer to the Date.
        if date is None or (before is not None and before.date == date):
            return
        millis = millis_of_date(date)
        if millis is None:
            self._log.debug("unreadable Date header in an answer of AWS")
            return
        self._reading = _Reading(millis, self._runtime.monotonic(), date)
        self._report(self._runtime.utcnow_millis() - millis)

    def _report(self, ahead: int) -> None:
        differs = abs(ahead) > _REPORTED_MILLIS
        if differs and not self._has_reported:
            self._log.warning(
                "the clock of this machine is %d s %s the one in AWS' answers: positions follow the earlier of the "
                "two, so records may come twice. Set this clock right (NTP); if it is right, find the proxy that "
                "changes Date headers",
                abs(ahead) // 1000,
                "ahead of" if ahead > 0 else "behind",
            )
        self._has_reported = differs

    def seen_millis(self) -> int:
        """The time as AWS' answers say it, epoch milliseconds. Before any answer: our clock.

        A Date is cut to the second and older than its arrival, so the sum can only fall short, unless what stands
        between has a clock of its own.
        """
        reading = self._reading
        if reading is None:
            return self._runtime.utcnow_millis()
        return reading.millis + int((self._runtime.monotonic() - reading.arrived_at) * 1000)

    def bound_millis(self) -> int:
        """Return the time that positions may follow; see `vouched_millis`."""
        return vouched_millis(self.seen_millis(), self._runtime.utcnow_millis())
