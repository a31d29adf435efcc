"""The catalog: every metric under the name, operation, dimension, unit and level that KCL or KPL gives it, and ours.

Looked up in KCL 2.7.2 and 3.5.1: `ProcessTask`, `KinesisDataFetcher`, `PrefetchRecordsPublisher`,
`DynamoDBLeaseTaker`, `DynamoDBLeaseRenewer`, `InitializeTask`, `ShutdownTask`, `ShardSyncTask`,
`HierarchicalShardSyncer`, `PeriodicShardSyncManager`, `MetricsCollectingTaskDecorator`. Those of a producer have the
names that AWS documents for the Kinesis Producer Library (KPL).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

MetricsLevel = Literal["NONE", "SUMMARY", "DETAILED"]
SINKS = ("cloudwatch", "prometheus", "otel")
ALL = "ALL"
OPERATION = "Operation"
STREAM_NAME = "StreamName"
PRODUCER = "Producer"
"""Stands for the operation of what a producer measures; it is no dimension there."""
DIMENSIONS = (OPERATION, "ShardId", "WorkerIdentifier", "StreamId", "Cause")
"""What `metrics_dimensions` may name. StreamId is Java's, of workers with several streams; here it means nothing."""
PRODUCER_DIMENSIONS = (STREAM_NAME, "ShardId", "ErrorCode")
PRODUCER_NAMESPACE = "KinesisProducerLibrary"
"""Namespace in CloudWatch, as KPL's."""
_NAMESPACE = re.compile(r"(?!AWS/)(?!:)[A-Za-z0-9_.:/#-]{1,255}\Z")


def parts(text: str) -> tuple[str, ...]:
    """Return the parts of a list separated by commas."""
    return tuple(part.strip() for part in text.split(","))


def metrics_problem(metrics: str, dimensions: str, namespace: str | None) -> str | None:
    """Return what is wrong with these options, as text of a ConfigError; None: nothing."""
    sinks = SINKS if "," in metrics else ("none", *SINKS)
    for name, text, allowed in (
        ("metrics", metrics, sinks),
        ("metrics_dimensions", dimensions, (ALL, *DIMENSIONS)),
    ):
        for part in parts(text):
            if part not in allowed:
                return f"{name}={text[:200]!r}: {part[:200]!r} is none of {', '.join(allowed)}."
    if namespace is not None and not _NAMESPACE.match(namespace):
        return (
            f"metrics_namespace={namespace[:300]!r} is no namespace of CloudWatch: use 1 to 255 of A-Z a-z 0-9 _ . - "
            "/ # and :, with neither a colon nor AWS/ in front."
        )
    return None


Unit = Literal["Count", "Milliseconds", "Bytes", "Percent"]
Level = Literal["SUMMARY", "DETAILED"]
Dimension = Literal["ShardId", "WorkerIdentifier", "Cause", "ErrorCode"]


# Compared by identity: it is the key of every statistic, and is looked up several times for each page.
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measure:
    """One metric of one operation.

    dimension: the one of its values besides the operation. Those of "Cause" also have WorkerIdentifier.
    is_state: a present state, not a count of what happened. is_ours: KCL has nothing of the kind.
    is_labelled: whether a value of it comes with a label: a shard, a cause, or an error. text: a plain sentence for
    dashboards. has_total: CloudWatch gets the values of all labels together, too, as of KPL.
    """

    operation: str
    name: str
    unit: Unit
    level: Level
    dimension: Dimension | None
    text: str
    is_state: bool = False
    is_ours: bool = False
    has_total: bool = False
    # Kept, not worked out: it is asked for with each value.
    is_labelled: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_labelled", self.dimension in ("ShardId", "Cause", "ErrorCode"))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Their names, in the order of the catalogue."""
        names = [STREAM_NAME if self.operation == PRODUCER else OPERATION]
        if self.dimension == "Cause":
            names.append("WorkerIdentifier")
        return (*names, self.dimension) if self.dimension is not None else tuple(names)

    def value_of(self, dimension: str, label: str, owner: str) -> str:
        """Return the value of one of its dimensions. owner: the worker, or the stream of the producer."""
        if dimension == OPERATION:
            return self.operation
        return owner if dimension in ("WorkerIdentifier", STREAM_NAME) else label


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


