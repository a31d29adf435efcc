"""The output of the commands: one list of rows as table, wide table, JSON, JSON lines or CSV.

Shard names, worker identifiers and everything else out of a table or a stream is untrusted text: it must drive no
terminal, forge no line and be no formula. Every format here sees to that by itself.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import click

from pykcl.cli.console import Unwritable, print_notice, say
from pykcl.cli.errors import ExitCode
from pykcl.cli.options import COMMON, Duration, option_in
from pykcl.errors import TemporaryError, printable
from pykcl.times import format_duration

Format = Literal["table", "wide", "json", "jsonl", "csv"]
FORMATS: tuple[Format, ...] = ("table", "wide", "json", "jsonl", "csv")
Command = TypeVar("Command", bound=Callable[..., Any])
Colour = str | tuple[int, int, int]

_NARROWEST = 8
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets take them, too


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    key: of the row, and its name in JSON and CSV. title: heading of the table; by default the key in capitals.
    text: the value as people read it (by default str, "-" for None); short: the same with -o table.
    right: aligned so. wide: shown with -o wide only. weight: what stays longest on a narrow terminal; 0 is dropped
    first, 9 never. colour: of a cell, from the row.
    """

    key: str
    title: str | None = None
    text: Callable[[Any], str] | None = None
    short: Callable[[Any], str] | None = None
    right: bool = False
    wide: bool = False
    weight: int = 5
    colour: Callable[[Mapping[str, Any]], Colour | None] | None = None

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ").upper()

    def cell(self, row: Mapping[str, Any], *, wide: bool = False) -> str:
        value = row.get(self.key)
        text = self.text if wide or self.short is None else self.short
        if text is not None:
            return printable(text(value))
        return "-" if value is None or value == "" else printable(_plain(value))


@dataclass(frozen=True, slots=True)
class Section:
    """A second table of an answer: below the first one, and in JSON an object under its name, with its rows under
    theirs. CSV and JSON lines do not have it."""

    name: str
    facts: Mapping[str, Any]
    line: Mapping[str, Any]
    rows_name: str
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[Column]


def format_option(command: Command) -> Command:
    """`-o/--output`, handed to the command as `output`."""
    return option_in(COMMON)(  # type: ignore[return-value]
        "-o",
        "--output",
        "output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Output format.",
    )(command)


def show(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    format: Format,
    *,
    facts: Mapping[str, Any] | None = None,
    hints: Iterable[str] = (),
) -> None:
    """Print `render(…)`. In the formats without a place for them, hints go to standard error."""
    hints = tuple(hints)
    say(render(rows, columns, format, facts=facts, hints=hints))
    if format in ("jsonl", "csv"):
        for hint in hints:
            say(f"hint: {printable(hint)}", err=True)


def render(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    format: Format,
    *,
    facts: Mapping[str, Any] | None = None,
    hints: Iterable[str] = (),
    section: Section | None = None,
) -> str:
    """Return the whole answer as text, without a newline at its end.

    rows: values that JSON knows; what no column names is not shown. facts: of all rows together, such as the
    application; in the table they are one line above it, in JSON they stand beside "rows". hints: sentences.
    """
    if format == "csv":
        return _csv(rows, columns)
    if format == "jsonl":
        return "\n".join(json_text(_projected(row, columns)) for row in rows)
    if format == "json":
        whole = {
            **(facts or {}),
            "rows": [_projected(row, columns) for row in rows],
            **(_section_values(section) if section is not None else {}),
            "hints": list(hints),
        }
        return json_text(whole, indent=2)
    lines = [_facts_line(facts)] if facts else []
    lines += _table(rows, columns, wide=format == "wide")
    if section is not None:
        lines += ["", _facts_line(section.line)]
        lines += _table(section.rows, section.columns, wide=format == "wide")
    lines += [f"hint: {printable(hint)}" for hint in hints]
    return "\n".join(lines)


def _section_values(section: Section) -> dict[str, Any]:
    rows = [_projected(row, section.columns) for row in section.rows]
    return {section.name: {**section.facts, section.rows_name: rows}}


# -- rows as text ----------------------------------------------------------------------------------------------


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    writer.writerows([_csv_value(row.get(column.key)) for column in columns] for row in rows)
    return out.getvalue().rstrip("\n")


def _csv_value(value: Any) -> Any:
    """Put an apostrophe in front of text that a spreadsheet would take for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return "" if value is None else value if isinstance(value, int | float) else _plain(value)
    is_formula = value.startswith(_FORMULA) or value.lstrip().startswith(_FORMULA)
    return printable(("'" if is_formula else "") + value)


def _projected(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    return {column.key: row.get(column.key) for column in columns}


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON in ASCII only, so that nothing in it can drive a terminal."""
    return json.dumps(value, indent=indent, ensure_ascii=True, default=str)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return json_text(value) if isinstance(value, Mapping) else str(value)


def _facts_line(facts: Mapping[str, Any]) -> str:
    texts = [f"{name.replace('_', ' ').upper()} {_fact(value)}" for name, value in facts.items()]
    line = printable(
        "  ".join(one for one, value in zip(texts, facts.values(), strict=True) if value is not None)
    )
    width = terminal_width()
    return line if width is None else clipped(line, width)


