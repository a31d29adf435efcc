"""`ports.Stream` straight on the in-memory stream model: no socket, no boto3, the same errors as over the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pykcl.errors import (
    IteratorExpired,
    PositionRefused,
    PyKclError,
    ShardGone,
    StreamMissing,
    TemporaryError,
    Throttled,
    WrongStream,
)
from pykcl.interfaces import Fetched, PageStatus
from pykcl.local.errors import AwsError
from pykcl.local.stream import AUTO, MAX_PAGE_RECORDS, LocalKinesis
from pykcl.model.absence import Absence
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.record import Record
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.runtime import Runtime

Answer = TypeVar("Answer")


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


class MemoryStream:
    """One stream of a LocalKinesis, as the worker sees it.

    switch: called before every operation; a simulation lets other threads go first there. gone_after: as of the real
    one: a stream that is missing or another one is a TemporaryError before.
    """

    def __init__(
        self,
        kinesis: LocalKinesis,
        name: str,
        runtime: Runtime,
        switch: Callable[[], None] = lambda: None,
        *,
        gone_after: float = 0.0,
    ) -> None:
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
            view.name, view.arn, view.created_at, view.status, view.retention_hours, view.distribution == AUTO
        )
        self._first_seen = self._first_seen or found
        return found

    def list_shards(self) -> ShardListing:
        return ShardListing(tuple(self._ask(lambda: self._kinesis.list_shards(self._name))))

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
        records = [
            Record(
                stored.data,
                stored.partition_key,
                stored.sequence_number,
                stored.arrived_at_millis,
                shard_id,
                self._name,
            )
            for stored in page.records
        ]
        size = sum(stored.size for stored in page.records)
        return Fetched(records, page.next_iterator, page.millis_behind_latest, page.children, size)

    max_pending_pages = 16

    def request_page(self, shard_id: str, iterator: str, limit: int) -> LaterPage:
        return LaterPage(lambda: self.fetch(shard_id, iterator, limit))

    def wait_for_any(self, asked: Sequence[LaterPage], timeout: float) -> None:
        """Do nothing: all are available at once."""

    def server_time_millis(self, *, as_seen: bool = False) -> int:
        # To the second, rounded down: all that the Date header of a real answer carries.
        return self._runtime.utcnow_millis() // 1000 * 1000

    def _ask(
        self,
        operation: Callable[[], Answer],
        when_not_found: Callable[[], PyKclError] | None = None,
        when_refused: Callable[[], PyKclError] | None = None,
    ) -> Answer:
        self._switch()
        try:
            return operation()
        except AwsError as error:
            code = error.code
        # Outside the except block, as over the wire: what was asked after it has its own story.
        if code == "ResourceNotFoundException":
            raise when_not_found() if when_not_found else self._not_there(f"{code} for {self._name!r}")
        if code == "InvalidArgumentException" and when_refused:
            raise when_refused()
        if code in ("ExpiredIteratorException", "InvalidArgumentException"):
            raise IteratorExpired(code)
        if code == "ProvisionedThroughputExceededException":
            raise Throttled(code)
        raise TemporaryError(code)

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
