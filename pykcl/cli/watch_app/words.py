"""Lines of text of a frame: `rich` texts, never markup, whatever names are in them. Pure."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pykcl.cli.durations import duration_text
from pykcl.cli.lease_tables import lease_facts, state_colour
from pykcl.cli.output import clipped, fitted
from pykcl.cli.watch_app.columns import COLUMNS, MOST_SHOWN, OWNER, STATE, URGENCY, LeaseRow
from pykcl.cli.watch_app.looks import Event, Frame
from pykcl.errors import printable
from pykcl.operate.family_tree import TreeLine
from pykcl.operate.hints import short_shard
from pykcl.operate.owner_marks import Marks

DIM = "#8a8a8a"
PATIENCE = 5.0
"""Seconds until a look that does not end is told of."""
_GAP = "  "
_MARKS: Mapping[str, tuple[str, str]] = {"good": ("+", "green"), "bad": ("!", "bold red"), "": ("·", DIM)}
_STATE_WIDTH = 10
_SHORT = (
    ("lease key", "state"),
    ("what it is",),
    ("owner", "owner's kind"),
    ("next owner",),
    ("counter", "still for"),
    ("checkpoint",),
    ("waits for", "pending checkpoint"),
    ("parents", "children"),
)
"""What the short form of a lease tells, two by two."""


def inert(text: Any, most: int = MOST_SHOWN) -> str:
    """On one line, driving nothing, and not endless."""
    return clipped(printable(str(text)[: 4 * most]), most)


def owner_text(owner: str | None, marks: Marks) -> Text:
    """Shape and name in the owner's colour."""
    if not owner:
        return Text("-", DIM)
    mark = marks.of(owner)
    return Text(f"{mark.shape} {inert(owner)}", mark.colour)


def state_style(state: str) -> str:
    return str(state_colour({"state": state}) or "")


def fit(text: Text, width: int) -> Text:
    """In so many cells, the end cut off with an ellipsis; a copy."""
    short = text.copy()
    short.truncate(max(0, width), overflow="ellipsis")
    return short


# -- what stands above the list ---------------------------------------------------------------------------------


def headline(frame: Frame, now: float, width: int, *, every: float, paused: bool) -> Text:
    """What is looked at, and how old it is. now: monotonic seconds."""
    seen = frame.seen_at
    age = "nothing seen yet" if seen is None else f"{duration_text(max(0.0, now - seen))} old"
    pace = "paused" if paused else f"every {duration_text(every)}"
    style = "bold yellow" if frame.trouble or paused else DIM
    right = Text(f"{age}, {pace}" if width >= 60 or paused else age, style)
    left = Text.assemble((inert(frame.application), "bold"))
    stream = frame.facts.get("stream")
    if stream:
        left.append(f" · stream {inert(stream)}", DIM)
    if frame.facts:
        left.append(f" · {frame.facts['schema']}", DIM)
    left = fit(left, width - right.cell_len - 2)
    return Text.assemble(left, " " * max(1, width - left.cell_len - right.cell_len), right)


def totals(frame: Frame, width: int) -> Text:
    """How many leases in which state, the most urgent first, and how many owners of which kind."""
    line = Text.assemble(("leases ", DIM))
    leases: Mapping[str, int] = frame.facts.get("leases", {})
    for number, (state, many) in enumerate(sorted(leases.items(), key=lambda one: URGENCY.get(one[0], 99))):
        line.append(", " if number else "")
        line.append(f"{many} {state}", state_style(state))
    workers: Mapping[str, int] = frame.facts.get("workers", {})
    line.append("" if leases else "none")
    line.append(f"{_GAP} owners ", DIM)
    line.append(", ".join(f"{many} {kind}" for kind, many in workers.items()) or "none")
    return fit(line, width)


def banner(frame: Frame, now: float, width: int, *, asked_at: float | None = None) -> Text | None:
    """What is wrong with the looking, and how old the rest is; None where nothing is.

    asked_at: when the look began that is under way, monotonic seconds; None: none is.
    """
    waits = now - asked_at if asked_at is not None else 0.0
    if not frame.trouble and waits < PATIENCE:
        return None
    if frame.seen_at is None:
        age = "nothing was seen yet"
    else:
        age = f"what you see is {duration_text(max(0.0, now - frame.seen_at))} old"
    if frame.trouble:
        failing = duration_text(max(0.0, now - frame.trouble_since))
        first, second = f"! No look for {failing}: {age}; trying again.", inert(frame.trouble, 400)
    else:
        first = f"! The table has not answered for {duration_text(waits)}: {age}."
        second = "The look goes on."
    return Text("\n").join([fit(Text(first), width), fit(Text(second), width)])


