"""The program of pykcl's README: a processor that reads each record's data and partition key, and `Worker(...).run()`.

    python -m benchmarks.peer_programs.pykcl_embedded APPLICATION STREAM

All options are as they are by default, but for the start position. AWS is where the environment says.
"""

import sys

from benchmarks.peer_programs.line_protocol import answer_counts_beside
from pykcl import RecordProcessor, Worker

processors = []


class Counting(RecordProcessor):
    def __init__(self):
        self.records = self.bytes = self.keys = 0
        processors.append(self)

    def process_records(self, batch):
        count = size = keys = 0
        for record in batch:
            size += len(record.data)
            keys += len(record.partition_key)
            count += 1
        self.bytes += size
        self.keys += keys
        self.records += count


def counts():
    """User records and their bytes so far."""
    return sum(one.records for one in processors), sum(one.bytes for one in processors)


if __name__ == "__main__":
    answer_counts_beside(counts)
    Worker(sys.argv[1], stream=sys.argv[2], processor=Counting, initial_position="TRIM_HORIZON").run()
