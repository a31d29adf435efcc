"""Writes records to one stream: aggregated if wanted, at a given rate, in batches, until each record is put.

PutRecords may accept some records of a request and reject others, and an answer may be lost. Rejected records are sent
again, with back-off. So are records of a request without an answer: each record is put at least once, and those that
may be there twice are counted.

A consumer drops a KPL aggregate when one of its user records hashes to another shard than the one that it was read from
(Java KCL `AggregatorUtil.java`; so does pykcl). So there is one open aggregate per shard. When the stream is resharded
between the listing and the request, consumers would drop an aggregate that was put: the shard id in the answer shows
it, and its user records are aggregated anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from hashlib import md5
from itertools import count

from pykcl.errors import PyKclError, TemporaryError, Throttled
from pykcl.model.kpl import AggregatedBlob, Aggregator
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.shard import HashRange, Shard
from pykcl.runtime import Event, Runtime

MAX_RECORDS = 500
"""Records of one PutRecords request (Kinesis quota)."""
MAX_BYTES = 5 * 1024 * 1024
"""Bytes of one PutRecords request, payloads and partition keys, where records have at most 1 MiB."""
MAX_BYTES_OF_LARGE_RECORDS = 10 * 1024 * 1024
ONE_MIB = 1024 * 1024
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0
_NOTICE_EVERY = 10.0


class GivenUp(PyKclError):
    """The user ended the command while records were still being rejected."""


Put = Callable[[Sequence[NewRecord]], list[PutAnswer]]
"""`StreamAdmin.put` of one stream."""


@dataclass(frozen=True)
class Parcel:
    """One Kinesis record to put. lines: its first and last line of input. count: number of user records."""

    record: NewRecord
    lines: tuple[int, int]
    count: int = 1


@dataclass(slots=True)
class Tally:
    """put: user records, each counted once. sent_again: rejected and sent again. perhaps_twice: sent again after a
    request with an unknown outcome. requests: PutRecords calls."""

    put: int = 0
    bytes: int = 0
    requests: int = 0
    sent_again: int = 0
    perhaps_twice: int = 0


class Sender:
    """Sends batches. Used by one thread. max_bytes: of one request. give_up: once set, nothing is sent a second time.

    on_put: called with each parcel that was put and the id of its shard; returns False if it does not count yet.
    on_notice: called with notes about delays. Neither may raise.
    """

    def __init__(
        self,
        put: Put,
        runtime: Runtime,
        *,
        give_up: Event,
        on_put: Callable[[Parcel, str], bool],
        on_notice: Callable[[str], None],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._put = put
        self._runtime = runtime
        self._give_up = give_up
        self._on_put = on_put
        self._on_notice = on_notice
        self._max_bytes = max_bytes
        self._batch: list[Parcel] = []
        self._bytes = 0
        self.tally = Tally()

    @property
    def waiting(self) -> Sequence[Parcel]:
        """Parcels that are not known to be put."""
        return tuple(self._batch)

    def add(self, parcel: Parcel) -> None:
        """Add a parcel; send the batch before it if that is full. Raises as `flush`."""
        size = parcel.record.size
        if self._batch and (len(self._batch) >= MAX_RECORDS or self._bytes + size > self._max_bytes):
            self.flush()
        self._batch.append(parcel)
        self._bytes += size

    def count(self, parcel: Parcel) -> None:
        """Count a parcel as put, for its consumers, too."""
        self.tally.put += parcel.count
        self.tally.bytes += parcel.record.size

    def flush(self) -> None:
        """Send the batch until all of it is put.

        Raises SetupError for a permanent error, and GivenUp; `waiting` then holds the parcels not known to be put.
        """
        pause, notified_at = _FIRST_PAUSE, self._runtime.monotonic()
        while self._batch:
            trouble = self._attempt()
            if not self._batch:
                break
            if self._give_up.is_set():
                raise GivenUp(f"{len(self._batch)} records were still being rejected ({trouble}).")
            now = self._runtime.monotonic()
            if now - notified_at >= _NOTICE_EVERY:
                notified_at = now
                self._on_notice(
                    f"{len(self._batch)} records are not put yet ({trouble}). Sending them again."
                )
            # With jitter, so that many producers do not retry at once.
            self._give_up.wait(pause * (0.5 + self._runtime.random().random() / 2))
            pause = min(_MAX_PAUSE, pause * 2)

    def _attempt(self) -> str:
        """Send one request; parcels that were not put stay in the batch. Return the reason, or ""."""
        tally = self.tally
        tally.requests += 1
        try:
            answers = self._put([parcel.record for parcel in self._batch])
        except Throttled as error:
            # Rejected as a whole, before any of it was put.
            tally.sent_again += _users(self._batch)
            return type(error).__name__
        except TemporaryError as error:
            tally.perhaps_twice += _users(self._batch)
            tally.sent_again += _users(self._batch)
            return str(error)
        sent, self._batch = self._batch, []
        trouble = ""
        for parcel, answer in zip(sent, answers, strict=True):
            if answer.shard_id is None:
                self._batch.append(parcel)
                trouble = answer.error or "rejected"
        self._bytes = sum(parcel.record.size for parcel in self._batch)
        tally.sent_again += _users(self._batch)
        for parcel, answer in zip(sent, answers, strict=True):
            if answer.shard_id is not None and self._on_put(parcel, answer.shard_id):
                self.count(parcel)
        return trouble


def max_bytes_for(largest_record: int) -> int:
    """Return the max bytes of one request to a stream with this max record size."""
    return MAX_BYTES if largest_record <= ONE_MIB else MAX_BYTES_OF_LARGE_RECORDS


def _users(parcels: Sequence[Parcel]) -> int:
    return sum(parcel.count for parcel in parcels)


MAX_AGGREGATE = 51_200
"""Bytes; the default of the Kinesis Producer Library (AggregationMaxSize)."""

Numbered = tuple[int, NewRecord]
"""Line number of the input, and its record."""


@dataclass(frozen=True)
class Aggregate(Parcel):
    """A parcel of several user records. built_for: the shard whose hash keys they all have."""

    users: tuple[Numbered, ...] = field(default=(), repr=False)
    built_for: str = ""


class _Group:
    def __init__(self, shard_id: str) -> None:
        self.shard_id = shard_id
        self.aggregator = Aggregator(MAX_AGGREGATE)
        self.users: list[Numbered] = []

    def add(self, line: int, record: NewRecord) -> list[Parcel]:
        """Add a record; return parcels that are complete, among them the record itself if it fits into no aggregate."""
        try:
            full = self.aggregator.add(record.partition_key, record.explicit_hash_key, record.data)
        except ValueError:
            return [*self.close(), Parcel(record, (line, line))]
        closed = [] if full is None else [self._parcel(full)]
        self.users.append((line, record))
        return closed

    def close(self) -> list[Parcel]:
        blob = self.aggregator.flush()
        return [] if blob is None else [self._parcel(blob)]

    def _parcel(self, blob: AggregatedBlob) -> Parcel:
        users, self.users = tuple(self.users), []
        if len(users) == 1:
            line, record = users[0]
            # A single record needs no aggregate, and every consumer understands it.
            return Parcel(record, (line, line))
        record = NewRecord(blob.data, blob.partition_key, blob.explicit_hash_key)
        return Aggregate(record, (users[0][0], users[-1][0]), len(users), users, self.shard_id)


class Grouping:
    """shards: the listing of the stream, open and closed."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._groups: dict[str, _Group] = {}
        self._place(shards)

    def add(self, line: int, record: NewRecord) -> list[Parcel]:
        """Add a user record; return the parcels ready to send."""
        shard_id = self._shard_of(_hash_key(record))
        if shard_id is None:
            return [Parcel(record, (line, line))]
        if shard_id not in self._groups:
            self._groups[shard_id] = _Group(shard_id)
        return self._groups[shard_id].add(line, record)

    def close(self) -> list[Parcel]:
        """Return everything held as parcels ready to send."""
        return [parcel for group in self._groups.values() for parcel in group.close()]

    def first_lines(self) -> Iterator[int]:
        """Return the first line of each group that is not empty."""
        return (group.users[0][0] for group in self._groups.values() if group.users)

    def place_again(self, shards: Iterable[Shard]) -> list[Parcel]:
        """Group the held records by a new listing; return the parcels ready to send."""
        held = sorted(
            (user for group in self._groups.values() for user in group.users), key=lambda user: user[0]
        )
        self._groups = {}
        self._place(shards)
        return [parcel for line, record in held for parcel in self.add(line, record)]

    def is_seen_in(self, parcel: Parcel, shard_id: str) -> bool:
        """Return True if consumers of that shard accept the aggregate; False for a shard that is not listed."""
        if not isinstance(parcel, Aggregate) or parcel.built_for == shard_id:
            return True
        if shard_id not in self._ranges:
            return False
        first, last = self._ranges[shard_id]
        return all(first <= _hash_key(record) <= last for _, record in parcel.users)

    def _place(self, shards: Iterable[Shard]) -> None:
        shards = list(shards)
        self._ranges = {shard.shard_id: _bounds(shard.hash_range) for shard in shards if shard.hash_range}
        is_open = {shard.shard_id for shard in shards if shard.is_open}
        self._open = sorted(
            (bounds[0], bounds[1], shard_id)
            for shard_id, bounds in self._ranges.items()
            if shard_id in is_open
        )
        self._starts: Sequence[int] = [first for first, _, _ in self._open]

    def _shard_of(self, hash_key: int) -> str | None:
        at = bisect_right(self._starts, hash_key) - 1
        if at < 0 or hash_key > self._open[at][1]:
            return None
        return self._open[at][2]


