"""Operations of Kinesis over `LocalKinesis`: members of a request in, members of a response out, as Python values.

Members are checked first, as Kinesis does. `wire` and `wire_cbor` encode and decode them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.local.consumers import Consumer, PushedEvent, Subscription
from pykcl.local.errors import AwsError, in_use, invalid, invalid_argument
from pykcl.local.iterators import ListingPosition, Page, read_next_token, write_next_token
from pykcl.local.stream import (
    AUTO,
    FILTER_TYPES,
    MAX_PAGE_RECORDS,
    USER_PARTITION_KEY,
    Entry,
    LocalKinesis,
    Put,
    ShardFilter,
    StreamView,
)
from pykcl.local.wire import Instant, Params, not_serialized
from pykcl.model.shard import Shard

ITERATOR_TYPES = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Text:
    """A string member: length limits in characters, a pattern it matches whole, or a set of words."""

    minimum: int = 1
    maximum: int = 1_000_000
    pattern: str = ""
    words: tuple[str, ...] = ()

    def problem(self, value: str) -> str:
        """Return what is wrong, in the words of AWS; empty if the value is valid."""
        if len(value) < self.minimum:
            return f"Member must have length greater than or equal to {self.minimum}"
        if len(value) > self.maximum:
            return f"Member must have length less than or equal to {self.maximum}"
        if self.pattern and not re.fullmatch(self.pattern, value):
            return f"Member must satisfy regular expression pattern: {self.pattern}"
        if self.words and value not in self.words:
            return f"Member must satisfy enum value set: [{', '.join(self.words)}]"
        return ""


@dataclass(frozen=True, slots=True)
class Number:
    """An integer member with closed bounds."""

    minimum: int
    maximum: int = 2_147_483_647

    def problem(self, value: int) -> str:
        if value < self.minimum:
            return f"Member must have value greater than or equal to {self.minimum}"
        if value > self.maximum:
            return f"Member must have value less than or equal to {self.maximum}"
        return ""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes with a max length."""

    maximum: int

    def problem(self, value: bytes) -> str:
        if len(value) > self.maximum:
            return f"Member must have length less than or equal to {self.maximum}"
        return ""


Kind = Text | Number | Blob | type[dict[str, Any]] | type[list[Any]] | type[bool] | type[Instant]

_NAME = Text(1, 128, r"[a-zA-Z0-9_.-]+")
_NUMBER = Text(1, 129, r"0|([1-9]\d{0,128})")
_HASH_KEY = Text(1, 39, r"0|([1-9]\d{0,38})")
_STREAM_ARN = r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+"
_KINDS: dict[str, Kind] = {
    "AdjacentShardToMerge": _NAME,
    "ConsumerARN": Text(1, 2048, rf"{_STREAM_ARN}/consumer/[a-zA-Z0-9_.-]+:[0-9]+"),
    "ConsumerName": _NAME,
    "Data": Blob(10_485_760),
    "DryRun": bool,
    "EnforceConsumerDeletion": bool,
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
    "RecordDistributionStrategy": Text(words=(AUTO, USER_PARTITION_KEY)),
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
    "StartingPosition": dict,
    "StartingSequenceNumber": _NUMBER,
    "StreamARN": Text(1, 2048, _STREAM_ARN),
    "StreamCreationTimestamp": Instant,
    "StreamModeDetails": dict,
    "StreamName": _NAME,
    "TagKeys": list,
    "Tags": dict,
    "TargetShardCount": Number(1),
    "Timestamp": Instant,
    "Type": Text(words=FILTER_TYPES),
}
_POSITION_KINDS: dict[str, Kind] = {
    "SequenceNumber": _NUMBER,
    "Timestamp": Instant,
    "Type": Text(words=ITERATOR_TYPES),
}

