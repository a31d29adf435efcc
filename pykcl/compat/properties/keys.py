"""Table of every key that a MultiLangDaemon reads from its file: Java's default, the verdict here, how to show it.

The keys are those of multilang 3.5.1 (`MultiLangDaemonConfig`, `MultiLangDaemonConfiguration` and the beans below it);
3.1.3 and 2.7.2 know fewer. Keys are case-sensitive, except AwsCredentialsProvider. A shown value contains no
secret, and no characters that break a line or drive a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["honoured", "mapped", "ignored, as Java does", "ignored, Java only", "unknown"]
Meaning = tuple[Verdict, str]
"""Of one key and its value: the verdict, and what it means here."""

HIDDEN = "***"
_LONGEST_VALUE = 60
_LONGEST_KEY = 80
_SECRET_NAME = re.compile(
    r"secret|passw|pwd|token|credential|auth|access.?key|api.?key|private|external.?id", re.IGNORECASE
)
# As far as the last @: a password in a URL may contain an @ that is not encoded.
_USER_IN_URL = re.compile(r"(?<=://)\S*@")
_VALUE = re.compile("[=:]")
_QUERY = re.compile(r"\?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """One key of the file. value: as it may be shown. text: what it means here, and how that differs from Java.

    literal: the part of a value with an effect that is taken as it stands, though a shell would replace it, and the
    remedy.
    """

    key: str
    value: str
    verdict: Verdict
    text: str
    literal: str = ""


def verdict_table(verdicts: Iterable[KeyVerdict]) -> str:
    """Return the table that is logged at start-up: a line per key, in columns, without a final line end."""
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
    """Return the value for the table: cut, printable, without the user of a URL, hidden if the key names a secret."""
    if _SECRET_NAME.search(key):
        return HIDDEN
    if "://" in value:
        value = _QUERY.sub("", _USER_IN_URL.sub(HIDDEN + "@", value))
    return _printable(value, _LONGEST_VALUE)


def shown_endpoint(url: str) -> str:
    """`shown_value` for a URL that may lack https://."""
    return shown_value("", _QUERY.sub("", url.rpartition("@")[2]) if "://" not in url else url)


def shown_command(command: str) -> str:
    """Return the command line up to the first word that names a secret: what follows it may be the secret."""
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
"""The largest number that a Config accepts, also for seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that becomes a field of Config.

    scale: number of the key's units in one unit of the field. least, most: range of the field, in the key's units.
    beyond: a value outside of the range is refused, or replaced by the nearest one inside. zero_is_unset: Java treats 0
    as an absent key. absent: value of the field without the key, where Config's default would do less than Java.
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
    """true or false that becomes a field of Config."""

    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. default: Java's value without the key. verdict: of a valid value. text: what the key means here.

    effect: the field of Config that the value becomes; None for no effect, or for a rule in `interpretation`.
    """

    name: str
    default: str
    verdict: Verdict
    text: str
    effect: Number | Flag | None = None


def _millis(field: str, least: int, **more: object) -> Number:
    return Number(field=field, scale=1000, unit="milliseconds", least=least, most=_MOST * 1000, **more)  # type: ignore[arg-type]


def _keys(verdict: Verdict, text: str, defaults: Mapping[str, str]) -> tuple[Key, ...]:
    """Return keys that share a verdict and a text."""
    return tuple(
        Key(name=name, default=default, verdict=verdict, text=text) for name, default in defaults.items()
    )


_ASKED_FOR = "fixed: a consumer is asked for ten times, a second apart, and again after a pause"
_OWN_RETRY = "pykcl retries by itself, without end, with growing pauses"
_NO_TABLE = "pykcl creates no table other than the lease table"
_BALANCING = "the leader of a KCL 3.x fleet decides by it; pykcl follows it, and leads by Java's default"
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
    Key(
        name="retrievalMode", default="DEFAULT", verdict="honoured",
        text="DEFAULT: enhanced fan-out, unless a key for polling is set",
    ),
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
    Key(
        name="fanoutConfig.consumerArn", default="none", verdict="honoured",
        text="the consumer of enhanced fan-out, which is not registered where it is missing",
    ),
    Key(
        name="fanoutConfig.consumerName", default="applicationName", verdict="honoured",
        text="name of the consumer of enhanced fan-out, which is registered where it is missing",
    ),
    *_keys(
        JAVA_ONLY, _ASKED_FOR,
        {
            "fanoutConfig.maxDescribeStreamSummaryRetries": "10",
            "fanoutConfig.maxDescribeStreamConsumerRetries": "10",
            "fanoutConfig.registerStreamConsumerRetries": "10",
            "fanoutConfig.retryBackoffMillis": "1000",
        },
    ),
    Key(
        name="callProcessRecordsEvenForEmptyRecordList", default="false", verdict="honoured",
        text="deliver empty batches, too", effect=Flag(field="call_with_empty_batches"),
    ),
)  # fmt: skip

