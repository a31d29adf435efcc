"""Deleting the rows of ended shards: each worker for those it ended or took over ended.

Java KCL 2.7.3 `leases/LeaseCleanupManager.java`. The delete is unconditional.
"""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import IteratorExpired, ShardGone, TemporaryError
from pykcl.interfaces import Stream
from pykcl.model.checkpoint import ReadFrom
from pykcl.testing.java.failures import DependencyFailed
from pykcl.testing.java.lease import JavaLease
from pykcl.testing.java.table import JavaTable

_BEFORE_READING = ("TRIM_HORIZON", "AT_TIMESTAMP")


class LeaseCleanup:
    """A queue in memory: whoever dies leaves it to the next owner of the ended lease."""

    def __init__(self, table: JavaTable, stream: Stream, on_deleted: Callable[[str], None]) -> None:
        self._table = table
        self._stream = stream
        self._on_deleted = on_deleted
        self._waiting: dict[str, None] = {}

    def add(self, key: str) -> None:
        self._waiting[key] = None

    def run(self) -> None:
        """One round over the queue; what fails stays in it."""
        for key in list(self._waiting):
            try:
                if self._is_done_with(key):
                    del self._waiting[key]
            except (DependencyFailed, TemporaryError, IteratorExpired):
                continue

    def _is_done_with(self, key: str) -> bool:
        row = self._table.get(key)
        if row is None:
            return True
        try:
            children = row.children or self._children_from_kinesis(key)
        except ShardGone:
            return self._delete(key)
        if not children or not self._may_go(row, children):
            return False
        return self._delete(key)

    def _delete(self, key: str) -> bool:
        self._table.delete(key)
        self._on_deleted(key)
        return True

    def _may_go(self, row: JavaLease, children: tuple[str, ...]) -> bool:
        """Every child has begun, and no parent's row is left."""
        for child in children:
            found = self._table.get(child)
            if found is None or found.checkpoint.sequence_number in _BEFORE_READING:
                return False
        return all(self._table.get(parent) is None for parent in row.parents)

    def _children_from_kinesis(self, key: str) -> tuple[str, ...]:
        iterator = self._stream.open(key, ReadFrom("LATEST"))
        found = self._stream.fetch(key, iterator, 1).children
        children = tuple(sorted(child.shard_id for child in found))
        if children:
            self._table.set_children(key, children)
        return children
