"""A program of amazon_kclpy: looks at the data of every record and checkpoints so many seconds after the last time.

    python kclpy_program.py NOTES SECONDS

NOTES: a file that gets a line for each batch, with its number of records; "-" for none.
"""

import os
import sys
import time

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor

NOTES = None if sys.argv[1] == "-" else os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
SECONDS = float(sys.argv[2])


class RecordProcessor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.bytes = 0
        self.next = time.monotonic() + SECONDS

    def process_records(self, process_records_input):
        records = process_records_input.records
        for record in records:
            self.bytes += len(record.binary_data)
        if time.monotonic() >= self.next:
            process_records_input.checkpointer.checkpoint()
            self.next = time.monotonic() + SECONDS
        if NOTES is not None:
            os.write(NOTES, b"%d\n" % len(records))

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        pass


if __name__ == "__main__":
    kcl.KCLProcess(RecordProcessor()).run()
