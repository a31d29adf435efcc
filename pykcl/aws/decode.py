"""Kinesis' answers as values; above all GetRecords, decoded once, straight into slotted Records.

botocore's own parser walks the service model for every record and asks for the local time zone each time.
Here the JSON body is read in one pass. `page_of_body` is that quick way; `page_of_answer` takes what botocore
parsed where the quick way was not open (an older botocore, a stubbed client). Both give equal Records and
refuse the same answers.

Protocol: GetRecords of the Kinesis API 2013-12-02. Only `SequenceNumber` and `Data` are promised for every
record: an arrival time may be missing, and a stream that distributes records by itself returns no partition
key where the producer gave none. The end of a shard is exactly "no NextShardIterator, and ChildShards that
name their parents" (Java KCL v3.5.1 `DataRetrievalUtil.java`): any other mixture proves nothing and is
refused, so that a cut-off answer is never taken for the end of a shard.

Nothing raised here carries a payload, a partition key or an iterator.
"""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from pykcl.errors import AnswerRefused
from pykcl.model.record import Record
from pykcl.model.shard import HashRange, Shard, StreamDescription
from pykcl.ports import Fetched


def page_of_body(body: bytes, shard_id: str, stream: str) -> Fetched:
    """The answer from its raw JSON body. Raises AnswerRefused for anything Kinesis cannot have meant."""
    document = _document(body, shard_id)
    items = _items(document, shard_id)
    records: list[Record] | None = None
    with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
        records = _quick_records(items, shard_id, stream)
    if records is None:
        # Something optional is missing, or something is wrong: look at each record with care.
        records = _careful_records(items, shard_id, stream)
    return _page(document, records, len(body), shard_id)


def page_of_answer(answer: Mapping[str, Any], shard_id: str, stream: str) -> Fetched:
    """The answer from what botocore made of it: `Data` as bytes, times as datetimes. Raises AnswerRefused."""
    records = _careful_records(_items(answer, shard_id), shard_id, stream)
    return _page(answer, records, _size(answer, records), shard_id)


def _document(body: bytes, shard_id: str) -> Mapping[str, Any]:
    trouble = ""
    try:
        # Decoding first spares json.loads its guess of the encoding; AWS JSON is UTF-8.
        document = json.loads(body.decode())
    except UnicodeDecodeError:
        trouble = "it is not UTF-8"
    except json.JSONDecodeError as error:
        trouble = f"it is not JSON ({error.msg} at character {error.pos})"
    except (ValueError, RecursionError) as error:
        trouble = f"it is not JSON that can be read ({type(error).__name__})"
    # Raised outside the except blocks: those errors keep the whole body, payloads included.
    if trouble:
        raise _refused(shard_id, trouble)
    if not isinstance(document, dict):
        raise _refused(shard_id, f"it is a JSON {type(document).__name__}, not an object")
    return document


def _items(document: Mapping[str, Any], shard_id: str) -> list[Any]:
    items = document.get("Records")
    if not isinstance(items, list):
        problem = "no Records" if items is None else f"Records as {type(items).__name__}"
        raise _refused(shard_id, f"it has {problem}")
    return items


def _quick_records(items: list[Any], shard_id: str, stream: str) -> list[Record]:
    """The hot loop: every line costs each record. Raises whatever an unusual record provokes."""
    records: list[Record] = []
    keep = records.append
    for item in items:
        key = item["PartitionKey"]
        number = item["SequenceNumber"]
        # isdecimal and encode fail on anything but text.
        if key.__class__ is not str or not number.isdecimal():
            raise TypeError
        # Seconds with millisecond fractions, as a float: times 1000 is exact for them until the year 2038.
        arrived = item["ApproximateArrivalTimestamp"] * 1000.0
        keep(Record(a2b_base64(item["Data"]), key, number, arrived, shard_id, stream))
    return records


def _careful_records(items: list[Any], shard_id: str, stream: str) -> list[Record]:
    return [_record(item, number, shard_id, stream) for number, item in enumerate(items)]


def _record(item: Any, index: int, shard_id: str, stream: str) -> Record:
    if not isinstance(item, dict):
        raise _refused(shard_id, f"record {index} is a {type(item).__name__}, not an object")
    number = item.get("SequenceNumber")
    if not isinstance(number, str) or not number.isdecimal():
        raise _refused(shard_id, f"record {index} has no sequence number of decimal digits")
    key = item.get("PartitionKey")
    if key is not None and not isinstance(key, str):
        raise _refused(shard_id, f"record {index} has a partition key of type {type(key).__name__}")
    arrived = _millis(item.get("ApproximateArrivalTimestamp"), index, shard_id)
    return Record(_data(item.get("Data"), index, shard_id), key or "", number, arrived, shard_id, stream)


