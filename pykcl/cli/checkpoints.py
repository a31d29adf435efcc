"""`pykcl checkpoints show | export | reset`: look at a fleet's checkpoints, save them, and move them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
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
    from pykcl.operate.checkpoints.plan import Destination, Plan, Situation

Command = TypeVar("Command", bound=Callable[..., Any])
MOST_FILE_BYTES = 1 << 30


@click.group()
def checkpoints() -> None:
    """Show, save and move checkpoints of any KCL lease table, Java's too.

    `reset` shows its plan, and writes with --execute only.

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
    from pykcl.times import parse_time

    return parse_time(text)


def _position(text: str) -> tuple[str, int | None]:
    from pykcl.operate.checkpoints.plan import parse_position

    return parse_position(text)


def _shard(text: str) -> str:
    from pykcl.operate.snapshot import full_shard_id

    return full_shard_id(text)


def _placed_shard(text: str) -> tuple[str, tuple[str, int | None]]:
    shard, equals, position = text.partition("=")
    if not equals:
        raise ConfigError(f"{text[:80]!r} is not SHARD=NUMBER[:SUB].")
    return _shard(shard), _position(position)


@dataclass(frozen=True, slots=True)
class Way:
    """The options that say where to; exactly one is given.

    shards: shard ids, none for all. positions_only, show_data: what goes with from_file, and with shift_by.
    """

    to_earliest: bool
    to_latest: bool
    to_datetime: int | None
    by_duration: float | None
    to_sequence: tuple[tuple[str, tuple[str, int | None]], ...]
    shift_by: int | None
    from_file: Path | None
    shards: tuple[str, ...]
    positions_only: bool
    show_data: bool

    def check(self) -> None:
        """Raise click.UsageError for options that do not go together."""
        times = [self.to_earliest, self.to_latest, self.to_datetime is not None, self.by_duration is not None]
        others = [bool(self.to_sequence), self.shift_by is not None, self.from_file is not None]
        if sum(times) + sum(others) != 1:
            raise click.UsageError(
                "Say where to: one of --to-earliest, --to-latest, --to-datetime, --by-duration, --to-sequence, "
                "--shift-by or --from-file."
            )
        if self.shards and not any(times) and self.shift_by is None:
            raise click.UsageError("--shard goes with a time, --to-earliest, --to-latest or --shift-by.")
        if self.shift_by is not None and len(self.shards) != 1:
            raise click.UsageError("--shift-by steps over records of one shard. Do: --shard SHARD, once.")
        if len(dict(self.to_sequence)) < len(self.to_sequence):
            raise click.UsageError("--to-sequence names one shard twice.")
        if self.show_data and self.shift_by is None:
            raise click.UsageError("--show-data goes with --shift-by.")
        if self.positions_only and self.from_file is None:
            raise click.UsageError("--positions-only goes with --from-file.")

    def destination(self, situation: Situation) -> Destination:
        """Return the destination of every way but --shift-by and --from-file."""
        from pykcl.operate.checkpoints.plan import Destination

        if self.to_sequence:
            return Destination("positions", positions=dict(self.to_sequence))
        if self.to_earliest or self.to_latest:
            return Destination("earliest" if self.to_earliest else "latest")
        at_millis = self.to_datetime
        if self.by_duration is not None:
            at_millis = max(0, situation.now_millis - round(self.by_duration * 1000))
        return Destination("time", at_millis=at_millis)


_WAYS = (
    click.option("--to-earliest", is_flag=True, help="To the oldest record that the stream still keeps."),
    click.option("--to-latest", is_flag=True, help="After the newest record of this moment."),
    click.option(
        "--to-datetime",
        type=_Checked("time", _time),
        metavar="TIME",
        help="So that what arrived from then on comes again: 2026-11-20T09:00Z.",
    ),
    click.option(
        "--by-duration",
        type=Duration(minimum=0.001),
        metavar="TIME",
        help="The same, so long before now: PT2H, 90m, 1d.",
    ),
    click.option(
        "--to-sequence",
        multiple=True,
        type=_Checked("position", _placed_shard),
        metavar="SHARD=NUMBER[:SUB]",
        help="One shard after that record, or after a part of an aggregated one. May be repeated.",
    ),
    click.option(
        "--shift-by",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Over the next N user records of one --shard. They are listed first.",
    ),
    click.option(
        "--from-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="Back to an export or a backup, exactly; or to the positions in lines of shard,number[,sub].",
    ),
    click.option(
        "--shard",
        "shards",
        multiple=True,
        type=_Checked("shard", _shard),
        metavar="SHARD",
        shell_complete=complete_shards,
        help="This shard only; what descends from it goes on where it is. May be repeated.",
    ),
    click.option(
        "--positions-only",
        is_flag=True,
        help="With --from-file: take only the positions of an export, which may be of another table.",
    ),
    click.option(
        "--show-data", is_flag=True, help="With --shift-by: also print what the skipped records hold."
    ),
)


