"""A class: one instance reads one shard, and is called with its batches."""

from pykcl import Batch, RecordProcessor, Worker


class Orders(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        for record in batch:
            order = record.json()
            print(f"{order['customer']} {order['number']}\n", end="", flush=True)


if __name__ == "__main__":
    Worker("orders-app", stream="orders", processor=Orders, initial_position="TRIM_HORIZON").run()
