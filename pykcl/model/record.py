"""One user record as a processor gets it, whether it arrived alone or inside an aggregated record."""

from __future__ import annotations

import json as _json
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, chain, count, repeat
from operator import eq
from operator import index as as_index
from typing import Any, overload

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.metered_json import MAX_RECORD_VALUES, read_json


class Record:
    """One user record. A slotted value, made once per record on the hot path; treat it as read-only.

    data: the payload, bytes. sequence_number: decimal digits. sub_sequence_number: index inside an aggregated
    record, 0 for a plain one. aggregated: whether it came out of an aggregated record.
    explicit_hash_key: decimal digits, or None; Kinesis returns it for aggregated records only.
    arrived_at_millis: server time of arrival, epoch milliseconds (0.0 where Kinesis sent none).
    """

    __slots__ = (
        "aggregated",
        "arrived_at_millis",
        "data",
        "explicit_hash_key",
        "partition_key",
        "sequence_number",
        "shard_id",
        "stream",
        "sub_sequence_number",
    )

    def __init__(
        self,
        data: bytes,
        partition_key: str,
        sequence_number: str,
        arrived_at_millis: float = 0.0,
        shard_id: str = "",
        stream: str = "",
        sub_sequence_number: int = 0,
        explicit_hash_key: str | None = None,
        aggregated: bool = False,
    ) -> None:
        self.data = data
        self.partition_key = partition_key
        self.sequence_number = sequence_number
        self.arrived_at_millis = arrived_at_millis
        self.shard_id = shard_id
        self.stream = stream
        self.sub_sequence_number = sub_sequence_number
        self.explicit_hash_key = explicit_hash_key
        self.aggregated = aggregated

    @property
    def arrived_at(self) -> datetime:
        """Approximate arrival time at Kinesis, aware, UTC."""
        return datetime.fromtimestamp(self.arrived_at_millis / 1000, tz=UTC)

    @property
    def position(self) -> Checkpoint:
        """The position of the record in its shard."""
        return Checkpoint(self.sequence_number, self.sub_sequence_number)

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text. Raises UnicodeDecodeError when it is not text in that encoding."""
        return self.data.decode(encoding)

    def json(self) -> Any:
        """The payload parsed as JSON. Raises ValueError when it is not JSON, or beyond the limits of `metered_json`."""
        return read_json(self.data, max_values=MAX_RECORD_VALUES, decode=_loads)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Record.__slots__)

    def __hash__(self) -> int:
        return hash((self.shard_id, self.sequence_number, self.sub_sequence_number))

    def __repr__(self) -> str:
        # Never the payload or the partition key: a repr ends up in logs.
        return (
            f"Record(shard_id={self.shard_id!r}, sequence_number={self.sequence_number!r}, "
            f"sub_sequence_number={self.sub_sequence_number}, {len(self.data)} bytes)"
        )


_loads = _json.JSONDecoder().decode

Key = tuple[str, int]
"""Sequence number and sub-sequence number of a record: its position, without the cost of a Checkpoint."""


class LazyRecords(Sequence[Record]):
    """Records that are created one by one when they are asked for, from columns of their fields.

    The garbage collector tracks every Record, but no bytes, str or float. A page of ten thousand records that all exist
    at once makes it collect again and again, and walk all objects of the program each time.
    """

    __slots__ = ()

    @abstractmethod
    def at(self, index: int) -> Record:
        """Create the record at an index from 0 to len - 1."""

    @abstractmethod
    def part(self, start: int, stop: int) -> LazyRecords:
        """Return the records from `start` to `stop`, which lie within 0 to len."""

    @property
    @abstractmethod
    def data_bytes(self) -> int:
        """Total size of the data."""

    @property
    @abstractmethod
    def keys(self) -> Iterable[Key]:
        """The records' keys, in order."""

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self.part(start, max(start, stop))
            return tuple(map(self.at, range(start, stop, step)))
        size, number = len(self), as_index(index)
        if not -size <= number < size:
            raise IndexError(f"record {number} of {size}")
        return self.at(number % size)

    def __reversed__(self) -> Iterator[Record]:
        return map(self.at, range(len(self) - 1, -1, -1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


class PlainRecords(LazyRecords):
    """Kinesis records of one page of a shard.

    Columns of equal length: data, partition_keys, sequence_numbers, arrivals (epoch milliseconds). Read-only.
    """

    __slots__ = ("arrivals", "data", "partition_keys", "sequence_numbers", "shard_id", "stream")

    def __init__(
        self,
        data: Sequence[bytes],
        partition_keys: Sequence[str],
        sequence_numbers: Sequence[str],
        arrivals: Sequence[float],
        shard_id: str,
        stream: str,
    ) -> None:
        self.data, self.partition_keys = data, partition_keys
        self.sequence_numbers, self.arrivals = sequence_numbers, arrivals
        self.shard_id, self.stream = shard_id, stream

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Record]:
        # Without a Python frame for each record.
        return map(
            Record,
            self.data,
            self.partition_keys,
            self.sequence_numbers,
            self.arrivals,
            repeat(self.shard_id),
            repeat(self.stream),
        )

    def at(self, index: int) -> Record:
        return Record(
            self.data[index],
            self.partition_keys[index],
            self.sequence_numbers[index],
            self.arrivals[index],
            self.shard_id,
            self.stream,
        )

    def part(self, start: int, stop: int) -> PlainRecords:
        if stop - start == len(self.data):
            return self
        chosen = slice(start, stop)
        return PlainRecords(
            self.data[chosen],
            self.partition_keys[chosen],
            self.sequence_numbers[chosen],
            self.arrivals[chosen],
            self.shard_id,
            self.stream,
        )

    @property
    def data_bytes(self) -> int:
        return sum(map(len, self.data))

    @property
    def keys(self) -> Iterable[Key]:
        return zip(self.sequence_numbers, repeat(0))


class SubRecords(LazyRecords):
    """User records of one aggregate.

    Columns of equal length: data, partition_keys, explicit_hash_keys (empty if there are none). record: the Kinesis
    record that they came in. first: sub-sequence number of the first one.
    """

    __slots__ = ("_data", "_explicit_hash_keys", "_first", "_partition_keys", "_record")

    def __init__(
        self,
        data: Sequence[bytes],
        partition_keys: Sequence[str],
        explicit_hash_keys: Sequence[str | None],
        record: Record,
        first: int = 0,
    ) -> None:
        self._data, self._partition_keys, self._explicit_hash_keys = data, partition_keys, explicit_hash_keys
        self._record, self._first = record, first

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Record]:
        record = self._record
        return map(
            Record,
            self._data,
            self._partition_keys,
            repeat(record.sequence_number),
            repeat(record.arrived_at_millis),
            repeat(record.shard_id),
            repeat(record.stream),
            count(self._first),
            self._explicit_hash_keys or repeat(None),
            repeat(True),
        )

    def at(self, index: int) -> Record:
        record = self._record
        return Record(
            self._data[index],
            self._partition_keys[index],
            record.sequence_number,
            record.arrived_at_millis,
            record.shard_id,
            record.stream,
            self._first + index,
            self._explicit_hash_keys[index] if self._explicit_hash_keys else None,
            True,
        )

    def part(self, start: int, stop: int) -> SubRecords:
        if stop - start == len(self._data):
            return self
        chosen = slice(start, stop)
        return SubRecords(
            self._data[chosen],
            self._partition_keys[chosen],
            self._explicit_hash_keys[chosen],
            self._record,
            self._first + start,
        )

    @property
    def data_bytes(self) -> int:
        return sum(map(len, self._data))

    @property
    def keys(self) -> Iterable[Key]:
        return zip(repeat(self._record.sequence_number, len(self)), count(self._first))


