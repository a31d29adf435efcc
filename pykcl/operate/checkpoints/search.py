"""Search for positions in one shard with few reads.

Kinesis finds the first record at or after a time, never the last one before it. So the search goes back from the time
in doubling steps until it finds a record before it, bisects the interval to two seconds, and reads those. Arrival times
hardly ever decrease along a shard; the two seconds leave room for that.

One answer covers a bounded span of stream time, so a stretch without records takes many reads. The search reads each
stretch once, and only up to the time in question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from math import inf
from typing import TypeVar

from pykcl.errors import (
    IteratorExpired,
    PositionRefused,
    PyKclError,
    Refused,
    SetupError,
    ShardGone,
    TemporaryError,
)
from pykcl.interfaces import Fetched, Stream
from pykcl.model.checkpoint import AT_TIMESTAMP, AT_TRIM_HORIZON, LATEST, Checkpoint, ReadFrom, StartPosition
from pykcl.model.kpl import deaggregate, deaggregate_batch
from pykcl.model.lease import Lease, first_read
from pykcl.model.record import Record
from pykcl.model.shard import HashRange
from pykcl.operate.checkpoints.plan import ResumePoint, SearchResult
from pykcl.planning.read_schedule import SHARD_READ_INTERVAL, backoff
from pykcl.runtime import Runtime

_T = TypeVar("_T")

WINDOW_MILLIS = 2000
"""Span read at the end of a search: at most 2,000 records and 2 MB, as a shard accepts half of it a second."""
MAX_READS = 3000
"""GetRecords calls of one shard, empty answers included; ten minutes at five a second.

