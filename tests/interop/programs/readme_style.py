"""As the README of amazon_kclpy shows a processor: the base class of version 1, the methods of version 3."""

from amazon_kclpy import kcl
from noting import checkpoint, fields_of, note


class RecordProcessor(kcl.RecordProcessorBase):
    def initialize(self, initialization_input):
        self.shard = getattr(initialization_input, "shard_id", initialization_input)
        note("initialize", shard=self.shard, at=None)

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            note("record", shard=self.shard, record=fields_of(record))
        checkpoint(self.shard, process_records_input.checkpointer)
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
