"""`pykcl checkpoints show | export | reset`: the checkpoints of a fleet, shown, saved and moved."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pykcl.cli.console import announce, print_notice, say
from pykcl.cli.errors import ExitCode
from pykcl.cli.options import Decorator, Duration, VerbGroup, gathered
from pykcl.cli.output import Column, Format, format_option, show
from pykcl.cli.target import Target, complete_shards, fleet_options
from pykcl.errors import ConfigError, PyKclError, printable
from pykcl.times import format_duration

if TYPE_CHECKING:
    from pykcl.interfaces import LeaseTable, Stream
    from pykcl.operate.checkpoints.plan import Destination, Plan, Situation
    from pykcl.operate.snapshot import TableSnapshot
    from pykcl.runtime import Runtime

_HEAD = 4
_TAILS = (4, 6, 8, 10, 12, 14, 16, 20)
"""Digits shown of the end of a sequence number: the fewest that make all numbers of one answer differ."""


@dataclass(frozen=True, slots=True)
class Moving:
    """The options of every move. execute: write; otherwise only show the plan."""

    execute: bool
    wait_idle: float | None
    backup: Path | None
    output: Format

    def __post_init__(self) -> None:
        """Raises click.UsageError."""
        if self.wait_idle is not None and not self.execute:
            raise click.UsageError("--wait-idle goes with --execute.")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The input of a plan."""

    situation: Situation
    stream: Stream
    runtime: Runtime
    on_read: Callable[[], None]


moving_options = gathered(
    "moving",
    Moving,
    (
        click.option(
            "--execute", is_flag=True, help="Apply the changes. Without it the command is a dry run."
        ),
        click.option(
            "--wait-idle",
            type=Duration(),
            metavar="DURATION",
            help="With --execute: wait up to this long, such as 5m, for the fleet to stop.",
        ),
        click.option(
            "--backup",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Save the present checkpoints to this file first (default: a new file in the current folder).",
        ),
        format_option,
    ),
)
"""Decorator: the options of `Moving`, handed to the command as one `moving`."""


def move(
    target: Target,
    moving: Moving,
    what: str,
    make_plan: Callable[[Surroundings], Plan],
) -> int:
    """Plan, show, and with --execute write. what: goes into the backup. Returns the exit code.

    Raises Refused, ConfigError, SetupError, TemporaryError and PyKclError as the steps do.
    """
    from pykcl.operate.checkpoints.reset import read_situation
    from pykcl.operate.idle import activity_between
    from pykcl.operate.snapshot import time_of
    from pykcl.runtime import SystemRuntime

    table, runtime, scanner = open_table(target), SystemRuntime(), target.scanner()
    if moving.execute:
        _wait_until_still(scanner.scan, runtime, target, moving)
    stream = stream_of(target, table)
    situation = read_situation(table, stream)
    progress = _Progress()
    plan = make_plan(Surroundings(situation, stream, runtime, progress.read))
    progress.end()
    hints = list(plan.hints)
    if not moving.execute:
        now = scanner.scan()
        active = activity_between(situation.rows, now, time_of(now, runtime))
        if active:
            hints.append(f"--execute would be refused now: {active.text}.")
        if plan.changes:
            hints.append("Nothing was written. Do it with --execute, while the fleet is stopped.")
    show_plan(plan, situation, moving.output, target, hints)
    if moving.execute and plan.changes:
        _execute(plan, situation, table, runtime, target, moving, what)
    elif not plan.changes:
        say("nothing to do: every lease is already there", err=True)
    return ExitCode.OK


def open_table(target: Target) -> LeaseTable:
    """Return the lease table, with scans that leave the fleet its capacity. Raises WrongTable, SetupError."""
    table = target.lease_table()
    table.prepare(create=False)
    return table


