"""`pykcl lag`: how far behind the fleet is, per shard and in all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.durations import Duration
from pykcl.cli.errors import ExitCode
from pykcl.cli.output import Column, Format, format_option, render, repeat, watch_option
from pykcl.cli.settings import worker_token
from pykcl.cli.target import Target, fleet_options
from pykcl.config import HTTP_TOKEN
from pykcl.errors import ConfigError
from pykcl.times import format_duration

if TYPE_CHECKING:
    from pykcl.model.lease import Lease
    from pykcl.operate.lag import LagSource, ShardLag, TotalLag
    from pykcl.operate.snapshot import TableSnapshot
    from pykcl.operate.states import Marks
    from pykcl.runtime import Runtime

SOURCES = ("kinesis", "status", "cloudwatch")


@click.command()
@fleet_options("table")
@format_option
@watch_option
@click.option(
    "--max-behind",
    type=Duration(),
    metavar="TIME",
    help="Exit with 3 if a shard is further behind, such as 60s.",
)
@click.option(
    "--source",
    "--from",
    "source",
    type=click.Choice(SOURCES),
    default="kinesis",
    show_default=True,
    help="Who is asked: Kinesis, at one of the five reads a second that the readers of a shard share; the workers' "
    "own /status; or their metrics in CloudWatch, at $0.01 per 1,000 shards.",
)
@click.option(
    "--status-url",
    "--worker",
    "urls",
    multiple=True,
    metavar="URL",
    help="With --source status: where a worker's --http answers, such as http://10.0.1.7:8080. Once for each.",
)
@click.option(
    "--status-token-file",
    "--worker-token-file",
    "token_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"With --source status: what the workers' /status needs; else ${HTTP_TOKEN}.",
)
@click.option(
    "--namespace",
    metavar="NAME",
    help="With --source cloudwatch: of the workers' metrics; by default as configured, else the application's name.",
)
def lag(
    target: Target,
    output: Format,
    watch: float | None,
    max_behind: float | None,
    source: str,
    urls: tuple[str, ...],
    token_file: Path | None,
    namespace: str | None,
) -> None:
    """How long the oldest unread record of every shard has been waiting. The largest of these is the fleet's lag.

    The lease table holds positions and no times, so somebody else is asked.

    \b
    kinesis     for each lease one GetShardIterator at its checkpoint and one GetRecords call for two records; on idle
                shards more, up to the next record or the tip: some 250 for a day. Sixteen shards at a time. "Unread"
                is what lies behind the checkpoint: a worker may have read it and not checkpointed yet.
    status      pykcl workers with --http say how far from the tip they read. It costs nothing.
    cloudwatch  the MillisBehindLatest of any KCL worker that sends metrics, a minute or two late.
    """
    from pykcl.operate.aws.table_scan import TableScanner
    from pykcl.runtime import SystemRuntime

    _refuse_mixture(source, urls, token_file, namespace)
    runtime = SystemRuntime()
    scanner = TableScanner(target.clients.client("dynamodb"), str(target.table), runtime)
    told = _told_by_others(target, source, urls, token_file, namespace, runtime)
    marks: Marks | None = None

    def look() -> tuple[str, int]:
        nonlocal marks, told
        from pykcl.operate.lag import total_of
        from pykcl.operate.states import NO_MARKS, marks_among

        view = scanner.scan()
        if view.streams:
            raise ConfigError(
                "The table holds leases of several streams; lag can be asked of one stream only."
            )
        leases = [view.leases[key] for key in sorted(view.leases)]
        # The same one each time: it goes on where it ended on a shard without records.
        told = told or _kinesis(target, view, runtime)
        lags = told.lags(leases)
        total = total_of(lags, max_behind)
        marks = marks_among((lease.actual_owner for lease in leases), marks or NO_MARKS)
        rows = [_row(lease, lags[lease.key], marks) for lease in leases]
        facts = {
            "application": target.table,
            "shards": len(leases),
            "behind_seconds": total.behind if output == "json" else None,
            "behind": format_duration(total.behind) if output != "json" else None,
            "furthest": total.shard if total.behind else None,
            "source": source,
        }
        facts = {name: value for name, value in facts.items() if value is not None}
        hints = [*_hints(lags, total, max_behind), told.cost]
        return render(rows, _columns(), output, facts=facts, hints=hints), _code(total)

    sys.exit(repeat(watch, look))


def _refuse_mixture(source: str, urls: tuple[str, ...], token: Path | None, namespace: str | None) -> None:
    """Raises click.UsageError."""
    if source == "status" and not urls:
        raise click.UsageError("Which workers? Do: --status-url http://HOST:PORT, once for each.")
    if source != "status" and (urls or token is not None):
        raise click.UsageError("--status-url and --status-token-file go with --source status.")
    if source != "cloudwatch" and namespace is not None:
        raise click.UsageError("--namespace goes with --source cloudwatch.")


def _told_by_others(
    target: Target,
    source: str,
    urls: tuple[str, ...],
    token_file: Path | None,
    namespace: str | None,
    runtime: Runtime,
) -> LagSource | None:
    """None where Kinesis is to be asked. Raises ConfigError, SetupError."""
    if source == "status":
        from functools import partial

        from pykcl.operate.lag import StatusLag
        from pykcl.operate.worker_status import StatusClient

        return StatusLag(partial(StatusClient(urls, runtime, worker_token(token_file)).ask, counts=False))
    if source == "cloudwatch":
        from pykcl.operate.aws.cloudwatch_reads import MetricReader
        from pykcl.operate.lag import CloudWatchLag

        named = namespace or target.config.metrics_namespace or target.application
        if named is None:
            raise ConfigError(
                "Which metrics? They are in a namespace with the application's name, unless configured. "
                "Do: --application NAME, or --namespace NAME."
            )
        return CloudWatchLag(MetricReader(target.clients.client("cloudwatch", attempts=3), named), runtime)
    return None


def _code(total: TotalLag) -> int:
    if total.late:
        return ExitCode.FINDING
    return ExitCode.FAILED if total.unknown else ExitCode.OK


def _kinesis(target: Target, view: TableSnapshot, runtime: Runtime) -> LagSource:
    from pykcl.operate.lag import KinesisLag

    arns = view.stream_arns
    if target.stream is None and len(arns) != 1:
        raise ConfigError("The table does not say which stream it is of. Do: --stream NAME.")
    stream = target.kinesis(target.stream or arns[0])
    stream.describe()
    return KinesisLag(stream, runtime, start=target.config.start_position)


def _columns() -> tuple[Column, ...]:
    from pykcl.cli.leases import owner_colour, short_checkpoint
    from pykcl.operate.snapshot import short_shard

    return (
        Column("shard", weight=9, short=short_shard),
        Column("behind_seconds", "BEHIND", right=True, weight=9, text=format_duration),
        Column("verdict", weight=6),
        Column("owner", weight=7, colour=owner_colour),
        Column("checkpoint", weight=4, short=short_checkpoint),
        Column("why", wide=True),
        Column("reads", right=True, wide=True),
    )


def _row(lease: Lease, lag: ShardLag, marks: Marks) -> dict[str, Any]:
    return {
        "shard": lease.key,
        "behind_seconds": round(lag.behind, 3) if lag.behind is not None else None,
        "verdict": lag.verdict,
        "owner": lease.actual_owner,
        "mark": marks.of(lease.actual_owner),
        "checkpoint": str(lease.checkpoint),
        "why": lag.why or None,
        "reads": lag.reads,
    }


def _hints(lags: dict[str, ShardLag] | Any, total: TotalLag, max_behind: float | None) -> list[str]:
    from pykcl.operate.snapshot import short_shard

    found = []
    if total.late and max_behind is not None:
        found.append(
            f"{total.late} of {len(lags)} shards are more than {format_duration(max_behind)} behind."
        )
    for key, one in lags.items():
        if one.verdict == "trimmed":
            found.append(
                f"{short_shard(key)}: Kinesis has dropped the checkpointed record; unread ones behind it may be lost."
            )
        elif one.behind is None:
            found.append(f"{short_shard(key)}: unknown. {one.why}")
    return found
