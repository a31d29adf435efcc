"""Shards of a stream: their records, limits and lineage; the routing of new records; split, merge and scaling.

Rates are limited as Kinesis does, per shard, by token buckets over an injected clock. Not thread-safe by itself:
`LocalKinesis` holds a lock around every call.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from pykcl.local.errors import ACCOUNT, in_use, invalid_argument, limit_exceeded, not_found
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
"""Bounds of UpdateMaxRecordSize, for payload and partition key together."""


class StoredRecord:
    """One stored record.

    json, cbor: its entry in a GetRecords response of that format, cached when it is first served; the CBOR without the
    data, which come last in it.
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
    """Return the number just after a sequence number, 56 digits."""
    return f"{int(sequence_number) + 1:056d}"


class Sequencer:
    """Generator of 56-digit sequence numbers, strictly increasing over all shards of a stream.

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
    """Return the time in a sequence number of `Sequencer`, epoch milliseconds."""
    return int(sequence_number[2:15])


def shard_index_in(sequence_number: str) -> int | None:
    """Return the shard index in a sequence number; None if it is not of `Sequencer`."""
    if len(sequence_number) != 56 or not sequence_number.startswith("49"):
        return None
    return int(sequence_number[-11:])


class LocalShard:
    """One shard: the closed hash range `first_key`..`last_key`, its records, its place in the lineage.

    listeners: called for each new record, and at its end.

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
        self.listeners: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    def append(self, data: bytes, partition_key: str, sequence_number: str, now_millis: int) -> StoredRecord:
        self.latest_arrival = max(self.latest_arrival, now_millis)
        record = StoredRecord(data, partition_key, sequence_number, self.latest_arrival)
        self.records.append(record)
        self._notify()
        return record

    def close(self, ending_sequence_number: str, now_millis: int) -> int:
        """End the shard; return the time of it, which is later than every arrival."""
        self.closed_at = max(now_millis, self.latest_arrival + 1)
        self.ending_sequence_number = ending_sequence_number
        self._notify()
        return self.closed_at

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()

    def trim(self, horizon: int) -> None:
        """Drop records that arrived before `horizon`, epoch milliseconds."""
        if self.records and self.records[0].arrived_at_millis < horizon:
            del self.records[: bisect_left(self.records, horizon, key=_arrival_of)]

    def at_or_after(self, position: str) -> int:
        """Return the index of the first record with a sequence number >= position."""
        return bisect_left(self.records, position, key=sequence_of)

    def position_at_time(self, at_millis: int, tip: str) -> str:
        """Return the position of the first record that arrived at or after `at_millis`; `tip` if there is none."""
        index = bisect_left(self.records, at_millis, key=_arrival_of)
        return self.records[index].sequence_number if index < len(self.records) else tip

    def arrived_before(self, first: int, until: int) -> int:
        """Return the index from `first` on of the first record that arrived at `until`, epoch millis, or later."""
        return bisect_left(self.records, until, lo=first, key=_arrival_of)

    def page(self, first: int, last: int, max_bytes: int = MAX_PAGE_BYTES) -> list[StoredRecord]:
        """Return the records first..last - 1 up to `max_bytes`, but at least one."""
        records = self.records[first:last]
        total = 0
        for count, record in enumerate(records):
            total += record.size
            if total > max_bytes and count > 0:
                return records[:count]
        return records

    def is_open_at(self, at: int) -> bool:
        return self.closed_at is None or self.closed_at > at

    def view(self, as_of: int | None = None) -> Shard:
        """Return the shard as it is listed now, or was at `as_of`, epoch milliseconds."""
        has_ended = as_of is None or not self.is_open_at(as_of)
        return Shard(
            self.shard_id,
            self.parents,
            HashRange(self.first_key, self.last_key),
            self.starting_sequence_number,
            self.ending_sequence_number if has_ended else None,
        )


class LocalStream:
    """One stream: its description, and its shards by id in order of creation, without trimmed ones."""

    def __init__(self, name: str, arn: str, incarnation: str, now_millis: int, limits: bool) -> None:
        self.name = name
        self.arn = arn
        self.incarnation = incarnation
        self.created_at = now_millis
        self.mode = "PROVISIONED"
        self.distribution: str | None = None
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
        """Return the trim horizon, epoch milliseconds: older records are dropped."""
        return max(self.created_at, now_millis - self.retention_hours * HOUR_MILLIS)

    def trim(self, now_millis: int) -> None:
        """Drop records older than the retention, and closed shards that ended before it."""
        for shard_id in list(self.shards):
            self.trim_shard(shard_id, now_millis)

    def trim_shard(self, shard_id: str, now_millis: int) -> None:
        """Do `trim` for one shard."""
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

    def update_routes(self) -> None:
        """Call after shards were opened or closed."""
        self.open_shards = sorted((s for s in self.shards.values() if s.is_open), key=lambda s: s.first_key)
        self._first_keys = [shard.first_key for shard in self.open_shards]

    def shard_for(self, partition_key: str, explicit_hash_key: int | None) -> LocalShard:
        """Return the open shard of the partition key's MD5, or of a given hash key (0..2^128-1)."""
        key = explicit_hash_key
        if key is None:
            key = int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")
        return self.open_shards[bisect_right(self._first_keys, key) - 1]

    def shard(self, shard_id: str) -> LocalShard:
        """Return a shard. Raises AwsError ResourceNotFoundException if it is unknown or trimmed."""
        found = self.shards.get(shard_id)
        if found is None:
            raise not_found(f"Shard {shard_id} in stream {self.name} under account {ACCOUNT} does not exist")
        return found

    def children_of(self, shard: LocalShard) -> tuple[Shard, ...]:
        return tuple(s.view() for s in self.shards.values() if shard.shard_id in s.parents)


