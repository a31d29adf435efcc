"""The demo as a live picture. Imports `rich`; fits into 80 columns and 24 lines."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pykcl.cli.demo_board import (
    NEXT_STEPS,
    Board,
    Entry,
    ShardLine,
    View,
    WorkerLine,
    counted,
    grouped,
    headline,
    short,
    why_duplicates,
)
from pykcl.cli.demo_verdict import Verdict

_COLOURS = ("cyan", "magenta", "yellow", "blue")
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR = 20
_ROOMY_HEIGHT = 28
_MOST_REASONS = 6
_MOST_AT_LENGTH = 3
"""Workers whose numbers can have a word beside them in 80 columns."""
_MARKS = {"running": "●", "killed": "✗", "leaving": "○", "stopped": "○"}
_STATES = {"open": "green", "closed": "yellow", "ended": "bright_black"}


class LiveView(View):
    """Redraws one picture in place; the last one stays in the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)

    def begin(self, board: Board) -> None:
        self._live.start()
        self.refresh(board)

    def refresh(self, board: Board) -> None:
        self._live.update(picture(board, self._console.height), refresh=True)

    def entry(self, entry: Entry) -> None:
        """The picture shows the whole list."""

    def end(self, board: Board) -> None:
        self.refresh(board)
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def picture(board: Board, height: int = 24) -> RenderableType:
    """The board, at most 23 lines high and 80 columns wide; with air where there is more room."""
    air = [Text()] if height >= _ROOMY_HEIGHT else []
    status = [] if board.verdict else [_totals(board), _status(board)]
    end = [_verdict_panel(board.verdict, why_duplicates(board))] if board.verdict else []
    return Group(
        _header(board),
        *air,
        _shards(board),
        *air,
        _workers(board),
        *air,
        _entries(board),
        *air,
        *status,
        *end,
    )


def colour_of(board: Board, worker: str | None) -> str:
    names = [line.name for line in board.workers]
    return _COLOURS[names.index(worker) % len(_COLOURS)] if worker in names else "bright_black"


def _header(board: Board) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    title = Text(headline(board), style="bold")
    if board.broken:
        title = Text(f"pykcl demo, broken on purpose: {board.broken}", style="bold red")
    line.add_row(title, Text(f"t+{board.elapsed:5.1f}s", style="bold"))
    return line


def _status(board: Board) -> Text:
    frame = _SPINNER[int(board.elapsed * 8) % len(_SPINNER)]
    return Text.assemble((f"{frame} ", "bold cyan"), board.phase, no_wrap=True, overflow="ellipsis")


def _shards(board: Board) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    for name, width in (("shard", 5), ("from", 7), ("state", 6), ("owner", 6), ("delivered", _BAR)):
        table.add_column(name, no_wrap=True, min_width=width)
    for name in ("records", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in board.shards:
        dim = "bright_black" if line.state == "ended" else ""
        behind = line.put - line.delivered
        table.add_row(
            Text(short(line.shard), style=dim or "bold"),
            Text("+".join(short(parent) for parent in line.parents), style="bright_black"),
            Text(line.state, style=_STATES[line.state]),
            _owner(board, line.owner),
            _bar(line, colour_of(board, line.owner) if line.owner else "green"),
            Text(grouped(line.put), style=dim),
            Text(grouped(behind), style="yellow" if behind else dim),
        )
    return table


def _owner(board: Board, owner: str | None) -> Text:
    if any(line.name == owner and line.state == "killed" for line in board.workers):
        return Text(f"{owner} ✗", style="bold red")
    return Text(owner or "-", style=colour_of(board, owner))


def _bar(line: ShardLine, colour: str) -> Text:
    """Checkpointed, delivered, waiting: three shades of one bar."""
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


def _workers(board: Board) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in board.workers:
        colour = "red" if line.state == "killed" else colour_of(board, line.name)
        text.append(f"{_MARKS[line.state]} {line.name} ", style=f"bold {colour}")
        state = _worker_state(line, short=len(board.workers) > _MOST_AT_LENGTH)
        text.append(f"{state}   ", style="" if line.state == "running" else "bright_black")
    return text


def _worker_state(line: WorkerLine, *, short: bool) -> str:
    if line.state == "running":
        leases = str(line.leases) if short else counted(line.leases, "lease")
        return f"{leases}, {grouped(line.delivered)}"
    return {"killed": "killed", "leaving": "leaving", "stopped": "stopped"}[line.state]


def _entries(board: Board) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=13)
    table.add_column(no_wrap=True, min_width=26, max_width=29, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for entry in board.entries:
        style = {"bad": "bold red", "good": "green"}.get(entry.tone, "")
        table.add_row(
            Text(f"t+{entry.at:5.1f}s", style="bright_black"),
            Text(entry.what, style=style or "bold"),
            Text(entry.detail, style=style),
            Text(entry.outcome, style=style or "green"),
        )
    return table


def _totals(board: Board) -> Text:
    waiting = board.produced - board.processed
    return Text(
        f"produced {grouped(board.produced)} · processed {grouped(board.processed)} distinct · "
        f"duplicates {grouped(board.duplicates)} · on the way {grouped(max(0, waiting))}",
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
    lines.extend(Text(f"because {reason}", style="red") for reason in verdict.reasons[:_MOST_REASONS])
    if verdict.passed:
        lines.append(Text(NEXT_STEPS, style="bright_black", no_wrap=True, overflow="ellipsis"))
    word = "PASS" if verdict.passed else "FAIL"
    return Panel(Group(*lines), title=f"[bold {tone}]{word}[/]", title_align="left", border_style=tone)
