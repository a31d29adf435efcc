"""Instrumented clients of one worker: every request is reported to the checkers once it was answered or failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pykcl.aws.errors import error_code
from pykcl.aws.table_admin import STATE_SUFFIX
from pykcl.errors import IteratorExpired, SetupError, ShardGone, TemporaryError
from pykcl.interfaces import Fetched
from pykcl.local.request_log import ROW_WRITES
from pykcl.local.shards import HOUR_MILLIS
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.stores.requests import Params
from pykcl.testing.fleet import SwitchingClient
from pykcl.testing.memory.dynamodb import MemoryDynamoDB
from pykcl.testing.simulation.service_faults import FaultyStream, SlowPage, StaleScan, kind_of_write
from tests.simulation.checkers.observer import Observer

_REFUSED = "ConditionalCheckFailedException"
_MISSING = "ResourceNotFoundException"
_NEARLY_TRIMMED_MILLIS = 24 * HOUR_MILLIS * 0.9
"""So far behind, with a day of retention, a worker opens a shard anew for each page."""
_IDLE_AFTER = 2

Answer = TypeVar("Answer")


class InstrumentedClient(SwitchingClient):
    """The DynamoDB client of one host: another thread may go first before and after each call."""

    def __init__(
        self,
        client: MemoryDynamoDB,
        switch: Callable[[], None],
        scan: StaleScan,
        host: str,
        observer: Observer,
    ) -> None:
        super().__init__(client, switch, scan=scan)
        self._host, self._observer = host, observer

    def _answered(self, name: str, params: Params, error: Exception | None) -> None:
        operation = name.title().replace("_", "")
        kind = kind_of_write(operation, params) if operation in ROW_WRITES else operation
        code = (error_code(error) or "") if error else ""
        failed = error is not None and code != _REFUSED
        if str(params.get("TableName", "")).endswith(STATE_SUFFIX):
            # It may be missing, or forbidden: that is no cause for a failure.
            self._observer.budgets.spent(self._host, "state", failed=failed and code != _MISSING)
            return
        self._observer.asked_dynamodb(self._host, kind, _key_of(params), code, failed=failed)


def _key_of(params: Params) -> str:
    """The lease a request is about; of a scan, its part of the table, and behind which lease its page starts."""
    # A worker that answers for several parts of the table scans each of them once a second.
    part = f"part {params['Segment']} of {params['TotalSegments']} " if "Segment" in params else ""
    for name in ("Key", "Item", "ExclusiveStartKey"):
        if name in params:
            return part + str(params[name].get("leaseKey", {}).get("S", ""))
    return part


class InstrumentedStream:
    """`ports.Stream` for one host."""

    def __init__(self, inner: FaultyStream, host: str, observer: Observer) -> None:
        self._inner, self._host, self._observer = inner, host, observer
        self._idle: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self._inner.name

    def describe(self) -> StreamDescription:
        return self._metered("describe", "", self._inner.describe)

    def list_shards(self) -> ShardListing:
        return self._metered("list", "", self._inner.list_shards)

    def open(self, shard_id: str, start: ReadFrom) -> str:
        return self._metered("open", shard_id, lambda: self._inner.open(shard_id, start))

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        fetched = self._metered("fetch", shard_id, lambda: self._inner.fetch(shard_id, iterator, limit))
        self._observer.was_given_a_page(self._host)
        behind = fetched.millis_behind_latest or 0
        if behind > _NEARLY_TRIMMED_MILLIS:
            self._asked("page nearly trimmed", shard_id)
        if fetched.records or behind:
            self._idle[shard_id] = 0
            return fetched
        self._idle[shard_id] = self._idle.get(shard_id, 0) + 1
        if self._idle[shard_id] > _IDLE_AFTER:
            self._asked("idle read", shard_id)
        return fetched

    max_pending_pages = 16

    def request_page(self, shard_id: str, iterator: str, limit: int) -> SlowPage | None:
        return self._inner.request_page(
            shard_id, iterator, limit, lambda: self.fetch(shard_id, iterator, limit)
        )

    def wait_for_any(self, asked: Sequence[SlowPage], timeout: float) -> None:
        self._inner.wait_for_any(asked, timeout)

    def server_time_millis(self, *, as_seen: bool = False) -> int:
        return self._inner.server_time_millis(as_seen=as_seen)

    def _metered(self, kind: str, shard_id: str, call: Callable[[], Answer]) -> Answer:
        try:
            answer = call()
        except (IteratorExpired, ShardGone) as refusal:
            expired = isinstance(refusal, IteratorExpired)
            self._asked("iterator expired" if expired else "shard denied", shard_id)
            self._asked(kind, shard_id)
            raise
        except Exception as error:
            failed = isinstance(error, TemporaryError | SetupError)
            self._asked(kind, shard_id, failed=failed, denied=isinstance(error, SetupError))
            raise
        self._asked(kind, shard_id)
        return answer

    def _asked(self, kind: str, shard_id: str, *, failed: bool = False, denied: bool = False) -> None:
        self._observer.asked_kinesis(self._host, kind, shard_id, failed=failed, denied=denied)