def create_shards(stream: LocalStream, count: int, now_millis: int) -> None:
    """Create the first shards of a stream: equal parts of the hash keys."""
    for start, end in uniform_ranges(count):
        stream.add_shard(start, end, (), now_millis)
    stream.update_routes()


def uniform_ranges(count: int) -> list[tuple[int, int]]:
    """Return `count` closed ranges that together cover 0..2^128-1."""
    edges = [number * HASH_KEYS // count for number in range(count + 1)]
    return [(edges[number], edges[number + 1] - 1) for number in range(count)]


def eligible(stream: LocalStream, shard_id: str) -> LocalShard:
    """Return an open shard. Raises AwsError if it is unknown, or was split or merged before."""
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise not_found(f"Could not find shard {shard_id} in stream {stream.name} under account {ACCOUNT}.")
    if not shard.is_open:
        raise invalid_argument(
            f"Shard {shard_id} in stream {stream.name} under account {ACCOUNT} has already been merged or "
            "split, and thus is not eligible for merging or splitting."
        )
    return shard


def require_active(stream: LocalStream) -> None:
    if stream.status != "ACTIVE":
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} not ACTIVE, instead in state {stream.status}"
        )


def check_split(stream: LocalStream, shard_id: str, new_first_key: int) -> None:
    """Raise AwsError as SplitShard does."""
    require_active(stream)
    shard = eligible(stream, shard_id)
    if not shard.first_key + 1 < new_first_key < shard.last_key:
        raise invalid_argument(
            f"NewStartingHashKey {new_first_key} used in SplitShard() on shard {shard_id} in stream "
            f"{stream.name} under account {ACCOUNT} is not both greater than one plus the shard's "
            f"StartingHashKey {shard.first_key} and less than the shard's EndingHashKey {shard.last_key}."
        )


def check_merge(stream: LocalStream, shard_id: str, adjacent_id: str) -> None:
    """Raise AwsError as MergeShards does."""
    require_active(stream)
    first, second = sorted(
        (eligible(stream, shard_id), eligible(stream, adjacent_id)), key=lambda shard: shard.first_key
    )
    if first.last_key + 1 != second.first_key:
        raise invalid_argument(
            f"Shards {shard_id} and {adjacent_id} in stream {stream.name} under account {ACCOUNT} "
            "are not an adjacent pair of shards eligible for merging"
        )


def check_update_count(stream: LocalStream, target: int) -> None:
    """Raise AwsError as UpdateShardCount does."""
    require_active(stream)
    current = len(stream.open_shards)
    if not 1 <= target <= 10_000:
        raise invalid_argument(f"TargetShardCount {target} must be between 1 and 10000.")
    if target > 2 * current or 2 * target < current:
        raise limit_exceeded(
            f"UpdateShardCount cannot scale from {current} to {target} open shards: one call may at most "
            "double and at least halve the current count."
        )


def split_shard(stream: LocalStream, shard: LocalShard, new_first_key: int, now_millis: int) -> None:
    """Close a shard and open its two children, the lower one first."""
    at = _close(stream, shard, now_millis)
    stream.add_shard(shard.first_key, new_first_key - 1, (shard.shard_id,), at)
    stream.add_shard(new_first_key, shard.last_key, (shard.shard_id,), at)
    stream.update_routes()


def merge_shards(stream: LocalStream, shard: LocalShard, adjacent: LocalShard, now_millis: int) -> None:
    """Close two adjacent shards at the same time and open their child."""
    latest = max(now_millis, shard.latest_arrival + 1, adjacent.latest_arrival + 1)
    at = _close(stream, shard, latest)
    _close(stream, adjacent, latest)
    stream.add_shard(
        min(shard.first_key, adjacent.first_key),
        max(shard.last_key, adjacent.last_key),
        (shard.shard_id, adjacent.shard_id),
        at,
    )
    stream.update_routes()


def scale_shards(stream: LocalStream, target: int, now_millis: int) -> None:
    """Split at every edge of the wanted equal ranges, then merge the shards inside each range."""
    wanted = uniform_ranges(target)
    for edge, _ in wanted[1:]:
        shard = stream.shard_for("", edge)
        if shard.first_key < edge:
            split_shard(stream, shard, edge, now_millis)
    for first_key, last_key in wanted:
        while True:
            inside = [s for s in stream.open_shards if first_key <= s.first_key and s.last_key <= last_key]
            if len(inside) < 2:
                break
            merge_shards(stream, inside[0], inside[1], now_millis)


def _close(stream: LocalStream, shard: LocalShard, now_millis: int) -> int:
    # The ending number is greater than those of all records and less than those of the children.
    return shard.close(stream.sequencer.next(shard.index, now_millis), now_millis)
