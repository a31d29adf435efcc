"""Prints every order of a stream, with the shard it came from."""

from pykcl import Batch, Initialization, RecordProcessor, Worker


class Orders(RecordProcessor):
    def initialize(self, init: Initialization) -> None:
        self.shard = init.shard_id

    def process_records(self, batch: Batch) -> None:
        for record in batch:
            print(self.shard, record.partition_key, record.text(), flush=True)
        batch.checkpointer.checkpoint()


if __name__ == "__main__":
    Worker("orders-app", stream="orders", processor=Orders).run()
