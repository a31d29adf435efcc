"""Aggregated records of the Kinesis Producer Library: opened lazily, and built.

Format: aws/amazon-kinesis-producer, `aggregation-format.md`: four magic bytes, a protobuf message, the message's MD5.

What is delivered follows Java KCL 3.5.1 (`retrieval/AggregatorUtil.java`), except that a damaged aggregate
comes out whole, as the plain record it also is: where Java logs an error and loses the rest, nothing is lost
here.

An aggregate is input from strangers. Its MD5 is a checksum, not a signature: nothing in it is believed,
Record objects are made one at a time, and no problem text quotes any of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from hashlib import md5
from itertools import dropwhile, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import PlainRecords, Record, SubRecords, joined
from pykcl.model.shard import LAST_HASH_KEY, HashRange, hash_key_in

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_SIZE = 16

# What missing indexes read as, so that no sub-record needs a presence test: no table has such an entry. An
# explicit hash key index that really is 2^64-1 (-1 in its signed type here) counts as missing, too.
ABSENT = -1
_NO_ENTRY = str(2**64 - 1)
_KEYS, _EXPLICIT_KEYS, _SUB_RECORDS, _TAGS = 1, 2, 3, 4
"""Numbers of fields: the first three of a message, the last of a sub-record."""
_IS_SIZED = 2
_WIDTHS = {1: 8, 5: 4}
_MOST_SHIFT = 63


@dataclass(frozen=True, slots=True)
class Schema:
    """aggregated_record: the protobuf message class. decode_error: what its FromString raises."""

    aggregated_record: Any
    decode_error: type[Exception]


@cache
def schema() -> Schema:
    """The message class, made on first use: importing protobuf is slow, and not every program needs it.

    It lives in a descriptor pool of its own, under names of its own. A program that registers a
    `messages.proto` or an `aws.kinesis.protobuf.Record` in protobuf's default pool (many do) neither disturbs
    it nor notices it. Keys are declared as bytes, the same on the wire: the reader decodes them strictly,
    whatever the protobuf runtime does.
    """
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    package = "pykcl.aggregation"
    file = FileDescriptorProto(name="pykcl/aggregated_record.proto", package=package, syntax="proto2")
    required, optional, repeated = Field.LABEL_REQUIRED, Field.LABEL_OPTIONAL, Field.LABEL_REPEATED

    field = file.message_type.add(name="Tag").field.add
    field(number=1, name="key", label=required, type=Field.TYPE_BYTES)
    field(number=2, name="value", label=optional, type=Field.TYPE_BYTES)

    field = file.message_type.add(name="Record").field.add
    index = {"type": Field.TYPE_UINT64, "default_value": _NO_ENTRY}
    explicit_index = {"type": Field.TYPE_INT64, "default_value": str(ABSENT)}
    field(number=1, name="partition_key_index", label=required, **index)
    field(number=2, name="explicit_hash_key_index", label=optional, **explicit_index)
    field(number=3, name="data", label=required, type=Field.TYPE_BYTES)
    field(number=4, name="tags", label=repeated, type=Field.TYPE_MESSAGE, type_name=f".{package}.Tag")

    field = file.message_type.add(name="AggregatedRecord").field.add
    field(number=1, name="partition_key_table", label=repeated, type=Field.TYPE_BYTES)
    field(number=2, name="explicit_hash_key_table", label=repeated, type=Field.TYPE_BYTES)
    field(number=3, name="records", label=repeated, type=Field.TYPE_MESSAGE, type_name=f".{package}.Record")

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{package}.AggregatedRecord")
    return Schema(message_factory.GetMessageClass(descriptor), DecodeError)


def has_more_parts(body: bytes, most: int) -> bool:
    """Return whether a message holds more than `most` sub-records, keys of one kind, or tags; as far as it can be read.

    An empty sub-record is two bytes here, and sixty once protobuf has made it. Groups, which no schema of ours has, are
    walked like what is around them: so too much may be counted in them, and nothing is missed.
    """
    counts = {_KEYS: 0, _EXPLICIT_KEYS: 0, _SUB_RECORDS: 0, _TAGS: 0}
    position, sub_record_end = 0, 0
    try:
        while position < len(body):
            is_inside = position < sub_record_end
            key, position = _varint(body, position)
            field, kind = key >> 3, key & 7
            if kind == _IS_SIZED:
                size, position = _varint(body, position)
                part = (_TAGS if field == _TAGS else None) if is_inside else field
                if part in counts:
                    counts[part] += 1
                    if counts[part] > most:
                        return True
                if part == _SUB_RECORDS:
                    sub_record_end = position + size
                    continue
                position += size
            elif kind == 0:
                _, position = _varint(body, position)
            else:
                position += _WIDTHS.get(kind, 0)
            if is_inside and position > sub_record_end:
                # protobuf refuses that, unless it is in a group and no sub-record at all.
                position = sub_record_end
    except IndexError:
        return False
    return False


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the number and the position after it. Raises IndexError where it is cut off."""
    value = shift = 0
    while (byte := body[position]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if shift > _MOST_SHIFT:
            raise IndexError
    return value | byte << shift, position + 1


MAX_SUB_RECORDS = 1_000_000
OUTSIDE_SHARD = "a sub-record's hash key lies outside the shard"
"""The one problem for which an aggregate is dropped; with every other it is delivered as a plain record."""

_ONLY_ABSENT = {ABSENT}
_ENVELOPE_SIZE = len(MAGIC) + DIGEST_SIZE
_ANY_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_HELD_SUB_RECORDS = 10_000

_partition_key_index = attrgetter("partition_key_index")
_explicit_hash_key_index = attrgetter("explicit_hash_key_index")
_data = attrgetter("data")


class _Damaged(Exception):
    """Not an aggregate after all, or a broken one. The argument says what is wrong with it."""


class _OutsideShard(Exception):
    """A sound aggregate that belongs, at least partly, to another shard."""


def deaggregate(
    record: Record,
    hash_range: HashRange | None,
    *,
    max_sub_records: int = MAX_SUB_RECORDS,
    on_refused: Callable[[str], None] | None = None,
) -> Iterator[Record]:
    """The user records inside one Kinesis record, in order, each made when it is asked for.

    A plain record yields itself. So does an aggregate that is damaged or holds more than `max_sub_records`.
    One with any sub-record whose hash key (explicit, else the MD5 of its partition key) lies outside
    `hash_range` yields nothing, as in Java; None applies no such filter. Both are decided in this call,
    before the first record is handed out, and passed to `on_refused` once, as a text saying what is wrong
    (OUTSIDE_SHARD for the latter).
    """
    refuse = None if on_refused is None else lambda _, problem: on_refused(problem)
    if not record.data.startswith(MAGIC):
        return iter((record,))
    return iter(_user_records(record, hash_range, refuse, max_sub_records))


def deaggregate_batch(
    records: Iterable[Record],
    hash_range: HashRange | None,
    *,
    after: Checkpoint | None = None,
    max_sub_records: int = MAX_SUB_RECORDS,
    on_refused: Callable[[Record, str], None] | None = None,
) -> Iterator[Record]:
    """The user records of one page of Kinesis records, in order; each aggregate is opened when its turn
    comes.

    after: drop what is at or below this position, up to the first record beyond it (Java: ProcessTask); a
    start sentinel or None drops nothing, SHARD_END everything. on_refused: called with the Kinesis record and
    the problem. The rest as `deaggregate`.
    """
    user_records = _walk(records, hash_range, max_sub_records, on_refused)
    if after is None or after.is_start:
        return user_records
    return dropwhile(_at_or_below(after), user_records)


def batches_of(
    records: Sequence[Record],
    size: int,
    hash_range: HashRange | None,
    *,
    after: Checkpoint | None = None,
    on_refused: Callable[[Record, str], None] | None = None,
    whole: bool = False,
) -> Iterator[Sequence[Record]]:
    """The user records of one page as `deaggregate_batch` gives them, in batches of at most `size`.

    No Record is created before it is asked for, and an aggregate is opened when the batch of its first record is.
    whole: an aggregate is one record, with the position of the last user record in it; it is never refused.
    """
    batch: list[Sequence[Record]] = []
    room = size
    open_one = _whole if whole else partial(_user_records, hash_range=hash_range, on_refused=on_refused)
    for part in _parts_after(_parts(records, open_one), after):
        start = 0
        while start < len(part):
            chosen = part[start : start + room]
            batch.append(chosen)
            start, room = start + len(chosen), room - len(chosen)
            if not room:
                yield joined(batch)
                batch, room = [], size
    if batch:
        yield joined(batch)


def _parts(
    records: Sequence[Record], open_one: Callable[[Record], Sequence[Record]]
) -> Iterator[Sequence[Record]]:
    """Runs of plain records, and between them the records of each aggregate."""
    data = records.data if isinstance(records, PlainRecords) else [record.data for record in records]
    start = 0
    for index in [index for index, each in enumerate(data) if each.startswith(MAGIC)]:
        if start < index:
            yield records[start:index]
        yield open_one(records[index])
        start = index + 1
    if start < len(records):
        yield records[start:]


def _parts_after(parts: Iterator[Sequence[Record]], after: Checkpoint | None) -> Iterator[Sequence[Record]]:
    """Drop what is at or below this position, up to the first record beyond it."""
    if after is not None and not after.is_start:
        is_old = _at_or_below(after)
        for part in parts:
            old = sum(1 for _ in takewhile(is_old, part))
            if old < len(part):
                yield part[old:]
                break
    yield from parts


def _walk(
    records: Iterable[Record],
    hash_range: HashRange | None,
    max_sub_records: int,
    on_refused: Callable[[Record, str], None] | None,
) -> Iterator[Record]:
    for record in records:
        if record.data.startswith(MAGIC):
            yield from _user_records(record, hash_range, on_refused, max_sub_records)
        else:
            yield record


def _at_or_below(after: Checkpoint) -> Callable[[Record], bool]:
    if after.is_shard_end:
        return lambda _: True
    last = (int(after.sequence_number), after.sub_sequence_number)
    return lambda record: (int(record.sequence_number), record.sub_sequence_number) <= last


def _user_records(
    record: Record,
    hash_range: HashRange | None,
    on_refused: Callable[[Record, str], None] | None,
    max_sub_records: int = MAX_SUB_RECORDS,
) -> Sequence[Record]:
    left: tuple[Record, ...] = ()
    try:
        return _opened(record, hash_range, max_sub_records)
    except _Damaged as damage:
        left, problem = (record,), str(damage)
    except _OutsideShard:
        problem = OUTSIDE_SHARD
    if on_refused is not None:
        on_refused(record, problem)
    return left


def _whole(record: Record) -> Sequence[Record]:
    """Return the aggregate as one record, whose checkpoint says that all of its user records are done.

    With that of a plain record: 1) a worker that opens aggregates is stopped within this one, after user record 5; 2)
    one that does not reads on, and takes the whole for done, because its position lies before that of record 5.
    """
    number = max(0, len(_user_records(record, None, None)) - 1)
    return (
        Record(
            record.data,
            record.partition_key,
            record.sequence_number,
            record.arrived_at_millis,
            record.shard_id,
            record.stream,
            number,
        ),
    )


def _opened(record: Record, hash_range: HashRange | None, max_sub_records: int) -> SubRecords:
    """Open an aggregate and check everything in it."""
    message = _parsed(record.data, max_sub_records)
    sub_records = _sub_records(message)
    payloads = _payloads(message, sub_records)
    table, partition_keys, explicit_hash_keys = _keys(message, sub_records)
    if hash_range is not None and not _inside(table, partition_keys, explicit_hash_keys, hash_range):
        raise _OutsideShard
    return SubRecords(payloads, partition_keys, explicit_hash_keys, record)


def _parsed(data: bytes, max_sub_records: int) -> Any:
    """The protobuf message inside `data`, its MD5 verified and its parts counted."""
    if len(data) <= _ENVELOPE_SIZE:
        raise _Damaged("too short to hold a message and its MD5")
    body = data[len(MAGIC) : -DIGEST_SIZE]
    if md5(body, usedforsecurity=False).digest() != data[-DIGEST_SIZE:]:
        raise _Damaged("its MD5 does not match")
    # None takes less than two bytes: to count costs nothing where there cannot be too many.
    if len(body) > 2 * max_sub_records and has_more_parts(body, max_sub_records):
        raise _Damaged(f"more than {max_sub_records} sub-records, keys or tags")
    wire = schema()
    try:
        return wire.aggregated_record.FromString(body)
    except (wire.decode_error, ValueError, RecursionError):
        raise _Damaged("not a readable protobuf message") from None


def _sub_records(message: Any) -> Sequence[Any]:
    """The protobuf sub-records, for three passes over them: one column of the result each.

    protobuf makes a wrapper object per sub-record and pass. Holding them is faster; beyond a bound they are
    made again each time, because a hostile aggregate has hundreds of thousands.
    """
    sub_records: Sequence[Any] = message.records
    return sub_records[:] if len(sub_records) <= _HELD_SUB_RECORDS else sub_records


def _payloads(message: Any, sub_records: Sequence[Any]) -> list[bytes]:
    payloads = list(map(_data, sub_records))
    # A missing payload reads as empty. protobuf's own test for missing fields is slow: ask only if there is
    # one.
    if not all(payloads) and not message.IsInitialized():
        raise _Damaged("a required field is missing")
    return payloads


def _keys(message: Any, sub_records: Sequence[Any]) -> tuple[list[str], list[str], list[str | None]]:
    """The partition key table, then each sub-record's partition key and explicit hash key, as references.

    The last list is empty when no sub-record has an explicit hash key.
    """
    indexes = map(_partition_key_index, sub_records)
    explicit_indexes = map(_explicit_hash_key_index, sub_records)
    try:
        table = [key.decode() for key in message.partition_key_table]
        explicit_table = [key.decode() for key in message.explicit_hash_key_table]
        partition_keys = list(map(table.__getitem__, indexes))
        if not explicit_table:
            if not set(explicit_indexes) <= _ONLY_ABSENT:
                raise KeyError("an index into an empty table")
            return table, partition_keys, []
        by_index: dict[int, str | None] = {ABSENT: None, **dict(enumerate(explicit_table))}
        return table, partition_keys, list(map(by_index.__getitem__, explicit_indexes))
    except UnicodeDecodeError:
        raise _Damaged("a key is not UTF-8") from None
    except (IndexError, KeyError):
        raise _Damaged("an index points beyond its key table") from None


def _inside(
    table: list[str], partition_keys: list[str], explicit_hash_keys: list[str | None], hash_range: HashRange
) -> bool:
    """Return whether every sub-record's effective hash key lies within the closed range.

    Keys are hashed once each, not once per sub-record. Without explicit keys a table that lies inside settles
    it, and an honest table holds nothing else; only if it does not are the entries that are in use picked
    out.
    """
    if not explicit_hash_keys:
        return _all_hash_into(hash_range, table) or _all_hash_into(hash_range, set(partition_keys))
    first, last = hash_range.first, hash_range.last
    # All of them are read, also behind one that lies outside: an unreadable one means damage, not a drop.
    numbers = [_number(key) for key in set(explicit_hash_keys) if key is not None]
    pairs = zip(partition_keys, explicit_hash_keys, strict=True)
    hashed = {partition_key for partition_key, explicit_hash_key in pairs if explicit_hash_key is None}
    return all(first <= number <= last for number in numbers) and _all_hash_into(hash_range, hashed)


def _all_hash_into(hash_range: HashRange, partition_keys: Iterable[str]) -> bool:
    """Kinesis' rule: the MD5 of the UTF-8 key, as an unsigned 128-bit number."""
    first, last = hash_range.first, hash_range.last
    if first == 0 and last == LAST_HASH_KEY:
        return True
    for key in partition_keys:
        if not first <= int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big") <= last:
            return False
    return True


def _number(explicit_hash_key: str) -> int:
    """The key as Java's BigInteger reads it; -1 for all that no shard holds (int() of long text is
    quadratic)."""
    if not _ANY_INTEGER.fullmatch(explicit_hash_key):
        raise _Damaged("an explicit hash key is not a number")
    digits = explicit_hash_key.lstrip("+-0")
    if not digits:
        return 0
    return -1 if explicit_hash_key.startswith("-") or len(digits) > 39 else int(digits)


class UserRecord(NamedTuple):
    """A record that a producer puts into an aggregate. explicit_hash_key: decimal digits below 2^128, or None."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes

    def __repr__(self) -> str:
        return f"UserRecord({len(self.data)} bytes)"


@dataclass(frozen=True, slots=True)
class AggregatedBlob:
    """One finished aggregate, as PutRecord takes it. Both keys are those of its first user record."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes

    def __repr__(self) -> str:
        return f"AggregatedBlob({len(self.data)} bytes)"


def aggregate(
    user_records: Iterable[UserRecord | tuple[str, str | None, bytes]], max_bytes: int = 1_048_576
) -> Iterator[AggregatedBlob]:
    """Pack user records, in order, into aggregates of at most `max_bytes`. See `Aggregator`."""
    aggregator = Aggregator(max_bytes)
    for partition_key, explicit_hash_key, data in user_records:
        full = aggregator.add(partition_key, explicit_hash_key, data)
        if full is not None:
            yield full
    rest = aggregator.flush()
    if rest is not None:
        yield rest


def packed(user_records: Sequence[UserRecord | tuple[str, str | None, bytes]]) -> AggregatedBlob:
    """Return one aggregate of all of these, of which there must be one at least.

    Its bytes are those of protobuf, whose objects take several times as long to make.
    """
    partition_keys: dict[str, int] = {}
    explicit_hash_keys: dict[str, int] = {}
    parts: list[bytes] = []
    for partition_key, explicit_hash_key, data in user_records:
        index = partition_keys.setdefault(partition_key, len(partition_keys))
        explicit_index = ABSENT
        if explicit_hash_key is not None:
            explicit_index = explicit_hash_keys.setdefault(explicit_hash_key, len(explicit_hash_keys))
        parts += (_head_of_sub_record(index, explicit_index, len(data)), data)
    tables = [_sized(_KEYS, key.encode()) for key in partition_keys]
    tables += [_sized(_EXPLICIT_KEYS, key.encode()) for key in explicit_hash_keys]
    body = b"".join(tables + parts)
    digest = md5(body, usedforsecurity=False).digest()
    partition_key, explicit_hash_key, _ = user_records[0]
    return AggregatedBlob(partition_key, explicit_hash_key, MAGIC + body + digest)


@lru_cache(maxsize=4096)
def _head_of_sub_record(index: int, explicit_index: int, size: int) -> bytes:
    """Return all of a sub-record that stands before its data. explicit_index: ABSENT for none."""
    inside = _number_of(1, index)
    if explicit_index != ABSENT:
        inside += _number_of(2, explicit_index)
    inside += _head(3, size)
    return _head(_SUB_RECORDS, len(inside) + size) + inside


def _sized(field: int, content: bytes) -> bytes:
    return _head(field, len(content)) + content


def _head(field: int, size: int) -> bytes:
    return bytes((field << 3 | _IS_SIZED,)) + _varint_of(size)


def _number_of(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + _varint_of(value)


def _varint_of(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


class Aggregator:
    """Packs user records one by one, byte for byte like aws-kinesis-agg 1.2.3. Not thread-safe.

    Give it only user records that hash into one shard: a consumer that finds one from elsewhere in an
    aggregate drops all of it. Kinesis counts the blob's partition key towards its record limit: leave room in
    `max_bytes`.
    """

    def __init__(self, max_bytes: int = 1_048_576) -> None:
        if max_bytes <= _ENVELOPE_SIZE:
            raise ValueError(f"max_bytes={max_bytes} leaves no room for a record beside magic bytes and MD5")
        self._max_bytes = max_bytes
        self._clear()

    def _clear(self) -> None:
        self._user_records: list[UserRecord] = []
        self._partition_keys: dict[str, int] = {}
        self._explicit_hash_keys: dict[str, int] = {}
        self._size = _ENVELOPE_SIZE

    def add(self, partition_key: str, explicit_hash_key: str | None, data: bytes) -> AggregatedBlob | None:
        """Take one user record; return the aggregate that was full and had to be closed for it, if any.

        Raises ValueError, and keeps what it has, for a record that fits into no aggregate of `max_bytes`, and
        for an explicit hash key that is no decimal number below 2^128 (Java KCL would lose the aggregate).
        """
        user_record = UserRecord(partition_key, explicit_hash_key, data)
        if explicit_hash_key is not None and hash_key_in(explicit_hash_key) is None:
            raise ValueError("the explicit hash key is not a decimal number in 0..2^128-1")
        smallest = _ENVELOPE_SIZE + _wire_size(user_record, 0, 0)
        if smallest > self._max_bytes:
            raise ValueError(
                f"a user record needs {smallest} bytes of aggregate, max_bytes is {self._max_bytes}"
            )
        full = None
        size = self._wire_size_of(user_record)
        if self._size + size > self._max_bytes:
            full, size = self.flush(), smallest - _ENVELOPE_SIZE
        self._size += size
        self._user_records.append(user_record)
        self._partition_keys.setdefault(partition_key, len(self._partition_keys))
        if explicit_hash_key is not None:
            self._explicit_hash_keys.setdefault(explicit_hash_key, len(self._explicit_hash_keys))
        return full

    def flush(self) -> AggregatedBlob | None:
        """Close the aggregate at hand and return it; None when it is empty."""
        if not self._user_records:
            return None
        blob = packed(self._user_records)
        self._clear()
        return blob

    def _wire_size_of(self, user_record: UserRecord) -> int:
        return _wire_size(user_record, len(self._partition_keys), len(self._explicit_hash_keys))


def _wire_size(user_record: UserRecord, partition_keys: int, explicit_hash_keys: int) -> int:
    """Return the largest number of bytes that a user record adds to an aggregate whose tables hold so many keys.

    Counts its keys as new even when the tables hold them: aws-kinesis-agg 1.2.3 does for keys given as text,
    and both must break at the same record to give the same bytes.
    """
    table_size = _field_size(len(user_record.partition_key.encode()))
    sub_record_size = 1 + _varint_size(partition_keys) + _field_size(len(user_record.data))
    if user_record.explicit_hash_key is not None:
        table_size += _field_size(len(user_record.explicit_hash_key))
        sub_record_size += 1 + _varint_size(explicit_hash_keys)
    return table_size + _field_size(sub_record_size)


def _field_size(length: int) -> int:
    return 1 + _varint_size(length) + length


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
