"""Prints every order of a stream, with the shard it came from."""

import sys

from pykcl import Batch, InitializationInput, RecordProcessor, Worker


class Orders(RecordProcessor):
    def initialize(self, init: InitializationInput) -> None:
        self.shard = init.shard_id

    def process_records(self, batch: Batch) -> None:
        for record in batch:
            # One write for each line: print() makes several, and every shard has a thread of its own.
            sys.stdout.write(f"{self.shard} {record.partition_key} {record.text()}\n")
        sys.stdout.flush()
        # Returning says that the batch is done, and checkpoints it: checkpoint_mode="auto" is the default.


if __name__ == "__main__":
    Worker("orders-app", stream="orders", processor=Orders).run()