_LEASES = (
    Key(
        name="failoverTimeMillis", default="10000", verdict="honoured",
        text="a lease whose counter has not changed for so long may be taken; must be equal in the whole fleet",
        effect=_millis("failover_time", 1000, beyond="refuse"),
    ),
    Key(
        name="leaseAssignmentIntervalMillis", default="2 x failoverTimeMillis", verdict=JAVA_ONLY, text=_BALANCING
    ),
    Key(
        name="enablePriorityLeaseAssignment", default="true", verdict=JAVA_ONLY,
        text="pykcl always behaves as with true: it takes leases that expired long ago first",
    ),
    Key(
        name="shardSyncIntervalMillis", default="60000", verdict="honoured", text="how often the shards are listed",
        effect=_millis("shard_sync_interval", 1000),
    ),
    Key(
        name="cleanupLeasesUponShardCompletion", default="true", verdict="honoured",
        text="leases of ended shards are deleted once they are no longer needed",
    ),
    Key(
        name="ignoreUnexpectedChildShards", default="false", verdict=JAVA_ONLY,
        text="pykcl creates leases only from complete listings, and repeats incomplete ones",
    ),
    Key(
        name="maxLeasesForWorker", default="2147483647", verdict="honoured",
        text="max leases this worker holds; no limit without the key, as in Java",
        effect=Number(field="max_leases", absent=_MOST),
    ),
    Key(
        name="maxLeasesToStealAtOneTime", default="1", verdict="honoured",
        text="max leases stolen from live workers in one pass",
        effect=Number(field="max_leases_to_steal_at_one_time"),
    ),
    *_keys(
        AS_JAVA, "lease tables are created with on-demand billing",
        {"initialLeaseTableReadCapacity": "10", "initialLeaseTableWriteCapacity": "10"},
    ),
    Key(
        name="leaseTableScanTotalSegments", default="0 (automatic)", verdict=JAVA_ONLY,
        text="pykcl divides the table by itself (lease_scan_mode)",
    ),
    Key(
        name="leaseTableDeletionProtectionEnabled", default="false", verdict="honoured",
        text="applies only to tables pykcl creates",
        effect=Flag(field="table_deletion_protection"),
    ),
    Key(
        name="leaseTablePitrEnabled", default="false", verdict="honoured",
        text="applies only to tables pykcl creates",
        effect=Flag(field="point_in_time_recovery"),
    ),
    Key(
        name="maxLeaseRenewalThreads", default="20", verdict=JAVA_ONLY,
        text="pykcl has its own number of threads for it",
    ),
    *_keys(JAVA_ONLY, _OWN_RETRY, {"listShardsBackoffTimeInMillis": "1500", "maxListShardsRetryAttempts": "50"}),
    Key(
        name="parentShardPollIntervalMillis", default="10000", verdict="honoured",
        text="how often a child shard checks that its parents have ended",
        effect=_millis("parent_shard_poll_interval", 100),
    ),
    Key(name="shardPrioritization", default="none", verdict=JAVA_ONLY, text="the name of a Java class"),
    Key(
        name="skipShardSyncAtWorkerInitializationIfLeasesExist", default="false", verdict=JAVA_ONLY,
        text="pykcl always lists the shards when it starts: one call, which finds shards without a lease",
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
        text="max metrics that wait for CloudWatch; beyond it the oldest are dropped",
        effect=Number(field="metrics_queue_size"),
    ),
    Key(
        name="metricsLevel", default="DETAILED", verdict="honoured",
        text="metrics published in CloudWatch, under the names of KCL; NONE publishes nothing",
    ),
    Key(
        name="metricsEnabledDimensions", default="ALL", verdict="honoured",
        text="dimensions of the published metrics",
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
    Key(
        name="isGracefulLeaseHandoffEnabled", default="true", verdict=JAVA_ONLY,
        text="the leader of a KCL 3.x fleet decides by it; pykcl hands over what it is asked for",
    ),
    Key(
        name="gracefulLeaseHandoffTimeoutMillis", default="30000", verdict="honoured",
        text="how long a running batch may hold up a hand-over that the leader of a KCL 3.x fleet asks for",
        effect=_millis("graceful_handoff_timeout", 0),
    ),
    Key(
        name="clientVersionConfig", default="CLIENT_VERSION_CONFIG_3X", verdict=JAVA_ONLY,
        text="the lease table says by which protocol its fleet works, and pykcl works by that",
    ),
    *_keys(
        JAVA_ONLY, _MIGRATION,
        {"migrateAllEntitiesToLeaseTable": "false", "tableMigrationCompleteBakeTimeSeconds": "86400"},
    ),
    Key(
        name="coordinatorStateTableName", default="applicationName-CoordinatorState", verdict="honoured",
        text="table that pykcl checks for a Java 3.0-3.4 fleet that has left the 2.x-compatible mode",
    ),
    Key(
        name="workerMetricsTableName", default="applicationName-WorkerMetricStats", verdict="honoured",
        text="table to which pykcl reports in a Java 3.0-3.4 fleet in its own mode",
    ),
    Key(
        name="workerMetricsReporterFreqInMillis", default="30000", verdict="honoured",
        text="how often pykcl reports to the leader of a KCL 3.x fleet; must be equal in the whole fleet",
        effect=_millis("worker_metrics_interval", 1000),
    ),
    Key(
        name="disableWorkerMetrics", default="false", verdict="honoured",
        text="true: no CPU utilisation is reported to the leader of a KCL 3.x fleet",
    ),
    *_keys(
        JAVA_ONLY, _NO_TABLE,
        {
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
            "noOfPersistedMetricsPerWorkerMetrics": "10",
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
"""Any of them makes Java poll where retrievalMode does not decide; a 0 counts as absent for the first three."""

NO_KEYS: Mapping[str, str] = {
    **dict.fromkeys(
        ("leaseCleanupIntervalMillis", "completedLeaseCleanupIntervalMillis", "garbageLeaseCleanupIntervalMillis"),
        "an option of KCL that its daemon does not read",
    ),
    **dict.fromkeys(
        (
            "kinesisClientConfig", "dynamoDBClientConfig", "cloudWatchClientConfig", "commonClientConfig", "userAgent",
            "useragent", "dataFetchingStrategy", "maxPendingProcessRecordsInput", "maxCacheByteSize", "maxRecordsCount",
            "idleMillisBetweenCalls", "maxInitializationAttempts", "completedLeaseCleanupThresholdMillis",
            "garbageLeaseCleanupThresholdMillis", "leasesRecoveryAuditorExecutionFrequencyMillis",
            "leasesRecoveryAuditorInconsistencyConfidenceThreshold",
        ),
        "a key of KCL 1.x; Java's daemon has not read it since",
    ),
    "cloudWatchEndpoint": "no daemon reads it; the key is cloudWatchClient.endpointOverride",
}  # fmt: skip
"""Keys that occur in files although no daemon reads them: name -> explanation."""


_BY_HAND: Mapping[str, tuple[str, ...]] = {
    "application": ("applicationName",),
    "stream": ("streamArn", "streamName"),
    "table_name": ("tableName",),
    "region": ("regionName",),
    "worker_id": ("workerId",),
    "initial_position": ("initialPositionInStreamExtended", "initialPositionInStream"),
    "retrieval": ("retrievalMode",),
    "consumer": ("fanoutConfig.consumerArn", "fanoutConfig.consumerName"),
    "cleanup_interval": ("cleanupLeasesUponShardCompletion",),
    "processor_timeout": ("timeoutInSeconds",),
    "coordinator_state_table": ("coordinatorStateTableName",),
    "worker_metrics_table": ("workerMetricsTableName",),
    "worker_metrics": ("disableWorkerMetrics",),
    "metrics_level": ("metricsLevel",),
    "metrics_dimensions": ("metricsEnabledDimensions",),
}
"""Fields of keys with their own rule."""

KEYS_OF_FIELD: Mapping[str, tuple[str, ...]] = {
    **_BY_HAND,
    **{key.effect.field: (key.name,) for key in KEYS.values() if key.effect is not None},
}
"""Field of Config -> keys that set it. Fields without a key are absent."""
