"""Keyword arguments of Worker: their types, for type checkers and editors, and the Config that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, TypedDict

from pykcl.config import (
    CheckpointMode,
    Config,
    Eligibility,
    FanoutTransport,
    FleetMode,
    HttpTransport,
    LeaseScanMode,
    OnError,
    RecordEncoding,
    Retrieval,
    WorkerMetricsKind,
)
from pykcl.errors import ConfigError
from pykcl.event_dispatch import Listener
from pykcl.interfaces import DeadLetterDestination, LeaseTable, Stream
from pykcl.metrics.catalog import MetricsLevel
from pykcl.metrics.host_cpu import HostSource
from pykcl.metrics.meter import MetricsSink
from pykcl.model.dead_letter import DeadLetter
from pykcl.processor import ProcessorFactory, why_it_runs_nothing
from pykcl.runtime import Runtime
from pykcl.stores import SQLiteLeaseTable, open_client
from pykcl.worker.batch_delivery import CallableDestination

DeadLetters = str | DeadLetterDestination | Callable[[Sequence[DeadLetter]], None]
"""What the argument `dead_letters` of a Worker may be. A function is called in the thread of the shard."""


class _Processor(TypedDict):
    processor: ProcessorFactory


class _Around(TypedDict, total=False):
    session: Any
    clients: Mapping[str, Any] | None
    lease_table: SQLiteLeaseTable | None
    on_event: Listener | Sequence[Listener | None] | None
    metrics_sinks: Sequence[MetricsSink] | None
    dead_letters: DeadLetters | None


class Surroundings(_Processor, _Around):
    """Arguments of a Worker besides its configuration."""


class AppOptions(_Around, total=False):
    """Arguments of a Worker that may be given to an App: all but application, stream and processor."""

    table_name: str | None
    region: str | None
    worker_id: str | None
    initial_position: str | datetime
    until: str | datetime | None
    shards: str | None
    checkpoint_mode: CheckpointMode
    checkpoint_interval: float
    max_unacked: int
    on_error: OnError
    retry_timeout: float
    batch_size: int | None
    batch_window: float
    max_attempts: int | None
    bisect: bool
    max_record_age: float | None
    dead_letters_in_a_row: int
    failover_time: float
    max_leases: int
    max_leases_to_steal_at_one_time: int
    max_records: int
    max_records_per_second: float | None
    deaggregate: bool
    call_with_empty_batches: bool
    show_errors: bool
    retrieval: Retrieval
    consumer: str | None
    register_consumer: bool
    fanout_transport: FanoutTransport
    idle_time_between_reads: float | None
    max_buffered_bytes: int
    http_transport: HttpTransport
    record_encoding: RecordEncoding
    shard_sync_interval: float
    parent_shard_poll_interval: float
    cleanup_interval: float
    audit_interval: float
    audit_confidence_threshold: int
    shutdown_grace: float
    processor_warn_after: float
    processor_timeout: float | None
    create_table: bool
    table_deletion_protection: bool
    point_in_time_recovery: bool
    lease_scan_mode: LeaseScanMode
    coordinator_state_table: str | None
    fleet_mode: FleetMode
    worker_metrics_interval: float
    worker_metrics: WorkerMetricsKind
    worker_metrics_table: str | None
    graceful_handoff_timeout: float
    rescue: bool
    leader: Eligibility
    metrics: str
    metrics_level: MetricsLevel
    metrics_dimensions: str
    metrics_namespace: str | None
    metrics_buffer_time: float
    metrics_queue_size: int


class WorkerOptions(Surroundings, AppOptions):
    """Arguments of a Worker but application and stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeams:
    """Replacements for parts of a worker, which only simulations, tests and tools of pykcl need.

    adapters: in place of those of AWS. listeners: called with every event at once, in the thread in which it happens.
    host: in place of this one; with other adapters none is read without it.
    """

    adapters: tuple[LeaseTable, Stream] | None = None
    listeners: Sequence[Listener] = ()
    runtime: Runtime | None = None
    host: HostSource | None = None


_OF_DYNAMODB = (
    "table_deletion_protection", "point_in_time_recovery", "coordinator_state_table", "worker_metrics_table",
)  # fmt: skip
_DEFAULTS = {field.name: field.default for field in fields(Config)}