def _timed(
    operation: str,
    name: str,
    level: Level,
    dimension: Dimension | None,
    one: str,
    many: str,
    **more: bool,
) -> Timed:
    """one, many: what is timed, such as "a heartbeat" and "heartbeats"."""
    prefix = f"{name}." if name else ""
    return Timed(
        _one(
            operation,
            f"{prefix}Success",
            "Count",
            level,
            dimension,
            f"Number of {many} that succeeded.",
            **more,
        ),
        _one(operation, f"{prefix}Time", "Milliseconds", level, dimension, f"Time that {one} took.", **more),
    )


_P = "ProcessTask"
_S: Dimension = "ShardId"

RECORDS_PROCESSED = _one(
    _P, "RecordsProcessed", "Count", "SUMMARY", "ShardId",
    "Number of user records in batches that process_records returned from.",
)  # fmt: skip
DATA_BYTES_PROCESSED = _one(
    _P, "DataBytesProcessed", "Bytes", "SUMMARY", "ShardId",
    "Bytes of data in the records processed, without partition keys and the overhead of aggregation.",
)  # fmt: skip
MILLIS_BEHIND_LATEST = _one(
    _P, "MillisBehindLatest", "Milliseconds", "SUMMARY", "ShardId",
    "Lag of the last page behind the tip of the shard, as Kinesis reports with each page.", is_state=True,
)  # fmt: skip
PROCESS_RECORDS_TIME = _one(
    _P, "RecordProcessor.processRecords.Time", "Milliseconds", "SUMMARY", "ShardId",
    "Time that a call of process_records took, also one that raised.",
)  # fmt: skip
PROCESS_TASK = _timed(
    _P, "", "SUMMARY", "ShardId", "the delivery of a page with the checkpoint",
    "deliveries of a page with the checkpoint",
)  # fmt: skip
GET_RECORDS = _timed(
    _P, "KinesisDataFetcher.getRecords", "DETAILED", "ShardId", "a GetRecords call", "GetRecords calls"
)
GET_SHARD_ITERATOR = _timed(
    _P, "KinesisDataFetcher.getShardIterator", "DETAILED", "ShardId", "a GetShardIterator call",
    "GetShardIterator calls",
)  # fmt: skip
SUBSCRIBE_TO_SHARD = _timed(
    _P,
    "SubscribeToShard",
    "DETAILED",
    "ShardId",
    "a SubscribeToShard call",
    "SubscribeToShard calls",
    is_ours=True,
)
SUBSCRIPTION_SILENT = _one(
    _P, "SubscriptionSilent", "Count", "SUMMARY", "ShardId",
    "Number of subscriptions given up because nothing came for 30 s, not even a report of progress.", is_ours=True,
)  # fmt: skip
EVENT_DELAY = _one(
    _P, "EventDelay", "Milliseconds", "SUMMARY", "ShardId",
    "Time from the arrival of the newest record of an event in Kinesis until the worker took the event, by the clock "
    "of the worker.", is_ours=True,
)  # fmt: skip
EXPIRED_ITERATOR = _one(
    _P, "ExpiredIterator", "Count", "SUMMARY", "ShardId",
    "Number of shard iterators that Kinesis refused as expired.",
)  # fmt: skip
UPDATE_LEASE = _timed(_P, "UpdateLease", "DETAILED", "ShardId", "a checkpoint write", "checkpoint writes")
PROCESSOR_RETRIES = _one(
    _P, "ProcessorRetries", "Count", "SUMMARY", "ShardId", "Number of processor calls that raised and are retried.",
    is_ours=True,
)  # fmt: skip
SKIPPED_RECORDS = _one(
    _P, "SkippedRecords", "Count", "SUMMARY", "ShardId", 'Number of user records skipped because of on_error="skip".',
    is_ours=True,
)  # fmt: skip
RECORDS_DEAD_LETTERED = _one(
    _P, "RecordsDeadLettered", "Count", "SUMMARY", "ShardId",
    "Number of user records that were given up and kept as dead letters.", is_ours=True,
)  # fmt: skip
RECORDS_DISCARDED = _one(
    _P, "RecordsDiscarded", "Count", "SUMMARY", "ShardId",
    'Number of user records that were given up and dropped because of dead_letters="discard".', is_ours=True,
)  # fmt: skip
BATCH_SPLITS = _one(
    _P, "BatchSplits", "Count", "SUMMARY", "ShardId", "Number of batches that failed and were split.", is_ours=True,
)  # fmt: skip
RECORDS_FILTERED = _one(
    _P, "RecordsFiltered", "Count", "SUMMARY", "ShardId",
    "Number of user records that the filter of a Lambda handler refused.", is_ours=True,
)  # fmt: skip
LANE_SHARE = _one(
    _P, "LaneShare", "Percent", "SUMMARY", "ShardId",
    "Number of records in the largest lane, in percent of the batch, for a handler with concurrency= above 1.",
    is_state=True, is_ours=True,
)  # fmt: skip
PROCESSOR_STALLED = _one(
    _P, "ProcessorStalled", "Count", "SUMMARY", "ShardId",
    "Number of processor calls that ran longer than processor_warn_after.", is_ours=True,
)  # fmt: skip
SHARD_PAUSED = _one(
    _P, "ShardPaused", "Count", "SUMMARY", "ShardId",
    "1 if the application has paused the shard, else 0.", is_state=True, is_ours=True,
)  # fmt: skip
DATA_LOST = _one(
    _P, "DataLost", "Count", "SUMMARY", "ShardId",
    "Number of times that the stream trimmed records before they were read.", is_ours=True,
)  # fmt: skip
APPLICATION_BEHIND_LATEST = _one(
    "ApplicationTracker", "MillisBehindLatest", "Milliseconds", "SUMMARY", None,
    "Lag of each page of any shard; the maximum is the lag of the application.", is_state=True,
)  # fmt: skip

