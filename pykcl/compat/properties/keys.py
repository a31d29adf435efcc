"""Every key a MultiLangDaemon reads from its file, as one table: Java's default, its verdict here, how it may be shown.

The keys are those of multilang 3.5.1 (`MultiLangDaemonConfig`, `MultiLangDaemonConfiguration` and the beans below it);
3.1.3 and 2.7.2 know fewer. They are case-sensitive, but for AwsCredentialsProvider. What is shown of a value has no
secret in it, and nothing that would break a line or a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["honoured", "mapped", "ignored, as Java does", "ignored, Java only", "unknown"]

HIDDEN = "***"
_LONGEST_VALUE = 60
_LONGEST_KEY = 80
_SECRET_NAME = re.compile(
    r"secret|passw|pwd|token|credential|auth|access.?key|api.?key|private|external.?id", re.IGNORECASE
)
# As far as the last @: who writes a password into a URL may have left out to encode it.
_USER_IN_URL = re.compile(r"(?<=://)\S*@")
_VALUE = re.compile("[=:]")
_QUERY = re.compile(r"\?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """One key of the file. value: as it may be shown. text: what it means here, and how that differs from Java."""

    key: str
    value: str
    verdict: Verdict
    text: str


def verdict_table(verdicts: Iterable[KeyVerdict]) -> str:
    """The table told at the start: a line for each key, in columns, without a final line end."""
    rows = [("KEY", "VALUE", "VERDICT", "WHAT IT MEANS HERE")]
    rows += [(row.key, row.value, row.verdict, row.text) for row in verdicts]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


def shown_key(key: str) -> str:
    return _printable(key, _LONGEST_KEY)


def shown_value(key: str, value: str) -> str:
    """A value for the table: cut, printable, without what a URL may hold of a user, hidden for a secret's name."""
    if _SECRET_NAME.search(key):
        return HIDDEN
    if "://" in value:
        value = _QUERY.sub("", _USER_IN_URL.sub(HIDDEN + "@", value))
    return _printable(value, _LONGEST_VALUE)


def shown_endpoint(url: str) -> str:
    """As `shown_value`, of a URL that need not say https://."""
    return shown_value("", _QUERY.sub("", url.rpartition("@")[2]) if "://" not in url else url)


def shown_command(command: str) -> str:
    """A command line as far as the first word that has a secret's name in it: nobody knows what stands behind that."""
    shown: list[str] = []
    words = command.split()
    for word in words:
        named = _SECRET_NAME.search(word)
        value = _VALUE.search(word, named.end()) if named else None
        shown.append(word[: value.end()] + HIDDEN if value else word)
        if named:
            if not value and len(shown) < len(words):
                shown.append(HIDDEN)
            break
    return shown_value("", " ".join(shown) + (" …" if len(shown) < len(words) else ""))


def _printable(text: str, longest: int) -> str:
    # A line end in a value (\n is an escape of the format) would forge a line of the log.
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


