"""The wire form of an aggregated record: four magic bytes, a protobuf message, the message's MD5.

Format: aws/amazon-kinesis-producer, `aggregation-format.md`. `aggregation` reads and writes what is inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

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
    """Whether a message holds more than `most` sub-records, keys of one kind, or tags; as far as it can be read.

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
    """And the position after it. Raises IndexError where it is cut off."""
    value = shift = 0
    while (byte := body[position]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if shift > _MOST_SHIFT:
            raise IndexError
    return value | byte << shift, position + 1