_R = "RenewAllLeases"
CURRENT_LEASES = _one(
    _R, "CurrentLeases", "Count", "SUMMARY", "WorkerIdentifier", "Number of leases that this worker holds.",
    is_state=True,
)  # fmt: skip
LOST_LEASES = _one(
    _R, "LostLeases", "Count", "SUMMARY", "WorkerIdentifier", "Number of leases lost, for any cause."
)
RENEW_ALL_LEASES = _timed(
    _R, "", "SUMMARY", "WorkerIdentifier", "the slowest heartbeat of half a failover time",
    "rounds of heartbeats, one in half a failover time,",
)  # fmt: skip
RENEW_LEASE = _timed(_R, "RenewLease", "DETAILED", "WorkerIdentifier", "a heartbeat", "heartbeats")
LEASES_LOST_BY_CAUSE = _one(
    _R, "LeasesLostByCause", "Count", "SUMMARY", "Cause", "Number of leases lost for the cause that the label names.",
    is_ours=True,
)  # fmt: skip

LEASES_IN_DOUBT = _one(
    _R, "LeasesInDoubt", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of leases in doubt, as no heartbeat was answered in time.", is_state=True,
    is_ours=True,
)  # fmt: skip

SUBSCRIPTIONS = _one(
    _R, "Subscriptions", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of shards that this worker is subscribed to by enhanced fan-out.", is_state=True, is_ours=True,
)  # fmt: skip

