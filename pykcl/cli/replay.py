"""`pykcl replay MODULE:NAME`: process a part of a stream again, under a lease table of its own, and end."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pykcl.cli.console import announce
from pykcl.cli.errors import ExitCode, exit_codes
from pykcl.cli.options import Duration, Verb
from pykcl.cli.output import Column, render
from pykcl.cli.run import ON_ERROR, OPTION, WORKER_ID, grouped_flags, load
from pykcl.cli.settings import Service, Settings, from_arguments, log_to_stderr, service_options, settings_of
from pykcl.cli.supervisor import Processes, processes_option
from pykcl.cli.target import common_options
from pykcl.errors import ConfigError, TableGone, TemporaryError
from pykcl.events import DataLost, Event
from pykcl.interfaces import LeaseTable, Stream
from pykcl.metrics import catalog
from pykcl.metrics.catalog import Measure
from pykcl.model.checkpoint import AT_START_TIMESTAMP, StartPosition
from pykcl.model.lease import Lease
from pykcl.planning.read_schedule import backoff
from pykcl.planning.run_end import range_of
from pykcl.runtime import SystemRuntime
from pykcl.times import format_duration, format_time, millis_of, start_position

if TYPE_CHECKING:
    from pykcl.cli.supervised import Member
    from pykcl.status import LeaseStatus, WorkerStatus

log = logging.getLogger("pykcl.replay")

Answer = TypeVar("Answer")

NOW = "now"
"""The end of a replay that is the moment at which it was first started."""


@dataclass(slots=True)
class Count:
    """The records of one shard, of one process or of several.

    given_up: dead letters, and what was dropped. lost: how often records were gone before they could be read; nobody
    knows how many.
    """

    records: int = 0
    data_bytes: int = 0
    given_up: int = 0
    lost: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.records + other.records,
            self.data_bytes + other.data_bytes,
            self.given_up + other.given_up,
            self.lost + other.lost,
        )


class Tally:
    """The counts of all shards: a metrics sink, which is given what the processor has returned from, and a listener.

    Thread-safe.
    """

    _COUNTED: Mapping[Measure, str] = {
        catalog.RECORDS_PROCESSED: "records",
        catalog.DATA_BYTES_PROCESSED: "data_bytes",
        catalog.RECORDS_DEAD_LETTERED: "given_up",
        catalog.RECORDS_DISCARDED: "given_up",
        catalog.SKIPPED_RECORDS: "given_up",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[str, Count] = {}

    def take(self, label: str, values: Sequence[tuple[Measure, float]]) -> None:
        found = [(name, value) for measure, value in values if (name := self._COUNTED.get(measure))]
        if not found:
            return
        with self._lock:
            count = self._shards.setdefault(label, Count())
            for name, value in found:
                setattr(count, name, getattr(count, name) + round(value))

    def hear(self, event: Event) -> None:
        """Count a loss of records."""
        if isinstance(event, DataLost):
            with self._lock:
                self._shards.setdefault(event.shard, Count()).lost += 1

    def forget(self, shard: str) -> None:
        """Keep the counts of a shard whose lease is gone: they are of the run."""

    def counts(self) -> dict[str, Count]:
        """Return a copy of the counts, by shard."""
        with self._lock:
            return {shard: replace(count) for shard, count in sorted(self._shards.items())}


class Reports:
    """The counts of all processes, by what each reported last. Used by one thread.

    Each reports from before its first record on.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], Mapping[str, Any]] = {}

    def hear(self, process: tuple[int, int], report: Mapping[str, Any]) -> None:
        """process: its number, and how many were started under it. report: one of `report_of`."""
        self._last[process] = report

    @property
    def unfinished(self) -> int:
        """The number of processes that ended without their last report, if all have ended."""
        return sum(not report["is_last"] for report in self._last.values())

    def counts(self) -> dict[str, Count]:
        """Return the sums, by shard."""
        sums: dict[str, Count] = {}
        for report in self._last.values():
            for shard, numbers in report["shards"].items():
                sums[shard] = sums.get(shard, Count()) + Count(*numbers)
        return dict(sorted(sums.items()))


def report_of(counts: Mapping[str, Count], *, is_last: bool) -> dict[str, Any]:
    """Return the report of one process to its parent."""
    return {"shards": {shard: astuple(count) for shard, count in counts.items()}, "is_last": is_last}


