"""The lag of each lease: the time that its oldest unread record has been waiting.

The table holds a position only; the arrival time of the next record has to come from elsewhere. There are three
sources: Kinesis is read after the *checkpoint* (`KinesisLag`). Workers report the lag of their reads at /status
(`StatusLag`) and to CloudWatch (`CloudWatchLag`); those reads may be ahead of the checkpoint, and old reports are not
used, as a worker without a recent one may have stopped.

Reading Kinesis costs, per open lease, one GetShardIterator and one GetRecords call of at most two records, as long as
records keep coming. One call covers a bounded span of stream time: after hours without records, pages are empty, and
only the next record or the tip of the shard shows the lag. A shard serves five calls and 2 MB a second to all readers
without enhanced fan-out together; so no shard is read more than four times per second, and few shards at a time.
For a checkpoint within an aggregate the stream is described and its shards are listed, once for all leases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from pykcl.aws.errors import MALFORMED, OPERATOR, answer_of, unreadable
from pykcl.errors import PyKclError, SetupError, ShardGone, TemporaryError, Throttled
from pykcl.interfaces import Stream
from pykcl.metrics.catalog import MILLIS_BEHIND_LATEST
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.kpl import deaggregate
from pykcl.model.lease import Lease, first_read
from pykcl.model.record import Record
from pykcl.model.shard import HashRange, Shard, range_of_aggregates
from pykcl.operate.hints import standstill_of
from pykcl.operate.unleased import Unleased, unleased_shards
from pykcl.operate.worker_status import WorkerReport
from pykcl.runtime import Runtime, parallel_map
from pykcl.times import format_duration

MAX_PARALLEL = 16
"""Shards read at the same time."""
MAX_READS = 300
"""Reads of one shard for one answer. AWS takes some 250 to cross a day without records."""
_PAGE = 2
"""Records: the checkpointed one, which may be a partly processed aggregate, and the next."""
_PAUSE = 0.25
_PAUSE_AFTER_THROTTLING = 1.0
_MARGIN_MILLIS = 10_000
"""The next answer starts this much before the end of the last page: the two clocks differ a little."""

Answer = TypeVar("Answer")
Verdict = Literal["read", "reported", "standing", "no lease", "ended", "gone", "trimmed", "unknown"]


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The lag of one lease.

    behind: seconds that its oldest unread record has been waiting; 0.0 without one; None where unknown. verdict:
    "standing": the shard does not get past its checkpoint, for the reason in `why`, as its worker has noted; "ended":
    the shard was read to its end; "reported": by a worker or CloudWatch; "gone": Kinesis has dropped the shard;
    "trimmed": it has dropped the checkpointed record, and perhaps unread ones after it; "no lease": nobody can read the
    shard yet, for the reason in `why`. why: the reason of an unknown lag, as text. reads: number of GetRecords calls.
    is_at_end: the shard is closed, and nothing of it is unread; so only its end is still to be written.
    """

    behind: float | None
    verdict: Verdict = "read"
    why: str = ""
    reads: int = 0
    is_at_end: bool = False


class LagSource(Protocol):
    """Measures the lag of leases."""

    @property
    def cost(self) -> str:
        """The cost of the last measurement, as text."""

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        """Return the lag by lease key. Raises SetupError or TemporaryError only if the whole source fails."""


@dataclass(frozen=True, slots=True)
class _Crossed:
    """No record lies between the checkpoint and `until_millis`, epoch milliseconds.

    is_retained: the checkpointed record is still there, or none is checkpointed.
    """

    checkpoint: Checkpoint
    until_millis: int
    is_retained: bool


