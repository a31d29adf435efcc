"""A worker as `Worker.run` runs it, with the tuned garbage collector: `Worker`, a processor, options.
What AWS is, the environment says, as anywhere else.

python -m benchmarks.peer_programs.pykcl_worker '{"http_transport": "direct", ...options of Config}'
"""

from __future__ import annotations

import json
import os
import sys

from benchmarks.live_shards import STREAM
from benchmarks.peer_programs.line_protocol import answer_counts
from pykcl import Batch, RecordProcessor, Worker
from pykcl.events import Event
from pykcl.worker.collector import tune_collector

processors: list[Counting] = []
events_heard = 0


class Counting(RecordProcessor):
    """Looks at the data of every record."""

    def __init__(self) -> None:
        self.records = self.bytes = 0
        processors.append(self)

    def process_records(self, batch: Batch) -> None:
        size = 0
        for record in batch:
            size += len(record.data)
        self.bytes += size
        self.records += len(batch)


def hear(event: Event) -> None:
    global events_heard  # noqa: PLW0603 - one relay thread writes it
    events_heard += 1


def main() -> None:
    options = {"stream": STREAM, "initial_position": "TRIM_HORIZON", **json.loads(sys.argv[1])}
    with Worker(f"bench-{os.getpid()}", processor=Counting, on_event=hear, **options):
        tune_collector()
        answer_counts(lambda: (sum(one.records for one in processors), sum(one.bytes for one in processors)))


if __name__ == "__main__":
    main()
