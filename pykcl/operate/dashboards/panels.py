"""What is drawn: the same panels for every tool, each of metrics of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pykcl.metrics import names
from pykcl.metrics.names import Measure

Statistic = Literal["Maximum", "Sum", "Average"]
Unit = Literal["milliseconds", "count", "bytes"]


@dataclass(frozen=True, slots=True)
class Panel:
    """text: what it tells, and what to do when it looks bad. ours: Java workers send nothing of it."""

    title: str
    measures: tuple[Measure, ...]
    statistic: Statistic
    unit: Unit
    text: str

    @property
    def ours(self) -> bool:
        return all(measure.is_ours for measure in self.measures)


PANELS = (
    Panel(
        "Behind the tip of the stream", (names.MILLIS_BEHIND_LATEST,), "Maximum", "milliseconds",
        "Per shard. One line that climbs: its processor is too slow, or stands still. All: too few workers. Compare it "
        "with the stream's retention.",
    ),
    Panel(
        "Records processed", (names.RECORDS_PROCESSED,), "Sum", "count",
        "Per shard, user records whose batch returned. None while the lag climbs: the processor hangs or fails.",
    ),
    Panel(
        "Bytes processed", (names.DATA_BYTES_PROCESSED,), "Sum", "bytes",
        "Per shard. Kinesis gives a shard's readers 2 MB a second in all.",
    ),
    Panel(
        "Time of process_records", (names.PROCESS_RECORDS_TIME,), "Average", "milliseconds",
        "Per shard. What one call of your processor takes.",
    ),
    Panel(
        "Trouble in processing",
        (names.PROCESSOR_RETRIES, names.SKIPPED_RECORDS, names.PROCESSOR_STALLED, names.DATA_LOST), "Sum", "count",
        "All zero on a good day. DataLost is the one to be woken for.",
    ),
    Panel(
        "Leases held", (names.CURRENT_LEASES,), "Maximum", "count",
        "Per worker. Their sum is the number of shards that are read.",
    ),
    Panel(
        "Leases lost and taken", (names.LOST_LEASES, names.TAKEN_LEASES), "Sum", "count",
        "Per worker. Without deployments and without reshards this is quiet.",
    ),
    Panel(
        "Leases lost, by cause", (names.LEASES_LOST_BY_CAUSE,), "Sum", "count",
        "Taken by another worker, not renewed in time, row gone.",
    ),
    Panel(
        "Leases that nobody renews", (names.EXPIRED_LEASES, names.VERY_OLD_LEASES), "Maximum", "count",
        "Very old ones mean that nobody takes them: no worker lives, or all are at max_leases.",
    ),
    Panel(
        "Leases beyond max_leases", (names.LEASE_SPILLOVER,), "Maximum", "count",
        "More than zero: the fleet is too small for its shards.",
    ),
    Panel(
        "Workers", (names.NUM_WORKERS,), "Maximum", "count", "As each worker sees the fleet.",
    ),
    Panel(
        "Time to the next owner", (names.HAND_OVER_TIME,), "Maximum", "milliseconds",
        "From the last heartbeat of one owner until the next one reads.",
    ),
    Panel(
        "Slowest heartbeat", (names.RENEW_ALL_LEASES.time,), "Maximum", "milliseconds",
        "Far below half the fail-over time, or leases get lost.",
    ),
    Panel(
        "Hash keys nobody reads", (names.PARTIAL_LEASES,), "Maximum", "count",
        "1: the leader's audit found shards without a lease.",
    ),
)  # fmt: skip
"""In the order in which they are looked at."""
