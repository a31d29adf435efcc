"""A processor as they were written for version 1: records as dictionaries, base64 decoded by hand, and a checkpoint at
the last sequence number of each batch."""

import base64

from amazon_kclpy import kcl
from noting import checkpoint, note


class RecordProcessor(kcl.RecordProcessorBase):
    def __init__(self):
        self.shard = None
        self.largest = None

    def initialize(self, shard_id):
        self.shard = shard_id
        note("initialize", shard=shard_id, at=None)

    def process_records(self, records, checkpointer):
        for record in records:
            data = base64.b64decode(record.get("data"))
            sequence = int(record.get("sequenceNumber"))
            told = [
                str(sequence),
                record.get("subSequenceNumber"),
                record.get("partitionKey"),
                base64.b64encode(data).decode(),
                None,
                None,
            ]
            note("record", shard=self.shard, record=told)
            if self.largest is None or sequence > self.largest:
                self.largest = sequence
        checkpoint(self.shard, checkpointer, str(self.largest))
        note("batch", shard=self.shard)

    def shutdown(self, checkpointer, reason):
        if reason == "TERMINATE":
            checkpoint(self.shard, checkpointer)
        note("ended" if reason == "TERMINATE" else "lost", shard=self.shard)

    def shutdown_requested(self, checkpointer):
        checkpoint(self.shard, checkpointer)
        note("requested", shard=self.shard)


if __name__ == "__main__":
    note("package", file=kcl.__file__)
    kcl.KCLProcess(RecordProcessor()).run()