_REQUIRED: dict[str, tuple[str, ...]] = {
    "AddTagsToStream": ("Tags",),
    "CreateStream": ("StreamName",),
    "DecreaseStreamRetentionPeriod": ("RetentionPeriodHours",),
    "GetRecords": ("ShardIterator",),
    "GetShardIterator": ("ShardId", "ShardIteratorType"),
    "IncreaseStreamRetentionPeriod": ("RetentionPeriodHours",),
    "ListStreamConsumers": ("StreamARN",),
    "MergeShards": ("ShardToMerge", "AdjacentShardToMerge"),
    "PutRecord": ("Data", "PartitionKey"),
    "PutRecords": ("Records",),
    "RegisterStreamConsumer": ("StreamARN", "ConsumerName"),
    "RemoveTagsFromStream": ("TagKeys",),
    "SplitShard": ("ShardToSplit", "NewStartingHashKey"),
    "SubscribeToShard": ("ConsumerARN", "ShardId", "StartingPosition"),
    "UpdateMaxRecordSize": ("MaxRecordSizeInKiB",),
    "UpdateShardCount": ("TargetShardCount", "ScalingType"),
    "UpdateStreamRecordDistributionStrategy": ("StreamARN", "RecordDistributionStrategy"),
}


_PUTS = frozenset({"PutRecord", "PutRecords"})
"""A dry run of them asks for the stream only. That of a read is the read, which changes nothing."""
_DRY_RUNS = _PUTS | {"GetRecords", "GetShardIterator"}


def check(operation: str, params: dict[str, Any]) -> None:
    """Raise AwsError SerializationException (wrong type) or ValidationException, in the words of AWS."""
    _check_members(params, _REQUIRED.get(operation, ()), "")
    if operation == "PutRecords":
        _check_batch(params["Records"])
    if params.get("ShardFilter"):
        _check_members(params["ShardFilter"], ("Type",), "shardFilter.")
    if params.get("StartingPosition") is not None:
        _check_members(params["StartingPosition"], ("Type",), "startingPosition.", _POSITION_KINDS)


def _check_batch(records: list[Any]) -> None:
    if not 1 <= len(records) <= 500:
        bound = "greater than or equal to 1" if not records else "less than or equal to 500"
        raise _invalid_member("records", f"Member must have length {bound}")
    size = 0
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise _wrong_type("Records")
        _check_members(record, ("Data", "PartitionKey"), f"records.{number}.member.")
        size += len(record["Data"]) + len(record["PartitionKey"])
    if size > 10 * 1024 * 1024:
        raise AwsError("InvalidArgumentException", "Records size exceeds 10 MB limit")


def _check_members(
    params: dict[str, Any], required: tuple[str, ...], path: str, kinds: Mapping[str, Kind] = _KINDS
) -> None:
    for name in required:
        if params.get(name) is None:
            raise _invalid_member(path + _lower(name), "Member must not be null", "null")
    for name, value in params.items():
        kind = kinds.get(name)
        if kind is not None and value is not None:
            _check_member(name, value, kind, path)


def _check_member(name: str, value: Any, kind: Kind, path: str) -> None:
    if not _is_of(value, kind):
        raise _wrong_type(name)
    if isinstance(kind, Text | Number | Blob):
        problem = kind.problem(value)
        if problem:
            raise _invalid_member(path + _lower(name), problem)


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


def _wrong_type(name: str) -> AwsError:
    return not_serialized(f"The member {name} has the wrong type.")


def _invalid_member(path: str, problem: str, shown: str = "") -> AwsError:
    # The value itself is left out: it may be a partition key or a payload.
    value = f"Value {shown} at" if shown else "Value at"
    return invalid(f"1 validation error detected: {value} '{path}' failed to satisfy constraint: {problem}")


TARGET_PREFIX = "Kinesis_20131202."
SUBSCRIBE = "SubscribeToShard"
"""The operation whose answer is a stream of events: see `pushing`."""

Response = dict[str, Any]

_PRIVATE = frozenset({"Data", "PartitionKey", "ExplicitHashKey", "Records", "ShardIterator", "NextToken"})


def loggable(params: Mapping[str, Any]) -> Params:
    """Return the parameters without payloads, keys and iterators, the same for every format."""
    shown = {key: _plain(value) for key, value in params.items() if key not in _PRIVATE}
    if isinstance(params.get("Records"), list):
        shown["RecordCount"] = len(params["Records"])
    return shown


