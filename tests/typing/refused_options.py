"""Calls of Worker that a type checker refuses. It is checked, never run: an ignore that is not needed is an error."""

from pykcl import (
    App,
    AsyncConsumer,
    AsyncProducer,
    Batch,
    Config,
    Consumer,
    Context,
    RecordProcessor,
    Worker,
    handler,
)


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

APP = App("orders-app", max_attempts=3)


def needs_an_argument(order: str) -> None:
    print(order)


@APP.stream("orders", batch_size=100)
def on_order(order: str, context: Context) -> int:
    return len(order)


App("orders-app", max_attemps=3)  # type: ignore[call-arg]
App("orders-app", processor=Orders)  # type: ignore[call-arg]
APP.stream("orders", batch_size="100")  # type: ignore[arg-type]
APP.stream("orders", decoder=len)  # type: ignore[arg-type]
APP.on_start(needs_an_argument)  # type: ignore[type-var]
on_order(5, None)  # type: ignore[arg-type]
refused: str = on_order("text", None)  # type: ignore[assignment, arg-type]
Worker("orders-app", stream="orders", processor=on_order)  # type: ignore[arg-type]
handler(on_order, filter=lambda batch: None)  # type: ignore[arg-type, return-value]

Consumer("orders-app")  # type: ignore[call-arg]
Consumer("orders-app", stream="orders", processor=Orders)  # type: ignore[call-arg]
Consumer("orders-app", stream="orders", auto_ack="no")  # type: ignore[arg-type]
AsyncConsumer("orders-app", stream="orders", max_unacked="5")  # type: ignore[arg-type]
AsyncProducer("orders", ordred=True)  # type: ignore[call-arg]
