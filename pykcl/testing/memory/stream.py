"""`ports.Stream` straight on the in-memory stream model: no socket, no boto3, the same errors as over the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pykcl.errors import IteratorExpired, PositionRefused, ShardGone, StreamMissing, TemporaryError, Throttled
from pykcl.local.errors import AwsError
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.record import Record
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.ports import Fetched
from pykcl.runtime import Runtime

Answer = TypeVar("Answer")


class MemoryStream:
    """One stream of a LocalKinesis, as the worker sees it.

    switch: called before every operation; a simulation lets other threads go first there.
    """

    def __init__(
        self, kinesis: LocalKinesis, name: str, runtime: Runtime, switch: Callable[[], None] = lambda: None
    ) -> None:
        self._kinesis = kinesis
        self._name = name
        self._runtime = runtime
        self._switch = switch

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> StreamDescription:
        view = self._ask(lambda: self._kinesis.describe(self._name), StreamMissing)
        return StreamDescription(view.name, view.arn, view.created_at, view.status, view.retention_hours)

    def list_shards(self) -> ShardListing:
        return ShardListing(tuple(self._ask(lambda: self._kinesis.list_shards(self._name), StreamMissing)))

    def open(self, shard_id: str, start: ReadFrom) -> str:
        return self._ask(
            lambda: self._kinesis.get_shard_iterator(
                self._name,
                shard_id,
                start.kind,
                sequence_number=start.sequence_number,
                at_millis=start.at_millis,
            ),
            ShardGone,
            PositionRefused,
        )

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        page = self._ask(lambda: self._kinesis.get_records(iterator, limit), ShardGone)
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

    def server_time_millis(self) -> int:
        # To the second, rounded down: all that the Date header of a real answer carries.
        return self._runtime.utcnow_millis() // 1000 * 1000

    def _ask(
        self,
        operation: Callable[[], Answer],
        when_not_found: type[Exception],
        when_refused: type[Exception] = IteratorExpired,
    ) -> Answer:
        self._switch()
        try:
            return operation()
        except AwsError as error:
            if error.code == "ResourceNotFoundException":
                raise when_not_found(f"{error.code} for stream {self._name!r}") from None
            if error.code in ("ExpiredIteratorException", "InvalidArgumentException"):
                raise when_refused(error.code) from None
            if error.code == "ProvisionedThroughputExceededException":
                raise Throttled(error.code) from None
            raise TemporaryError(error.code) from None
