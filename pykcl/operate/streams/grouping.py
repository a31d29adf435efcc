"""User records as KPL aggregates: one open aggregate per shard.

A consumer drops an aggregate whole when one of its user records hashes to another shard than the one it is read from
(Java KCL `AggregatorUtil.java`; so does pykcl). When the stream is resharded between the listing and the request, an
aggregate may therefore be in and yet never be seen: the shard id in the answer tells, and its user records are then
grouped anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import md5

from pykcl.aws.stream_admin import NewRecord
from pykcl.model.kpl import AggregatedBlob, Aggregator
from pykcl.model.shard import HashRange, Shard
from pykcl.operate.streams.sending import Parcel

LARGEST_AGGREGATE = 51_200
"""Bytes; the default of the Kinesis Producer Library (AggregationMaxSize)."""

Numbered = tuple[int, NewRecord]
"""Line of input, and its record."""


@dataclass(frozen=True)
class Aggregate(Parcel):
    """A parcel of several user records. built_for: the shard whose hash keys they all have."""

    users: tuple[Numbered, ...] = field(default=(), repr=False)
    built_for: str = ""


class _Group:
    def __init__(self, shard_id: str) -> None:
        self.shard_id = shard_id
        self.aggregator = Aggregator(LARGEST_AGGREGATE)
        self.users: list[Numbered] = []

    def add(self, line: int, record: NewRecord) -> list[Parcel]:
        """What had to be closed for it; the record itself where it fits into no aggregate. In the order of lines."""
        try:
            full = self.aggregator.add(record.partition_key, record.explicit_hash_key, record.data)
        except ValueError:
            return [*self.close(), Parcel(record, (line, line))]
        closed = [] if full is None else [self._parcel(full)]
        self.users.append((line, record))
        return closed

    def close(self) -> list[Parcel]:
        blob = self.aggregator.flush()
        return [] if blob is None else [self._parcel(blob)]

    def _parcel(self, blob: AggregatedBlob) -> Parcel:
        users, self.users = tuple(self.users), []
        if len(users) == 1:
            line, record = users[0]
            # Alone it needs no envelope, and every consumer understands it.
            return Parcel(record, (line, line))
        record = NewRecord(blob.data, blob.partition_key, blob.explicit_hash_key)
        return Aggregate(record, (users[0][0], users[-1][0]), len(users), users, self.shard_id)


class Grouping:
    """shards: the listing of the stream, open and closed."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._groups: dict[str, _Group] = {}
        self._place(shards)

    def add(self, line: int, record: NewRecord) -> list[Parcel]:
        """Take one user record; return what is ready to be sent."""
        shard_id = self._shard_of(_hash_key(record))
        if shard_id is None:
            return [Parcel(record, (line, line))]
        if shard_id not in self._groups:
            self._groups[shard_id] = _Group(shard_id)
        return self._groups[shard_id].add(line, record)

    def close(self) -> list[Parcel]:
        """Everything that is held, ready to be sent."""
        return [parcel for group in self._groups.values() for parcel in group.close()]

    def first_lines(self) -> Iterator[int]:
        """Of each group that holds something: the first line in it."""
        return (group.users[0][0] for group in self._groups.values() if group.users)

    def place_again(self, shards: Iterable[Shard]) -> list[Parcel]:
        """Another listing: what is held is grouped by it. Returns what is ready to be sent."""
        held = sorted(
            (user for group in self._groups.values() for user in group.users), key=lambda user: user[0]
        )
        self._groups = {}
        self._place(shards)
        return [parcel for line, record in held for parcel in self.add(line, record)]

    def is_seen_in(self, parcel: Parcel, shard_id: str) -> bool:
        """Whether consumers of that shard open the aggregate; a shard nobody lists cannot be judged: False."""
        if not isinstance(parcel, Aggregate) or parcel.built_for == shard_id:
            return True
        if shard_id not in self._ranges:
            return False
        first, last = self._ranges[shard_id]
        return all(first <= _hash_key(record) <= last for _, record in parcel.users)

    def _place(self, shards: Iterable[Shard]) -> None:
        shards = list(shards)
        self._ranges = {shard.shard_id: _bounds(shard.hash_range) for shard in shards if shard.hash_range}
        is_open = {shard.shard_id for shard in shards if shard.is_open}
        self._open = sorted(
            (bounds[0], bounds[1], shard_id)
            for shard_id, bounds in self._ranges.items()
            if shard_id in is_open
        )
        self._starts: Sequence[int] = [first for first, _, _ in self._open]

    def _shard_of(self, hash_key: int) -> str | None:
        at = bisect_right(self._starts, hash_key) - 1
        if at < 0 or hash_key > self._open[at][1]:
            return None
        return self._open[at][2]


def _bounds(hash_range: HashRange) -> tuple[int, int]:
    return hash_range.first, hash_range.last


def _hash_key(record: NewRecord) -> int:
    """Kinesis' rule: the explicit one, else the MD5 of the UTF-8 partition key."""
    if record.explicit_hash_key is not None:
        return int(record.explicit_hash_key)
    return int.from_bytes(md5(record.partition_key.encode(), usedforsecurity=False).digest(), "big")