def _plain(value: Any) -> Any:
    """Return a value that JSON has: times as seconds, and no bytes, which may be a payload."""
    if isinstance(value, Instant):
        return value.millis / 1000
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float) else "..."


class KinesisApi:
    """Dispatch of decoded Kinesis requests to their operations."""

    def __init__(self, kinesis: LocalKinesis, now_millis: Callable[[], int]) -> None:
        self._kinesis = kinesis
        self._now = now_millis
        self._operations: dict[str, Callable[[Params], Response]] = {
            "AddTagsToStream": self._add_tags,
            "CreateStream": self._create_stream,
            "DecreaseStreamRetentionPeriod": self._decrease_retention,
            "DeleteStream": self._delete_stream,
            "DescribeLimits": self._describe_limits,
            "DeregisterStreamConsumer": self._deregister_consumer,
            "DescribeStream": self._describe_stream,
            "DescribeStreamConsumer": self._describe_consumer,
            "DescribeStreamSummary": self._describe_summary,
            "GetRecords": self._get_records,
            "GetShardIterator": self._get_shard_iterator,
            "IncreaseStreamRetentionPeriod": self._increase_retention,
            "ListShards": self._list_shards,
            "ListStreamConsumers": self._list_consumers,
            "ListStreams": self._list_streams,
            "ListTagsForStream": self._list_tags,
            "MergeShards": self._merge,
            "PutRecord": self._put_record,
            "PutRecords": self._put_records,
            "RegisterStreamConsumer": self._register_consumer,
            "RemoveTagsFromStream": self._remove_tags,
            "SplitShard": self._split,
            "UpdateMaxRecordSize": self._update_max_record_size,
            "UpdateShardCount": self._update_shard_count,
            "UpdateStreamRecordDistributionStrategy": self._update_distribution,
        }

    def call(self, operation: str, params: Params) -> Response:
        """Call an operation. Raises AwsError."""
        method = self._operations.get(operation)
        if method is None:
            raise AwsError("UnknownOperationException", f"The local Kinesis does not know {operation}.")
        check(operation, params)
        if operation in _DRY_RUNS and params.get("DryRun"):
            if operation in _PUTS:
                self._kinesis.describe(_stream(params), None)
            else:
                method(params)
            raise AwsError("DryRunOperationException", "The request would have succeeded without DryRun.")
        return method(params)

    def subscribe(self, params: Params) -> Subscription:
        """Call SubscribeToShard. Raises AwsError."""
        check(SUBSCRIBE, params)
        start = params["StartingPosition"]
        at = start.get("Timestamp")
        return self._kinesis.subscribe(
            params["ConsumerARN"],
            params["ShardId"],
            start["Type"],
            sequence_number=start.get("SequenceNumber"),
            at_millis=None if at is None else at.millis,
        )

    def next_event(self, subscription: Subscription) -> Response | None:
        """Return the members of the event that is due; None: none is. Raises AwsError, the last message."""
        event = self._kinesis.next_event(subscription)
        return None if event is None else _page(event, "ContinuationSequenceNumber", event.continuation)

    def seconds_until_due(self, subscription: Subscription) -> float:
        """Return the seconds until another event may be due, unless the subscription's `on_change` is called before."""
        return (subscription.due_at - self._now()) / 1000

    def end(self, subscription: Subscription) -> None:
        """End a subscription whose client is gone."""
        self._kinesis.end(subscription)

    def _create_stream(self, params: Params) -> Response:
        mode = params.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
        count = params.get("ShardCount")
        if mode == "ON_DEMAND":
            count = 4
        if count is None:
            raise invalid("ShardCount must be given for a stream in PROVISIONED mode.")
        strategy = params.get("RecordDistributionStrategy")
        if strategy is not None and mode != "ON_DEMAND":
            raise invalid("RecordDistributionStrategy is supported for streams in ON_DEMAND mode only.")
        self._kinesis.create_stream(params["StreamName"], count, mode=mode, distribution=strategy)
        if "MaxRecordSizeInKiB" in params:
            self._kinesis.set_max_record_size(params["StreamName"], params["MaxRecordSizeInKiB"])
        if params.get("Tags"):
            self._kinesis.set_tags(params["StreamName"], params["Tags"])
        return {}

    def _delete_stream(self, params: Params) -> Response:
        self._kinesis.delete_stream(
            _stream(params), with_consumers=bool(params.get("EnforceConsumerDeletion"))
        )
        return {}

    def _describe_stream(self, params: Params) -> Response:
        view = self._kinesis.describe(_stream(params), "DescribeStream")
        shards = self._kinesis.list_shards(_stream(params), operation=None) if view.open_shards else []
        after = params.get("ExclusiveStartShardId", "")
        limit = min(params.get("Limit", 100), 1000)
        rest = [shard for shard in shards if shard.shard_id > after]
        description = {
            **_summary(view),
            "Shards": [_shard(shard) for shard in rest[:limit]],
            "HasMoreShards": len(rest) > limit,
        }
        return {"StreamDescription": description}

    def _describe_summary(self, params: Params) -> Response:
        view = self._kinesis.describe(_stream(params))
        summary = {
            **_summary(view),
            "OpenShardCount": view.open_shards,
            "ConsumerCount": len(self._kinesis.list_consumers(_stream(params), operation=None)),
            "MaxRecordSizeInKiB": view.max_record_kib,
        }
        return {"StreamDescriptionSummary": summary}

    def _describe_limits(self, _: Params) -> Response:
        count = sum(view.open_shards for view in self._kinesis.list_streams())
        return {
            "ShardLimit": 20_000,
            "OpenShardCount": count,
            "OnDemandStreamCount": 0,
            "OnDemandStreamCountLimit": 50,
        }

    def _list_streams(self, params: Params) -> Response:
        after = params.get("ExclusiveStartStreamName", "")
        if "NextToken" in params:
            after = read_next_token(params["NextToken"], self._now()).after
        limit = params.get("Limit", 100)
        views = [view for view in self._kinesis.list_streams() if view.name > after]
        page, more = views[:limit], len(views) > limit
        response: Response = {
            "StreamNames": [view.name for view in page],
            "StreamSummaries": [_stream_summary(view) for view in page],
            "HasMoreStreams": more,
        }
        if more:
            response["NextToken"] = write_next_token(
                ListingPosition("", "", page[-1].name, None, None, self._now())
            )
        return response

    def _list_shards(self, params: Params) -> Response:
        now = self._now()
        if "NextToken" in params:
            if any(name in params for name in ("StreamName", "StreamARN")):
                raise invalid_argument("NextToken and StreamName cannot be provided together.")
            if "ExclusiveStartShardId" in params or "ShardFilter" in params:
                raise invalid_argument(
                    "NextToken cannot be combined with ExclusiveStartShardId or ShardFilter."
                )
            position = read_next_token(params["NextToken"], now)
            if self._kinesis.incarnation(position.stream) != position.incarnation:
                raise invalid_argument("NextToken is invalid.")
        else:
            position = self._first_listing_position(params, now)
        listed = self._kinesis.list_shards(position.stream, _filter_of(position))
        limit = params.get("MaxResults", 1000)
        rest = [shard for shard in listed if shard.shard_id > position.after]
        response: Response = {"Shards": [_shard(shard) for shard in rest[:limit]]}
        if len(rest) > limit:
            onward = ListingPosition(
                position.stream,
                position.incarnation,
                rest[limit - 1].shard_id,
                position.filter_type,
                position.filter_value,
                now,
            )
            response["NextToken"] = write_next_token(onward)
        return response

    def _first_listing_position(self, params: Params, now: int) -> ListingPosition:
        stream = _stream(params)
        view = self._kinesis.describe(stream, operation=None)
        if view.status in ("CREATING", "DELETING"):
            raise in_use(f"Stream {view.name} is in state {view.status}: its shards cannot be listed.")
        given = params.get("ShardFilter") or {}
        at = given.get("Timestamp")
        value = given.get("ShardId") if at is None else str(at.millis)
        return ListingPosition(
            view.name,
            self._kinesis.incarnation(stream),
            params.get("ExclusiveStartShardId", ""),
            given.get("Type"),
            value,
            now,
        )

    def _put_record(self, params: Params) -> Response:
        entry = _entry(params)
        put = self._kinesis.put_record(
            _stream(params), entry.data, entry.partition_key, entry.explicit_hash_key
        )
        return {"ShardId": put.shard_id, "SequenceNumber": put.sequence_number}

    def _put_records(self, params: Params) -> Response:
        entries = [_entry(given) for given in params["Records"]]
        results = self._kinesis.put_records(_stream(params), entries)
        return {
            "FailedRecordCount": sum(1 for result in results if isinstance(result, AwsError)),
            "Records": [_put_result(result) for result in results],
        }

    def _get_shard_iterator(self, params: Params) -> Response:
        at = params.get("Timestamp")
        iterator = self._kinesis.get_shard_iterator(
            _stream(params),
            params["ShardId"],
            params["ShardIteratorType"],
            sequence_number=params.get("StartingSequenceNumber"),
            at_millis=None if at is None else at.millis,
        )
        return {"ShardIterator": iterator}

    def _get_records(self, params: Params) -> Response:
        page = self._kinesis.get_records(params["ShardIterator"], params.get("Limit", MAX_PAGE_RECORDS))
        return _page(page, "NextShardIterator", page.next_iterator)

    def _split(self, params: Params) -> Response:
        self._kinesis.split(_stream(params), params["ShardToSplit"], int(params["NewStartingHashKey"]))
        return {}

    def _merge(self, params: Params) -> Response:
        self._kinesis.merge(_stream(params), params["ShardToMerge"], params["AdjacentShardToMerge"])
        return {}

    def _update_shard_count(self, params: Params) -> Response:
        target = params["TargetShardCount"]
        view = self._kinesis.describe(_stream(params), operation=None)
        before = self._kinesis.update_shard_count(_stream(params), target)
        return {
            "StreamName": view.name,
            "StreamARN": view.arn,
            "CurrentShardCount": before,
            "TargetShardCount": target,
        }

    def _increase_retention(self, params: Params) -> Response:
        return self._set_retention(params, grow=True)

    def _decrease_retention(self, params: Params) -> Response:
        return self._set_retention(params, grow=False)

    def _set_retention(self, params: Params, *, grow: bool) -> Response:
        hours = params["RetentionPeriodHours"]
        current = self._kinesis.describe(_stream(params), operation=None).retention_hours
        if (hours < current) if grow else (hours > current):
            side = "less" if grow else "greater"
            raise invalid_argument(
                f"Requested retention period ({hours} hours) cannot be {side} than the existing "
                f"retention period ({current} hours)."
            )
        self._kinesis.set_retention(_stream(params), hours)
        return {}

    def _update_max_record_size(self, params: Params) -> Response:
        self._kinesis.set_max_record_size(_stream(params), params["MaxRecordSizeInKiB"])
        return {}

    def _update_distribution(self, params: Params) -> Response:
        self._kinesis.set_distribution(_stream(params), params["RecordDistributionStrategy"])
        return {}

    def _add_tags(self, params: Params) -> Response:
        self._kinesis.set_tags(_stream(params), params["Tags"])
        return {}

    def _remove_tags(self, params: Params) -> Response:
        self._kinesis.set_tags(_stream(params), {}, remove=params["TagKeys"])
        return {}

    def _register_consumer(self, params: Params) -> Response:
        consumer = self._kinesis.register_consumer(params["StreamARN"], params["ConsumerName"])
        return {"Consumer": {**_consumer(consumer), "ConsumerStatus": "CREATING"}}

    def _deregister_consumer(self, params: Params) -> Response:
        self._kinesis.deregister_consumer(**_named_consumer(params))
        return {}

    def _describe_consumer(self, params: Params) -> Response:
        consumer, view = self._kinesis.describe_consumer(**_named_consumer(params))
        return {"ConsumerDescription": {**_consumer(consumer), "StreamARN": view.arn}}

    def _list_consumers(self, params: Params) -> Response:
        after = ""
        if "NextToken" in params:
            after = read_next_token(params["NextToken"], self._now()).after
        found = [one for one in self._kinesis.list_consumers(params["StreamARN"]) if one.name > after]
        limit = min(params.get("MaxResults", 100), 100)
        response: Response = {"Consumers": [_consumer(one) for one in found[:limit]]}
        if len(found) > limit:
            onward = ListingPosition(params["StreamARN"], "", found[limit - 1].name, None, None, self._now())
            response["NextToken"] = write_next_token(onward)
        return response

    def _list_tags(self, params: Params) -> Response:
        tags = sorted(self._kinesis.tags(_stream(params)).items())
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags], "HasMoreTags": False}


