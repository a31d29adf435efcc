"""Reads a stream for `tail`: selects shards and positions, then reads parents before children, beside other consumers.

One thread sends one request at a time: a shard allows five reads a second to all its consumers together, and the
application's consumers come first. A shard at its tip is read once a second, one that is behind four times a second.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from pykcl.errors import (
    ConfigError,
    IteratorExpired,
    PositionRefused,
    SetupError,
    ShardGone,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import Fetched, Stream
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.lease import Lease, first_read
from pykcl.model.record import Record
from pykcl.model.shard import Shard, full_shard_id, range_of_aggregates
from pykcl.operate.snapshot import TableSnapshot
from pykcl.planning.shard_graph import FamilyTree
from pykcl.runtime import Event, Runtime
from pykcl.times import format_time, parse_duration, parse_time

_OLDEST = StartPosition("TRIM_HORIZON")


def parse_since(text: str, now_millis: int) -> ReadFrom:
    """Return where to open every shard: a duration ago, a time, or the oldest or the next record.

    now_millis: Kinesis' clock, epoch milliseconds. Raises ConfigError for any other text and for a time to come.
    """
    word = text.strip().lower()
    if word in ("earliest", "trim_horizon"):
        return ReadFrom("TRIM_HORIZON")
    if word in ("latest", "now"):
        return ReadFrom("LATEST")
    at = _since_millis(text, now_millis)
    if at > now_millis:
        now = format_time(now_millis, milliseconds=False)
        raise ConfigError(
            f"--since {text[:80]!r} is in the future: Kinesis' clock says {now}. Name an earlier time, or read what "
            "comes from now on with --since latest."
        )
    return ReadFrom("TRIM_HORIZON") if at <= 0 else ReadFrom("AT_TIMESTAMP", at_millis=at)


def _since_millis(text: str, now_millis: int) -> int:
    try:
        return now_millis - round(parse_duration(text) * 1000)
    except ConfigError:
        if text[:1].isdigit():
            return parse_time(text)
    raise ConfigError(
        f"--since {text[:80]!r} is neither a time nor a duration. Say how long ago (10m, 2h30m, 1d, PT2H), a time with "
        "its zone (2026-11-20T09:00:00Z), earliest or latest."
    )


@dataclass(frozen=True, slots=True)
class Start:
    """The position to open one shard at. after: records at or below this position are not shown."""

    shard: Shard
    read_from: ReadFrom
    after: Checkpoint | None = None


def starts_since(shards: Iterable[Shard], read_from: ReadFrom) -> list[Start]:
    """Return every shard from one time on; from LATEST only shards without a listed child, which get the new
    records."""
    shards = list(shards)
    if read_from.kind == "LATEST":
        leaves = FamilyTree.of(shards).open_leaves()
        shards = [shard for shard in shards if shard.shard_id in leaves]
    return [Start(shard, read_from) for shard in shards]


def starts_of_application(
    shards: Iterable[Shard], leases: Mapping[str, Lease], application: str
) -> list[Start]:
    """Return the starts for every retained record that the application has not checkpointed.

    A shard with a row is opened at its checkpoint. Shards that ended in the table are omitted, and so are ancestors
    without a row: they were read and their rows deleted. Other shards without a row are read from their oldest record,
    as the fleet will do when their parents have ended.

    leases: by shard id. Raises SetupError where the table has no lease of any of these shards.
    """
    shards = list(shards)
    if leases.keys().isdisjoint(shard.shard_id for shard in shards):
        raise SetupError(
            f"The lease table of {application!r} has no lease of a shard of this stream. Check the application and the "
            "stream, or use --since instead of --from-app."
        )
    over = FamilyTree.of(shards, leases).ancestors_of(leases)
    starts = []
    for shard in shards:
        lease = leases.get(shard.shard_id)
        if lease is None and shard.shard_id not in over:
            starts.append(Start(shard, ReadFrom("TRIM_HORIZON")))
        elif lease is not None and not lease.is_ended:
            starts.append(Start(shard, first_read(lease, _OLDEST), lease.checkpoint))
    return starts


def leases_of_stream(view: TableSnapshot, stream: str) -> dict[str, Lease]:
    """Return the leases of the stream of this name by shard id; leases of other streams are omitted."""
    found = {}
    for key, lease in view.leases.items():
        of = view.streams.get(key)
        if of is None:
            found[key] = lease
        # Account, stream name and creation time (Java KCL: StreamIdentifier.serialize).
        elif of.split(":")[1:2] == [stream]:
            bare = _bare(key)
            found[bare] = lease.with_(
                key=bare, parents=tuple(map(_bare, lease.parents)), children=tuple(map(_bare, lease.children))
            )
    return found


def _bare(key: str) -> str:
    return key.rpartition(":")[2]


def shards_named(wanted: Sequence[str], shards: Sequence[Shard]) -> list[Shard]:
    """Return the listed shards of these names; a number alone (3, 003) is the shard whose id ends in it.

    Raises ConfigError for one that is not listed.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    found: dict[str, Shard] = {}
    for name in wanted:
        shard_id = full_shard_id(name)
        if shard_id not in by_id:
            raise ConfigError(_unknown(name, shard_id, sorted(by_id)))
        found[shard_id] = by_id[shard_id]
    return [found[shard_id] for shard_id in sorted(found)]


