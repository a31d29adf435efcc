"""The configuration of one worker: frozen, keyword-only, every relation checked in one place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, Literal

from pykcl.errors import ConfigError
from pykcl.model.checkpoint import StartPosition

CheckpointMode = Literal["auto", "interval", "manual"]
OnError = Literal["retry", "skip", "raise"]

LARGEST_FETCH_BYTES = 14 * 1024 * 1024
"""The largest GetRecords answer: 10 MiB of data, base64 in JSON."""

_APPLICATION = re.compile(r"[A-Za-z0-9_.-]{3,255}\Z")
_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_STREAM_ARN = re.compile(r"arn:[a-z0-9-]+:kinesis:([a-z0-9-]+):([0-9]{12}):stream/([A-Za-z0-9_.-]{1,128})\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything a worker can be told. All times in seconds unless the name says otherwise.

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
    start: str | datetime = "LATEST"
    """Where an application without leases starts: "LATEST", "TRIM_HORIZON", an aware datetime or ISO 8601 text."""
    checkpoint: CheckpointMode = "auto"
    """"auto": after each batch that returned normally; "interval": the same, at most every checkpoint_interval;
    "manual": only when the processor says so."""
    checkpoint_interval: float = 10.0
    """For checkpoint="interval" only; refused with another mode unless it is the default."""
    on_error: OnError = "retry"
    """What a raising process_records costs: "retry" the batch, "skip" it (as Java does), "raise" and stop."""
    retry_for: float = 300.0
    """How long a batch is retried before its lease is handed back, and how long it is then left alone."""
    failover_time: float = 10.0
    """A lease whose counter stood still for so long may be taken. Must be the same in the whole fleet, Java too."""
    max_leases: int = 1000
    """Most leases this worker holds at once."""
    max_leases_to_steal_at_one_time: int = 1
    max_records: int = 10_000
    """Most records per GetRecords call and per process_records call."""
    idle_time: float = 1.0
    """Longest pause between two reads of a shard that is caught up; 0.25 s while records arrive, 0.2 s while behind."""
    max_buffered_bytes: int = 256 * 1024 * 1024
    """Most bytes of GetRecords answers this process holds at any time. Each call reserves 14 MiB, the largest
    answer, until its size is known: at the default 18 shards are fetched at the same moment, the others wait."""
    shard_sync_interval: float = 60.0
    """How often the shards are listed; also done at start. Children of an ended shard need no listing."""
    parent_poll_interval: float = 2.0
    """How often a child shard looks whether its parents have ended."""
    cleanup_interval: float = 60.0
    """How often ended leases are looked over for deletion. 0: never."""
    audit_interval: float = 120.0
    """How often the leases are looked over for hash keys that nobody reads; the worker that Java's rule elects tells of
    them. 0: never."""
    audit_confirmations: int = 3
    """How many audits in a row must find the same hash keys without a lease before anything is made of it."""
    shutdown_grace: float = 25.0
    """How long stop() waits for running batches (container platforms kill at 30)."""
    processor_warn_after: float = 60.0
    """A processor call longer than this is reported."""
    processor_timeout: float | None = None
    """A processor call longer than this costs the lease, so that another worker may try. None: never."""
    create_table: bool = True
    """Whether a missing lease table may be created."""
    unsafe_join_v3: bool = False
    """Whether to join a fleet of Java KCL 3.x in its own mode all the same; it is refused otherwise (NativeFleet)."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_names(self)
        _check_numbers(self)
        _check_choices(self)
        start_position(self.start)

    @property
    def table(self) -> str:
        """Name of the lease table."""
        return self.table_name or self.application

    @property
    def stream_name(self) -> str:
        """Name of the stream, taken out of an ARN."""
        found = _STREAM_ARN.match(self.stream)
        return found.group(3) if found else self.stream

    @property
    def stream_arn(self) -> str | None:
        """The stream's ARN, if the stream was given as one."""
        return self.stream if _STREAM_ARN.match(self.stream) else None

    @property
    def effective_region(self) -> str | None:
        """Region of the ARN, else `region`. None: what boto3 finds."""
        found = _STREAM_ARN.match(self.stream)
        return found.group(1) if found else self.region

    @property
    def start_position(self) -> StartPosition:
        """`start` as a value."""
        return start_position(self.start)

    @property
    def renew_interval(self) -> float:
        """A third of the fail-over time, as Java: two heartbeats may go wrong before the lease is in danger."""
        return self.failover_time / 3

    @property
    def request_timeout(self) -> float:
        """Of one DynamoDB request: three of them fit into what a missed heartbeat leaves."""
        return min(2.0, self.failover_time / 5)

    @property
    def write_timeout(self) -> float:
        """How long a write outside a lease's own deadline is tried: three requests."""
        return 3 * self.request_timeout

    @property
    def loss_noticed_within(self) -> float:
        """Seconds until an owner knows that its row is another's, or gone: its next heartbeat, and the answer to it."""
        return self.renew_interval + self.request_timeout

    @property
    def belief_time(self) -> float:
        """How long a lease is believed after its last heartbeat was *sent*: clocks may run 10 % apart."""
        return self.failover_time * 0.9

    @property
    def full_scan_interval(self) -> float:
        """The longest pause between two scans of the lease table, as Java's lease taker."""
        return self.failover_time * 2

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Config:
        """A Config from loosely typed options. Raises ConfigError for an unknown one, with the nearest name."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(sorted(known))}."
                raise ConfigError(f"Unknown option {name!r}.{hint}")
        return cls(**options)


def start_position(start: str | datetime) -> StartPosition:
    """`start` as a value. Raises ConfigError."""
    if isinstance(start, str):
        if start in ("LATEST", "TRIM_HORIZON"):
            return StartPosition(start)  # type: ignore[arg-type]
        start = _parse_time(start)
    if not isinstance(start, datetime):
        raise ConfigError(
            f"start={_shown(start)} is not a position. Use 'LATEST', 'TRIM_HORIZON' or an aware datetime."
        )
    if start.tzinfo is None:
        raise ConfigError(f"start={start.isoformat()} has no time zone. Say which: add 'Z' or an offset.")
    try:
        at_millis = int(start.astimezone(timezone.utc).timestamp() * 1000)
    except OverflowError:
        at_millis = -1
    if at_millis < 0:
        raise ConfigError(
            f"start={start.isoformat()} is before 1970 or beyond the calendar. No record is that old."
        )
    return StartPosition("AT_TIMESTAMP", at_millis=at_millis)


def _parse_time(text: str) -> datetime:
    try:
        # Python 3.10 does not know the Z suffix.
        return datetime.fromisoformat(re.sub(r"[Zz]\Z", "+00:00", text))
    except ValueError:
        near = difflib.get_close_matches(text.upper(), ["LATEST", "TRIM_HORIZON"], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"start={text!r} is not a position.{hint} "
            "Use LATEST, TRIM_HORIZON or a time such as 2026-11-20T09:00:00Z."
        ) from None


def _check_types(config: Config) -> None:
    """Of what no other check asks for the type."""
    for name in ("application", "stream", "table_name", "region", "worker_id"):
        value = getattr(config, name)
        if not isinstance(value, str) and (value is not None or name in ("application", "stream")):
            raise ConfigError(f"{name} is text, not {type(value).__name__}")
    for name in ("create_table", "unsafe_join_v3"):
        if not isinstance(getattr(config, name), bool):
            # Not by its truth: "false" would create a table.
            raise ConfigError(f"{name} is True or False, not {type(getattr(config, name)).__name__}")


def _check_names(config: Config) -> None:
    if not _APPLICATION.match(config.application):
        raise ConfigError(
            f"application={config.application!r} cannot name a lease table: use 3 to 255 of A-Z a-z 0-9 _ . -"
        )
    if config.table_name is not None and not _APPLICATION.match(config.table_name):
        raise ConfigError(
            f"table_name={config.table_name!r} is no table name: use 3 to 255 of A-Z a-z 0-9 _ . -"
        )
    arn = _STREAM_ARN.match(config.stream)
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
    "retry_for": 0.0,
    "failover_time": 1.0,
    "max_leases": 1,
    "max_leases_to_steal_at_one_time": 1,
    "max_records": 1,
    "idle_time": 0.2,
    "shard_sync_interval": 1.0,
    "parent_poll_interval": 0.1,
    "cleanup_interval": 0.0,
    "audit_interval": 0.0,
    "audit_confirmations": 1,
    "shutdown_grace": 0.0,
    "processor_warn_after": 0.1,
    "processor_timeout": 0.1,
}
_WHOLE = (
    "max_leases", "max_leases_to_steal_at_one_time", "max_records", "max_buffered_bytes", "audit_confirmations",
)  # fmt: skip
_LARGEST = 1_000_000
"""Of every time and count above: no wait overflows the operating system's (11 days), no number a float."""


