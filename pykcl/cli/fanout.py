"""`pykcl fanout`: the consumers of a stream for enhanced fan-out, billed for as long as they are registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.console import quiet_when_unread, say
from pykcl.cli.leases import EXECUTE
from pykcl.cli.options import VerbGroup
from pykcl.cli.output import Column, Format, format_option, show
from pykcl.cli.target import Target, admin_for, complete_streams, fleet_options, summary_of
from pykcl.errors import Refused, printable
from pykcl.runtime import SystemRuntime

if TYPE_CHECKING:
    from pykcl.operate.aws.streams import Consumer, StreamAdmin, StreamSummary

CONSUMERS = (
    Column("consumer", weight=9),
    Column("status", weight=8),
    Column("created", weight=4),
    Column("shard_hours", "SHARD-HOURS/H", right=True, weight=6),
    Column("arn", "ARN", wide=True, weight=1),
)
STREAM = click.argument("name", metavar="STREAM", required=False, shell_complete=complete_streams)
CONSUMER = click.option("--consumer", metavar="NAME", help="Name of the consumer (default: the application).")


@click.group(cls=VerbGroup)
def fanout() -> None:
    """List, register and deregister the consumers of enhanced fan-out.

    A registered consumer is billed for each hour and open shard, also while nobody reads. Workers register their
    consumer and never remove it, because others may read by it.
    """


@fanout.command("list")
@STREAM
@fleet_options(stream_argument="name")
@format_option
def list_consumers(target: Target, output: Format) -> None:
    """List the consumers of a stream, with the shard-hours that each is billed for.

    Needs the stream: STREAM (which may be an ARN) or --stream.
    """
    from pykcl.operate.streams.describe import time_text

    with quiet_when_unread():
        found = _Stream.of(target)
        rows = [
            {
                "consumer": one.name,
                "status": one.status,
                "created": time_text(one.created_at),
                "shard_hours": found.summary.open_shards,
                "arn": one.arn,
            }
            for one in found.consumers
        ]
        show(
            rows,
            CONSUMERS,
            output,
            facts={"stream": found.summary.name},
            hints=(found.summary.bill(len(rows)),),
        )


@fanout.command()
@STREAM
@fleet_options(stream_argument="name")
@CONSUMER
def register(target: Target, consumer: str | None) -> None:
    """Register a consumer, and wait until it is ACTIVE.

    Needs the stream, and --consumer or --application. From then on the consumer is billed. A worker does the same when
    it starts, unless register_consumer is off. One that is registered already stays as it is.
    """
    from pykcl.aws.errors import OPERATOR
    from pykcl.aws.push.consumer import ConsumerCalls, find_active

    name, found, runtime = _name(target, consumer), _Stream.of(target), SystemRuntime()
    calls = ConsumerCalls(
        target.clients.client("kinesis"),
        lambda method: method,
        found.summary.name,
        str(found.summary.arn),
        name,
        who=OPERATOR,
    )
    arn = find_active(
        calls, register=True, check_stream=lambda: None, pause=lambda: runtime.event().wait(1.0)
    )
    say(f"ACTIVE  {printable(arn)}")
    say(found.summary.bill(1), err=True)


@fanout.command()
@STREAM
@fleet_options(stream_argument="name")
@CONSUMER
@EXECUTE
def deregister(target: Target, consumer: str | None, execute: bool) -> None:
    """Deregister a consumer that is no longer used.

    Needs the stream, and --consumer or --application. A dry run without --execute.

    Its subscriptions end at once. So the leases of the application are watched first, for two failover times: the one
    of --application, else the one of the consumer's name. If one of them changes, the command refuses. Applications of
    other names that read by the same consumer are not found.
    """
    name, found = _name(target, consumer), _Stream.of(target)
    known = next((one for one in found.consumers if one.name == name), None)
    if known is None:
        raise Refused(
            f"Stream {found.summary.name!r} has no consumer {name!r}. Do: pykcl fanout list {found.summary.name}."
        )
    table = target.table or name
    say("DEREGISTERS NOW" if execute else "PLAN (nothing changed)")
    say(f"  consumer  {printable(known.name)} ({printable(known.status)})")
    say(f"  ARN       {printable(known.arn)}")
    say(f"  bill      {found.summary.bill(1)}")
    say(f"  only if   no lease of {printable(table)} changes within two failover times")
    if not execute:
        say("Run it again with --execute to deregister it.")
        return
    _wait_until_still(target, table)
    found.admin.deregister_consumer(known.arn)
    say("DEREGISTERED")


def _wait_until_still(target: Target, table: str) -> None:
    """Raise Refused if a worker of the table shows a sign of life. A table that is missing has no workers."""
    from pykcl.operate.aws.lease_table import TableMissing
    from pykcl.operate.idle import wait_until_idle, watch_time

    scan = target.scanner(table).scan
    try:
        leases = scan().leases.values()
    except TableMissing:
        say(f"there is no lease table {printable(table)}: nobody reads as that application", err=True)
        return
    if not leases:
        return
    seconds = watch_time(target.failover, leases)
    say(f"watching the leases of {printable(table)} for {seconds:g} s", err=True)
    wait_until_idle(
        scan, SystemRuntime(), failover=seconds, remedy="stop its workers, or let them read by polling"
    )


@dataclass(frozen=True)
class _Stream:
    """The stream that a command is about."""

    admin: StreamAdmin
    summary: StreamSummary
    consumers: list[Consumer]

    @classmethod
    def of(cls, target: Target) -> _Stream:
        """Raises SetupError without it."""
        if target.stream is None:
            raise click.UsageError("No stream. Do: name it, or --stream NAME.")
        admin = admin_for(target.clients, target.stream)
        summary = summary_of(admin, target.stream)
        return cls(admin, summary, admin.consumers(str(summary.arn)))


def _name(target: Target, consumer: str | None) -> str:
    name: Any = consumer or target.application
    if name is None:
        raise click.UsageError("No consumer. Do: --consumer NAME, or --application NAME.")
    return str(name)