def _data(value: Any, index: int, shard_id: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _refused(shard_id, f"record {index} has Data of type {type(value).__name__}")
    try:
        return a2b_base64(value)
    except ValueError:
        problem = f"record {index} has Data that is not base64"
    raise _refused(shard_id, problem)


def _millis(value: Any, index: int, shard_id: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, datetime):
        return value.timestamp() * 1000.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(shard_id, f"record {index} has an arrival time of type {type(value).__name__}")
    try:
        return value * 1000.0
    except OverflowError:
        problem = f"record {index} has an arrival time beyond all measure"
    raise _refused(shard_id, problem)


def _page(document: Mapping[str, Any], records: list[Record], body_bytes: int, shard_id: str) -> Fetched:
    next_iterator = document.get("NextShardIterator")
    if next_iterator is not None and (not isinstance(next_iterator, str) or not next_iterator):
        raise _refused(shard_id, "its NextShardIterator is not a text")
    children = _children(document.get("ChildShards"), shard_id)
    if next_iterator is None and not children:
        raise _refused(shard_id, "it has neither a next iterator nor child shards")
    if next_iterator is not None and children:
        raise _refused(shard_id, "it has both a next iterator and child shards")
    behind = document.get("MillisBehindLatest")
    if behind is not None and (isinstance(behind, bool) or not isinstance(behind, int)):
        raise _refused(shard_id, f"its MillisBehindLatest is of type {type(behind).__name__}")
    return Fetched(records, next_iterator, behind, children, body_bytes)


def _children(value: Any, shard_id: str) -> tuple[Shard, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _refused(shard_id, f"its ChildShards are of type {type(value).__name__}")
    return tuple(_child(item, shard_id) for item in value)


def _child(item: Any, shard_id: str) -> Shard:
    child_id = item.get("ShardId") if isinstance(item, dict) else None
    if not isinstance(child_id, str) or not child_id:
        raise _refused(shard_id, "a child shard has no ShardId")
    parents = item.get("ParentShards")
    if not isinstance(parents, list) or not parents or not all(isinstance(one, str) for one in parents):
        raise _refused(shard_id, f"its child {child_id} lists no parent shards")
    return Shard(child_id, tuple(parents), _hash_range(item.get("HashKeyRange")))


def _hash_range(value: Any) -> HashRange | None:
    # None where it is missing or not a pair of decimal numbers: a shard without a range is still a shard.
    if not isinstance(value, dict):
        return None
    first, last = value.get("StartingHashKey"), value.get("EndingHashKey")
    if not isinstance(first, str) or not isinstance(last, str):
        return None
    if not (first.isdecimal() and last.isdecimal()):
        return None
    return HashRange(first, last)


def description_of(answer: Mapping[str, Any], name: str) -> StreamDescription:
    """A DescribeStreamSummary answer, as botocore parsed it. Raises AnswerRefused."""
    summary = answer.get("StreamDescriptionSummary")
    summary = summary if isinstance(summary, Mapping) else {}
    arn, created = summary.get("StreamARN"), summary.get("StreamCreationTimestamp")
    status = summary.get("StreamStatus")
    if not isinstance(arn, str) or not isinstance(created, datetime) or not isinstance(status, str):
        raise AnswerRefused(
            f"The description of stream {name!r} lacks its ARN, creation time or status. Ask again."
        )
    hours = summary.get("RetentionPeriodHours")
    retention = hours if isinstance(hours, int) and hours > 0 else 24
    return StreamDescription(name, arn, round(created.timestamp() * 1000), status, retention)


def shards_of(answer: Mapping[str, Any]) -> dict[str, Shard]:
    """One ListShards page, as botocore parsed it, by shard id. Raises AnswerRefused."""
    listed = answer.get("Shards")
    if not isinstance(listed, list):
        # Not an empty stream: a body that botocore could not read looks like this.
        raise AnswerRefused("A ListShards answer came without Shards. It is asked for again.")
    return {shard.shard_id: shard for shard in map(_shard, listed)}


def _shard(item: Any) -> Shard:
    shard_id = item.get("ShardId") if isinstance(item, Mapping) else None
    if not isinstance(shard_id, str) or not shard_id:
        raise AnswerRefused("A ListShards answer has a shard without ShardId. It is asked for again.")
    parents = (item.get("ParentShardId"), item.get("AdjacentParentShardId"))
    numbers = item.get("SequenceNumberRange")
    numbers = numbers if isinstance(numbers, Mapping) else {}
    return Shard(
        shard_id,
        tuple(parent for parent in parents if isinstance(parent, str) and parent),
        _hash_range(item.get("HashKeyRange")),
        numbers.get("StartingSequenceNumber"),
        numbers.get("EndingSequenceNumber"),
    )


def _size(answer: Mapping[str, Any], records: list[Record]) -> int:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    length = str(headers.get("content-length", ""))
    if length.isdecimal():
        return int(length)
    # Base64 needs four characters for three bytes, and about 200 more go to names and numbers.
    return sum(len(record.data) * 4 // 3 + 200 for record in records)


def _refused(shard_id: str, problem: str) -> AnswerRefused:
    return AnswerRefused(
        f"The GetRecords answer for {shard_id} cannot be true: {problem}. Nothing of it was used; asking for "
        "the same page again may help. If this goes on, look at what stands between this process and Kinesis "
        "(a proxy, an emulator)."
    )