def clients_with(
    lease_table: SQLiteLeaseTable | None, clients: Mapping[str, Any] | None, config: Config
) -> Mapping[str, Any] | None:
    """Return the clients, with the lease table for that of DynamoDB. Raises ConfigError for what contradicts it."""
    if lease_table is None:
        return clients
    given: object = lease_table
    if not isinstance(given, SQLiteLeaseTable):
        raise ConfigError(
            f"lease_table={type(lease_table).__name__} is no lease table. "
            "Do: lease_table=SQLiteLeaseTable('orders.db')."
        )
    if clients and clients.get("dynamodb") is not None:
        raise ConfigError(
            "lease_table= and clients={'dynamodb': …} both say where the leases are. Drop one of them."
        )
    for option in _OF_DYNAMODB:
        value = getattr(config, option)
        if value != _DEFAULTS[option]:
            raise ConfigError(
                f"lease_table={lease_table!r} and {option}={value!r} do not go together: the latter is about a lease "
                "table in DynamoDB. Drop one."
            )
    return {**(clients or {}), "dynamodb": open_client(lease_table, config.request_timeout)}


def given_listeners(given: Any) -> tuple[Listener, ...]:
    """Return the functions that on_event= names; None is none. Raises ConfigError."""
    several = isinstance(given, Iterable) and not callable(given) and not isinstance(given, str)
    found = [each for each in (given if several else [given]) if each is not None]
    for each in found:
        name = getattr(each, "__name__", type(each).__name__)
        kind = why_it_runs_nothing(each) if callable(each) else None
        if not callable(each) or kind is not None:
            why = f"{kind}: a call of it runs nothing" if kind else "no function"
            raise ConfigError(
                f"on_event={name} is {why}. Do: on_event=function, with a plain def function(event), or a list of such."
            )
    return tuple(found)


CALLABLE = "callable"
"""The option dead_letters of a worker that is given an object."""


def given_destination(config: Config, given: DeadLetters | None) -> DeadLetterDestination | None:
    """Return the object that keeps the dead letters; None where a text names the destination, or there is none.

    Raises ConfigError.
    """
    if given is None or isinstance(given, str):
        if config.dead_letters == CALLABLE:
            raise ConfigError(
                "dead_letters='callable' wants an object of yours. Do: Worker(dead_letters=keep), with a function that "
                "takes the letters; or name another destination."
            )
        return None
    if isinstance(given, DeadLetterDestination):
        return given
    if not callable(given):
        raise ConfigError(
            f"dead_letters={type(given).__name__} is neither text nor a function nor a DeadLetterDestination."
        )
    kind = why_it_runs_nothing(given)
    if kind is not None:
        raise ConfigError(
            f"dead_letters= names {kind}: a call of it runs nothing, and its letters would count as kept. "
            "Do: write a plain def without yield."
        )
    return CallableDestination(given)


def config_of(
    application: str | None,
    config: Config | None,
    options: dict[str, Any],
    dead_letters: DeadLetters | None = None,
) -> Config:
    """Return the configuration that the arguments of Worker make. Raises ConfigError."""
    if "concurrency" in options:
        count = options["concurrency"]
        raise ConfigError(
            f"concurrency={count!r:.20} is no option of a Worker: it belongs to a function, and a RecordProcessor gets "
            f"one batch after the other. Do: processor=handler(on_record, concurrency={count!r:.20})."
        )
    is_text = isinstance(dead_letters, str)
    if dead_letters is not None and (config is None or is_text):
        options = {**options, "dead_letters": dead_letters if is_text else CALLABLE}
    if config is None:
        if application is None:
            raise ConfigError(
                "No application name. Do: Worker('orders-app', stream='orders', processor=Orders)."
            )
        if "stream" not in options:
            raise ConfigError(
                f"Application {application!r} has no stream. Do: add stream='name' or a stream ARN."
            )
        return Config.from_options({"application": application, **options})
    if options:
        raise ConfigError(
            f"Both config= and the options {', '.join(sorted(options))} were given. Use one of them."
        )
    if application is not None and application != config.application:
        raise ConfigError(
            f"Application {application!r} contradicts config.application={config.application!r}."
        )
    if dead_letters is None or config.dead_letters == CALLABLE:
        return config
    if config.dead_letters is not None:
        raise ConfigError(
            f"config.dead_letters={config.dead_letters!r} contradicts the destination that dead_letters= gives. "
            "Use one of them."
        )
    return replace(config, dead_letters=CALLABLE)
