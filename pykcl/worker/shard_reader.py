"""Read one shard: open it at the checkpoint, fetch pages, resume after failures, detect trimmed records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import IteratorExpired, ShardGone, TemporaryError
from pykcl.events import AggregateOutsideShard, AggregateRefused, DataLost, Event, RetentionAlmostExceeded
from pykcl.interfaces import Fetched, PendingRead
from pykcl.metrics import catalog
from pykcl.model.absence import Absence
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.kpl import OUTSIDE_SHARD, batches_of
from pykcl.model.record import PlainRecords, Record, data_bytes
from pykcl.model.shard import HashRange, Shard
from pykcl.planning.read_schedule import (
    ALWAYS_KEPT_MILLIS,
    SMALL_PAGE,
    PollWindow,
    ReadSchedule,
    after_page,
    after_throttling,
    min_doubtful_gap,
    poll_window,
    throttled_pause,
)
from pykcl.planning.read_schedule import is_near as is_near_trimming
from pykcl.runtime import Event as Flag
from pykcl.worker.context import Context
from pykcl.worker.idle_reads import IdlePoll, page_of
from pykcl.worker.prefetch import Answer, Prefetcher, bytes_kept
from pykcl.worker.stream_identity import denied_once

_MAX_EMPTY_PROBES = 10
"""Consecutive empty pages after which a record that was requested by its number counts as trimmed."""
_WHOLE_RECORD = 2**63 - 1
"""A sub-sequence number above every real one: (sequence, this) means that the whole record was delivered."""


@dataclass(slots=True)
class Page:
    """One fetched page.

    answered_at: time of its arrival, monotonic seconds. batches: its user records, de-aggregated when their batch is
    requested, so that a small page of a million user records stays small.
    """

    fetched: Fetched
    answered_at: float
    batches: Iterator[Sequence[Record]]

    @property
    def is_last(self) -> bool:
        return self.fetched.next_iterator is None


@dataclass(slots=True)
class _DoubtfulPage:
    """A page before which records may be missing.

    after: number of the last delivered record. probe: an iterator that started at it. empty: the probe's empty pages.
    """

    fetched: Fetched
    after: str | None
    probe: str | None = field(default=None, repr=False)
    empty: int = 0


class ShardReader:
    """Reader of one shard. Used by one thread, and by the shared one (`accept_empty_page`) while reads are delegated.

    first: position to open. after: records at or below it are dropped; set when resuming from a checkpoint.
    iterator: an open iterator, at the position of `first` or more exact. reserve: called with a number of bytes and
    `give_up`, takes them before a page is fetched; returns False if there are none for now. By default it waits.
    """

    def __init__(
        self,
        context: Context,
        shard_id: str,
        hash_range: HashRange | None,
        first: ReadFrom,
        after: Checkpoint | None,
        iterator: str | None = None,
        reserve: Callable[[int, Callable[[], bool]], bool] | None = None,
    ) -> None:
        self._context = context
        self._shard_id = shard_id
        self._reserve = reserve or self._wait_for_space
        self._hash_range = hash_range
        self._open_at = first
        self._after = after
        # Only a resumed reading knows which record must come first.
        self._expects_checkpointed_record = after is not None
        self._iterator = iterator
        self._refusals = 0
        self._schedule = ReadSchedule()
        self._answered_at = 0.0
        self._prefetcher = Prefetcher(shard_id, self._ask, context.memory, context.runtime)
        self._poller = context.idle_poller
        self._poll: IdlePoll | None = None
        self._is_slow = False
        self._is_caught_up = False
        self._reserved = 0
        # Trimming: whether the position moved since the shard was opened; when the last record delivered arrived (epoch
        # milliseconds); how far behind the tip the last page was and when it came (monotonic seconds); the gap from
        # which on the next record is doubtful; and a page that waits until it is known that nothing is missing.
        self._has_moved, self._doubtful_gap = False, inf
        self._last_arrival: float | None = None
        self._reached: tuple[int, float] | None = None
        self._doubtful: _DoubtfulPage | None = None
        self._absence = Absence()
        self._is_near = False
        self.children: tuple[Shard, ...] = ()

    def read(self, give_up: Callable[[], bool]) -> Page | None:
        """Return the next page. None: there is none now (no buffer space, a renewed iterator, a page before which
        records may be missing); call again.

        give_up: polled while waiting for buffer space; True ends the wait. Also called by another thread, before it
        fetches a page ahead.
        Raises TemporaryError, Throttled, ShardGone, SetupError. The page must be passed to `finish`.
        """
        if self._doubtful is not None:
            return self._resolve(self._doubtful, give_up)
        if self._poll is None and self._iterator is None:
            self._open()
        try:
            answer = self._next_answer(give_up)
        except IteratorExpired:
            self.reopen()
            self._iterator_refused()
            return None
        if answer is None:
            return None
        fetched, self._answered_at = answer
        self._refusals = 0
        is_doubtful = self._is_doubtful(fetched)
        self._notice_trimming(fetched)
        self._schedule = self._schedule_after(fetched)
        if fetched.millis_behind_latest is not None:
            self._reached = fetched.millis_behind_latest, self._answered_at
        if is_doubtful:
            self._doubtful = _DoubtfulPage(fetched, self._open_at.sequence_number)
            return None
        return self._page(fetched, give_up)

    def _iterator_refused(self) -> None:
        self._context.meter.measure(self._shard_id, (catalog.EXPIRED_ITERATOR, 1.0))
        self._refusals += 1
        if self._refusals > 1:
            # A new iterator that is refused as well has not expired: slow down as for any other failure.
            raise TemporaryError(
                f"Kinesis refused {self._refusals} iterators of {self._shard_id} in a row, fresh ones too."
            ) from None

    def _page(self, fetched: Fetched, give_up: Callable[[], bool]) -> Page:
        self._send_ahead(fetched, give_up)
        batches = batches_of(
            fetched.records,
            self._context.config.batch_size or self._context.config.max_records,
            self._hash_range,
            after=self._after,
            on_refused=self._aggregate_refused,
            whole=not self._context.config.deaggregate,
        )
        return Page(fetched, self._answered_at, batches)

    def _schedule_after(self, fetched: Fetched) -> ReadSchedule:
        return after_page(
            self._schedule,
            self._answered_at,
            records=len(fetched.records),
            size=_size(fetched),
            millis_behind=fetched.millis_behind_latest,
            idle_time_between_reads=self._context.config.idle_time_between_reads,
        )

    def _next_answer(self, give_up: Callable[[], bool]) -> Answer | None:
        """Return the page, with exactly its bytes reserved. None: no buffer space, or it is too soon."""
        poll, self._poll = self._poll, None
        if poll is not None:
            # First of all: until now another thread may use the iterator.
            found = self._poller.reclaim(poll)
            if isinstance(found, tuple):
                return self._kept(found)
            if found is not None:
                return self._reserved_for(partial(self._waited_for, poll, found), give_up, found.drop)
            if self.too_soon:
                # 1) The shared thread is late, and this one reclaims the read; 2) meanwhile the shared one has read.
                return None
        iterator = self._iterator or ""
        answer = self._prefetcher.take(iterator)
        if answer is not None:
            return self._kept(answer)
        return self._reserved_for(partial(self._ask, iterator), give_up)

    def _waited_for(self, poll: IdlePoll, asked: PendingRead) -> Answer:
        return page_of(poll, asked, self._context.meter), self._context.runtime.monotonic()

    def _reserved_for(
        self,
        ask: Callable[[], Answer],
        give_up: Callable[[], bool],
        instead: Callable[[], None] = lambda: None,
    ) -> Answer | None:
        """Return the page from `ask` when there is buffer space. None: there is none, and `instead` was called."""
        if not self._reserve(LARGEST_FETCH_BYTES, give_up):
            instead()
            return None
        self._reserved = LARGEST_FETCH_BYTES
        try:
            answer = ask()
        except BaseException:
            self.drop()
            raise
        size = bytes_kept(answer)
        self._context.memory.release(self._reserved - size)
        self._reserved = size
        return answer

    def _wait_for_space(self, size: int, give_up: Callable[[], bool]) -> bool:
        return self._context.memory.reserve(size, give_up=give_up, timeout=1.0)

    def _kept(self, answer: Answer) -> Answer:
        self._reserved = bytes_kept(answer)
        return answer

    def _ask(self, iterator: str) -> Answer:
        """Fetch a page. Also called by the thread that fetches ahead."""
        context = self._context
        with context.meter.timed(catalog.GET_RECORDS, self._shard_id):
            fetched = context.stream.fetch(self._shard_id, iterator, context.config.max_records)
        return fetched, context.runtime.monotonic()

    def _send_ahead(self, fetched: Fetched, give_up: Callable[[], bool]) -> None:
        """Fetch the next page while this one is delivered, if that is of use.

        Not if the processor is faster than the shard, which is waited for anyway; not if the shard is caught up,
        because records that arrive while the processor works would miss that page; and not if `finish` will not
        continue with this iterator.
        """
        behind = fetched.millis_behind_latest or 0
        if (
            self._is_slow
            and fetched.next_iterator is not None
            and behind
            and not is_near_trimming(behind, self._context.identity.retention_millis)
        ):
            left = self._answered_at + self._schedule.pause - self._context.runtime.monotonic()
            self._prefetcher.start(fetched.next_iterator, max(0.0, left), lambda: not give_up())

    def finish(self, page: Page, keep: Callable[[int], int] = lambda reserved: 0) -> float:
        """Continue after a delivered page. Returns the seconds to wait before the next read.

        keep: called with the reserved bytes; returns how many of them stay reserved, for its caller to release.
        The time of the delivery is part of that pause: a processor that works longer waits for the request only.
        """
        fetched = page.fetched
        if fetched.records:
            last = fetched.records[-1]
            number = last.sequence_number
            self._has_moved |= self._after is None or number != self._after.sequence_number
            self._open_at = ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number)
            self._after = Checkpoint(number, _WHOLE_RECORD)
            self._last_arrival, self._doubtful_gap = last.arrived_at_millis, inf
        self._iterator = fetched.next_iterator
        if self._is_overtaken_soon(page) and self._has_moved:
            # An iterator steps over trimmed records silently; opened again at the last delivered record, the page shows
            # whether that one still exists. Not before the position has moved: an idle shard is crossed in many empty
            # pages, and opened at the same position again it would never be crossed.
            self._iterator = None
        self.children = fetched.children
        self._reserved -= keep(self._reserved)
        self.drop()
        left = self._answered_at + self._schedule.pause - self._context.runtime.monotonic()
        self._is_slow = left <= 0
        self._is_caught_up = fetched.millis_behind_latest == 0
        return max(0.0, left)

    def delegate(
        self,
        may_ask: Callable[[], bool],
        on_empty_page: Callable[[Answer], tuple[str, PollWindow] | None],
        wake: Flag,
    ) -> Callable[[], float] | None:
        """Delegate the next read to the thread that all shards share; see `IdlePoll`.

        Return a function that returns the seconds to sleep before `read` is called; None if that thread is of no use.
        """
        poller, iterator = self._poller, self._iterator
        # A shard that is behind is read without pauses, and gains nothing from the shared thread.
        if iterator is None or not self._is_caught_up or not poller.is_of_use:
            return None
        poll = self._poll = IdlePoll(
            self._shard_id, iterator, poll_window(self._schedule), may_ask, on_empty_page, wake
        )
        poller.delegate(poll)
        return partial(poller.time_left, poll)

    def accept_empty_page(self, answer: Answer) -> tuple[str, PollWindow] | None:
        """Accept an empty page; return the iterator and the time of the next one. None: `read` has to handle it.

        Called by the shared thread while the reads are delegated to it.
        """
        fetched, answered_at = answer
        brings_nothing = not fetched.records and fetched.millis_behind_latest == 0
        if not brings_nothing or self._expects_checkpointed_record or self._is_near:
            return None
        if fetched.next_iterator is None:
            return None
        self._answered_at = answered_at
        self._reached = 0, answered_at
        self._schedule = self._schedule_after(fetched)
        self._iterator = fetched.next_iterator
        return fetched.next_iterator, poll_window(self._schedule)

    @property
    def too_soon(self) -> float:
        """Seconds for which the shard is to be left alone in any case."""
        return max(0.0, self._answered_at + self._schedule.min_pause - self._context.runtime.monotonic())

    def throttled(self) -> float:
        """The shard refused a read for its rate: others read it, too. Returns the seconds to wait before the next."""
        self._schedule = after_throttling(self._schedule, self._context.runtime.monotonic())
        return throttled_pause(self._schedule, self._context.runtime.random())

    def _is_overtaken_soon(self, page: Page) -> bool:
        """True if retention is about to overtake this reading. Reported once, when a new record was read."""
        behind = page.fetched.millis_behind_latest or 0
        retention = self._context.identity.retention_millis
        was_near, is_near = self._is_near, not page.is_last and is_near_trimming(behind, retention)
        self._is_near = is_near and (was_near or self._has_moved)
        if self._is_near and not was_near:
            self._context.events.emit(
                RetentionAlmostExceeded(
                    shard=self._shard_id,
                    behind=behind / 1000,
                    retention=retention / 1000,
                    dropped_in=max(0, retention - behind) / 1000,
                )
            )
        return is_near

    def drop(self) -> None:
        """Give the buffer space back; the page, if any, must not be used any more."""
        self._context.memory.release(self._reserved)
        self._reserved = 0

    def stop_others(self) -> None:
        """No other thread reads for this one any more; a page that is under way is thrown away when it comes."""
        poll, self._poll = self._poll, None
        if poll is not None:
            self._poller.drop(poll)
        self._prefetcher.drop()

    def close(self) -> None:
        """The end of this reading: everything is given back, and nothing is under way any more."""
        self.drop()
        self.stop_others()
        self._prefetcher.close()

    def reopen(self) -> None:
        """Forget the iterator: the next read opens the shard again after what was delivered."""
        self._iterator = self._doubtful = None
        self.drop()

    def _open(self) -> None:
        # An iterator that was refused, or a row from before: the stream may be another one by now.
        self._context.identity.confirm_before_opening()
        # Read before opening: it must not lie behind what the iterator starts with.
        server_time = self._context.stream.server_time_millis()
        with self._context.meter.timed(catalog.GET_SHARD_ITERATOR, self._shard_id):
            self._iterator = self._context.stream.open(self._shard_id, self._open_at)
        if self._open_at.kind == "LATEST":
            # A second LATEST would be a later one: what is put between the two must not be lost.
            self._open_at = ReadFrom("AT_TIMESTAMP", at_millis=server_time)
        # After trouble the same expectation holds again: the last delivered record comes first.
        self._expects_checkpointed_record = self._after is not None
        self._has_moved, self._doubtful_gap = False, inf

    def _notice_trimming(self, fetched: Fetched) -> None:
        """Report trimmed records: AT_SEQUENCE_NUMBER starts with that very record, unless it was trimmed."""
        if not self._expects_checkpointed_record or self._after is None:
            return
        first = fetched.records[0].sequence_number if fetched.records else None
        if first is None and fetched.next_iterator is not None:
            return
        self._expects_checkpointed_record = False
        if first != self._after.sequence_number:
            self._report_loss(first)

    def _report_loss(self, first: str | None) -> None:
        """Report lost records. first: the sequence number at which reading continues; None if nothing is left."""
        resumed_at = f"{first}:0" if first else None
        event = DataLost(shard=self._shard_id, checkpoint=str(self._after), resumed_at=resumed_at)
        self._context.events.emit(event)

    def _is_doubtful(self, fetched: Fetched) -> bool:
        """Return True if records may have been trimmed between the last delivered one and this page.

        An empty page may stand between them. A valid iterator steps over trimmed records silently.
        """
        reached, last = self._reached, self._last_arrival
        if reached is None or last is None or self._expects_checkpointed_record:
            return False
        behind = reached[0] + (self._answered_at - reached[1]) * 1000
        if behind < ALWAYS_KEPT_MILLIS and self._doubtful_gap == inf:
            return False  # as almost every page
        gap = min_doubtful_gap(
            behind,
            self._context.identity.retention_millis,
            self._context.stream.server_time_millis() - last,
        )
        self._doubtful_gap = min(self._doubtful_gap, gap)
        if fetched.records:
            return fetched.records[0].arrived_at_millis - last > self._doubtful_gap
        if fetched.next_iterator is None:
            return self._doubtful_gap < inf
        # Near the horizon it is checked at once: 1) a shard is idle, and its last record almost as old as the
        # retention period; 2) checked only when the next one arrives, hours later, it would be trimmed by its age.
        return self._doubtful_gap == 0.0

    def _resolve(self, doubtful: _DoubtfulPage, give_up: Callable[[], bool]) -> Page | None:
        """Check with one request whether the last delivered record still exists; the page waits meanwhile.

        If it does, nothing after it was trimmed before this page was fetched; if not, records may be missing. The
        request is not counted against the buffer: its one record is discarded at once.
        """
        stream, held = self._context.stream, doubtful.fetched
        try:
            if doubtful.probe is None:
                doubtful.probe = stream.open(self._shard_id, self._open_at)
            with self._context.meter.timed(catalog.GET_RECORDS, self._shard_id):
                probed = stream.fetch(self._shard_id, doubtful.probe, 1)
        except IteratorExpired:
            doubtful.probe = None
            self._iterator_refused()
            return None
        except ShardGone:
            if not self._absence.is_proven(self._context.runtime.monotonic()):
                raise denied_once(self._shard_id) from None
            # And the record with it. The fetched page is delivered all the same.
            found = None
        else:
            self._absence.found()
            self._refusals = 0
            doubtful.probe, doubtful.empty = probed.next_iterator, doubtful.empty + 1
            found = probed.records[0].sequence_number if probed.records else None
            if found is None and doubtful.probe is not None and doubtful.empty < _MAX_EMPTY_PROBES:
                return None
        finally:
            self._answered_at = self._context.runtime.monotonic()
        self._doubtful, self._doubtful_gap = None, inf
        self._schedule = self._schedule_after(held)
        if found != doubtful.after:
            # As after an opening: reported with the record that comes first, or at the end.
            self._expects_checkpointed_record = True
            self._notice_trimming(held)
        return self._page(held, give_up)

    def _aggregate_refused(self, record: Record, problem: str) -> None:
        number, size = record.sequence_number, len(record.data)
        event: Event
        if problem == OUTSIDE_SHARD:
            event = AggregateOutsideShard(shard=self._shard_id, sequence_number=number, size=size)
        else:
            event = AggregateRefused(shard=self._shard_id, sequence_number=number, problem=problem, size=size)
        self._context.events.emit(event)


def _size(fetched: Fetched) -> int:
    """Return the bytes that count against the shard's rate. The body is larger, and precise enough for small pages."""
    if fetched.body_bytes <= SMALL_PAGE:
        return fetched.body_bytes
    records = fetched.records
    keys = (
        records.partition_keys
        if isinstance(records, PlainRecords)
        else [record.partition_key for record in records]
    )
    return data_bytes(records) + sum(map(len, keys))
