"""The start of an application without leases, from its text."""

from __future__ import annotations

import difflib
from datetime import datetime

from pykcl.errors import ConfigError
from pykcl.model.checkpoint import StartPosition
from pykcl.times import epoch_millis, parse_time


def start_position(start: str | datetime) -> StartPosition:
    """Return `start` as a value. Raises ConfigError."""
    if isinstance(start, str):
        if start in ("LATEST", "TRIM_HORIZON"):
            return StartPosition(start)  # type: ignore[arg-type]
        return StartPosition("AT_TIMESTAMP", at_millis=_time_of(start))
    if not isinstance(start, datetime):
        raise ConfigError(
            f"start={shown(start)} is not a position. Use 'LATEST', 'TRIM_HORIZON' or an aware datetime."
        )
    if start.tzinfo is None:
        raise ConfigError(f"start={start.isoformat()} has no time zone. Say which: add 'Z' or an offset.")
    at_millis = epoch_millis(start)
    if at_millis is None:
        raise ConfigError(
            f"start={start.isoformat()} is before 1970 or beyond the calendar. No record is that old."
        )
    return StartPosition("AT_TIMESTAMP", at_millis=at_millis)


def _time_of(text: str) -> int:
    if text[:1].isdigit():
        try:
            return parse_time(text)
        except ConfigError as error:
            raise ConfigError(f"start={error}") from None
    near = difflib.get_close_matches(text.upper(), ["LATEST", "TRIM_HORIZON"], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"start={text!r} is not a position.{hint} "
        "Use LATEST, TRIM_HORIZON or a time such as 2026-11-20T09:00:00Z."
    )


def shown(value: object) -> str:
    """For an error message: cut, and whatever it is."""
    try:
        return repr(value)[:200]
    except ValueError:
        # A whole number of more digits than Python is willing to write down.
        return f"<a {type(value).__name__} too long to show>"
