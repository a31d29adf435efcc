"""Reads a stream from given places on, parents before children, beside whoever else reads it.

One thread and one request at a time: a shard allows five reads a second to all its consumers together, and those it is
there for come first. A shard at its tip is asked once a second, one that is behind four times a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from pykcl.errors import (
    IteratorExpired,
    PositionRefused,
    ShardGone,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import Fetched, Stream
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.operate.streams.choosing import Start
from pykcl.runtime import Event, Runtime

PAUSE_BEHIND = 0.25
PAUSE_AT_TIP = 1.0
LONGEST_PAUSE = 10.0
MOST_PER_READ = 10_000
_NOTICE_EVERY = 30.0
_LONGEST_WAIT = 0.25


@dataclass(slots=True)
class _Reading:
    """One shard that is being read. last: the sequence number of the last Kinesis record that came."""

    shard: Shard
    start: ReadFrom
    after: Checkpoint | None
    iterator: str | None = field(default=None, repr=False)
    last: str | None = None
    pause: float = 0.0
    told_at: float = float("-inf")


class Following:
    """stream: any `ports.Stream`. starts: what to begin with. until_end: stop at each shard's tip, else never.

    children: whether to go on with the children of a shard that ends. on_notice: hears, in one line, what the reader of
    the records should know beside them. stop: ends it soon after it is set.
    """

    def __init__(
        self,
        stream: Stream,
        starts: Iterable[Start],
        runtime: Runtime,
        *,
        stop: Event,
        on_notice: Callable[[str], None],
        until_end: bool = False,
        children: bool = True,
    ) -> None:
        self._stream = stream
        self._runtime = runtime
        self._stop = stop
        self._on_notice = on_notice
        self._until_end = until_end
        self._children = children
        self._began_at = stream.server_time_millis()
        self._turns = count()
        self._due: list[tuple[float, int, _Reading]] = []
        self._unfinished: set[str] = set()
        self._known: set[str] = set()
        self._waiting: dict[str, Start] = {}
        self.is_complete = True
        """False once a shard had to be left out."""
        self._add(starts)

    def pages(self) -> Iterator[Iterator[Record]]:
        """The user records of one page after the other, opened as they are taken; an empty one while there is nothing.

        Raises StreamMissing, WrongStream and SetupError; everything that may pass is tried again.
        """
        while self._due and not self._stop.is_set():
            due_at, _, reading = self._due[0]
            left = due_at - self._runtime.monotonic()
            if left > 0:
                yield iter(())
                self._stop.wait(min(left, _LONGEST_WAIT))
                continue
            heapq.heappop(self._due)
            page = self._read(reading)
            if page is None:
                self._put_back(reading, reading.pause)
                continue
            yield self._opened(reading, page)
            self._go_on(reading, page)

    def _add(self, starts: Iterable[Start]) -> None:
        """Begin these, those with an unfinished parent later. A listing that contradicts itself stops nobody."""
        for start in starts:
            if start.shard.shard_id not in self._known:
                self._known.add(start.shard.shard_id)
                self._waiting[start.shard.shard_id] = start
        self._unfinished |= self._waiting.keys()
        self._begin_ready()

    def _begin_ready(self) -> None:
        ready = [key for key, one in self._waiting.items() if self._unfinished.isdisjoint(one.shard.parents)]
        if not ready and not self._due:
            ready = list(self._waiting)
        for key in ready:
            start = self._waiting.pop(key)
            self._put_back(_Reading(start.shard, start.read_from, start.after), 0.0)

    def _put_back(self, reading: _Reading, pause: float) -> None:
        heapq.heappush(self._due, (self._runtime.monotonic() + pause, next(self._turns), reading))

    def _read(self, reading: _Reading) -> Fetched | None:
        """One page; None when there was none this time, and `reading.pause` says when to ask again."""
        shard_id = reading.shard.shard_id
        try:
            if reading.iterator is None:
                reading.iterator = self._opened_iterator(reading)
            page = self._stream.fetch(shard_id, reading.iterator, MOST_PER_READ)
        except IteratorExpired:
            reading.iterator, reading.pause = None, PAUSE_BEHIND
        except ShardGone as error:
            self._leave_out(reading, str(error))
            return Fetched([], None, None, self._children_listed(shard_id), 0)
        except PositionRefused as error:
            self._leave_out(reading, str(error))
            return Fetched([], None, None, (), 0)
        except TemporaryError as error:
            self._slow_down(reading, error)
        else:
            reading.pause = 0.0
            reading.iterator = page.next_iterator
            return page
        return None

    def _opened_iterator(self, reading: _Reading) -> str:
        iterator = self._stream.open(reading.shard.shard_id, reading.start)
        if reading.start.kind == "LATEST":
            # Opened again before a record came, it must not mean a later moment.
            reading.start = ReadFrom("AT_TIMESTAMP", at_millis=self._stream.server_time_millis())
        return iterator

    def _children_listed(self, shard_id: str) -> tuple[Shard, ...]:
        return tuple(one for one in self._stream.list_shards().shards if shard_id in one.parents)

    def _leave_out(self, reading: _Reading, why: str) -> None:
        self.is_complete = False
        self._on_notice(f"{reading.shard.shard_id} is left out: {why}")

    def _slow_down(self, reading: _Reading, error: TemporaryError) -> None:
        reading.pause = min(LONGEST_PAUSE, max(PAUSE_AT_TIP, reading.pause * 2))
        now = self._runtime.monotonic()
        # Being throttled now and then is normal: others read the shard, too.
        is_news = not isinstance(error, Throttled) or reading.pause >= LONGEST_PAUSE
        if is_news and now - reading.told_at >= _NOTICE_EVERY:
            reading.told_at = now
            self._on_notice(f"{reading.shard.shard_id}: {error} Trying again.")

    def _opened(self, reading: _Reading, page: Fetched) -> Iterator[Record]:
        if not page.records:
            return iter(())
        after, reading.after = reading.after, None
        if after is not None and not after.is_start:
            reading.after = (
                after if int(page.records[-1].sequence_number) < int(after.sequence_number) else None
            )
        reading.last = page.records[-1].sequence_number
        reading.start = ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=reading.last)
        return deaggregate_batch(
            page.records, reading.shard.hash_range, after=after, on_refused=self._tell_refused
        )

    def _tell_refused(self, record: Record, problem: str) -> None:
        self._on_notice(
            f"{record.shard_id} {record.sequence_number}: an aggregate that consumers do not open as one: {problem}."
        )

    def _go_on(self, reading: _Reading, page: Fetched) -> None:
        if page.next_iterator is None:
            self._finish(reading, page.children)
        elif self._until_end and reading.shard.is_open and self._is_at_end(page):
            self._finish(reading, ())
        else:
            self._put_back(
                reading, PAUSE_BEHIND if page.millis_behind_latest or self._until_end else PAUSE_AT_TIP
            )

    def _is_at_end(self, page: Fetched) -> bool:
        """Nothing came and nothing is there; or records newer than this reader: producers need not pause for it to end.

        Zero milliseconds behind is not enough where records came: the next may be of the same millisecond.
        """
        if not page.records:
            return not page.millis_behind_latest
        return page.records[-1].arrived_at_millis > self._began_at + 1000

    def _finish(self, reading: _Reading, children: tuple[Shard, ...]) -> None:
        self._unfinished.discard(reading.shard.shard_id)
        if self._children:
            self._add(Start(child, ReadFrom("TRIM_HORIZON")) for child in children)
        elif children:
            names = ", ".join(child.shard_id for child in children)
            self._on_notice(f"{reading.shard.shard_id} has ended. It goes on in {names}.")
        self._begin_ready()
