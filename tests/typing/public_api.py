"""A program as a user with `mypy --strict` writes it. It is checked, never run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pykcl import (
    Acknowledgements,
    Activity,
    App,
    AsyncConsumer,
    AsyncProducer,
    Batch,
    BufferFull,
    CallStatus,
    Checkpoint,
    Checkpointer,
    CheckpointRefused,
    Condition,
    Config,
    ConfigError,
    Consumer,
    Context,
    DeadLetter,
    DeadLetterDestination,
    DeadLetters,
    DeadLettersUnsent,
    ErrorStatus,
    Event,
    FailedAt,
    FailureStatus,
    FatalError,
    FlushTimedOut,
    InitializationInput,
    InternalError,
    LeaseLostError,
    LeaseLostInput,
    LeaseStatus,
    Listener,
    LoopStatus,
    Measure,
    MetricsSink,
    NativeFleet,
    NewRecord,
    NotDelivered,
    PendingCheckpoint,
    PreparedCheckpoint,
    ProcessingError,
    ProcessorFactory,
    ProcessorFailed,
    Producer,
    PutFailed,
    PutResult,
    PyKclError,
    Record,
    RecordProcessor,
    RecordRefused,
    Reject,
    RestartShard,
    SetupError,
    ShardEndedInput,
    ShutdownRequestedInput,
    SQLiteLeaseTable,
    StartPosition,
    StopTimedOut,
    StreamMissing,
    TableGone,
    TemporaryError,
    Window,
    Worker,
    WorkerStatus,
    WrongStream,
    WrongTable,
    handler,
    hash_key_of,
    lambda_processor,
)
from pykcl.events import DataLost, LeaseTaken


class LambdaContext:
    """Of a library for Lambda functions."""

    function_name: str


def lambda_handler(event: dict[str, object], context: LambdaContext) -> dict[str, list[str]]:
    return {"batchItemFailures": []}


def has_key(record: Record) -> bool:
    return bool(record.partition_key)


class Orders(RecordProcessor):
    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.prepared: PreparedCheckpoint | None = None

    def initialize(self, init: InitializationInput) -> None:
        self.shard: str = init.shard_id
        self.token: int = init.fencing_token
        self.resumed_at: Checkpoint = init.position
        pending: PendingCheckpoint | None = init.pending
        if pending is not None:
            state: bytes | None = pending.state
            print(state, pending.checkpoint)
            init.checkpointer.checkpoint(pending.checkpoint)

    def process_records(self, batch: Batch) -> None:
        behind: int | None = batch.millis_behind_latest
        for record in batch:
            self.handle(record)
        print(len(batch), behind, batch.shard_id, batch.stream)
        self.prepared = batch.checkpointer.prepare_checkpoint(batch.records[-1], state=b"here")
        self.prepared.checkpoint()
        self.commit(batch.checkpointer, batch.records[-1])

    def handle(self, record: Record) -> None:
        data: bytes = record.data
        arrived: datetime = record.arrived_at
        hash_key: str | None = record.explicit_hash_key
        position: Checkpoint = record.position
        order = record.json()
        if not data:
            raise RestartShard("The program behind this processor has ended.")
        print(data, arrived, hash_key, position, order["id"], record.text(), record.partition_key)
        print(record.sequence_number, record.sub_sequence_number, record.aggregated, record.shard_id)

    def commit(self, checkpointer: Checkpointer, record: Record) -> None:
        try:
            checkpointer.checkpoint()
            checkpointer.checkpoint(record)
            checkpointer.checkpoint(record.position)
            checkpointer.checkpoint(record.sequence_number, record.sub_sequence_number)
        except (LeaseLostError, CheckpointRefused, TemporaryError) as error:
            print(error)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        print(loss.shard_id, loss.stream)

    def shard_ended(self, end: ShardEndedInput) -> None:
        children: tuple[str, ...] = end.children
        print(children)
        end.checkpointer.checkpoint()

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        request.checkpointer.checkpoint()


def watch(event: Event) -> None:
    if isinstance(event, LeaseTaken):
        print(event.shard, event.from_owner)
    elif isinstance(event, DataLost):
        print(event.shard, event.checkpoint)


class Counts:
    def take(self, label: str, values: Sequence[tuple[Measure, float]]) -> None:
        print(label, [(measure.name, value) for measure, value in values])

    def forget(self, shard: str) -> None:
        print(shard)


def report(worker: Worker) -> None:
    status: WorkerStatus = worker.status()
    loops: tuple[LoopStatus, ...] = status.loops
    failures: tuple[FailureStatus, ...] = status.troubles
    leases: tuple[LeaseStatus, ...] = status.leases
    error: ErrorStatus | None = status.last_error
    calls: list[CallStatus] = [lease.call for lease in leases if lease.call is not None]
    activities: list[Activity] = [failure.what for failure in failures]
    start: StartPosition = worker.config.start_position
    print(loops, error, calls, activities, start.kind)
    page = worker.prometheus_page()
    print(page[1] if page is not None else None, worker.prometheus_collector())


def keep(letters: Sequence[DeadLetter]) -> None:
    for letter in letters:
        is_old: bool = letter.condition is Condition.RECORD_AGE_EXPIRED
        print(letter.id, is_old, [record.data for record in letter.records])


class Kept:
    def send(self, letters: Sequence[DeadLetter]) -> None:
        keep(letters)


class Acked(Orders):
    def process_records(self, batch: Batch) -> None:
        acks: Acknowledgements | None = batch.acks
        for record in batch:
            is_settled: bool = batch.ack(record) if record.data else batch.reject(record, "empty")
            print(acks is not None, is_settled)


class Strict(Orders):
    def process_records(self, batch: Batch) -> None:
        for record in batch:
            if not record.data:
                raise Reject(record, "empty")
            try:
                self.handle(record)
            except ProcessingError:
                raise
            except ValueError as error:
                raise FailedAt(record) from error


def policies() -> None:
    destination: DeadLetterDestination = Kept()
    ways: list[DeadLetters] = [destination, keep, "discard"]
    print(ways)
    Worker("orders-app", stream="orders", processor=Strict, max_attempts=3, bisect=True, dead_letters=keep)
    Worker("orders-app", stream="orders", processor=Strict, max_record_age=60, dead_letters=destination)
    Worker("orders-app", stream="orders", processor=lambda_processor(lambda_handler, filter=has_key))
    config = Config(application="orders-app", stream="orders", batch_size=100, dead_letters="discard")
    try:
        Worker(config=config, processor=Strict).run()
    except DeadLettersUnsent as error:
        print(error.hint)


@dataclass
class Order:
    id: int


app = App("orders-app", max_attempts=3, dead_letters="file:letters", on_event=watch)


@app.on_start
def connect() -> None:
    print("connected")


@app.on_stop
def disconnect() -> None:
    print("disconnected")


@app.stream("orders", batch_size=100)
def on_order(order: Order, context: Context) -> None:
    key: str = context.record.partition_key
    late: bool = context.lost
    print(order.id, key, late, context.attempt, context.fencing_token, context.shard_id, context.stream)
    if order.id < 0:
        raise Reject("negative number")


def text_of(record: Record) -> str:
    return record.text()


@app.stream("notes", application="notes-app", decoder=text_of, filter=has_key)
def on_notes(notes: list[str], context: Context) -> int:
    return len(notes) + len(context.batch)


@app.stream("sums", application="sums-app", window=60)
def sums(notes: list[str], window: Window) -> int:
    total: int = window.state or 0
    if window.is_final or window.is_terminated_early:
        print(window.shard_id, window.start.isoformat(), window.end - window.start, total)
    return total + len(notes)


def functions() -> None:
    decorated: Callable[[Order, Context], None] = on_order
    counted: Callable[[list[str], Context], int] = on_notes
    hook: Callable[[], None] = connect
    print(decorated, counted, hook)
    made: ProcessorFactory = handler(on_order, filter=has_key)
    Worker("orders-app", stream="orders", processor=made)
    Worker("notes-app", stream="notes", processor=handler(on_notes, decoder=text_of))
    Worker("sums-app", stream="sums", processor=handler(sums, window=60))
    app.run()


def iteration() -> None:
    with Consumer("orders-app", stream="orders", idle_timeout=5, dead_letters=keep) as consumer:
        ready: bool = consumer.wait_ready(30)
        for record in consumer:
            key: str = record.partition_key
            print(ready, key, consumer.reject(record, "no such product"), consumer.worker.status())
            consumer.stop()


async def async_iteration() -> None:
    async with AsyncConsumer("orders-app", stream="orders", auto_ack=False, max_unacked=100) as consumer:
        ready: bool = await consumer.wait_ready()
        async for record in consumer:
            acked: bool = consumer.ack(record) or await consumer.reject(record)
            print(ready, record.json(), acked)
        await consumer.aclose()


def give_up(record: NewRecord, error: PyKclError) -> None:
    if isinstance(error, NotDelivered) and not error.perhaps_put:
        print(record.partition_key, len(record.data))


def produce(words: Sequence[str]) -> int:
    with Producer("orders", ordered=True, on_full="raise", record_ttl=60, on_failure=give_up) as producer:
        futures = [producer.put(word, partition_key=word[:1]) for word in words]
        try:
            futures.append(producer.put(b"raw", "key", 17, timeout=1.0))
            producer.flush(timeout=10)
        except (BufferFull, FlushTimedOut, RecordRefused) as error:
            print(error)
        except PutFailed as failed:
            print(failed.count, failed.first, [record.data for record in failed.records])
    results: list[PutResult] = [future.result() for future in futures]
    shard: str | None = producer.shard_of("customer", "7")
    hash_keys: list[int] = [hash_key_of("customer"), hash_key_of("customer", 7)]
    print(shard, hash_keys)
    return sum(result.perhaps_twice for result in results)


async def async_produce(words: Sequence[str]) -> int:
    async with AsyncProducer("orders", on_failure=give_up, max_pending_bytes=2**20) as producer:
        futures = [await producer.put(word, partition_key=word[:1], timeout=5) for word in words]
        result: PutResult = await futures[0]
        await producer.flush(timeout=10)
        print(result.attempts, producer.pending, producer.closed)
    return sum(future.result().perhaps_twice for future in futures)


def main() -> int:
    factory: ProcessorFactory = lambda: Orders("eu-")  # noqa: E731 - a factory with an argument bound
    config = Config(
        application="orders-app",
        stream="orders",
        initial_position=datetime(2026, 11, 20, tzinfo=UTC),
        checkpoint_mode="interval",
        checkpoint_interval=5,
        on_error="retry",
    )
    listener: Listener = watch
    sink: MetricsSink = Counts()
    lease_file: SQLiteLeaseTable | None = SQLiteLeaseTable("orders.db", timeout=1.0)
    worker = Worker(
        processor=factory, config=config, lease_table=lease_file, on_event=listener, metrics_sinks=[sink]
    )
    report(worker)
    with Worker(
        "orders-app",
        stream="orders",
        processor=Orders,
        initial_position="TRIM_HORIZON",
        failover_time=5,
        idle_time_between_reads=None,
        on_error="raise",
        on_event=watch,
    ) as other:
        ready: bool = other.wait_ready(timeout=10)
        leases: tuple[str, ...] = other.leases
        print(ready, leases, other.failure, other.worker_id, other.config.renew_interval)
        ended: bool = other.join(timeout=0.5)
        print(ended)
    try:
        worker.run()
    except StopTimedOut as late:
        print(late.threads)
    except (
        NativeFleet,
        WrongStream,
        WrongTable,
        StreamMissing,
        TableGone,
        FatalError,
        SetupError,
        InternalError,
    ) as error:
        print(error)
    except (ConfigError, ProcessorFailed, PyKclError):
        return 1
    return 0
