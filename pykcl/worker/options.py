"""What Worker takes by keyword, for type checkers and editors: nothing here is imported when a program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from pykcl.config import CheckpointMode, OnError, TableLooks, Transport, Wire
from pykcl.listeners import Listener
from pykcl.metrics.catalog import MetricsLevel
from pykcl.metrics.meter import Sink
from pykcl.ports import LeaseTable, Stream
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Runtime


class _Processor(TypedDict):
    processor: ProcessorFactory


class Surroundings(_Processor, total=False):
    """What a Worker takes besides its configuration."""

    session: Any
    clients: Mapping[str, Any] | None
    adapters: tuple[LeaseTable, Stream] | None
    listeners: Sequence[Listener]
    on_event: Listener | Sequence[Listener]
    metrics_sinks: Sequence[Sink]
    runtime: Runtime | None


class WorkerOptions(Surroundings, total=False):
    """All that, and the fields of Config besides application and stream."""

    table_name: str | None
    region: str | None
    worker_id: str | None
    start: str | datetime
    checkpoint: CheckpointMode
    checkpoint_interval: float
    on_error: OnError
    retry_for: float
    failover_time: float
    max_leases: int
    max_leases_to_steal_at_one_time: int
    max_records: int
    empty_batches: bool
    show_errors: bool
    idle_time: float | None
    max_buffered_bytes: int
    transport: Transport
    wire: Wire
    shard_sync_interval: float
    parent_poll_interval: float
    cleanup_interval: float
    audit_interval: float
    audit_confirmations: int
    shutdown_grace: float
    processor_warn_after: float
    processor_timeout: float | None
    create_table: bool
    table_deletion_protection: bool
    table_recovery: bool
    table_looks: TableLooks
    state_table: str | None
    unsafe_join_v3: bool
    metrics: str
    metrics_level: MetricsLevel
    metrics_dimensions: str
    metrics_namespace: str | None
    metrics_buffer_time: float
    metrics_queue_size: int
