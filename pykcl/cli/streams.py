"""`pykcl streams`: list streams, describe one, and show the lineage of its shards with their leases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.console import quiet_when_unread, say
from pykcl.cli.options import VerbGroup
from pykcl.cli.output import (
    Column,
    Format,
    clipped,
    format_option,
    painted,
    print_wait,
    render,
    repeat,
    show,
    terminal_width,
    text_width,
    watch_option,
)
from pykcl.cli.target import (
    Target,
    admin_for,
    aws_options,
    complete_streams,
    fleet_options,
    summary_of,
)
from pykcl.errors import ConfigError, PyKclError, SetupError, printable

if TYPE_CHECKING:
    from pykcl.model.shard import Shard
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.aws.streams import Consumer, StreamAdmin, StreamSummary
    from pykcl.operate.states import Marks
    from pykcl.operate.streams.describe import TreeLine


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.2f} %"


def _hours(hours: int | None) -> str:
    if hours is None:
        return "-"
    return f"{hours} h" if hours % 24 or hours <= 24 else f"{hours // 24} d"


def _names(names: list[str]) -> str:
    return ",".join(names) or "-"


STREAMS = (
    Column("name", "STREAM", weight=9),
    Column("status", weight=8),
    Column("mode", weight=6),
    Column("created", weight=4),
    Column("open_shards", "SHARDS", right=True, wide=True),
    Column("retention_hours", "RETENTION", text=_hours, right=True, wide=True),
    Column("encryption", wide=True),
    Column("consumers", right=True, wide=True),
    Column("arn", "ARN", wide=True, weight=1),
)
SHARDS = (
    Column("shard", weight=9),
    Column("state", weight=8),
    Column("share", "HASH KEYS", text=_percent, right=True, weight=7),
    Column("parents", text=_names, weight=6),
    Column("children", text=_names, weight=5),
    Column("starting_hash_key", "FROM KEY", right=True, wide=True),
    Column("ending_hash_key", "TO KEY", right=True, wide=True),
    Column("starting_sequence_number", "FROM SEQUENCE", right=True, wide=True),
    Column("ending_sequence_number", "TO SEQUENCE", right=True, wide=True),
)


TREE = tuple(
    Column(key)
    for key in ("shard", "depth", "state", "owner", "checkpoint", "open", "parents", "children", "waits_for")
)
_MOST_BRANCHES = 24


@click.group(cls=VerbGroup)
def streams() -> None:
    """List and describe streams."""


@streams.command("list")
@format_option
@aws_options
def list_streams(output: Format, clients: OperatorClients) -> None:
    """List the streams of the account and region.

    Every output but the table also has shards, retention, encryption and consumers, which takes one
    DescribeStreamSummary call a stream, a tenth of a second apart.
    """
    from pykcl.operate.streams.describe import stream_row

    with quiet_when_unread():
        admin = admin_for(clients)
        found = admin.streams()
        if output != "table":
            found = _in_full(admin, found)
        hints = () if found else ("there is no stream here. Check --region and whose credentials these are.",)
        show([stream_row(stream) for stream in found], STREAMS, output, hints=hints)


@streams.command()
@click.argument("name", required=False, shell_complete=complete_streams)
@fleet_options(stream_argument="name")
@format_option
@click.option(
    "--tree", is_flag=True, help="Show the lineage of the shards, with the leases of --application."
)
@partial(watch_option, only_with="--tree")
@click.option(
    "--no-sample",
    is_flag=True,
    help="With --tree: scan the leases once: faster, but does not show which workers are alive.",
)
@click.option("--hide-ended", is_flag=True, help="With --tree: leave out shards that were read to the end.")
def describe(
    target: Target, output: Format, tree: bool, watch: float | None, no_sample: bool, hide_ended: bool
) -> None:
    """Describe one stream and its shards.

    Needs the stream: NAME (which may be an ARN) or --stream.

    --tree shows parents above children, with the owner and state of each lease if --application names a fleet; without
    a stream it shows the leases alone. Each owner has a colour and a shape, the same in all views of pykcl. The states
    are those of `pykcl leases list`, and:

    \b
    CLEANED UP  the shard was read to the end, and its lease has been deleted
    NO LEASE    the shard is in the stream, and no worker reads it
    """
    if tree:
        if target.table is None and target.stream is None:
            raise click.UsageError(
                "Neither stream nor application. Do: name the stream, or --application NAME."
            )
        sys.exit(
            repeat(watch, _tree_poll(target, output, watch=watch, no_sample=no_sample, hide_ended=hide_ended))
        )
    if watch is not None or no_sample or hide_ended:
        raise click.UsageError("--watch, --no-sample and --hide-ended go with --tree.")
    if target.stream is None:
        raise click.UsageError("No stream. Do: pykcl streams describe NAME.")
    _describe(target.clients, target.stream, output)


def _describe(clients: OperatorClients, stream: str, output: Format) -> None:
    from pykcl.operate.streams.describe import hints, shard_rows, stream_facts

    with quiet_when_unread():
        admin = admin_for(clients, stream)
        summary = summary_of(admin, stream)
        shards = [] if summary.status in ("CREATING", "DELETING") else admin.shards(summary.arn or stream)
        consumers, unread = _consumers(admin, summary)
        facts = stream_facts(summary, shards, consumers)
        if output in ("table", "wide"):
            say("\n".join(_sheet(facts)) + "\n")
            facts = {}
        show(shard_rows(shards), SHARDS, output, facts=facts, hints=hints(summary, shards, unread))


def _in_full(admin: StreamAdmin, found: list[StreamSummary]) -> list[StreamSummary]:
    """DescribeStreamSummary takes 20 calls a second of the whole account; a stream deleted meanwhile stays short."""
    import time

    full = []
    for stream in found:
        try:
            full.append(admin.summary(stream.arn or stream.name))
        except SetupError:
            full.append(stream)
        if len(found) > 10:
            time.sleep(0.1)
    return full


def _consumers(admin: StreamAdmin, summary: StreamSummary) -> tuple[list[Consumer] | None, str]:
    if summary.consumers == 0 or summary.arn is None:
        return [], ""
    try:
        return admin.consumers(summary.arn), ""
    except PyKclError as error:
        return None, str(error)


def _sheet(facts: Mapping[str, Any]) -> list[str]:
    """The stream as a whole, one fact per line."""
    key = f" with {facts['key_id']}" if facts["key_id"] else ""
    consumers = facts["consumers"]
    if consumers is None:
        listed = f"{facts['consumer_count']}" if facts["consumer_count"] is not None else "unknown"
    else:
        listed = ", ".join(f"{one['name']} ({one['status']})" for one in consumers) or "none"
    lines = {
        "Stream": f"{facts['stream']}  {facts['status']}  {facts['mode'] or ''}".rstrip(),
        "ARN": facts["arn"],
        "Created": facts["created"],
        "Retention": _hours(facts["retention_hours"]),
        "Encryption": f"{facts['encryption'] or '-'}{key}",
        "Largest record": f"{facts['largest_record_bytes'] // 1024} KiB",
        "Fan-out consumers": listed,
        "Shard metrics": ", ".join(facts["shard_metrics"]) or "none",
        "Shards": f"{facts['open_shards']} open, {facts['closed_shards']} closed; hash keys {facts['hash_keys']}",
    }
    width = max(map(len, lines))
    return [f"{name:<{width}}  {printable(str(value or '-'))}" for name, value in lines.items()]


# -- the tree --------------------------------------------------------------------------------------------------


def _tree_poll(
    target: Target, output: Format, *, watch: float | None, no_sample: bool, hide_ended: bool
) -> Callable[[], tuple[str, int]]:
    """Return the function that scans the table, lists the shards and returns (text, exit code)."""
    from pykcl.operate.snapshot import Sampler
    from pykcl.runtime import SystemRuntime

    sampler = Sampler(target.scanner().scan, SystemRuntime()) if target.table is not None else None
    marks: Marks | None = None

    def poll() -> tuple[str, int]:
        nonlocal marks
        from pykcl.operate.snapshot import known_failover
        from pykcl.operate.states import NO_MARKS, marks_among, states_of
        from pykcl.operate.streams.describe import tree_lines

        states = named = None
        if sampler is not None:
            once = no_sample or watch is not None
            found = sampler.poll() if once else sampler.poll_until_moved(target.failover, on_wait=print_wait)
            failover, _ = known_failover(target.failover, found.snapshot.leases.values())
            states, named = states_of(found, failover), found.snapshot.stream_arn
        listed, hints = _listing(target, named)
        marks = marks_among((one.owner for one in (states or {}).values()), marks or NO_MARKS)
        lines = tree_lines(states, listed)
        if hide_ended:
            lines = _without_the_past(lines)
        return _tree_text(lines, marks, output, hints), 0

    return poll


def _listing(target: Target, named: str | None) -> tuple[tuple[Shard, ...], list[str]]:
    """Return the shards, and a hint if they cannot be listed: the leases alone are worth showing."""
    name = target.stream or named
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
    from pykcl.operate.streams.describe import CLEANED_UP, CLOSED

    return [line for line in lines if line.state not in ("ENDED", CLEANED_UP, CLOSED)]


def _tree_text(lines: list[TreeLine], marks: Marks, output: Format, hints: list[str]) -> str:
    nobody = [line.key for line in lines if line.state == "NO LEASE"]
    if nobody:
        hints = [*hints, f"{len(nobody)} listed shard(s) have no lease: nobody reads them."]
    if output not in ("table", "wide"):
        return render([_tree_row(line) for line in lines], TREE, output, hints=hints)
    width = terminal_width() if output == "table" else None
    shown = [_tree_line(line, marks, width) for line in lines] or ["(no shards)"]
    return "\n".join([*shown, *(f"hint: {printable(hint)}" for hint in hints)])


def _tree_row(line: TreeLine) -> dict[str, Any]:
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


def _tree_line(line: TreeLine, marks: Marks, width: int | None) -> str:
    from pykcl.cli.leases import state_colour
    from pykcl.model.shard import short_shard

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
