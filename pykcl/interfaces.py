"""What the worker needs from outside, as Protocols: LeaseTable, Stream, Events (Runtime lives in `runtime`).

`aws/` implements them; `testing/` and users may implement their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from pykcl.events import Event
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.lease import JavaState, Lease, Row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.record import Record
from pykcl.model.shard import Shard, ShardListing, StreamDescription


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took effect. `lease` is the row after it; None after a delete.

    confirmed_by_read: no answer said so, but the row itself, after the same write was sent once more. It may have taken
    effect at the time of any equal write before, the outcome of which stayed unknown.
    """

    lease: Lease | None
    confirmed_by_read: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """The write did not and will not take effect. `row` is what stands there instead; None: no such row."""

    row: Row | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome is unknown: no answer came in time. Keep the belief until its deadline, then try again.

    seen: the row with our own earlier write in it, if that moved the counter on; base the next write on it.
    """

    cause: str
    seen: Lease | None = None


WriteAnswer = Applied | Rejected | Unknown


@dataclass(frozen=True, slots=True)
class TableScan:
    """One complete scan (a broken-off one raises instead). read_units: what it cost, in DynamoDB read units."""

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

    def java_state(self) -> JavaState:
        """What KCL 3.x keeps beside the rows. What cannot be read is no error: the answer says so, and nothing is
        raised."""

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

    def server_time_millis(self) -> int:
        """Kinesis' own clock as last seen (its answers carry it to the second, rounded down), epoch milliseconds."""


class Coming(Enum):
    """How it stands with a page that was asked for. TO_BE_WAITED_FOR: `page` may take its time: the answer is an error,
    is broken off, or does not say where it ends."""

    NOT_YET = "not yet"
    THERE = "there"
    TO_BE_WAITED_FOR = "to be waited for"


class Asked(Protocol):
    """A page that was asked for and not waited for. For one thread at a time; `page` or `drop` ends it."""

    def poll(self) -> Coming:
        """Take in what has come, without waiting. Does not raise."""

    def page(self) -> Fetched:
        """Wait for it. Raises as `Stream.fetch`."""

    def drop(self) -> None:
        """It is not wanted any more."""


@runtime_checkable
class AskableStream(Stream, Protocol):
    """A stream of which one thread can have many pages under way. Optional: a worker does without.

    Who wraps a stream to see its pages has to see `ask`, too, or to have none.
    """

    @property
    def pages_at_a_time(self) -> int:
        """How many may be under way at once, as things stand; 0: `ask` is of no use now."""

    def ask(self, shard_id: str, iterator: str, limit: int) -> Asked | None:
        """Send the request for a page and do not wait. None where that cannot be now: `fetch` has to do it. Does not
        raise: what stands in the way, `fetch` meets, too."""

    def wait_for_answers(self, asked: Sequence[Any], timeout: float) -> None:
        """Until something has come for one of them, or for more that come right after it.

        timeout: seconds at most until the first.
        """


class Events(Protocol):
    """Hears what happens. Called from any thread; must be quick and must not raise."""

    def emit(self, event: Event, /) -> None: ...
