"""How long to wait between two attempts, and what scans may cost. When the lease table is looked at is in `looks`, when
a shard is read in `read_pace`."""

from __future__ import annotations

from random import Random

SHARD_READ_INTERVAL = 0.2
"""Kinesis allows five reads per second and shard."""
READ_UNITS_PER_SECOND = 5.0
"""What one worker spends at most on scanning the lease table."""


def jittered(seconds: float, rng: Random) -> float:
    """So that a fleet that started at once does not look at once for ever."""
    return seconds * rng.uniform(0.9, 1.1)


def backoff(attempt: int, rng: Random, *, first: float = 0.1, longest: float = 30.0) -> float:
    """Seconds before attempt `attempt` + 1 (1 = after the first failure): exponential, with jitter."""
    return min(longest, first * 2.0 ** min(attempt - 1, 32)) * rng.uniform(0.5, 1.0)