def _bounds(hash_range: HashRange) -> tuple[int, int]:
    return hash_range.first, hash_range.last


def _hash_key(record: NewRecord) -> int:
    """Return the hash key by Kinesis' rule: the explicit one, else the MD5 of the UTF-8 partition key."""
    if record.explicit_hash_key is not None:
        return int(record.explicit_hash_key)
    return int.from_bytes(md5(record.partition_key.encode(), usedforsecurity=False).digest(), "big")


LINGER = 0.2
"""Seconds that a record waits for more of its batch."""
_BURST = 0.1
_LISTING_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Outlet:
    """The stream to write to. shards: lists open and closed shards. largest_record: bytes."""

    put: Put
    shards: Callable[[], Sequence[Shard]]
    largest_record: int


class StreamWriter:
    """Writes numbered lines of input and tracks which of them were put.

    rate: max user records per second. stop: once set, the rate is not waited for. give_up: once set, nothing is sent
    again. Every method may raise SetupError and GivenUp; `complete_through` is correct even then.
    """

    def __init__(
        self,
        outlet: Outlet,
        runtime: Runtime,
        *,
        stop: Event,
        give_up: Event,
        on_notice: Callable[[str], None],
        aggregate: bool = False,
        rate: float | None = None,
    ) -> None:
        self._outlet = outlet
        self._runtime = runtime
        self._stop = stop
        self._give_up = give_up
        self._on_notice = on_notice
        self._rate = rate
        self._started = runtime.monotonic()
        self._taken = 0
        self._last_line = 0
        self._waiting_since: float | None = None
        self._misplaced: list[tuple[Parcel, str]] = []
        self._sender = Sender(
            outlet.put,
            runtime,
            give_up=give_up,
            on_put=self._is_in,
            on_notice=on_notice,
            max_bytes=max_bytes_for(outlet.largest_record),
        )
        self._grouping = Grouping(self._listing()) if aggregate else None

    @property
    def tally(self) -> Tally:
        return self._sender.tally

    @property
    def complete_through(self) -> int:
        """The last line up to which every added line was put; 0 without one."""
        unsure = [parcel.lines[0] for parcel in self._sender.waiting]
        unsure += [parcel.lines[0] for parcel, _ in self._misplaced]
        if self._grouping is not None:
            unsure += self._grouping.first_lines()
        return min(unsure) - 1 if unsure else self._last_line

    def skip_line(self, line: int) -> None:
        """Count a line without a record."""
        self._last_line = line

    def take(self, line: int, record: NewRecord) -> None:
        """Add the record of a line, no sooner than the rate allows."""
        self._pace()
        if self._waiting_since is None:
            self._waiting_since = self._runtime.monotonic()
        self._taken += 1
        if self._grouping is None:
            self._last_line = line
            self._sender.add(Parcel(record, (line, line)))
            return
        parcels = self._grouping.add(line, record)
        self._last_line = line
        self._send(parcels)

    def flush_when_due(self) -> None:
        """Send records that have waited for LINGER. To be called now and then."""
        since = self._waiting_since
        if since is not None and self._runtime.monotonic() - since >= LINGER:
            self.flush()

    def flush(self) -> None:
        """Send everything; all added records were put when this returns."""
        while True:
            if self._grouping is not None:
                self._send(self._grouping.close())
            self._sender.flush()
            if not self._misplaced:
                break
            self._place_again()
        self._waiting_since = None

    def _send(self, parcels: Sequence[Parcel]) -> None:
        for at, parcel in enumerate(parcels):
            try:
                self._sender.add(parcel)
            except Exception:
                # `complete_through` must still count what was taken out of the groups.
                self._misplaced += [(one, "") for one in parcels[at:]]
                raise

    def _is_in(self, parcel: Parcel, shard_id: str) -> bool:
        if self._grouping is None or self._grouping.is_seen_in(parcel, shard_id):
            return True
        self._misplaced.append((parcel, shard_id))
        return False

    def _place_again(self) -> None:
        """Group the aggregates that consumers would drop by the new shards: the stream was resharded meanwhile."""
        grouping = self._grouping
        if grouping is None:
            return
        parcels = grouping.place_again(self._listing({shard_id for _, shard_id in self._misplaced} - {""}))
        misplaced, self._misplaced = self._misplaced, []
        for parcel, shard_id in misplaced:
            if grouping.is_seen_in(parcel, shard_id):
                self._sender.count(parcel)
                continue
            if not isinstance(parcel, Aggregate):
                parcels.append(parcel)
                continue
            self.tally.sent_again += parcel.count
            for line, record in parcel.users:
                parcels += grouping.add(line, record)
        self._send(parcels)

    def _listing(self, landed_in: Set[str] = frozenset()) -> Sequence[Shard]:
        """List the shards until those that records landed in are among them.

        ListShards may lag behind a reshard: 1) a shard is split; 2) an aggregate lands in one of the new ones; 3) the
        listing still shows the shards of before. Grouped by it, the same aggregate would be put again, and land there
        again, until the listing changes.
        """
        for attempt in count():
            try:
                shards = self._outlet.shards()
                if landed_in <= {shard.shard_id for shard in shards}:
                    break
                trouble = "ListShards does not show all shards yet."
            except TemporaryError as error:
                trouble = str(error)
            if self._give_up.is_set():
                raise GivenUp(f"The shards of the stream could not be listed ({trouble})")
            # One old listing is usual after a reshard.
            if attempt:
                self._on_notice(f"{trouble} Listing again.")
            self._give_up.wait(_LISTING_PAUSE)
        return shards

    def _pace(self) -> None:
        if self._rate is None or self._stop.is_set():
            return
        due = self._started + self._taken / self._rate
        now = self._runtime.monotonic()
        if due - now > _BURST:
            self.flush()
            self._stop.wait(due - self._runtime.monotonic())
        elif now - due > 1:
            # Sending was slower than the rate: do not catch up with a burst.
            self._started += now - due
