"""What a fleet pays DynamoDB each month for its leases: formulas, each with where its numbers come from. No I/O.

All per month of 30 days, on demand, us-east-1; eventually consistent scans; checkpoints are not in it (both sides write
them as often as the application says). DynamoDB counts a write in steps of 1 KB, an eventually consistent read as half a
unit for each 4 KB, and a scan by the page of at most 1 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

from pykcl.planning.scan_schedule import units_per_second

WRITE_UNIT_DOLLARS = 0.625e-6
READ_UNIT_DOLLARS = 0.125e-6
SECONDS_PER_MONTH = 30 * 24 * 3600
_READ_STEP = 4096
_PAGE = 1024 * 1024
JAVA_EPSILON = 0.025
"""Seconds: `LeaseManagementConfig.EPSILON_MS` of Java KCL."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Units of a whole fleet per second."""

    writes: float
    reads: float

    @property
    def dollars(self) -> float:
        return SECONDS_PER_MONTH * (self.writes * WRITE_UNIT_DOLLARS + self.reads * READ_UNIT_DOLLARS)


@dataclass(frozen=True, slots=True)
class Measured:
    """Of simulated fleets at rest. row_bytes: a lease row as the library writes it. heartbeat: write units per lease and
    second. other_writes and other_reads: units per worker and second that are neither a lease's heartbeat nor a scan."""

    row_bytes: float
    heartbeat: float
    other_writes: float = 0.0
    other_reads: float = 0.0


def scan_units(shards: int, row_bytes: float) -> float:
    """Of one scan of the table: every page is rounded up."""
    size = shards * row_bytes
    pages = max(1, -(-int(size) // _PAGE))
    steps = -(-int(size / pages) // _READ_STEP)
    return max(1, steps) * 0.5 * pages


def pykcl_rates(shards: int, workers: int, measured: Measured, failover: float = 10.0) -> Rates:
    """Heartbeats for each lease; looks at the table by the product's own rule; for each worker what else it asks."""
    looks = units_per_second(
        mode="auto",
        workers=workers,
        leases=shards,
        read_units=scan_units(shards, measured.row_bytes),
        failover_time=failover,
    )
    return Rates(
        shards * measured.heartbeat + workers * measured.other_writes,
        looks + workers * measured.other_reads,
    )


def java_rates(shards: int, workers: int, row_bytes: float, failover: float = 10.0) -> Rates:
    """Java KCL 2.x as it is documented: each lease is renewed every failover / 3 less 25 ms, each worker scans the table
    every 2 x (failover + 25 ms) (`LeaseCoordinator`, `DynamoDBLeaseCoordinator` of 2.7)."""
    renewals = shards / (failover / 3 - JAVA_EPSILON)
    scans = workers / (2 * (failover + JAVA_EPSILON))
    return Rates(renewals, scans * scan_units(shards, row_bytes))
