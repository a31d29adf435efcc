"""Protocols of the services that a worker uses: LeaseTable, Stream, DeadLetterDestination, Events.

Runtime is in `runtime`. `aws/` implements them; `testing/` and users may implement their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from pykcl.errors import PyKclError
from pykcl.events import Event
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.dead_letter import DeadLetter
from pykcl.model.fleet_rows import FleetWrite
from pykcl.model.lease import ForeignRow, JavaState, Lease, Row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.record import Record
from pykcl.model.shard import Shard, ShardListing, StreamDescription


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took effect. `lease` is the row after it; None after a delete.

    confirmed_by_read: the row proves it, not an answer, after the same write was sent again. It may have taken effect
    with any earlier equal write of unknown outcome.
    overwritten: the checkpoint of somebody else that the row had, as text; "" where it had none.
    """

    lease: Lease | None
    confirmed_by_read: bool = False
    overwritten: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The write did not and will not take effect. `row` is the current row; None if there is none."""

    row: Row | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome is unknown: no answer arrived in time. Keep the belief until its deadline, then try again.

    seen: the row after our own earlier write, if that increased the counter; base the next write on it.
    overwritten: as in Applied, if the write took effect.
    """

    cause: str
    seen: Lease | None = None
    overwritten: str = ""


WriteAnswer = Applied | Rejected | Unknown


@dataclass(frozen=True, slots=True)
class TableScan:
    """One complete scan; an interrupted one raises instead. read_units: its cost, in DynamoDB read units."""

    rows: tuple[Row, ...]
    read_units: float


class LeaseTable(Protocol):
    """The lease table. Every method may raise TemporaryError, TableGone or SetupError."""

    def prepare(self, *, create: bool) -> bool:
        """Wait until the table is usable; create it if missing and allowed. Return whether this call created it.

        Raises WrongTable for a table that is not a lease table, SetupError when it is missing and not allowed.
        """

    def scan(self, *, consistent: bool = False) -> TableScan:
        """Every row; eventually consistent, unless `consistent`, at twice the read units."""

    def scan_part(self, segment: int, segments: int) -> TableScan:
        """The rows of one of `segments` parts, counted from 0; eventually consistent. Together they are the table."""

    def read(self, key: str) -> Row | None:
        """One row, strongly consistent."""

    def owned_by(self, worker: str) -> frozenset[str]:
        """Keys of the leases whose rows name the worker, by KCL 3.x's index of owners; eventually consistent.

        Raises SetupError where there is no such index.
        """

    def write_fleet_row(self, write: FleetWrite, *, until: float) -> bool:
        """Send a conditional write of a row that KCL 3.x keeps beside the leases, until monotonic time `until`.

        False: its condition failed. Sent again, it does no harm.
        """

    def old_lock(self) -> ForeignRow | None:
        """Return the row of the leader's lock in the state table of KCL 3.0-3.4."""

    def old_metrics(self) -> Sequence[Row]:
        """Return the rows of the metrics table of KCL 3.0-3.4; eventually consistent."""

    @property
    def has_owner_index(self) -> bool:
        """True if the last `prepare` has found KCL 3.x's index of owners."""

    def java_state(self) -> JavaState:
        """Return the state that KCL 3.x keeps beside the leases; unreadable parts are marked, and nothing is raised."""

    def write(self, write: LeaseWrite, *, until: float) -> WriteAnswer:
        """Send a conditional write, again and again while its outcome is unknown, until monotonic time `until`.

        Throttling, time-outs and failing servers are never raised: they end as `Unknown`. Raises TableGone, and
        SetupError for what no repetition can help (credentials, permissions).
        """


@dataclass(slots=True)
class Fetched:
    """One GetRecords answer.

    records: Kinesis records, not de-aggregated, in order. next_iterator: None exactly at the end of the shard.
    children: the child shards, at the end of a shard. body_bytes: size of the answer, for the memory bound.
    """

    records: Sequence[Record]
    next_iterator: str | None = field(repr=False)
    millis_behind_latest: int | None
    children: tuple[Shard, ...]
    body_bytes: int


class Stream(Protocol):
    """One Kinesis stream. Every method may raise TemporaryError, StreamMissing or SetupError."""

    @property
    def name(self) -> str: ...

    def describe(self) -> StreamDescription: ...

    def list_shards(self) -> ShardListing:
        """All shards Kinesis still lists, open and closed; `complete=False` if a later page failed."""

    def open(self, shard_id: str, start: ReadFrom) -> str:
        """A shard iterator. Raises ShardGone."""

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        """One page of at most `limit` Kinesis records. Raises IteratorExpired, Throttled, ShardGone."""

    def server_time_millis(self, *, as_seen: bool = False) -> int:
        """Kinesis' own clock as last seen (its answers carry it to the second, rounded down), epoch milliseconds.

        It is never ahead of this machine's clock: a position at a time that is too early costs duplicates, one that is
        too late skips records. as_seen: as the answers say it, also ahead of ours, for what others compare with
        their clocks.
        """


