"""Read one shard by polling: open it at the checkpoint, fetch pages, resume after failures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import IteratorExpired, PositionRefused, TemporaryError
from pykcl.interfaces import Fetched, PendingRead
from pykcl.metrics import catalog
from pykcl.model.record import PlainRecords, data_bytes
from pykcl.model.shard import Shard
from pykcl.planning.read_schedule import (
    SMALL_PAGE,
    PollWindow,
    ReadSchedule,
    after_page,
    after_throttling,
    poll_window,
    throttled_pause,
)
from pykcl.planning.read_schedule import is_near as is_near_trimming
from pykcl.runtime import Event as Flag
from pykcl.worker.context import Context
from pykcl.worker.idle_reads import IdlePoll, page_of
from pykcl.worker.prefetch import Answer, Prefetcher, bytes_kept
from pykcl.worker.reading_place import Page, ReadingPlace


class ShardReader:
    """Reader of one shard. Used by one thread, and by the shared one (`accept_empty_page`) while reads are delegated.

    place: where the reading stands. iterator: an open iterator, at that place or more exact. reserve: called with a
    number of bytes and `give_up`, takes them before a page is fetched; returns False if there are none for now. By
    default it waits.
    """

    def __init__(
        self,
        context: Context,
        shard_id: str,
        place: ReadingPlace,
        iterator: str | None = None,
        reserve: Callable[[int, Callable[[], bool]], bool] | None = None,
    ) -> None:
        self._context = context
        self._shard_id = shard_id
        self._reserve = reserve or context.memory.reserve_page
        self._place = place
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
        self.children: tuple[Shard, ...] = ()

    def read(self, give_up: Callable[[], bool]) -> Page | None:
        """Return the next page. None: there is none now (no buffer space, a renewed iterator, a page before which
        records may be missing); call again.

        give_up: polled while waiting for buffer space; True ends the wait. Also called by another thread, before it
        fetches a page ahead.
        Raises TemporaryError, Throttled, ShardGone, SetupError. The page must be passed to `finish`.
        """
        if self._place.is_doubtful:
            return self._resolve(give_up)
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
        is_sound = self._place.arrived(fetched, self._answered_at)
        self._schedule = self._schedule_after(fetched)
        return self._page(fetched, give_up) if is_sound else None

    def _resolve(self, give_up: Callable[[], bool]) -> Page | None:
        """Check a page before which records may be missing. None: call again."""
        try:
            held = self._place.resolve()
        except IteratorExpired:
            self._iterator_refused()
            return None
        finally:
            self._answered_at = self._context.runtime.monotonic()
        self._refusals = 0
        if held is None:
            return None
        self._schedule = self._schedule_after(held)
        return self._page(held, give_up)

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
        return Page(fetched, self._answered_at, self._place.batches(fetched))

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
            self._place.delivered(fetched.records)
        self._iterator = fetched.next_iterator
        if self._place.is_overtaken_soon(fetched) and self._place.has_moved:
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
        if not brings_nothing or fetched.next_iterator is None:
            return None
        if not self._place.takes_an_empty_page(answered_at):
            return None
        self._answered_at = answered_at
        self._schedule = self._schedule_after(fetched)
        self._iterator = fetched.next_iterator
        return fetched.next_iterator, poll_window(self._schedule)

    def awaited(self) -> Callable[[], float] | None:
        """None: a read that brought no page is to be tried again."""
        return None

    @property
    def too_soon(self) -> float:
        """Seconds for which the shard is to be left alone in any case."""
        return max(0.0, self._answered_at + self._schedule.min_pause - self._context.runtime.monotonic())

    def throttled(self) -> float:
        """The shard refused a read for its rate: others read it, too. Returns the seconds to wait before the next."""
        self._schedule = after_throttling(self._schedule, self._context.runtime.monotonic())
        return throttled_pause(self._schedule, self._context.runtime.random())

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
        self._iterator = None
        # At the last record, which shows whether anything was trimmed.
        self._place.behind = None
        self._place.forget_doubt()
        self.drop()

    def _open(self) -> None:
        # An iterator that was refused, or a row from before: the stream may be another one by now.
        self._context.identity.confirm_before_opening()
        # Read before opening: it must not lie behind what the iterator starts with.
        server_time = self._context.stream.server_time_millis()
        try:
            with self._context.meter.timed(catalog.GET_SHARD_ITERATOR, self._shard_id):
                self._iterator = self._context.stream.open(self._shard_id, self._place.start)
        except PositionRefused:
            if not self._place.is_replaced():
                raise
            self._open()
            return
        # Of a shard that is gone Kinesis gives none. 1) One host gives an iterator, and another one denies the page;
        # 2) that again, seconds later; 3) a listing lacks the shard: it is there all the same.
        self._place.absence.found()
        self._place.opened(server_time)


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