class KinesisLag:
    """Reads the stream. start: of the fleet, without a checkpoint; shard_of: lease key -> shard id.

    max_reads: of one shard for one answer; the next answer for the same checkpoint continues from there.
    """

    def __init__(
        self,
        stream: Stream,
        runtime: Runtime,
        *,
        start: StartPosition | None = None,
        shard_of: Callable[[str], str] = str,
        max_reads: int = MAX_READS,
    ) -> None:
        self._stream, self._runtime = stream, runtime
        self._start = start or StartPosition("TRIM_HORIZON")
        self._shard_of = shard_of
        self._max_reads = max_reads
        self._crossed: dict[str, _Crossed] = {}
        self._one_asks = runtime.lock()
        self._listed: tuple[bool, Mapping[str, Shard]] | None = None

    @property
    def cost(self) -> str:
        return (
            "Every shard was read once for this: 1 of the 5 GetRecords calls a second that all its readers without "
            "enhanced fan-out share, and at most two records of its 2 MB/s. An idle shard takes more, up to 4 a second."
        )

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        by_key = {lease.key: lease for lease in leases}
        self._listed = None

        def lag_of(key: str) -> ShardLag:
            return self._lag_of(by_key[key])

        return parallel_map(lag_of, by_key, self._runtime, max_threads=MAX_PARALLEL, name="lag")

    def unleased(self, leases: Mapping[str, Lease], unreadable: Collection[str]) -> list[Unleased]:
        """Return the shards that are still to be read and have no row. Lists the shards; the arguments are as in
        `unleased_shards`. Raises SetupError, TemporaryError.
        """
        listing = self._patiently(self._stream.list_shards)
        if not listing.complete:
            raise TemporaryError("The shards could not be listed completely. Do: try again.")
        return unleased_shards(self._start, listing.shards, leases, unreadable)

    def _lag_of(self, lease: Lease) -> ShardLag:
        if lease.is_ended:
            self._crossed.pop(lease.key, None)
            return ShardLag(0.0, "ended")
        try:
            return self._read(lease)
        except ShardGone:
            return ShardLag(
                None, "gone", "Kinesis does not know the shard: it was trimmed, or is another stream's"
            )
        except PyKclError as error:
            return ShardLag(None, "unknown", str(error))

    def _read(self, lease: Lease) -> ShardLag:
        shard, start = (
            self._shard_of(lease.key),
            first_read(lease, self._start, self._stream.server_time_millis()),
        )
        crossed = self._crossed.get(lease.key)
        if crossed is None or crossed.checkpoint != lease.checkpoint:
            crossed = None
        begin = start if crossed is None else ReadFrom("AT_TIMESTAMP", at_millis=crossed.until_millis)
        is_retained = lease.checkpoint.is_sentinel if crossed is None else crossed.is_retained
        iterator = self._patiently(lambda: self._stream.open(shard, begin))
        behind = 0
        for reads in range(1, self._max_reads + 1):
            if reads > 1:
                self._runtime.event().wait(_PAUSE)
            page = self._patiently(partial(self._stream.fetch, shard, iterator, _PAGE))
            now, behind = self._stream.server_time_millis(), page.millis_behind_latest or 0
            unread = self._oldest_unread(lease, page.records)
            if unread is not None:
                # Opened at a dropped number, a shard silently starts at its oldest record.
                is_retained |= page.records[0].sequence_number == lease.checkpoint.sequence_number
                waits = max(0, now - unread.arrived_at_millis, behind) / 1000
                return ShardLag(waits, "read" if is_retained else "trimmed", reads=reads)
            is_retained |= bool(page.records)
            # "LATEST" opened again would be a later one, and nothing before it counts.
            if start.kind != "LATEST":
                until = max(start.at_millis or 0, now - behind - _MARGIN_MILLIS)
                self._crossed[lease.key] = _Crossed(lease.checkpoint, until, is_retained)
            if page.next_iterator is None or (behind == 0 and len(page.records) < _PAGE):
                return ShardLag(0.0, reads=reads, is_at_end=page.next_iterator is None)
            iterator = page.next_iterator
        why = (
            f"{self._max_reads} reads found no record after the checkpoint; the shard is at most "
            f"{behind / 3_600_000:.1f} hours behind"
        )
        return ShardLag(None, "unknown", why, self._max_reads)

    def _oldest_unread(self, lease: Lease, records: Sequence[Record]) -> Record | None:
        """Return the first Kinesis record that has a user record after the checkpoint."""
        at = lease.checkpoint
        for record in records:
            if at.is_sentinel or int(record.sequence_number) > int(at.sequence_number):
                return record
            # First without a range, which is asked for only where it matters: in the middle of an aggregate.
            if (
                record.sequence_number == at.sequence_number
                and _is_partly_read(lease, record, None)
                and _is_partly_read(lease, record, self._range_of(lease))
            ):
                return record
        return None

    def _range_of(self, lease: Lease) -> HashRange | None:
        """Return the range of aggregates as the worker has it. Asks for shards and description once in `lags`."""
        with self._one_asks:
            if self._listed is None:
                described = self._patiently(self._stream.describe)
                listing = self._patiently(self._stream.list_shards)
                self._listed = described.ignores_keys, listing.by_id
            ignores_keys, shards = self._listed
        shard = shards.get(self._shard_of(lease.key))
        listed = shard.hash_range if shard is not None else None
        return range_of_aggregates(listed, lease.hash_range, ignores_keys=ignores_keys)

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        """Call again once, a second later, if throttled: the workers need the calls more."""
        try:
            return call()
        except Throttled:
            self._runtime.event().wait(_PAUSE_AFTER_THROTTLING)
            return call()


