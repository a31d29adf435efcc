"""Durations as people write them: "90", "500ms", "2s", "1m30s", "2h", "1d", "PT2H"."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
_PARTS = re.compile(rf"(?:{_PART.pattern})+\Z")
_ISO = re.compile(r"p(?:(?P<d>[0-9]{1,6})d)?(?:t(?P<time>(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[hms])+))?\Z")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?\Z")


def seconds_of(text: str) -> float:
    """Seconds. Raises ValueError for what is no duration."""
    short = text.strip().lower()
    if _NUMBER.match(short):
        return float(short)
    iso = _ISO.match(short)
    if iso is not None and short not in ("p", "pt"):
        return float(iso["d"] or 0) * _UNITS["d"] + _sum(iso["time"] or "")
    if _PARTS.match(short):
        return _sum(short)
    raise ValueError(f"{text[:60]!r} is no duration. Write 90, 500ms, 60s, 1m30s, 2h, 1d or PT2H.")


def _sum(parts: str) -> float:
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(parts))


def duration_text(seconds: float | None) -> str:
    """Short and for people: "0.4s", "38s", "2m07s", "1h05m", "3d04h"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, smaller, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02d}{small}"
    return f"{whole}s"


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds as float. least, most: seconds."""

    name = "duration"

    def __init__(self, *, least: float = 0.0, most: float = 366 * 86_400.0) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value) if isinstance(value, int | float) else seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= seconds <= self._most:
            self.fail(
                f"{duration_text(seconds)} is out of range: from {duration_text(self._least)} to "
                f"{duration_text(self._most)}.",
                param,
                ctx,
            )
        return seconds
