"""Records in the form of a Lambda event: `{"Records": [...]}`, as an event source mapping of Kinesis sends it.

A record that arrived alone has exactly the fields that Lambda sends. A user record out of an aggregate also has
`aggregated`, `subSequenceNumber` and `explicitHashKey`, as in the output of aws-kinesis-agg, and its `eventID` ends
with its sub-sequence number.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.model.record import Record

_STREAM_ARN = re.compile(r"arn:[a-z0-9-]+:kinesis:([a-z0-9-]+):[0-9]{12}:stream/([A-Za-z0-9_.-]{1,128})\Z")
_INTEGER = re.compile(r"[+-]?[0-9]{1,129}\Z")
_SHARD_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")


@dataclass(frozen=True, slots=True)
class EventSource:
    """Fields that are the same in each record of an event. invoke_identity_arn: of the role that reads the stream."""

    stream_arn: str
    invoke_identity_arn: str = ""

    @property
    def region(self) -> str:
        """Region of the stream; empty for what is no stream ARN."""
        found = _STREAM_ARN.match(self.stream_arn)
        return found[1] if found else ""


def event_of(records: Iterable[Record], source: EventSource) -> dict[str, Any]:
    """Return the event of a batch: a new object, which the handler may change."""
    region, identity, stream = source.region, source.invoke_identity_arn, source.stream_arn
    entries = []
    for record in records:
        sequence_number = record.sequence_number
        event_id = f"{record.shard_id}:{sequence_number}"
        kinesis: dict[str, Any] = {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": record.partition_key,
            "sequenceNumber": sequence_number,
            "data": b2a_base64(record.data, newline=False).decode("ascii"),
            "approximateArrivalTimestamp": round(record.arrived_at_millis) / 1000,
        }
        if record.aggregated:
            event_id = f"{event_id}:{record.sub_sequence_number}"
            kinesis["explicitHashKey"] = record.explicit_hash_key
            kinesis["subSequenceNumber"] = record.sub_sequence_number
            kinesis["aggregated"] = True
        entries.append(
            {
                "kinesis": kinesis,
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": event_id,
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": identity,
                "awsRegion": region,
                "eventSourceARN": stream,
            }
        )
    return {"Records": entries}


def records_of(event: object) -> tuple[Record, ...]:
    """Return the records of an event, which anybody may have written.

    Raises ValueError for what is not of that form; its text never contains a payload or a partition key.
    """
    entries = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list of Records")
    records = []
    for number, entry in enumerate(entries):
        try:
            records.append(_record_of(entry))
        except _Wrong as wrong:
            problem = str(wrong)
        else:
            continue
        # Outside the except block, so that a traceback shows nothing of the record.
        raise ValueError(f"record {number} of {len(entries)}: {problem}")
    return tuple(records)


class _Wrong(Exception):
    """The text names the field."""


def _record_of(entry: Any) -> Record:
    kinesis = entry.get("kinesis") if isinstance(entry, Mapping) else None
    if not isinstance(kinesis, Mapping):
        raise _Wrong("it has no kinesis")
    arn, event_id = _text(entry, "eventSourceARN"), _text(entry, "eventID")
    stream, shard_id = _STREAM_ARN.match(arn), event_id.partition(":")[0]
    if stream is None:
        raise _Wrong("eventSourceARN is no ARN of a stream")
    if not _SHARD_ID.match(shard_id):
        raise _Wrong("eventID names no shard")
    aggregated = kinesis.get("aggregated", False)
    if not isinstance(aggregated, bool):
        raise _Wrong("aggregated is neither true nor false")
    record = Record(
        _data(_text(kinesis, "data")),
        _text(kinesis, "partitionKey"),
        _text(kinesis, "sequenceNumber"),
        _millis(kinesis.get("approximateArrivalTimestamp")),
        shard_id,
        stream[2],
        _sub_sequence_number(kinesis) if aggregated else 0,
        _hash_key(kinesis.get("explicitHashKey")) if aggregated else None,
        aggregated,
    )
    try:
        is_number = not record.position.is_sentinel
    except ValueError:
        is_number = False
    if not is_number:
        raise _Wrong("sequenceNumber or subSequenceNumber is no such number")
    return record


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _Wrong(f"{name} is missing or is no text")
    return value


def _data(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise _Wrong("data is not base64") from None


def _millis(seconds: Any) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 2**40:
        raise _Wrong("approximateArrivalTimestamp is no time in seconds")
    return float(round(seconds * 1000))


def _sub_sequence_number(kinesis: Mapping[str, Any]) -> int:
    value = kinesis.get("subSequenceNumber")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong("subSequenceNumber is missing or is no number")
    return value


def _hash_key(value: Any) -> str | None:
    # Producers may write a sign and zeros before the digits.
    if value is not None and not (isinstance(value, str) and _INTEGER.match(value)):
        raise _Wrong("explicitHashKey is neither a number nor null")
    return value