def stream_of(target: Target, table: LeaseTable) -> Stream:
    """Return the given stream, else the one that the rows name. Raises click.UsageError."""
    from pykcl.operate.checkpoints.reset import stream_of_rows

    if target.stream is not None:
        return target.kinesis()
    named = stream_of_rows(table.scan().rows)
    if named is None:
        raise click.UsageError("No stream, and the table's rows do not name one. Do: --stream NAME.")
    return target.kinesis(named)


def show_plan(
    plan: Plan, situation: Situation, output: Format, target: Target, hints: Sequence[str] = ()
) -> None:
    """Print the plan as a table, or as what -o asks for."""
    from pykcl.model.shard import short_shard
    from pykcl.operate.checkpoints.plan import rows_of

    rows = [{**row, "replays": _replays(row)} for row in rows_of(plan, situation.now_millis)]
    short = shortened([position for row in rows for position in (row["current"], row["new"])])
    columns = [
        Column("shard", short=short_shard, weight=9),
        Column("current", short=short, weight=7),
        Column("new", short=short, weight=8),
        Column("resumes_at", weight=6),
        Column("replays", weight=6, colour=_colour),
        Column("action", weight=4),
        Column("why", weight=3),
        Column("replays_seconds", wide=True),
        Column("skips_seconds", wide=True),
    ]
    facts = {"application": target.application, "table": target.table, "stream": situation.stream.arn}
    show(rows, columns, output, facts=facts, hints=hints)


def shortened(positions: Iterable[str | None]) -> Callable[[str | None], str]:
    """Return a function that shortens these positions to 4968…0466:3, no two alike."""
    numbers = {position.partition(":")[0] for position in positions if position is not None}
    enough = [tail for tail in _TAILS if len({number[-tail:] for number in numbers}) == len(numbers)]
    tail = enough[0] if enough else _TAILS[-1]

    def short(position: str | None) -> str:
        number, colon, sub = (position or "-").partition(":")
        if not number.isdigit() or len(number) <= tail + _HEAD:
            return number + colon + sub
        return f"{number[:_HEAD]}…{number[-tail:]}{colon}{sub}"

    return short


def _replays(row: Mapping[str, Any]) -> str:
    if row["action"] == "keep":
        return "nothing"
    if row["replays_seconds"] is not None:
        text = f"≈ {format_duration(row['replays_seconds'])}"
        return f"{text}, to its end" if row["to_end"] else text
    if row["skips_seconds"] is not None:
        return f"skips ≈ {format_duration(row['skips_seconds'])}"
    return "-"


def _colour(row: Mapping[str, Any]) -> str | None:
    return "yellow" if str(row["replays"]).startswith("skips") else None


def _wait_until_still(
    scan: Callable[[], TableSnapshot], runtime: Runtime, target: Target, moving: Moving
) -> None:
    from pykcl.operate.idle import Activity, wait_until_idle
    from pykcl.operate.snapshot import known_failover

    view = scan()
    failover, is_known = known_failover(target.failover, view.leases.values())
    origin = (
        ", from its leases"
        if is_known
        else ", the default: its failover time is not given (--failover, -c, -p)"
    )
    origin = "" if target.failover is not None else origin
    say(f"watching the fleet for {failover:g} s{origin}: no lease may change", err=True)
    if view.own_tables.unread:
        print_notice(f"The members of this fleet of KCL 3.x are not watched: {view.own_tables.unread}")
    last = [""]

    def report(active: Activity) -> None:
        text = active.text
        if moving.wait_idle and text != last[0]:
            say(f"waiting for the fleet to stop: {printable(text)}", err=True)
        last[0] = text

    wait_until_idle(scan, runtime, failover=failover, patience=moving.wait_idle or 0.0, on_moving=report)


