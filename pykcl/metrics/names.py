"""The catalogue: every metric under the name, operation, dimension, unit and level that KCL gives it, and ours.

Looked up in KCL 2.7.2 and 3.5.1: `ProcessTask`, `KinesisDataFetcher`, `PrefetchRecordsPublisher`,
`DynamoDBLeaseTaker`, `DynamoDBLeaseRenewer`, `InitializeTask`, `ShutdownTask`, `ShardSyncTask`,
`HierarchicalShardSyncer`, `PeriodicShardSyncManager`, `MetricsCollectingTaskDecorator`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pykcl.metrics.choices import OPERATION

Unit = Literal["Count", "Milliseconds", "Bytes"]
Level = Literal["SUMMARY", "DETAILED"]
Dimension = Literal["ShardId", "WorkerIdentifier", "Cause"]


# Compared by identity: it is the key of every statistic, and is looked up several times for each page.
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measure:
    """One metric of one operation.

    dimension: what its values are told apart by, besides the operation. Those of "Cause" also have WorkerIdentifier.
    is_state: it tells how things are, not how much has happened. is_ours: KCL has nothing of the kind.
    is_labelled: whether a value of it comes with a label: a shard, or a cause.
    """

    operation: str
    name: str
    unit: Unit
    level: Level
    dimension: Dimension | None
    text: str
    is_state: bool = False
    is_ours: bool = False
    # Kept, not worked out: it is asked for with each value.
    is_labelled: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_labelled", self.dimension in ("ShardId", "Cause"))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Their names, in the order of the catalogue."""
        if self.dimension is None:
            return (OPERATION,)
        more = ("WorkerIdentifier",) if self.dimension == "Cause" else ()
        return (OPERATION, *more, self.dimension)


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Something that succeeds or not, and takes its time: KCL's pair of `Success` (1 or 0) and `Time`."""

    success: Measure
    time: Measure


_ALL: list[Measure] = []


def _one(
    operation: str, name: str, unit: Unit, level: Level, dimension: Dimension | None, text: str, **more: bool
) -> Measure:
    measure = Measure(
        operation=operation, name=name, unit=unit, level=level, dimension=dimension, text=text, **more
    )
    _ALL.append(measure)
    return measure


def _timed(operation: str, name: str, level: Level, dimension: Dimension | None, text: str) -> Timed:
    prefix = f"{name}." if name else ""
    return Timed(
        _one(operation, f"{prefix}Success", "Count", level, dimension, f"{text}: 1 if it succeeded, else 0"),
        _one(operation, f"{prefix}Time", "Milliseconds", level, dimension, f"{text}: how long it took"),
    )


_P, _S, _W = "ProcessTask", "ShardId", "WorkerIdentifier"

RECORDS_PROCESSED = _one(
    _P, "RecordsProcessed", "Count", "SUMMARY", "ShardId", "user records whose batch returned"
)
DATA_BYTES_PROCESSED = _one(
    _P,
    "DataBytesProcessed",
    "Bytes",
    "SUMMARY",
    "ShardId",
    "their data, without keys and what an aggregate adds",
)
MILLIS_BEHIND_LATEST = _one(
    _P, "MillisBehindLatest", "Milliseconds", "SUMMARY", "ShardId",
    "how far behind the tip of the shard the page was, as Kinesis says with each", is_state=True,
)  # fmt: skip
PROCESS_RECORDS_TIME = _one(
    _P, "RecordProcessor.processRecords.Time", "Milliseconds", "SUMMARY", "ShardId",
    "one call of process_records, also one that raised",
)  # fmt: skip
PROCESS_TASK = _timed(_P, "", "SUMMARY", "ShardId", "one page delivered and its checkpoint written")
GET_RECORDS = _timed(_P, "KinesisDataFetcher.getRecords", "DETAILED", "ShardId", "one GetRecords call")
GET_SHARD_ITERATOR = _timed(
    _P, "KinesisDataFetcher.getShardIterator", "DETAILED", "ShardId", "one GetShardIterator call"
)
EXPIRED_ITERATOR = _one(
    _P, "ExpiredIterator", "Count", "SUMMARY", "ShardId", "shard iterators that Kinesis called too old"
)
UPDATE_LEASE = _timed(_P, "UpdateLease", "DETAILED", "ShardId", "one checkpoint written")
PROCESSOR_RETRIES = _one(
    _P, "ProcessorRetries", "Count", "SUMMARY", "ShardId", "calls of the processor that raised and are made again",
    is_ours=True,
)  # fmt: skip
SKIPPED_RECORDS = _one(
    _P, "SkippedRecords", "Count", "SUMMARY", "ShardId", 'user records passed over, as on_error="skip" says',
    is_ours=True,
)  # fmt: skip
PROCESSOR_STALLED = _one(
    _P, "ProcessorStalled", "Count", "SUMMARY", "ShardId",
    "calls that had not returned after processor_warn_after, once each", is_ours=True,
)  # fmt: skip
DATA_LOST = _one(
    _P, "DataLost", "Count", "SUMMARY", "ShardId",
    "times that records were trimmed from the stream before they were read", is_ours=True,
)  # fmt: skip
APPLICATION_BEHIND_LATEST = _one(
    "ApplicationTracker", "MillisBehindLatest", "Milliseconds", "SUMMARY", None,
    "the same of all shards together: its maximum is the lag of the application", is_state=True,
)  # fmt: skip

