"""What a stream is, as rows: its shards with their share of the hash keys, and whether somebody takes every key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pykcl.aws.stream_admin import Consumer, StreamSummary
from pykcl.model.shard import Shard
from pykcl.planning.shard_graph import FamilyTree, without_successors

HASH_KEYS = 2**128
_UNEVEN = 3.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the open shards share the hash keys 0..2^128-1. gaps, overlaps: closed ranges of keys.

    unjudged: open shards without a readable range. largest, smallest: shares of one open shard, 0 to 1.
    """

    gaps: tuple[tuple[int, int], ...] = ()
    overlaps: tuple[tuple[int, int], ...] = ()
    unjudged: tuple[str, ...] = ()
    largest: float = 0.0
    smallest: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Every hash key has exactly one open shard."""
        return not (self.gaps or self.overlaps or self.unjudged)


def coverage(shards: Iterable[Shard]) -> Coverage:
    """Of the open ones among these."""
    gaps, overlaps, unjudged, sizes = [], [], [], []
    ranges = []
    for shard in shards:
        if shard.is_open and shard.hash_range is None:
            unjudged.append(shard.shard_id)
        elif shard.is_open and shard.hash_range is not None:
            ranges.append((shard.hash_range.first, shard.hash_range.last))
    expected = 0
    for first, last in sorted(ranges):
        if first > expected:
            gaps.append((expected, first - 1))
        elif first < expected:
            overlaps.append((first, min(last, expected - 1)))
        expected = max(expected, last + 1)
        sizes.append((last - first + 1) / HASH_KEYS)
    if expected < HASH_KEYS and not unjudged:
        gaps.append((expected, HASH_KEYS - 1))
    return Coverage(
        tuple(gaps), tuple(overlaps), tuple(unjudged), max(sizes, default=0.0), min(sizes, default=0.0)
    )


def stream_row(stream: StreamSummary) -> dict[str, Any]:
    """One stream of a list. created: UTC time as text."""
    return {
        "name": stream.name,
        "status": stream.status,
        "mode": stream.mode,
        "open_shards": stream.open_shards,
        "retention_hours": stream.retention_hours,
        "encryption": stream.encryption,
        "consumers": stream.consumers,
        "created": moment_text(stream.created_at),
        "arn": stream.arn,
    }


def shard_rows(shards: Sequence[Shard]) -> list[dict[str, Any]]:
    """By id. share: of the hash keys, 0 to 1; None without a range."""
    tree = FamilyTree.of(shards)
    return [
        {
            "shard": shard.shard_id,
            "state": "open" if shard.is_open else "closed",
            "share": _share(shard),
            "parents": sorted(shard.parents),
            "children": sorted(tree.children_of(shard.shard_id)),
            "starting_hash_key": str(shard.hash_range.first) if shard.hash_range else None,
            "ending_hash_key": str(shard.hash_range.last) if shard.hash_range else None,
            "starting_sequence_number": shard.starting_sequence_number,
            "ending_sequence_number": shard.ending_sequence_number,
        }
        for shard in sorted(shards, key=lambda one: one.shard_id)
    ]


def stream_facts(
    stream: StreamSummary, shards: Sequence[Shard], consumers: Sequence[Consumer] | None
) -> dict[str, Any]:
    """What is told of the stream as a whole. consumers: None where they could not be asked for."""
    is_open = sum(1 for shard in shards if shard.is_open)
    keys = coverage(shards)
    return {
        "stream": stream.name,
        "arn": stream.arn,
        "status": stream.status,
        "mode": stream.mode,
        "created": moment_text(stream.created_at),
        "retention_hours": stream.retention_hours,
        "encryption": stream.encryption,
        "key_id": stream.key_id,
        "largest_record_bytes": stream.largest_record,
        "shard_metrics": list(stream.shard_metrics),
        "open_shards": is_open,
        "closed_shards": len(shards) - is_open,
        "hash_keys": "covered" if keys.is_complete else "not covered",
        "consumers": None if consumers is None else [_consumer(one) for one in consumers],
        "consumer_count": stream.consumers if consumers is None else len(consumers),
    }


def hints(stream: StreamSummary, shards: Sequence[Shard], unread: str) -> list[str]:
    """Sentences on what is odd. unread: why the consumers could not be listed; "" where they were."""
    told = []
    keys = coverage(shards)
    for first, last in keys.gaps:
        told.append(
            f"no open shard takes the hash keys {first} to {last}: a reshard is under way, or the listing is old. "
            "Look again in a moment."
        )
    for first, last in keys.overlaps:
        told.append(
            f"more than one open shard takes the hash keys {first} to {last}: a reshard is under way."
        )
    if keys.unjudged:
        told.append(f"no hash keys are told for {', '.join(keys.unjudged)}.")
    if keys.is_complete and keys.largest > _UNEVEN * keys.smallest:
        told.append(
            f"the largest shard takes {keys.largest / keys.smallest:.0f} times the hash keys of the smallest: "
            "with even keys it is the first to be throttled. Split it."
        )
    lost = sorted(without_successors(shards))
    if lost:
        told.append(f"the children of {', '.join(lost)} are not listed.")
    if stream.status not in (None, "ACTIVE"):
        told.append(f"the stream is {stream.status}: what is told here may be changing.")
    if unread:
        told.append(f"the consumers of enhanced fan-out could not be listed: {unread}")
    return told


def _share(shard: Shard) -> float | None:
    if shard.hash_range is None:
        return None
    first, last = shard.hash_range.first, shard.hash_range.last
    return (last - first + 1) / HASH_KEYS


def _consumer(consumer: Consumer) -> Mapping[str, Any]:
    return {
        "name": consumer.name,
        "status": consumer.status,
        "created": moment_text(consumer.created_at),
        "arn": consumer.arn,
    }


def moment_text(millis: int | None) -> str | None:
    """Such as 2026-11-20T09:00:00Z."""
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / 1000, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
