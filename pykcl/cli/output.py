"""What the operating commands print: one list of rows as table, wide table, JSON, JSON lines or CSV.

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
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import click

from pykcl.cli.durations import Duration
from pykcl.cli.errors import ExitCode
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
        told = self.text if wide or self.short is None else self.short
        if told is not None:
            return printable(told(value))
        return "-" if value is None or value == "" else printable(_plain(value))


def format_option(command: Command) -> Command:
    """`-o/--output`, handed to the command as `output`."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How the answer is printed.",
    )(command)


def show(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    format: Format,
    *,
    facts: Mapping[str, Any] | None = None,
    hints: Iterable[str] = (),
) -> None:
    """Print `render(…)`. In the formats that have no place for them, hints go to standard error."""
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
) -> str:
    """The whole answer as text, without a newline at its end.

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
            "hints": list(hints),
        }
        return json_text(whole, indent=2)
    lines = [_facts_line(facts)] if facts else []
    lines += _table(rows, columns, wide=format == "wide")
    lines += [f"hint: {printable(hint)}" for hint in hints]
    return "\n".join(lines)


def say(text: str, *, err: bool = False) -> None:
    """Print already inert text; what the terminal's encoding lacks is shown as Python would write it."""
    if not text:
        return
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err, color=None)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in ASCII only, so that nothing in it can drive a terminal."""
    return json.dumps(value, indent=indent, ensure_ascii=True, default=str)


def painted(text: str, colour: Colour | None) -> str:
    """`text` in that colour where standard output shows colours, else as it is."""
    return click.style(text, fg=colour) if colour is not None and shows_colours() else text


def shows_colours() -> bool:
    """A terminal that nobody asked to stay plain (NO_COLOR, TERM=dumb)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal()


def is_terminal() -> bool:
    """Whether a person's terminal is at the other end of standard output."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Columns of the terminal; None where there is none to respect (piped, and no COLUMNS)."""
    if is_terminal() or os.environ.get("COLUMNS", "").isdigit():
        return max(20, shutil.get_terminal_size().columns)
    return None


def text_width(text: str) -> int:
    """Cells of a terminal: most East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def clipped(text: str, width: int) -> str:
    """`text` in at most `width` cells; an ellipsis tells that something is missing."""
    if text_width(text) <= width:
        return text
    kept, used = [], 1
    for one in text:
        used += text_width(one)
        if used > width:
            break
        kept.append(one)
    return "".join(kept) + "…"


def inert_for_csv(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay numbers."""
    if not isinstance(value, str):
        return "" if value is None else value if isinstance(value, int | float) else _plain(value)
    is_formula = value.startswith(_FORMULA) or value.lstrip().startswith(_FORMULA)
    return printable(("'" if is_formula else "") + value)


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    writer.writerows([inert_for_csv(row.get(column.key)) for column in columns] for row in rows)
    return out.getvalue().rstrip("\n")


def _projected(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    return {column.key: row.get(column.key) for column in columns}


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return json_text(value) if isinstance(value, Mapping) else str(value)


def _facts_line(facts: Mapping[str, Any]) -> str:
    told = [f"{name.replace('_', ' ').upper()} {_fact(value)}" for name, value in facts.items()]
    line = printable(
        "  ".join(one for one, value in zip(told, facts.values(), strict=True) if value is not None)
    )
    width = terminal_width()
    return line if width is None else clipped(line, width)


def _fact(value: Any) -> str:
    """A count of each of several things reads as "2 Java, 1 pykcl"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{many} {what}" for what, many in value.items()) or "none"
    return _plain(value)


def fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], list[int]]:
    """Which of the columns are shown in so many cells of a terminal, by index, and how wide each of them is.

    cells: of every row one text per column. width: None for as many as it takes. The least weighty go first; if that
    is not enough, the widest of those that stay are clipped.
    """
    kept = list(range(len(columns)))
    widths = [
        max([text_width(column.heading), *(text_width(line[at]) for line in cells)])
        for at, column in enumerate(columns)
    ]
    if width is None or not kept:
        return kept, widths
    while _needed([columns[one] for one in kept], widths) > width and any(
        columns[one].weight < 9 for one in kept
    ):
        at = min(range(len(kept)), key=lambda one: (columns[kept[one]].weight, -kept[one]))
        del kept[at], widths[at]
    _squeeze(widths, width - 2 * (len(kept) - 1))
    return kept, widths


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, wide: bool) -> list[str]:
    there = [column for column in columns if wide or not column.wide]
    cells = [[column.cell(row, wide=wide) for column in there] for row in rows]
    width = None if wide else terminal_width()
    kept, widths = fitted(there, cells, width)
    shown = [there[at] for at in kept]
    lines = [_line([column.heading for column in shown], shown, widths)]
    lines += [
        _line([line[at] for at in kept], shown, widths, row) for line, row in zip(cells, rows, strict=True)
    ]
    if len(kept) < len(there):
        hidden = ", ".join(column.heading for at, column in enumerate(there) if at not in kept)
        lines.append(clipped(f"(-o wide also shows {hidden})", width or 80))
    return lines


def _needed(shown: Sequence[Column], widths: Sequence[int]) -> int:
    """Cells of a line in which the columns that stay to the end may be clipped."""
    least = [
        min(width, 2 * _NARROWEST) if column.weight >= 9 else width
        for column, width in zip(shown, widths, strict=True)
    ]
    return sum(least) + 2 * (len(shown) - 1)


def _squeeze(widths: list[int], room: int) -> None:
    """Take from the widest, cell by cell, until the line fits or nothing is left to take."""
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


_TO_THE_TOP = "\x1b[H\x1b[J"


def watch_option(command: Command) -> Command:
    """`--watch[=SECONDS]`, handed to the command as `watch`: seconds, or None for one answer."""
    return click.option(
        "--watch",
        is_flag=False,
        flag_value="2s",
        default=None,
        metavar="[=2s]",
        type=Duration(minimum=0.2),
        help="Answer again and again, until Ctrl-C. Write --watch=5s for another pause.",
    )(command)


def tell_of_the_wait(seconds: float) -> None:
    """For `Sampler.look_twice`: a command that seems to hang says on standard error why."""
    say(
        f"pykcl: scanning again in {format_duration(seconds)} to see which counters move; --no-sample does not wait",
        err=True,
    )


def repeat(watch: float | None, look: Callable[[], tuple[str, int]]) -> int:
    """Print what `look` returns (text, exit code), once or until Ctrl-C; return the last code.

    On a terminal each answer replaces the one before; piped, they follow one another. While watching, TemporaryError is
    told and the next look follows; everything else ends the command.
    """
    if watch is None:
        text, code = look()
        say(text)
        return code
    code = ExitCode.OK
    try:
        while True:
            try:
                text, code = look()
            except TemporaryError as error:
                say(f"pykcl: {error} Looking again in {format_duration(watch)}.", err=True)
            else:
                say(f"{_TO_THE_TOP}{text}" if is_terminal() else f"{text}\n")
            time.sleep(watch)
    except KeyboardInterrupt:
        return code
