"""Shard iterators and next tokens, the start of each kind of iterator, and the page of one GetRecords call.

Iterators and next tokens are opaque, self-contained and signed; the server does not store them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pykcl.local.errors import ACCOUNT, AwsError, invalid_argument
from pykcl.local.shards import LocalShard, LocalStream, StoredRecord, following, millis_in, shard_index_in
from pykcl.model.shard import Shard

LIFETIME_MILLIS = 300_000
_SIGNATURE_BYTES = 8
_KEY = b"pykcl.local tokens"  # guards against damaged tokens, not against attackers


class ReadPosition(NamedTuple):
    """Position of an iterator: the first record of the shard whose sequence number is >= `sequence_number`, 56 digits.

    incarnation: distinguishes streams of one name, created one after the other. reached: the stream time up to which
    earlier calls have covered the shard. issued_at, reached: epoch milliseconds.
    """

    stream: str
    incarnation: str
    shard_id: str
    sequence_number: str
    reached: int
    issued_at: int


class ListingPosition(NamedTuple):
    """Position of a listing of shards or streams: after the name `after`. filter_*: its shard filter."""

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


def write_iterator(position: ReadPosition) -> str:
    """Return the shard iterator for a position: at most 512 characters, as Kinesis guarantees."""
    return _pack("i", *position)


def read_iterator(token: str, now_millis: int) -> ReadPosition:
    """Decode a shard iterator.

    Raises AwsError: InvalidArgumentException if damaged, ExpiredIteratorException after 300 s.
    """
    fields = _unpack("i", token)
    if fields is None:
        raise invalid_argument("Invalid ShardIterator.")
    position = ReadPosition(*fields)
    if now_millis - position.issued_at > LIFETIME_MILLIS:
        raise AwsError(
            "ExpiredIteratorException",
            f"Iterator expired. The iterator was created at time {_date(position.issued_at)} while right now it "
            f"is {_date(now_millis)} which is further in the future than the tolerated delay of "
            f"{LIFETIME_MILLIS} milliseconds.",
        )
    return position


def write_next_token(position: ListingPosition) -> str:
    """Return the NextToken of a listing."""
    return _pack("n", *position)


def read_next_token(token: str, now_millis: int) -> ListingPosition:
    """Decode a NextToken.

    Raises AwsError: InvalidArgumentException if damaged, ExpiredNextTokenException after 300 s.
    """
    fields = _unpack("n", token)
    if fields is None:
        raise invalid_argument("NextToken is invalid.")
    position = ListingPosition(*fields)
    if now_millis - position.issued_at > LIFETIME_MILLIS:
        raise AwsError(
            "ExpiredNextTokenException",
            f"The NextToken was created at {_date(position.issued_at)} and has expired at {_date(now_millis)}: "
            f"it lives for {LIFETIME_MILLIS} milliseconds. Start the listing again.",
        )
    return position


def _date(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, tz=UTC).strftime("%a %b %d %H:%M:%S UTC %Y")


@dataclass(frozen=True, slots=True)
class Page:
    """Result of one GetRecords call. next_iterator is None exactly when the end of a closed shard is reached.

    millis_behind_latest: age of the record to be read next, 0 at the tip. children: at the end of a shard.
    """

    records: list[StoredRecord]
    next_iterator: str | None
    millis_behind_latest: int
    children: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Span of stream time that one GetRecords call covers at most, as on AWS, even if it has few or no records.

    So an idle or sparse shard takes many calls, most of them empty (API reference, GetRecords: "It might take multiple
    calls to get to a portion of the shard that contains records"). AWS documents no length; an idle day was seen to
    take some 250 calls.

    shortest, longest: bounds in seconds; each call draws between them, short spans as often as long ones.
    end_alone: probability that the end of a closed shard is a page of its own, after that of the last record.
    """

    shortest: float = 60.0
    longest: float = 900.0
    end_alone: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.shortest <= self.longest or not 0 <= self.end_alone <= 1:
            raise ValueError(
                f"{self} is not possible: it needs 0 < shortest <= longest (seconds) and 0 <= end_alone <= 1."
            )

    def millis(self, rng: random.Random) -> int:
        """Return the span of one call."""
        low, high = math.log(self.shortest), math.log(self.longest)
        return max(1, round(math.exp(rng.uniform(low, high)) * 1000))


def read_page(
    stream: LocalStream, shard: LocalShard, position: ReadPosition, *, limit: int, span: int, end_alone: bool
) -> Page:
    """Return the page at `position`. position.issued_at: the time now. span: milliseconds of stream time it covers."""
    now = position.issued_at
    first = shard.at_or_after(position.sequence_number)
    until = max(position.reached, shard.created_at, stream.horizon(now)) + span
    covered = len(shard.records) if until >= now else shard.arrived_before(first, until)
    records = shard.page(first, min(first + limit, covered))
    unread = first + len(records)
    is_cut = unread < covered
    reached = records[-1].arrived_at_millis if is_cut and records else min(until, now)
    if records:
        position = position._replace(sequence_number=following(records[-1].sequence_number))
    if not is_cut and shard.closed_at is not None and until >= min(shard.closed_at, now):
        behind = max(0, now - shard.closed_at)
        if not (records and end_alone):
            return Page(records, None, behind, stream.children_of(shard))
        return Page(records, write_iterator(position._replace(reached=reached)), max(1, behind), ())
    behind = now - (shard.records[unread].arrived_at_millis if is_cut else reached)
    return Page(records, write_iterator(position._replace(reached=reached)), max(0, behind), ())


def start_of(
    stream: LocalStream,
    shard: LocalShard,
    kind: str,
    *,
    sequence_number: str | None,
    at_millis: int | None,
    now: int,
) -> tuple[str, int]:
    """Return sequence number and stream time (epoch milliseconds) at which an iterator of that kind starts."""
    tip = following(stream.sequencer.last)
    if kind == "TRIM_HORIZON":
        return shard.starting_sequence_number, shard.created_at
    if kind == "LATEST":
        return tip, now
    if kind == "AT_TIMESTAMP":
        if at_millis is None:
            raise invalid_argument(f"Must specify timestampInMillis parameter for iterator of type {kind}.")
        if at_millis > now:
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {at_millis}, currentTimestampInMillis: {now}"
            )
        return shard.position_at_time(at_millis, tip), at_millis
    if kind not in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        raise invalid_argument(f"Unknown ShardIteratorType {kind}.")
    if sequence_number is None:
        raise invalid_argument(f"Must specify startingSequenceNumber parameter for iterator of type {kind}.")
    _check_number(stream, shard, sequence_number)
    position = sequence_number if kind == "AT_SEQUENCE_NUMBER" else following(sequence_number)
    return position, min(millis_in(sequence_number), now)


def _check_number(stream: LocalStream, shard: LocalShard, number: str) -> None:
    index = shard_index_in(number)
    last = shard.ending_sequence_number or stream.sequencer.last
    if index is not None and index != shard.index:
        raise invalid_argument(
            f"Invalid StartingSequenceNumber. It encodes shardId-{index:012d}, while it was used in a call "
            f"to a shard with {shard.shard_id}"
        )
    if index is None or not shard.starting_sequence_number <= number <= last:
        raise invalid_argument(
            f"StartingSequenceNumber {number} used in GetShardIterator on shard {shard.shard_id} in stream "
            f"{stream.name} under account {ACCOUNT} is invalid because it did not come from this stream."
        )
