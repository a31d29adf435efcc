"""Durations as options of commands."""

from __future__ import annotations

from typing import Any

import click

from pykcl.times import format_duration, parse_duration


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds as float. minimum, maximum: seconds."""

    name = "duration"

    def __init__(self, *, minimum: float = 0.0, maximum: float = 366 * 86_400.0) -> None:
        self._minimum, self._maximum = minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value) if isinstance(value, int | float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._minimum <= seconds <= self._maximum:
            self.fail(
                f"{format_duration(seconds)} is out of range: from {format_duration(self._minimum)} to "
                f"{format_duration(self._maximum)}.",
                param,
                ctx,
            )
        return seconds