_T = "TakeLeases"
TAKEN_LEASES = _one(_T, "TakenLeases", "Count", "SUMMARY", "WorkerIdentifier", "Number of leases taken.")
UNTAKEN_LEASES = _one(
    _T, "UntakenLeases", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of leases not taken because another worker changed the row first.",
)  # fmt: skip
EXPIRED_LEASES = _one(
    _T, "ExpiredLeases", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of leases that any worker may take: expired, or without an owner.", is_state=True,
)  # fmt: skip
LEASE_SPILLOVER = _one(
    _T, "LeaseSpillover", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of leases of the fair share of this worker that exceed max_leases.", is_state=True,
)  # fmt: skip
LEASES_TO_TAKE = _one(
    _T, "LeasesToTake", "Count", "DETAILED", "WorkerIdentifier", "Number of leases that the last pass chose to take.",
    is_state=True,
)  # fmt: skip
NEEDED_LEASES = _one(
    _T, "NeededLeases", "Count", "DETAILED", "WorkerIdentifier",
    "Number of leases that this worker lacks for a fair share.", is_state=True,
)  # fmt: skip
NUM_WORKERS = _one(
    _T, "NumWorkers", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of workers that hold a live lease, and this worker.", is_state=True,
)  # fmt: skip
TOTAL_LEASES = _one(
    _T, "TotalLeases", "Count", "DETAILED", "WorkerIdentifier", "Number of leases in the lease table.", is_state=True,
)  # fmt: skip
VERY_OLD_LEASES = _one(
    _T, "VeryOldLeases", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of leases that nobody has taken for three failover times.", is_state=True,
)  # fmt: skip
LIST_LEASES = _timed(
    _T, "ListLeases", "DETAILED", "WorkerIdentifier", "a scan of the lease table", "scans of the lease table"
)
TAKE_LEASE = _timed(
    _T, "TakeLease", "DETAILED", "WorkerIdentifier", "an attempt to take a lease", "attempts to take a lease"
)
HAND_OVER_TIME = _one(
    _T, "HandOver.Time", "Milliseconds", "SUMMARY", "WorkerIdentifier",
    "Time from the last heartbeat seen of the former owner until the next owner of the lease read from Kinesis.",
    is_ours=True,
)  # fmt: skip

INITIALIZE_TIME = _one(
    "InitializeTask", "RecordProcessor.initialize.Time", "Milliseconds", "SUMMARY", None,
    "Time that a call of initialize took.",
)  # fmt: skip
INITIALIZE_TASK = _timed(
    "InitializeTask", "", "SUMMARY", None, "the initialization of a shard", "initializations of a shard"
)
SHUTDOWN_TIME = _one(
    "ShutdownTask", "RecordProcessor.shutdown.Time", "Milliseconds", "SUMMARY", None,
    "Time that a call of shard_ended, lease_lost or shutdown_requested took.",
)  # fmt: skip
SHUTDOWN_TASK = _timed(
    "ShutdownTask", "", "SUMMARY", None, "the shutdown of a processor", "shutdowns of a processor"
)
UPDATE_LEASE_AT_END = _timed(
    "ShutdownTask", "UpdateLease", "DETAILED", "ShardId", "the last checkpoint write of a shard or of the worker",
    "last checkpoint writes of a shard or of the worker",
)  # fmt: skip
CREATE_LEASE_AT_END = _timed(
    "ShutdownTask", "CreateLease", "DETAILED", None, "the creation of the lease of a child shard",
    "creations of the lease of a child shard",
)  # fmt: skip
BLOCK_ON_PARENT = _timed(
    "BlockOnParentShardTask", "", "SUMMARY", None, "a check that the parents of a shard have ended",
    "checks that the parents of a shard have ended",
)  # fmt: skip
SHARD_SYNC = _timed("ShardSyncTask", "", "SUMMARY", None, "a shard sync", "shard syncs")
SYNC_SHARDS = _one(
    "ShardSyncTask", "SyncShards.Success", "Count", "DETAILED", None,
    "Number of streams with a shard sync that succeeded.",
)  # fmt: skip
CREATE_LEASE = _timed(
    "ShardSyncTask", "CreateLease", "DETAILED", None, "the creation of a lease", "creations of a lease"
)
NUM_STREAMS_TO_SYNC = _one(
    "PeriodicShardSyncManager", "NumStreamsToSync", "Count", "SUMMARY", None,
    "1 if the last audit by the leader started a shard sync, else 0.", is_state=True,
)  # fmt: skip
PARTIAL_LEASES = _one(
    "PeriodicShardSyncManager", "NumStreamsWithPartialLeases", "Count", "SUMMARY", None,
    "1 if the last audit by the leader found hash keys without a lease, else 0.", is_state=True,
)  # fmt: skip
PERIODIC_SHARD_SYNC = _timed(
    "PeriodicShardSyncManager", "", "SUMMARY", None, "an audit of the leases by the leader",
    "audits of the leases by the leader",
)  # fmt: skip
DROPPED_METRICS = _one(
    "PublishMetrics", "DroppedMetrics", "Count", "SUMMARY", "WorkerIdentifier",
    "Number of values dropped because CloudWatch did not accept them in time.", is_ours=True,
)  # fmt: skip


