"""AWS JSON 1.1, as boto3 speaks it: blobs are base64 text, timestamps are seconds since the epoch with a fraction."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from pykcl.local.shards import StoredRecord
from pykcl.local.wire_values import Answer, Instant, Params, instant, not_serialized

CONTENT_TYPE = "application/x-amz-json-1.1"


def decode(body: bytes) -> Params:
    """A request body. Raises AwsError SerializationException when it is not a JSON object, or holds no base64."""
    try:
        params = json.loads(body or b"{}")
        if b"\\ud" in body or b"\\uD" in body:
            # Half a surrogate pair passes the parser and is no text: it could never be answered.
            json.dumps(params, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # ValueError is also that of bad UTF-8
        params = None
    if not isinstance(params, dict):
        raise not_serialized("The request body is not a JSON object.")
    _read_members(params)
    records = params.get("Records")
    for record in records if isinstance(records, list) else ():
        if isinstance(record, dict):
            _read_members(record)
    if isinstance(params.get("ShardFilter"), dict):
        _read_members(params["ShardFilter"])
    return params


def _read_members(members: Params) -> None:
    data, seconds = members.get("Data"), members.get("Timestamp")
    if isinstance(data, str):
        try:
            members["Data"] = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise not_serialized("Data is not base64 text.") from error
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        members["Timestamp"] = _instant(seconds)


def _instant(seconds: float) -> Instant:
    try:
        found = instant(seconds * 1000)
    except OverflowError:  # an integer of hundreds of digits
        found = None
    if found is None:
        raise not_serialized("Timestamp is not a number of seconds.")
    return found


def encode(answer: Answer) -> bytes:
    """An answer body. Records are served from text made once per record: GetRecords is the hot path."""
    records = answer.get("Records")
    if not records or not isinstance(records[0], StoredRecord):
        return json.dumps(answer, separators=(",", ":"), default=_written).encode()
    others = {key: value for key, value in answer.items() if key != "Records"}
    rest = json.dumps(others, separators=(",", ":"), default=_written)
    return b"".join(
        (b'{"Records":[', b",".join([r.json or _encode_record(r) for r in records]), b"],", rest[1:].encode())
    )


def _encode_record(record: StoredRecord) -> bytes:
    record.json = (
        f'{{"SequenceNumber":"{record.sequence_number}",'
        f'"ApproximateArrivalTimestamp":{record.arrived_at_millis / 1000:.3f},'
        f'"Data":"{base64.b64encode(record.data).decode()}",'
        f'"PartitionKey":{json.dumps(record.partition_key)}}}'
    ).encode()
    return record.json


def _written(value: Any) -> float | str:
    """What JSON has no form for."""
    return value.millis / 1000 if isinstance(value, Instant) else base64.b64encode(value).decode()