def hint_lines(frame: Frame, width: int, most: int) -> Text | None:
    """The most urgent hint in at most so many lines."""
    if not frame.hints or most < 1:
        return None
    more = f" (h: {len(frame.hints) - 1} more)" if len(frame.hints) > 1 else ""
    hint = f"hint: {inert(frame.hints[0], 1000)}{more}"
    cut = f"… (h: all{f' {len(frame.hints)}' if more else ''})"
    return Text("\n".join(textwrap.wrap(hint, width, max_lines=most, placeholder=cut)))


# -- lists ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """What the list shows. lines: without the cell in front that marks the selected one. keys: of each line.

    empty: what is said where there is no line.
    """

    heading: Text
    keys: Sequence[str]
    lines: Sequence[Text]
    empty: str


class LeaseLines(Sequence[Text]):
    """Drawn when they come into sight."""

    def __init__(self, rows: Sequence[LeaseRow], kept: Sequence[int], widths: Sequence[int]) -> None:
        self._rows, self._kept, self._widths = rows, kept, widths

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        row = self._rows[at]
        line = Text()
        for place, (column, width) in enumerate(zip(self._kept, self._widths, strict=True)):
            cell = clipped(row.cells[column], width)
            blank = " " * (width - cell_len(cell))
            style = ""
            if column == STATE:
                style = state_style(row.values["state"])
            elif column == OWNER and row.values.get("owner"):
                style = row.values["mark"].colour
            line.append(_GAP if place else "")
            line.append(blank + cell if COLUMNS[column].right else cell + blank, style)
        return line


class TreeLines(Sequence[Text]):
    """Drawn when they come into sight."""

    def __init__(
        self, tree: Sequence[TreeLine], marks: Marks, labels: Sequence[str], label: int, width: int
    ) -> None:
        self._tree, self._marks, self._labels, self._label, self._width = tree, marks, labels, label, width

    def __len__(self) -> int:
        return len(self._tree)

    def __getitem__(self, at: Any) -> Any:
        label = set_cell_size(self._labels[at], self._label)
        return fit(_tree_line(self._tree[at], self._marks, label), self._width)


def lease_listing(
    rows: Sequence[LeaseRow], width: int, sorted_by: int, backwards: bool, empty: str
) -> Listing:
    # The arrow of the sorted column needs its cells, too.
    cells = [row.cells for row in rows]
    kept, widths = fitted(COLUMNS, [*cells, _arrows(sorted_by, backwards)], width)
    heading = Text()
    for place, (column, cell_width) in enumerate(zip(kept, widths, strict=True)):
        text = clipped(_arrows(sorted_by, backwards)[column], cell_width)
        blank = " " * (cell_width - cell_len(text))
        heading.append(_GAP if place else "")
        style = "bold underline" if column == sorted_by else "bold"
        if COLUMNS[column].right:
            heading.append(blank)
        heading.append_text(click(Text(text, style), f"app.sort_by({column})"))
        if not COLUMNS[column].right:
            heading.append(blank)
    return Listing(heading, [row.key for row in rows], LeaseLines(rows, kept, widths), empty)


def _arrows(sorted_by: int, backwards: bool) -> list[str]:
    arrow = "↑" if backwards else "↓"
    return [column.heading + (arrow if at == sorted_by else "") for at, column in enumerate(COLUMNS)]


def click(text: Text, action: str) -> Text:
    """The same text; a click on it does that. action: never with a name out of the table in it."""
    text.apply_meta({"@click": action})
    return text


def tree_listing(tree: Sequence[TreeLine], marks: Marks, width: int, empty: str) -> Listing:
    """The lineage, parents above their children."""
    labels = [_label(line, max(12, width // 2)) for line in tree]
    label = max([cell_len("SHARD"), *map(cell_len, labels)])
    heading = Text(f"{set_cell_size('SHARD', label)}{_GAP}{'STATE':<{_STATE_WIDTH}}{_GAP}OWNER", "bold")
    return Listing(
        fit(heading, width), [line.key for line in tree], TreeLines(tree, marks, labels, label, width), empty
    )


def _label(line: TreeLine, most: int) -> str:
    name = inert(short_shard(line.key))
    branches = line.branches
    room = max(3, most - cell_len(name))
    if len(branches) > room:
        branches = "…" + branches[-(room - 1) :]
    return clipped(branches + name, most)


def _tree_line(line: TreeLine, marks: Marks, label: str) -> Text:
    if line.again:
        return Text.assemble(label, _GAP, ("(see above)", DIM))
    told = Text.assemble(label, _GAP, (f"{line.state:<{_STATE_WIDTH}}", state_style(line.state)), _GAP)
    owner = line.status.owner if line.status is not None else None
    told.append_text(owner_text(owner, marks))
    if line.status is not None and line.status.waits_for:
        waits = ",".join(short_shard(one) for one in line.status.waits_for[:5])
        told.append(f"{_GAP}waits for {inert(waits)}", "yellow")
    return told


def event_listing(events: Sequence[Event], marks: Marks, width: int, empty: str) -> Listing:
    """The newest first."""
    shards = [inert(short_shard(event.edge.shard)) or "-" for event in events]
    shard = min(max([5, *map(cell_len, shards)]), max(8, width // 4))
    heading = Text(f"{'TIME':<8}{_GAP}{set_cell_size('SHARD', shard)}{_GAP}  EVENT", "bold")
    lines = [
        fit(
            Text.assemble(
                (time_text(event.at), DIM),
                _GAP,
                set_cell_size(clipped(name, shard), shard),
                _GAP,
                event_text(event, marks),
            ),
            width,
        )
        for event, name in zip(events, shards, strict=True)
    ]
    return Listing(fit(heading, width), [str(event.serial) for event in events], lines, empty)


def event_text(event: Event, marks: Marks) -> Text:
    """Whose it was and what happened: a mark, owners in their colours, words."""
    edge = event.edge
    sign, style = _MARKS[edge.tone]
    line = Text.assemble((sign, style), " ")
    if edge.before:
        line.append_text(owner_text(edge.before, marks))
    if edge.before and edge.after:
        line.append(" → ")
    if edge.after:
        line.append_text(owner_text(edge.after, marks))
    if edge.before or edge.after:
        line.append(_GAP)
    return line.append(inert(edge.text), style if edge.tone == "bad" else "")


def time_text(millis: int) -> str:
    """Of this machine's clock and zone, as on its wall."""
    return time.strftime("%H:%M:%S", time.localtime(millis / 1000))


