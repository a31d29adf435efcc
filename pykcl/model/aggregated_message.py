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