def _is_partly_read(lease: Lease, record: Record, hash_range: HashRange | None) -> bool:
    *_, last = list(deaggregate(record, hash_range)) or [record]
    return last.sub_sequence_number > lease.checkpoint.sub_sequence_number


def with_standstills(leases: Sequence[Lease], lags: Mapping[str, ShardLag]) -> dict[str, ShardLag]:
    """Return the lags; of a lease that stands where it is, as its row says, with that as the verdict."""
    found = dict(lags)
    for lease in leases:
        lag = found.get(lease.key)
        if (
            lag is not None
            and lease.standstill is not None
            and lag.verdict in ("read", "reported", "unknown")
        ):
            why = "; ".join(filter(None, (standstill_of(lease), lag.why)))
            found[lease.key] = replace(lag, verdict="standing", why=why)
    return found


def with_unleased(
    unleased: Iterable[Unleased], lags: Mapping[str, ShardLag], leases: Mapping[str, Lease], now_millis: int
) -> dict[str, ShardLag]:
    """Return the lags; of a shard without a lease, which was measured as if it had one, with that as the verdict.

    It is behind by the age of its oldest record, or for as long as the end of a parent is noted to be unwritten, which
    it may be before the first record comes. now_millis: epoch milliseconds, by Kinesis' clock.
    """
    found = dict(lags)
    for one in unleased:
        lag = lags.get(one.key)
        if lag is None:
            continue
        noted = [
            (now_millis - note.since) / 1000
            for parent in one.waits_for
            if parent in leases
            and (note := leases[parent].standstill) is not None
            and parent in lags
            and lags[parent].is_at_end
        ]
        behind = max((each for each in (lag.behind, *noted) if each is not None), default=None)
        why = "; ".join(filter(None, (_reason_of(one, behind, lags, leases), lag.why)))
        found[one.key] = replace(lag, behind=behind, verdict="no lease", why=why)
    return found


def _reason_of(
    one: Unleased, behind: float | None, lags: Mapping[str, ShardLag], leases: Mapping[str, Lease]
) -> str:
    facts = [f"since {format_duration(behind)}"] if behind else []
    for parent in one.waits_for:
        lag, row = lags.get(parent), leases.get(parent)
        name = parent if len(one.waits_for) > 1 else "it"
        if row is None:
            facts.append(
                f"{name} has no lease either" if lag is not None else f"the row of {parent} is unreadable"
            )
        elif lag is not None and lag.is_at_end:
            cause = row.standstill.cause if row.standstill is not None else ""
            facts.append(f"{name} was read, and its end is not written{f': {cause}' if cause else ''}")
        elif lag is not None and lag.behind:
            facts.append(f"{name} is {format_duration(lag.behind)} behind")
    return one.reason + (f" ({'; '.join(facts)})" if facts else "")