class Course:
    """The progress of the shards that this process has had. Used by one thread.

    begin, until: of the range, epoch milliseconds. begin None: each shard begins at the first record that was read.
    """

    def __init__(self, begin: int | None, until: int) -> None:
        self._begin, self._until = begin, until
        self._begins: dict[str, float] = {}
        self._shares: dict[str, float] = {}

    def share(self, status: WorkerStatus, now_millis: int) -> float:
        """Return the part of the range that is read, 0 to 1: the mean of the shards, each by the time it reached."""
        present = {lease.shard: lease for lease in status.leases}
        for shard in self._shares.keys() - present.keys():
            # Ended, or another worker's: for this process it is done.
            self._shares[shard] = 1.0
        for shard, lease in present.items():
            self._shares.setdefault(shard, 0.0)
            if lease.millis_behind_latest is not None:
                seen_at = now_millis - 1000 * (lease.lag_age or 0.0)
                self._shares[shard] = self._share_of(lease, seen_at - lease.millis_behind_latest)
        return sum(self._shares.values()) / len(self._shares) if self._shares else 0.0

    def _share_of(self, lease: LeaseStatus, reached: float) -> float:
        if reached >= self._until:
            return 1.0
        begin: float | None = self._begin
        if begin is None:
            first = lease.first_arrival_millis
            begin = self._begins.setdefault(lease.shard, reached if first is None else first)
        return max(0.0, (reached - begin) / (self._until - begin)) if begin < self._until else 0.0


def seconds_left(seconds: float, share: float, before: float) -> float | None:
    """Return the seconds until the end, if it goes on as in the `seconds` so far; None: too little is done to say.

    share, before: the part that is done now, and that was done when the seconds began.
    """
    least = 0.01
    return None if share - before < least else seconds * (1.0 - share) / (share - before)


class Replay:
    """settings: of the run, with its end. member: this process, if it is one of several; it reports to its parent."""

    def __init__(self, settings: Settings, interval: float, member: Member | None = None) -> None:
        self.settings, self._interval, self._member = settings, interval, member
        self.tally, self.reports = Tally(), Reports()

    def work(self, processor: Any, service: Service) -> int:
        """Run a worker until the end of the run, or a signal; return the exit code. Raises as `Worker.run`."""
        from pykcl.worker.worker import Worker

        config = self.settings.config
        self._report()
        with service.watching() as watch:
            try:
                worker = watch(
                    Worker(
                        processor=processor,
                        config=config,
                        clients=self.settings.clients(),
                        metrics_sinks=[self.tally],
                        on_event=self.tally.hear,
                    )
                )
                with self._logged(worker):
                    worker.run()
            finally:
                # Before the parent hears that the run is over.
                self._report(is_last=True)
        return ExitCode.OK

    def watch(self, processes: Processes, service: Service) -> int:
        """Run the processes until the end of the run, or a signal; return the exit code. Raises as `Processes.run`."""
        # The same end for all of them: a moment of its own would make each refuse the rows of the others.
        run_all = processes.with_arguments("--until", str(self.settings.config.until))
        return run_all.run(self.settings.config, service, self.reports.hear)

    def _report(self, *, is_last: bool = False) -> None:
        report = report_of(self.tally.counts(), is_last=is_last)
        if self._member is not None:
            self._member.report_work(report)
        else:
            self.reports.hear((0, 0), report)

    @contextmanager
    def _logged(self, worker: Any) -> Iterator[None]:
        over = threading.Event()
        task = threading.Thread(target=self._log_until, args=(over, worker), name="pykcl-replay", daemon=True)
        task.start()
        try:
            yield
        finally:
            over.set()
            task.join()

    def _log_until(self, over: threading.Event, worker: Any) -> None:
        config, before = self.settings.config, 0
        course = Course(config.start_position.at_millis, config.until_millis or 0)
        # The first share may be what an earlier start has done.
        first: tuple[float, float] | None = None
        while not over.wait(self._interval):
            self._report()
            records = sum(count.records for count in self.tally.counts().values())
            share = course.share(worker.status(), SystemRuntime().utcnow_millis())
            now = time.monotonic()
            first = first or ((now, share) if share else None)
            left = seconds_left(now - first[0], share, first[1]) if first else None
            log.info(
                "replay goes on records=%d per_second=%.0f done=%.0f%% ends_in=%s",
                records,
                (records - before) / self._interval,
                100 * share,
                format_duration(left),
            )
            before = records

    def finish(self, code: int) -> int:
        """Print the counts and what the lease table says of the run; return the exit code. code: of the workers."""
        counts = self.reports.counts()
        if code != ExitCode.OK and not counts:
            return code
        announce(table_of(counts))
        if self.reports.unfinished:
            announce(
                f"At least so many: {self.reports.unfinished} of the processes ended before the last report, and what "
                f"they did in their last {format_duration(self._interval)} is not in the table."
            )
        if code != ExitCode.OK:
            return code
        try:
            leases = leases_of(services_of(self.settings)[0])
        except TemporaryError as error:
            announce(
                f"ended, and whether every shard is done is not known, as the lease table does not answer: {error} "
                "Do: give the same command again. It goes on with what is left, and ends at once if nothing is."
            )
            return ExitCode.FAILED
        left = [lease.key for lease in leases if not lease.is_ended]
        name = self.settings.config.table
        if left or not leases:
            announce(
                f"stopped: {len(leases) - len(left)} of {len(leases)} shards are done, and {len(left)} are left"
                f"{': ' if left else ''}{', '.join(left[:10])}. The same command goes on from there."
            )
            return ExitCode.FAILED
        announce(
            f"done: {len(leases)} shards were read until {format_time(self.settings.config.until_millis or 0)}. Table "
            f"{name} stays. To remove it: pykcl leases drop --table {name} --execute"
        )
        if any(count.lost for count in counts.values()):
            announce(
                "But records were no longer kept when they were to be read: see LOST above, and E18 in the log."
            )
            return ExitCode.FINDING
        return ExitCode.OK