def _execute(
    plan: Plan,
    situation: Situation,
    table: LeaseTable,
    runtime: Runtime,
    target: Target,
    moving: Moving,
    what: str,
) -> None:
    from pykcl.cli.settings import logged_to_stderr
    from pykcl.operate.checkpoints.apply import AUDIT_LOG, Audit, apply_plan, positions
    from pykcl.operate.checkpoints.backup import backup_lines
    from pykcl.operate.checkpoints.plan import Step

    created = [step.key for step in plan.changes if step.action == "create"]
    lines = backup_lines(
        situation.leases.values(),
        table=str(target.table),
        stream=situation.stream,
        now_millis=situation.now_millis,
        before=what,
        absent=created,
    )
    path = moving.backup or new_backup(str(target.table))
    write_new_file(path, lines)
    say(f"backup: {printable(str(path))} ({len(situation.leases)} leases)", err=True)

    audit = Audit(caller_of(target), str(target.table), str(path))

    def done(step: Step) -> None:
        before, after = positions(step)
        say(f"written: {printable(step.key)} ({step.action}) {before} → {after}", err=True)

    try:
        with logged_to_stderr(AUDIT_LOG):
            written = apply_plan(plan, table, runtime, audit, done)
    except PyKclError:
        say(f"the backup of before is {printable(str(path))}", err=True)
        raise
    say(f"done: {written} rows written and read again, by {printable(audit.who)}", err=True)
    undo = shlex.join(
        ["pykcl", "checkpoints", "reset", "--from-file", str(path), "--table", str(target.table), "--execute"]
    )
    say(f"undo with: {printable(undo)}", err=True)


def caller_of(target: Target) -> str:
    """Return the ARN of the caller from STS; `UNKNOWN_CALLER` if STS does not answer."""
    from pykcl.operate.aws.iam import identity_of
    from pykcl.operate.checkpoints.apply import UNKNOWN_CALLER

    try:
        return (
            identity_of(target.clients, "kinesis" if target.clients.has_lease_store else "dynamodb").arn
            or UNKNOWN_CALLER
        )
    except PyKclError:
        return UNKNOWN_CALLER


def new_backup(table: str) -> Path:
    """Return the path of a new file, named after the table and the time."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    return Path(f"{table}-{moment}.checkpoints.jsonl")


def write_new_file(path: Path, lines: Sequence[str]) -> None:
    """Write a file that is durable on return and readable by the user alone: checkpoints may hold application state.

    Raises ConfigError where it cannot be written, or is there already: a backup never replaces another.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        failure = ConfigError(f"{str(path)!r} cannot be written: {why}. Nothing was changed. Name another.")
    else:
        return
    raise failure


class _Progress:
    """Show the reads so far on a terminal."""

    def __init__(self) -> None:
        self._reads = 0
        self._shown = sys.stderr.isatty()

    def read(self) -> None:
        self._reads += 1
        if self._shown:
            announce(f"\rsearching the shards: {self._reads} reads", err=True, newline=False)

    def end(self) -> None:
        if self._shown and self._reads:
            announce("\r\x1b[K", err=True, newline=False)


MAX_FILE_BYTES = 1 << 30


@click.group(cls=VerbGroup)
def checkpoints() -> None:
    """Show, export and reset the checkpoints of a fleet.

    Works with lease tables of any KCL version. `reset` is a dry run without --execute.
    """


class _Checked(click.ParamType):  # type: ignore[type-arg]
    """A value that is parsed by `read`, whose ConfigError is a usage error."""

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
    from pykcl.model.shard import full_shard_id

    return full_shard_id(text)


def _placed_shard(text: str) -> tuple[str, tuple[str, int | None]]:
    shard, equals, position = text.partition("=")
    if not equals:
        raise ConfigError(f"{text[:80]!r} is not SHARD=NUMBER[:SUB].")
    return _shard(shard), _position(position)