@dataclass(frozen=True, slots=True)
class TotalLag:
    """The lag of a fleet: that of the lease furthest behind.

    behind: seconds; None where none is known. shard: its key. late: number of leases above the threshold. unknown:
    number of leases without a known lag.
    """

    behind: float | None
    shard: str | None = None
    late: int = 0
    unknown: int = 0


def total_of(lags: Mapping[str, ShardLag], threshold: float | None = None) -> TotalLag:
    """Summarize the lags. threshold: seconds."""
    known = {key: lag.behind for key, lag in lags.items() if lag.behind is not None}
    worst = max(known, key=lambda key: known[key], default=None)
    late = sum(behind > threshold for behind in known.values()) if threshold is not None else 0
    unknown = sum(lag.behind is None for lag in lags.values())
    return TotalLag(known[worst] if worst is not None else None, worst, late, unknown)


MAX_METRIC_AGE = 180.0
"""Seconds. A datapoint has the start of its minute, is sent some ten seconds later and visible after a minute."""
_WINDOW = 600.0
"""Seconds before now in which values are read."""
_MAX_METRICS = 500
_PERIOD = 60
_ASKING = "asking CloudWatch for MillisBehindLatest (cloudwatch:GetMetricData)"
_BAD = frozenset({"InternalError", "Forbidden"})
_MAX_PROBLEMS = 5


class StatusLag:
    """Lag as workers report it at /status. ask: returns the reports of all."""

    def __init__(self, ask: Callable[[], Sequence[WorkerReport]]) -> None:
        self._ask = ask
        self._problems: tuple[str, ...] = ()

    @property
    def cost(self) -> str:
        silent = f" No answer from {_some(self._problems)}." if self._problems else ""
        return (
            "The workers reported the lag of their reads, which may be ahead of their checkpoints. This cost nothing "
            f"at AWS but the scan of the lease table, and the shards without a lease.{silent}"
        )

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        reports = self._ask()
        self._problems = tuple(f"{page.url}: {page.problem}" for page in reports if page.worker is None)
        if len(self._problems) == len(reports):
            raise SetupError(f"No worker reported its status. {_some(self._problems)}.")
        return {lease.key: _reported_by_owner(lease, reports) for lease in leases}


def _reported_by_owner(lease: Lease, reports: Sequence[WorkerReport]) -> ShardLag:
    """Return the lag that the owner reports: a worker that has lost a lease may not know it yet."""
    if lease.is_ended:
        return ShardLag(0.0, "ended")
    if lease.actual_owner is None:
        return ShardLag(None, "unknown", "it has no owner, so no worker reads it")
    of_owner = [one for one in reports if one.worker == lease.actual_owner]
    if not of_owner:
        return ShardLag(None, "unknown", "its owner is not among the workers that answer")
    lags = [one.behind[lease.key] for one in of_owner if lease.key in one.behind]
    if not lags:
        return ShardLag(None, "unknown", "its owner has read nothing of it yet")
    # A reader that does not read falls further behind with every second since its report.
    return ShardLag(min(behind + ago for behind, ago in lags), "reported")


