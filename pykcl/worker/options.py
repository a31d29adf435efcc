"""Keyword arguments of Worker: their types, for type checkers and editors, and the Config that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from pykcl.config import CheckpointMode, Config, HttpTransport, LeaseScanMode, OnError, RecordEncoding
from pykcl.errors import ConfigError
from pykcl.event_dispatch import Listener
from pykcl.interfaces import LeaseTable, Stream
from pykcl.metrics.catalog import MetricsLevel
from pykcl.metrics.meter import MetricsSink
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Runtime


class _Processor(TypedDict):
    processor: ProcessorFactory


class Surroundings(_Processor, total=False):
    """Arguments of a Worker besides its configuration."""

    session: Any
    clients: Mapping[str, Any] | None
    on_event: Listener | Sequence[Listener]
    metrics_sinks: Sequence[MetricsSink]


class WorkerOptions(Surroundings, total=False):
    """All that, and the fields of Config besides application and stream."""

    table_name: str | None
    region: str | None
    worker_id: str | None
    initial_position: str | datetime
    checkpoint_mode: CheckpointMode
    checkpoint_interval: float
    on_error: OnError
    retry_timeout: float
    failover_time: float
    max_leases: int
    max_leases_to_steal_at_one_time: int
    max_records: int
    call_with_empty_batches: bool
    show_errors: bool
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
    unsafe_join_v3: bool
    metrics: str
    metrics_level: MetricsLevel
    metrics_dimensions: str
    metrics_namespace: str | None
    metrics_buffer_time: float
    metrics_queue_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeams:
    """Replacements for parts of a worker, which only simulations, tests and tools of pykcl need.

    adapters: in place of those of AWS. listeners: called with every event at once, in the thread in which it happens.
    """

    adapters: tuple[LeaseTable, Stream] | None = None
    listeners: Sequence[Listener] = ()
    runtime: Runtime | None = None


def config_of(application: str | None, config: Config | None, options: dict[str, Any]) -> Config:
    """Return the configuration that the arguments of Worker make. Raises ConfigError."""
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
    return config
