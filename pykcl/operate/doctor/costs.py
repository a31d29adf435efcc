"""What a fleet costs in a month beside its stream and its machines. Pure; an estimate, at list prices.

Prices are those of us-east-1 in US dollars, without free tiers, discounts and taxes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pykcl.config import Config
from pykcl.metrics.metering import dimensions_of
from pykcl.metrics.names import CATALOGUE
from pykcl.planning.scan_schedule import units_per_second

PRICES_OF = "us-east-1, 2025"
WRITE_UNIT = 0.625 / 1e6
READ_UNIT = 0.125 / 1e6
PROVISIONED_WRITE_HOUR = 0.00065
PROVISIONED_READ_HOUR = 0.00013
METRIC_MONTH = 0.30
PUT_CALL = 0.01 / 1000
FAN_OUT_SHARD_HOUR = 0.015
HOURS = 730
_SECONDS = HOURS * 3600.0

_ROW_BYTES = 500
_BYTES_PER_READ_UNIT = 8192
_BUSY_PAGES = 4.0
"""Pages a second of a shard that always has records; with checkpoint="auto" each is a write."""
_CAUSES = 6
_METRICS_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class Costs:
    """Dollars a month. table_busy: if every shard had records at any time; table_quiet: if none had."""

    table_quiet: float
    table_busy: float
    cloudwatch: float
    fan_out: float
    metrics: int = 0

    @property
    def least(self) -> float:
        return self.table_quiet + self.cloudwatch + self.fan_out

    @property
    def most(self) -> float:
        return self.table_busy + self.cloudwatch + self.fan_out


def costs_of(
    config: Config,
    *,
    shards: int,
    workers: int,
    consumers: int = 0,
    provisioned: tuple[float, float] | None = None,
) -> Costs:
    """shards: that are read. consumers: of enhanced fan-out. provisioned: read and write units of the lease table."""
    if provisioned is not None:
        read, write = provisioned
        quiet = busy = HOURS * (read * PROVISIONED_READ_HOUR + write * PROVISIONED_WRITE_HOUR)
    else:
        units_per_scan = max(0.5, shards * _ROW_BYTES / _BYTES_PER_READ_UNIT)
        units = units_per_second(
            mode=config.table_looks,
            workers=max(1, workers),
            leases=shards,
            read_units=units_per_scan,
            failover_time=config.failover_time,
        )
        looking = _SECONDS * units * READ_UNIT
        quiet = looking + heartbeats_per_second(config, shards) * _SECONDS * WRITE_UNIT
        busy = quiet + checkpoints_per_second(config, shards) * _SECONDS * WRITE_UNIT
    metrics = metrics_of(config, shards, workers)
    return Costs(
        quiet,
        busy,
        _cloudwatch(config, metrics, workers),
        consumers * shards * HOURS * FAN_OUT_SHARD_HOUR,
        metrics,
    )


def heartbeats_per_second(config: Config, shards: int) -> float:
    """Writes, one unit each."""
    return shards / config.renew_interval


def checkpoints_per_second(config: Config, shards: int) -> float:
    """At most, one unit each; a processor that checkpoints by itself is taken for a diligent one."""
    return shards / config.checkpoint_interval if config.checkpoint == "interval" else shards * _BUSY_PAGES


def metrics_of(config: Config, shards: int, workers: int) -> int:
    """How many CloudWatch counts: one for each set of values of the dimensions."""
    if "cloudwatch" not in config.metrics_sinks:
        return 0
    on = set(dimensions_of(config))
    sizes = {"ShardId": shards, "WorkerIdentifier": workers, "Cause": _CAUSES}
    total = 0
    for measure in CATALOGUE:
        if measure.level == "DETAILED" and config.metrics_level != "DETAILED":
            continue
        series = 1
        for dimension in measure.dimensions:
            series *= sizes.get(dimension, 1) if dimension in on else 1
        total += series
    return total


def _cloudwatch(config: Config, metrics: int, workers: int) -> float:
    if not metrics:
        return 0.0
    calls = workers * max(1.0, metrics / workers / _METRICS_PER_CALL) * _SECONDS / config.metrics_buffer_time
    return metrics * METRIC_MONTH + calls * PUT_CALL
