"""The place up to which one shard was read, and what lies between it and the next page: trimmed records, aggregates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from pykcl.errors import IteratorExpired, ShardGone
from pykcl.events import AggregateOutsideShard, AggregateRefused, DataLost, Event, RetentionAlmostExceeded
from pykcl.interfaces import Fetched
from pykcl.metrics import catalog
from pykcl.model.absence import Absence
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.kpl import OUTSIDE_SHARD, batches_of
from pykcl.model.record import Record
from pykcl.model.shard import HashRange
from pykcl.planning.read_schedule import ALWAYS_KEPT_MILLIS, min_doubtful_gap
from pykcl.planning.read_schedule import is_near as is_near_trimming
from pykcl.planning.run_end import records_before
from pykcl.worker.batch_window import most_in_batch
from pykcl.worker.context import Context
from pykcl.worker.stream_identity import denied_once

_MAX_EMPTY_PROBES = 10
"""Consecutive empty pages after which a record that was requested by its number counts as trimmed."""
_WHOLE_RECORD = 2**63 - 1
"""A sub-sequence number above every real one: (sequence, this) means that the whole record was delivered."""


@dataclass(slots=True)
class Page:
    """One fetched page, or one pushed event.

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


class ReadingPlace:
    """Place of the reading of one shard, however its pages come. Used by the thread that reads.

    open_at: the last delivered record, at first where the reading begins. behind: the place behind the last pushed
    event that was delivered; None before the first one, and once a polled record was delivered. after: records at or
    below it are dropped; None where the reading begins without a checkpoint. has_moved: a record was delivered since
    the shard was opened.
    """

    def __init__(
        self,
        context: Context,
        shard_id: str,
        hash_range: HashRange | None,
        first: ReadFrom,
        after: Checkpoint | None,
    ) -> None:
        self._context = context
        self._shard_id = shard_id
        self._hash_range = hash_range
        self.open_at = self._first = first
        self.behind: ReadFrom | None = None
        self.after = self._first_after = after
        self.has_moved = False
        # Only a resumed reading knows which record must come first.
        self._expects_checkpointed_record = after is not None
        # When the last record delivered arrived (epoch milliseconds); how far behind the tip the last page was and when
        # it came (seconds); the gap from which on the next record is doubtful; and a page that waits until it
        # is known that nothing is missing.
        self._doubtful_gap = inf
        self._last_arrival: float | None = None
        self._reached: tuple[int, float] | None = None
        self._doubtful: _DoubtfulPage | None = None
        self.absence = Absence()
        """Evidence that the shard is gone: denials without a page of it, or an iterator, in between."""
        self._is_near = False
        self._until = context.config.until_millis

    @property
    def start(self) -> ReadFrom:
        """Position to open the shard at."""
        return self.behind or self.open_at

    def opened(self, server_time: int) -> None:
        """Note that the shard was opened at `start`. server_time: of Kinesis, taken before that."""
        if self.behind is not None:
            return
        if self.open_at.kind == "LATEST":
            # A second LATEST would be a later one: what is put between the two must not be lost.
            self.open_at = self._first = ReadFrom("AT_TIMESTAMP", at_millis=server_time)
        # After trouble the same expectation holds again: the last delivered record comes first.
        self._expects_checkpointed_record = self.after is not None
        self.has_moved, self._doubtful_gap = False, inf

    def is_replaced(self) -> bool:
        """Note that Kinesis refuses `start` as no position. True: it is another one from now on."""
        # The place behind an event is no record's number. That of the last delivered record is one.
        is_replaced, self.behind = self.behind is not None, None
        return is_replaced

    def arrived(self, fetched: Fetched, answered_at: float) -> bool:
        """Note a page that came; return False if it has to wait until `resolve` returns it.

        Reports records that were trimmed before it. answered_at: when it came, in seconds of a clock that is always the
        same.
        """
        is_doubtful = self._is_doubtful(fetched, answered_at)
        self._notice_trimming(fetched)
        if fetched.millis_behind_latest is not None:
            self._reached = fetched.millis_behind_latest, answered_at
        if is_doubtful:
            self._doubtful = _DoubtfulPage(fetched, self.open_at.sequence_number)
        return not is_doubtful

    def change_clock(self, by: float) -> None:
        """Note that pages are timed by another clock from now on, which is ahead by so many seconds."""
        if self._reached is not None:
            self._reached = self._reached[0], self._reached[1] + by

    @property
    def is_doubtful(self) -> bool:
        """True while a page waits for `resolve`."""
        return self._doubtful is not None

    def delivered(self, records: Sequence[Record]) -> None:
        """Move behind records that were delivered, at least one."""
        last = records[-1]
        number = last.sequence_number
        self.has_moved |= self.after is None or number != self.after.sequence_number
        self.open_at, self.behind = ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number), None
        self.after = Checkpoint(number, _WHOLE_RECORD)
        self._last_arrival, self._doubtful_gap = last.arrived_at_millis, inf

    def back_to(self, last: Checkpoint | None) -> None:
        """Return to the place behind a record that was delivered before; None: to where the reading began.

        The next page has to come from there.
        """
        self.open_at, self.after = self._first, self._first_after
        if last is not None:
            self.open_at = ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=last.sequence_number)
            self.after = last
        self.behind = self._last_arrival = self._doubtful = None
        self._doubtful_gap = inf

    def passed(self, continuation: str) -> None:
        """Move behind a pushed event that was delivered.

        Not before the record of the checkpoint has come, of which a part may be left: Kinesis does not say that an
        event without records never ends at it.
        """
        if not self._expects_checkpointed_record:
            self.behind = ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=continuation)

    def takes_an_empty_page(self, answered_at: float) -> bool:
        """Note an empty page at the tip of the shard. False, and nothing is noted: it shows more than that."""
        if self._expects_checkpointed_record or self._is_near:
            return False
        self._reached = 0, answered_at
        return True

    def batches(self, fetched: Fetched) -> Iterator[Sequence[Record]]:
        """The user records of a page that the run is to deliver, in batches."""
        config = self._context.config
        return batches_of(
            fetched.records if self._until is None else records_before(fetched.records, self._until),
            most_in_batch(config),
            self._hash_range,
            after=self.after,
            on_refused=self._aggregate_refused,
            whole=not config.deaggregate,
        )

    # -- trimmed records -----------------------------------------------------------------------------------------

    def is_overtaken_soon(self, fetched: Fetched) -> bool:
        """True if retention is about to overtake this reading. Reported once, when a new record was read."""
        behind = fetched.millis_behind_latest or 0
        retention = self._context.identity.retention_millis
        is_last = fetched.next_iterator is None
        was_near, is_near = self._is_near, not is_last and is_near_trimming(behind, retention)
        self._is_near = is_near and (was_near or self.has_moved)
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

    def _notice_trimming(self, fetched: Fetched) -> None:
        """Report trimmed records: AT_SEQUENCE_NUMBER starts with that very record, unless it was trimmed."""
        if not self._expects_checkpointed_record or self.after is None:
            return
        first = fetched.records[0].sequence_number if fetched.records else None
        if first is None and fetched.next_iterator is not None:
            return
        self._expects_checkpointed_record = False
        if first != self.after.sequence_number:
            self._report_loss(first)

    def left(self) -> None:
        """Note that the shard is read no further. The record of the checkpoint, unless it came, was trimmed."""
        if self._expects_checkpointed_record:
            self._expects_checkpointed_record = False
            self._report_loss(None)

    def _report_loss(self, first: str | None) -> None:
        """Report lost records. first: the sequence number at which reading continues; None if nothing is left."""
        resumed_at = f"{first}:0" if first else None
        event = DataLost(shard=self._shard_id, checkpoint=str(self.after), resumed_at=resumed_at)
        self._context.events.emit(event)

    def _is_doubtful(self, fetched: Fetched, answered_at: float) -> bool:
        """Return True if records may have been trimmed between the last delivered one and this page.

        An empty page may stand between them. A valid iterator, and a subscription, step over trimmed records silently.
        """
        reached, last = self._reached, self._last_arrival
        if reached is None or last is None or self._expects_checkpointed_record:
            return False
        behind = reached[0] + (answered_at - reached[1]) * 1000
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

    def resolve(self) -> Fetched | None:
        """Check with one request whether the last delivered record still exists; the page waits meanwhile.

        If it does, nothing after it was trimmed before this page was fetched; if not, records may be missing. The
        request is not counted against the buffer: its one record is discarded at once. Returns the page; None: it is
        not known yet, call again. Raises IteratorExpired, where the check begins anew, and as `Stream.fetch`.
        """
        doubtful, stream = self._doubtful, self._context.stream
        if doubtful is None:
            return None
        try:
            if doubtful.probe is None:
                doubtful.probe = stream.open(self._shard_id, self.open_at)
                self.absence.found()
            with self._context.meter.timed(catalog.GET_RECORDS, self._shard_id):
                probed = stream.fetch(self._shard_id, doubtful.probe, 1)
        except IteratorExpired:
            doubtful.probe = None
            raise
        except ShardGone:
            if not self.absence.is_proven(self._context.runtime.monotonic()):
                raise denied_once(self._shard_id) from None
            # And the record with it. The fetched page is delivered all the same.
            found = None
        else:
            self.absence.found()
            doubtful.probe, doubtful.empty = probed.next_iterator, doubtful.empty + 1
            found = probed.records[0].sequence_number if probed.records else None
            if found is None and doubtful.probe is not None and doubtful.empty < _MAX_EMPTY_PROBES:
                return None
        self._doubtful, self._doubtful_gap = None, inf
        if found != doubtful.after:
            # As after an opening: reported with the record that comes first, or at the end.
            self._expects_checkpointed_record = True
            self._notice_trimming(doubtful.fetched)
        return doubtful.fetched

    def forget_doubt(self) -> None:
        """Drop the page that waits for `resolve`: it will come again."""
        self._doubtful = None

    def _aggregate_refused(self, record: Record, problem: str) -> None:
        number, size = record.sequence_number, len(record.data)
        event: Event
        if problem == OUTSIDE_SHARD:
            event = AggregateOutsideShard(shard=self._shard_id, sequence_number=number, size=size)
        else:
            event = AggregateRefused(shard=self._shard_id, sequence_number=number, problem=problem, size=size)
        self._context.events.emit(event)
