"""`Producer`: puts records into a stream in batches and aggregates, and says of each whether it is there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from pykcl.config import Config, HttpTransport
from pykcl.errors import (
    ConfigError,
    FlushTimedOut,
    PyKclError,
    RecordRefused,
    SetupError,
    StreamMissing,
    TemporaryError,
    shown,
)
from pykcl.event_dispatch import EventFan, Listener, Relay
from pykcl.interfaces import Events, PutStream
from pykcl.metrics.catalog import PRODUCER_CATALOGUE, PRODUCER_DIMENSIONS, PRODUCER_NAMESPACE, MetricsLevel
from pykcl.metrics.cloudwatch import Sender
from pykcl.metrics.meter import MetricsSink
from pykcl.metrics.setup import MetricsPipeline, given_sinks
from pykcl.model.new_record import MAX_RECORD_BYTES, NewRecord, hash_key_of, key_text, why_refused
from pykcl.processor import why_it_runs_nothing
from pykcl.producer.accumulator import (
    SETUP_PATIENCE,
    Accumulator,
    Options,
    PendingRecord,
    PutResult,
    max_bytes_for,
)
from pykcl.producer.delivery import Delivery, Ticket
from pykcl.producer.encode import Compression, compressor_of, encoded
from pykcl.producer.measurements import ProducerMeasures, PublishingFailures
from pykcl.producer.shard_map import ShardMap
from pykcl.runtime import FORKS, Future, LazyFuture, Runtime, SystemRuntime, before_threads_end

log = logging.getLogger("pykcl.producer")

OnFull = Literal["block", "raise"]
MIB = 1024 * 1024
_GRACE = 1.0
"""Seconds for which `close` waits for its threads once the outcome of all records is decided."""
_AT_END = 5.0
"""Seconds that a producer that was not closed has for its records when the program ends."""


class PutFailed(PyKclError):
    """Records were not delivered since the last flush. Put them again, or keep them elsewhere.

    count: number of records. first: the first error. records: those that were not delivered, as far as they fit into
    `max_pending_bytes`.
    """

    def __init__(self, message: str, count: int, first: PyKclError, records: tuple[NewRecord, ...]) -> None:
        super().__init__(message)
        self.count, self.first, self.records = count, first, records


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSeams:
    """Replacements for parts of a producer, which only simulations, tests and tools of pykcl need."""

    runtime: Runtime | None = None
    stream: Callable[[], PutStream] | None = None
    setup_patience: float = SETUP_PATIENCE
    events: Events | None = None


class ProducerBase:
    """Everything of a producer but its waits: those of a thread, or of a task in an event loop."""

    _seams: ClassVar[ProducerSeams] = ProducerSeams()

    def __init__(
        self,
        stream: str,
        *,
        aggregate: bool = True,
        ordered: bool = False,
        linger: float = 0.1,
        max_pending_bytes: int = 64 * MIB,
        on_full: OnFull = "block",
        record_ttl: float | None = None,
        rate_limit: float = 1.0,
        serializer: Callable[[Any], bytes | str] | None = None,
        compression: Compression | None = None,
        connections: int = 8,
        on_failure: Callable[[NewRecord, PyKclError], object] | None = None,
        on_event: Listener | None = None,
        metrics: str = "none",
        metrics_level: MetricsLevel = "SUMMARY",
        metrics_namespace: str | None = None,
        metrics_sinks: Sequence[MetricsSink] | None = None,
        region: str | None = None,
        session: Any = None,
        clients: Mapping[str, Any] | None = None,
        http_transport: HttpTransport = "auto",
    ) -> None:
        """stream: name or ARN. aggregate: pack small records into KPL aggregates. ordered: keep the order of `put` for
        each partition key. linger: seconds that a record waits for others.

        max_pending_bytes: of the records that are not put yet, with 1 KiB for each. on_full: what `put` does when they
        are as many. record_ttl: seconds after which a record is given up; None: when the producer is closed.
        rate_limit: times the 1 MiB and 1,000 records a second of a shard. connections: most requests at a time.
        serializer: makes the data of each record; None: bytes as they are, text as UTF-8, pydantic and msgspec objects
        by their own encoders, all else as JSON. compression: of the data of each record, by itself.
        on_failure: called with each record that is given up, and the error, in the thread that does it; must not wait.
        metrics: "none", or "cloudwatch", "prometheus", "otel", several with commas between; metrics_level: "DETAILED"
        has those of each shard, too; metrics_namespace: of CloudWatch; metrics_sinks: of the program's own.
        http_transport: as in Config. What is registered at a client counts if that was done before the start.
        Raises ConfigError.
        """
        _refuse_other_values(
            linger, max_pending_bytes, on_full, record_ttl, rate_limit, serializer, connections, on_failure, on_event
        )  # fmt: skip
        self._config = Config(
            application="pykcl-producer", stream=stream, region=region, metrics=metrics, metrics_level=metrics_level,
            metrics_namespace=metrics_namespace or PRODUCER_NAMESPACE, http_transport=http_transport,
        )  # fmt: skip
        self._aggregate, self._ordered = aggregate, ordered
        self._linger, self._rate_limit = linger, rate_limit
        self._max_pending_bytes, self._may_wait = max_pending_bytes, on_full == "block"
        self._record_ttl = inf if record_ttl is None else record_ttl
        self._connections, self._on_failure, self._on_event = connections, on_failure, on_event
        self._serializer, self._compressed = serializer, compressor_of(compression)
        self._session, self._clients = session, clients
        self._runtime: Runtime = self._seams.runtime or SystemRuntime()
        self._metering = _metering_of(self._config, self._runtime, metrics_sinks)
        self._largest_record = MAX_RECORD_BYTES
        self._delivery: Delivery | None = None
        self._starts: dict[int, object] = {}
        self._started_after = -1
        self._is_closed = False

    @classmethod
    def _with(cls, seams: ProducerSeams, stream: str, **arguments: Any) -> Self:
        """Create a producer with these seams, for simulations, tests and tools of pykcl."""
        producer = cls.__new__(cls)
        producer._seams = seams  # type: ignore[misc]
        cls.__init__(producer, stream, **arguments)
        return producer

    # -- the life of it --------------------------------------------------------------------------------------------

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Let one thread or task start the producer, and refuse others meanwhile and afterwards."""
        mine, process = object(), len(FORKS)
        # One step without a lock: of two threads one finds its own. A process that is forked meanwhile has a start of
        # its own.
        if self._starts.setdefault(process, mine) is not mine:
            raise PyKclError(
                "Another thread or task is still starting this producer. Do: call start() once, and wait until it "
                "returns."
            )
        try:
            self._refuse_second_start()
            yield
        finally:
            del self._starts[process]

    def _refuse_second_start(self) -> None:
        if self._delivery is not None or self._is_closed:
            state = "closed" if self._is_closed else "started"
            raise PyKclError(
                f"This producer was {state} before. Do: make one for each process, and start it once."
            )

    def _start(self) -> None:
        stream = self._stream()
        description = stream.describe()
        if description.ignores_keys and self._ordered:
            raise SetupError(
                f"Stream {stream.name!r} puts records into any shard, whatever their partition key "
                "(RecordDistributionStrategy AUTO), so it has no order for ordered=True to keep. Do: ordered=False, or "
                "set the strategy of the stream to USER_PARTITION_KEY."
            )
        self._largest_record = description.largest_record
        shards = self._shards_of(stream, ignores_keys=description.ignores_keys)
        self._metering.begin_anew(self._config.stream_name)
        self._metering.connect(self._cloudwatch, PublishingFailures())
        self._begin(stream, shards)

    def _shards_of(self, stream: PutStream, *, ignores_keys: bool) -> ShardMap | None:
        """Return the shards; None where nothing depends on them, so that records go plain and at no rate."""
        if ignores_keys:
            log.info("records go plain, as the stream puts them into any shard stream=%r", stream.name)
            return None
        try:
            listing = stream.list_shards()
        except SetupError as error:
            if self._aggregate or self._ordered or isinstance(error, StreamMissing):
                raise
            log.info("records go at no rate, as the shards cannot be listed stream=%r", stream.name)
            return None
        if not listing.complete:
            raise TemporaryError(
                f"The shards of stream {stream.name!r} could not all be listed. Start again."
            )
        return ShardMap(listing.shards)

    def _stream(self) -> PutStream:
        if self._seams.stream is not None:
            return self._seams.stream()
        from pykcl.aws.clients import connect_stream

        return connect_stream(
            self._config,
            self._runtime,
            connections=self._connections,
            session=self._session,
            clients=self._clients,
        )

    def _begin(self, stream: PutStream, shard_map: ShardMap | None) -> None:
        max_request_bytes = max_bytes_for(self._largest_record)
        records = Accumulator(
            Options(
                aggregate=self._aggregate,
                ordered=self._ordered,
                linger=self._linger,
                rate_limit=self._rate_limit,
                max_request_bytes=max_request_bytes,
                setup_patience=self._seams.setup_patience,
            )
        )
        records.place(shard_map, self._runtime.monotonic())
        measures = ProducerMeasures(self._metering.meter, by_shard="ShardId" in self._metering.dimensions)
        if shard_map is not None:
            measures.listed(shard_map)
        delivery = Delivery(
            stream,
            records,
            self._runtime,
            self._seams.events or self._listeners(),
            measures,
            connections=self._connections,
            max_pending_bytes=self._max_pending_bytes,
            max_request_bytes=max_request_bytes,
            linger=self._linger,
            record_ttl=self._record_ttl,
            on_failure=self._on_failure,
        )
        delivery.start()
        self._start_to_publish()
        self._started_after = len(FORKS)
        self._delivery = delivery
        if self._seams.runtime is None:
            _end_with_the_program(self)

    def _cloudwatch(self) -> Sender:
        from pykcl.aws.cloudwatch import cloudwatch_sender

        return cloudwatch_sender(
            self._config,
            self._config.stream_name,
            dimensions=self._metering.dimensions,
            session=self._session,
            clients=self._clients,
        )

    def _start_to_publish(self) -> None:
        try:
            self._metering.start("pykcl-producer-metrics")
        except TemporaryError as error:
            log.warning("no thread to send metrics, which are dropped error=%s", type(error).__name__)

    def _listeners(self) -> EventFan:
        relays = () if self._on_event is None else (Relay(self._on_event, self._runtime).hear,)
        return EventFan(relays, now=self._runtime.monotonic)

    def _begin_to_close(self) -> Delivery | None:
        """Take no more records; return the delivery that is to end, None where there is none or somebody ends it."""
        delivery = self._own_delivery() if self._delivery is not None else None
        if delivery is not None:
            delivery.refuse_own_thread()
        is_first, self._is_closed = not self._is_closed, True
        if delivery is None or not is_first:
            return None
        delivery.take_no_more()
        return delivery

    def _end_delivery(self, delivery: Delivery, timeout: float | None) -> None:
        _open.discard(self)
        within = _GRACE if timeout is None else min(_GRACE, max(0.1, timeout / 4))
        delivery.end(within)
        self._metering.stop(within)

    def _close(self, timeout: float | None) -> None:
        delivery = self._begin_to_close()
        if delivery is None:
            return
        try:
            delivery.flush(timeout)
        finally:
            self._end_delivery(delivery, timeout)
        self._raise_failures(delivery)

    def prometheus_page(self) -> tuple[bytes, str] | None:
        """Return the page for a scrape and its content type; None unless `metrics` names "prometheus"."""
        return self._metering.exposition()

    def prometheus_collector(self) -> Any:
        """Return a collector for a registry of prometheus_client; None unless `metrics` names "prometheus"."""
        return self._metering.prometheus

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed

    # -- records ---------------------------------------------------------------------------------------------------

    def _new_record(
        self, data: object, partition_key: str | None, explicit_hash_key: int | str | None, ticket: Ticket
    ) -> PendingRecord:
        key = self._runtime.random().randbytes(8).hex() if partition_key is None else partition_key
        if type(key) is not str:
            key = key_text(key)
        hash_key = None if explicit_hash_key is None else str(explicit_hash_key)
        content = encoded(data, self._serializer)
        if self._compressed is not None:
            content = self._compressed(content)
        record = NewRecord(content, key, hash_key)
        problem = why_refused(record, self._largest_record)
        if problem is not None:
            raise RecordRefused(
                f"The record {problem}. It was not put, and no other one is affected. Do: change it."
            )
        return PendingRecord(record, ticket=ticket)

    def _end_flush(self, delivery: Delivery, timeout: float | None, *, is_done: bool) -> None:
        self._raise_failures(delivery)
        if not is_done:
            pending = delivery.pending
            raise FlushTimedOut(
                f"{pending} records are not put into stream {self._config.stream!r} after {timeout:g} s, and are still "
                "being sent. Do: flush again, or close() to give them up.",
                pending,
            )

    def resume(self) -> None:
        """Take records again for shards that are halted, because an ordered record was given up."""
        self._own_delivery().resume()

    @property
    def pending(self) -> int:
        """Number of records that were put and whose outcome is not known.

        A record is counted for a moment longer than its future is pending; once `flush` has returned, 0 is exact.
        """
        return 0 if self._delivery is None else self._own_delivery().pending

    def shard_of(self, partition_key: str, explicit_hash_key: int | str | None = None) -> str | None:
        """Return the id of the shard that a record with this key goes into, by the newest listing of the shards.

        None where the key does not say it: the stream puts records into any shard, or its shards may not be listed. A
        record that is put after a reshard goes into another one; its `PutResult` has the shard. Raises RecordRefused
        for keys that Kinesis refuses, and PyKclError where the producer is not started.
        """
        return self._own_delivery().shard_of(hash_key_of(partition_key, explicit_hash_key))

    def _own_delivery(self) -> Delivery:
        # Before any lock: a thread that had it at the fork cannot release it in the forked process.
        if self._delivery is None:
            raise PyKclError(
                "This producer is not started. Do: use it in a with (async with) block, or call start()."
            )
        if self._started_after != len(FORKS):
            raise PyKclError(
                "This producer was started before this process was forked, and its threads are in the other one. Do: "
                "make a producer in each process, after the fork."
            )
        return self._delivery

    def _raise_failures(self, delivery: Delivery) -> None:
        failures = delivery.take_failures()
        if failures is not None:
            raise PutFailed(
                f"{failures.count} records were not delivered into stream {self._config.stream!r}. The first one: "
                f"{failures.first}",
                failures.count,
                failures.first,
                tuple(failures.kept),
            )