# -- one lease --------------------------------------------------------------------------------------------------


def short_facts(frame: Frame, key: str | None, width: int, lines: int) -> Text:
    """As much of one lease as so many lines hold, two facts side by side where there is room."""
    facts = dict(_facts(frame, key))
    kind = frame.kinds.get(str(facts.get("owner")))
    if kind is not None:
        facts["owner's kind"] = f"{kind.kind} {kind.version or ''}"
    if not facts:
        return Text("No lease is selected.", DIM)
    half = (width - 2) // 2 if width >= 70 else width
    told: list[Text] = []
    pairs = [[(name, facts[name]) for name in pair if name in facts] for pair in _SHORT]
    for pair in [one for one in pairs if one]:
        cells = [_fact(name, value, 12, frame.marks) for name, value in pair]
        if half == width or len(cells) == 1:
            told += [fit(cell, width) for cell in cells]
        else:
            left = fit(cells[0], half)
            told.append(Text.assemble(left, " " * (half + 2 - left.cell_len), fit(cells[1], half)))
    return Text("\n").join(told[:lines])


def all_facts(frame: Frame, key: str) -> Text:
    """Everything about one lease, and what happened to it while this was watching."""
    facts = _facts(frame, key)
    told = [_fact(name, value, 21, frame.marks, most=2000) for name, value in facts]
    if not facts:
        told = [Text("Its row is not in the table any more.")]
    mine = [event for event in frame.events if event.edge.shard == key]
    told += [Text(), Text("While you watched", "bold")]
    told += [
        Text.assemble((time_text(event.at), DIM), _GAP, event_text(event, frame.marks)) for event in mine
    ]
    if not mine:
        told.append(Text("Nothing has happened to it.", DIM))
    return Text("\n").join(told)


def _facts(frame: Frame, key: str | None) -> list[tuple[str, Any]]:
    if key is None or key not in frame.states:
        return []
    facts = lease_facts(frame.found, frame.states, frame.kinds, key)
    return [one for name, value in facts for one in _as_watched(frame, key, name, value)]


def _as_watched(frame: Frame, key: str, name: str, value: Any) -> list[tuple[str, Any]]:
    """The movement of the counter is that since the look before: this looks again and again."""
    if name == "counter moved":
        status = frame.states[key]
        return [("moved", f"{status.moved:+d}"), ("still for", duration_text(status.unmoved_for))]
    return [(name, value)]


def _fact(name: str, value: Any, width: int, marks: Marks, most: int = MOST_SHOWN) -> Text:
    line = Text(f"{inert(name):<{width}} ", DIM)
    if name in ("owner", "next owner"):
        return line.append_text(owner_text(str(value), marks))
    told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return line.append(inert(told, most), state_style(told) if name == "state" else "default")