class JoinedRecords(LazyRecords):
    """Several sequences of records, one after the other."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Sequence[Record]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._parts)

    def at(self, index: int) -> Record:
        number = bisect_right(self._ends, index)
        part = self._parts[number]
        return part[index - self._ends[number] + len(part)]

    def part(self, start: int, stop: int) -> JoinedRecords:
        begins = (end - len(part) for part, end in zip(self._parts, self._ends, strict=True))
        chosen = (
            part[max(0, start - begin) : max(0, stop - begin)]
            for part, begin in zip(self._parts, begins, strict=True)
        )
        return JoinedRecords([part for part in chosen if part])

    @property
    def data_bytes(self) -> int:
        return sum(map(data_bytes, self._parts))

    @property
    def keys(self) -> Iterable[Key]:
        return chain.from_iterable(map(keys_of, self._parts))


def joined(parts: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """Return the sequences as one."""
    return parts[0] if len(parts) == 1 else JoinedRecords(parts)


def data_bytes(records: Iterable[Record]) -> int:
    """Return the total size of the records' data."""
    if isinstance(records, LazyRecords):
        return records.data_bytes
    # A list of lengths is summed faster than a generator's.
    return sum([len(record.data) for record in records])


def keys_of(records: Iterable[Record]) -> list[Key]:
    """Return the records' keys, in order; without making the records, where they are lazy."""
    if isinstance(records, LazyRecords):
        return list(records.keys)
    return [(record.sequence_number, record.sub_sequence_number) for record in records]
