"""Configuration of one worker: its options, every relation between them, and the places that they are read from."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pykcl.errors import NO_UTF8, ConfigError, is_utf8, shown
from pykcl.metrics.catalog import MetricsLevel, metrics_problem, parts
from pykcl.model.checkpoint import StartPosition
from pykcl.model.dead_letter import Address
from pykcl.model.shard import STREAM_ARN, choice_problem, consumer_problem
from pykcl.times import format_time, millis_of, start_position

CheckpointMode = Literal["auto", "interval", "manual", "ack"]
OnError = Literal["retry", "skip", "raise"]
HttpTransport = Literal["auto", "direct", "boto3"]
RecordEncoding = Literal["auto", "cbor", "json"]
Retrieval = Literal["polling", "fanout", "fanout-or-polling"]
FanoutTransport = Literal["auto", "h2", "http1"]
LeaseScanMode = Literal["auto", "full", "segmented"]
FleetMode = Literal["auto", "2x", "3x"]
Eligibility = Literal["never", "fallback", "equal"]
WorkerMetricsKind = Literal["auto", "cpu", "throughput"]

LARGEST_FETCH_BYTES = 14 * 1024 * 1024
"""The largest GetRecords answer: 10 MiB of data, base64 in JSON."""

_PAGE = "https://github.com/pykcl/pykcl/blob/main/docs/reference/configuration.md#options"
_APPLICATION = re.compile(r"[A-Za-z0-9_.-]{3,255}\Z")
_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Options of a worker. All times are in seconds unless the name says otherwise.

    Raises ConfigError for values that are out of range or contradict each other.
    """

    application: str
    """Name of the application: its lease table (KCL: applicationName). All workers of a fleet use the same."""
    stream: str
    """Stream name or ARN. An ARN also decides the region."""
    table_name: str | None = None
    """Lease table, if it is not called like the application."""
    region: str | None = None
    """AWS region; by default what boto3 finds."""
    worker_id: str | None = None
    """Unique per process; by default host:pid:random."""
    initial_position: str | datetime = "LATEST"
    """Where an application without leases starts: "LATEST", "TRIM_HORIZON", an aware datetime or ISO 8601 text."""
    until: str | datetime | None = None
    """Where the run ends by itself: an aware datetime or ISO 8601 text. Records that arrived earlier are delivered, and
    a worker stops once every shard was read so far. The lease table is of this run alone. None: the run has no end."""
    shards: str | None = None
    """The shards that a run with `until` reads, with those that come after them: "1,7" or identifiers. None: all."""
    checkpoint_mode: CheckpointMode = "auto"
    """"auto": after each batch that returned normally; "interval": the same, at most every checkpoint_interval;
    "manual": only when the processor says so; "ack": behind the records that `batch.ack` has settled without a gap."""
    checkpoint_interval: float = 10.0
    """For checkpoint_mode="interval" only; refused with another mode unless it is the default."""
    max_unacked: int = 10_000
    """For checkpoint_mode="ack" only: most records of a shard that are delivered and not checkpointed
    for lack of an ack, settled ones behind such a record, too. At so many the shard is read no further."""
    on_error: OnError = "retry"
    """What a raising process_records costs: "retry" the batch, "skip" it (as Java does), "raise" and stop."""
    retry_timeout: float = 300.0
    """How long a batch is retried before its lease is handed back, and how long it is then left alone."""
    batch_size: int | None = None
    """Most records per process_records call. None: max_records."""
    batch_window: float = 0.0
    """How long the first record of a batch waits for more, over several reads, until there are batch_size or 6 MiB of
    them. 0: what a read brings is delivered at once."""
    max_attempts: int | None = None
    """How many calls in all may fail before their records go to the dead letters. Errors of AWS do not count. None: a
    batch that fails holds up its shard, and retry_timeout ends it."""
    bisect: bool = False
    """Whether a batch that fails is split in halves, which costs no attempt, until the failing record stands alone."""
    max_record_age: float | None = None
    """Records that arrived longer ago go to the dead letters without a call. By the clock of Kinesis. None: none do."""
    dead_letters: str | None = None
    """Where given-up records go before the checkpoint passes them: "file:DIRECTORY", an ARN of SQS, SNS or Kinesis,
    "s3://BUCKET/PREFIX", "discard" (nowhere), or "callable": what Worker(dead_letters=…) was given. None: no record is
    given up."""
    dead_letters_in_a_row: int = 100
    """After so many records in a row that used up attempts or did not decode, the lease is handed back. All records of
    a call that is given up as a whole count. 0: never."""
    failover_time: float = 10.0
    """A lease whose counter stood still for so long may be taken. Must be the same in the whole fleet, Java too."""
    max_leases: int = 1000
    """Most leases this worker holds at once."""
    max_leases_to_steal_at_one_time: int = 1
    """Most leases taken from live owners in one pass; a pass comes every third of the failover time."""
    max_records: int = 10_000
    """Most records per GetRecords call and per process_records call."""
    max_records_per_second: float | None = None
    """Most records a second that this worker delivers, in batches of one second's at most. None: as many as come."""
    deaggregate: bool = True
    """Whether the user records of an aggregated (KPL) record are delivered one by one. False: as that one record."""
    call_with_empty_batches: bool = False
    """Whether process_records is called with an empty batch, too, when a read brought nothing."""
    retrieval: Retrieval = "polling"
    """How records are read. "polling": by GetRecords. "fanout": Kinesis pushes and bills them (enhanced fan-out).
    "fanout-or-polling": the same, and by GetRecords where that cannot be, until it can."""
    consumer: str | None = None
    """Name or ARN of the consumer of enhanced fan-out; one application can use it. None: that of the application."""
    register_consumer: bool = True
    """Whether a missing consumer may be registered. It is billed until somebody deregisters it."""
    fanout_transport: FanoutTransport = "auto"
    """How pushed records travel. "h2": over HTTP/2, which needs pykcl[fanout]. "http1": over HTTP/1.1, at a connection
    and a thread for each shard. "auto": "h2" where it can be."""
    idle_time_between_reads: float | None = None
    """Pause between reads of a shard that is caught up. None: 0.25 s while records arrive, up to 1 s while none do."""
    max_buffered_bytes: int = 256 * 1024 * 1024
    """Most bytes of GetRecords answers this process holds at any time. Each call reserves 14 MiB, the largest
    answer, until its size is known: at the default 18 shards are fetched at the same moment, the others wait."""
    http_transport: HttpTransport = "auto"
    """How records are read, and how the lease table is scanned, read and updated. "direct": over connections of pykcl's
    own, at far less CPU than "boto3"; "auto": the same, unless something stands against it (a proxy, a handler on the
    client, another kind of signature) and is logged."""
    record_encoding: RecordEncoding = "auto"
    """The encoding of records over the direct transport: "cbor" is smaller and cheaper than "json". "auto": "cbor" once
    a second read of some records in it gave the same; "json" again, for good, when anything goes wrong with it."""
    shard_sync_interval: float = 60.0
    """How often the shards are listed; also done at start. Children of an ended shard need no listing."""
    parent_shard_poll_interval: float = 2.0
    """Seconds between two checks of a child shard whether its parents have ended."""
    cleanup_interval: float = 60.0
    """Seconds between two checks of ended leases for deletion. 0: never."""
    audit_interval: float = 120.0
    """Seconds between two checks of the leases for hash keys that nobody reads. The worker that Java's rule elects
    reports them. 0: never."""
    audit_confidence_threshold: int = 3
    """How many audits in a row must find the same hash keys without a lease before anything is made of it."""
    shutdown_grace: float = 25.0
    """How long stop() waits for running batches (container platforms kill at 30)."""
    processor_warn_after: float = 60.0
    """A processor call longer than this is reported."""
    processor_timeout: float | None = None
    """A processor call longer than this costs the lease, so that another worker may try. None: never."""
    show_errors: bool = False
    """Whether text and traceback of what the processor raises are logged. For development: they may quote a payload."""
    create_table: bool = True
    """Whether a missing lease table may be created."""
    table_deletion_protection: bool = False
    """Whether a lease table that this worker creates is protected against deletion."""
    point_in_time_recovery: bool = False
    """Whether point-in-time recovery is switched on for a lease table that this worker creates."""
    lease_scan_mode: LeaseScanMode = "auto"
    """How free and silent leases are found. "full": each worker scans the lease table, about once a second.
    "segmented": it scans a segment of its own, and all of it now and then. "auto": "segmented" where that reads
    less."""
    coordinator_state_table: str | None = None
    """Where Java KCL 3.0-3.4 keeps its state, if not in `<application>-CoordinatorState`. It is only read."""
    fleet_mode: FleetMode = "auto"
    """The protocol of the fleet. "auto": as the lease table says; in KCL 3.x's own mode, in which a leader assigns the
    leases, this worker follows that leader. "2x": that of KCL 2.x; another fleet is refused (NativeFleet). "3x": KCL
    3.x's own mode; another fleet is refused."""
    worker_metrics_interval: float = 30.0
    """How often a worker reports to the leader of a KCL 3.x fleet. Must be the same in the whole fleet, Java too: a
    report that is twice as old is of a dead worker."""
    worker_metrics: WorkerMetricsKind = "auto"
    """What a worker reports to the leader of a KCL 3.x fleet. "cpu": the CPU utilisation of its container or host;
    refused at the start where it cannot be measured, that is off ECS, EKS and EC2. "throughput": nothing, so that the
    leader goes by the throughput of its leases. "auto": CPU, where another worker reports CPU and this one can."""
    worker_metrics_table: str | None = None
    """Where Java KCL 3.0-3.4 keeps the reports, if not in `<application>-WorkerMetricStats`."""
    graceful_handoff_timeout: float = 30.0
    """How long a running batch may hold up the hand-over of its lease that the leader of a KCL 3.x fleet asks for. Then
    the lease is handed over at its last checkpoint."""
    rescue: bool = True
    """Whether leases that have stood still for three failover times are taken in a fleet of KCL 3.x whose leader is
    gone. Java reads them again once another leader is elected, after two minutes and more."""
    leader: Eligibility = "fallback"
    """Whether this worker may lead a KCL 3.x fleet, and then assigns the leases. "never". "fallback": half a minute
    after Java would have. "equal": as soon as Java may; for a fleet without Java workers."""
    metrics: str = "none"
    """Where metrics go: "none", or "cloudwatch", "prometheus", "otel", several with commas between."""
    metrics_level: MetricsLevel = "SUMMARY"
    """"SUMMARY", or "DETAILED" with each request to AWS, or "NONE": nothing is measured, whatever metrics says."""
    metrics_dimensions: str = "ALL"
    """Dimensions of the metrics: "ALL", or some of Operation (always on), ShardId, WorkerIdentifier, Cause."""
    metrics_namespace: str | None = None
    """Namespace in CloudWatch, if it is not called like the application."""
    metrics_buffer_time: float = 60.0
    """Seconds between two times that metrics are sent to CloudWatch. From 60 on, each minute is sent once, when it is
    over."""
    metrics_queue_size: int = 10_000
    """Most metrics of one minute each that wait for CloudWatch; beyond it the oldest are dropped, and counted."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_names(self)
        _check_numbers(self)
        _check_choices(self)
        _check_policies(self)
        problem = metrics_problem(self.metrics, self.metrics_dimensions, self.metrics_namespace)
        if self.retrieval != "polling" and not problem:
            problem = consumer_problem(self.consumer, self.application, self.stream)
        if problem:
            raise ConfigError(problem)
        _check_end(self)

    @property
    def table(self) -> str:
        """Name of the lease table."""
        return self.table_name or self.application

    @property
    def stream_name(self) -> str:
        """Name of the stream, taken out of an ARN."""
        found = STREAM_ARN.match(self.stream)
        return found["name"] if found else self.stream

    @property
    def stream_arn(self) -> str | None:
        """The stream's ARN, if the stream was given as one."""
        return self.stream if STREAM_ARN.match(self.stream) else None

    @property
    def effective_region(self) -> str | None:
        """Region of the ARN, else `region`. None: what boto3 finds."""
        found = STREAM_ARN.match(self.stream)
        return found.group(1) if found else self.region

    @property
    def start_position(self) -> StartPosition:
        """`initial_position` as a value."""
        return start_position(self.initial_position)

    @property
    def until_millis(self) -> int | None:
        """`until` as epoch milliseconds; None: the run has no end."""
        return None if self.until is None else millis_of("until", self.until)

    @property
    def metrics_sinks(self) -> tuple[str, ...]:
        """`metrics` as the names of sinks; none where the level is NONE."""
        return () if self.metrics == "none" or self.metrics_level == "NONE" else parts(self.metrics)

    @property
    def has_policies(self) -> bool:
        """True if an option decides on records that cannot be processed, other than `on_error`."""
        return self.bisect or any(getattr(self, name) is not None for name in _POLICIES)

    @property
    def renew_interval(self) -> float:
        """Half the failover time. Java renews each third of it, half as many writes more, and tries once each time.
        pykcl tries again at once, thrice before the lease is in danger."""
        return self.failover_time / 2

    @property
    def steal_interval(self) -> float:
        """Seconds between two passes in which leases may be taken from living owners."""
        return self.failover_time / 3

    @property
    def request_timeout(self) -> float:
        """Timeout of one DynamoDB request, seconds: three of them fit between a heartbeat and the end of the belief."""
        return min(2.0, self.failover_time * 0.12)

    @property
    def write_timeout(self) -> float:
        """Deadline of a write that no lease sets a deadline for, seconds: three requests."""
        return 3 * self.request_timeout

    @property
    def loss_noticed_within(self) -> float:
        """Seconds until an owner notices that its row is lost or deleted: its next heartbeat, and the answer to it."""
        return self.renew_interval + self.request_timeout

    @property
    def belief_time(self) -> float:
        """Seconds for which a lease is believed after its last heartbeat was *sent*: clocks may run 10 % apart."""
        return self.failover_time * 0.9

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Config:
        """A Config from loosely typed options. Raises ConfigError for an unknown one, with the nearest name."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(f"Unknown option {name!r}.{nearest_names(name, known, shown=repr)}")
        return cls(**options)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Config:
        """A Config from PYKCL_NAME variables, by default of this process. Raises ConfigError."""
        return config_from_environment(os.environ if environment is None else environment)

    @classmethod
    def from_toml(cls, path: str | Path) -> Config:
        """A Config from a file such as pykcl.toml. Raises ConfigError with file and key.

        A file with a table `clients` is refused: its endpoints and credentials are for `pykcl run --config`.
        """
        return config_from_toml(Path(path))


def nearest_names(name: str, known: Iterable[str], shown: Callable[[str], str]) -> str:
    """Text for the message about an unknown name, with a leading blank: the nearest known names."""
    names = sorted(known)
    akin = [one for one in names if len(name) > 2 and (name in one or one in name)]
    near = [shown(one) for one in dict.fromkeys([*difflib.get_close_matches(name, names), *akin])][:3]
    if not near:
        return f" All names: {_PAGE}"
    return f" Did you mean {' or '.join(near)}?"


_TEXTS = (
    "application", "stream", "table_name", "region", "worker_id", "coordinator_state_table", "worker_metrics_table",
    "dead_letters", "metrics", "metrics_dimensions", "metrics_namespace", "consumer", "shards",
)  # fmt: skip
_NEVER_NONE = ("application", "stream", "metrics", "metrics_dimensions")
_FLAGS = (
    "bisect", "call_with_empty_batches", "deaggregate", "show_errors", "create_table", "table_deletion_protection",
    "point_in_time_recovery", "rescue", "register_consumer",
)  # fmt: skip


def _check_types(config: Config) -> None:
    """Check the types of the fields that no other check covers."""
    for name in _TEXTS:
        value = getattr(config, name)
        if not isinstance(value, str) and (value is not None or name in _NEVER_NONE):
            raise ConfigError(f"{name} is text, not {type(value).__name__}")
        if value is not None and not is_utf8(value):
            raise ConfigError(f"{name} {NO_UTF8}, so that no request can carry it. Write it whole, in UTF-8.")
    for name in _FLAGS:
        if not isinstance(getattr(config, name), bool):
            # Not by its truth: "false" would create a table.
            raise ConfigError(f"{name} is True or False, not {type(getattr(config, name)).__name__}")


def _check_names(config: Config) -> None:
    if not _APPLICATION.match(config.application):
        raise ConfigError(
            f"application={config.application!r} cannot name a lease table: the lease table has that name, of 3 to 255 "
            "of A-Z a-z 0-9 _ . -"
        )
    for name in ("table_name", "coordinator_state_table", "worker_metrics_table"):
        table = getattr(config, name)
        if table is not None and not _APPLICATION.match(table):
            raise ConfigError(f"{name}={table!r} is no table name: use 3 to 255 of A-Z a-z 0-9 _ . -")
    arn = STREAM_ARN.match(config.stream)
    if arn is None and not _STREAM.match(config.stream):
        raise ConfigError(
            f"stream={config.stream!r} is neither a stream name (1 to 128 of A-Z a-z 0-9 _ . -) nor a stream ARN "
            "(arn:aws:kinesis:REGION:ACCOUNT:stream/NAME)"
        )
    if arn is not None and config.region is not None and config.region != arn.group(1):
        raise ConfigError(
            f"region={config.region!r} contradicts the stream ARN, which is in {arn.group(1)!r}. Drop one of them."
        )
    if config.worker_id is not None and not 1 <= len(config.worker_id) <= 256:
        raise ConfigError(f"worker_id has {len(config.worker_id)} characters; use 1 to 256")


_SMALLEST: dict[str, float] = {
    "checkpoint_interval": 0.1,
    "max_unacked": 1,
    "retry_timeout": 0.0,
    "batch_size": 1,
    "batch_window": 0.0,
    "max_attempts": 1,
    "max_record_age": 1.0,
    "dead_letters_in_a_row": 0,
    "failover_time": 1.0,
    "max_leases": 1,
    "max_leases_to_steal_at_one_time": 1,
    "max_records": 1,
    "max_records_per_second": 0.01,
    "idle_time_between_reads": 0.2,
    "shard_sync_interval": 1.0,
    "parent_shard_poll_interval": 0.1,
    "cleanup_interval": 0.0,
    "audit_interval": 0.0,
    "audit_confidence_threshold": 1,
    "shutdown_grace": 0.0,
    "worker_metrics_interval": 1.0,
    "graceful_handoff_timeout": 0.0,
    "processor_warn_after": 0.1,
    "processor_timeout": 0.1,
    "metrics_buffer_time": 1.0,
    "metrics_queue_size": 1,
}
_WHOLE = (
    "max_leases", "max_leases_to_steal_at_one_time", "max_records", "max_buffered_bytes", "audit_confidence_threshold",
    "metrics_queue_size", "batch_size", "max_attempts", "max_unacked", "dead_letters_in_a_row",
)  # fmt: skip
_LARGEST = 1_000_000
"""Of every time and count above: no wait overflows the operating system's (11 days), no number a float."""
_LARGEST_OF = {"max_records": 10_000, "batch_size": 10_000, "batch_window": 300}
"""Where it is less: Kinesis gives so many records in a call, and Lambda has these limits."""


