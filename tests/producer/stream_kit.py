"""A clock that a test moves, and what the consumers of a stream see."""

from __future__ import annotations

from collections import Counter
from random import Random

from pykcl.local.stream import LocalKinesis
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.record import Record

EPOCH = 1_700_000_000_000


class Clock:
    """The part of a runtime that the stream in memory uses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.random = Random(3)

    def monotonic(self) -> float:
        return self.seconds

    def utcnow_millis(self) -> int:
        return EPOCH + round(self.seconds * 1000)


def seen_by_consumers(kinesis: LocalKinesis, name: str = "s") -> Counter[bytes]:
    """The payloads that consumers get, shard by shard, by their rule for aggregates that straddle shards."""
    return Counter(data for found in seen_by_shard(kinesis, name).values() for data in found)


def seen_by_shard(kinesis: LocalKinesis, name: str = "s") -> dict[str, list[bytes]]:
    """As `seen_by_consumers`, in order, by shard. Past the limits of reading."""
    seen = {}
    for shard in kinesis.list_shards(name, operation=None):
        records = [
            Record(
                one.data, one.partition_key, one.sequence_number, one.arrived_at_millis, shard.shard_id, name
            )
            for one in kinesis._streams[name].shards[shard.shard_id].records
        ]
        seen[shard.shard_id] = [record.data for record in deaggregate_batch(records, shard.hash_range)]
    return seen
