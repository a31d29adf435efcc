"""A processor of version 2, which checkpoints each batch at its last record, sub-sequence number included."""

from amazon_kclpy import kcl
from amazon_kclpy.v2 import processor
from noting import checkpoint, fields_of, note


class RecordProcessor(processor.RecordProcessorBase):
    def __init__(self):
        self.shard = None

    def initialize(self, initialize_input):
        self.shard = initialize_input.shard_id
        at = [initialize_input.sequence_number, initialize_input.sub_sequence_number]
        note("initialize", shard=self.shard, at=at)

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            note("record", shard=self.shard, record=fields_of(record))
        checkpoint(
            self.shard, process_records_input.checkpointer, record.sequence_number, record.sub_sequence_number
        )
        note("batch", shard=self.shard)

    def shutdown(self, shutdown_input):
        if shutdown_input.reason == "TERMINATE":
            checkpoint(self.shard, shutdown_input.checkpointer)
        note("ended" if shutdown_input.reason == "TERMINATE" else "lost", shard=self.shard)

    def shutdown_requested(self, shutdown_requested_input):
        note("requested", shard=self.shard)


if __name__ == "__main__":
    note("package", file=kcl.__file__)
    kcl.KCLProcess(RecordProcessor()).run()