def number_for(name: str) -> str:
    """Return the kind of number that an option takes, in words."""
    kind = "records" if name == "max_records_per_second" else "seconds"
    return "a whole number" if name in _WHOLE else f"a number of {kind}"


def _check_numbers(config: Config) -> None:
    for name, smallest in _SMALLEST.items():
        value = getattr(config, name)
        if value is None and Config.__dataclass_fields__[name].default is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} takes {number_for(name)}, not {value!r}")
        largest = _LARGEST_OF.get(name, _LARGEST)
        if not smallest <= value <= largest:
            # Without the value: a whole number of thousands of digits cannot be shown.
            raise ConfigError(f"{name} is out of range. Write {smallest:g} to {largest}.")
    for name in _WHOLE:
        value = getattr(config, name)
        is_none = value is None and Config.__dataclass_fields__[name].default is None
        if not is_none and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"{name} takes {number_for(name)}, not {value!r}")
    if config.max_buffered_bytes < 2 * LARGEST_FETCH_BYTES:
        # With room for one only, a shard whose processor hangs on its page would starve all others.
        raise ConfigError(
            f"max_buffered_bytes={config.max_buffered_bytes} cannot hold two GetRecords answers of up to "
            f"{LARGEST_FETCH_BYTES} bytes. Raise it to at least {2 * LARGEST_FETCH_BYTES}."
        )