JAVA_ONLY: Verdict = "ignored, Java only"
AS_JAVA: Verdict = "ignored, as Java does"
_MOST = 1_000_000
"""The largest number a Config takes, of seconds too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that becomes a field of Config.

    scale: how many of the key's units one of the field's is. least, most: what the field takes, in the key's units.
    beyond: whether what lies outside is refused, or taken for the nearest that does not. zero_is_unset: Java cannot
    tell a 0 from a key that is not there. absent: what the field is without the key, where Config's default would be
    less than Java does.
    """

    field: str
    scale: int = 1
    unit: str = ""
    least: int = 1
    most: int = _MOST
    beyond: Literal["refuse", "nearest"] = "nearest"
    zero_is_unset: bool = True
    absent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """true or false, and the field of Config it becomes."""

    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. default: Java's, where the key is absent. verdict: of an ordinary value.

    effect: a field of Config; None: nothing, or what is more than that, in `interpretation`. text: what it means here.
    """

    name: str
    default: str
    verdict: Verdict
    text: str
    effect: Number | Flag | None = None


def _millis(field: str, least: int, **more: object) -> Number:
    return Number(field=field, scale=1000, unit="milliseconds", least=least, most=_MOST * 1000, **more)  # type: ignore[arg-type]


def _keys(verdict: Verdict, text: str, defaults: Mapping[str, str]) -> tuple[Key, ...]:
    """Keys of which the same is to be said."""
    return tuple(
        Key(name=name, default=default, verdict=verdict, text=text) for name, default in defaults.items()
    )


_NO_FANOUT = "pykcl reads by polling and has no enhanced fan-out consumer"
_OWN_RETRY = "pykcl retries by itself, without end, with growing pauses"
_NO_TABLE = "pykcl makes no table but the lease table"
_BALANCING = "KCL 3.x in its own mode only; pykcl shares the leases out as KCL 2.x"
_MIGRATION = "KCL 3.x only; pykcl changes nothing but leases"

_PROGRAM = (
    Key(name="executableName", default="required", verdict="honoured", text="the child of each shard"),
    Key(name="applicationName", default="required", verdict="honoured", text="application, and its lease table"),
    Key(name="streamName", default="this or streamArn", verdict="honoured", text="stream"),
    Key(name="streamArn", default="this or streamName", verdict="honoured", text="stream, as the whole ARN"),
    Key(name="processingLanguage", default="none", verdict=AS_JAVA, text="it has no effect"),
    Key(name="maxActiveThreads", default="0", verdict=JAVA_ONLY, text="pykcl has one thread for each lease"),
    Key(name="regionName", default="SDK chain", verdict="honoured", text="region of all services"),
    Key(
        name="AwsCredentialsProvider", default="required", verdict="mapped",
        text="credentials of Kinesis, and of DynamoDB if it has none of its own",
    ),
    Key(
        name="AwsCredentialsProviderDynamoDB", default="AwsCredentialsProvider", verdict="mapped",
        text="credentials of DynamoDB",
    ),
    Key(
        name="AwsCredentialsProviderCloudWatch", default="AwsCredentialsProvider", verdict="mapped",
        text="credentials of CloudWatch",
    ),
    Key(name="kinesisEndpoint", default="AWS", verdict="honoured", text="endpoint of Kinesis"),
    Key(name="dynamoDBEndpoint", default="AWS", verdict="honoured", text="endpoint of DynamoDB"),
    Key(name="tableName", default="applicationName", verdict="honoured", text="lease table"),
    Key(name="workerId", default="random UUID", verdict="honoured", text="worker identifier, unique per process"),
)  # fmt: skip

_READING = (
    Key(
        name="initialPositionInStream", default="LATEST", verdict="honoured",
        text="where an application without leases starts",
    ),
    Key(
        name="initialPositionInStreamExtended", default="none", verdict="honoured",
        text="the time at which an application without leases starts",
    ),
    Key(name="retrievalMode", default="DEFAULT", verdict="honoured", text="records are polled for"),
    Key(
        name="maxRecords", default="10000", verdict="honoured", text="records per GetRecords call and per batch",
        effect=Number(field="max_records", most=10_000, beyond="refuse"),
    ),
    Key(
        name="idleTimeBetweenReadsInMillis", default="1500", verdict="honoured",
        text="pause between reads of a shard that is caught up; one that is behind is read as fast as it allows",
        effect=_millis("idle_time_between_reads", 200),
    ),
    *_keys(
        JAVA_ONLY, "pykcl reads each shard in its own thread, with its own pace and retries",
        {
            "retryGetRecordsInSeconds": "none",
            "maxGetRecordsThreadPool": "none",
            "millisBehindLatestThresholdForReducedTps": "0",
        },
    ),
    *_keys(
        JAVA_ONLY, _NO_FANOUT,
        {
            "fanoutConfig.consumerArn": "none",
            "fanoutConfig.consumerName": "applicationName",
            "fanoutConfig.maxDescribeStreamSummaryRetries": "10",
            "fanoutConfig.maxDescribeStreamConsumerRetries": "10",
            "fanoutConfig.registerStreamConsumerRetries": "10",
            "fanoutConfig.retryBackoffMillis": "1000",
        },
    ),
    Key(
        name="callProcessRecordsEvenForEmptyRecordList", default="false", verdict="honoured",
        text="whether a read that brought nothing is delivered, too", effect=Flag(field="call_with_empty_batches"),
    ),
)  # fmt: skip

_LEASES = (
    Key(
        name="failoverTimeMillis", default="10000", verdict="honoured",
        text="a lease that stood still so long may be taken; the same in the whole fleet, Java too",
        effect=_millis("failover_time", 1000, beyond="refuse"),
    ),
    Key(
        name="leaseAssignmentIntervalMillis", default="2 x failoverTimeMillis", verdict=JAVA_ONLY, text=_BALANCING
    ),
    Key(
        name="enablePriorityLeaseAssignment", default="true", verdict=JAVA_ONLY,
        text="pykcl always does what true says: a lease long expired is taken first",
    ),
    Key(
        name="shardSyncIntervalMillis", default="60000", verdict="honoured", text="how often the shards are listed",
        effect=_millis("shard_sync_interval", 1000),
    ),
    Key(
        name="cleanupLeasesUponShardCompletion", default="true", verdict="honoured",
        text="leases of ended shards are deleted, once they are of no use",
    ),
    Key(
        name="ignoreUnexpectedChildShards", default="false", verdict=JAVA_ONLY,
        text="pykcl makes leases from whole listings only, and asks again for the rest",
    ),
    Key(
        name="maxLeasesForWorker", default="2147483647", verdict="honoured",
        text="most leases this worker holds; without the key there is no limit, as in Java",
        effect=Number(field="max_leases", absent=_MOST),
    ),
    Key(
        name="maxLeasesToStealAtOneTime", default="1", verdict="honoured",
        text="most leases taken from living owners in one pass",
        effect=Number(field="max_leases_to_steal_at_one_time"),
    ),
    *_keys(
        AS_JAVA, "lease tables are made to be paid per request",
        {"initialLeaseTableReadCapacity": "10", "initialLeaseTableWriteCapacity": "10"},
    ),
    Key(
        name="leaseTableScanTotalSegments", default="0 (automatic)", verdict=JAVA_ONLY,
        text="pykcl divides the table by itself (lease_scan_mode)",
    ),
    Key(
        name="leaseTableDeletionProtectionEnabled", default="false", verdict="honoured",
        text="of a lease table that pykcl makes; one that exists is left as it is",
        effect=Flag(field="table_deletion_protection"),
    ),
    Key(
        name="leaseTablePitrEnabled", default="false", verdict="honoured",
        text="of a lease table that pykcl makes; one that exists is left as it is",
        effect=Flag(field="point_in_time_recovery"),
    ),
    Key(
        name="maxLeaseRenewalThreads", default="20", verdict=JAVA_ONLY,
        text="pykcl has its own number of threads for it",
    ),
    *_keys(JAVA_ONLY, _OWN_RETRY, {"listShardsBackoffTimeInMillis": "1500", "maxListShardsRetryAttempts": "50"}),
    Key(
        name="parentShardPollIntervalMillis", default="10000", verdict="honoured",
        text="how often a child shard looks whether its parents have ended",
        effect=_millis("parent_shard_poll_interval", 100),
    ),
    Key(name="shardPrioritization", default="none", verdict=JAVA_ONLY, text="the name of a Java class"),
    Key(
        name="skipShardSyncAtWorkerInitializationIfLeasesExist", default="false", verdict=JAVA_ONLY,
        text="pykcl always lists the shards at its start: one call, which finds shards that nobody reads",
    ),
)  # fmt: skip

_RUNNING = (
    *_keys(
        JAVA_ONLY, _OWN_RETRY,
        {"schedulerInitializationBackoffTimeMillis": "1000", "taskBackoffTimeMillis": "500"},
    ),
    Key(
        name="logWarningForTaskAfterMillis", default="none", verdict="honoured",
        text="a call of the processor that takes longer is reported",
        effect=_millis("processor_warn_after", 100, zero_is_unset=False),
    ),
    Key(
        name="metricsBufferTimeMillis", default="10000", verdict="honoured",
        text="how often metrics are sent to CloudWatch", effect=_millis("metrics_buffer_time", 1000),
    ),
    Key(
        name="metricsMaxQueueSize", default="10000", verdict="honoured",
        text="most metrics that wait for CloudWatch; beyond it the oldest are dropped",
        effect=Number(field="metrics_queue_size"),
    ),
    Key(
        name="metricsLevel", default="DETAILED", verdict="honoured",
        text="what is published in CloudWatch, under the names of KCL; NONE: nothing",
    ),
    Key(
        name="metricsEnabledDimensions", default="ALL", verdict="honoured",
        text="what the values of metrics are told apart by",
    ),
    Key(
        name="validateSequenceNumberBeforeCheckpointing", default="false", verdict=AS_JAVA,
        text="it has no effect since KCL 2.0; pykcl always checks a sequence number",
    ),
    Key(
        name="shutdownGraceMillis", default="0", verdict="honoured",
        text="how long a stop waits for running batches and their checkpoints",
        effect=_millis("shutdown_grace", 0),
    ),
    Key(
        name="timeoutInSeconds", default="none", verdict="mapped",
        text="how long one call of the processor may take",
    ),
)  # fmt: skip

_VERSION_3 = (
    *_keys(
        JAVA_ONLY, "KCL 3.x only; pykcl releases its leases at its stop, after the last checkpoint",
        {"isGracefulLeaseHandoffEnabled": "true", "gracefulLeaseHandoffTimeoutMillis": "30000"},
    ),
    Key(
        name="clientVersionConfig", default="CLIENT_VERSION_CONFIG_3X", verdict=JAVA_ONLY,
        text="pykcl works as KCL 2.x; Java 3.x beside it needs a mode that is compatible with 2.x",
    ),
    *_keys(
        JAVA_ONLY, _MIGRATION,
        {"migrateAllEntitiesToLeaseTable": "false", "tableMigrationCompleteBakeTimeSeconds": "86400"},
    ),
    Key(
        name="coordinatorStateTableName", default="applicationName-CoordinatorState", verdict="honoured",
        text="where pykcl looks whether a Java 3.0-3.4 fleet has left the mode of 2.x",
    ),
    *_keys(
        JAVA_ONLY, _NO_TABLE,
        {
            "workerMetricsTableName": "applicationName-WorkerMetricStats",
            **{
                f"{table}{what}": default
                for table in ("coordinatorState", "workerMetrics")
                for what, default in (
                    ("BillingMode", "PAY_PER_REQUEST"), ("ReadCapacity", "none"), ("WriteCapacity", "none"),
                    ("PointInTimeRecoveryEnabled", "false"), ("DeletionProtectionEnabled", "false"), ("Tags", "none"),
                )
            },
        },
    ),
    *_keys(
        JAVA_ONLY, _BALANCING,
        {
            "inMemoryWorkerMetricsCaptureFrequencyMillis": "1000",
            "workerMetricsReporterFreqInMillis": "30000",
            "noOfPersistedMetricsPerWorkerMetrics": "10",
            "disableWorkerMetrics": "false",
            "maxThroughputPerHostKBps": "unlimited",
            "dampeningPercentage": "60",
            "reBalanceThresholdPercentage": "10",
            "allowThroughputOvershoot": "true",
            "varianceBalancingFrequency": "3",
            "workerMetricsEMAAlpha": "0.5",
            "staleWorkerMetricsEntryCleanupDuration": "P1D",
        },
    ),
)  # fmt: skip

KEYS: Mapping[str, Key] = {
    key.name: key for part in (_PROGRAM, _READING, _LEASES, _RUNNING, _VERSION_3) for key in part
}
"""All of them, by name."""

POLLING_KEYS = (
    "maxRecords", "idleTimeBetweenReadsInMillis", "millisBehindLatestThresholdForReducedTps",
    "retryGetRecordsInSeconds", "maxGetRecordsThreadPool",
)  # fmt: skip
"""Any of them makes Java poll where retrievalMode does not say otherwise; of the first three a 0 does not count."""

NO_KEYS: Mapping[str, str] = {
    **dict.fromkeys(
        ("leaseCleanupIntervalMillis", "completedLeaseCleanupIntervalMillis", "garbageLeaseCleanupIntervalMillis"),
        "an option of KCL that its daemon does not read",
    ),
    **dict.fromkeys(
        ("kinesisClientConfig", "dynamoDBClientConfig", "cloudWatchClientConfig", "userAgent", "useragent"),
        "a key of KCL 1.x; Java's daemon has not read it since",
    ),
    "cloudWatchEndpoint": "a key of no daemon; its name is cloudWatchClient.endpointOverride",
}  # fmt: skip
"""What is found in files though no daemon reads it: name -> what it is."""


_BY_HAND: Mapping[str, tuple[str, ...]] = {
    "application": ("applicationName",),
    "stream": ("streamArn", "streamName"),
    "table_name": ("tableName",),
    "region": ("regionName",),
    "worker_id": ("workerId",),
    "initial_position": ("initialPositionInStreamExtended", "initialPositionInStream"),
    "cleanup_interval": ("cleanupLeasesUponShardCompletion",),
    "processor_timeout": ("timeoutInSeconds",),
    "coordinator_state_table": ("coordinatorStateTableName",),
    "metrics_level": ("metricsLevel",),
    "metrics_dimensions": ("metricsEnabledDimensions",),
}
"""Of the keys that are more than a number or a flag."""

KEYS_OF_FIELD: Mapping[str, tuple[str, ...]] = {
    **_BY_HAND,
    **{key.effect.field: (key.name,) for key in KEYS.values() if key.effect is not None},
}
"""Field of Config -> keys. A field that no key decides is not in it."""
