"""`interfaces.PushStream` on the in-memory stream model: no socket, no boto3, the same errors as over the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeVar

from pykcl.errors import (
    ConsumerGone,
    IteratorExpired,
    PositionRefused,
    PyKclError,
    SetupError,
    ShardGone,
    StreamMissing,
    SubscriptionOver,
    SubscriptionTaken,
    TemporaryError,
    Throttled,
    WrongStream,
)
from pykcl.interfaces import Fetched, PageStatus
from pykcl.local.consumers import PushedEvent
from pykcl.local.consumers import Subscription as LocalSubscription
from pykcl.local.errors import AwsError
from pykcl.local.shards import StoredRecord
from pykcl.local.stream import AUTO, MAX_PAGE_RECORDS, Entry, LocalKinesis
from pykcl.model.absence import Absence
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.record import Record
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.runtime import Runtime

Answer = TypeVar("Answer")

_PUSH_ERRORS = {"LimitExceededException": Throttled, "ResourceInUseException": SubscriptionTaken}


class LaterPage:
    """An `interfaces.PendingRead`: fetched when it is polled, and there at once."""

    def __init__(self, fetch: Callable[[], Fetched]) -> None:
        self._fetch = fetch
        self._fetched: Fetched | None = None
        self._error: PyKclError | None = None

    def poll(self) -> PageStatus:
        try:
            self._fetched = self._fetch()
        except PyKclError as error:
            self._error = error
        return PageStatus.READY

    def page(self) -> Fetched:
        if self._error is not None:
            raise self._error
        return self._fetched or self._fetch()

    def drop(self) -> None:
        """Do nothing: no reader waits for it."""


class MemorySubscription:
    """An `interfaces.Subscription` of a MemoryStream.

    on_time: called with the time of the next event if nothing comes before, epoch milliseconds.
    """

    def __init__(
        self,
        inner: LocalSubscription,
        kinesis: LocalKinesis,
        fetched: Callable[[PushedEvent], Fetched],
        sorted_error: Callable[[AwsError], PyKclError],
        on_ready: Callable[[], None],
        on_time: Callable[[float], None],
    ) -> None:
        self._inner, self._kinesis, self._fetched, self._sorted = inner, kinesis, fetched, sorted_error
        self._on_ready, self._on_time = on_ready, on_time
        # Reported once, until the next poll.
        self._is_reported = False
        self._has_brought_events = False
        self._error: PyKclError | None = None
        inner.on_change = self._report

    @property
    def due_at(self) -> float:
        """Time at which there may be something to poll, epoch milliseconds; infinite where that is known already."""
        return inf if self._is_reported else self._inner.due_at

    @property
    def has_ended(self) -> bool:
        """True if nothing follows, not even a time to wait for."""
        return self._inner.ended

    def report_if_due(self, now: int) -> None:
        if now >= self.due_at:
            self._report()

    def _report(self) -> None:
        self._is_reported = True
        self._on_ready()

    def poll(self) -> Fetched | None:
        self._is_reported = False
        if self._error is not None:
            raise self._error
        failure = None
        try:
            event = self._kinesis.next_event(self._inner)
        except AwsError as error:
            event, failure = None, error
        if failure is not None:
            self._error = self._sorted(failure)
        elif event is None and self._inner.ended:
            if self._has_brought_events:
                self._error = SubscriptionOver("the subscription has ended")
            else:
                # As of AWS: an end in good order would be repeated for ever, and unreported.
                self._error = TemporaryError("the subscription has ended before its first event")
        if self._error is not None:
            raise self._error
        self._on_time(self.due_at)
        if event is None:
            return None
        self._has_brought_events = True
        return self._fetched(event)

    def close(self) -> None:
        self._inner.on_change = _nothing
        self._kinesis.end(self._inner)
        self._on_time(-inf)


def _nothing() -> None:
    """Stand in for who has gone."""


class MemoryPushes:
    """The thread that reports what is due in subscriptions of a stream; it runs while there are any."""

    def __init__(self, runtime: Runtime, now_millis: Callable[[], int]) -> None:
        self._runtime, self._now_millis = runtime, now_millis
        self._lock, self._changed = runtime.lock(), runtime.event()
        self._all: list[MemorySubscription] = []
        self._is_running = False
        self._sleeps_until = inf

    def add(self, subscription: MemorySubscription) -> None:
        with self._lock:
            self._all.append(subscription)
            starts, self._is_running = not self._is_running, True
        self._changed.set()
        if starts:
            self._runtime.spawn("memory-push", self._run)

    def wake_for(self, at: float) -> None:
        """Let the thread know of a time, epoch milliseconds, if it sleeps for longer."""
        with self._lock:
            if at < self._sleeps_until:
                self._changed.set()

    def _run(self) -> None:
        while True:
            # Cleared before the times are read: a change after that sets it again.
            self._changed.clear()
            now = self._now_millis()
            with self._lock:
                self._all = [one for one in self._all if not one.has_ended]
                self._is_running = bool(self._all)
                if not self._all:
                    return
                for one in self._all:
                    one.report_if_due(now)
                self._sleeps_until = due = min(one.due_at for one in self._all)
            self._changed.wait(None if due == inf else max(0.0, (due - now) / 1000))


class MemoryStream:
    """One stream of a LocalKinesis, as the worker sees it.

    switch: called before every operation; a simulation lets other threads go first there. gone_after: as of the real
    one: a stream that is missing or another one is a TemporaryError before. consumer: of enhanced fan-out. pushes_in:
    makes the runtime of the thread that waits for what Kinesis pushes; by default it is the worker's.
    """

    def __init__(
        self,
        kinesis: LocalKinesis,
        name: str,
        runtime: Runtime,
        switch: Callable[[], None] = lambda: None,
        *,
        gone_after: float = 0.0,
        consumer: str = "consumer",
        pushes_in: Callable[[], Runtime] | None = None,
    ) -> None:
        self._consumer, self._consumer_arn = consumer, ""
        self._pushes_in = pushes_in or (lambda: runtime)
        self._pushes: MemoryPushes | None = None
        self._absence, self._another = Absence(gone_after), Absence(gone_after)
        self._kinesis = kinesis
        self._name = name
        self._runtime = runtime
        self._switch = switch
        self._first_seen: StreamDescription | None = None

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> StreamDescription:
        """Describe the stream as Kinesis does: a stream that is being deleted counts as missing."""
        view = self._ask(lambda: self._kinesis.describe(self._name))
        if view.status == "DELETING":
            raise self._not_there(f"stream {self._name!r} is being deleted")
        self._absence.found()
        found = StreamDescription(
            view.name,
            view.arn,
            view.created_at,
            view.status,
            view.retention_hours,
            view.distribution == AUTO,
            view.max_record_kib * 1024,
        )
        self._first_seen = self._first_seen or found
        return found

    def list_shards(self) -> ShardListing:
        return ShardListing(tuple(self._ask(lambda: self._kinesis.list_shards(self._name))))

    def put(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        """See `interfaces.PutStream`."""
        entries = [
            Entry(
                record.data,
                record.partition_key,
                None if (key := record.explicit_hash_key) is None else int(key),
            )
            for record in records
        ]
        results = self._ask(lambda: self._kinesis.put_records(self._name, entries))
        return [
            PutAnswer(None, result.code)
            if isinstance(result, AwsError)
            else PutAnswer(result.shard_id, None, result.sequence_number)
            for result in results
        ]

    def open(self, shard_id: str, start: ReadFrom) -> str:
        """Raises ShardGone, StreamMissing, WrongStream; TemporaryError for a time that has not come,
        PositionRefused for what is no position of the shard.
        """
        return self._ask(
            lambda: self._kinesis.get_shard_iterator(
                self._name,
                shard_id,
                start.kind,
                sequence_number=start.sequence_number,
                at_millis=start.at_millis,
            ),
            lambda: self._gone(shard_id),
            lambda: self._start_refused(shard_id, start),
        )

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        page = self._ask(
            lambda: self._kinesis.get_records(iterator, min(limit, MAX_PAGE_RECORDS)),
            lambda: self._gone(shard_id),
        )
        records, size = self._records(shard_id, page.records)
        return Fetched(records, page.next_iterator, page.millis_behind_latest, page.children, size)

    def _records(self, shard_id: str, found: Sequence[StoredRecord]) -> tuple[list[Record], int]:
        """Return the records, and their size in bytes."""
        records = [
            Record(
                stored.data,
                stored.partition_key,
                stored.sequence_number,
                stored.arrived_at_millis,
                shard_id,
                self._name,
            )
            for stored in found
        ]
        return records, sum(stored.size for stored in found)

    max_pending_pages = 16

    def request_page(self, shard_id: str, iterator: str, limit: int) -> LaterPage:
        return LaterPage(lambda: self.fetch(shard_id, iterator, limit))

    def wait_for_any(self, asked: Sequence[LaterPage], timeout: float) -> None:
        """Do nothing: all are available at once."""

    def prepare_consumer(self) -> None:
        """Find the consumer, or register it. Raises TemporaryError until it is ACTIVE."""
        known = self._ask(lambda: self._kinesis.list_consumers(self._name))
        found = next((one for one in known if one.name == self._consumer), None)
        if found is None:
            found = self._ask(lambda: self._kinesis.register_consumer(self._name, self._consumer))
            known = self._ask(lambda: self._kinesis.list_consumers(self._name))
        if found.status != "ACTIVE":
            raise TemporaryError(f"the consumer {self._consumer!r} is {found.status}")
        self._consumer_arn = found.arn
        self._pushes = self._pushes or MemoryPushes(self._pushes_in(), self._kinesis.now_millis)

    def subscribe(self, shard_id: str, start: ReadFrom, on_ready: Callable[[], None]) -> MemorySubscription:
        if self._pushes is None:
            raise SetupError("subscribe was called before prepare_consumer")

        def call() -> LocalSubscription:
            kind, number, at = start.kind, start.sequence_number, start.at_millis
            return self._kinesis.subscribe(
                self._consumer_arn, shard_id, kind, sequence_number=number, at_millis=at
            )

        def missing() -> PyKclError:
            return self._consumer_gone() or self._gone(shard_id)

        inner = self._ask(call, missing, lambda: self._start_refused(shard_id, start), _PUSH_ERRORS)

        def fetched(event: PushedEvent) -> Fetched:
            records, size = self._records(shard_id, event.records)
            return Fetched(records, event.continuation, event.millis_behind_latest, event.children, size)

        subscription = MemorySubscription(
            inner,
            self._kinesis,
            fetched,
            lambda error: self._sorted(error, missing, others=_PUSH_ERRORS),
            on_ready,
            self._pushes.wake_for,
        )
        self._pushes.add(subscription)
        return subscription

    def _consumer_gone(self) -> ConsumerGone | None:
        known = self._kinesis.list_consumers(self._name, operation=None)
        if any(one.arn == self._consumer_arn and one.status != "DELETING" for one in known):
            return None
        return ConsumerGone(f"stream {self._name!r} has no consumer {self._consumer!r} any more")

    def server_time_millis(self, *, as_seen: bool = False) -> int:
        # To the second, rounded down: all that the Date header of a real answer carries.
        return self._runtime.utcnow_millis() // 1000 * 1000

    def _ask(
        self,
        operation: Callable[[], Answer],
        when_not_found: Callable[[], PyKclError] | None = None,
        when_refused: Callable[[], PyKclError] | None = None,
        others: Mapping[str, type[PyKclError]] = {},
    ) -> Answer:
        self._switch()
        try:
            return operation()
        except AwsError as error:
            failure = error
        # Outside the except block, as over the wire: what was asked after it has its own story.
        raise self._sorted(failure, when_not_found, when_refused, others)

    def _sorted(
        self,
        failure: AwsError,
        when_not_found: Callable[[], PyKclError] | None = None,
        when_refused: Callable[[], PyKclError] | None = None,
        others: Mapping[str, type[PyKclError]] = {},
    ) -> PyKclError:
        """Return the error that the adapter of AWS would raise. others: errors of this operation, by their codes."""
        code = failure.code
        if code == "ResourceNotFoundException":
            return when_not_found() if when_not_found else self._not_there(f"{code} for {self._name!r}")
        if code == "InvalidArgumentException" and when_refused:
            return when_refused()
        if code in ("ExpiredIteratorException", "InvalidArgumentException"):
            return IteratorExpired(code)
        if code == "ProvisionedThroughputExceededException":
            return Throttled(code)
        return others.get(code, TemporaryError)(code)

    def _not_there(self, text: str) -> PyKclError:
        return (
            StreamMissing(text)
            if self._absence.is_proven(self._runtime.monotonic())
            else TemporaryError(text)
        )

    def _gone(self, shard_id: str) -> PyKclError:
        """Shard or stream? As over the wire, the description decides."""
        before = self._first_seen
        try:
            now = self.describe()
        except PyKclError as error:
            return error
        if before is not None and before.created_at != now.created_at:
            if not self._another.is_proven(self._runtime.monotonic()):
                return TemporaryError(f"stream {self._name!r} seems to be another one")
            return WrongStream(f"stream {self._name!r} was deleted and created again while it was read")
        return ShardGone(f"no shard {shard_id} in stream {self._name!r}")

    def _start_refused(self, shard_id: str, start: ReadFrom) -> PyKclError:
        if start.kind == "AT_TIMESTAMP" and (start.at_millis or 0) >= self.server_time_millis():
            return TemporaryError(f"{shard_id} is to be read from a time that has not come")
        gone = self._gone(shard_id)
        if not isinstance(gone, ShardGone):
            return gone
        return PositionRefused(f"no position of {shard_id} in stream {self._name!r}: {start.kind}")
