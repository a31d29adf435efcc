"""Calls of Worker that a type checker refuses. It is checked, never run: an ignore that is not needed is an error."""

from pykcl import Batch, Config, RecordProcessor, Worker


class Orders(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        print(len(batch))


CONFIG = Config(application="orders-app", stream="orders")

Worker("orders-app", stream="orders", processor=Orders, strat="LATEST")  # type: ignore[call-overload]
Worker("orders-app", stream="orders", processor=Orders, failover_time="10")  # type: ignore[call-overload]
Worker("orders-app", stream="orders", processor=Orders, on_error="rety")  # type: ignore[call-overload]
Worker("orders-app", stream="orders", processor=Orders, session=None, listener=[])  # type: ignore[call-overload]
Worker("orders-app", processor=Orders, initial_position="LATEST")  # type: ignore[call-overload]
Worker("orders-app", processor=Orders)  # type: ignore[call-overload]
Worker("orders-app", stream="orders")  # type: ignore[call-overload]
Worker(stream="orders", processor=Orders)  # type: ignore[call-overload]
Worker(config=CONFIG, processor=Orders, initial_position="LATEST")  # type: ignore[call-overload]
Worker("orders-app", stream="orders", processor=Batch)  # type: ignore[arg-type]