AWS takes some 250 calls for a day without records. A search crosses such a stretch once or twice: before the oldest
record; between two records, as it goes back and then bisects; after the time, to the next record.
"""
_MARGIN_MILLIS = 10_000
"""A page must have read this much past a time for everything older to be known: Kinesis' clock is known to the second,
and MillisBehindLatest is an estimate.
"""
_ATTEMPTS = 8
_PROBE_LIMIT = 10
_WALK_LIMIT = 1000
_OLDEST = ReadFrom("TRIM_HORIZON")


class ShardSearch:
    """Reads one shard, at the pace Kinesis allows. Used by one thread.

    on_read: called for every GetRecords call. Every method may raise TemporaryError (after several attempts, or more
    than MAX_READS reads), ShardGone, SetupError.
    """

    def __init__(
        self, stream: Stream, shard_id: str, runtime: Runtime, on_read: Callable[[], None] = lambda: None
    ) -> None:
        self._stream, self._shard_id, self._runtime = stream, shard_id, runtime
        self._on_read = on_read
        self._pause = runtime.event()
        self._reads = 0

    def first(self, start: ReadFrom) -> Record | None:
        """Return the first Kinesis record from there on; None at the tip or the end of the shard."""
        return next(self.walk(start, _PROBE_LIMIT), None)

    def walk(
        self, start: ReadFrom, limit: int | None = None, *, until_millis: float = inf
    ) -> Iterator[Record]:
        """Yield Kinesis records from there on, up to the tip or the end of the shard.

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
            # At the tip: no search asks for records put from now on.
            behind = page.millis_behind_latest
            if behind == 0 or (behind is None and not page.records):
                return
            if (
                behind is not None
                and self._stream.server_time_millis() - behind > until_millis + _MARGIN_MILLIS
            ):
                return
            iterator = page.next_iterator

    def oldest(self) -> SearchResult:
        """Return the position of the oldest record."""
        found = self.first(_OLDEST)
        at = None if found is None else _arrival(found)
        return SearchResult(ResumePoint(AT_TRIM_HORIZON, at, has_later=found is not None), at)

    def before(self, at_millis: int) -> SearchResult:
        """Return the position after the last record that arrived before that time, epoch milliseconds.

        It is after the whole of an aggregated record.
        """
        oldest = self.first(_OLDEST)
        if oldest is None:
            return SearchResult(ResumePoint())
        oldest_at = _arrival(oldest)
        if oldest_at >= at_millis:
            return SearchResult(ResumePoint(AT_TRIM_HORIZON, oldest_at, has_later=True), oldest_at)
        last, following = self._last_before(at_millis, oldest_at)
        if last is None:
            raise TemporaryError(f"{self._shard_id} changed during the search. Do: try again.")
        resumes = None if following is None else _arrival(following)
        return SearchResult(
            ResumePoint(position_after(last), resumes, has_later=following is not None), oldest_at
        )

    def after(self, number: str, sub: int | None) -> SearchResult:
        """Return the position after that record, or that part of an aggregated one. Raises PyKclError without such a
        record."""
        records = self.walk(ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number), _PROBE_LIMIT)
        try:
            record = next(records, None)
        except PositionRefused:
            # The message of PositionRefused blames the row, which is not involved here.
            raise PyKclError(
                f"{number} is not a position of {self._shard_id}: it is not a sequence number that Kinesis gave to a "
                "record of this shard. Nothing was written. Do: name the sequence number of a record, or use "
                "--to-datetime or --to-earliest."
            ) from None
        if record is None or record.sequence_number != number:
            raise PyKclError(
                f"{self._shard_id} has no record {number} (any more). Nothing was written. Do: name another one, "
                "or use --to-datetime or --to-earliest."
            )
        end = position_after(record)
        if sub is not None and sub > end.sub_sequence_number:
            raise PyKclError(
                f"Record {number} of {self._shard_id} ends with sub-sequence number {end.sub_sequence_number}, not "
                f"{sub}. Nothing was written."
            )
        at = end if sub is None else Checkpoint(number, sub)
        following = record if at < end else next(records, None)
        resumes = None if following is None else _arrival(following)
        return SearchResult(ResumePoint(at, resumes, has_later=following is not None))

    def arrival_of(self, checkpoint: Checkpoint) -> float | None:
        """Return the arrival of the record of a checkpoint; None for sentinels, and where the record is gone."""
        if checkpoint.is_sentinel:
            return None
        number = checkpoint.sequence_number
        try:
            found = self.first(ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number))
        except PositionRefused:
            return None
        return _arrival(found) if found is not None and found.sequence_number == number else None

    def _last_before(self, at_millis: int, oldest_at: float) -> tuple[Record | None, Record | None]:
        """Return the last record before that time, and the one after it."""
        start, high = self._bracket(at_millis, oldest_at)
        records = self.walk(start)
        if high < at_millis - WINDOW_MILLIS:
            # The stretch between was read on the way back, and is empty.
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

    def _bracket(self, at_millis: int, oldest_at: float) -> tuple[ReadFrom, float]:
        """Return a start shortly before the last record before that time, and a time, at most two seconds later, from
        which on there is none.

        Invariant: at or after `low` there is a record before the time, at or after `high` there is none.
        """
        low, high, step = oldest_at, float(at_millis), WINDOW_MILLIS
        while at_millis - step > oldest_at:
            found = self._find_before(at_millis - step, at_millis, high)
            if found is not None:
                low = found
                break
            high = at_millis - step
            step *= 2
        while high - low > WINDOW_MILLIS:
            middle = (low + high) // 2
            found = self._find_before(middle, at_millis, high)
            if found is None:
                high = middle
            else:
                low = found
        return _OLDEST if low == oldest_at else ReadFrom("AT_TIMESTAMP", at_millis=int(low)), high

    def _find_before(self, start: float, at_millis: int, high: float) -> float | None:
        """Return a time, `start` or later, at or after which there is a record before `at_millis`; None without one.

        high: a time at or after which there is none.
        """
        begin = ReadFrom("AT_TIMESTAMP", at_millis=int(start))
        found = next(self.walk(begin, _PROBE_LIMIT, until_millis=high), None)
        if found is None or _arrival(found) >= at_millis:
            return None
        # The stretch before the record is not read again, except for those two seconds.
        return max(start, _arrival(found) - WINDOW_MILLIS)

    def _open(self, start: ReadFrom) -> str:
        return self._patiently(lambda: self._stream.open(self._shard_id, start))

    def _read(self, iterator: str, limit: int) -> Fetched:
        self._reads += 1
        if self._reads > MAX_READS:
            raise TemporaryError(
                f"{MAX_READS} reads of {self._shard_id} did not find the position: each covers minutes, and a day "
                "without records takes some 250. Nothing was written. Do: use --to-sequence, or --to-earliest for this "
                "shard."
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
                # Mostly throttling: all readers of the shard share five reads a second.
                self._pause.wait(backoff(attempt, self._runtime.random(), first=0.5, longest=10.0))
        return call()


def position_after(record: Record) -> Checkpoint:
    """Return the position after a whole Kinesis record: workers drop user records at or below it."""
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


MAX_SKIPPED = 10_000


def skip_records(
    search: ShardSearch, lease: Lease, hash_range: HashRange | None, count: int
) -> tuple[SearchResult, tuple[Record, ...]]:
    """Return the position after the next `count` user records that a worker would get, and those records.

    Raises Refused if there are fewer, or if the next records are unknown; TemporaryError, SetupError, ShardGone.
    """
    at = lease.checkpoint
    if lease.is_ended:
        raise Refused(f"{lease.key} was read to its end: there is nothing to skip. Nothing was written.")
    if at.sequence_number == AT_TIMESTAMP or (at.sequence_number == LATEST and lease.latest_since is None):
        raise Refused(
            f"{lease.key} starts at {at}, so only its workers know which record is next. Nothing was "
            "written. Do: use `checkpoints reset` with a time or a sequence number."
        )
    start = first_read(lease, StartPosition("TRIM_HORIZON"))
    users = deaggregate_batch(search.walk(start), hash_range, after=None if at.is_sentinel else at)
    skipped = tuple(islice(users, count))
    if len(skipped) < count:
        have = "no record" if not skipped else f"only {len(skipped)} of {count} records"
        raise Refused(f"After the checkpoint of {lease.key} there is {have}. Nothing was written.")
    following = next(users, None)
    resumes = following.arrived_at_millis if following is not None else None
    place = ResumePoint(skipped[-1].position, resumes, has_later=following is not None)
    return SearchResult(place, current_at=skipped[0].arrived_at_millis), skipped
