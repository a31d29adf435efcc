"""Times, durations and initial positions as people write them, and as pykcl shows them: one grammar for all of it."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime, timedelta

from pykcl.errors import ConfigError, shown
from pykcl.model.checkpoint import StartPosition

TIME_EXAMPLE = "2026-11-20T09:00Z or 2026-11-20T10:00:00.250+01:00"
LAST_MILLIS = 253_402_300_799_999
"""The end of the year 9999, epoch milliseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_MILLIS = re.compile(r"[0-9]{12,14}\Z")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
_PARTS = re.compile(rf"(?:{_PART.pattern})+\Z")
_ISO_DURATION = re.compile(r"p(?:(?P<d>[0-9]{1,6})d)?(?:t(?P<time>(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[hms])+))?\Z")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?\Z")


def parse_time(text: str) -> int:
    """Return the epoch milliseconds of an ISO 8601 time with a zone, or of epoch milliseconds. Raises ConfigError."""
    # Here, because loading it takes a while and most commands are given no time.
    from dateutil.parser import isoparse

    word, named = text.strip(), repr(text[:60])
    if _EPOCH_MILLIS.match(word):
        return int(word)
    if word.isdigit():
        raise ConfigError(
            f"{named} is not a time: epoch seconds are not accepted. Write it like {TIME_EXAMPLE}."
        )
    try:
        moment: datetime = isoparse(word)
    except ValueError:
        raise ConfigError(f"{named} is not a time. Write it like {TIME_EXAMPLE}.") from None
    if moment.tzinfo is None:
        raise ConfigError(f"{named} has no time zone. Add Z for UTC or an offset, as in {TIME_EXAMPLE}.")
    millis = epoch_millis(moment)
    if millis is None:
        raise ConfigError(f"{named} is before 1970 or after 9999. Write it like {TIME_EXAMPLE}.")
    return millis


def start_position(start: str | datetime, name: str = "initial_position") -> StartPosition:
    """Return `start`, the option `name`, as a value. Raises ConfigError."""
    if isinstance(start, str):
        if start in ("LATEST", "TRIM_HORIZON"):
            return StartPosition(start)  # type: ignore[arg-type]
        if not start[:1].isdigit():
            raise _not_a_position(name, start)
    elif not isinstance(start, datetime):
        raise ConfigError(
            f"{name}={shown(start)} is not a position. Use 'LATEST', 'TRIM_HORIZON' or an aware datetime."
        )
    return StartPosition("AT_TIMESTAMP", at_millis=millis_of(name, start))


def millis_of(name: str, time: str | datetime) -> int:
    """Return the epoch milliseconds of the option `name`: an aware time, or ISO 8601 text. Raises ConfigError."""
    if isinstance(time, str):
        try:
            return parse_time(time)
        except ConfigError as error:
            raise ConfigError(f"{name}={error}") from None
    if not isinstance(time, datetime):
        raise ConfigError(
            f"{name}={shown(time)} is not a time. Use an aware datetime or text like {TIME_EXAMPLE}."
        )
    if time.tzinfo is None:
        raise ConfigError(f"{name}={time.isoformat()} has no time zone. Say which: add 'Z' or an offset.")
    millis = epoch_millis(time)
    if millis is None:
        raise ConfigError(
            f"{name}={time.isoformat()} is before 1970 or beyond the calendar. No record is that old."
        )
    return millis


def _not_a_position(name: str, text: str) -> ConfigError:
    near = difflib.get_close_matches(text.upper(), ["LATEST", "TRIM_HORIZON"], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(
        f"{name}={text!r} is not a position.{hint} "
        "Use LATEST, TRIM_HORIZON or a time such as 2026-11-20T09:00:00Z."
    )


def epoch_millis(moment: datetime) -> int | None:
    """Return the epoch milliseconds of an aware time; None before 1970 and after 9999."""
    millis = (moment - _EPOCH) // timedelta(milliseconds=1)
    return millis if 0 <= millis <= LAST_MILLIS else None


def format_time(millis: float, *, milliseconds: bool = True) -> str:
    """Return the UTC time, such as "2026-11-20T09:00:00.312Z"; without milliseconds "2026-11-20T09:00:00Z"."""
    moment = (_EPOCH + timedelta(milliseconds=int(millis))).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds' if milliseconds else 'seconds')}Z"


def parse_duration(text: str) -> float:
    """Return the seconds of "90", "500ms", "2s", "1m30s", "2h", "1d" or "PT2H". Raises ConfigError."""
    short = text.strip().lower()
    if _SECONDS.match(short):
        return float(short)
    iso = _ISO_DURATION.match(short)
    if iso is not None and short not in ("p", "pt"):
        return float(iso["d"] or 0) * _UNITS["d"] + _sum(iso["time"] or "")
    if _PARTS.match(short):
        return _sum(short)
    raise ConfigError(f"{text[:60]!r} is not a duration. Write 90, 500ms, 60s, 1m30s, 2h, 1d or PT2H.")


def _sum(parts: str) -> float:
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(parts))


def format_duration(seconds: float | None) -> str:
    """Return a short text: "0.4s", "38s", "2m07s", "1h05m", "3d04h"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, smaller, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02d}{small}"
    return f"{whole}s"
