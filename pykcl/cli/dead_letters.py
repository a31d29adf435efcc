"""`pykcl dead-letters list | show | redrive`: the dead letters of a destination, and what becomes of their records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.console import say
from pykcl.cli.errors import ExitCode, usage
from pykcl.cli.options import Duration, VerbGroup
from pykcl.cli.output import Column, Format, format_option, json_text, show
from pykcl.cli.target import Target, fleet_options, summary_of
from pykcl.errors import ConfigError, printable
from pykcl.times import format_time

if TYPE_CHECKING:
    from pykcl.model.letter_json import KeptLetter
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.dead_letters.redrive import Outcome, Receiver, Selection
    from pykcl.operate.dead_letters.sources import Found, LetterSource

_NO_SOURCE = "Do: name the queue, bucket or directory that keeps them, or a file of letters."
_source = click.argument("source", metavar="SOURCE")
_since = click.option(
    "--since", type=Duration(), metavar="DURATION", help="Only letters written in the last 2h, 30m, 7d."
)


@click.group(cls=VerbGroup)
def dead_letters() -> None:
    """List, show and redrive dead letters.

    SOURCE is what a worker has as dead_letters: the ARN of an SQS queue, s3://BUCKET/PREFIX, file:DIRECTORY; or a file
    of letters. The letters of Lambda's own on-failure destinations are read, too. With --application only the letters
    of that application count; with --stream letters of another stream are refused.
    """


@dead_letters.command("list")
@_source
@_since
@format_option
@fleet_options()
def list_letters(source: str, since: float | None, output: Format, target: Target) -> None:
    """List the letters.

    Nothing is changed. A queue shows a sample: its messages are hidden from others for 30 seconds.
    """
    from pykcl.operate.dead_letters.redrive import Selection

    selection = Selection(since=_since_millis(since), application=target.application)
    rows, problems, hints = list[Mapping[str, Any]](), list[str](), list[str]()
    with closing(_opened(source, target, hold=30)) as letters:
        for found in (one for chunk in letters.chunks() for one in chunk):
            if found.letter is None:
                (hints if found.is_torn else problems).append(f"{found.place}: {found.problem}")
            elif selection.takes(found.letter):
                rows.append(_row(found.letter, found.place))
        hints += [*problems, letters.note]
    show(rows, _COLUMNS, output, facts=_facts(target, source), hints=filter(None, hints))
    sys.exit(ExitCode.FAILED if problems else ExitCode.OK)


@dead_letters.command("show")
@_source
@click.argument("letter_id", metavar="ID")
@click.option(
    "--show-data",
    is_flag=True,
    help="Also show payloads, partition keys, and the texts of the exception and of the Reject.",
)
@fleet_options()
def show_letter(source: str, letter_id: str, show_data: bool, target: Target) -> None:
    """Show one letter as JSON, without its data.

    ID may be the beginning of an identifier.
    """
    with closing(_opened(source, target, hold=30)) as letters:
        found = [
            one
            for chunk in letters.chunks()
            for one in chunk
            if one.letter is not None and one.letter.id.startswith(letter_id)
        ]
    if not found:
        raise ConfigError(
            f"There is no letter {letter_id[:130]!r} in {source[:300]!r}. Do: pykcl dead-letters list."
        )
    ids = sorted({one.letter.id for one in found if one.letter is not None})
    if len(ids) > 1:
        raise ConfigError(
            f"{letter_id[:130]!r} is the beginning of {len(ids)} letters. Do: write more of it."
        )
    say(json_text(_shown(found, show_data=show_data), indent=2))


@dead_letters.command("redrive")
@_source
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this letter (repeatable).")
@_since
@click.option(
    "--to-handler",
    metavar="MODULE:NAME",
    help="Give the records to this record processor, one instance per shard, or to this function.",
)
@click.option("--to-stream", metavar="NAME", help="Put the records into this stream.")
@click.option("--execute", is_flag=True, help="Redrive. Without it the command is a dry run.")
@format_option
@fleet_options()
def redrive_letters(
    source: str,
    ids: tuple[str, ...],
    since: float | None,
    to_handler: str | None,
    to_stream: str | None,
    execute: bool,
    output: Format,
    target: Target,
) -> None:
    """Process the records of letters again, and then take the letters away.

    Needs --to-handler or --to-stream. A letter is taken away after all its records were processed or put: its message
    is deleted, its object moved below redriven/, its line noted in FILE.done. What fails stays. If the command ends in
    between, some records are processed again by the next one. Into a stream records come behind those that are there.
    """
    from pykcl.operate.dead_letters.redrive import Selection

    if (to_handler is None) == (to_stream is None):
        raise click.UsageError("Do: either --to-handler MODULE:NAME or --to-stream NAME.")
    selection = Selection(frozenset(ids), _since_millis(since), target.application)
    receiver = _receiver(target, to_handler, to_stream, execute=execute)
    outcomes = list[Any]()
    hints = list[str]()
    with closing(_opened(source, target, hold=300 if execute else 30)) as letters:
        try:
            for outcome in _outcomes(letters, selection, target, receiver):
                outcomes.append(outcome)
        finally:
            hints += [letters.note]
            _show_outcomes(outcomes, hints, source, target, output, execute=execute)
    missing = set(ids) - {one.found.letter.id for one in outcomes if one.found.letter is not None}
    if missing:
        raise ConfigError(f"There is no letter {', '.join(sorted(missing))[:300]}. {_NO_SOURCE}")
    is_left = any(one.problem and not one.found.is_torn for one in outcomes)
    sys.exit(ExitCode.FAILED if is_left else ExitCode.OK)


# -- sources and receivers -------------------------------------------------------------------------------------


def _opened(source: str, target: Target, *, hold: int) -> LetterSource:
    """Raises click.UsageError for a text that names no source of letters."""
    from pykcl.model.dead_letter import Address
    from pykcl.operate.dead_letters.sources import FileSource

    if ":" not in source and source != "discard":
        return FileSource(Path(source))
    with usage():
        address = Address.parse(source)
        if address.kind in ("discard", "kinesis", "sns"):
            raise ConfigError(f"{_WHY_NO_SOURCE[address.kind]} {_NO_SOURCE}")
    if address.kind == "file":
        return FileSource(Path(address.name))
    from pykcl.operate.aws.letter_sources import aws_source

    return aws_source(address, _clients_in(address.region, target), hold=hold)


_WHY_NO_SOURCE = {
    "discard": "Discarded letters are not kept.",
    "kinesis": "A stream has the records, and no letters: pykcl tail shows them.",
    "sns": "A topic keeps nothing: letters are in what subscribes to it, such as a queue.",
}


def _clients_in(region: str | None, target: Target) -> OperatorClients:
    """Return the clients of the target in the region that an ARN names."""
    return target.clients if region is None else replace(target.clients, region=region)


def _receiver(
    target: Target, to_handler: str | None, to_stream: str | None, *, execute: bool
) -> Receiver | None:
    """Return what takes the records; None for a dry run, in which the handler is imported all the same."""
    if to_handler is not None:
        from pykcl.cli.run import load
        from pykcl.handlers.functions import processor_of
        from pykcl.operate.dead_letters.redrive import ToHandler
        from pykcl.worker.processor_factory import checked_processor

        create = checked_processor(processor_of(load(to_handler)))
        return ToHandler(create) if execute else None
    from pykcl.cli.target import admin_for
    from pykcl.operate.dead_letters.redrive import ToStream
    from pykcl.operate.streams.writer import Outlet, StreamWriter
    from pykcl.runtime import SystemRuntime

    name = str(to_stream)
    admin, runtime = admin_for(target.clients, name), SystemRuntime()
    summary = summary_of(admin, name)
    if not execute:
        return None
    outlet = Outlet.of(admin, name, summary)
    never = runtime.event()
    writer = StreamWriter(
        outlet, runtime, stop=never, give_up=never, on_notice=lambda text: say(printable(text), err=True)
    )
    return ToStream(writer, summary.largest_record)


def _outcomes(
    letters: LetterSource, selection: Selection, target: Target, receiver: Receiver | None
) -> Iterator[Outcome]:
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.operate.dead_letters.redrive import Streams, redrive
    from pykcl.runtime import SystemRuntime

    runtime = SystemRuntime()

    def opened(arn: str) -> KinesisStream:
        return KinesisStream(_clients_in(arn.split(":")[3], target).client("kinesis"), arn, runtime)

    return redrive(letters, selection, Streams(opened, target.stream), runtime, receiver)


def _since_millis(since: float | None) -> int | None:
    from pykcl.runtime import SystemRuntime

    return None if since is None else SystemRuntime().utcnow_millis() - round(since * 1000)


# -- output ----------------------------------------------------------------------------------------------------


def _when(millis: Any) -> str:
    return "-" if millis is None else format_time(millis, milliseconds=False)


def _short_id(text: Any) -> str:
    return str(text)[:12]


def _short_shard(text: Any) -> str:
    from pykcl.model.shard import short_shard

    return short_shard(text)


_COLUMNS = (
    Column("id", short=_short_id, weight=9),
    Column("written", text=_when, weight=6),
    Column("condition", weight=6),
    Column("shard", short=_short_shard, weight=7),
    Column("first", wide=True),
    Column("last", wide=True),
    Column("records", right=True, weight=6),
    Column("attempts", right=True, weight=4),
    Column("error", weight=7),
    Column("where", weight=5),
    Column("application", weight=3),
    Column("stream", wide=True),
    Column("place", wide=True),
)
_OUTCOME_COLUMNS = (
    Column("id", short=_short_id, weight=9),
    Column("shard", short=_short_shard, weight=5),
    Column("records", right=True, weight=6),
    Column("copies", right=True, wide=True),
    Column("action", weight=9),
    Column("why", weight=8),
    Column("place", wide=True),
)


def _row(letter: KeptLetter, place: str) -> dict[str, Any]:
    return {
        "id": letter.id,
        "written": letter.created_at,
        "condition": letter.condition,
        "shard": letter.shard_id,
        "first": str(letter.first),
        "last": str(letter.last),
        "records": letter.count,
        "attempts": letter.attempts,
        "error": letter.error or None,
        "where": letter.where or None,
        "application": letter.application or letter.function,
        "stream": letter.stream,
        "place": place,
    }


def _facts(target: Target, source: str) -> dict[str, Any]:
    return {"source": source, "application": target.application, "stream": target.stream_name}


def _show_outcomes(
    outcomes: Iterable[Outcome],
    hints: list[str],
    source: str,
    target: Target,
    output: Format,
    *,
    execute: bool,
) -> None:
    rows, left = list[Mapping[str, Any]](), 0
    for one in outcomes:
        letter = one.found.letter
        if one.found.is_torn:
            hints.append(f"{one.found.place}: {one.problem}")
            continue
        left += bool(one.problem)
        rows.append(
            {
                "id": letter.id if letter is not None else "-",
                "shard": letter.shard_id if letter is not None else None,
                "records": letter.count if letter is not None else None,
                "copies": len(one.copies),
                "action": "leave" if one.problem else "redriven" if execute else "redrive",
                "why": one.problem or None,
                "place": one.found.place,
            }
        )
    if left:
        hints.append(f"{left} of {len(rows)} letters stay where they are: see WHY, or -o wide.")
    if not execute and len(rows) > left:
        hints.append("Nothing was changed. Redrive with --execute.")
    show(rows, _OUTCOME_COLUMNS, output, facts=_facts(target, source), hints=filter(None, hints))


def _shown(found: list[Found], *, show_data: bool) -> dict[str, Any]:
    """Return a letter for JSON. Its message and its reason may quote a payload, so they count as data."""
    import json

    from pykcl.model.letter_json import NotALetter
    from pykcl.operate.streams.formats import json_lines

    letter = found[0].letter
    if letter is None:
        raise ConfigError("It is no letter.")
    shown = {**_row(letter, found[0].place), "written": _when(letter.created_at)}
    shown |= {
        "places": [one.place for one in found],
        "stream_arn": letter.stream_arn,
        "function": letter.function,
        "worker": letter.worker_id or None,
        "first_arrived": _when(letter.first_arrived_at),
        "last_arrived": _when(letter.last_arrived_at),
        "has_payload": letter.payload is not None,
    }
    del shown["place"]
    if not show_data:
        return shown
    shown |= {"message": letter.message, "reason": letter.reason}
    if letter.payload is not None:
        render = json_lines()
        try:
            shown["data"] = [json.loads(render(record)) for record in letter.records()]
        except NotALetter as error:
            shown["problem"] = str(error)
    return shown
