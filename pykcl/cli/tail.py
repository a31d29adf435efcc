"""`pykcl tail`: print the records of a stream as they arrive."""

from __future__ import annotations

import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pykcl.cli.console import answering, forget_output, print_notice
from pykcl.cli.errors import ExitCode, usage
from pykcl.cli.options import Verb
from pykcl.cli.target import (
    Target,
    complete_applications,
    complete_shards,
    complete_streams,
    fleet_options,
    names_near,
)
from pykcl.errors import ConfigError, StreamMissing

if TYPE_CHECKING:
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.model.lease import Lease
    from pykcl.model.record import Record
    from pykcl.operate.streams.formats import PayloadForm, Render
    from pykcl.operate.streams.reader import Start, StreamReader

_WRITE_BYTES = 1 << 16
_LATER_THAN_ALL = 2**52


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options, parsed and checked before the first request to AWS."""

    render: Render
    pattern: re.Pattern[str] | None
    since: str | None
    count: int | None
    until_end: bool
    shards: tuple[str, ...]
    application: str | None


@click.command(cls=Verb)
@click.argument("stream_argument", metavar="[STREAM]", required=False, shell_complete=complete_streams)
@click.option(
    "-f",
    "--format",
    "format_text",
    metavar="TEMPLATE",
    help="Print each record with a kcat-style template, such as '%p %k %s\\n'.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "wide", "jsonl")),
    default="text",
    show_default=True,
    help="Print the payload; or time, shard, position, key and payload; or one JSON object per record.",
)
@click.option(
    "--payload",
    type=click.Choice(("text", "json", "raw", "base64", "hex")),
    default="text",
    show_default=True,
    help="Encoding of the payloads. All except raw escape control characters.",
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Start this long ago (10m, 2h30m, PT2H), at a time (2026-11-20T09:00Z), at earliest or at latest.  "
    "[default: latest; with -e earliest]",
)
@click.option(
    "--from-app",
    metavar="APP",
    shell_complete=complete_applications,
    help="Start at the checkpoints of this application.",
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option(
    "-e",
    "--exit",
    "until_end",
    is_flag=True,
    help="Stop at the end of the stream instead of waiting for more.",
)
@click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="SHARD",
    shell_complete=complete_shards,
    help="Read only this shard, by its id or number (repeatable).",
)
@click.option("--grep", metavar="REGEX", help="Print only records whose payload matches.")
@click.option("-q", "--quiet", is_flag=True, help="Print no notices on standard error.")
@fleet_options()
def tail(
    stream_argument: str | None,
    format_text: str | None,
    output: str,
    payload: PayloadForm,
    since: str | None,
    from_app: str | None,
    count: int | None,
    until_end: bool,
    shards: tuple[str, ...],
    grep: str | None,
    quiet: bool,
    target: Target,
) -> None:
    """Print the records of a stream as they arrive.

    Needs the stream: STREAM or --stream. KPL aggregates are unpacked. Each shard is read in order, parents before
    children. Does not take leases or write checkpoints. Uses one of the five reads a second that all consumers of a
    shard share (four until it has caught up).

    Template of --format: %s payload, %S its size, %R its size as 4 bytes, %k partition key, %K its size, %T arrival in
    epoch milliseconds, %D as UTC time, %t stream, %p shard, %o position, %i sub-sequence number, %H explicit hash key,
    %j all of it as JSON, %% a percent sign; \\n \\r \\t \\0 \\e \\xNN.
    """
    stream = stream_argument or target.stream
    if stream is None:
        raise click.UsageError("Missing argument 'STREAM'.")
    if since is not None and from_app is not None:
        raise click.UsageError("--since and --from-app both say where to begin. Use one of them.")
    source = click.get_current_context().get_parameter_source("application")
    if from_app is None and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "tail takes no --application. Do: --from-app NAME, to start at its checkpoints."
        )
    from pykcl.operate.streams.reader import parse_since

    with usage():
        wanted = _Wanted(
            _render(format_text, output, payload), _pattern(grep), since, count, until_end, shards, from_app
        )
        if since is not None:
            # Only whether it can be understood; what it means depends on Kinesis' clock.
            parse_since(since, _LATER_THAN_ALL)
    sys.exit(_run(target, stream, wanted, (lambda _: None) if quiet else print_notice))


def _run(target: Target, stream: str, wanted: _Wanted, notice: Callable[[str], None]) -> int:
    from pykcl.operate.streams.reader import StreamReader
    from pykcl.runtime import SystemRuntime

    runtime = SystemRuntime()
    try:
        kinesis, starts = _starts(target, stream, wanted, notice)
        following = StreamReader(
            kinesis,
            starts,
            runtime,
            stop=runtime.event(),
            on_notice=notice,
            until_end=wanted.until_end,
            children=not wanted.shards,
        )
        if sys.stderr.isatty():
            notice(f"reading {len(starts)} shards of {kinesis.name}; Ctrl-C ends it")
        _print(following, wanted)
    except KeyboardInterrupt:
        # Whoever asked for everything up to the end must not take this for it.
        return 128 + signal.SIGINT if wanted.until_end or wanted.count else ExitCode.OK
    except BrokenPipeError:
        forget_output()
        return ExitCode.OK
    return ExitCode.OK if following.is_complete else ExitCode.FAILED


def _starts(
    target: Target, stream: str, wanted: _Wanted, notice: Callable[[str], None]
) -> tuple[KinesisStream, list[Start]]:
    from pykcl.operate.aws.streams import StreamAdmin
    from pykcl.operate.streams.reader import parse_since, shards_named, starts_of_application, starts_since

    kinesis = target.kinesis(stream)
    admin = StreamAdmin(target.clients.client("kinesis"))
    try:
        arn = kinesis.describe().arn
    except StreamMissing as error:
        missing = StreamMissing(f"{error}{names_near(admin, stream)}")
    else:
        if wanted.application is not None:
            shards = admin.shards(arn)
            starts = starts_of_application(
                shards, _leases(target, wanted.application, kinesis.name), wanted.application
            )
        else:
            default = "earliest" if wanted.until_end else "latest"
            begin = parse_since(wanted.since or default, kinesis.server_time_millis())
            shards = admin.shards(arn, None if wanted.shards else begin)
            starts = starts_since(shards, begin)
        if wanted.shards:
            named = {shard.shard_id for shard in shards_named(wanted.shards, shards)}
            starts = [start for start in starts if start.shard.shard_id in named]
            for shard_id in sorted(named - {start.shard.shard_id for start in starts}):
                notice(f"{shard_id} has nothing to show from there on: it has ended before")
        return kinesis, starts
    raise missing


def _leases(target: Target, application: str, stream: str) -> Mapping[str, Lease]:
    from pykcl.operate.streams.reader import leases_of_stream

    is_target = target.table is not None and target.application in (None, application)
    name = target.table if is_target and target.table else application
    return leases_of_stream(target.scanner(name).scan(), stream)


def _print(following: StreamReader, wanted: _Wanted) -> None:
    """Raises BrokenPipeError once nobody reads any more."""
    left = wanted.count
    for page in following.pages():
        shown: list[bytes] = []
        size = 0
        for record in _matching(page, wanted.pattern):
            text = wanted.render(record)
            shown.append(text)
            size += len(text)
            if left is not None:
                left -= 1
            if size >= _WRITE_BYTES or left == 0:
                _write(shown)
                shown, size = [], 0
            if left == 0:
                return
        _write(shown)
        if not shown and _is_unread():
            raise BrokenPipeError


def _matching(page: Iterator[Record], pattern: re.Pattern[str] | None) -> Iterator[Record]:
    if pattern is None:
        return page
    from pykcl.operate.streams.formats import text_payload

    return (record for record in page if pattern.search(text_payload(record)))


def _write(shown: list[bytes]) -> None:
    if shown:
        with answering():
            sys.stdout.buffer.write(b"".join(shown))
            sys.stdout.buffer.flush()


def _is_unread() -> bool:
    """Return True if the reader of our output is gone. Otherwise `| head` would not end before the next record."""
    if not hasattr(select, "poll"):
        return False
    with suppress(OSError, ValueError):
        asked = select.poll()
        asked.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in asked.poll(0))
    return False


def _render(format_text: str | None, output: str, payload: PayloadForm) -> Render:
    from pykcl.operate.streams import formats

    if format_text is not None and output != "text":
        raise click.UsageError("--format and --output both say what is printed. Use one of them.")
    if output == "jsonl":
        return formats.json_lines(payload)
    if format_text is None:
        format_text = formats.WIDE if output == "wide" else formats.PLAIN
    return formats.template(format_text, payload)


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    if grep is None:
        return None
    try:
        return re.compile(grep)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"--grep {grep[:80]!r} is not a regular expression ({error}). "
            "Put a backslash before what is meant literally."
        ) from None