def _check_choices(config: Config) -> None:
    for name, allowed in (
        ("checkpoint_mode", ("auto", "interval", "manual", "ack")),
        ("on_error", ("retry", "skip", "raise")),
        ("http_transport", ("auto", "direct", "boto3")),
        ("record_encoding", ("auto", "cbor", "json")),
        ("retrieval", ("polling", "fanout", "fanout-or-polling")),
        ("fanout_transport", ("auto", "h2", "http1")),
        ("lease_scan_mode", ("auto", "full", "segmented")),
        ("fleet_mode", ("auto", "2x", "3x")),
        ("leader", ("never", "fallback", "equal")),
        ("worker_metrics", ("auto", "cpu", "throughput")),
        ("metrics_level", ("NONE", "SUMMARY", "DETAILED")),
    ):
        value = getattr(config, name)
        if value not in allowed:
            near = difflib.get_close_matches(value if isinstance(value, str) else "", allowed, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name}={shown(value)} is not one of {', '.join(map(repr, allowed))}.{hint}")
    fan_out, no_consumers = ("fanout", "fanout-or-polling"), "GetRecords has no consumers"
    for option, modes, name, why in (
        ("checkpoint_mode", ("interval",), "checkpoint_interval", "nothing is written at intervals"),
        ("checkpoint_mode", ("ack",), "max_unacked", "nothing is acked"),
        ("retrieval", fan_out, "consumer", no_consumers),
        ("retrieval", fan_out, "register_consumer", no_consumers),
        ("retrieval", fan_out, "fanout_transport", "nothing is pushed"),
    ):
        value, default, chosen = (
            getattr(config, name),
            Config.__dataclass_fields__[name].default,
            getattr(config, option),
        )
        if chosen not in modes and value != default:
            raise ConfigError(
                f"{name}={shown(value)} has no meaning with {option}={chosen!r}: {why}. "
                f"Use {option}={modes[0]!r}, or drop {name}."
            )
    if config.record_encoding == "cbor" and config.http_transport == "boto3":
        raise ConfigError(
            "record_encoding='cbor' contradicts http_transport='boto3', which reads JSON only: drop one"
        )
    if config.processor_timeout is not None and config.processor_timeout < config.processor_warn_after:
        raise ConfigError(
            f"processor_timeout={config.processor_timeout} is shorter than "
            f"processor_warn_after={config.processor_warn_after}: the warning would never come. Lower the latter."
        )


