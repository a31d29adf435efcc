"""Shards as Kinesis lists them, and the answer of one complete or broken-off listing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LAST_HASH_KEY = 2**128 - 1
DEFAULT_RECORD_BYTES = 1024 * 1024
"""Max size of a record, payload and partition key, unless UpdateMaxRecordSize has raised it."""
STREAM_ARN = re.compile(
    r"arn:[a-z0-9-]+:kinesis:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):stream/(?P<name>[A-Za-z0-9_.-]{1,128})\Z"
)
CONSUMER_ARN = re.compile(
    STREAM_ARN.pattern.removesuffix(r"\Z") + r"/consumer/(?P<consumer>[A-Za-z0-9_.-]{1,128}):[0-9]+\Z"
)
_CONSUMER = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
# The pattern bounds the digits, as int() of long text is quadratic.
_HASH_KEY = re.compile(r"(?:0|[1-9][0-9]{0,38})\Z")


def consumer_problem(consumer: str | None, application: str, stream: str) -> str | None:
    """Return what is wrong with a consumer of enhanced fan-out, in words. consumer: None: it is called as application.

    stream: name or ARN of the stream that it is to read.
    """
    arn = CONSUMER_ARN.match(consumer or "")
    if arn is not None:
        theirs = str(consumer).partition("/consumer/")[0]
        if stream in (theirs, arn["name"]):
            return None
        return f"consumer={consumer!r} is one of another stream than stream={stream!r}. Change one of them."
    if _CONSUMER.match(application if consumer is None else consumer):
        return None
    if consumer is None:
        return (
            f"application={application!r} cannot name a consumer of enhanced fan-out: that takes 1 to 128 of A-Z a-z "
            "0-9 _ . - Do: name one with consumer."
        )
    return (
        f"consumer={consumer!r} is neither the name of a consumer (1 to 128 of A-Z a-z 0-9 _ . -) nor its ARN "
        "(arn:aws:kinesis:REGION:ACCOUNT:stream/NAME/consumer/NAME:NUMBER)"
    )


def consumer_name(consumer: str | None, application: str) -> str:
    """Return the name of a consumer that is given by name or ARN. None: it is called as the application."""
    arn = CONSUMER_ARN.match(consumer or "")
    return arn["consumer"] if arn is not None else consumer or application


def hash_key_in(text: str) -> int | None:
    """Return the hash key that `text` is in decimal digits; None unless it is one, of 128 bits."""
    if _HASH_KEY.match(text) is None:
        return None
    key = int(text)
    return key if key <= LAST_HASH_KEY else None


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """A closed range of 128-bit hash keys, such as those a shard is responsible for."""

    first: int
    last: int

    @classmethod
    def parse(cls, first: str, last: str) -> HashRange | None:
        """Return the range from decimal digits, as Kinesis sends them; None unless they are hash keys in order.

        In the row of a lease anything else makes the whole table unreadable for Java before 3.5, which refuses equal
        ends, too (common/HashKeyRangeForLease.java).
        """
        begin, end = hash_key_in(first), hash_key_in(last)
        return None if begin is None or end is None or begin >= end else cls(begin, end)

    def contains(self, other: HashRange) -> bool:
        return self.first <= other.first and other.last <= self.last

    def overlaps(self, other: HashRange) -> bool:
        return self.first <= other.last and other.first <= self.last


EVERY_HASH_KEY = HashRange(0, LAST_HASH_KEY)


def range_of_aggregates(
    listed: HashRange | None, of_row: HashRange | None, *, ignores_keys: bool
) -> HashRange | None:
    """Return the hash keys of a shard that an aggregate must lie within to be delivered; None: each one is delivered.

    listed: the range that Kinesis lists; of_row: that of the lease row. ignores_keys: as in StreamDescription.
    Kinesis' range comes first, as in Java: anybody may have written the row, and aggregates outside it are dropped.
    Where Kinesis puts records into any shard, all of a sound aggregate may lie outside.
    """
    return None if ignores_keys else listed or of_row


def gaps(ranges: Iterable[HashRange], within: HashRange = EVERY_HASH_KEY) -> list[HashRange]:
    """Return the hash keys of `within` that are in none of `ranges`, which may overlap."""
    found = []
    expected = within.first
    for keys in sorted(ranges):
        if keys.first > within.last:
            break
        if keys.first > expected:
            found.append(HashRange(expected, keys.first - 1))
        expected = max(expected, keys.last + 1)
    if expected <= within.last:
        found.append(HashRange(expected, within.last))
    return found


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: `parents` holds none, one (a split's child) or two (a merge's child) shard ids.

    refused_range: what Kinesis said instead of a range of hash keys, "" where it said a range or nothing.
    """

    shard_id: str
    parents: tuple[str, ...] = ()
    hash_range: HashRange | None = None
    starting_sequence_number: str | None = None
    ending_sequence_number: str | None = None
    refused_range: str = ""

    @property
    def is_open(self) -> bool:
        """True while producers may still write to it: Kinesis gives a closed shard an ending sequence number."""
        return self.ending_sequence_number is None