class Producer(ProducerBase):
    """Any thread may put. `start`, or the `with` block, makes its threads: in each process that is forked, its own."""

    def start(self) -> None:
        """Connect, and start the thread. Call it in the process that puts, not before a fork.

        Raises ConfigError without a region; SetupError without credentials, permission or stream; TemporaryError where
        AWS does not answer: call it again.
        """
        with self._starting():
            self._start()

    def close(self, timeout: float | None = None) -> None:
        """Wait until all records are put, at most `timeout` seconds; give up the others, and end the threads.

        A request that is under way then may take ten seconds more, in a thread that is not waited for. Raises PutFailed
        for records that were not delivered since the last flush, among them those that are given up now.
        """
        self._close(timeout)

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(
        self,
        data: object,
        partition_key: str | None = None,
        explicit_hash_key: int | str | None = None,
        *,
        timeout: float | None = None,
    ) -> Future[PutResult]:
        """Take a record; return the future of its place in the stream, which it has once Kinesis has the record.

        data: bytes, text, or what the serializer takes. partition_key: None: another one for each record. timeout: most
        seconds to wait for room. The future raises NotDelivered or SetupError for a record that is given up. Its
        callbacks run in a thread of the producer, and must not wait for other records.

        Raises RecordRefused, BufferFull, and PyKclError where the producer is not started or closed; and OSError,
        MemoryError and PyKclError of the serializer as they are.
        """
        delivery = self._own_delivery()
        # Nobody can cancel it: a record that waits to be sent again may be in the stream.
        future: LazyFuture[PutResult] = LazyFuture()
        record = self._new_record(data, partition_key, explicit_hash_key, future)
        if not delivery.offer(record):
            delivery.wait_to_put(record, may_wait=self._may_wait, timeout=timeout)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Return once all records put so far are in the stream.

        Raises PutFailed for records that were given up since the last flush, FlushTimedOut where `timeout` seconds were
        not enough for all: they are still being sent.
        """
        delivery = self._own_delivery()
        self._end_flush(delivery, timeout, is_done=delivery.flush(timeout))


def _metering_of(config: Config, runtime: Runtime, sinks: Sequence[MetricsSink] | None) -> MetricsPipeline:
    is_by_shard = config.metrics_level == "DETAILED"
    dimensions = [name for name in PRODUCER_DIMENSIONS if is_by_shard or name != "ShardId"]
    return MetricsPipeline(
        config, runtime, given_sinks(sinks), catalogue=PRODUCER_CATALOGUE, dimensions=dimensions
    )


def _refuse_other_values(
    linger: object,
    max_pending_bytes: object,
    on_full: object,
    record_ttl: object,
    rate_limit: object,
    serializer: object,
    connections: object,
    on_failure: object,
    on_event: object,
) -> None:
    def is_plain(function: object) -> bool:
        return function is None or (callable(function) and why_it_runs_nothing(function) is None)

    def is_number(value: object, least: float, *, above: bool = False) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value > least if above else value >= least

    checks = {
        "linger": (linger, is_number(linger, 0) and linger != inf, "seconds from 0"),
        "max_pending_bytes": (
            max_pending_bytes,
            type(max_pending_bytes) is int and is_number(max_pending_bytes, 1),
            "bytes",
        ),
        "on_full": (on_full, on_full in ("block", "raise"), "'block' or 'raise'"),
        "record_ttl": (
            record_ttl,
            record_ttl is None or is_number(record_ttl, 0, above=True),
            "seconds above 0, or None",
        ),
        "rate_limit": (rate_limit, is_number(rate_limit, 0, above=True), "a number above 0"),
        "serializer": (serializer, is_plain(serializer), "a plain function, no async def, or None"),
        "connections": (
            connections,
            type(connections) is int and 1 <= connections <= 100,
            "a whole number, 1 to 100",
        ),
        # A call of async def runs nothing, so nobody would learn of a loss.
        "on_failure": (on_failure, is_plain(on_failure), "a plain function, no async def"),
        "on_event": (on_event, is_plain(on_event), "a plain function, no async def"),
    }
    for name, (value, is_good, wanted) in checks.items():
        if not is_good:
            raise ConfigError(f"{name}={shown(value)} is not valid. Do: give {wanted}.")


_open: set[ProducerBase] = set()
"""Producers that were started and not closed."""
_ends: list[bool] = []
"""Empty until the end of the program is waited for."""


def _end_with_the_program(producer: ProducerBase) -> None:
    """Give a producer that nobody closes a last chance: its threads are cut off when Python ends."""
    _open.add(producer)
    if not _ends:
        _ends.append(True)
        before_threads_end(_close_all)


def _close_all() -> None:
    for producer in tuple(_open):
        if producer.closed or producer._started_after != len(FORKS) or not producer.pending:
            continue
        log.warning("the program ended and its producer is not closed stream=%r", producer._config.stream)
        try:
            producer._close(_AT_END)
        except PyKclError as error:
            log.error("%s", error)
