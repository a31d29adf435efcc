"""Reads one shard: opens it where the checkpoint says, fetches pages, resumes after trouble, notices trimmed data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import IteratorExpired, TemporaryError
from pykcl.events import AggregateOfAnotherShard, AggregateRefused, DataLost, Event
from pykcl.metrics import names
from pykcl.mistake_events import RetentionNear
from pykcl.model.aggregation import OUTSIDE_SHARD, deaggregate_batch
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.record import Record, data_bytes
from pykcl.model.shard import HashRange, Shard
from pykcl.planning.read_pace import SMALL_PAGE, ReadPace, after_page, after_throttling, throttled_pause
from pykcl.planning.read_rounds import Window, window_of
from pykcl.ports import Asked, Fetched
from pykcl.runtime import Event as Flag
from pykcl.worker.context import Context
from pykcl.worker.page_ahead import Answer, PageAhead, bytes_kept
from pykcl.worker.shared_reads import Turn, page_of

_DANGEROUS_LAG = 0.9
"""Part of the retention period from which on trimming is watched for at every page."""
_WHOLE_RECORD = 2**63 - 1
"""A sub-sequence number above every real one: (sequence, this) means that the whole record was delivered."""


@dataclass(slots=True)
class Page:
    """One fetched page. `chunks` de-aggregates lazily, so that a small page of a million user records stays small.

    answered_at: when it came (monotonic seconds).
    """

    fetched: Fetched
    answered_at: float
    users: Iterator[Record]

    @property
    def is_last(self) -> bool:
        return self.fetched.next_iterator is None

    def chunks(self, size: int) -> Iterator[tuple[Record, ...]]:
        while chunk := tuple(islice(self.users, size)):
            yield chunk


class ShardReader:
    """One reading of one shard, used by one thread; by the shared one (`goes_on`) while it is left to that.

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
        self._pace = ReadPace()
        self._answered_at = 0.0
        self._ahead = PageAhead(shard_id, self._ask, context.gate, context.runtime)
        self._shared = context.shared_reads
        self._turn: Turn | None = None
        self._is_slow = False
        self._is_caught_up = False
        self._reserved = 0
        self._is_near = False
        self.children: tuple[Shard, ...] = ()

    def read(self, give_up: Callable[[], bool]) -> Page | None:
        """The next page, or None when it could not be had now (no buffer space, iterator renewed): call again.

        give_up: polled while waiting for buffer space; True ends the wait. Also called by another thread, before that
        asks for a page ahead.
        Raises TemporaryError, Throttled, ShardGone, SetupError. The page must be passed to `finish`.
        """
        if self._turn is None and self._iterator is None:
            self._open()
        try:
            answer = self._next_answer(give_up)
        except IteratorExpired:
            self._context.meter.measure(self._shard_id, (names.EXPIRED_ITERATOR, 1.0))
            self.reopen()
            self._refusals += 1
            if self._refusals > 1:
                # A fresh iterator refused as well is no matter of age: slow down like for any other failure.
                raise TemporaryError(
                    f"Kinesis refused {self._refusals} iterators of {self._shard_id} in a row, fresh ones too."
                ) from None
            return None
        if answer is None:
            return None
        fetched, self._answered_at = answer
        self._refusals = 0
        self._notice_trimming(fetched)
        self._pace = self._pace_after(fetched)
        self._send_ahead(fetched, give_up)
        users = deaggregate_batch(
            fetched.records, self._hash_range, after=self._after, on_refused=self._aggregate_refused
        )
        return Page(fetched, self._answered_at, users)

    def _pace_after(self, fetched: Fetched) -> ReadPace:
        return after_page(
            self._pace,
            self._answered_at,
            records=len(fetched.records),
            size=_size(fetched),
            millis_behind=fetched.millis_behind_latest,
            idle_time=self._context.config.idle_time,
        )

    def _next_answer(self, give_up: Callable[[], bool]) -> Answer | None:
        """The page, with its bytes reserved and no more than those. None: no buffer space, or it is too soon."""
        turn, self._turn = self._turn, None
        if turn is not None:
            # First of all: up to here another thread may go on with the iterator.
            found = self._shared.take(turn)
            if isinstance(found, tuple):
                return self._kept(found)
            if found is not None:
                return self._reserved_for(partial(self._waited_for, turn, found), give_up, found.drop)
            if self.too_soon:
                # 1) The shared thread is late, and this one wants the read back; 2) meanwhile it has read.
                return None
        iterator = self._iterator or ""
        answer = self._ahead.take(iterator)
        if answer is not None:
            return self._kept(answer)
        return self._reserved_for(partial(self._ask, iterator), give_up)

    def _waited_for(self, turn: Turn, asked: Asked) -> Answer:
        return page_of(turn, asked, self._context.meter), self._context.runtime.monotonic()

    def _reserved_for(
        self,
        ask: Callable[[], Answer],
        give_up: Callable[[], bool],
        instead: Callable[[], None] = lambda: None,
    ) -> Answer | None:
        """What `ask` gives, once there is buffer space. None: there is none, and `instead` was called."""
        if not self._context.gate.reserve(LARGEST_FETCH_BYTES, give_up=give_up, timeout=1.0):
            instead()
            return None
        self._reserved = LARGEST_FETCH_BYTES
        try:
            answer = ask()
        except BaseException:
            self.drop()
            raise
        size = bytes_kept(answer)
        self._context.gate.release(self._reserved - size)
        self._reserved = size
        return answer

    def _kept(self, answer: Answer) -> Answer:
        self._reserved = bytes_kept(answer)
        return answer

    def _ask(self, iterator: str) -> Answer:
        """Also called by the thread that asks for a page ahead."""
        context = self._context
        with context.meter.timed(names.GET_RECORDS, self._shard_id):
            fetched = context.stream.fetch(self._shard_id, iterator, context.config.max_records)
        return fetched, context.runtime.monotonic()

    def _send_ahead(self, fetched: Fetched, give_up: Callable[[], bool]) -> None:
        """Have the next page asked for while this one is delivered, if that is of use.

        Not where the processor is quicker than the shard, which is then waited for anyway; not where the shard is
        caught up: whatever comes while the processor works would miss that page; and not where `finish` will not go on
        with this iterator.
        """
        behind = fetched.millis_behind_latest or 0
        if (
            self._is_slow
            and fetched.next_iterator is not None
            and behind
            and not self._is_near_trimming(behind)
        ):
            left = self._answered_at + self._pace.pause - self._context.runtime.monotonic()
            self._ahead.begin(fetched.next_iterator, max(0.0, left), lambda: not give_up())

    def finish(self, page: Page) -> float:
        """The page was delivered: go on behind it. Returns the seconds to wait before the next read.

        What delivering took is part of the pause: a processor that works for longer waits for the request only.
        """
        fetched = page.fetched
        if fetched.records:
            last = fetched.records[-1].sequence_number
            self._open_at = ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=last)
            self._after = Checkpoint(last, _WHOLE_RECORD)
        self._iterator = fetched.next_iterator
        if self._is_overtaken_soon(fetched.millis_behind_latest or 0):
            # An iterator would step over trimmed records in silence; opened anew at the last delivered record, the page
            # tells whether that one is still there.
            self._iterator = None
        self.children = fetched.children
        self.drop()
        left = self._answered_at + self._pace.pause - self._context.runtime.monotonic()
        self._is_slow = left <= 0
        self._is_caught_up = fetched.millis_behind_latest == 0
        return max(0.0, left)

    def leave(
        self,
        may_ask: Callable[[], bool],
        nothing_new: Callable[[Answer], tuple[str, Window] | None],
        wake: Flag,
    ) -> Callable[[], float] | None:
        """Have the next page read by the thread that all shards share; see `Turn`.

        What tells how long to sleep, before `read` is called; None where that thread is of no use.
        """
        shared, iterator = self._shared, self._iterator
        # Who is behind finds warm caches by itself, and needs no one to be woken by.
        if iterator is None or not self._is_caught_up or not shared.is_of_use:
            return None
        turn = self._turn = Turn(self._shard_id, iterator, window_of(self._pace), may_ask, nothing_new, wake)
        shared.leave(turn)
        return partial(shared.left, turn)

    def goes_on(self, answer: Answer) -> tuple[str, Window] | None:
        """Take in a page that brings nothing: the iterator of the next one, and its time. None: `read` has to.

        Called by the shared thread, while this reading is left to it.
        """
        fetched, answered_at = answer
        brings_nothing = not fetched.records and fetched.millis_behind_latest == 0
        if not brings_nothing or self._expects_checkpointed_record or self._is_near:
            return None
        if fetched.next_iterator is None:
            return None
        self._answered_at = answered_at
        self._pace = self._pace_after(fetched)
        self._iterator = fetched.next_iterator
        return fetched.next_iterator, window_of(self._pace)

    @property
    def too_soon(self) -> float:
        """Seconds for which the shard is to be left alone in any case."""
        return max(0.0, self._answered_at + self._pace.least - self._context.runtime.monotonic())

    def throttled(self) -> float:
        """The shard refused a read for its rate: others read it, too. Returns the seconds to wait before the next."""
        self._pace = after_throttling(self._pace, self._context.runtime.monotonic())
        return throttled_pause(self._pace, self._context.runtime.random())

    def _is_overtaken_soon(self, millis_behind: int) -> bool:
        """Whether retention is about to overtake this reading; told when that begins."""
        retention = self._context.identity.retention_millis
        was_near, self._is_near = self._is_near, self._is_near_trimming(millis_behind)
        if self._is_near and not was_near:
            self._context.events.emit(
                RetentionNear(
                    shard=self._shard_id,
                    behind=millis_behind / 1000,
                    retention=retention / 1000,
                    dropped_in=max(0, retention - millis_behind) / 1000,
                )
            )
        return self._is_near

    def _is_near_trimming(self, millis_behind: int) -> bool:
        return millis_behind > self._context.identity.retention_millis * _DANGEROUS_LAG

    def drop(self) -> None:
        """Give the buffer space back; the page, if any, must not be used any more."""
        self._context.gate.release(self._reserved)
        self._reserved = 0

    def stop_others(self) -> None:
        """No other thread reads for this one any more; a page that is under way is thrown away when it comes."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._shared.drop(turn)
        self._ahead.drop()

    def close(self) -> None:
        """The end of this reading: everything is given back, and nothing is under way any more."""
        self.drop()
        self.stop_others()
        self._ahead.close()

    def reopen(self) -> None:
        """Forget the iterator: the next read opens the shard again behind what was delivered."""
        self._iterator = None
        self.drop()

    def _open(self) -> None:
        # An iterator that was refused, or a row from before: the stream may be another one by now.
        self._context.identity.confirm_before_opening()
        # Looked at before opening: it must not lie behind what the iterator starts with.
        server_time = self._context.stream.server_time_millis()
        with self._context.meter.timed(names.GET_SHARD_ITERATOR, self._shard_id):
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


def _size(fetched: Fetched) -> int:
    """Bytes that count against the shard's rate. The body has more, and is enough to know of most pages."""
    if fetched.body_bytes <= SMALL_PAGE:
        return fetched.body_bytes
    return data_bytes(fetched.records) + sum([len(record.partition_key) for record in fetched.records])