def _check_end(config: Config) -> None:
    start, until = config.start_position, config.until_millis
    problem = choice_problem(config.shards, has_end=until is not None, at_latest=start.kind == "LATEST")
    if problem is not None:
        raise ConfigError(problem)
    if until is None:
        return
    if start.at_millis is not None and start.at_millis >= until:
        raise ConfigError(
            f"until={format_time(until)} is not after initial_position={format_time(start.at_millis)}: say a later end"
        )
    for name, value, allowed, why in (
        ("retrieval", config.retrieval, ("polling",), "pushed records do not show that a shard has no more"),
        ("fleet_mode", config.fleet_mode, ("auto", "2x"), "workers of Java would read on"),
        ("max_record_age", config.max_record_age, (None,), "old records would be given up"),
    ):
        if value not in allowed:
            raise ConfigError(f"{name}={value!r} contradicts until: {why}. Drop one of them.")


_POLICIES = ("max_attempts", "max_record_age", "dead_letters")


def _check_policies(config: Config) -> None:
    used = {name: value for name in _POLICIES if (value := getattr(config, name)) is not None}
    if config.bisect:
        used["bisect"] = True
    if used and config.on_error != "retry":
        name, value = next(iter(used.items()))
        raise ConfigError(
            f"{name}={shown(value)} contradicts on_error={config.on_error!r}, which decides about a batch that fails. "
            "Use on_error='retry', or drop the former."
        )
    if config.checkpoint_mode == "ack":
        used.pop("dead_letters", None)
        if config.on_error == "skip":
            used["on_error"] = config.on_error
        for name, value in used.items():
            raise ConfigError(
                f"{name}={shown(value)} contradicts checkpoint_mode='ack', in which each record is settled by itself. "
                "Drop one of them; batch.reject(record) gives up a record."
            )
    if config.dead_letters is None:
        for name in ("max_attempts", "max_record_age"):
            if name in used:
                raise ConfigError(
                    f"{name}={used[name]} gives up records, and dead_letters=None keeps them nowhere. Name a "
                    'destination such as dead_letters="file:letters"; dead_letters="discard" drops them.'
                ).about("E21")
    elif config.dead_letters != "callable":
        Address.parse(config.dead_letters)


