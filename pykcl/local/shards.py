"""The content of a stream: records, shards that hold them and limit their rates, and the routing of new records.

Rates are limited as Kinesis does, per shard, by token buckets over an injected clock. Not thread-safe by itself:
`LocalKinesis` holds one lock around everything here.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from pykcl.local.errors import ACCOUNT, not_found
from pykcl.model.shard import HashRange, Shard


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


HASH_KEYS = 1 << 128
MAX_PAGE_BYTES = 10 * 1024 * 1024
HOUR_MILLIS = 3_600_000
SMALLEST_MAX_RECORD_KIB = 1024
LARGEST_MAX_RECORD_KIB = 10_240
"""Between these UpdateMaxRecordSize sets what a record of the stream may have, payload and partition key together."""


class StoredRecord:
    """One stored record.

    json, cbor: its entry in a GetRecords answer of that format, kept from the first time it is served; the CBOR without
    the data, which come last in it.
    """

    __slots__ = ("arrived_at_millis", "cbor", "data", "json", "partition_key", "sequence_number", "size")

    def __init__(self, data: bytes, partition_key: str, sequence_number: str, arrived_at_millis: int) -> None:
        self.data = data
        self.partition_key = partition_key
        self.sequence_number = sequence_number
        self.arrived_at_millis = arrived_at_millis
        self.size = len(data) + len(partition_key.encode())
        self.json: bytes | None = None
        self.cbor: bytes | None = None


def sequence_of(record: StoredRecord) -> str:
    return record.sequence_number


def _arrival_of(record: StoredRecord) -> int:
    return record.arrived_at_millis


def following(sequence_number: str) -> str:
    """The position just after a sequence number, 56 digits."""
    return f"{int(sequence_number) + 1:056d}"


class Sequencer:
    """Hands out 56-digit sequence numbers, strictly increasing over all shards of a stream.

    Layout: 49, 13 digits of time (never going back), a 30-digit counter, 11 digits of shard index. All have
    the same length, so comparing the texts compares the numbers.
    """

    def __init__(self) -> None:
        self._millis = 0
        self._count = 0
        self.last = f"{0:056d}"

    def next(self, shard_index: int, now_millis: int) -> str:
        self._millis = max(self._millis, now_millis)
        self._count += 1
        self.last = f"49{self._millis:013d}{self._count:030d}{shard_index:011d}"
        return self.last


def millis_in(sequence_number: str) -> int:
    """The time a sequence number of ours carries, epoch milliseconds."""
    return int(sequence_number[2:15])


def shard_index_in(sequence_number: str) -> int | None:
    """The shard index a sequence number carries; None when it is not one of ours."""
    if len(sequence_number) != 56 or not sequence_number.startswith("49"):
        return None
    return int(sequence_number[-11:])


class LocalShard:
    """One shard: the closed hash range `first_key`..`last_key`, its records, its place in the lineage.

    Every record's arrival time is >= created_at and < closed_at (epoch milliseconds): the shard filters
    AT_TIMESTAMP and AT_TRIM_HORIZON would otherwise miss records put in the millisecond of a reshard.
    """

    def __init__(
        self,
        index: int,
        *,
        first_key: int,
        last_key: int,
        parents: tuple[str, ...],
        created_at: int,
        starting_sequence_number: str,
        limits: ShardLimits | None,
    ) -> None:
        self.index = index
        self.shard_id = f"shardId-{index:012d}"
        self.first_key = first_key
        self.last_key = last_key
        self.parents = parents
        self.created_at = created_at
        self.closed_at: int | None = None
        self.starting_sequence_number = starting_sequence_number
        self.ending_sequence_number: str | None = None
        self.records: list[StoredRecord] = []
        self.latest_arrival = created_at
        self.limits = limits

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    def append(self, data: bytes, partition_key: str, sequence_number: str, now_millis: int) -> StoredRecord:
        self.latest_arrival = max(self.latest_arrival, now_millis)
        record = StoredRecord(data, partition_key, sequence_number, self.latest_arrival)
        self.records.append(record)
        return record

    def close(self, ending_sequence_number: str, now_millis: int) -> int:
        """End the shard; return the moment, which is later than every arrival in it."""
        self.closed_at = max(now_millis, self.latest_arrival + 1)
        self.ending_sequence_number = ending_sequence_number
        return self.closed_at

    def trim(self, horizon: int) -> None:
        """Forget records that arrived before `horizon`, epoch milliseconds."""
        if self.records and self.records[0].arrived_at_millis < horizon:
            del self.records[: bisect_left(self.records, horizon, key=_arrival_of)]

    def at_or_after(self, position: str) -> int:
        """Index of the first record with a sequence number >= position."""
        return bisect_left(self.records, position, key=sequence_of)

    def position_at_time(self, at_millis: int, tip: str) -> str:
        """Position of the first record that arrived at or after `at_millis`; `tip` when there is none."""
        index = bisect_left(self.records, at_millis, key=_arrival_of)
        return self.records[index].sequence_number if index < len(self.records) else tip

    def arrived_before(self, first: int, until: int) -> int:
        """Index, from `first` on, of the first record that arrived at `until` (epoch milliseconds) or later."""
        return bisect_left(self.records, until, lo=first, key=_arrival_of)

    def page(self, first: int, last: int) -> list[StoredRecord]:
        """The records first..last - 1, as far as 10 MiB go; always at least one when there is one."""
        records = self.records[first:last]
        total = 0
        for count, record in enumerate(records):
            total += record.size
            if total > MAX_PAGE_BYTES and count > 0:
                return records[:count]
        return records

    def is_open_at(self, moment: int) -> bool:
        return self.closed_at is None or self.closed_at > moment

    def view(self, as_of: int | None = None) -> Shard:
        """The shard now, or (as_of, epoch milliseconds) then."""
        has_ended = as_of is None or not self.is_open_at(as_of)
        return Shard(
            self.shard_id,
            self.parents,
            HashRange(str(self.first_key), str(self.last_key)),
            self.starting_sequence_number,
            self.ending_sequence_number if has_ended else None,
        )


class LocalStream:
    """One stream: its shards by id in order of creation (trimmed ones leave) and its description."""

    def __init__(self, name: str, arn: str, incarnation: str, now_millis: int, limits: bool) -> None:
        self.name = name
        self.arn = arn
        self.incarnation = incarnation
        self.created_at = now_millis
        self.mode = "PROVISIONED"
        self.retention_hours = 24
        self.max_record_kib = SMALLEST_MAX_RECORD_KIB
        self.tags: dict[str, str] = {}
        self.status = "CREATING"
        self.changes_at: int | None = None
        self.change: Callable[[int], None] | None = None
        self.shards: dict[str, LocalShard] = {}
        self.open_shards: list[LocalShard] = []
        self.put_counts: dict[str, int] = {}
        self.sequencer = Sequencer()
        self._first_keys: list[int] = []
        self._limits = limits
        self._shard_count = 0

    def horizon(self, now_millis: int) -> int:
        """The trim horizon: older records are gone. Epoch milliseconds."""
        return max(self.created_at, now_millis - self.retention_hours * HOUR_MILLIS)

    def trim(self, now_millis: int) -> None:
        """Forget records older than the retention, and closed shards that ended before it."""
        for shard_id in list(self.shards):
            self.trim_shard(shard_id, now_millis)

    def trim_shard(self, shard_id: str, now_millis: int) -> None:
        """`trim`, for one shard only."""
        shard = self.shards.get(shard_id)
        horizon = self.horizon(now_millis)
        if shard is None:
            return
        if shard.closed_at is not None and shard.closed_at <= horizon:
            del self.shards[shard_id]
        else:
            shard.trim(horizon)

    def add_shard(
        self, first_key: int, last_key: int, parents: tuple[str, ...], created_at: int
    ) -> LocalShard:
        index = self._shard_count
        self._shard_count += 1
        limits = ShardLimits(created_at) if self._limits else None
        start = self.sequencer.next(index, created_at)
        shard = LocalShard(
            index,
            first_key=first_key,
            last_key=last_key,
            parents=parents,
            created_at=created_at,
            starting_sequence_number=start,
            limits=limits,
        )
        self.shards[shard.shard_id] = shard
        return shard

    def route_anew(self) -> None:
        """Call after shards were opened or closed."""
        self.open_shards = sorted((s for s in self.shards.values() if s.is_open), key=lambda s: s.first_key)
        self._first_keys = [shard.first_key for shard in self.open_shards]

    def shard_for(self, partition_key: str, explicit_hash_key: int | None) -> LocalShard:
        """The open shard for a key: the MD5 of the partition key, unless a hash key (0..2^128-1) is given."""
        key = explicit_hash_key
        if key is None:
            key = int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")
        return self.open_shards[bisect_right(self._first_keys, key) - 1]

    def shard(self, shard_id: str) -> LocalShard:
        """Raises AwsError ResourceNotFoundException for an unknown or trimmed shard."""
        found = self.shards.get(shard_id)
        if found is None:
            raise not_found(f"Shard {shard_id} in stream {self.name} under account {ACCOUNT} does not exist")
        return found

    def children_of(self, shard: LocalShard) -> tuple[Shard, ...]:
        return tuple(s.view() for s in self.shards.values() if shard.shard_id in s.parents)
