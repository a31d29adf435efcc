"""`pykcl checkpoint show | export | import | reset | seek | skip`: look at a fleet's checkpoints, and move them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from pykcl.cli.checkpoint_moves import (
    Moving,
    Surroundings,
    move,
    moving_options,
    open_table,
    shortened,
    stream_of,
    write_new_file,
)
from pykcl.cli.durations import Duration
from pykcl.cli.fleet_options import Target, complete_shards, fleet_options
from pykcl.cli.output import Column, Format, format_option, say, show
from pykcl.errors import ConfigError

if TYPE_CHECKING:
    from pykcl.operate.checkpoints.places import Destination
    from pykcl.operate.checkpoints.plan import Plan, Situation

Command = TypeVar("Command", bound=Callable[..., Any])
MOST_FILE_BYTES = 1 << 30


@click.group()
def checkpoint() -> None:
    """Show, save and move checkpoints of any KCL lease table, Java's too.

    What moves them shows its plan and writes nothing, until it is told to with --execute.

    Exit codes: 0 ok, 1 error, 2 usage, 5 refused.
    """


class _Checked(click.ParamType):  # type: ignore[type-arg]
    """A value that a function of ours reads; what it refuses is a usage error."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _time(text: str) -> int:
    from pykcl.operate.checkpoints.times import millis_of

    return millis_of(text)


def _position(text: str) -> tuple[str, int | None]:
    from pykcl.operate.checkpoints.times import position_of

    return position_of(text)


def _shard(text: str) -> str:
    from pykcl.operate.checkpoints.times import full_shard_id

    return full_shard_id(text)


def _placed_shard(text: str) -> tuple[str, tuple[str, int | None]]:
    shard, equals, position = text.partition("=")
    if not equals:
        raise ConfigError(f"{text[:80]!r} is not SHARD=NUMBER[:SUB].")
    return _shard(shard), _position(position)


SHARD = _Checked("shard", _shard)
_SHARD_ARGUMENT = click.argument("shard", type=SHARD, shell_complete=complete_shards)


