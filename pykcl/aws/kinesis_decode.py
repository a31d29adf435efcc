"""Kinesis' answers as values; above all GetRecords, decoded once, straight into slotted Records. An event that is
pushed differs from it in one name (`CONTINUATION`).

botocore's own parser walks the service model for every record and asks for the local time zone each time.
Here the JSON body is read in one pass. `page_of_body` is that quick way; `page_of_answer` takes what botocore
parsed where the quick way was not open (an older botocore, a stubbed client). Both give equal Records and
refuse the same answers.

Protocol: GetRecords of the Kinesis API 2013-12-02. Only `SequenceNumber` and `Data` are promised for every
record: an arrival time may be missing, and a stream that distributes records by itself returns no partition
key where the producer gave none. The end of a shard is exactly "no NextShardIterator, and ChildShards that
name their parents" (Java KCL v3.5.1 `DataRetrievalUtil.java`): any other mixture proves nothing and is
refused, so that a cut-off answer is never taken for the end of a shard. A page with neither of the two, as older
emulators end a shard, goes with its refusal (`UnprovenEnd`) to the stream, which asks ListShards.

No text raised here carries a payload, a partition key or an iterator.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeGuard

from pykcl.aws.transport.cbor import Allowance, Columns, decode, decode_name, head, is_break, read_records
from pykcl.errors import AnswerRefused
from pykcl.interfaces import Fetched
from pykcl.model.checkpoint import are_sequence_numbers, is_sequence_number
from pykcl.model.metered_json import NotJson, read_json
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.record import PlainRecords, Record
from pykcl.model.shard import DEFAULT_RECORD_BYTES, STREAM_ARN, HashRange, Shard, StreamDescription

LAST_MILLIS = 253_402_300_799_000
"""The end of the year 9999 in epoch milliseconds: no later arrival can be expressed as a datetime."""
MAX_RETENTION_HOURS = 365 * 24
_SHARD_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_CONTENT_LENGTH = re.compile(r"[0-9]{1,12}\Z")
_STATUS = re.compile(r"[A-Z_]{1,32}\Z")
_MAX_SHOWN = 64
_ITERATOR = "NextShardIterator"
CONTINUATION = "ContinuationSequenceNumber"
"""Name of the place to read on from, in an event that is pushed."""
NO_END = f"it has neither {_ITERATOR} nor ChildShards"


class UnprovenEnd(AnswerRefused):
    """A page with neither NextShardIterator nor ChildShards. page: it, for who proves the end."""

    def __init__(self, message: str, page: Fetched) -> None:
        super().__init__(message)
        self.page = page


_partition_key = itemgetter("PartitionKey")
_sequence_number = itemgetter("SequenceNumber")
_arrival = itemgetter("ApproximateArrivalTimestamp")
_payload = itemgetter("Data")


def page_of_body(body: bytes, shard_id: str, stream: str, *, place: str = _ITERATOR) -> Fetched:
    """The answer from its raw JSON body. place: as in `page_of`.

    Raises AnswerRefused for anything Kinesis cannot have meant.
    """
    document = _document(body, shard_id)
    items = items_of(document, shard_id)
    records: Sequence[Record] | None = None
    with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
        records = _quick_records(items, shard_id, stream)
    if records is None:
        # Something optional is missing, or something is wrong: check each record.
        records = careful_records(items, shard_id, stream)
    return page_of(document, records, len(body), shard_id, place=place)


def page_of_answer(answer: Mapping[str, Any], shard_id: str, stream: str) -> Fetched:
    """The answer from what botocore made of it: `Data` as bytes, times as datetimes. Raises AnswerRefused."""
    records = careful_records(items_of(answer, shard_id), shard_id, stream)
    return page_of(answer, records, _size(answer, records), shard_id)


def _document(body: bytes, shard_id: str) -> Mapping[str, Any]:
    trouble = ""
    try:
        # Nothing walks over it, so Python's own limit of levels is enough.
        document = read_json(body.decode(), max_depth=None)
    except UnicodeDecodeError:
        trouble = "it is not UTF-8"
    except NotJson as error:
        trouble = str(error)
    # Raised outside the except blocks: the first error keeps the whole body, payloads included.
    if trouble:
        raise refused(shard_id, trouble)
    if not isinstance(document, dict):
        raise refused(shard_id, f"it is a JSON {type(document).__name__}, not an object")
    return document


def items_of(document: Mapping[str, Any], shard_id: str) -> list[Any]:
    items = document.get("Records")
    if not isinstance(items, list):
        problem = "no Records" if items is None else f"Records as {type(items).__name__}"
        raise refused(shard_id, f"it has {problem}")
    return items


def _quick_records(items: list[Any], shard_id: str, stream: str) -> Sequence[Record]:
    """The hot path, column by column: every step costs each record, and those inside C cost least.

    Raises whatever an unusual record provokes.
    """
    if not items:
        return []
    keys = list(map(_partition_key, items))
    numbers = list(map(_sequence_number, items))
    # Seconds with millisecond fractions, as a float: times 1000 is exact for them until the year 2038.
    times = [seconds * 1000.0 for seconds in map(_arrival, items)]
    if set(map(type, keys)) != {str} or not are_sequence_numbers(numbers):
        raise TypeError
    if not 0.0 <= min(times) <= max(times) <= LAST_MILLIS:
        raise OverflowError
    return PlainRecords(list(map(a2b_base64, map(_payload, items))), keys, numbers, times, shard_id, stream)


def careful_records(items: list[Any], shard_id: str, stream: str) -> list[Record]:
    return [_record(item, number, shard_id, stream) for number, item in enumerate(items)]


def _record(item: Any, index: int, shard_id: str, stream: str) -> Record:
    if not isinstance(item, dict):
        raise refused(shard_id, f"record {index} is a {type(item).__name__}, not an object")
    number = item.get("SequenceNumber")
    if not isinstance(number, str) or not is_sequence_number(number):
        raise refused(shard_id, f"record {index} has no sequence number of decimal digits")
    key = item.get("PartitionKey")
    if key is not None and not isinstance(key, str):
        raise refused(shard_id, f"record {index} has a partition key of type {type(key).__name__}")
    arrived = _millis(item.get("ApproximateArrivalTimestamp"), index, shard_id)
    return Record(_data(item.get("Data"), index, shard_id), key or "", number, arrived, shard_id, stream)


def _data(value: Any, index: int, shard_id: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise refused(shard_id, f"record {index} has Data of type {type(value).__name__}")
    try:
        return a2b_base64(value)
    except ValueError:
        problem = f"record {index} has Data that is not base64"
    raise refused(shard_id, problem)


def _millis(value: Any, index: int, shard_id: str) -> float:
    if value is None:
        return 0.0
    try:
        seconds = value.timestamp() if isinstance(value, datetime) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            problem = f"of type {type(value).__name__}"
        elif 0.0 <= (millis := seconds * 1000.0) <= LAST_MILLIS:
            return millis
        else:
            problem = "before 1970 or beyond the year 9999"
    except (OverflowError, ValueError, OSError):
        problem = "beyond all measure"
    raise refused(shard_id, f"record {index} has an arrival time {problem}")


def page_of(
    document: Mapping[str, Any],
    records: Sequence[Record],
    body_bytes: int,
    shard_id: str,
    *,
    place: str = _ITERATOR,
) -> Fetched:
    """place: name of the place to read on from, which becomes `next_iterator`."""
    next_iterator = document.get(place)
    if next_iterator is not None and (not isinstance(next_iterator, str) or not next_iterator):
        raise refused(shard_id, f"its {place} is not a text")
    if place == CONTINUATION and next_iterator is not None and is_sequence_number(next_iterator) is None:
        raise refused(shard_id, f"its {place} is no sequence number of decimal digits")
    children = _children(document.get("ChildShards"), shard_id)
    if next_iterator is not None and children:
        raise refused(shard_id, f"it has both {place} and ChildShards")
    behind = document.get("MillisBehindLatest")
    if behind is not None and (isinstance(behind, bool) or not isinstance(behind, int)):
        raise refused(shard_id, f"its MillisBehindLatest is of type {type(behind).__name__}")
    page = Fetched(records, next_iterator, behind, children, body_bytes)
    if next_iterator is None and not children:
        if place != _ITERATOR:
            raise refused(shard_id, f"it has neither {place} nor ChildShards")
        raise UnprovenEnd(str(refused(shard_id, NO_END)), page)
    return page


def _children(value: Any, shard_id: str) -> tuple[Shard, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise refused(shard_id, f"its ChildShards are of type {type(value).__name__}")
    return tuple(_child(item, shard_id) for item in value)


def _child(item: Any, shard_id: str) -> Shard:
    child_id = item.get("ShardId") if isinstance(item, dict) else None
    if not _is_shard_id(child_id):
        raise refused(shard_id, "a child shard has no ShardId, or one Kinesis does not give")
    parents = item.get("ParentShards")
    if not isinstance(parents, list) or not parents or not all(map(_is_shard_id, parents)):
        raise refused(shard_id, f"its child {child_id} has no ParentShards")
    keys, said = _hash_range(item.get("HashKeyRange"))
    return Shard(child_id, tuple(parents), keys, refused_range=said)


def _is_shard_id(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and _SHARD_ID.match(value) is not None


def _hash_range(value: Any) -> tuple[HashRange | None, str]:
    """Return the range, and what stands there instead of one: a shard without a range is still a shard."""
    if value is None:
        return None, ""
    ends = value if isinstance(value, Mapping) else {}
    first, last = ends.get("StartingHashKey"), ends.get("EndingHashKey")
    keys = HashRange.parse(first, last) if isinstance(first, str) and isinstance(last, str) else None
    return keys, "" if keys is not None else f"{str(first)[:_MAX_SHOWN]} to {str(last)[:_MAX_SHOWN]}"


def description_of(answer: Mapping[str, Any], name: str) -> StreamDescription:
    """A DescribeStreamSummary answer, as botocore parsed it. Raises AnswerRefused."""
    summary = answer.get("StreamDescriptionSummary")
    summary = summary if isinstance(summary, Mapping) else {}
    arn: Any = summary.get("StreamARN")
    status: Any = summary.get("StreamStatus")
    created = summary.get("StreamCreationTimestamp")
    if not _matches(STREAM_ARN, arn) or not isinstance(created, datetime) or not _matches(_STATUS, status):
        raise AnswerRefused(
            f"The description of stream {name!r} lacks its ARN, creation time or status. Ask again."
        )
    hours = summary.get("RetentionPeriodHours")
    retention = hours if isinstance(hours, int) and 0 < hours <= MAX_RETENTION_HOURS else 24
    ignores_keys = summary.get("RecordDistributionStrategy") == "AUTO"
    kib = summary.get("MaxRecordSizeInKiB")
    largest = kib * 1024 if isinstance(kib, int) and kib > 0 else DEFAULT_RECORD_BYTES
    created_at = round(created.timestamp() * 1000)
    return StreamDescription(name, arn, created_at, status, retention, ignores_keys, largest)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def put_entry(record: NewRecord) -> dict[str, Any]:
    """Return a record as a member of a PutRecords request."""
    entry: dict[str, Any] = {"Data": record.data, "PartitionKey": record.partition_key}
    if record.explicit_hash_key is not None:
        entry["ExplicitHashKey"] = record.explicit_hash_key
    return entry


def put_answers(answer: Mapping[str, Any], count: int) -> list[PutAnswer]:
    """The answer of PutRecords for each of `count` records, in order. Raises AnswerRefused for another number."""
    listed = answer.get("Records")
    entries = listed if isinstance(listed, list) else []
    readable = sum(isinstance(entry, dict) for entry in entries)
    if not len(entries) == readable == count:
        raise AnswerRefused(
            f"PutRecords of {count} records answered for {readable}: it is unknown which were put."
        )
    return [_put_answer(entry) for entry in entries]


def _put_answer(answer: Mapping[str, Any]) -> PutAnswer:
    error, shard_id = answer.get("ErrorCode"), answer.get("ShardId")
    if error or not isinstance(shard_id, str):
        return PutAnswer(None, str(error or "no shard named")[:80])
    return PutAnswer(shard_id, None, str(answer.get("SequenceNumber") or ""))


def shards_of(answer: Mapping[str, Any]) -> dict[str, Shard]:
    """One ListShards page, as botocore parsed it, by shard id. Raises AnswerRefused."""
    listed = answer.get("Shards")
    if not isinstance(listed, list):
        # Not an empty stream: a body that botocore could not read looks like this.
        raise AnswerRefused("A ListShards answer came without Shards. It is asked for again.")
    return {shard.shard_id: shard for shard in map(_shard, listed)}


def _shard(item: Any) -> Shard:
    shard_id = item.get("ShardId") if isinstance(item, Mapping) else None
    if not _is_shard_id(shard_id):
        raise AnswerRefused(
            "A ListShards answer has a shard without ShardId, or with one Kinesis does not give. It is asked "
            "for again."
        )
    # An unreadable parent is not "no parent": the shard would be read before what comes first.
    parents = [one for one in (item.get("ParentShardId"), item.get("AdjacentParentShardId")) if one]
    numbers = item.get("SequenceNumberRange")
    numbers = numbers if isinstance(numbers, Mapping) else {}
    first, last = numbers.get("StartingSequenceNumber"), numbers.get("EndingSequenceNumber")
    if not all(map(_is_shard_id, parents)) or not all(
        one is None or _is_number(one) for one in (first, last)
    ):
        raise AnswerRefused(
            f"A ListShards answer has parents or sequence numbers of {shard_id} that cannot be read. It is "
            "asked for again."
        )
    keys, said = _hash_range(item.get("HashKeyRange"))
    return Shard(shard_id, tuple(parents), keys, first, last, said)


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and is_sequence_number(value) is not None


def _size(answer: Mapping[str, Any], records: list[Record]) -> int:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    length = str(headers.get("content-length", ""))
    if _CONTENT_LENGTH.match(length):
        return int(length)
    # Base64 needs four characters for three bytes, and about 200 more go to names and numbers.
    return sum(len(record.data) * 4 // 3 + 200 for record in records)


def refused(shard_id: str, problem: str) -> AnswerRefused:
    return AnswerRefused(
        f"The answer with records of {shard_id} cannot be true: {problem}. Nothing of it was used; asking for "
        "the same records again may help. If this goes on, check what stands between this process and Kinesis "
        "(a proxy, an emulator)."
    )


_LIST, _MAP = 4, 5


def page_of_cbor(body: bytes, shard_id: str, stream: str, *, place: str = _ITERATOR) -> Fetched:
    """The same from a body in CBOR."""
    found: tuple[Mapping[str, Any], Sequence[Record]] | None = None
    with suppress(ValueError, OverflowError):
        found = _quick(body, shard_id, stream)
    document, records = _careful(body, shard_id, stream) if found is None else found
    return page_of(document, records, len(body), shard_id, place=place)


def _quick(body: bytes, shard_id: str, stream: str) -> tuple[Mapping[str, Any], Sequence[Record]]:
    """All but the records, and the records. Raises ValueError or OverflowError for whatever is not as usual."""
    major, _, size, position = head(body, 0)
    if major != _MAP:
        raise ValueError("no map")
    document: dict[str, Any] = {}
    columns: Columns | None = None
    allowance = Allowance()
    seen = 0
    while seen != size and not (size is None and is_break(body, position)):
        allowance.take(1)
        name, position = decode_name(body, position, allowance)
        if name == "Records":
            major, _, count, position = head(body, position)
            if major != _LIST or columns is not None:
                raise ValueError("no list, or a second one")
            columns = Columns(allowance)
            position = read_records(body, position, count, columns)
        elif name in document:
            raise ValueError("a name twice")
        else:
            document[name], position = decode(body, position, 1, allowance)
        seen += 1
    if columns is None or position + (size is None) != len(body):
        raise ValueError("no records, or more than a page")
    return document, _records(columns, shard_id, stream)


def _records(columns: Columns, shard_id: str, stream: str) -> Sequence[Record]:
    numbers = list(map(bytes.decode, columns.numbers))
    if not are_sequence_numbers(numbers) or max(columns.millis, default=0) > LAST_MILLIS:
        raise ValueError("a number that cannot be")
    keys, times = list(map(bytes.decode, columns.keys)), list(map(float, columns.millis))
    return PlainRecords(columns.data, keys, numbers, times, shard_id, stream)


def _careful(body: bytes, shard_id: str, stream: str) -> tuple[Mapping[str, Any], Sequence[Record]]:
    trouble = ""
    try:
        document, end = decode(body)
    except (ValueError, OverflowError, RecursionError) as error:
        trouble = f"it is not CBOR that can be read ({type(error).__name__})"
    # Raised outside the except block: an error of decoding text keeps the text.
    if trouble:
        raise refused(shard_id, trouble)
    if not isinstance(document, dict) or end != len(body):
        raise refused(shard_id, "it is not one CBOR map")
    items = items_of(document, shard_id)
    for index, item in enumerate(items):
        # In JSON text is base64; in CBOR it would be something else altogether.
        if isinstance(item, dict) and isinstance(item.get("Data"), str):
            raise refused(shard_id, f"record {index} has Data of type str")
    return document, careful_records(items, shard_id, stream)
