"""What every command that moves checkpoints does: show the plan, and with --execute wait, save and write."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pykcl.cli.durations import Duration
from pykcl.cli.exit_codes import EXIT_OK
from pykcl.cli.fleet_options import Target
from pykcl.cli.output import Column, Format, format_option, say, show
from pykcl.errors import ConfigError, PyKclError, printable
from pykcl.times import format_duration

if TYPE_CHECKING:
    from pykcl.interfaces import LeaseTable, Stream
    from pykcl.operate.checkpoints.plan import Plan, Situation
    from pykcl.runtime import Runtime

Command = TypeVar("Command", bound=Callable[..., Any])

_HEAD = 4
_TAILS = (4, 6, 8, 10, 12, 14, 16, 20)
"""Digits shown of the end of a sequence number: as few as tell those of one answer apart."""


@dataclass(frozen=True, slots=True)
class Moving:
    """The options that every move shares. execute: write; else only show."""

    execute: bool
    wait_idle: float
    backup: Path | None
    output: Format


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan is made from."""

    situation: Situation
    stream: Stream
    runtime: Runtime
    on_read: Callable[[], None]


def moving_options(command: Command) -> Command:
    """--execute, --wait-idle, --backup and -o, handed to the command as `moving`."""

    @functools.wraps(command)
    def with_moving(
        *args: Any, execute: bool, wait_idle: float | None, backup: Path | None, output: Format, **given: Any
    ) -> Any:
        if wait_idle is not None and not execute:
            raise click.UsageError("--wait-idle goes with --execute.")
        return command(*args, moving=Moving(execute, wait_idle or 0.0, backup, output), **given)

    wrapped = format_option(with_moving)
    wrapped = click.option(
        "--backup",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Where the present checkpoints are saved first; by default a new file here.",
    )(wrapped)
    wrapped = click.option(
        "--wait-idle",
        type=Duration(),
        metavar="TIME",
        help="With --execute: wait so long for the fleet to stop, such as 5m.",
    )(wrapped)
    return click.option(  # type: ignore[return-value]
        "--execute", is_flag=True, help="Write. Without it the plan is shown and nothing is written."
    )(wrapped)


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
    from pykcl.operate.sampler import describe_moved, moved_leases
    from pykcl.runtime import SystemRuntime

    table, runtime = open_table(target), SystemRuntime()
    if moving.execute:
        _wait_until_still(table, runtime, target, moving)
    stream = stream_of(target, table)
    situation = read_situation(table, stream)
    progress = _Progress()
    plan = make_plan(Surroundings(situation, stream, runtime, progress.read))
    progress.end()
    hints = list(plan.hints)
    if not moving.execute:
        active = moved_leases(situation.rows, table.scan().rows)
        if active:
            hints.append(f"--execute would be refused now: {describe_moved(active)}.")
        if plan.changes:
            hints.append("Nothing was written. Do it with --execute, while the fleet is stopped.")
    show_plan(plan, situation, moving.output, target, hints)
    if moving.execute and plan.changes:
        _execute(plan, situation, table, runtime, target, moving, what)
    elif not plan.changes:
        say("nothing to do: every row is there already", err=True)
    return EXIT_OK


def open_table(target: Target) -> LeaseTable:
    """A lease table that is there; its scans leave the fleet what it needs. Raises WrongTable, SetupError."""
    from pykcl.operate.aws.table_scan import PacedTable, TableScanner
    from pykcl.runtime import SystemRuntime

    table = target.lease_table()
    table.prepare(create=False)
    return PacedTable(
        table, TableScanner(target.clients.client("dynamodb"), str(target.table), SystemRuntime())
    )


def stream_of(target: Target, table: LeaseTable) -> Stream:
    """The stream that was told, else the one that the rows name. Raises click.UsageError."""
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
    from pykcl.operate.checkpoints.plan import rows_of
    from pykcl.operate.snapshot import short_shard

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
    """How these positions are shown: with the middle of their numbers left out, 4968…0466:3, and no two alike."""
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


def _wait_until_still(table: LeaseTable, runtime: Runtime, target: Target, moving: Moving) -> None:
    from pykcl.model.lease import Lease
    from pykcl.operate.sampler import describe_moved, known_failover, wait_until_idle

    leases = [row for row in table.scan().rows if isinstance(row, Lease)]
    failover, is_known = known_failover(target.failover, leases)
    origin = ", as its leases say" if is_known else ", as nobody told its fail-over time (--failover, -c, -p)"
    origin = "" if target.failover is not None else origin
    say(f"watching the fleet for {failover:g} s{origin}: nothing may move", err=True)
    last = [""]

    def tell(active: Mapping[str, str]) -> None:
        text = describe_moved(active)
        if moving.wait_idle and text != last[0]:
            say(f"waiting for the fleet to stop: {printable(text)}", err=True)
        last[0] = text

    wait_until_idle(table, runtime, failover=failover, patience=moving.wait_idle, on_moving=tell)


def _execute(
    plan: Plan,
    situation: Situation,
    table: LeaseTable,
    runtime: Runtime,
    target: Target,
    moving: Moving,
    what: str,
) -> None:
    from pykcl.cli.logs import logged_to_stderr
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
    """The ARN of whoever this is at AWS, as STS says; `UNKNOWN_CALLER` where nobody can tell. Never raises for that."""
    from pykcl.operate.aws.permissions import identity_of
    from pykcl.operate.checkpoints.apply import UNKNOWN_CALLER

    try:
        return identity_of(target.clients, "dynamodb").arn or UNKNOWN_CALLER
    except PyKclError:
        return UNKNOWN_CALLER


def new_backup(table: str) -> Path:
    """A file that is not there yet, named after the table and this moment."""
    moment = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
    return Path(f"{table}-{moment}.checkpoints.jsonl")


def write_new_file(path: Path, lines: Sequence[str]) -> None:
    """Durable before it returns, for the user alone: pending checkpoints hold the application's own state.

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
    """Reads so far, on a person's terminal only."""

    def __init__(self) -> None:
        self._reads = 0
        self._shown = sys.stderr.isatty()

    def read(self) -> None:
        self._reads += 1
        if self._shown:
            click.echo(f"\rlooking into the shards: {self._reads} reads", err=True, nl=False)

    def end(self) -> None:
        if self._shown and self._reads:
            click.echo("\r\x1b[K", err=True, nl=False)
