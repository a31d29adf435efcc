"""Reads one shard: opens it where the checkpoint says, fetches pages, resumes after trouble, notices trimmed data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import IteratorExpired, TemporaryError
from pykcl.events import AggregateOfAnotherShard, AggregateRefused, DataLost, Event
from pykcl.model.aggregation import OUTSIDE_SHARD, deaggregate_batch
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.record import Record
from pykcl.model.shard import HashRange, Shard
from pykcl.planning.pace import read_pause
from pykcl.ports import Fetched
from pykcl.worker.context import Context

_DANGEROUS_LAG = 0.9
"""Part of the retention period from which on trimming is watched for at every page."""
_WHOLE_RECORD = 2**63 - 1
"""A sub-sequence number above every real one: (sequence, this) means that the whole record was delivered."""


@dataclass(slots=True)
class Page:
    """One fetched page. `chunks` de-aggregates lazily, so that a small page of a million user records stays small."""

    fetched: Fetched
    users: Iterator[Record]

    @property
    def is_last(self) -> bool:
        return self.fetched.next_iterator is None

    def chunks(self, size: int) -> Iterator[tuple[Record, ...]]:
        while chunk := tuple(islice(self.users, size)):
            yield chunk


class ShardReader:
    """One reading of one shard, used by one thread.

    first: where to open. after: drop what is at or below this position; set when resuming from a checkpoint.
    iterator: one that is open already, at the same place as `first` or more exactly.
    """

    def __init__(
        self,
        context: Context,
        shard_id: str,
        hash_range: HashRange | None,
        first: ReadFrom,
        after: Checkpoint | None,
        iterator: str | None = None,
    ) -> None:
        self._context = context
        self._shard_id = shard_id
        self._hash_range = hash_range
        self._open_at = first
        self._after = after
        # Only a resumed reading knows which record must come first.
        self._expects_checkpointed_record = after is not None
        self._iterator = iterator
        self._refusals = 0
        self._idle_reads = 0
        self._reserved = 0
        self.children: tuple[Shard, ...] = ()

    def read(self, give_up: Callable[[], bool]) -> Page | None:
        """The next page, or None when it could not be had now (no buffer space, iterator renewed): call again.

        give_up: polled while waiting for buffer space; True ends the wait.
        Raises TemporaryError, Throttled, ShardGone, SetupError. The page must be passed to `finish`.
        """
        if self._iterator is None:
            self._open()
        reserved = self._context.gate.reserve(LARGEST_FETCH_BYTES, give_up=give_up, timeout=1.0)
        if not reserved:
            return None
        self._reserved = LARGEST_FETCH_BYTES
        try:
            fetched = self._context.stream.fetch(
                self._shard_id, self._iterator or "", self._context.config.max_records
            )
        except IteratorExpired:
            self.reopen()
            self._refusals += 1
            if self._refusals > 1:
                # A fresh iterator refused as well is no matter of age: slow down like for any other failure.
                raise TemporaryError(
                    f"Kinesis refused {self._refusals} iterators of {self._shard_id} in a row, fresh ones too."
                ) from None
            return None
        except BaseException:
            self.drop()
            raise
        self._context.gate.release(max(0, self._reserved - fetched.body_bytes))
        self._reserved = min(self._reserved, fetched.body_bytes)
        self._refusals = 0
        self._notice_trimming(fetched)
        users = deaggregate_batch(
            fetched.records, self._hash_range, after=self._after, on_refused=self._aggregate_refused
        )
        return Page(fetched, users)

    def finish(self, page: Page) -> float:
        """The page was delivered: go on behind it. Returns the seconds to wait before the next read."""
        fetched = page.fetched
        if fetched.records:
            last = fetched.records[-1].sequence_number
            self._open_at = ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=last)
            self._after = Checkpoint(last, _WHOLE_RECORD)
        self._iterator = fetched.next_iterator
        if (fetched.millis_behind_latest or 0) > self._context.identity.retention_millis * _DANGEROUS_LAG:
            # Retention is about to overtake. An iterator would step over trimmed records in silence; opened anew at
            # the last delivered record, the page tells whether that one is still there.
            self._iterator = None
        self.children = fetched.children
        self._idle_reads = 0 if fetched.records else self._idle_reads + 1
        self.drop()
        return read_pause(
            len(fetched.records),
            fetched.millis_behind_latest,
            self._idle_reads,
            self._context.config.idle_time,
        )

    def drop(self) -> None:
        """Give the buffer space back; the page, if any, must not be used any more."""
        self._context.gate.release(self._reserved)
        self._reserved = 0

    def reopen(self) -> None:
        """Forget the iterator: the next read opens the shard again behind what was delivered."""
        self._iterator = None
        self.drop()

    def _open(self) -> None:
        # An iterator that was refused, or a row from before: the stream may be another one by now.
        self._context.identity.confirm_before_opening()
        # Looked at before opening: it must not lie behind what the iterator starts with.
        server_time = self._context.stream.server_time_millis()
        self._iterator = self._context.stream.open(self._shard_id, self._open_at)
        if self._open_at.kind == "LATEST":
            # A second LATEST would be a later one: what is put between the two must not be lost.
            self._open_at = ReadFrom("AT_TIMESTAMP", at_millis=server_time)
        # After trouble the same expectation holds again: the last delivered record comes first.
        self._expects_checkpointed_record = self._after is not None

    def _notice_trimming(self, fetched: Fetched) -> None:
        """AT_SEQUENCE_NUMBER starts with that very record, unless it was trimmed; then others may have been too."""
        if not self._expects_checkpointed_record or self._after is None:
            return
        first = fetched.records[0].sequence_number if fetched.records else None
        if first is None and fetched.next_iterator is not None:
            return
        self._expects_checkpointed_record = False
        if first != self._after.sequence_number:
            resumed_at = f"{first}:0" if first else None
            self._context.events.emit(
                DataLost(shard=self._shard_id, checkpoint=str(self._after), resumed_at=resumed_at)
            )

    def _aggregate_refused(self, record: Record, problem: str) -> None:
        number, size = record.sequence_number, len(record.data)
        event: Event
        if problem == OUTSIDE_SHARD:
            event = AggregateOfAnotherShard(shard=self._shard_id, sequence_number=number, size=size)
        else:
            event = AggregateRefused(shard=self._shard_id, sequence_number=number, problem=problem, size=size)
        self._context.events.emit(event)