def _unknown(name: str, shard_id: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(shard_id, known, n=3, cutoff=0.9)
    shown = ", ".join(near or known[:5]) + (" …" if not near and len(known) > 5 else "")
    return (
        f"There is no shard {name[:140]!r} in this stream, or its records have expired. "
        f"{'Similar' if near else 'Existing'}: {shown or 'none'}. `pykcl streams describe` lists all."
    )


PAUSE_BEHIND = 0.25
PAUSE_AT_TIP = 1.0
MAX_PAUSE = 10.0
MAX_PER_READ = 10_000
_NOTICE_EVERY = 30.0
_MAX_WAIT = 0.25


@dataclass(slots=True)
class _Reading:
    """One shard being read. last: sequence number of its last Kinesis record."""

    shard: Shard
    start: ReadFrom
    after: Checkpoint | None
    iterator: str | None = field(default=None, repr=False)
    last: str | None = None
    pause: float = 0.0
    notified_at: float = float("-inf")


class StreamReader:
    """Yields the records of a stream page by page.

    stream: any `ports.Stream`. until_end: stop at each shard's tip, else never. children: go on with the children of a
    shard that ends. on_notice: called with notes of one line for the user. stop: ends the reader soon after it is set.
    Making one asks for the description of the stream, and raises as `Stream.describe`.
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
        self._ignores_keys = stream.describe().ignores_keys
        self._started_at = stream.server_time_millis()
        self._turns = count()
        self._due: list[tuple[float, int, _Reading]] = []
        self._unfinished: set[str] = set()
        self._known: set[str] = set()
        self._waiting: dict[str, Start] = {}
        self.is_complete = True
        """False once a shard had to be skipped."""
        self._add(starts)

    def pages(self) -> Iterator[Iterator[Record]]:
        """Yield the user records of each page, de-aggregated on iteration; an empty page while there is nothing.

        Raises StreamMissing, WrongStream and SetupError; retries temporary errors.
        """
        while self._due and not self._stop.is_set():
            due_at, _, reading = self._due[0]
            left = due_at - self._runtime.monotonic()
            if left > 0:
                yield iter(())
                self._stop.wait(min(left, _MAX_WAIT))
                continue
            heapq.heappop(self._due)
            page = self._read(reading)
            if page is None:
                self._put_back(reading, reading.pause)
                continue
            yield self._opened(reading, page)
            self._go_on(reading, page)

    def _add(self, starts: Iterable[Start]) -> None:
        """Start these, those with an unfinished parent later. Parents that form a cycle do not block the reader."""
        for start in starts:
            if start.shard.shard_id not in self._known:
                self._known.add(start.shard.shard_id)
                self._waiting[start.shard.shard_id] = start
        self._unfinished |= self._waiting.keys()
        self._start_ready()

    def _start_ready(self) -> None:
        ready = [key for key, one in self._waiting.items() if self._unfinished.isdisjoint(one.shard.parents)]
        if not ready and not self._due:
            ready = list(self._waiting)
        for key in ready:
            start = self._waiting.pop(key)
            self._put_back(_Reading(start.shard, start.read_from, start.after), 0.0)

    def _put_back(self, reading: _Reading, pause: float) -> None:
        heapq.heappush(self._due, (self._runtime.monotonic() + pause, next(self._turns), reading))

    def _read(self, reading: _Reading) -> Fetched | None:
        """Return one page; None if there was none: the next attempt is after `reading.pause`."""
        shard_id = reading.shard.shard_id
        try:
            if reading.iterator is None:
                reading.iterator = self._opened_iterator(reading)
            page = self._stream.fetch(shard_id, reading.iterator, MAX_PER_READ)
        except IteratorExpired:
            reading.iterator, reading.pause = None, PAUSE_BEHIND
        except ShardGone as error:
            self._skip(reading, str(error))
            return Fetched([], None, None, self._children_listed(shard_id), 0)
        except PositionRefused as error:
            self._skip(reading, str(error))
            return Fetched([], None, None, (), 0)
        except TemporaryError as error:
            self._slow_down(reading, error)
        else:
            reading.pause = 0.0
            reading.iterator = page.next_iterator
            return page
        return None

    def _opened_iterator(self, reading: _Reading) -> str:
        opened_at = self._stream.server_time_millis()
        iterator = self._stream.open(reading.shard.shard_id, reading.start)
        if reading.start.kind == "LATEST":
            # If it is opened again before a record came, it must not mean a later time.
            reading.start = ReadFrom("AT_TIMESTAMP", at_millis=opened_at)
        return iterator

    def _children_listed(self, shard_id: str) -> tuple[Shard, ...]:
        return tuple(one for one in self._stream.list_shards().shards if shard_id in one.parents)

    def _skip(self, reading: _Reading, why: str) -> None:
        self.is_complete = False
        self._on_notice(f"{reading.shard.shard_id} is skipped: {why}")

    def _slow_down(self, reading: _Reading, error: TemporaryError) -> None:
        reading.pause = min(MAX_PAUSE, max(PAUSE_AT_TIP, reading.pause * 2))
        now = self._runtime.monotonic()
        # Occasional throttling is normal: others read the shard, too.
        is_news = not isinstance(error, Throttled) or reading.pause >= MAX_PAUSE
        if is_news and now - reading.notified_at >= _NOTICE_EVERY:
            reading.notified_at = now
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
        hash_range = range_of_aggregates(reading.shard.hash_range, None, ignores_keys=self._ignores_keys)
        return deaggregate_batch(
            page.records, hash_range, after=after, on_refused=self._notify_invalid_aggregate
        )

    def _notify_invalid_aggregate(self, record: Record, problem: str) -> None:
        self._on_notice(
            f"{record.shard_id} {record.sequence_number}: an aggregate that consumers do not de-aggregate: {problem}."
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
        """Return True for an empty page at the tip, and for records newer than this reader: it ends while producers go
        on.

        With records, zero milliseconds behind is not enough: the next record may be of the same millisecond.
        """
        if not page.records:
            return not page.millis_behind_latest
        return page.records[-1].arrived_at_millis > self._started_at + 1000

    def _finish(self, reading: _Reading, children: tuple[Shard, ...]) -> None:
        self._unfinished.discard(reading.shard.shard_id)
        if self._children:
            self._add(Start(child, ReadFrom("TRIM_HORIZON")) for child in children)
        elif children:
            names = ", ".join(child.shard_id for child in children)
            self._on_notice(f"{reading.shard.shard_id} has ended. It goes on in {names}.")
        self._start_ready()