def _put(
    name: str, unit: Unit, level: Level, dimension: Dimension | None, text: str, **more: bool
) -> Measure:
    return _one(PRODUCER, name, unit, level, dimension, text, has_total=dimension == "ShardId", **more)


USER_RECORDS_RECEIVED = _put(
    "UserRecordsReceived", "Count", "DETAILED", None, "Number of user records that the producer took."
)
USER_RECORDS_PENDING = _put(
    "UserRecordsPending", "Count", "DETAILED", None, "Number of user records whose outcome is not known.",
    is_state=True,
)  # fmt: skip
USER_RECORDS_PUT = _put("UserRecordsPut", "Count", "SUMMARY", _S, "Number of user records that were put.")
USER_RECORDS_DATA_PUT = _put(
    "UserRecordsDataPut", "Bytes", "DETAILED", _S, "Bytes of the data of user records that were put."
)
KINESIS_RECORDS_PUT = _put(
    "KinesisRecordsPut", "Count", "SUMMARY", _S, "Number of Kinesis records that were put, an aggregate being one."
)  # fmt: skip
KINESIS_RECORDS_DATA_PUT = _put(
    "KinesisRecordsDataPut", "Bytes", "DETAILED", _S, "Bytes of the data of Kinesis records that were put."
)
ERRORS_BY_CODE = _put(
    "ErrorsByCode", "Count", "SUMMARY", "ErrorCode",
    "Number of Kinesis records that were refused or had no answer, and of user records that were given up "
    "(NotDelivered), by the error that the label names.",
)  # fmt: skip
ALL_ERRORS = _put(
    "AllErrors", "Count", "SUMMARY", _S, "The same, of all errors together; by the shard that was meant."
)
RETRIES_PER_RECORD = _put(
    "RetriesPerRecord", "Count", "DETAILED", _S,
    "Number of requests besides the first one, on average of the user records that were put or given up.",
    is_state=True,
)  # fmt: skip
BUFFERING_TIME = _put(
    "BufferingTime", "Milliseconds", "SUMMARY", _S,
    "Time from put until the first request with the record, of the record that waited longest.",
)  # fmt: skip
REQUEST_TIME = _put("RequestTime", "Milliseconds", "DETAILED", None, "Time that a PutRecords request took.")
USER_RECORDS_PER_KINESIS_RECORD = _put(
    "UserRecordsPerKinesisRecord", "Count", "DETAILED", _S,
    "Number of user records in a Kinesis record, on average of a request.", is_state=True,
)  # fmt: skip
KINESIS_RECORDS_PER_REQUEST = _put(
    "KinesisRecordsPerPutRecordsRequest", "Count", "DETAILED", None, "Number of Kinesis records in a request.",
    is_state=True,
)  # fmt: skip
USER_RECORDS_PER_REQUEST = _put(
    "UserRecordsPerPutRecordsRequest", "Count", "DETAILED", None, "Number of user records in a request.",
    is_state=True,
)  # fmt: skip

CATALOGUE: tuple[Measure, ...] = tuple(one for one in _ALL if one.operation != PRODUCER)
"""All of a worker, in the order of the documentation."""
PRODUCER_CATALOGUE: tuple[Measure, ...] = tuple(one for one in _ALL if one.operation == PRODUCER)
"""All of a producer, likewise."""


_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between a small letter and a capital, and before the last capital of a run that a small letter follows."""


def snake_case(name: str) -> str:
    """`KinesisDataFetcher.getRecords` as kinesis_data_fetcher.get_records: dots stay."""
    return _BORDER.sub("_", name).lower()