PREFIX = "PYKCL_"
MOST_BYTES = 1024 * 1024
CLIENTS = "clients"
"""The one table of a TOML file: region, endpoint and credentials of each service. They are of no Config."""
HTTP_TOKEN = "PYKCL_HTTP_TOKEN"  # noqa: S105 - the name of the variable
LEASE_STORE = "PYKCL_LEASE_STORE"
OF_COMMANDS = (
    LEASE_STORE, "PYKCL_HTTP", HTTP_TOKEN, "PYKCL_HTTP_TOKEN_FILE", "PYKCL_HEALTH_FILE", "PYKCL_LOG_FORMAT",
)  # fmt: skip
"""Variables that set no option of a Config but one of the command line."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """source: name of the file. options: fields of Config, as the file has them. clients: its tables `clients.…`."""

    source: str
    options: Mapping[str, Any]
    clients: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def config(self) -> Config:
        """Raises ConfigError with file and key. What `clients` says is not in it."""
        for name, example in (("application", "orders-app"), ("stream", "orders")):
            if name not in self.options:
                raise ConfigError(
                    f'{self.source}: {name} is missing. Write a line such as {name} = "{example}".'
                )
        try:
            return Config(**self.options)
        except ConfigError as error:
            reason = str(error)
        raise ConfigError(f"{self.source}: {reason}")


def config_from_environment(environment: Mapping[str, str]) -> Config:
    """Raises ConfigError for an unknown PYKCL_ variable, a value of the wrong kind, and a missing one."""
    options = from_environment(environment)
    for name in ("application", "stream"):
        if name not in options:
            raise ConfigError(f"The environment has no {PREFIX}{name.upper()}. Set it.")
    return Config(**options)


def config_from_toml(path: Path) -> Config:
    """Raises ConfigError, also where the file says more than a Config can hold: nothing of it is dropped unseen."""
    found = read_toml(path)
    if found.clients:
        raise ConfigError(
            f"{found.source}: its table [{CLIENTS}] says which endpoints and credentials are used, and a Config holds "
            "none. Do: `pykcl run --config`, which reads all of it, or drop the table and give Worker clients=…"
        )
    return found.config()


def read_toml(path: Path) -> TomlFile:
    """The names of a file are checked, its values are not.

    Raises ConfigError with the file, and line or key: no such file, not permitted, no TOML, an unknown name, a table
    that is none of ours.
    """
    # Not with the module: a worker that has its options in code needs none of it.
    import tomllib

    text = _text(path)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
    except ValueError:
        # Python's limit for integers, in words that name neither line nor key.
        reason = "a number in it has too many digits"
    except RecursionError:
        reason = "its tables are nested too deeply"
    else:
        return _checked(path.name, content)
    raise ConfigError(
        f"{path.name} is not valid TOML: {reason}. Text stands in quotes, and True is written true."
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Config fields set by PYKCL_NAME variables. Raises ConfigError for a PYKCL_ variable that names none."""
    pairs = [
        (name[len(PREFIX) :].lower(), text)
        for name, text in sorted(environment.items())
        if name.startswith(PREFIX) and name != PREFIX and name not in OF_COMMANDS
    ]
    options = [field.name for field in fields(Config)]
    names = [*options, *(name[len(PREFIX) :].lower() for name in OF_COMMANDS)]
    for name, _ in pairs:
        if name not in options:
            hint = nearest_names(name, names, shown=_variable)
            raise ConfigError(f"environment variable {_variable(name)} names no option.{hint}")
    return from_texts(pairs, lambda name: f"environment variable {_variable(name)}")


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def from_texts(pairs: Iterable[tuple[str, str]], origin: Callable[[str], str]) -> dict[str, Any]:
    """Config fields from names and texts. origin: what to call the place of a name. Raises ConfigError."""
    known = {field.name: field.default for field in fields(Config)}
    result: dict[str, Any] = {}
    for name, text in pairs:
        if name not in known:
            raise ConfigError(f"{origin(name)} names no option.{nearest_option(name)}")
        try:
            result[name] = _value(name, known[name], text)
        except ValueError:
            takes = "true or false" if isinstance(known[name], bool) else number_for(name)
            raise ConfigError(
                f"{origin(name)} takes {takes} (default: {known[name]!r}), not {text!r}."
            ) from None
    return result


