"""Rates as Kinesis enforces them per shard, as token buckets over an injected clock."""

from __future__ import annotations


class Bucket:
    """Refills `rate` tokens per second, up to `rate`.

    May go into debt: one big read is served, the next ones wait.
    """

    __slots__ = ("_at_millis", "_level", "_rate")

    def __init__(self, rate: float, now_millis: int) -> None:
        self._rate = rate
        self._level = rate
        self._at_millis = now_millis

    def level(self, now_millis: int) -> float:
        """Tokens available now; negative while in debt."""
        passed = max(0, now_millis - self._at_millis)
        self._level = min(self._rate, self._level + passed * self._rate / 1000)
        self._at_millis = max(self._at_millis, now_millis)
        return self._level

    def spend(self, tokens: float) -> None:
        """Take tokens; call `level` first."""
        self._level -= tokens


class ShardLimits:
    """5 reads/s, 2 MB/s read, 1,000 records/s and 1 MB/s written, 5 GetShardIterator/s (Kinesis quotas)."""

    __slots__ = ("iterators", "read_bytes", "reads", "write_bytes", "write_records")

    def __init__(self, now_millis: int) -> None:
        self.reads = Bucket(5, now_millis)
        self.read_bytes = Bucket(2 * 1024 * 1024, now_millis)
        self.write_records = Bucket(1000, now_millis)
        self.write_bytes = Bucket(1024 * 1024, now_millis)
        self.iterators = Bucket(5, now_millis)

    def may_iterate(self, now_millis: int) -> bool:
        if self.iterators.level(now_millis) < 1:
            return False
        self.iterators.spend(1)
        return True

    def may_read(self, now_millis: int) -> bool:
        """Count one read call. Its bytes are counted afterwards, with `read`."""
        if self.reads.level(now_millis) < 1 or self.read_bytes.level(now_millis) <= 0:
            return False
        self.reads.spend(1)
        return True

    def may_write(self, size: int, now_millis: int) -> bool:
        """Count one record of `size` bytes, payload and partition key."""
        room = self.write_bytes.level(now_millis)
        # A record as big as the whole second's allowance passes when nothing else was written.
        if self.write_records.level(now_millis) < 1 or room < min(size, 1024 * 1024):
            return False
        self.write_records.spend(1)
        self.write_bytes.spend(size)
        return True
