"""The stream of a run: what is put into it, and how its shards are split and merged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TextIO

import boto3
from botocore.config import Config
from fleet_aggregates import OtherEncoder
from fleet_evidence import STREAM

from pykcl.demo.producer import CELLS, Mix, Producer, Put, cells_in
from pykcl.model.shard import HashRange

RING = 1 << 128
MAX_SHARDS = 12
"""Open at one time."""


def client(url: str) -> Any:
    """For Kinesis; with patience, because nothing of the harness's own shall fail."""
    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name="us-east-1")
    config = Config(retries={"total_max_attempts": 1}, proxies={}, read_timeout=120, connect_timeout=60)
    return session.client("kinesis", endpoint_url=url, config=config)


class TwoEncoders(Mix):
    """Has every second aggregate made by the other encoder, if there is one. made: Kinesis records of each kind."""

    def __init__(self, seed: int, other: OtherEncoder | None) -> None:
        super().__init__(seed)
        self._other = other
        self.made: Counter[str] = Counter()

    def aggregate(self, cell: int, size: int) -> Put:
        return self._aggregate(cell, size)

    def plain(self) -> Put:
        return self._plain(0)

    def _plain(self, cell: int) -> Put:
        self.made["plain"] += 1
        return super()._plain(cell)

    def _aggregate(self, cell: int, size: int) -> Put:
        if self._other is None or self.made["pykcl"] <= self.made["aws-kinesis-agg"]:
            self.made["pykcl"] += 1
            return super()._aggregate(cell, size)
        self.made["aws-kinesis-agg"] += 1
        drawn = [self._user_record(cell) for _ in range(size)]
        key, data = self._other.aggregate([(key, data) for _, key, data in drawn])
        return Put(data, key, tuple(number for number, _, _ in drawn))


class CountingProducer(Producer):
    """Also writes down which numbers went where. aggregated: share of aggregates, 0 to 1; the seed's if None. other:
    makes every second aggregate."""

    def __init__(
        self,
        client: Any,
        file: TextIO,
        *,
        seed: int,
        rate: int,
        aggregated: float | None = None,
        other: OtherEncoder | None = None,
    ) -> None:
        super().__init__(client, STREAM, seed=seed, rate=rate)
        self._mix: TwoEncoders = TwoEncoders(seed, other)
        if aggregated is not None:
            self._mix._aggregated = aggregated
        self._file = file
        self.last: dict[str, tuple[int, int]] = {}
        self.count = 0

    def _placed(self, put: Put, shard: str, sequence: str) -> None:
        super()._placed(put, shard, sequence)
        line = {"shard": shard, "sequence": sequence, "numbers": put.ids}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()
        self.last[shard] = (int(sequence), len(put.ids) - 1)
        self.count += len(put.ids)

    def aggregate(self, count: int, hash_range: HashRange) -> None:
        """Put one aggregate of so many user records into that range now."""
        with self._lock:
            self._put([self._mix.aggregate(cells_in(hash_range)[0], count)])

    def spread(self, counts: Sequence[tuple[HashRange, int]]) -> None:
        """Put so many user records, none of them aggregated, into each of these ranges now."""
        with self._lock:
            wanted = [keys for keys, count in counts for _ in range(count)]
            puts = [self._mix.plain() for _ in wanted]
            entries = [
                {"Data": put.data, "PartitionKey": put.partition_key, "ExplicitHashKey": str(keys.first)}
                for put, keys in zip(puts, wanted, strict=True)
            ]
            answer = self._client.put_records(StreamName=self._stream, Records=entries)
            assert not answer.get("FailedRecordCount")
            for put, placed in zip(puts, answer["Records"], strict=True):
                self._placed(put, placed["ShardId"], placed["SequenceNumber"])

    def put_as_it_is(self, data: bytes, hash_range: HashRange, numbers: tuple[int, ...]) -> None:
        """Put one Kinesis record into that range. numbers: of the records that a reader shall be given of it."""
        with self._lock:
            answer = self._client.put_record(
                StreamName=self._stream, PartitionKey="k", Data=data, ExplicitHashKey=str(hash_range.first)
            )  # fmt: skip
            if numbers:
                self._placed(Put(data, "k", numbers), answer["ShardId"], answer["SequenceNumber"])

    @property
    def made(self) -> dict[str, int]:
        """Kinesis records: "plain", and aggregates by "pykcl" and "aws-kinesis-agg"."""
        return dict(self._mix.made)


class Stream:
    """Its shards. kinesis: a client whose requests never fail. say: gets a line about what was done."""

    def __init__(self, kinesis: Any, say: Callable[[str], None]) -> None:
        self._kinesis = kinesis
        self._say = say

    def shards(self) -> list[dict[str, Any]]:
        """All shards, as DescribeStream tells them: no worker asks that, so no fault hits it."""
        found: list[dict[str, Any]] = []
        more = True
        while more:
            start = {"ExclusiveStartShardId": found[-1]["ShardId"]} if found else {}
            page = self._kinesis.describe_stream(StreamName=STREAM, **start)["StreamDescription"]
            found += page["Shards"]
            more = page["HasMoreShards"]
        return found

    def reshard(self, what: str, random: Random) -> str:
        """Split, merge or update the shard count; what was done, as a split or merge may have to be the other."""
        shards = self._open()
        cell = RING // CELLS
        wide = [shard for shard in shards if shard[1] - shard[0] + 1 >= 2 * cell]
        if what == "split" and (len(shards) >= MAX_SHARDS or not wide):
            what = "merge"
        if what == "merge" and len(shards) < 3:
            what = "split"
        if what == "split":
            first, last, shard = random.choice(wide)
            middle = first + (last + 1 - first) // cell // 2 * cell
            self._kinesis.split_shard(StreamName=STREAM, ShardToSplit=shard, NewStartingHashKey=str(middle))
            self._say(f"split {shard}")
        elif what == "merge":
            left = random.randrange(len(shards) - 1)
            one, other = shards[left][2], shards[left + 1][2]
            self._kinesis.merge_shards(StreamName=STREAM, ShardToMerge=one, AdjacentShardToMerge=other)
            self._say(f"merged {one} and {other}")
        else:
            self._update_count(len(shards), random)
        return what

    def _update_count(self, now: int, random: Random) -> None:
        # Powers of two only: other numbers cut the producer's cells, and with them its aggregates.
        target = random.choice([n for n in (2, 4, 8) if n != now and now <= 2 * n <= 4 * now])
        self._kinesis.update_shard_count(
            StreamName=STREAM, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
        self._say(f"update shard count from {now} to {target}")

    def _open(self) -> list[tuple[int, int, str]]:
        """(first hash key, last hash key, shard), in order."""
        found = []
        for shard in self.shards():
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                keys = shard["HashKeyRange"]
                found.append((int(keys["StartingHashKey"]), int(keys["EndingHashKey"]), shard["ShardId"]))
        return sorted(found)