def services_of(settings: Settings) -> tuple[LeaseTable, Stream]:
    """Raises ConfigError, SetupError."""
    from pykcl.aws.clients import connect

    return connect(settings.config, SystemRuntime(), clients=settings.clients(), gone_after=0.0)


def leases_of(table: LeaseTable) -> list[Lease]:
    """Return the leases; none where there is no table. Raises SetupError, TemporaryError."""
    try:
        rows = table.scan(consistent=True).rows
    except TableGone:
        return []
    return sorted((row for row in rows if isinstance(row, Lease)), key=lambda lease: lease.key)


def when_answered(question: Callable[[], Answer]) -> Answer:
    """Return the answer of AWS, and ask again while it gives none for a time, as the start of a worker does.

    Raises what the question raises but TemporaryError.
    """
    runtime, failures = SystemRuntime(), 0
    while True:
        try:
            return question()
        except TemporaryError as error:
            failures += 1
            pause = backoff(failures, runtime.random(), first=0.5, longest=5.0)
            log.warning("the start waits for an answer again_in=%.1f error=%s", pause, error)
            time.sleep(pause)


def warn_of_a_late_start(settings: Settings) -> None:
    """Log that the range begins with records that are no longer kept, unless all of it was begun before.

    Raises SetupError, TemporaryError.
    """
    begin = settings.config.start_position.at_millis
    if begin is None:
        return
    table, stream = services_of(settings)
    description, leases = stream.describe(), leases_of(table)
    kept = timedelta(hours=description.retention_hours)
    oldest = stream.server_time_millis() - kept // timedelta(milliseconds=1)
    is_new = not leases or any(lease.checkpoint == AT_START_TIMESTAMP for lease in leases)
    if is_new and max(begin, description.created_at) < oldest:
        log.warning(
            "the stream keeps records for %dh: those from %s until %s are gone, and are not replayed",
            description.retention_hours,
            format_time(begin),
            format_time(oldest),
        )


def with_end(settings: Settings, until: str, shards: str | None = None) -> Settings:
    """Return the settings of a replay. until: a time or NOW. Raises ConfigError, and SetupError for the table.

    A replay until NOW that was begun has its end in its rows, so that the same command goes on with it.
    """
    begun: str | None = None
    if until == NOW:
        table, stream = services_of(settings)
        found = [end for lease in leases_of(table) if (end := range_of(lease)[1]) is not None]
        begun = format_time(found[0] if found else _now(stream))
    config = replace(settings.config, until=begun or until, shards=shards)
    if config.metrics_level == "NONE":
        # The counts come by the same way as metrics, and `metrics` decides where those go.
        config = replace(config, metrics_level="SUMMARY", metrics="none")
    return replace(settings, config=config)


def _now(stream: Stream) -> int:
    """Return a time behind all that was put so far: the later one of Kinesis' clock and that of this host.

    Too late, the run goes on for longer; too early, it would leave records out: by this clock alone where it is behind,
    by the dates of answers alone where a proxy writes them. Raises SetupError, TemporaryError.
    """
    stream.describe()
    # An answer says the second in which it was given.
    return max(stream.server_time_millis(as_seen=True) + 1000, SystemRuntime().utcnow_millis())