def _check_numbers(config: Config) -> None:
    for name, smallest in _SMALLEST.items():
        value = getattr(config, name)
        if value is None and name == "processor_timeout":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name}={value!r} is not a number")
        if not smallest <= value <= _LARGEST:
            # Without the value: a whole number of thousands of digits cannot be shown.
            raise ConfigError(
                f"{name} is out of range: at least {smallest:g}, and finite: at most {_LARGEST:g}"
            )
    for name in _WHOLE:
        if isinstance(getattr(config, name), bool) or not isinstance(getattr(config, name), int):
            raise ConfigError(f"{name}={getattr(config, name)!r} is not a whole number")
    if config.max_records > 10_000:
        raise ConfigError(f"max_records={config.max_records} is more than the 10000 Kinesis allows per call")
    if config.max_buffered_bytes < 2 * LARGEST_FETCH_BYTES:
        # With room for one only, a shard whose processor hangs on its page would starve all others.
        raise ConfigError(
            f"max_buffered_bytes={config.max_buffered_bytes} cannot hold two GetRecords answers of up to "
            f"{LARGEST_FETCH_BYTES} bytes. Raise it to at least {2 * LARGEST_FETCH_BYTES}."
        )


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except ValueError:
        # A whole number of more digits than Python is willing to write down.
        return f"<a {type(value).__name__} too long to show>"


def _check_choices(config: Config) -> None:
    for name, allowed in (
        ("checkpoint", ("auto", "interval", "manual")),
        ("on_error", ("retry", "skip", "raise")),
    ):
        value = getattr(config, name)
        if value not in allowed:
            near = difflib.get_close_matches(value if isinstance(value, str) else "", allowed, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name}={_shown(value)} is not one of {', '.join(map(repr, allowed))}.{hint}")
    default = Config.__dataclass_fields__["checkpoint_interval"].default
    if config.checkpoint != "interval" and config.checkpoint_interval != default:
        raise ConfigError(
            f"checkpoint_interval={config.checkpoint_interval} has no meaning with checkpoint={config.checkpoint!r}: "
            "nothing is written at intervals. Use checkpoint='interval', or drop checkpoint_interval."
        )
    if config.processor_timeout is not None and config.processor_timeout < config.processor_warn_after:
        raise ConfigError(
            f"processor_timeout={config.processor_timeout} is shorter than "
            f"processor_warn_after={config.processor_warn_after}: the warning would never come. Lower the latter."
        )
