"""How long to wait: between two reads of a shard, between two scans of the table, between two attempts."""

from __future__ import annotations

from random import Random

SHARD_READ_INTERVAL = 0.2
"""Kinesis allows five reads per second and shard."""
BUSY_INTERVAL = 0.25
READ_UNITS_PER_SECOND = 5.0
"""What one worker spends at most on looking at the lease table."""


def read_pause(records: int, millis_behind: int | None, idle_reads: int, idle_time: float) -> float:
    """Seconds to wait after a page was delivered: as short as allowed while behind, longer while nothing comes.

    idle_reads: how many reads in a row brought nothing, this one included.
    """
    if millis_behind:
        return SHARD_READ_INTERVAL
    if records:
        return min(BUSY_INTERVAL, idle_time)
    return float(min(BUSY_INTERVAL * 2 ** min(idle_reads, 8), idle_time))


def scan_pause(read_units: float, shortest: float, longest: float, rng: Random) -> float:
    """Seconds to the next scan of the lease table: `shortest`, stretched to the budget, at most `longest`."""
    wanted = max(shortest, read_units / READ_UNITS_PER_SECOND)
    return min(wanted, longest) * rng.uniform(0.9, 1.1)


def backoff(attempt: int, rng: Random, *, first: float = 0.1, longest: float = 30.0) -> float:
    """Seconds before attempt `attempt` + 1 (1 = after the first failure): exponential, with jitter."""
    return min(longest, first * 2.0 ** min(attempt - 1, 32)) * rng.uniform(0.5, 1.0)
