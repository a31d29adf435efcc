"""Shard iterators and next tokens: opaque, self-contained, signed; the server keeps no memory of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pykcl.local.errors import AwsError, invalid_argument

LIFETIME_MILLIS = 300_000
_SIGNATURE_BYTES = 8
_KEY = b"pykcl.local tokens"  # guards against damaged tokens, not against attackers


@dataclass(frozen=True, slots=True)
class Place:
    """Where an iterator stands: at the first record of the shard whose sequence number is >= `position`.

    position: 56 digits. incarnation: which life of a stream of that name. reached: the stream time up to which earlier
    calls have covered the shard. issued_at, reached: epoch milliseconds.
    """

    stream: str
    incarnation: str
    shard_id: str
    position: str
    reached: int
    issued_at: int


@dataclass(frozen=True, slots=True)
class ListingPlace:
    """Where a ListShards or ListStreams walk stands: after `after`. filter_*: the shard filter it has."""

    stream: str
    incarnation: str
    after: str
    filter_type: str | None
    filter_value: str | None
    issued_at: int


def _pack(kind: str, *fields: Any) -> str:
    payload = json.dumps([kind, *fields], separators=(",", ":")).encode()
    signature = hashlib.blake2b(payload, digest_size=_SIGNATURE_BYTES, key=_KEY).digest()
    return base64.urlsafe_b64encode(signature + payload).decode()


def _unpack(kind: str, token: str) -> list[Any] | None:
    try:
        raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    signature, payload = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    if hashlib.blake2b(payload, digest_size=_SIGNATURE_BYTES, key=_KEY).digest() != signature:
        return None
    fields: list[Any] = json.loads(payload)
    return fields[1:] if fields[0] == kind else None


def write_iterator(place: Place) -> str:
    """The shard iterator for a place: at most 512 characters, as Kinesis promises."""
    where = (place.stream, place.incarnation, place.shard_id, place.position, place.reached)
    return _pack("i", *where, place.issued_at)


def read_iterator(token: str, now_millis: int) -> Place:
    """Raises AwsError: InvalidArgumentException for a damaged one, ExpiredIteratorException after 300 s."""
    fields = _unpack("i", token)
    if fields is None:
        raise invalid_argument("Invalid ShardIterator.")
    place = Place(*fields)
    if now_millis - place.issued_at > LIFETIME_MILLIS:
        raise AwsError(
            "ExpiredIteratorException",
            f"Iterator expired. The iterator was created at time {_date(place.issued_at)} while right now it "
            f"is {_date(now_millis)} which is further in the future than the tolerated delay of "
            f"{LIFETIME_MILLIS} milliseconds.",
        )
    return place


def write_next_token(place: ListingPlace) -> str:
    """The NextToken of a listing."""
    fields = (place.stream, place.incarnation, place.after, place.filter_type, place.filter_value)
    return _pack("n", *fields, place.issued_at)


def read_next_token(token: str, now_millis: int) -> ListingPlace:
    """Raises AwsError: InvalidArgumentException for a damaged one, ExpiredNextTokenException after 300 s."""
    fields = _unpack("n", token)
    if fields is None:
        raise invalid_argument("NextToken is invalid.")
    place = ListingPlace(*fields)
    if now_millis - place.issued_at > LIFETIME_MILLIS:
        raise AwsError(
            "ExpiredNextTokenException",
            f"The NextToken was created at {_date(place.issued_at)} and has expired at {_date(now_millis)}: "
            f"it lives for {LIFETIME_MILLIS} milliseconds. Start the listing again.",
        )
    return place


def _date(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, tz=timezone.utc).strftime("%a %b %d %H:%M:%S UTC %Y")
