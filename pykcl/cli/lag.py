"""`pykcl lag`: the lag of each shard and of the whole fleet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.errors import ExitCode
from pykcl.cli.options import Duration, Verb
from pykcl.cli.output import Column, Format, format_option, render, repeat, watch_option
from pykcl.cli.settings import worker_token
from pykcl.cli.target import Target, fleet_options
from pykcl.config import HTTP_TOKEN
from pykcl.errors import ConfigError, PyKclError
from pykcl.times import format_duration

if TYPE_CHECKING:
    from pykcl.model.lease import Lease
    from pykcl.operate.lag import KinesisLag, LagSource, ShardLag, TotalLag
    from pykcl.operate.snapshot import TableSnapshot
    from pykcl.operate.states import Marks
    from pykcl.operate.unleased import Unleased
    from pykcl.runtime import Runtime

SOURCES = ("kinesis", "status", "cloudwatch")
_MAX_UNLEASED = 5
"""Shards without a lease with a hint each."""


@click.command(cls=Verb)
@fleet_options("table", lease_stores="read")
@format_option
@watch_option
@click.option(
    "--max-behind",
    type=Duration(),
    metavar="DURATION",
    help="Exit with code 3 if a shard is further behind than this, such as 60s.",
)
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default="kinesis",
    show_default=True,
    help="Take the lag from Kinesis, from the /status of the workers, or from their metrics in CloudWatch.",
)
@click.option(
    "--status-url",
    "urls",
    multiple=True,
    metavar="URL",
    help="With --source status: address of a worker's --http, such as http://10.0.1.7:8080 (repeatable).",
)
@click.option(
    "--status-token-file",
    "token_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"With --source status: file with the token of the workers' /status (default: ${HTTP_TOKEN}).",
)
@click.option(
    "--namespace",
    metavar="NAME",
    help="With --source cloudwatch: namespace of the workers' metrics (default: the application name).",
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
    """Show how far each shard is behind the tip of the stream.

    Needs --application or --table. The lag of a shard is the age of its oldest unread record; the lag of the fleet is
    the largest of these. A shard without a lease counts, too: it waits for the end of its parents. The lease table has
    no timestamps: --source selects the data source:

    \b
    kinesis     One GetShardIterator at each checkpoint and one GetRecords call for two records; on idle
                shards more calls, up to the next record or the tip: about 250 calls per idle day. They count against
                the five reads a second of each shard. A record is unread if it comes after the checkpoint.
    status      The /status of pykcl workers that run with --http.
    cloudwatch  The metric MillisBehindLatest of any KCL worker, a minute or two late.
    """
    from pykcl.runtime import SystemRuntime

    _refuse_mixture(source, urls, token_file, namespace)
    runtime, scanner = SystemRuntime(), target.scanner()
    source_of_lags = _Sources(
        target, _other_source(target, source, urls, token_file, namespace, runtime), runtime
    )
    marks: Marks | None = None

    def poll() -> tuple[str, int]:
        nonlocal marks
        from pykcl.operate.lag import total_of
        from pykcl.operate.states import NO_MARKS, marks_among

        view = scanner.scan()
        if view.streams:
            raise ConfigError(
                "The table holds leases of several streams; lag can be asked of one stream only."
            )
        leases, lags = source_of_lags.measure(view)
        total = total_of(lags, max_behind)
        marks = marks_among((lease.actual_owner for lease in leases), marks or NO_MARKS)
        rows = [_row(lease, lags[lease.key], marks) for lease in leases]
        facts = {
            "application": target.table,
            "shards": len(leases),
            **_behind(total, output),
            "furthest": total.shard if total.behind else None,
            "source": source,
        }
        facts = {name: value for name, value in facts.items() if value is not None}
        hints = [*_hints(lags, total, max_behind), *source_of_lags.notes]
        return render(rows, _columns(), output, facts=facts, hints=hints), _code(total)

    sys.exit(repeat(watch, poll))


class _Sources:
    """The lags of all open shards, from scan to scan. other: a source that is not Kinesis."""

    def __init__(self, target: Target, other: LagSource | None, runtime: Runtime) -> None:
        self._target, self._other, self._runtime = target, other, runtime
        # The same one each time: it goes on where it ended on a shard without records.
        self._kinesis: KinesisLag | None = None
        self._unlisted = ""

    def measure(self, view: TableSnapshot) -> tuple[list[Lease], dict[str, ShardLag]]:
        """Return the leases, with those that the shards without one are to get, and the lag of each.

        Raises ConfigError, SetupError, TemporaryError.
        """
        from pykcl.operate.lag import with_standstills, with_unleased
        from pykcl.operate.snapshot import time_of

        leases, unleased = list(view.leases.values()), self._unleased(view)
        planned = [one.lease for one in unleased]
        # No worker reports what has no lease.
        read = planned if self._other is not None else [*leases, *planned]
        measured = dict(self._other.lags(leases)) if self._other is not None else {}
        if self._kinesis is not None:
            measured |= self._kinesis.lags(read)
        now = round(time_of(view, self._runtime) * 1000)
        lags = with_unleased(unleased, with_standstills(leases, measured), view.leases, now)
        return sorted([*leases, *planned], key=lambda lease: lease.key), lags

    def _unleased(self, view: TableSnapshot) -> list[Unleased]:
        try:
            self._kinesis = self._kinesis or self._target.kinesis_lag(view, self._runtime)
            self._unlisted = ""
            return self._kinesis.unleased(view.leases, view.unreadable.keys())
        except PyKclError as error:
            if self._other is None:
                raise
            self._unlisted = f"Shards without a lease were not searched for: {error}"
            return []

    @property
    def notes(self) -> list[str]:
        """Text on the last measurement: its cost, and the shards that it lacks."""
        source = self._other or self._kinesis
        return [*filter(None, (self._unlisted,)), *((source.cost,) if source is not None else ())]


def _behind(total: TotalLag, output: Format) -> dict[str, Any]:
    if output == "json":
        return {"behind_seconds": total.behind}
    return {"behind": format_duration(total.behind)}


def _refuse_mixture(source: str, urls: tuple[str, ...], token: Path | None, namespace: str | None) -> None:
    """Raises click.UsageError."""
    if source == "status" and not urls:
        raise click.UsageError("Which workers? Do: --status-url http://HOST:PORT, once for each.")
    if source != "status" and (urls or token is not None):
        raise click.UsageError("--status-url and --status-token-file go with --source status.")
    if source != "cloudwatch" and namespace is not None:
        raise click.UsageError("--namespace goes with --source cloudwatch.")


def _other_source(
    target: Target,
    source: str,
    urls: tuple[str, ...],
    token_file: Path | None,
    namespace: str | None,
    runtime: Runtime,
) -> LagSource | None:
    """Return None for the source "kinesis". Raises ConfigError, SetupError."""
    if source == "status":
        from functools import partial

        from pykcl.operate.lag import StatusLag
        from pykcl.operate.worker_status import StatusClient

        return StatusLag(partial(StatusClient(urls, runtime, worker_token(token_file)).ask, counts=False))
    if source == "cloudwatch":
        from pykcl.operate.lag import CloudWatchLag

        named = namespace or target.config.metrics_namespace or target.application
        if named is None:
            raise ConfigError(
                "Which metrics? They are in a namespace with the application's name, unless configured. "
                "Do: --application NAME, or --namespace NAME."
            )
        return CloudWatchLag(target.clients.client("cloudwatch", attempts=3), named, runtime)
    return None


def _code(total: TotalLag) -> int:
    if total.late:
        return ExitCode.FINDING
    return ExitCode.FAILED if total.unknown else ExitCode.OK


def _columns() -> tuple[Column, ...]:
    from pykcl.cli.leases import owner_colour, short_checkpoint
    from pykcl.model.shard import short_shard

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
    from pykcl.model.shard import short_shard

    found = []
    unleased = [key for key, one in sorted(lags.items()) if one.verdict == "no lease"]
    if total.late and max_behind is not None:
        found.append(
            f"{total.late} of {len(lags)} shards are more than {format_duration(max_behind)} behind."
        )
    for key, one in sorted(lags.items()):
        if one.verdict == "no lease":
            if key in unleased[:_MAX_UNLEASED]:
                found.append(f"{short_shard(key)} has no lease: {one.why}.")
        elif one.verdict == "trimmed":
            found.append(
                f"{short_shard(key)}: Kinesis has dropped the checkpointed record; unread ones behind it may be lost."
            )
        elif one.verdict == "standing":
            found.append(f"{short_shard(key)} {one.why}. Do: pykcl doctor shows the commands.")
        elif one.behind is None:
            found.append(f"{short_shard(key)}: unknown. {one.why}")
    if more := unleased[_MAX_UNLEASED:]:
        found.append(f"{len(more)} more shards have no lease; -o wide shows why.")
    return found