class CloudWatchLag:
    """Lag from the metrics of workers, Java's and pykcl's, under KCL's names.

    client: of boto3, for CloudWatch; it retries by itself. namespace: of KCL's metrics, which is the application's name
    unless configured.

    Facts of the CloudWatch API (2010-08-01) this rests on: a call names at most 500 metrics, and its pages are linked
    by NextToken; a datapoint stands for a period and has its start; the Id of a query starts with a lower-case letter;
    the StatusCode of a result without values may be InternalError or Forbidden. AWS charges by requested metric, not
    by call.
    """

    def __init__(self, client: Any, namespace: str, runtime: Runtime) -> None:
        self._cloudwatch, self._namespace, self._runtime = client, namespace, runtime
        self._asked = 0

    @property
    def cost(self) -> str:
        return (
            f"CloudWatch was asked for {self._asked} metrics. Its values are one to three minutes old, and are those "
            "of the workers' reads, which may be ahead of their checkpoints."
        )

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        open_ones = [lease.key for lease in leases if not lease.is_ended]
        self._asked = len(open_ones)
        now = self._runtime.utcnow_millis()
        reported: dict[str, tuple[int, float]] = {}
        for first in range(0, len(open_ones), _MAX_METRICS):
            reported |= self._newest(open_ones[first : first + _MAX_METRICS], now)
        if open_ones and not reported:
            raise TemporaryError(
                "CloudWatch has no MillisBehindLatest of the last ten minutes in the namespace "
                f"{self._namespace!r}. No worker is running, or its metrics are off, lack the dimension ShardId "
                "or go elsewhere. Do: check --namespace and --region, or use --source kinesis."
            )
        return {
            lease.key: ShardLag(0.0, "ended") if lease.is_ended else _recent(reported.get(lease.key), now)
            for lease in leases
        }

    def _newest(self, shards: Sequence[str], now_millis: int) -> dict[str, tuple[int, float]]:
        """Return the start of the newest minute with a value, epoch milliseconds, and its maximum, by shard id."""
        now = datetime.fromtimestamp(now_millis / 1000, tz=UTC)
        request: dict[str, Any] = {
            "MetricDataQueries": [self._query(f"s{at}", shard) for at, shard in enumerate(shards)],
            "StartTime": now - timedelta(seconds=_WINDOW),
            # The current minute has datapoints, too.
            "EndTime": now + timedelta(seconds=_PERIOD),
            "ScanBy": "TimestampDescending",
        }
        found: dict[str, tuple[int, float]] = {}
        while True:
            answer = answer_of(_ASKING, self._cloudwatch.get_metric_data, request, who=OPERATOR)
            try:
                for result in answer["MetricDataResults"]:
                    _fold(found, shards[int(result["Id"][1:])], result)
            except MALFORMED as error:
                failure = unreadable(error, doing=_ASKING)
                break
            if not answer.get("NextToken"):
                return found
            request["NextToken"] = answer["NextToken"]
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _query(self, name: str, shard: str) -> Mapping[str, Any]:
        dimensions = {"Operation": MILLIS_BEHIND_LATEST.operation, "ShardId": shard}
        metric = {
            "Namespace": self._namespace,
            "MetricName": MILLIS_BEHIND_LATEST.name,
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
        }
        return {"Id": name, "MetricStat": {"Metric": metric, "Period": _PERIOD, "Stat": "Maximum"}}


def _fold(found: dict[str, tuple[int, float]], shard: str, result: Mapping[str, Any]) -> None:
    if result.get("StatusCode") in _BAD:
        raise TemporaryError(f"{_ASKING} was not answered for {shard} ({result['StatusCode']}). Try again.")
    for at, value in zip(result["Timestamps"], result["Values"], strict=True):
        newest = (round(at.timestamp() * 1000), float(value))
        if shard not in found or newest[0] > found[shard][0]:
            found[shard] = newest


def _recent(reported: tuple[int, float] | None, now_millis: int) -> ShardLag:
    if reported is None:
        return ShardLag(None, "unknown", "CloudWatch has no value of the last ten minutes")
    age = (now_millis - reported[0]) / 1000
    if age > MAX_METRIC_AGE:
        return ShardLag(
            None,
            "unknown",
            f"the last value in CloudWatch is {age / 60:.0f} min old: is a worker reading it?",
        )
    return ShardLag(reported[1] / 1000, "reported")


def _some(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    return "; ".join(problems[:_MAX_PROBLEMS]) + more
