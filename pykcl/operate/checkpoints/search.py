"""Finds places in one shard with few reads.

Kinesis finds the first record at or after a time, never the last one before it. So the search goes back from the time
in doubling steps until a record lies before it, halves what is left to two seconds, and reads those. Arrival times
hardly ever fall along a shard, and the two seconds make room for when they do.

One answer covers a bounded span of stream time, so a stretch without records takes many reads. It is read where
nothing is known of it yet, and only up to the time in question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf
from typing import TypeVar

from pykcl.errors import IteratorExpired, PositionRefused, PyKclError, SetupError, ShardGone, TemporaryError
from pykcl.interfaces import Fetched, Stream
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint, ReadFrom
from pykcl.model.kpl import deaggregate
from pykcl.model.record import Record
from pykcl.operate.checkpoints.places import Look, Place
from pykcl.planning.read_schedule import SHARD_READ_INTERVAL, backoff
from pykcl.runtime import Runtime

_T = TypeVar("_T")

WINDOW_MILLIS = 2000
"""What is read through at the end of a search: at most 2,000 records and 2 MB, as a shard takes half of it a second."""
MOST_READS = 3000
"""Of one shard: GetRecords calls that bring nothing included; ten minutes at five a second.

AWS takes some 250 calls for a day without records. A search crosses such a stretch once or twice: in front of the
oldest record; between two records, as it goes back and then halves; behind the time, for the next record.
"""
_MARGIN_MILLIS = 10_000
"""How much further than a time a page must have read for everything older to be known. Kinesis' clock is known to the
second, and MillisBehindLatest is no more than an estimate.
"""
_ATTEMPTS = 8
_PROBE_LIMIT = 10
_WALK_LIMIT = 1000
_OLDEST = ReadFrom("TRIM_HORIZON")


class ShardSearch:
    """Reads one shard, at the pace Kinesis allows. Used by one thread.

    on_read: told of every GetRecords call. Every method may raise TemporaryError (after several attempts, or more than
    MOST_READS reads), ShardGone, SetupError.
    """

    def __init__(
        self, stream: Stream, shard_id: str, runtime: Runtime, on_read: Callable[[], None] = lambda: None
    ) -> None:
        self._stream, self._shard_id, self._runtime = stream, shard_id, runtime
        self._on_read = on_read
        self._pause = runtime.event()
        self._reads = 0

    def first(self, start: ReadFrom) -> Record | None:
        """The first Kinesis record from there on; None at the tip or the end of the shard."""
        return next(self.walk(start, _PROBE_LIMIT), None)

    def walk(
        self, start: ReadFrom, limit: int | None = None, *, until_millis: float = inf
    ) -> Iterator[Record]:
        """Kinesis records from there on, until the tip or the end of the shard is reached.

        until_millis: end earlier, once everything that arrived before that time (epoch milliseconds) was read.
        """
        iterator: str | None = self._open(start)
        while iterator is not None:
            try:
                page = self._read(iterator, limit or _WALK_LIMIT)
            except IteratorExpired:
                iterator = self._open(start)
                continue
            for record in page.records:
                start = ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=record.sequence_number)
                yield record
            # At the tip: what is put from now on is nothing that a search was asked for.
            behind = page.millis_behind_latest
            if behind == 0 or (behind is None and not page.records):
                return
            if (
                behind is not None
                and self._stream.server_time_millis() - behind > until_millis + _MARGIN_MILLIS
            ):
                return
            iterator = page.next_iterator

    def oldest(self) -> Look:
        """From the oldest record on."""
        found = self.first(_OLDEST)
        at = None if found is None else _arrival(found)
        return Look(Place(AT_TRIM_HORIZON, at, has_later=found is not None), at)

    def before(self, at_millis: int) -> Look:
        """Behind the last record that arrived before that time, epoch milliseconds; the whole of an aggregated one."""
        oldest = self.first(_OLDEST)
        if oldest is None:
            return Look(Place())
        begins = _arrival(oldest)
        if begins >= at_millis:
            return Look(Place(AT_TRIM_HORIZON, begins, has_later=True), begins)
        last, following = self._last_before(at_millis, begins)
        if last is None:
            raise TemporaryError(f"{self._shard_id} changed while it was looked at. Do: try again.")
        resumes = None if following is None else _arrival(following)
        return Look(Place(whole(last), resumes, has_later=following is not None), begins)

    def behind(self, number: str, sub: int | None) -> Look:
        """Behind that record, or that part of an aggregated one. Raises PyKclError where there is no such record."""
        records = self.walk(ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number), _PROBE_LIMIT)
        try:
            record = next(records, None)
        except PositionRefused:
            # What that says blames the row, which has no part in this.
            raise PyKclError(
                f"{number} is not a position of {self._shard_id}: it is not a sequence number that Kinesis gave to a "
                "record of this shard. Nothing was written. Do: name the sequence number of a record, or use "
                "--to-datetime or --to-earliest."
            ) from None
        if record is None or record.sequence_number != number:
            raise PyKclError(
                f"{self._shard_id} has no record {number} (any more). Nothing was written. Do: name one that it holds, "
                "or use --to-datetime or --to-earliest."
            )
        end = whole(record)
        if sub is not None and sub > end.sub_sequence_number:
            raise PyKclError(
                f"Record {number} of {self._shard_id} ends with sub-sequence number {end.sub_sequence_number}, not "
                f"{sub}. Nothing was written."
            )
        at = end if sub is None else Checkpoint(number, sub)
        following = record if at < end else next(records, None)
        resumes = None if following is None else _arrival(following)
        return Look(Place(at, resumes, has_later=following is not None))

    def arrival_of(self, checkpoint: Checkpoint) -> float | None:
        """When the record of a checkpoint arrived; None for sentinels, and where the record is gone."""
        if checkpoint.is_sentinel:
            return None
        number = checkpoint.sequence_number
        try:
            found = self.first(ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number))
        except PositionRefused:
            return None
        return _arrival(found) if found is not None and found.sequence_number == number else None

    def _last_before(self, at_millis: int, begins: float) -> tuple[Record | None, Record | None]:
        """The last record before that time, and the one behind it."""
        start, high = self._close_before(at_millis, begins)
        records = self.walk(start)
        if high < at_millis - WINDOW_MILLIS:
            # Nothing lies between: it was read through on the way back.
            at_the_time = ReadFrom("AT_TIMESTAMP", at_millis=at_millis - WINDOW_MILLIS)
            records = chain(self.walk(start, until_millis=high), self.walk(at_the_time))
        last = None
        for record in records:
            if last is not None and int(record.sequence_number) <= int(last.sequence_number):
                continue
            if _arrival(record) >= at_millis:
                return last, record
            last = record
        return last, None

    def _close_before(self, at_millis: int, begins: float) -> tuple[ReadFrom, float]:
        """Where a record before that time comes first, not long before the last such one; and a time, at most two
        seconds later than that place, from which on none comes.

        Of `low` it is known that a record before the time lies at or behind it, of `high` that none does.
        """
        low, high, step = begins, float(at_millis), WINDOW_MILLIS
        while at_millis - step > begins:
            found = self._lies_before(at_millis - step, at_millis, high)
            if found is not None:
                low = found
                break
            high = at_millis - step
            step *= 2
        while high - low > WINDOW_MILLIS:
            middle = (low + high) // 2
            found = self._lies_before(middle, at_millis, high)
            if found is None:
                high = middle
            else:
                low = found
        return _OLDEST if low == begins else ReadFrom("AT_TIMESTAMP", at_millis=int(low)), high

    def _lies_before(self, start: float, at_millis: int, high: float) -> float | None:
        """A time, `start` or later, at or behind which a record before `at_millis` lies; None where there is none.

        It is known that none lies at or behind `high`.
        """
        begins = ReadFrom("AT_TIMESTAMP", at_millis=int(start))
        found = next(self.walk(begins, _PROBE_LIMIT, until_millis=high), None)
        if found is None or _arrival(found) >= at_millis:
            return None
        # What lies before the record is not crossed again, but for those two seconds.
        return max(start, _arrival(found) - WINDOW_MILLIS)

    def _open(self, start: ReadFrom) -> str:
        return self._patiently(lambda: self._stream.open(self._shard_id, start))

    def _read(self, iterator: str, limit: int) -> Fetched:
        self._reads += 1
        if self._reads > MOST_READS:
            raise TemporaryError(
                f"{MOST_READS} reads of {self._shard_id} did not find the place: each covers minutes of it, and "
                "a day without records takes some 250. Nothing was written. Do: use --to-sequence, or --to-earliest "
                "for this shard."
            )
        if self._reads > 1:
            self._pause.wait(SHARD_READ_INTERVAL)
        self._on_read()
        return self._patiently(lambda: self._stream.fetch(self._shard_id, iterator, limit))

    def _patiently(self, call: Callable[[], _T]) -> _T:
        for attempt in range(1, _ATTEMPTS):
            try:
                return call()
            except (IteratorExpired, PositionRefused, ShardGone, SetupError):
                raise
            except TemporaryError:
                # Throttled above all: five reads a second are shared by everybody who reads the shard.
                self._pause.wait(backoff(attempt, self._runtime.random(), first=0.5, longest=10.0))
        return call()


def whole(record: Record) -> Checkpoint:
    """The position that says that all of a Kinesis record is done: workers drop what is at or below it."""
    sub = 0
    for user in deaggregate(record, None):
        sub = user.sub_sequence_number
    return Checkpoint(record.sequence_number, sub)


def _arrival(record: Record) -> float:
    if record.arrived_at_millis <= 0:
        raise SetupError(
            f"Kinesis does not say when record {record.sequence_number} of {record.shard_id} arrived, so no time can "
            "be found in this stream. Nothing was written. Do: use --to-sequence or --to-earliest."
        )
    return record.arrived_at_millis
