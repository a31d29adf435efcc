"""The program that `benchmarks.kclpy_doors` runs at each door, written for amazon_kclpy: it looks at every record,
checkpoints each batch, and writes down when it got it and how many records were in it.
"""

import json
import os
import sys
import time

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor

NOTES = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class RecordProcessor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.bytes = 0

    def process_records(self, process_records_input):
        records = process_records_input.records
        at = time.time()
        for record in records:
            self.bytes += len(record.binary_data)
        process_records_input.checkpointer.checkpoint()
        os.write(NOTES, (json.dumps([at, len(records)]) + "\n").encode())

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        pass


if __name__ == "__main__":
    kcl.KCLProcess(RecordProcessor()).run()
