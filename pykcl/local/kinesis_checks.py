"""The checks Kinesis makes on the members of a request before it looks at any stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pykcl.local.errors import AwsError, invalid
from pykcl.local.listing import FILTER_TYPES
from pykcl.local.wire_values import Instant, not_serialized

ITERATOR_TYPES = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Text:
    """A string member: length limits in characters, a pattern it matches whole, or a set of words."""

    least: int = 1
    most: int = 1_000_000
    pattern: str = ""
    words: tuple[str, ...] = ()

    def problem(self, value: str) -> str:
        """What is wrong, in the words of AWS; empty when nothing is."""
        if len(value) < self.least:
            return f"Member must have length greater than or equal to {self.least}"
        if len(value) > self.most:
            return f"Member must have length less than or equal to {self.most}"
        if self.pattern and not re.fullmatch(self.pattern, value):
            return f"Member must satisfy regular expression pattern: {self.pattern}"
        if self.words and value not in self.words:
            return f"Member must satisfy enum value set: [{', '.join(self.words)}]"
        return ""


@dataclass(frozen=True, slots=True)
class Number:
    """An integer member with closed bounds."""

    least: int
    most: int = 2_147_483_647

    def problem(self, value: int) -> str:
        if value < self.least:
            return f"Member must have value greater than or equal to {self.least}"
        if value > self.most:
            return f"Member must have value less than or equal to {self.most}"
        return ""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes, at most so many."""

    most: int

    def problem(self, value: bytes) -> str:
        if len(value) > self.most:
            return f"Member must have length less than or equal to {self.most}"
        return ""


Kind = Text | Number | Blob | type[dict[str, Any]] | type[list[Any]] | type[Instant]

_NAME = Text(1, 128, r"[a-zA-Z0-9_.-]+")
_NUMBER = Text(1, 129, r"0|([1-9]\d{0,128})")
_HASH_KEY = Text(1, 39, r"0|([1-9]\d{0,38})")
_KINDS: dict[str, Kind] = {
    "AdjacentShardToMerge": _NAME,
    "Data": Blob(10_485_760),
    "ExclusiveStartShardId": _NAME,
    "ExclusiveStartStreamName": _NAME,
    "ExplicitHashKey": _HASH_KEY,
    "Limit": Number(1, 10_000),
    "MaxRecordSizeInKiB": Number(1024, 10_240),
    "MaxResults": Number(1, 10_000),
    "NewStartingHashKey": _HASH_KEY,
    "NextToken": Text(1, 1_048_576),
    "PartitionKey": Text(1, 256),
    "Records": list,
    "RetentionPeriodHours": Number(-2_147_483_648),
    "ScalingType": Text(words=("UNIFORM_SCALING",)),
    "SequenceNumberForOrdering": _NUMBER,
    "ShardCount": Number(1),
    "ShardFilter": dict,
    "ShardId": _NAME,
    "ShardIterator": Text(1, 512),
    "ShardIteratorType": Text(words=ITERATOR_TYPES),
    "ShardToMerge": _NAME,
    "ShardToSplit": _NAME,
    "StartingSequenceNumber": _NUMBER,
    "StreamARN": Text(1, 2048, r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+"),
    "StreamModeDetails": dict,
    "StreamName": _NAME,
    "TagKeys": list,
    "Tags": dict,
    "TargetShardCount": Number(1),
    "Timestamp": Instant,
    "Type": Text(words=FILTER_TYPES),
}

_REQUIRED: dict[str, tuple[str, ...]] = {
    "AddTagsToStream": ("Tags",),
    "CreateStream": ("StreamName",),
    "DecreaseStreamRetentionPeriod": ("RetentionPeriodHours",),
    "GetRecords": ("ShardIterator",),
    "GetShardIterator": ("ShardId", "ShardIteratorType"),
    "IncreaseStreamRetentionPeriod": ("RetentionPeriodHours",),
    "MergeShards": ("ShardToMerge", "AdjacentShardToMerge"),
    "PutRecord": ("Data", "PartitionKey"),
    "PutRecords": ("Records",),
    "RemoveTagsFromStream": ("TagKeys",),
    "SplitShard": ("ShardToSplit", "NewStartingHashKey"),
    "UpdateMaxRecordSize": ("MaxRecordSizeInKiB",),
    "UpdateShardCount": ("TargetShardCount", "ScalingType"),
}


def check(operation: str, params: dict[str, Any]) -> None:
    """Raises AwsError SerializationException (wrong type) or ValidationException, worded as AWS does."""
    _check_members(params, _REQUIRED.get(operation, ()), "")
    if operation == "PutRecords":
        _check_batch(params["Records"])
    if params.get("ShardFilter"):
        _check_members(params["ShardFilter"], ("Type",), "shardFilter.")


def _check_batch(records: list[Any]) -> None:
    if not 1 <= len(records) <= 500:
        bound = "greater than or equal to 1" if not records else "less than or equal to 500"
        raise _refused("records", f"Member must have length {bound}")
    size = 0
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise _mistyped("Records")
        _check_members(record, ("Data", "PartitionKey"), f"records.{number}.member.")
        size += len(record["Data"]) + len(record["PartitionKey"])
    if size > 10 * 1024 * 1024:
        raise AwsError("InvalidArgumentException", "Records size exceeds 10 MB limit")


def _check_members(params: dict[str, Any], required: tuple[str, ...], path: str) -> None:
    for name in required:
        if params.get(name) is None:
            raise _refused(path + _lower(name), "Member must not be null", "null")
    for name, value in params.items():
        kind = _KINDS.get(name)
        if kind is not None and value is not None:
            _check_member(name, value, kind, path)


def _check_member(name: str, value: Any, kind: Kind, path: str) -> None:
    if not _is_of(value, kind):
        raise _mistyped(name)
    if isinstance(kind, Text | Number | Blob):
        problem = kind.problem(value)
        if problem:
            raise _refused(path + _lower(name), problem)


def _is_of(value: Any, kind: Kind) -> bool:
    if isinstance(kind, Text):
        return isinstance(value, str)
    if isinstance(kind, Blob):
        return isinstance(value, bytes)
    if isinstance(kind, Number):
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _mistyped(name: str) -> AwsError:
    return not_serialized(f"The member {name} has the wrong type.")


def _refused(path: str, problem: str, shown: str = "") -> AwsError:
    # The value itself is left out: it may be a partition key or a payload.
    value = f"Value {shown} at" if shown else "Value at"
    return invalid(f"1 validation error detected: {value} '{path}' failed to satisfy constraint: {problem}")