def _fact(value: Any) -> str:
    """Return the text of a value; a count of each of several things is "2 Java, 1 pykcl"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{many} {what}" for what, many in value.items()) or "none"
    return _plain(value)


# -- tables in the width of the terminal -----------------------------------------------------------------------


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, wide: bool) -> list[str]:
    there = [column for column in columns if wide or not column.wide]
    cells = [[column.cell(row, wide=wide) for column in there] for row in rows]
    width = None if wide else terminal_width()
    kept, widths = _fitted(there, cells, width)
    columns_shown = [there[at] for at in kept]
    lines = [_line([column.heading for column in columns_shown], columns_shown, widths)]
    lines += [
        _line([line[at] for at in kept], columns_shown, widths, row)
        for line, row in zip(cells, rows, strict=True)
    ]
    if len(kept) < len(there):
        hidden = ", ".join(column.heading for at, column in enumerate(there) if at not in kept)
        lines.append(clipped(f"(-o wide also shows {hidden})", width or 80))
    return lines


def _fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], list[int]]:
    """Return the indexes of the columns that fit into `width` cells of a terminal, and the width of each.

    cells: of every row one text per column. width: None for no limit. The columns of the least weight go first; if that
    is not enough, the widest of the rest are clipped.
    """
    shown = list(range(len(columns)))
    widths = [
        max([text_width(column.heading), *(text_width(line[at]) for line in cells)])
        for at, column in enumerate(columns)
    ]
    if width is None or not shown:
        return shown, widths
    while _needed([columns[one] for one in shown], widths) > width and any(
        columns[one].weight < 9 for one in shown
    ):
        at = min(range(len(shown)), key=lambda one: (columns[shown[one]].weight, -shown[one]))
        del shown[at], widths[at]
    _squeeze(widths, width - 2 * (len(shown) - 1))
    return shown, widths


def _needed(shown: Sequence[Column], widths: Sequence[int]) -> int:
    """Return the width of a line in which the columns that are never dropped may be clipped."""
    least = [
        min(width, 2 * _NARROWEST) if column.weight >= 9 else width
        for column, width in zip(shown, widths, strict=True)
    ]
    return sum(least) + 2 * (len(shown) - 1)


def _squeeze(widths: list[int], room: int) -> None:
    """Narrow the widest column, cell by cell, until the line fits or no column can be narrowed."""
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1


def _line(
    cells: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    row: Mapping[str, Any] | None = None,
) -> str:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        short = clipped(cell, width)
        blank = " " * (width - text_width(short))
        colour = column.colour(row) if row is not None and column.colour is not None else None
        parts.append(blank + painted(short, colour) if column.right else painted(short, colour) + blank)
    return "  ".join(parts).rstrip()


def text_width(text: str) -> int:
    """Return how many cells of a terminal it takes: most East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def clipped(text: str, width: int) -> str:
    """Return `text` in at most `width` cells; an ellipsis shows that something is missing."""
    if text_width(text) <= width:
        return text
    shown, used = [], 1
    for one in text:
        used += text_width(one)
        if used > width:
            break
        shown.append(one)
    return "".join(shown) + "…"


# -- colours and widths ---------------------------------------------------------------------------------------


def painted(text: str, colour: Colour | None) -> str:
    """Return `text` in that colour if standard output shows colours."""
    return click.style(text, fg=colour) if colour is not None and shows_colours() else text


def shows_colours() -> bool:
    """Return whether standard output is a terminal, and neither NO_COLOR nor TERM=dumb is set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal()


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Return the columns of the terminal; None without a terminal and without COLUMNS."""
    if is_terminal() or os.environ.get("COLUMNS", "").isdigit():
        return max(20, shutil.get_terminal_size().columns)
    return None


# -- --watch ---------------------------------------------------------------------------------------------------

_TO_THE_TOP = "\x1b[H\x1b[J"


def watch_option(command: Command, *, only_with: str = "") -> Command:
    """`--watch[=DURATION]`, passed to the command as `watch`: seconds, or None for one answer.

    only_with: the option that it needs.
    """
    text = " every 2s, or every DURATION, until Ctrl-C."
    return click.option(
        "--watch",
        is_flag=False,
        flag_value="2s",
        default=None,
        metavar="[=DURATION]",
        type=Duration(minimum=0.2),
        help=f"With {only_with}: refresh{text}" if only_with else f"Refresh{text}",
    )(command)


def print_wait(seconds: float) -> None:
    """Say on standard error why the command seems to hang, for `Sampler.poll_until_moved`."""
    print_notice(
        f"scanning again in {format_duration(seconds)} to see which counters move; --no-sample does not wait"
    )


def repeat(watch: float | None, answer: Callable[[], tuple[str, int]]) -> int:
    """Print the text of `answer` (text, exit code), once or until Ctrl-C; return the last code.

    On a terminal each answer replaces the one before; piped, they follow one another. While watching, a TemporaryError
    is reported and the next answer follows; every other error ends the command.
    """
    if watch is None:
        text, code = answer()
        say(text)
        return code
    code = ExitCode.OK
    try:
        while True:
            try:
                text, code = answer()
            except TemporaryError as error:
                print_notice(f"{error} Trying again in {format_duration(watch)}.")
            else:
                with suppress(Unwritable):
                    # There may be space for the next one.
                    say(f"{_TO_THE_TOP}{text}" if is_terminal() else f"{text}\n")
            time.sleep(watch)
    except KeyboardInterrupt:
        return code