class PutStream(Protocol):
    """A stream that records are put into. Every method may raise TemporaryError, StreamMissing or SetupError."""

    @property
    def name(self) -> str: ...

    def describe(self) -> StreamDescription: ...

    def list_shards(self) -> ShardListing: ...

    def put(self, records: Sequence[NewRecord]) -> Sequence[PutAnswer]:
        """Send one request; return one answer per record, in order.

        Throttled and SetupError: nothing was put. Any other error: it is unknown which records were put.
        """


class PageStatus(Enum):
    """Status of a pending page. NEEDS_WAIT: `page` may block, because the answer is an error, is cut off, or has no
    length."""

    PENDING = "pending"
    READY = "ready"
    NEEDS_WAIT = "needs wait"


class PendingRead(Protocol):
    """A GetRecords request that was sent. Used by one thread at a time; `page` or `drop` ends it."""

    def poll(self) -> PageStatus:
        """Read what has arrived, without waiting. Does not raise."""

    def page(self) -> Fetched:
        """Wait for the page and return it. Raises as `Stream.fetch`."""

    def drop(self) -> None:
        """Abandon the request."""


@runtime_checkable
class NonBlockingStream(Stream, Protocol):
    """A stream for which one thread can have many requests pending. Optional: a worker runs without it.

    A wrapper that observes the pages of a stream must wrap `request_page`, too, or not have it.
    """

    @property
    def max_pending_pages(self) -> int:
        """Maximum number of pending requests at this moment; 0: `request_page` would return None."""

    def request_page(self, shard_id: str, iterator: str, limit: int) -> PendingRead | None:
        """Send the request for a page without waiting. Does not raise.

        None if it cannot be sent without waiting: call `fetch`, which meets the same obstacle and reports it.
        """

    def wait_for_any(self, reads: Sequence[Any], timeout: float) -> None:
        """Wait until something has arrived for one of the reads, or for more that arrive right after it.

        timeout: maximum wait for the first, seconds.
        """


class Subscription(Protocol):
    """The events of one shard that Kinesis pushes, from one answered SubscribeToShard call until it ends.

    `poll` and `close` are called by one thread and never wait.
    """

    def poll(self) -> Fetched | None:
        """Return the next event; None while there is none.

        Its `next_iterator` is the ContinuationSequenceNumber: None exactly at the end of the shard. Raises
        SubscriptionOver at the end of the five minutes, TemporaryError where it ends before its first event,
        SubscriptionTaken where another call has taken over, and as `Stream.fetch`. After it has raised, nothing
        follows.
        """

    def close(self) -> None:
        """End it, so that another call is not refused for it. Events that have come are dropped. Does not raise."""


@runtime_checkable
class HoldsBytes(Protocol):
    """A subscription that holds what nobody has taken yet. Optional."""

    @property
    def held_bytes(self) -> int:
        """Bytes that have come and were not polled. `on_ready` is called once they have grown, or were dropped."""


@runtime_checkable
class PushStream(Stream, Protocol):
    """A stream that pushes records to a consumer of enhanced fan-out."""

    def prepare_consumer(self) -> None:
        """Find the consumer, or register it where that is allowed, and wait until it is ACTIVE.

        Raises SetupError where it is missing or the stream has as many as it may have, and TemporaryError.
        """

    def subscribe(self, shard_id: str, start: ReadFrom, on_ready: Callable[[], None]) -> Subscription:
        """Call SubscribeToShard, and return when it is answered.

        on_ready: called by any thread when `poll` may have something to return or to raise; it does not wait.
        Raises SubscriptionTaken within five seconds of another successful call, ConsumerGone, ShardGone, Throttled.
        """


@runtime_checkable
class HasCredentials(Protocol):
    """A table or stream whose credentials end and are renewed. Optional."""

    def credentials_trouble(self) -> PyKclError | None:
        """Return the error where they are due for renewal and their source has failed, or not answered, for a while.

        Also begins a renewal that is due. Does not wait, and does not raise.
        """


@runtime_checkable
class DeadLetterDestination(Protocol):
    """Keeps dead letters. Called by the threads of several shards at the same time."""

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Keep the letters; return when all of them are durable, never before.

        Raises TemporaryError and SetupError; some of the letters may be kept then. All are sent again, so that a letter
        may be kept twice, with the same id.
        """


class Events(Protocol):
    """Hears what happens. Called from any thread; must be quick and must not raise."""

    def emit(self, event: Event, /) -> None: ...
