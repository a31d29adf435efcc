"""Where to start, as somebody writes it."""

from __future__ import annotations

import difflib
import re
from datetime import datetime, timezone

from pykcl.errors import ConfigError
from pykcl.model.checkpoint import StartPosition


def start_position(start: str | datetime) -> StartPosition:
    """`start` as a value. Raises ConfigError."""
    if isinstance(start, str):
        if start in ("LATEST", "TRIM_HORIZON"):
            return StartPosition(start)  # type: ignore[arg-type]
        start = _parse_time(start)
    if not isinstance(start, datetime):
        raise ConfigError(
            f"start={shown(start)} is not a position. Use 'LATEST', 'TRIM_HORIZON' or an aware datetime."
        )
    if start.tzinfo is None:
        raise ConfigError(f"start={start.isoformat()} has no time zone. Say which: add 'Z' or an offset.")
    try:
        at_millis = int(start.astimezone(timezone.utc).timestamp() * 1000)
    except OverflowError:
        at_millis = -1
    if at_millis < 0:
        raise ConfigError(
            f"start={start.isoformat()} is before 1970 or beyond the calendar. No record is that old."
        )
    return StartPosition("AT_TIMESTAMP", at_millis=at_millis)


def _parse_time(text: str) -> datetime:
    try:
        # Python 3.10 does not know the Z suffix.
        return datetime.fromisoformat(re.sub(r"[Zz]\Z", "+00:00", text))
    except ValueError:
        near = difflib.get_close_matches(text.upper(), ["LATEST", "TRIM_HORIZON"], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"start={text!r} is not a position.{hint} "
            "Use LATEST, TRIM_HORIZON or a time such as 2026-11-20T09:00:00Z."
        ) from None


def shown(value: object) -> str:
    """For an error message: cut, and whatever it is."""
    try:
        return repr(value)[:200]
    except ValueError:
        # A whole number of more digits than Python is willing to write down.
        return f"<a {type(value).__name__} too long to show>"