def way_options(command: Command) -> Command:
    """The options of `Way`, handed to the command as `way`."""

    @functools.wraps(command)
    def with_way(*args: Any, **given: Any) -> Any:
        way = Way(**{one.name: given.pop(one.name) for one in fields(Way)})
        way.check()
        return command(*args, way=way, **given)

    wrapped: Any = with_way
    for option in reversed(_WAYS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


@checkpoints.command("show")
@fleet_options("table")
@click.option(
    "--times", is_flag=True, help="Also when the record of each checkpoint arrived: one read of each shard."
)
@format_option
def show_checkpoints(target: Target, times: bool, output: Format) -> None:
    """Where every shard of the fleet is."""
    from pykcl.model.lease import Lease
    from pykcl.operate.snapshot import short_shard

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
    from pykcl.operate.checkpoints.reset import MAX_PARALLEL
    from pykcl.operate.checkpoints.search import ShardSearch
    from pykcl.operate.parallel import parallel_map
    from pykcl.runtime import SystemRuntime
    from pykcl.times import format_time

    runtime = SystemRuntime()
    stream = stream_of(target, open_table(target))
    at = {lease.key: lease.checkpoint for lease in leases if not lease.checkpoint.is_sentinel}

    def arrival(key: str) -> float | None:
        return ShardSearch(stream, key, runtime).arrival_of(at[key])

    found = parallel_map(arrival, sorted(at), runtime, max_threads=MAX_PARALLEL, name="pykcl-search")
    return {key: format_time(millis) for key, millis in found.items() if millis is not None}


@checkpoints.command()
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
    """Save the checkpoints, one JSON object a line; `reset --from-file` puts them back."""
    from pykcl.operate.checkpoints.backup import backup_lines
    from pykcl.operate.checkpoints.reset import read_situation

    table = open_table(target)
    situation = read_situation(table, stream_of(target, table))
    lines = backup_lines(
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


@checkpoints.command()
@fleet_options("table")
@way_options
@moving_options
def reset(target: Target, way: Way, moving: Moving) -> NoReturn:
    """Move the checkpoints of a stopped fleet, as kafka-consumer-groups --reset-offsets does.

    A time becomes a record in each shard: the last one before it, so that the first one delivered is the first from
    then on. Shards that were read to their end are read again where they hold such records, before their children.

    --shift-by steps over records that no processor can digest. --from-file with an export, or the backup of a reset,
    puts back what it has saved: the way to undo a reset.

    SHARD may be short: 7 means shardId-000000000007.
    """
    if way.from_file is not None:
        sys.exit(_move_by_file(target, moving, way.from_file, positions_only=way.positions_only))
    if way.shift_by is not None:
        sys.exit(_shift(target, moving, way.shards[0], way.shift_by, show_data=way.show_data))
    sys.exit(_move_to(target, moving, "reset", way.destination, list(way.shards) or None))


def _move_by_file(target: Target, moving: Moving, path: Path, *, positions_only: bool) -> int:
    from pykcl.operate.checkpoints.backup import is_backup, plan_restore, read_backup, read_positions
    from pykcl.operate.checkpoints.plan import Destination

    text, what = _text_of(path), f"reset --from-file {path.name}"
    if positions_only or not is_backup(text):
        positions = read_positions(text, path.name)
        return _move_to(target, moving, what, lambda _: Destination("positions", positions=positions), None)
    saved = read_backup(text, path.name)

    def plan(around: Surroundings) -> Plan:
        saved.refuse_mismatch(str(target.table), around.situation.stream)
        return plan_restore(around.situation, saved)

    return move(target, moving, what, plan)


def _shift(target: Target, moving: Moving, shard: str, records: int, *, show_data: bool) -> int:
    def plan(around: Surroundings) -> Plan:
        from pykcl.operate.checkpoints.reset import plan_skip
        from pykcl.times import format_time

        found, skipped = plan_skip(around.situation, shard, records, around.stream, around.runtime)
        for record in skipped:
            text = f"skipped: {record.position}  {format_time(record.arrived_at_millis)}  {len(record.data)} bytes"
            say(f"{text}  {record.data!r}" if show_data else text, err=True)
        return found

    return move(target, moving, f"reset --shard {shard} --shift-by {records}", plan)


def _move_to(
    target: Target,
    moving: Moving,
    what: str,
    destination: Callable[[Situation], Destination],
    keys: list[str] | None,
) -> int:
    def plan(around: Surroundings) -> Plan:
        from pykcl.operate.checkpoints.reset import plan_reset_to

        to = destination(around.situation)
        return plan_reset_to(around.situation, to, keys, around.stream, around.runtime, around.on_read)

    return move(target, moving, what, plan)


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
