"""pykcl's calls without a worker around them: fetch a page, open its aggregates, look at the data of every record.

    python -m benchmarks.peer_programs.stream_loop SHARDS

Told what to do as `boto3_loop`. Over the direct transport, in CBOR. A page is delivered as the worker does: all of it at once.
"""

from __future__ import annotations

import gc
import sys

import boto3

from benchmarks.live_shards import STREAM, shard_id
from benchmarks.peer_programs.boto3_loop import Loops
from benchmarks.peer_programs.line_protocol import answer_counts
from pykcl.aws.kinesis import KinesisStream
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.kpl import batches_of
from pykcl.runtime import SystemRuntime


class Reader:
    """Of one shard. Reads on where it was."""

    def __init__(self, stream: KinesisStream, shard: int) -> None:
        self._stream, self._shard_id = stream, shard_id(shard)
        self._iterator: str | None = stream.open(self._shard_id, ReadFrom("TRIM_HORIZON"))
        self.records = self.bytes = 0

    def read(self, aggregated: bool) -> None:
        """aggregated: it looks for itself."""
        fetched = self._stream.fetch(self._shard_id, self._iterator or "", 10_000)
        size = 0
        for batch in batches_of(fetched.records, 10_000, None):
            for record in batch:
                size += len(record.data)
            self.records += len(batch)
        self.bytes += size
        self._iterator = fetched.next_iterator


def main() -> None:
    client = boto3.client("kinesis")
    stream = KinesisStream(client, STREAM, SystemRuntime(), http_transport="direct", record_encoding="cbor")
    loops = Loops([Reader(stream, number) for number in range(int(sys.argv[1]))])
    gc.collect()
    gc.freeze()  # as `pykcl run`
    answer_counts(loops.counts, loops.told)


if __name__ == "__main__":
    main()
