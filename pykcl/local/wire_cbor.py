"""AWS CBOR 1.1, as the Java SDK sends it: the members of the JSON protocol in CBOR (RFC 8949).

Blobs are byte strings. Timestamps are tag 1 with an integer of milliseconds since the epoch, against the RFC, which
requires seconds there (aws-sdk-java-v2: `SdkCborGenerator` and the default formats of `AwsCborProtocolFactory`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import cbor2

from pykcl.local.shards import StoredRecord
from pykcl.local.wire import JSON, Instant, Params, Response, WireFormat, instant, not_serialized

EPOCH_TAG = 1
MAX_DEPTH = 8
MAX_READS = 20_000
"""No request has more: 500 records of a map with three names and three values, and 160 reads for 10 MB of payload."""
_BUFFER = 16

_BYTES, _LIST, _MAP = 0x40, 0x80, 0xA0
"""Major types, RFC 8949 §3.1."""


class RefusedError(ValueError):
    """A body that is CBOR but not a request."""


class _Meter(io.BytesIO):
    """A body of which only `max_reads` pieces can be read.

    An empty array is one byte on the wire and sixty in memory, so a body of allowed size could still fill a machine.
    """

    def __init__(self, body: bytes, max_reads: int) -> None:
        super().__init__(body)
        self._left = max_reads

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


# Tags turn their value into numbers of a million digits, patterns, mails and loops. Requests have tag 1 only. Those
# that cbor2 knows (RFC 8949 §3.4.5 and the registered ones below 300) must be named to be refused.
_TAGS: dict[int, Any] = dict.fromkeys(range(300), _refuse)


def decode(
    body: bytes, *, max_reads: int = MAX_READS, read_time: Callable[[Any, bool], Any] = _read_instant
) -> Params:
    """Decode a request body. Raises AwsError SerializationException if it is not one CBOR map or too large.

    read_time: creates a time from the value of tag 1; raises RefusedError.
    """
    if not body:
        return {}
    decoder = cbor2.CBORDecoder(
        _Meter(body, max_reads),
        read_size=_BUFFER,
        max_depth=MAX_DEPTH,
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


def encode(response: Response) -> bytes:
    """Encode a response body. All of a record but its data is created once: GetRecords is the hot path."""
    records = response.get("Records")
    if not records or not isinstance(records[0], StoredRecord):
        return cbor2.dumps(response, default=_write)
    others = [(key, value) for key, value in response.items() if key != "Records"]
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
    # The data comes last and is not stored here, being in memory already: its one byte for "no bytes" is replaced by
    # the head of the bytes that will follow.
    record.cbor = cbor2.dumps(members, default=_write)[:-1] + _head(_BYTES, len(record.data))
    return record.cbor


def _write(encoder: cbor2.CBOREncoder, value: Any) -> None:
    if not isinstance(value, Instant):
        raise TypeError(f"No response has a {type(value).__name__}.")
    encoder.encode_semantic(EPOCH_TAG, value.millis)


def _head(major: int, length: int) -> bytes:
    """Return the head of a data item of a major type (its three bits) and length, RFC 8949 §3."""
    if length < 24:
        return bytes((major | length,))
    for info, size in ((24, 1), (25, 2), (26, 4)):
        if length < 1 << (8 * size):
            return bytes((major | info,)) + length.to_bytes(size, "big")
    return bytes((major | 27,)) + length.to_bytes(8, "big")


CBOR = WireFormat("application/x-amz-cbor-1.1", decode, encode)


def format_of(headers: Mapping[str, str]) -> WireFormat:
    """Return the format of a request, which its response has, too; JSON unless the headers say otherwise.

    headers: names in lower case.
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return CBOR if content_type in (CBOR.content_type, "application/cbor") else JSON
