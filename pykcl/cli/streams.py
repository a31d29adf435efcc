"""`pykcl streams`: which streams there are, and what one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.fleet_options import aws_options
from pykcl.cli.output import Column, Format, format_option, say, show
from pykcl.cli.stream_target import admin_for, complete_streams, quiet_when_unread, summary_of
from pykcl.errors import PyKclError, SetupError

if TYPE_CHECKING:
    from pykcl.aws.operator_clients import OperatorClients
    from pykcl.aws.stream_admin import Consumer, StreamAdmin, StreamSummary


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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def streams() -> None:
    """See which streams there are, and what one is: shards, retention, encryption, consumers."""


@streams.command("list")
@format_option
@aws_options
def list_streams(output: Format, clients: OperatorClients) -> None:
    """List the streams of the account and region.

    -o wide, json, jsonl and csv ask for each stream by itself (one DescribeStreamSummary each, a tenth of a second
    apart), as only that tells shards, retention, encryption and consumers.
    """
    from pykcl.operate.streams.describing import stream_row

    with quiet_when_unread():
        admin = admin_for(clients)
        found = admin.streams()
        if output != "table":
            found = _in_full(admin, found)
        hints = () if found else ("there is no stream here. Check --region and whose credentials these are.",)
        show([stream_row(stream) for stream in found], STREAMS, output, hints=hints)


@streams.command()
@click.argument("stream", metavar="NAME", shell_complete=complete_streams)
@format_option
@aws_options
def describe(stream: str, output: Format, clients: OperatorClients) -> None:
    """Show one stream: its shards, open and closed, and whether every hash key has its shard.

    NAME may be an ARN.
    """
    from pykcl.operate.streams.describing import hints, shard_rows, stream_facts

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
    from pykcl.errors import printable

    key = f" with {facts['key_id']}" if facts["key_id"] else ""
    consumers = facts["consumers"]
    if consumers is None:
        told = f"{facts['consumer_count']}" if facts["consumer_count"] is not None else "unknown"
    else:
        told = ", ".join(f"{one['name']} ({one['status']})" for one in consumers) or "none"
    lines = {
        "Stream": f"{facts['stream']}  {facts['status']}  {facts['mode'] or ''}".rstrip(),
        "ARN": facts["arn"],
        "Created": facts["created"],
        "Retention": _hours(facts["retention_hours"]),
        "Encryption": f"{facts['encryption'] or '-'}{key}",
        "Largest record": f"{facts['largest_record_bytes'] // 1024} KiB",
        "Fan-out consumers": told,
        "Shard metrics": ", ".join(facts["shard_metrics"]) or "none",
        "Shards": f"{facts['open_shards']} open, {facts['closed_shards']} closed; hash keys {facts['hash_keys']}",
    }
    width = max(map(len, lines))
    return [f"{name:<{width}}  {printable(str(value or '-'))}" for name, value in lines.items()]