@dataclass(frozen=True, slots=True)
class ShardListing:
    """Every page of one ListShards walk.

    complete: False when a page failed; then absence from `shards` proves nothing.
    """

    shards: tuple[Shard, ...]
    complete: bool = True

    @property
    def by_id(self) -> dict[str, Shard]:
        return {shard.shard_id: shard for shard in self.shards}

    def children_of_closed(self, shard_id: str) -> tuple[Shard, ...]:
        """Return the children of a shard; () unless this shows it closed, and children for all its hash keys."""
        parent = self.by_id.get(shard_id)
        if not self.complete or parent is None or parent.is_open or parent.hash_range is None:
            return ()
        children = tuple(shard for shard in self.shards if shard_id in shard.parents)
        ranges = (child.hash_range for child in children if child.hash_range is not None)
        return () if gaps(ranges, within=parent.hash_range) else children


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """The identity of a stream: a stream deleted and created again under its name has another creation time.

    created_at: epoch milliseconds. retention_hours: how long records are kept. ignores_keys: Kinesis puts records into
    any shard, whatever their partition key (RecordDistributionStrategy AUTO); False where the answer does not say so.
    largest_record: that the stream takes, bytes of payload and partition key.
    """

    name: str
    arn: str
    created_at: int
    status: str
    retention_hours: int = 24
    ignores_keys: bool = False
    largest_record: int = DEFAULT_RECORD_BYTES


_LONGEST_CHOICE = 2000
"""Characters: every row of a run carries its choice of shards."""


def short_shard(key: str) -> str:
    """Return "003" for "shardId-000000000003", and any other key unchanged."""
    head, _, digits = key.rpartition("shardId-")
    if len(digits) != 12 or not (digits.isascii() and digits.isdigit()):
        return key
    return head + str(int(digits)).zfill(3)


def full_shard_id(text: str) -> str:
    """Return a shard id; "7" and "007" are short for shardId-000000000007."""
    name = text.strip()
    return f"shardId-{int(name):012d}" if name.isascii() and name.isdigit() and len(name) <= 12 else name


def shards_named(text: str | None) -> tuple[str, ...]:
    """Return the shard ids of a list with commas, sorted; none for None, which stands for all shards."""
    return tuple(sorted({full_shard_id(name) for name in (text or "").split(",")} - {""}))


def choice_problem(shards: str | None, *, has_end: bool, at_latest: bool) -> str | None:
    """Return what is wrong with the shards that a run is given, in words.

    shards: as in `Config.shards`. has_end: the run ends by itself. at_latest: it begins at LATEST.
    """
    if shards is None:
        return None
    given, names = f"shards={shards!r}", shards_named(shards)
    if not names:
        return f"{given} names no shard. Name some, such as 1,7, or leave it out."
    if sum(len(short_shard(name)) + 1 for name in names) > _LONGEST_CHOICE:
        return f"shards names more than the rows can say, {_LONGEST_CHOICE} characters. Name fewer."
    if not has_end:
        return f"{given} needs until: an application without an end reads all shards. Drop it, or say an end."
    if at_latest:
        return f"{given} contradicts initial_position='LATEST'. Say a time, or TRIM_HORIZON."
    return None