def _stream(params: Params) -> str:
    """Return name or ARN; the ARN first, because it has the account too."""
    given = params.get("StreamARN") or params.get("StreamName")
    if not given:
        raise invalid_argument("Either StreamName or StreamARN should be provided.")
    return str(given)


def _named_consumer(params: Params) -> dict[str, Any]:
    """Return the arguments that name a consumer: by its ARN, or by its name and the ARN of its stream."""
    arn, name, stream = (params.get(member) for member in ("ConsumerARN", "ConsumerName", "StreamARN"))
    if arn:
        if name or (stream and not arn.startswith(f"{stream}/")):
            raise invalid_argument("ConsumerARN cannot be given together with StreamARN and ConsumerName.")
        return {"stream": arn.partition("/consumer/")[0], "arn": arn}
    if not name or not stream:
        raise invalid_argument("Either ConsumerARN, or both StreamARN and ConsumerName, must be given.")
    return {"stream": stream, "name": name}


def _consumer(consumer: Consumer) -> Response:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status,
        "ConsumerCreationTimestamp": Instant(consumer.created_at),
    }


def _entry(params: Params) -> Entry:
    key = params.get("ExplicitHashKey")
    return Entry(params["Data"], params["PartitionKey"], None if key is None else int(key))


def _put_result(result: Put | AwsError) -> Response:
    if isinstance(result, Put):
        return {"SequenceNumber": result.sequence_number, "ShardId": result.shard_id}
    return {"ErrorCode": result.code, "ErrorMessage": result.message}