def nearest_option(name: str) -> str:
    """Text for the message about an unknown option, with a leading blank."""
    return nearest_names(name, [field.name for field in fields(Config)], shown=repr)


def _value(name: str, default: Any, text: str) -> Any:
    if isinstance(default, bool):
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if isinstance(default, int) or name in _WHOLE:
        return int(text)
    if isinstance(default, float) or name in _SMALLEST:
        return float(text)
    return None if default is None and text == "" else text


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(
            f"{str(path)!r} cannot be read: {why}. Check the path; it is taken from here."
        ) from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{str(path)!r} is larger than 1 MiB: that is no configuration.")
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path.name}, line {line}: TOML is UTF-8, and this is not. Save it as UTF-8."
        ) from None


def _checked(source: str, content: dict[str, Any]) -> TomlFile:
    known = {field.name for field in fields(Config)}
    clients = content.pop(CLIENTS, {})
    for name, value in content.items():
        if name not in known:
            what = "names no table" if isinstance(value, dict) else "names no option"
            hint = f" Its only table is [{CLIENTS}]." if isinstance(value, dict) else nearest_option(name)
            raise ConfigError(f"{source}: {name!r} {what}.{hint}")
    if not isinstance(clients, dict):
        raise ConfigError(f"{source}: {CLIENTS} is a table, such as [{CLIENTS}.kinesis].")
    return TomlFile(source, content, clients)
