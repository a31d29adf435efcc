"""The program of kcl-rs' README: a processor that reads each record's data and partition key, and `Scheduler.run()`.
Runs in an environment of its own.

    python kcl_rs_worker.py APPLICATION STREAM URL [FANOUT]

All options are as they are by default, but for the start position and, without FANOUT, polling.
"""

import os
import sys
import time

from kcl_rs import RecordProcessorBase, Scheduler
from line_protocol import answer_counts_beside

STAMP = b"put at "
processors = []
latencies = []
"""Milliseconds, of records that say when they were put."""


class Counting(RecordProcessorBase):
    def __init__(self):
        self.records = self.bytes = self.keys = 0
        processors.append(self)

    def initialize(self, initialize_input):
        pass

    def process_records(self, process_records_input):
        now, count, size, keys = time.monotonic_ns(), 0, 0, 0
        for record in process_records_input.records:
            data = record.data
            size += len(data)
            if data.startswith(STAMP):
                latencies.append((now - int(data[len(STAMP) :])) / 1e6)
            keys += len(record.partition_key)
            count += 1
        self.bytes += size
        self.keys += keys
        self.records += count
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


def more(_):
    """What `benchmarks.retrieval` asks for besides."""
    found = [latencies.pop(0) for _ in range(len(latencies))]
    return {"latencies": found, "read": len(processors), "threads": len(os.listdir("/proc/self/task"))}


if __name__ == "__main__":
    answer_counts_beside(
        lambda: (sum(one.records for one in processors), sum(one.bytes for one in processors)), more
    )
    Scheduler(
        stream_name=sys.argv[2],
        application_name=sys.argv[1],
        record_processor_factory=Counting,
        region=os.environ["AWS_DEFAULT_REGION"],
        endpoint_url=sys.argv[3],
        initial_position="TRIM_HORIZON",
        retrieval_mode=(sys.argv[4:] or ["POLLING"])[0],
    ).run()
