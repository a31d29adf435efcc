"""A whole fleet in one simulation: workers, a stream, a lease table, and a ledger of what was put and delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.events import Event
from pykcl.handlers.consumer import ConsumerBase
from pykcl.local.stream import LocalKinesis
from pykcl.metrics.host_cpu import HostSource
from pykcl.model.absence import GONE_AFTER
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import parse_row
from pykcl.model.record import Record
from pykcl.processor import (
    Batch,
    InitializationInput,
    LeaseLostInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.testing.memory.dynamodb import MemoryDynamoDB
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation
from pykcl.worker.options import WorkerSeams
from pykcl.worker.worker import Worker

Consuming = TypeVar("Consuming", bound=ConsumerBase[Any])

STREAM = "orders"
TABLE = "orders-app"


@dataclass(slots=True)
class Ledger:
    """Every delivery and every call, in order, of all workers. delivered: (worker, record)."""

    delivered: list[tuple[str, Record]] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def payloads(self) -> Counter[bytes]:
        return Counter(record.data for _, record in self.delivered)

    @property
    def duplicates(self) -> int:
        return sum(count - 1 for count in self.payloads.values())

    def by(self, worker: str) -> list[bytes]:
        return [record.data for name, record in self.delivered if name == worker]


class RecordingProcessor(RecordProcessor):
    """Writes everything down. behaviour: called with each batch before it counts as delivered; may raise."""

    def __init__(self, worker: str, ledger: Ledger, behaviour: Callable[[Batch], None] | None = None) -> None:
        self.worker, self.ledger, self.behaviour = worker, ledger, behaviour
        self.init: InitializationInput | None = None

    def initialize(self, init: InitializationInput) -> None:
        self.init = init
        self.ledger.calls.append((self.worker, "initialize", init.shard_id))

    def process_records(self, batch: Batch) -> None:
        self.ledger.calls.append((self.worker, "process_records", batch.shard_id))
        if self.behaviour is not None:
            self.behaviour(batch)
        self.ledger.delivered.extend((self.worker, record) for record in batch)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        self.ledger.calls.append((self.worker, "lease_lost", loss.shard_id))

    def shard_ended(self, end: ShardEndedInput) -> None:
        self.ledger.calls.append((self.worker, "shard_ended", end.shard_id))

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        self.ledger.calls.append((self.worker, "shutdown_requested", request.shard_id))


class Fleet:
    """Workers over one stream and one table inside a Simulation. All times are simulated seconds.

    clock: of Kinesis, epoch milliseconds; by default that of the simulation. on_event: called with every event.
    """

    def __init__(
        self,
        simulation: Simulation,
        shards: int = 2,
        *,
        clock: Callable[[], int] | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        **kinesis_options: Any,
    ) -> None:
        self.simulation = simulation
        self.ledger = Ledger()
        self.events: list[tuple[str, Event]] = []
        self._on_event = on_event
        clock = clock or (lambda: EPOCH_MILLIS + int(simulation.now * 1000))
        self.kinesis = LocalKinesis(clock, **kinesis_options)
        self.kinesis.create_stream(STREAM, shards)
        self.dynamodb = MemoryDynamoDB(runtime=simulation.runtime("dynamodb"))
        self.workers: dict[str, Worker] = {}
        self._put = 0

    def worker(
        self,
        name: str,
        *,
        processor: Callable[[], RecordProcessor] | None = None,
        host: HostSource | None = None,
        **options: Any,
    ) -> Worker:
        """A worker of this fleet, not started. options: fields of Config; host: where it measures its CPU."""
        options = {"initial_position": "TRIM_HORIZON", "worker_id": name, **options}
        worker = Worker._with(
            self._seams(name, options.get("table_name", TABLE), host),
            TABLE,
            stream=STREAM,
            processor=processor or (lambda: RecordingProcessor(name, self.ledger)),
            **options,
        )
        self.workers[name] = worker
        return worker

    def consumer(self, kind: type[Consuming], name: str, **options: Any) -> Consuming:
        """A Consumer or an AsyncConsumer of this fleet. options: its arguments."""
        options = {"initial_position": "TRIM_HORIZON", "worker_id": name, **options}
        consumer = kind._with(self._seams(name, TABLE), TABLE, stream=STREAM, **options)
        self.workers[name] = consumer.worker
        return consumer

    def _seams(self, name: str, table_name: str, host: HostSource | None = None) -> WorkerSeams:
        runtime = self.simulation.runtime(name)
        table = DynamoDBLeaseTable(
            SwitchingClient(self.dynamodb, self.simulation.switch),
            table_name,
            runtime,
            request_timeout=1.2,
        )
        stream = MemoryStream(
            self.kinesis,
            STREAM,
            runtime,
            self.simulation.switch,
            gone_after=GONE_AFTER,
            consumer=TABLE,
            pushes_in=lambda: self.simulation.runtime("kinesis"),
        )
        return WorkerSeams(
            adapters=(table, stream),
            listeners=[lambda event: self.events.append((name, event)), self._on_event],
            runtime=runtime,
            host=host,
        )

    def start(self, name: str, **options: Any) -> Worker:
        worker = self.worker(name, **options)
        worker.start()
        return worker

    def put(self, count: int, prefix: str = "r") -> list[bytes]:
        """Put plain records, spread over the shards; their payloads."""
        payloads = [f"{prefix}{self._put + number}".encode() for number in range(count)]
        self._put += count
        for payload in payloads:
            self.kinesis.put_record(STREAM, payload, payload.decode())
        return payloads

    def wait_delivered(self, payloads: list[bytes], timeout: float = 120.0) -> None:
        wanted = set(payloads)
        self.simulation.run_until(
            lambda: wanted <= self.ledger.payloads.keys(), timeout, f"delivery of {len(payloads)} records"
        )

    def wait(
        self, condition: Callable[[], bool], timeout: float = 120.0, what: str = "the condition"
    ) -> None:
        self.simulation.run_until(condition, timeout, what)

    def rows(self) -> dict[str, Lease]:
        parsed = [parse_row(item) for item in self.items().values()]
        return {row.key: row for row in parsed if isinstance(row, Lease)}

    def items(self) -> dict[str, Any]:
        found = self.dynamodb.scan(TableName=TABLE)["Items"]
        return {item["leaseKey"]["S"]: item for item in found}

    def owners(self) -> dict[str, str | None]:
        return {key: lease.owner for key, lease in self.rows().items()}

    def load(self) -> Counter[str | None]:
        return Counter(lease.owner for lease in self.rows().values() if not lease.is_ended)

    def open_shards(self) -> list[str]:
        return [shard.shard_id for shard in self.kinesis.list_shards(STREAM, operation=None) if shard.is_open]

    def happened(self, kind: type[Event]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]


class SwitchingClient:
    """A DynamoDB client in front of which, and behind which, another thread may go first.

    scan: stands for the client's own.
    """

    def __init__(
        self, client: MemoryDynamoDB, switch: Callable[[], None], *, scan: Callable[..., Any] | None = None
    ) -> None:
        self._client, self._switch = client, switch
        self._scan = scan

    def __getattr__(self, name: str) -> Any:
        operation = (name == "scan" and self._scan) or getattr(self._client, name)
        if not callable(operation):
            return operation

        def call(**params: Any) -> Any:
            self._switch()
            try:
                answer = operation(**params)
            except Exception as error:
                self._answered(name, params, error)
                raise
            else:
                # A thread that is struck down while it waits, and ends with no Exception, hears nothing.
                self._answered(name, params, None)
                return answer
            finally:
                self._switch()

        return call

    def _answered(self, name: str, params: dict[str, Any], error: Exception | None) -> None:
        """Hear of a request that was answered or failed; for those who count them."""
