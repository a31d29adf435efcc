"""View that draws the state of the demo in place. Imports `rich`; fits into 80 columns and 24 lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pykcl.demo.verdict import Verdict
from pykcl.demo.view import (
    NEXT_STEPS,
    DemoState,
    Entry,
    ShardLine,
    View,
    WorkerLine,
    counted,
    grouped,
    headline,
    letter_totals,
    short,
    why_duplicates,
)

_COLOURS = ("cyan", "magenta", "yellow", "blue")
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR = 20
_ROOMY_HEIGHT = 31
_MAX_REASONS = 6
_MIN_ENTRIES = 6
_MAX_WITH_UNIT = 3
"""With more workers there is no room for the word "leases" in 80 columns."""
_MARKS = {"running": "●", "killed": "✗", "leaving": "○", "stopped": "○"}
_STATES = {"open": "green", "closed": "yellow", "ended": "bright_black"}


class LiveView(View):
    """Redraw one picture in place; the last one stays in the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)

    def start(self, state: DemoState) -> None:
        self._live.start()
        self.refresh(state)

    def refresh(self, state: DemoState) -> None:
        self._live.update(picture(state, self._console.height), refresh=True)

    def entry(self, entry: Entry) -> None:
        """Do nothing: the next picture has all entries."""

    def end(self, state: DemoState) -> None:
        self.refresh(state)
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def picture(state: DemoState, height: int = 24) -> RenderableType:
    """Draw the state, at most 80 columns wide and, unless it failed, lower than `height`, which is at least 24.

    There are blank lines where there is more room; where there is less, the first entries are left out.
    """
    air = [Text()] if height >= _ROOMY_HEIGHT else []
    status = [] if state.verdict else [_totals(state), _status(state)]
    end = [_verdict_panel(state.verdict, why_duplicates(state))] if state.verdict else []
    # Header, head of the shards, workers; a status of two lines or a panel of six; the cursor stands in the last line.
    taken = 3 + len(state.shards) + 4 * len(air) + (6 if end else 2) + 1
    shown = max(_MIN_ENTRIES, height - taken)
    return Group(
        _header(state),
        *air,
        _shards(state),
        *air,
        _workers(state),
        *air,
        _entries(state.entries[-shown:]),
        *air,
        *status,
        *end,
    )


def colour_of(state: DemoState, worker: str | None) -> str:
    names = [line.name for line in state.workers]
    return _COLOURS[names.index(worker) % len(_COLOURS)] if worker in names else "bright_black"


def _header(state: DemoState) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    title = Text(headline(state), style="bold")
    if state.broken:
        title = Text(f"pykcl demo, broken on purpose: {state.broken}", style="bold red")
    line.add_row(title, Text(f"t+{state.elapsed:5.1f}s", style="bold"))
    return line


def _status(state: DemoState) -> Text:
    frame = _SPINNER[int(state.elapsed * 8) % len(_SPINNER)]
    return Text.assemble((f"{frame} ", "bold cyan"), state.phase, no_wrap=True, overflow="ellipsis")


def _shards(state: DemoState) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    for name, width in (("shard", 5), ("from", 7), ("state", 6), ("owner", 6), ("delivered", _BAR)):
        table.add_column(name, no_wrap=True, min_width=width)
    for name in ("records", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in state.shards:
        dim = "bright_black" if line.state == "ended" else ""
        behind = line.put - line.delivered
        table.add_row(
            Text(short(line.shard), style=dim or "bold"),
            Text("+".join(short(parent) for parent in line.parents), style="bright_black"),
            Text(line.state, style=_STATES[line.state]),
            _owner(state, line.owner),
            _bar(line, colour_of(state, line.owner) if line.owner else "green"),
            Text(grouped(line.put), style=dim),
            Text(grouped(behind), style="yellow" if behind else dim),
        )
    return table


def _owner(state: DemoState, owner: str | None) -> Text:
    if any(line.name == owner and line.state == "killed" for line in state.workers):
        return Text(f"{owner} ✗", style="bold red")
    return Text(owner or "-", style=colour_of(state, owner))


def _bar(line: ShardLine, colour: str) -> Text:
    """Bar in three shades: checkpointed, delivered, waiting."""
    if not line.put:
        return Text("·" * _BAR, style="bright_black")
    delivered = line.delivered * _BAR // line.put
    checkpointed = min(delivered, line.checkpointed * _BAR // line.put)
    shade = "bright_black" if line.state == "ended" else colour
    return Text.assemble(
        ("█" * checkpointed, shade),
        ("▓" * (delivered - checkpointed), shade),
        ("░" * (_BAR - delivered), "bright_black"),
    )


def _workers(state: DemoState) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in state.workers:
        colour = "red" if line.state == "killed" else colour_of(state, line.name)
        text.append(f"{_MARKS[line.state]} {line.name} ", style=f"bold {colour}")
        words = _worker_state(line, short=len(state.workers) > _MAX_WITH_UNIT)
        text.append(f"{words}   ", style="" if line.state == "running" else "bright_black")
    return text


def _worker_state(line: WorkerLine, *, short: bool) -> str:
    if line.state == "running":
        leases = str(line.leases) if short else counted(line.leases, "lease")
        return f"{leases}, {grouped(line.delivered)}"
    return {"killed": "killed", "leaving": "leaving", "stopped": "stopped"}[line.state]


def _entries(entries: Sequence[Entry]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=13)
    table.add_column(no_wrap=True, min_width=26, max_width=29, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for entry in entries:
        style = {"bad": "bold red", "good": "green"}.get(entry.tone, "")
        table.add_row(
            Text(f"t+{entry.at:5.1f}s", style="bright_black"),
            Text(entry.what, style=style or "bold"),
            Text(entry.detail, style=style),
            Text(entry.outcome, style=style or "green"),
        )
    return table


def _totals(state: DemoState) -> Text:
    waiting = state.produced - state.processed
    return Text(
        f"produced {grouped(state.produced)} · processed {grouped(state.processed)} distinct · "
        f"duplicates {grouped(state.duplicates)} · on the way {grouped(max(0, waiting))}",
        no_wrap=True,
        overflow="ellipsis",
    )


def _verdict_panel(verdict: Verdict, why: str) -> Panel:
    tone = "green" if verdict.passed else "red"
    lines = [
        Text(
            f"produced {grouped(verdict.produced)} in {grouped(verdict.kinesis_records)} Kinesis records · "
            f"processed {grouped(verdict.processed)} distinct"
        ),
        Text.assemble(
            f"duplicates {grouped(verdict.duplicates)} ({why}) · ",
            (f"lost {grouped(verdict.lost)}", "bold red" if verdict.lost else "bold green"),
            " · ",
            (
                f"out of order {grouped(verdict.out_of_order)}",
                "bold red" if verdict.out_of_order else "bold green",
            ),
        ),
    ]
    if letters := letter_totals(verdict):
        lines.append(Text(letters))
    lines.extend(Text(f"because {reason}", style="red") for reason in verdict.reasons[:_MAX_REASONS])
    if verdict.passed:
        lines.append(Text(NEXT_STEPS, style="bright_black", no_wrap=True, overflow="ellipsis"))
    word = "PASS" if verdict.passed else "FAIL"
    return Panel(Group(*lines), title=f"[bold {tone}]{word}[/]", title_align="left", border_style=tone)