def _filter_of(position: ListingPosition) -> ShardFilter | None:
    kind, value = position.filter_type, position.filter_value
    if kind is None:
        return None
    if kind.endswith("_TIMESTAMP"):
        return ShardFilter(kind, at_millis=None if value is None else int(value))
    return ShardFilter(kind, shard_id=value)


def _summary(view: StreamView) -> Response:
    return {
        **_stream_summary(view),
        "RetentionPeriodHours": view.retention_hours,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
        **({"RecordDistributionStrategy": view.distribution} if view.distribution is not None else {}),
    }


def _stream_summary(view: StreamView) -> Response:
    return {
        "StreamName": view.name,
        "StreamARN": view.arn,
        "StreamStatus": view.status,
        "StreamModeDetails": {"StreamMode": view.mode},
        "StreamCreationTimestamp": Instant(view.created_at),
    }


def _hash_range(shard: Shard) -> Response:
    if shard.hash_range is None:
        return {}
    return {
        "StartingHashKey": str(shard.hash_range.first),
        "EndingHashKey": str(shard.hash_range.last),
    }


def _shard(shard: Shard) -> Response:
    numbers = {"StartingSequenceNumber": shard.starting_sequence_number}
    if shard.ending_sequence_number is not None:
        numbers["EndingSequenceNumber"] = shard.ending_sequence_number
    names = dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
    return {
        "ShardId": shard.shard_id,
        **names,
        "HashKeyRange": _hash_range(shard),
        "SequenceNumberRange": numbers,
    }


def _page(found: Page | PushedEvent, key: str, following: str | None) -> Response:
    """Return records with where they go on, under that key, or the children of a shard that ends with them."""
    response: Response = {"Records": found.records, "MillisBehindLatest": found.millis_behind_latest}
    if following is None:
        response["ChildShards"] = [_child(shard) for shard in found.children]
    else:
        response[key] = following
    return response


def _child(shard: Shard) -> Response:
    return {
        "ShardId": shard.shard_id,
        "ParentShards": list(shard.parents),
        "HashKeyRange": _hash_range(shard),
    }
