"""A processor of version 3, which checkpoints only when it is told to stop and at the end of the shard."""

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
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
        note("batch", shard=self.shard)

    def lease_lost(self, lease_lost_input):
        note("lost", shard=self.shard)

    def shard_ended(self, shard_ended_input):
        checkpoint(self.shard, shard_ended_input.checkpointer)
        note("ended", shard=self.shard)

    def shutdown_requested(self, shutdown_requested_input):
        checkpoint(self.shard, shutdown_requested_input.checkpointer)
        note("requested", shard=self.shard)


if __name__ == "__main__":
    note("package", file=kcl.__file__)
    kcl.KCLProcess(RecordProcessor()).run()