def destination_options(command: Command) -> Command:
    """The four destinations that need no list of positions."""
    options = (
        click.option("--to-earliest", is_flag=True, help="To the oldest record that the stream still keeps."),
        click.option("--to-latest", is_flag=True, help="Behind the newest record of this moment."),
        click.option(
            "--to-datetime",
            type=_Checked("time", _time),
            metavar="TIME",
            help="So that what arrived from then on comes again: 2026-11-20T09:00Z.",
        ),
        click.option(
            "--by-duration",
            type=Duration(least=0.001),
            metavar="TIME",
            help="The same, so long before now: PT2H, 90m, 1d.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@checkpoint.command("show")
@fleet_options("table")
@click.option(
    "--times", is_flag=True, help="Also when the record of each checkpoint arrived: one read of each shard."
)
@format_option
def show_checkpoints(target: Target, times: bool, output: Format) -> None:
    """Where every shard of the fleet is."""
    from pykcl.model.lease import Lease
    from pykcl.operate.hints import short_shard

    table = open_table(target)
    leases = sorted((row for row in table.scan().rows if isinstance(row, Lease)), key=lambda lease: lease.key)
    arrivals = _arrivals(target, leases) if times else {}
    rows = [_lease_row(lease, arrivals.get(lease.key)) for lease in leases]
    short = shortened([position for row in rows for position in (row["checkpoint"], row["pending"])])
    columns = [
        Column("shard", short=short_shard, weight=9),
        Column("checkpoint", short=short, weight=8),
        *([Column("arrived_at", weight=7)] if times else []),
        Column("owner", weight=6),
        Column("counter", right=True, weight=4),
        Column("pending", short=short, weight=3),
        Column("children", wide=True),
        Column("parents", wide=True),
    ]
    show(rows, columns, output, facts={"application": target.application, "table": target.table})


def _lease_row(lease: Any, arrived: str | None) -> dict[str, Any]:
    return {
        "shard": lease.key,
        "checkpoint": str(lease.checkpoint),
        "arrived_at": arrived,
        "owner": lease.actual_owner,
        "counter": lease.counter,
        "pending": str(lease.pending.checkpoint) if lease.pending else None,
        "children": list(lease.children),
        "parents": list(lease.parents),
    }


def _arrivals(target: Target, leases: list[Any]) -> dict[str, str]:
    from pykcl.operate.checkpoints.looking import in_parallel
    from pykcl.operate.checkpoints.search import ShardSearch
    from pykcl.operate.checkpoints.times import time_text
    from pykcl.runtime import SystemRuntime

    runtime = SystemRuntime()
    stream = stream_of(target, open_table(target))
    at = {lease.key: lease.checkpoint for lease in leases if not lease.checkpoint.is_sentinel}
    found = in_parallel(
        sorted(at), lambda key: ShardSearch(stream, key, runtime).arrival_of(at[key]), runtime
    )
    return {key: time_text(millis) for key, millis in found.items() if millis is not None}


@checkpoint.command()
@fleet_options("table")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Into a new file instead of standard output.",
)
def export(target: Target, path: Path | None) -> None:
    """Save the checkpoints, one JSON object a line; `import` puts them back."""
    from pykcl.operate.checkpoints.backup import lines_of
    from pykcl.operate.checkpoints.looking import look_around

    table = open_table(target)
    situation = look_around(table, stream_of(target, table))
    lines = lines_of(
        situation.leases.values(),
        table=str(target.table),
        stream=situation.stream,
        now_millis=situation.now_millis,
        before="export",
    )
    if path is None:
        say("\n".join(lines))
        return
    write_new_file(path, lines)
    say(f"{path}: {len(situation.leases)} leases", err=True)


@checkpoint.command("import")
@fleet_options("table")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@moving_options
def import_checkpoints(target: Target, file: Path, moving: Moving) -> NoReturn:
    """Put back what `export`, or the backup of a reset, has saved: the way to undo one."""
    from pykcl.operate.checkpoints.backup import read_backup
    from pykcl.operate.checkpoints.restore_plan import plan_restore

    saved = read_backup(_text_of(file), file.name)

    def plan(around: Surroundings) -> Plan:
        saved.refuse_another(str(target.table), around.situation.stream)
        return plan_restore(around.situation, saved)

    sys.exit(move(target, moving, f"import {file.name}", plan))


@checkpoint.command()
@fleet_options("table")
@destination_options
@click.option(
    "--to-sequence",
    multiple=True,
    type=_Checked("position", _placed_shard),
    metavar="SHARD=NUMBER[:SUB]",
    help="One shard behind that record, or behind a part of an aggregated one. May be given several times.",
)
@click.option(
    "--from-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Positions of several shards: an export, or lines of shard,number[,sub].",
)
@click.option(
    "--shards",
    metavar="SHARD,…",
    shell_complete=complete_shards,
    help="These shards only; what descends from them goes on where it is.",
)
@moving_options
def reset(
    target: Target,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: int | None,
    by_duration: float | None,
    to_sequence: tuple[tuple[str, tuple[str, int | None]], ...],
    from_file: Path | None,
    shards: str | None,
    moving: Moving,
) -> NoReturn:
    """Move the checkpoints of a stopped fleet, as kafka-consumer-groups --reset-offsets does.

    A time becomes a record in each shard: the last one before it, so that the first one delivered is the first from
    then on. Shards that were read to their end are read again where they hold such records, before their children.

    SHARD may be short: 7 means shardId-000000000007.
    """
    from pykcl.operate.checkpoints.places import Destination

    keys = [_shard(one) for one in shards.split(",") if one.strip()] if shards is not None else None
    positions = dict(to_sequence)
    if len(positions) < len(to_sequence):
        raise click.UsageError("--to-sequence names one shard twice.")
    ways = [to_earliest, to_latest, to_datetime is not None, by_duration is not None]
    _one_of([*ways, bool(positions), from_file is not None], "--to-sequence or --from-file")
    if keys is not None and (positions or from_file is not None or not keys):
        raise click.UsageError(
            "--shards goes with a time, --to-earliest or --to-latest, and names one at least."
        )
    if from_file is not None:
        from pykcl.operate.checkpoints.position_files import read_positions

        positions = read_positions(_text_of(from_file), from_file.name)

    def destination(situation: Situation) -> Destination:
        if positions:
            return Destination("positions", positions=positions)
        return _destination(situation, to_earliest, to_latest, to_datetime, by_duration)

    _move_to(target, moving, "reset", destination, keys)


@checkpoint.command()
@fleet_options("table")
@_SHARD_ARGUMENT
@destination_options
@click.option(
    "--to-sequence",
    type=_Checked("position", _position),
    metavar="NUMBER[:SUB]",
    help="Behind that record, or behind a part of an aggregated one.",
)
@moving_options
def seek(
    target: Target,
    shard: str,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: int | None,
    by_duration: float | None,
    to_sequence: tuple[str, int | None] | None,
    moving: Moving,
) -> NoReturn:
    """Move the checkpoint of one shard of a stopped fleet. What descends from it goes on where it is."""
    from pykcl.operate.checkpoints.places import Destination

    ways = [to_earliest, to_latest, to_datetime is not None, by_duration is not None]
    _one_of([*ways, to_sequence is not None], "--to-sequence")

    def destination(situation: Situation) -> Destination:
        if to_sequence is not None:
            return Destination("positions", positions={shard: to_sequence})
        return _destination(situation, to_earliest, to_latest, to_datetime, by_duration)

    _move_to(target, moving, f"seek {shard}", destination, [shard])


@checkpoint.command()
@fleet_options("table")
@_SHARD_ARGUMENT
@click.option("--records", type=click.IntRange(1, 10_000), required=True, help="How many user records.")
@click.option("--show-data", is_flag=True, help="Print what the skipped records hold, too.")
@moving_options
def skip(target: Target, shard: str, records: int, show_data: bool, moving: Moving) -> NoReturn:
    """Step over the next records of one shard, such as one that no processor can digest. They are listed first."""

    def plan(around: Surroundings) -> Plan:
        from pykcl.operate.checkpoints.looking import plan_skip
        from pykcl.operate.checkpoints.times import time_text

        found, skipped = plan_skip(around.situation, shard, records, around.stream, around.runtime)
        for record in skipped:
            text = (
                f"skipped: {record.position}  {time_text(record.arrived_at_millis)}  {len(record.data)} bytes"
            )
            say(f"{text}  {record.data!r}" if show_data else text, err=True)
        return found

    sys.exit(move(target, moving, f"skip {shard} --records {records}", plan))


def _one_of(given: list[bool], more: str) -> None:
    if sum(given) != 1:
        raise click.UsageError(
            "Say where to: one of --to-earliest, --to-latest, --to-datetime, --by-duration, " + more + "."
        )


def _destination(
    situation: Situation, earliest: bool, latest: bool, at_millis: int | None, ago: float | None
) -> Destination:
    from pykcl.operate.checkpoints.places import Destination

    if earliest or latest:
        return Destination("earliest" if earliest else "latest")
    if ago is not None:
        at_millis = max(0, situation.now_millis - round(ago * 1000))
    return Destination("time", at_millis=at_millis)


def _move_to(
    target: Target,
    moving: Moving,
    what: str,
    destination: Callable[[Situation], Destination],
    keys: list[str] | None,
) -> NoReturn:
    def plan(around: Surroundings) -> Plan:
        from pykcl.operate.checkpoints.looking import plan_for

        to = destination(around.situation)
        return plan_for(around.situation, to, keys, around.stream, around.runtime, around.on_read)

    sys.exit(move(target, moving, what, plan))


def _text_of(path: Path) -> str:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
        if len(content) <= MOST_FILE_BYTES:
            return content.decode("utf-8")
        why = "it is larger than 1 GiB"
    except OSError as error:
        why = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    raise ConfigError(f"{str(path)!r} cannot be read: {why}.")
