"""AWS CBOR 1.1, as the Java SDK speaks it: the JSON protocol's members, in CBOR (RFC 8949).

Blobs are byte strings. Timestamps are tag 1 with an integer of milliseconds since the epoch, against the RFC, which
wants seconds there (aws-sdk-java-v2: `SdkCborGenerator` and the default formats of `AwsCborProtocolFactory`).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cbor2

from pykcl.local.shards import StoredRecord
from pykcl.local.wire_values import Answer, Instant, Params, instant, not_serialized

CONTENT_TYPE = "application/x-amz-cbor-1.1"
EPOCH_TAG = 1
MOST_DEPTH = 8
MOST_READS = 20_000
"""No request has more: 500 records of a map with three names and three values, and 160 reads for 10 MB of payload."""
_BUFFER = 16

_BYTES, _LIST, _MAP = 0x40, 0x80, 0xA0
"""Major types, RFC 8949 §3.1."""


class RefusedError(ValueError):
    """A body that is CBOR and still no request."""


class _Meter(io.BytesIO):
    """A body that gives out only so many pieces.

    An empty array is one byte on the wire and sixty in memory, so a body of allowed size could still fill a machine.
    """

    def __init__(self, body: bytes, most_reads: int) -> None:
        super().__init__(body)
        self._left = most_reads

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise RefusedError
        return super().read(size)


def _refuse(*_: object) -> Any:
    raise RefusedError


def _read_instant(value: Any, _: bool) -> Instant:
    found = instant(value) if isinstance(value, int | float) else None
    if found is None:
        raise RefusedError
    return found


def _text_keys(members: Any, _: bool) -> Any:
    if not all(isinstance(key, str) for key in members):
        raise RefusedError
    return members


# Tags make numbers of a million digits, patterns, mails and loops of what follows them. No request has another than 1.
# Those cbor2 knows (RFC 8949 §3.4.5 and the registered ones below 300) must be named to be refused.
_TAGS: dict[int, Any] = dict.fromkeys(range(300), _refuse)


def decode(
    body: bytes, *, most_reads: int = MOST_READS, read_time: Callable[[Any, bool], Any] = _read_instant
) -> Params:
    """A request body. Raises AwsError SerializationException when it is not one CBOR map, or no request has so much.

    read_time: makes a time of what tag 1 is on; raises RefusedError.
    """
    if not body:
        return {}
    decoder = cbor2.CBORDecoder(
        _Meter(body, most_reads),
        read_size=_BUFFER,
        max_depth=MOST_DEPTH,
        semantic_decoders={**_TAGS, EPOCH_TAG: read_time},
        tag_hook=_refuse,
        object_hook=_text_keys,
    )
    try:
        params = decoder.decode()
        ended = _at_end(decoder)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise not_serialized("The request body is not the CBOR of a request.") from error
    if not ended or not isinstance(params, dict):
        raise not_serialized("The request body is not one CBOR map.")
    return params


def _at_end(decoder: cbor2.CBORDecoder) -> bool:
    try:
        decoder.read(1)
    except cbor2.CBORDecodeEOF:
        return True
    return False


def encode(answer: Answer) -> bytes:
    """An answer body. All of a record but its data is made once per record: GetRecords is the hot path."""
    records = answer.get("Records")
    if not records or not isinstance(records[0], StoredRecord):
        return cbor2.dumps(answer, default=_write)
    others = [(key, value) for key, value in answer.items() if key != "Records"]
    parts = [_head(_MAP, len(others) + 1), cbor2.dumps("Records"), _head(_LIST, len(records))]
    for record in records:
        parts += (record.cbor or _encode_record(record), record.data)
    for key, value in others:
        parts += (cbor2.dumps(key), cbor2.dumps(value, default=_write))
    return b"".join(parts)


def _encode_record(record: StoredRecord) -> bytes:
    members = {
        "SequenceNumber": record.sequence_number,
        "ApproximateArrivalTimestamp": Instant(record.arrived_at_millis),
        "PartitionKey": record.partition_key,
        "Data": b"",
    }
    # The data comes last and is not kept here, being in memory already: its one byte for "no bytes" gives way to the
    # head of the bytes that will follow.
    record.cbor = cbor2.dumps(members, default=_write)[:-1] + _head(_BYTES, len(record.data))
    return record.cbor


def _write(encoder: cbor2.CBOREncoder, value: Any) -> None:
    if not isinstance(value, Instant):
        raise TypeError(f"No answer has a {type(value).__name__}.")
    encoder.encode_semantic(EPOCH_TAG, value.millis)


def _head(major: int, length: int) -> bytes:
    """The head of a data item of that major type (its three bits) and length, RFC 8949 §3."""
    if length < 24:
        return bytes((major | length,))
    for info, size in ((24, 1), (25, 2), (26, 4)):
        if length < 1 << (8 * size):
            return bytes((major | info,)) + length.to_bytes(size, "big")
    return bytes((major | 27,)) + length.to_bytes(8, "big")