@dataclass(frozen=True, slots=True)
class Way:
    """The options that name the destination; exactly one is given.

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

    def __post_init__(self) -> None:
        """Raises click.UsageError for options that do not go together."""
        times = [self.to_earliest, self.to_latest, self.to_datetime is not None, self.by_duration is not None]
        others = [bool(self.to_sequence), self.shift_by is not None, self.from_file is not None]
        if sum(times) + sum(others) != 1:
            raise click.UsageError(
                "No destination. Do: one of --to-earliest, --to-latest, --to-datetime, --by-duration, --to-sequence, "
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


_WAYS: tuple[Decorator, ...] = (
    click.option("--to-earliest", is_flag=True, help="Move to the oldest record that the stream still has."),
    click.option("--to-latest", is_flag=True, help="Move after the newest record."),
    click.option(
        "--to-datetime",
        type=_Checked("time", _time),
        metavar="TIME",
        help="Move to the first record that arrived at or after this time, such as 2026-11-20T09:00Z.",
    ),
    click.option(
        "--by-duration",
        type=Duration(minimum=0.001),
        metavar="DURATION",
        help="Move back to this long before now, such as PT2H, 90m or 1d.",
    ),
    click.option(
        "--to-sequence",
        multiple=True,
        type=_Checked("position", _placed_shard),
        metavar="SHARD=NUMBER[:SUB]",
        help="Move one shard after this record, or after a part of an aggregated one (repeatable).",
    ),
    click.option(
        "--shift-by",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Skip the next N user records of the given --shard.",
    ),
    click.option(
        "--from-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="Restore an export or a backup; or move to the positions in lines of shard,number[,sub].",
    ),
    click.option(
        "--shard",
        "shards",
        multiple=True,
        type=_Checked("shard", _shard),
        metavar="SHARD",
        shell_complete=complete_shards,
        help="Move only this shard, and not its descendants (repeatable).",
    ),
    click.option(
        "--positions-only",
        is_flag=True,
        help="With --from-file: take only the positions from an export, which may be of another table.",
    ),
    click.option(
        "--show-data", is_flag=True, help="With --shift-by: also print the payloads of the skipped records."
    ),
)


@checkpoints.command("show")
@fleet_options("table", lease_stores="read")
@click.option(
    "--times",
    is_flag=True,
    help="Also show when the record of each checkpoint arrived. Takes one read of each shard.",
)
@format_option
def show_checkpoints(target: Target, times: bool, output: Format) -> None:
    """Show the checkpoint of each shard.

    Needs --application or --table.
    """
    from pykcl.model.lease import Lease
    from pykcl.model.shard import short_shard

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
    from pykcl.runtime import SystemRuntime, parallel_map
    from pykcl.times import format_time

    runtime = SystemRuntime()
    stream = stream_of(target, open_table(target))
    at = {lease.key: lease.checkpoint for lease in leases if not lease.checkpoint.is_sentinel}

    def arrival(key: str) -> float | None:
        return ShardSearch(stream, key, runtime).arrival_of(at[key])

    found = parallel_map(arrival, sorted(at), runtime, max_threads=MAX_PARALLEL, name="pykcl-search")
    return {key: format_time(millis) for key, millis in found.items() if millis is not None}


@checkpoints.command()
@fleet_options("table", lease_stores="read")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to a new file instead of standard output.",
)
def export(target: Target, path: Path | None) -> None:
    """Export the checkpoints as JSON Lines.

    Needs --application or --table. `pykcl checkpoints reset --from-file` restores them.
    """
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
@fleet_options("table", lease_stores="read")
@gathered("way", Way, _WAYS)
@moving_options
def reset(target: Target, way: Way, moving: Moving) -> NoReturn:
    """Reset the checkpoints of a stopped fleet, like kafka-consumer-groups --reset-offsets.

    Needs --application or --table, and one of the --to-…, --by-duration, --shift-by and --from-file options. A dry run
    without --execute.

    With a time, each shard moves to the first record that arrived at or after it. Shards that were read to their end
    are read again if they hold such records, before their children.

    --shift-by skips records that the processor cannot process. --from-file undoes a reset: it restores the backup that
    the reset has written.

    SHARD may be a number: 7 is shardId-000000000007.
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
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) <= MAX_FILE_BYTES:
            return content.decode("utf-8")
        why = "it is larger than 1 GiB"
    except OSError as error:
        why = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    raise ConfigError(f"{str(path)!r} cannot be read: {why}.")
