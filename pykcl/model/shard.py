"""Shards as Kinesis lists them, and the answer of one complete or broken-off listing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HashRange:
    """The closed range of 128-bit hash keys a shard is responsible for, as decimal strings (as Kinesis sends them)."""

    starting_hash_key: str
    ending_hash_key: str


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: `parents` holds none, one (a split's child) or two (a merge's child) shard ids."""

    shard_id: str
    parents: tuple[str, ...] = ()
    hash_range: HashRange | None = None
    starting_sequence_number: str | None = None
    ending_sequence_number: str | None = None

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


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """What identifies a stream: a stream deleted and made again under its name has another creation time.

    created_at: epoch milliseconds. retention_hours: how long records are kept.
    """

    name: str
    arn: str
    created_at: int
    status: str
    retention_hours: int = 24