_R = "RenewAllLeases"
CURRENT_LEASES = _one(
    _R, "CurrentLeases", "Count", "SUMMARY", "WorkerIdentifier", "leases held", is_state=True
)
LOST_LEASES = _one(
    _R, "LostLeases", "Count", "SUMMARY", "WorkerIdentifier", "leases lost, for whatever cause"
)
RENEW_ALL_LEASES = _timed(
    _R,
    "",
    "SUMMARY",
    "WorkerIdentifier",
    "the heartbeats of half the fail-over time; Time is the slowest one's",
)
RENEW_LEASE = _timed(_R, "RenewLease", "DETAILED", "WorkerIdentifier", "one heartbeat")
LEASES_LOST_BY_CAUSE = _one(
    _R, "LeasesLostByCause", "Count", "SUMMARY", "Cause", "leases lost, by cause", is_ours=True
)

_T = "TakeLeases"
TAKEN_LEASES = _one(_T, "TakenLeases", "Count", "SUMMARY", "WorkerIdentifier", "leases taken")
UNTAKEN_LEASES = _one(
    _T, "UntakenLeases", "Count", "SUMMARY", "WorkerIdentifier", "leases not taken because they changed first"
)
EXPIRED_LEASES = _one(
    _T, "ExpiredLeases", "Count", "SUMMARY", "WorkerIdentifier", "leases anybody may take: expired, or without owner",
    is_state=True,
)  # fmt: skip
LEASE_SPILLOVER = _one(
    _T, "LeaseSpillover", "Count", "SUMMARY", "WorkerIdentifier", "leases of the fair share beyond max_leases",
    is_state=True,
)  # fmt: skip
LEASES_TO_TAKE = _one(
    _T, "LeasesToTake", "Count", "DETAILED", "WorkerIdentifier", "leases chosen to be taken", is_state=True
)
NEEDED_LEASES = _one(
    _T,
    "NeededLeases",
    "Count",
    "DETAILED",
    "WorkerIdentifier",
    "leases missing to the fair share",
    is_state=True,
)
NUM_WORKERS = _one(
    _T,
    "NumWorkers",
    "Count",
    "SUMMARY",
    "WorkerIdentifier",
    "workers with a live lease, and this one",
    is_state=True,
)
TOTAL_LEASES = _one(
    _T, "TotalLeases", "Count", "DETAILED", "WorkerIdentifier", "rows of the lease table that are leases",
    is_state=True,
)  # fmt: skip
VERY_OLD_LEASES = _one(
    _T, "VeryOldLeases", "Count", "SUMMARY", "WorkerIdentifier",
    "leases anybody may have taken for three fail-over times", is_state=True,
)  # fmt: skip
LIST_LEASES = _timed(_T, "ListLeases", "DETAILED", "WorkerIdentifier", "one scan of the lease table")
TAKE_LEASE = _timed(_T, "TakeLease", "DETAILED", "WorkerIdentifier", "one lease taken, or refused")
HAND_OVER_TIME = _one(
    _T, "HandOver.Time", "Milliseconds", "SUMMARY", "WorkerIdentifier",
    "from when a lease that had an owner was last seen to move until its next owner had an answer from Kinesis",
    is_ours=True,
)  # fmt: skip

INITIALIZE_TIME = _one(
    "InitializeTask",
    "RecordProcessor.initialize.Time",
    "Milliseconds",
    "SUMMARY",
    None,
    "one call of initialize",
)
INITIALIZE_TASK = _timed("InitializeTask", "", "SUMMARY", None, "the same")
SHUTDOWN_TIME = _one(
    "ShutdownTask", "RecordProcessor.shutdown.Time", "Milliseconds", "SUMMARY", None,
    "one call of shard_ended, lease_lost or shutdown_requested",
)  # fmt: skip
SHUTDOWN_TASK = _timed("ShutdownTask", "", "SUMMARY", None, "the same")
UPDATE_LEASE_AT_END = _timed(
    "ShutdownTask",
    "UpdateLease",
    "DETAILED",
    "ShardId",
    "one checkpoint written at the end of a shard or of the worker",
)
CREATE_LEASE_AT_END = _timed(
    "ShutdownTask", "CreateLease", "DETAILED", None, "the lease of one child shard put"
)
BLOCK_ON_PARENT = _timed(
    "BlockOnParentShardTask", "", "SUMMARY", None, "one look whether the parents of a shard have ended"
)
SHARD_SYNC = _timed("ShardSyncTask", "", "SUMMARY", None, "the shards listed and missing leases created")
SYNC_SHARDS = _one(
    "ShardSyncTask", "SyncShards.Success", "Count", "DETAILED", None, "the same, by its other name"
)
CREATE_LEASE = _timed("ShardSyncTask", "CreateLease", "DETAILED", None, "one lease put")
NUM_STREAMS_TO_SYNC = _one(
    "PeriodicShardSyncManager", "NumStreamsToSync", "Count", "SUMMARY", None,
    "1 if this audit, the leader's, had the shards listed at once, else 0", is_state=True,
)  # fmt: skip
PARTIAL_LEASES = _one(
    "PeriodicShardSyncManager", "NumStreamsWithPartialLeases", "Count", "SUMMARY", None,
    "1 if this audit found hash keys without a lease, else 0", is_state=True,
)  # fmt: skip
PERIODIC_SHARD_SYNC = _timed(
    "PeriodicShardSyncManager", "", "SUMMARY", None, "one audit of the leases by the leader"
)
DROPPED_METRICS = _one(
    "PublishMetrics", "DroppedMetrics", "Count", "SUMMARY", "WorkerIdentifier",
    "values that CloudWatch did not take in time and that were dropped", is_ours=True,
)  # fmt: skip

CATALOGUE: tuple[Measure, ...] = tuple(_ALL)
"""All of them, in the order of the documentation."""
