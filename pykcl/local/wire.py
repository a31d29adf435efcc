"""Members of requests and responses as Python values, and their form in AWS JSON 1.1, as boto3 sends it.

Members are a dict: a blob is `bytes`, a timestamp an `Instant`, everything else a value of JSON. "Records" of a
response may be `StoredRecord`s. In JSON, blobs are base64 text and timestamps are seconds since the epoch with a
fraction.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.local.errors import AwsError
from pykcl.local.shards import StoredRecord
from pykcl.model import metered_json
from pykcl.model.metered_json import NotJson

Params = dict[str, Any]
Response = Mapping[str, Any]

MAX_MILLIS = (1 << 63) - 1
"""Limit of the clients' clocks."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, milliseconds since the epoch."""

    millis: int


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A format of request and response bodies. decode raises AwsError SerializationException."""

    content_type: str
    decode: Callable[[bytes], Params]
    encode: Callable[[Response], bytes]


def not_serialized(problem: str) -> AwsError:
    """Return the error for a body in another format than its label.

    problem: without content, which may be a payload.
    """
    return AwsError("SerializationException", problem)


def instant(millis: float) -> Instant | None:
    """Return the instant `millis` milliseconds after the epoch; None for a value that is not a number of them."""
    try:
        whole = round(millis)
    except (ValueError, OverflowError):  # not a number, infinite
        return None
    return Instant(whole) if abs(whole) <= MAX_MILLIS else None


MAX_VALUES = 250_000
"""More than a request of Kinesis can have, and than a megabyte of numbers for CloudWatch."""
MAX_DEPTH = 80
"""An item of DynamoDB is 32 levels deep, each of them two in JSON."""


def read_json(body: bytes) -> Any:
    """Return the value of a body. Raises AwsError SerializationException if it is not JSON in UTF-8, and for more or
    deeper values than any request has.
    """
    try:
        return metered_json.read_json(body.decode(), max_values=MAX_VALUES, max_depth=MAX_DEPTH)
    except NotJson as error:
        raise not_serialized(f"The request body cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise not_serialized("The request body is not JSON in UTF-8.") from error


def decode(body: bytes) -> Params:
    """Decode a request body. Raises AwsError SerializationException if it is not a JSON object, or not base64."""
    try:
        params = read_json(body or b"{}")
        if b"\\ud" in body or b"\\uD" in body:
            # Half a surrogate pair passes the parser but is not text: no response could contain it.
            json.dumps(params, ensure_ascii=False).encode()
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise not_serialized("The request body is not a JSON object.")
    _read_members(params)
    records = params.get("Records")
    for record in records if isinstance(records, list) else ():
        if isinstance(record, dict):
            _read_members(record)
    for name in ("ShardFilter", "StartingPosition"):
        if isinstance(params.get(name), dict):
            _read_members(params[name])
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


def encode(response: Response) -> bytes:
    """Encode a response body. The text of a record is created once: GetRecords is the hot path."""
    records = response.get("Records")
    if not records or not isinstance(records[0], StoredRecord):
        return json.dumps(response, separators=(",", ":"), default=_written).encode()
    others = {key: value for key, value in response.items() if key != "Records"}
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
    """Return the form of a value that JSON does not have."""
    return value.millis / 1000 if isinstance(value, Instant) else base64.b64encode(value).decode()


JSON = WireFormat("application/x-amz-json-1.1", decode, encode)