def table_of(counts: dict[str, Count]) -> str:
    """Return the counts as a table, a line for each shard and one for all."""
    columns = [
        Column("shard"),
        Column("records", right=True),
        Column("data_bytes", "BYTES", right=True),
        Column("given_up", right=True),
        Column("lost", right=True),
    ]
    total = sum(counts.values(), Count())
    rows = [{"shard": shard, **asdict(count)} for shard, count in {**counts, "all": total}.items()]
    return render(rows, columns, "wide")


def _refuse_what_is_said_twice(options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """options: of --option. given: fields of Config that have a flag. Raises click.UsageError."""
    for field, flag in (
        ("until", "--until"),
        ("initial_position", "--from"),
        ("max_records_per_second", "--rate"),
        ("shards", "--shards"),
    ):
        if field in options and (field in given or field in ("until", "shards")):
            raise click.UsageError(f"--option {field}= and {flag} say the same. Do: drop the former.")


def _refuse_an_empty_range(begin: StartPosition, until: str) -> None:
    """Refuse a range before anything is asked of AWS. until: a time or NOW. Raises click.UsageError, ConfigError."""
    if until == NOW:
        if begin.kind == "LATEST":
            raise click.UsageError("--from LATEST begins at --until now. Do: say an earlier --from.")
        return
    try:
        end = millis_of("--until", until)
    except ConfigError as error:
        raise ConfigError(f"{error} Or say {NOW}.") from None
    if begin.at_millis is not None and begin.at_millis >= end:
        raise click.UsageError(
            f"--until {format_time(end)} is not after --from {format_time(begin.at_millis)}. Do: say a later end."
        )


def _processor(target: str) -> Any:
    from pykcl.handlers.app import App
    from pykcl.handlers.functions import processor_of

    found = load(target)
    if isinstance(found, App):
        raise click.UsageError(
            f"{target} is an App, and a replay runs one processor. Do: name its function, such as shop:on_order."
        )
    return processor_of(found)


@click.command(cls=Verb)
@click.argument("target", metavar="MODULE:CLASS")
@click.option(
    "--from",
    "initial_position",
    required=True,
    metavar="POSITION",
    help="Where to begin: an ISO 8601 time, or TRIM_HORIZON for the oldest record.",
)
@click.option(
    "--until",
    required=True,
    metavar="TIME",
    help="Where to end: an ISO 8601 time, or now, the moment of the first start. Several hosts need one time.",
)
@click.option(
    "--shards",
    metavar="LIST",
    help="Read only these shards and those that come after them, such as 1,7.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.01),
    metavar="N",
    help="Process at most N records a second in each process.",
)
@click.option(
    "--progress",
    type=Duration(minimum=0.1, maximum=86_400),
    default=10.0,
    metavar="DURATION",
    help="Log the progress this often (default: 10s).",
)
@ON_ERROR
@WORKER_ID
@OPTION
@service_options
@processes_option
@common_options
@grouped_flags
def replay(
    target: str,
    until: str,
    shards: str | None,
    rate: float | None,
    progress: float,
    properties: Path | None,
    config_file: Path | None,
    given: dict[str, Any],
    access: dict[str, Any],
    options: tuple[str, ...],
    processes: Processes,
    service: Service,
    verbose: bool,
) -> None:
    """Process a part of a stream again, and end.

    Needs MODULE:CLASS as `pykcl run` does, --application, --stream, --from and --until. Records that arrived from the
    one time on and before the other are delivered. The application is one of its own, such as orders-backfill: the
    lease table of another one is refused, and the application that goes on reading the stream notices nothing but the
    reads.

    Ctrl-C or SIGTERM stops it, and the same command goes on from there. It may run on several hosts, or with
    --processes. The exit code is 0 once every shard was read until the end, and 3 if records of the range were gone.
    """
    log_to_stderr(service.log_format, verbose=verbose, process=processes.number)
    with exit_codes(processes.name, runs_worker=True):
        if rate is not None:
            given["max_records_per_second"] = rate
        overrides = from_arguments(options)
        _refuse_what_is_said_twice(overrides, given)
        _refuse_an_empty_range(start_position(given["initial_position"], "--from"), until)
        settings = settings_of(
            entry_point="native",
            properties=properties,
            config_file=config_file,
            overrides=overrides | service.config_options() | given,
            accept_polling=True,
            shows_verdicts=processes.member is None,
            **access,
        )
        settings.refuse_lease_store("pykcl replay")
        settings = when_answered(lambda: with_end(settings, until, shards))
        run = Replay(processes.own(settings), progress, processes.member)
        if processes.member is None:
            when_answered(lambda: warn_of_a_late_start(run.settings))
        code = run.watch(processes, service) if processes.is_parent else run.work(_processor(target), service)
        if processes.member is None:
            code = run.finish(code)
        sys.exit(code)
