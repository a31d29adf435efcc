"""`pykcl shards tree`: which shard descends from which, who reads it, and how far that has come."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.fleet_options import Target, fleet_options
from pykcl.cli.output import (
    Column,
    Format,
    clipped,
    format_option,
    painted,
    render,
    terminal_width,
)
from pykcl.cli.watching import repeat, tell_of_the_wait, watch_option
from pykcl.errors import ConfigError, PyKclError, printable

if TYPE_CHECKING:
    from pykcl.model.shard import Shard
    from pykcl.operate.family_tree import TreeLine
    from pykcl.operate.owner_marks import Marks

_MOST_BRANCHES = 24


@click.group()
def shards() -> None:
    """Look at the shards of a stream and their leases."""


@shards.command()
@fleet_options()
@format_option
@watch_option
@click.option("--no-sample", is_flag=True, help="Look once, and do not wait for counters to move.")
@click.option("--open", "only_open", is_flag=True, help="Leave out families that are read to their end.")
def tree(target: Target, output: Format, watch: float | None, no_sample: bool, only_open: bool) -> None:
    """The lineage of all shards, parents above children, with owner and state of each lease.

    With --application and --stream both sources are joined; either alone will do. Every owner has a colour and a shape
    of its own, the same in all of pykcl's views.

    \b
    CLEANED UP  it was read, and its row has been deleted since
    NO LEASE    Kinesis lists it, and nobody reads it
    """
    from pykcl.operate.sampling import Sampler
    from pykcl.operate.scanning import TableScanner
    from pykcl.runtime import SystemRuntime

    if target.table is None and target.stream is None:
        raise click.UsageError("Neither application nor stream. Do: --application NAME, or --stream NAME.")
    sampler = None
    if target.table is not None:
        runtime = SystemRuntime()
        scanner = TableScanner(target.clients.client("dynamodb"), target.table, runtime)
        sampler = Sampler(scanner.scan, runtime)

    marks: Marks | None = None

    def look() -> tuple[str, int]:
        nonlocal marks
        from pykcl.operate.family_tree import tree_lines
        from pykcl.operate.lease_states import states_of
        from pykcl.operate.owner_marks import NO_MARKS, marks_among
        from pykcl.operate.sampling import known_failover

        states = None
        arns: tuple[str, ...] = ()
        if sampler is not None:
            once = no_sample or watch is not None
            found = sampler.look() if once else sampler.look_twice(target.failover, on_wait=tell_of_the_wait)
            failover, _ = known_failover(target.failover, found.view.leases.values())
            states, arns = states_of(found, failover), found.view.stream_arns
        listed, hints = _listing(target, arns)
        marks = marks_among((one.owner for one in (states or {}).values()), marks or NO_MARKS)
        lines = tree_lines(states, listed)
        if only_open:
            lines = _without_the_past(lines)
        return _text(lines, marks, output, hints), 0

    sys.exit(repeat(watch, look))


def _listing(target: Target, arns: tuple[str, ...]) -> tuple[tuple[Shard, ...], list[str]]:
    """The shards, and what to say where they cannot be listed: the rows alone tell much, too."""
    name = target.stream or (arns[0] if len(arns) == 1 else None)
    if name is None:
        return (), ["Only leases are shown. With --stream NAME, shards without a lease are seen, too."]
    try:
        listing = target.kinesis(name).list_shards()
    except PyKclError as error:
        if target.table is None or isinstance(error, ConfigError):
            raise
        return (), [f"Only leases are shown: {error}"]
    hints = [] if listing.complete else ["Not all shards could be listed; some may be missing here."]
    return listing.shards, hints


def _without_the_past(lines: list[TreeLine]) -> list[TreeLine]:
    from pykcl.operate.family_tree import CLEANED_UP, CLOSED

    return [line for line in lines if line.state not in ("ENDED", CLEANED_UP, CLOSED)]


def _text(lines: list[TreeLine], marks: Marks, output: Format, hints: list[str]) -> str:
    nobody = [line.key for line in lines if line.state == "NO LEASE"]
    if nobody:
        hints = [*hints, f"{len(nobody)} listed shard(s) have no lease: nobody reads them."]
    if output not in ("table", "wide"):
        return render([_row(line) for line in lines], _COLUMNS, output, hints=hints)
    width = terminal_width() if output == "table" else None
    told = [_line(line, marks, width) for line in lines] or ["(no shards)"]
    return "\n".join([*told, *(f"hint: {printable(hint)}" for hint in hints)])


_COLUMNS = tuple(
    Column(key)
    for key in ("shard", "depth", "state", "owner", "checkpoint", "open", "parents", "children", "waits_for")
)


def _row(line: TreeLine) -> dict[str, Any]:
    lease = line.status.lease if line.status is not None else None
    return {
        "shard": line.key,
        "depth": line.depth,
        "state": line.state,
        "owner": lease.actual_owner if lease is not None else None,
        "checkpoint": str(lease.checkpoint) if lease is not None else None,
        "open": line.is_open,
        "parents": list(line.parents),
        "children": list(line.children),
        "waits_for": list(line.status.waits_for) if line.status is not None else [],
    }


def _line(line: TreeLine, marks: Marks, width: int | None) -> str:
    from pykcl.cli.lease_tables import state_colour
    from pykcl.operate.hints import short_shard

    branches = line.branches
    most = _MOST_BRANCHES if width is None else min(_MOST_BRANCHES, width // 2)
    if len(branches) > most:
        branches = "…" + branches[-most:]
    name = printable(short_shard(line.key))
    if line.again:
        return _fit([(f"{branches}{name}", None), ("(see above)", None)], width)
    owner = line.status.owner if line.status is not None else None
    parts: list[tuple[str, Any]] = [
        (f"{branches}{name}", None),
        (line.state, state_colour({"state": line.state})),
    ]
    if owner is not None:
        mark = marks.of(owner)
        parts.append((f"{mark.shape} {printable(owner)}", mark.rgb))
    if line.status is not None and line.status.waits_for:
        waits = ",".join(printable(short_shard(one)) for one in line.status.waits_for)
        parts.append((f"waits for {waits}", None))
    return _fit(parts, width)


def _fit(parts: list[tuple[str, Any]], width: int | None) -> str:
    """Parts side by side in as many cells as there are; the last that begins within them is clipped."""
    from pykcl.cli.output import text_width

    shown, left = [], width
    for whole, colour in parts:
        text = whole
        if left is not None:
            if left < 4:
                break
            text = clipped(whole, left)
            left -= text_width(text) + 2
        shown.append(painted(text, colour))
    return "  ".join(shown)
