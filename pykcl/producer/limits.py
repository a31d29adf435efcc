"""The rate at which one shard is written to: that of Kinesis, and less after it has refused records."""

from __future__ import annotations

from math import inf

BYTES_PER_SECOND = 1024 * 1024
RECORDS_PER_SECOND = 1000
"""What one shard takes: payloads with partition keys, and Kinesis records (Kinesis quotas)."""
_CUT = 0.7
_LEAST_SHARE = 0.1
_RECOVERY = 0.05
"""Share of the full rate that comes back with each second."""
_SECONDS_BETWEEN_CUTS = 1.0
_NO_TIME = 1e-6
"""Seconds; less than that is an error of rounding."""


class ShardRate:
    """Allowance of one shard, at most that of one second. All times are monotonic seconds.

    scale: times the rate of Kinesis; less than 1 where several producers share the shards; inf: no limit. A throttled
    shard cuts the rate, as another writer may have its part of it; the rate comes back within seconds.
    """

    __slots__ = ("_at", "_bytes", "_cut_at", "_records", "_scale", "_share")

    def __init__(self, scale: float, now: float) -> None:
        self._scale = scale
        self._share = 1.0
        self._at = self._cut_at = now
        self._bytes = BYTES_PER_SECOND * scale
        self._records = RECORDS_PER_SECOND * scale

    @property
    def share(self) -> float:
        """Part of the full rate that is used now, above 0 and up to 1."""
        return self._share

    def allowed_bytes(self, now: float) -> float:
        """Return the bytes that may go now; negative behind a large record."""
        self._refill(now)
        return self._bytes

    def wait_for(self, size: int, now: float) -> float:
        """Return the seconds until one more Kinesis record of `size` bytes may go; 0.0 if it may go now."""
        if self._scale == inf:
            return 0.0
        self._refill(now)
        # A record larger than the allowance of a second goes when nothing else has gone for that long.
        bytes_short = min(size, BYTES_PER_SECOND * self._scale) - self._bytes
        records_short = min(1.0, RECORDS_PER_SECOND * self._scale) - self._records
        rate = self._scale * self._share
        if bytes_short <= 0 and records_short <= 0:
            return 0.0
        wait = max(bytes_short / (BYTES_PER_SECOND * rate), records_short / (RECORDS_PER_SECOND * rate))
        return wait if wait > _NO_TIME else 0.0

    def spend(self, size: int) -> None:
        """Count one Kinesis record; call `wait_for` first."""
        self._bytes -= size
        self._records -= 1

    def throttled(self, now: float) -> None:
        """Go slower: the shard has refused records for their rate. Once a second at most, as requests overlap."""
        self._refill(now)
        self._bytes, self._records = min(self._bytes, 0.0), min(self._records, 0.0)
        if self._share == 1.0 or now - self._cut_at >= _SECONDS_BETWEEN_CUTS:
            self._share = max(_LEAST_SHARE, self._share * _CUT)
            self._cut_at = now

    def _refill(self, now: float) -> None:
        passed = now - self._at
        if passed <= 0 or self._scale == inf:
            return
        self._at = now
        rate = self._scale * self._share
        self._bytes = min(BYTES_PER_SECOND * self._scale, self._bytes + passed * BYTES_PER_SECOND * rate)
        self._records = min(
            RECORDS_PER_SECOND * self._scale, self._records + passed * RECORDS_PER_SECOND * rate
        )
        self._share = min(1.0, self._share + passed * _RECOVERY)
