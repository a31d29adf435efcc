"""Raw boto3: get_records in a loop, and aws-kinesis-agg where the records are aggregates. No leases, no checkpoints.

    python -m benchmarks.peer_programs.boto3_loop SHARDS {plain|aggregated}

Rests until told: "flat-out" reads one shard without any pause, in one thread, which is the cheapest way there is;
"paced 0.2" has a thread for each shard, which pauses so long between two reads, as Kinesis demands of every reader; "rest".
"plain" and "aggregated" switch what the next pages hold.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import boto3
from botocore.config import Config

from benchmarks.live_shards import STREAM, shard_id
from benchmarks.peer_programs.line_protocol import answer_counts

warnings.simplefilter("ignore")
from aws_kinesis_agg.deaggregator import iter_deaggregate_records  # noqa: E402


class Reader:
    """Of one shard. Reads on where it was."""

    def __init__(self, client: Any, shard: int) -> None:
        self._client = client
        self._iterator = client.get_shard_iterator(
            StreamName=STREAM, ShardId=shard_id(shard), ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        self.records = self.bytes = 0

    def read(self, aggregated: bool) -> None:
        answer = self._client.get_records(ShardIterator=self._iterator, Limit=10_000)
        count = size = 0
        if aggregated:
            # It gives payloads in base64. Decoding them, which a user would have to do, is not counted.
            for record in iter_deaggregate_records(answer["Records"], "Boto3"):
                size += len(record["kinesis"]["data"])
                count += 1
        else:
            for record in answer["Records"]:
                size += len(record["Data"])
                count += 1
        self.records += count
        self.bytes += size
        self._iterator = answer["NextShardIterator"]


class Reads(Protocol):
    """records, bytes: so far."""

    records: int
    bytes: int

    def read(self, aggregated: bool) -> None:
        """A page."""


class Loops:
    """aggregated: what pages hold."""

    def __init__(self, readers: Sequence[Reads]) -> None:
        self._readers = readers
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.aggregated = False

    def counts(self) -> tuple[int, int]:
        """Records and bytes of all readers so far."""
        return sum(one.records for one in self._readers), sum(one.bytes for one in self._readers)

    def told(self, word: str) -> None:
        if word in ("plain", "aggregated"):
            self.aggregated = word == "aggregated"
            return
        self._rest()
        if word == "flat-out":
            self._begin(self._readers[:1], lambda: None)
        elif word.startswith("paced "):
            pause = float(word.split()[1])
            self._begin(self._readers, lambda: time.sleep(pause))

    def _rest(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _begin(self, readers: Sequence[Reads], pause: Callable[[], None]) -> None:
        self._stop = threading.Event()
        for reader in readers:
            thread = threading.Thread(target=self._loop, args=(reader, pause, self._stop), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _loop(self, reader: Reads, pause: Callable[[], None], stop: threading.Event) -> None:
        while not stop.is_set():
            reader.read(self.aggregated)
            pause()


def main() -> None:
    shards = int(sys.argv[1])
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=shards + 2)
    client = boto3.client("kinesis", config=config)
    loops = Loops([Reader(client, number) for number in range(shards)])
    answer_counts(loops.counts, loops.told)


if __name__ == "__main__":
    main()
