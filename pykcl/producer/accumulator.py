"""The records that wait to be put, by shard, and the requests that are made of them: decisions without time or threads.

PutRecords may accept some records of a request and refuse others, and an answer may be lost. Refused records are sent
again, with back-off, shard by shard. So are the records of a request without an answer: each record is put at least
once, and those that may be there twice are marked.

A consumer drops a KPL aggregate when one of its user records hashes to another shard than the one that it was read from
(Java KCL `AggregatorUtil.java`; so does pykcl). So an aggregate has records of one shard. When the stream is resharded
between the listing and the request, consumers would drop an aggregate that was put: the shard id in the answer shows
it, and its user records are put again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from pykcl.errors import NotDelivered, PyKclError, SetupError, Throttled
from pykcl.model.kpl import packed
from pykcl.model.new_record import NewRecord, PutAnswer, hash_key_by
from pykcl.model.shard import HashRange
from pykcl.producer.limits import ShardRate
from pykcl.producer.shard_map import ShardMap

MAX_RECORDS = 500
"""Kinesis records of one PutRecords request (Kinesis quota)."""
MAX_BYTES = 5 * 1024 * 1024
"""Bytes of one PutRecords request, payloads and partition keys, where records have at most 1 MiB."""
MAX_BYTES_OF_LARGE_RECORDS = 10 * 1024 * 1024
ONE_MIB = 1024 * 1024
MAX_AGGREGATE = 51_200
"""Bytes; the default of the Kinesis Producer Library (AggregationMaxSize)."""
SETUP_PATIENCE = 10.0
"""Seconds for which a SetupError is taken for one that passes: a role or a stream that was just made."""
LISTING_PAUSE = 0.5
FIRST_PAUSE = 0.1
MAX_PAUSE = 5.0
_ENVELOPE = 20
_OVERHEAD = 20
_KEY_OVERHEAD = 45
"""Bytes, at most: what an aggregate adds, to its records together, to each of them, and to an explicit hash key."""
_THROTTLED = "ProvisionedThroughputExceededException"
_in_order: Callable[[PendingRecord], int] = attrgetter("number")
_new = tuple.__new__
_record_of: Callable[[PendingRecord], NewRecord] = attrgetter("record")


class PutResult(NamedTuple):
    """The place of a record in the stream. sub_sequence_number: its number within an aggregate.

    attempts: requests that it was in. perhaps_twice: it may be in the stream more than once, as a request with it had
    no answer.
    """

    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    attempts: int
    perhaps_twice: bool


class PendingRecord:
    """A record that is not known to be put.

    number: of the record, rising. added_at, expires_at: monotonic seconds. These are set when it is taken.
    ticket: of whoever waits for the outcome. attempts, perhaps_twice: as in PutResult.
    """

    __slots__ = (
        "added_at", "attempts", "expires_at", "hash_key", "number", "perhaps_twice", "record", "size", "ticket"
    )  # fmt: skip

    def __init__(
        self,
        record: NewRecord,
        number: int = 0,
        added_at: float = -inf,
        expires_at: float = inf,
        ticket: Any = None,
    ) -> None:
        self.record, self.ticket = record, ticket
        self.number, self.added_at, self.expires_at = number, added_at, expires_at
        self.attempts, self.perhaps_twice = 0, False
        # Both are asked for again and again.
        data, key, explicit_hash_key = record
        self.hash_key, self.size = hash_key_by(key, explicit_hash_key), len(data) + len(key.encode())

    @property
    def size_within(self) -> int:
        """Bytes that it takes in an aggregate, at most."""
        size = self.size + _OVERHEAD
        return size if self.record.explicit_hash_key is None else size + _KEY_OVERHEAD


Outcome = tuple[PendingRecord, PutResult | PyKclError]


@dataclass(slots=True, eq=False)
class ShardQueue:
    """Records that wait for one shard, in order. shard_id: "" without a listing. blocked_until: monotonic seconds.

    is_doubted: a record for it landed in another shard, so nothing is sent before the shards are listed again.
    """

    shard_id: str
    rate: ShardRate
    waiting: deque[PendingRecord] = field(default_factory=deque)
    bytes: int = 0
    blocked_until: float = -inf
    failures: int = 0
    in_flight: int = 0
    is_doubted: bool = False

    def pop(self) -> PendingRecord:
        record = self.waiting.popleft()
        self.bytes -= record.size
        return record

    def first_of(self, limit: int) -> tuple[tuple[PendingRecord, ...], int]:
        """Return as many of the first records as an aggregate of `limit` bytes has room for, one at least, and its max
        size. One alone goes plain."""
        first = self.waiting[0]
        joined = first.size_within + _ENVELOPE + first.size - len(first.record.data)
        count = 1
        for record in islice(self.waiting, 1, None):
            more = joined + record.size_within
            if more > limit:
                break
            joined = more
            count += 1
        return tuple(islice(self.waiting, count)), first.size if count == 1 else joined

    def push_back(self, records: Iterable[PendingRecord]) -> None:
        """Put records before those that wait. records: in order."""
        for record in reversed(tuple(records)):
            self.waiting.appendleft(record)
            self.bytes += record.size


@dataclass(slots=True, eq=False)
class Parcel:
    """One Kinesis record of a request, and its user records. queue: of the shard that it is meant for. size: of the
    record."""

    record: NewRecord
    users: tuple[PendingRecord, ...]
    queue: ShardQueue
    size: int


Request = tuple[Parcel, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """linger: seconds that a record waits for others. rate_limit: times the rate of a shard; inf: none.

    setup_patience: seconds for which a SetupError is taken for one that passes.
    ordered: the records of a partition key get into the stream in the order in which they were added.
    """

    aggregate: bool = True
    ordered: bool = False
    linger: float = 0.1
    rate_limit: float = 1.0
    max_request_bytes: int = MAX_BYTES
    setup_patience: float = SETUP_PATIENCE


def max_bytes_for(largest_record: int) -> int:
    """Return the max bytes of one request to a stream with this max record size."""
    return MAX_BYTES if largest_record <= ONE_MIB else MAX_BYTES_OF_LARGE_RECORDS


class Accumulator:
    """Used under one lock. Every `now` is in monotonic seconds. `place` comes first."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._aggregate = options.aggregate
        # Kinesis puts records into any shard (RecordDistributionStrategy AUTO): seen after the start, once a record has
        # landed beside its range and the shards are still those of before.
        self.ignores_keys = self._has_strayed = False
        self._map: ShardMap | None = None
        self._next_map: ShardMap | None = None
        self._queues: dict[str, ShardQueue] = {}
        self._misplaced: list[tuple[Parcel, PutAnswer]] = []
        self._unlisted: set[str] = set()
        self._is_stale = False
        self._list_again_at = -inf
        self._urged = -1
        self._setup_fails_since: float | None = None
        self._halted: list[HashRange] = []

    # -- records come ----------------------------------------------------------------------------------------------

    def add(self, record: PendingRecord, now: float) -> Sequence[Outcome]:
        """Take a record; return it with an error where its shard is halted."""
        if self._halted and any(keys.first <= record.hash_key <= keys.last for keys in self._halted):
            return [(record, _halted(record))]
        queue = self._queue_of(record.hash_key, now)
        queue.waiting.append(record)
        queue.bytes += record.size
        return ()

    def urge(self, number: int) -> None:
        """Let no record up to this one wait for others."""
        self._urged = max(self._urged, number)

    def resume(self) -> None:
        """Take records for halted shards again."""
        self._halted.clear()

    # -- requests go -----------------------------------------------------------------------------------------------

    def take(self, now: float) -> Request | None:
        """Return a request that is to be sent now; None while there is none."""
        free = self._free(now)
        if not (any(self._due_at(queue) <= now for queue in free) or self._is_full(free)):
            return None
        parcels: list[Parcel] = []
        room = self._options.max_request_bytes
        for queue in sorted(free, key=lambda queue: queue.waiting[0].added_at):
            while queue.waiting and len(parcels) < MAX_RECORDS:
                parcel = self._pack(queue, room, now)
                if parcel is None:
                    break
                parcels.append(parcel)
                room -= parcel.size
                queue.in_flight += 1
                if self._options.ordered:
                    break
        return tuple(parcels) or None

    def due_in(self, now: float) -> float:
        """Return the seconds until there may be something to do; infinite while that depends on an answer."""
        if self._is_full(self._free(now)):
            return 0.0
        soonest = min((_last_expiry(parcel) for parcel, _ in self._misplaced), default=inf)
        if self._is_stale:
            soonest = min(soonest, self._list_again_at)
        for queue in self._queues.values():
            if queue.waiting:
                soonest = min(soonest, queue.waiting[0].expires_at)
                if not self._is_held(queue):
                    soonest = min(soonest, self._due_at(queue))
        return max(0.0, soonest - now)

    @property
    def uses_keys(self) -> str:
        """The option of the producer that counts on partition keys; "" without one."""
        if self._options.ordered:
            return "ordered=True"
        return "aggregate=True" if self._options.aggregate else ""

    @property
    def is_delayed(self) -> bool:
        """True while records wait that were refused, got no answer, or landed in a shard that is not listed."""
        return bool(self._misplaced) or any(
            queue.failures and queue.waiting for queue in self._queues.values()
        )

    def _is_held(self, queue: ShardQueue) -> bool:
        """Return True for a queue that only an answer or a listing frees."""
        if queue.is_doubted and (self._aggregate or self._options.ordered):
            return True
        if not self._options.ordered:
            return False
        is_going = self._next_map is not None and queue.shard_id not in self._next_map.open_shards
        return queue.in_flight > 0 or is_going or not queue.shard_id

    def _free(self, now: float) -> list[ShardQueue]:
        """Return the queues that something can be taken out of."""
        return [
            queue
            for queue in self._queues.values()
            if queue.waiting and queue.blocked_until <= now and not self._is_held(queue)
        ]

    def _due_at(self, queue: ShardQueue) -> float:
        first = queue.waiting[0]
        lingers_until = -inf if first.number <= self._urged else first.added_at + self._options.linger
        return max(queue.blocked_until, lingers_until)

    def _is_full(self, queues: Sequence[ShardQueue]) -> bool:
        if sum(queue.bytes for queue in queues) >= self._options.max_request_bytes:
            return True
        return not self._aggregate and sum(len(queue.waiting) for queue in queues) >= MAX_RECORDS

    def _pack(self, queue: ShardQueue, room: int, now: float) -> Parcel | None:
        """Take one Kinesis record out of a queue; None if it has no room, or the shard's rate none for it."""
        first = queue.waiting[0]
        users: tuple[PendingRecord, ...] = (first,)
        size = first.size
        if self._aggregate and queue.shard_id:
            users, size = queue.first_of(min(room, self._largest_aggregate(queue, now)))
        wait = queue.rate.wait_for(size, now)
        if wait or size > room:
            queue.blocked_until = max(queue.blocked_until, now + wait)
            return None
        record = first.record
        if len(users) > 1:
            record = _aggregated(users)
            size = record.size
        for user in users:
            queue.waiting.popleft()
            queue.bytes -= user.size
        queue.rate.spend(size)
        return Parcel(record, users, queue, size)

    def _largest_aggregate(self, queue: ShardQueue, now: float) -> int:
        """Return its max size. With one record in flight for a shard it must be a large one; never above 1 MiB, which
        consumers of any age take."""
        if not self._options.ordered:
            return MAX_AGGREGATE
        return max(MAX_AGGREGATE, int(min(ONE_MIB, queue.rate.allowed_bytes(now))))

    # -- answers come ----------------------------------------------------------------------------------------------

    def report(
        self, request: Request, answers: Sequence[PutAnswer], now: float, random: Random
    ) -> list[Outcome]:
        """Take the answer for a request; return the records whose outcome it is."""
        self._setup_fails_since = None
        outcomes: list[Outcome] = []
        refused: dict[ShardQueue, list[Parcel]] = {}
        for parcel, answer in zip(request, answers, strict=True):
            _count_attempt(parcel)
            if answer.shard_id is None:
                refused.setdefault(parcel.queue, []).append(parcel)
                # Kinesis does not say that a record with another error than this one was not stored.
                if answer.error == _THROTTLED:
                    parcel.queue.rate.throttled(now)
                else:
                    _mark_doubtful(parcel)
            else:
                parcel.queue.failures = 0
                if self._map is None or answer.shard_id == parcel.queue.shard_id:
                    outcomes += _delivered(parcel, answer)
                else:
                    outcomes += self._landed_elsewhere(parcel, answer, self._map)
        for queue, parcels in refused.items():
            _back_off(queue, now, random)
            outcomes += self._send_again(parcels, now)
        return [*outcomes, *self._apply_map(now)]

    def report_failure(
        self, request: Request, error: PyKclError, now: float, random: Random
    ) -> list[Outcome]:
        """Take the failure of a whole request; return the records that it is final for."""
        for parcel in request:
            _count_attempt(parcel)
            if not isinstance(error, SetupError | Throttled):
                _mark_doubtful(parcel)
        if isinstance(error, SetupError):
            if self._setup_fails_since is None:
                self._setup_fails_since = now
            if now - self._setup_fails_since >= self._options.setup_patience:
                users = [user for parcel in request for user in parcel.users]
                return [*self.fail(users, error), *self._apply_map(now)]
        else:
            self._setup_fails_since = None
        for queue in {parcel.queue: None for parcel in request}:
            _back_off(queue, now, random)
        return [*self._send_again(request, now), *self._apply_map(now)]

    def _landed_elsewhere(self, parcel: Parcel, answer: PutAnswer, shard_map: ShardMap) -> list[Outcome]:
        shard_id = str(answer.shard_id)
        self._is_stale = parcel.queue.is_doubted = True
        if not shard_map.knows(shard_id):
            self._unlisted.add(shard_id)
        is_seen = shard_map.holds(shard_id, (user.hash_key for user in parcel.users))
        # Not so a record that was sent before a listing, and lands in one of the new shards.
        if not is_seen and shard_map.knows(shard_id):
            self._has_strayed = True
        if is_seen or len(parcel.users) == 1:
            return _delivered(parcel, answer)
        self._misplaced.append((parcel, answer))
        return []

    def _send_again(self, parcels: Iterable[Parcel], now: float) -> list[Outcome]:
        records = [user for parcel in parcels for user in parcel.users]
        return self._add_again(records, now)

    def _add_again(self, records: Iterable[PendingRecord], now: float) -> list[Outcome]:
        """Put records back, before those that wait, each by the shards of now."""
        outcomes: list[Outcome] = []
        by_queue: dict[ShardQueue, list[PendingRecord]] = {}
        for record in sorted(records, key=_in_order):
            if any(keys.first <= record.hash_key <= keys.last for keys in self._halted):
                outcomes.append((record, _halted(record)))
            else:
                by_queue.setdefault(self._queue_of(record.hash_key, now), []).append(record)
        for queue, found in by_queue.items():
            queue.push_back(found)
        return outcomes

    # -- records fail ----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[Outcome]:
        """Return the waiting records whose time has run out, each with an error."""
        expired: list[PendingRecord] = []
        for queue in self._queues.values():
            while queue.waiting and queue.waiting[0].expires_at <= now:
                expired.append(queue.pop())
        late = [parcel for parcel, _ in self._misplaced if _last_expiry(parcel) <= now]
        if late:
            self._misplaced = [found for found in self._misplaced if found[0] not in late]
            for parcel in late:
                _mark_doubtful(parcel)
                expired += parcel.users
        return self.fail(expired, None) if expired else []

    def fail(self, records: Sequence[PendingRecord], error: PyKclError | None) -> list[Outcome]:
        """Give records up; error: None: their time has run out. Where records are ordered, their shards are halted."""
        outcomes: list[Outcome] = [
            (record, _expired(record) if error is None else given_up(error, perhaps_put=record.perhaps_twice))
            for record in records
        ]
        if not self._options.ordered or self._map is None:
            return outcomes
        for record in records:
            keys = self._map.range_of(self._map.shard_of(record.hash_key) or "")
            if keys is not None and keys not in self._halted:
                self._halted.append(keys)
                queue = self._queues.get(self._map.shard_of(record.hash_key) or "")
                while queue is not None and queue.waiting:
                    follower = queue.pop()
                    outcomes.append((follower, _halted(follower)))
        return outcomes

    def drop(self) -> list[PendingRecord]:
        """Return all records that are in no request, and forget them."""
        left: list[PendingRecord] = []
        for parcel, _ in self._misplaced:
            _mark_doubtful(parcel)
            left += parcel.users
        left += chain.from_iterable(queue.waiting for queue in self._queues.values())
        self._misplaced.clear()
        self._queues.clear()
        return sorted(left, key=_in_order)

    # -- the shards ------------------------------------------------------------------------------------------------

    def needs_listing(self, now: float) -> bool:
        """Return True if the shards are to be listed now, as an answer named another one than was meant."""
        return self._is_stale and now >= self._list_again_at

    def begin_listing(self) -> None:
        """Count the shards as being listed, until `place` or `listing_failed`."""
        self._list_again_at = inf

    def listing_failed(self, now: float) -> None:
        self._list_again_at = now + LISTING_PAUSE

    def place(self, shard_map: ShardMap | None, now: float) -> list[Outcome]:
        """Go by a new listing; None: by none, so that all goes plain. Return the records that it settles.

        ListShards may lag behind a reshard: 1) a shard is split; 2) an aggregate lands in one of the new ones; 3) the
        listing still shows the shards of before. Grouped by it, the same aggregate would be put again, and land there
        again, until the listing changes. So a listing without the shards that records landed in is not used.
        """
        if shard_map is None:
            self._aggregate, self._map = False, None
        elif not all(map(shard_map.knows, self._unlisted)):
            self.listing_failed(now)
            return []
        self._is_stale, self._next_map = False, shard_map
        self._list_again_at = now + LISTING_PAUSE
        self._unlisted.clear()
        return self._apply_map(now, is_final=shard_map is None)

    def _apply_map(self, now: float, *, is_final: bool = False) -> list[Outcome]:
        """Place what waits by the new listing. Where records are ordered, only once none is in flight to a shard that
        has gone: 1) a record is sent to a shard, and the shard is split; 2) a later record of the same key is sent to
        its child, and put; 3) the first one is refused, and goes there behind it.
        """
        new, old = self._next_map, self._map
        if new is None and not is_final:
            return []
        open_shards = new.open_shards if new is not None else frozenset[str]()
        queues = self._queues
        if self._options.ordered and any(
            queue.in_flight for shard_id, queue in queues.items() if shard_id not in open_shards
        ):
            return []
        self._map, self._next_map = new, None
        self._queues = {shard_id: queue for shard_id, queue in queues.items() if shard_id in open_shards}
        for queue in self._queues.values():
            queue.is_doubted = False
        waiting = [record for queue in queues.values() for record in queue.waiting]
        for queue in queues.values():
            queue.waiting.clear()
            queue.bytes = 0
        misplaced, self._misplaced = self._misplaced, []
        has_strayed, self._has_strayed = self._has_strayed, False
        if has_strayed and new is not None and old is not None and new.open_shards == old.open_shards:
            self._aggregate, self.ignores_keys = False, True
        outcomes: list[Outcome] = []
        for parcel, answer in misplaced:
            keys = [user.hash_key for user in parcel.users]
            if new is not None and new.holds(str(answer.shard_id), keys):
                outcomes += _delivered(parcel, answer)
            else:
                # Consumers drop that aggregate; one that does not know the rule has its records twice.
                _mark_doubtful(parcel)
                waiting += parcel.users
        return outcomes + self._add_again(waiting, now)

    def shard_of(self, hash_key: int) -> str | None:
        """Return the open shard of a hash key, by the listing; None without one, or where keys are ignored."""
        return None if self._map is None or self.ignores_keys else self._map.shard_of(hash_key)

    def _queue_of(self, hash_key: int, now: float) -> ShardQueue:
        shard_id = "" if self._map is None else self._map.shard_of(hash_key) or ""
        queue = self._queues.get(shard_id)
        if queue is None:
            if self._map is not None and not shard_id:
                self._is_stale = True
            scale = self._options.rate_limit if shard_id else inf
            queue = self._queues[shard_id] = ShardQueue(shard_id, ShardRate(scale, now))
        return queue


def _aggregated(users: Sequence[PendingRecord]) -> NewRecord:
    blob = packed([(key, hash_key, data) for data, key, hash_key in map(_record_of, users)])
    return NewRecord(blob.data, blob.partition_key, blob.explicit_hash_key)


def _delivered(parcel: Parcel, answer: PutAnswer) -> list[Outcome]:
    shard_id, _, sequence_number = answer
    if len(parcel.users) == 1:
        (user,) = parcel.users
        return [(user, _new(PutResult, (shard_id, sequence_number, 0, user.attempts, user.perhaps_twice)))]
    # The constructor of a NamedTuple takes twice as long.
    return [
        (user, _new(PutResult, (shard_id, sequence_number, at, user.attempts, user.perhaps_twice)))
        for at, user in enumerate(parcel.users)
    ]


def _count_attempt(parcel: Parcel) -> None:
    parcel.queue.in_flight -= 1
    for user in parcel.users:
        user.attempts += 1


def _mark_doubtful(parcel: Parcel) -> None:
    for user in parcel.users:
        user.perhaps_twice = True


def _last_expiry(parcel: Parcel) -> float:
    return parcel.users[-1].expires_at


def _back_off(queue: ShardQueue, now: float, random: Random) -> None:
    # With jitter, so that many producers do not retry at once.
    pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(queue.failures, 10))
    queue.failures += 1
    queue.blocked_until = now + pause * (0.5 + random.random() / 2)


def given_up(error: PyKclError, *, perhaps_put: bool) -> PyKclError:
    """Return the error of a record that is given up for this one: itself, where the record is not in the stream.

    Where it may be, NotDelivered, as that says so; its `__cause__` is the error.
    """
    if not perhaps_put:
        return error
    doubt = NotDelivered(
        f"{error} A request with the record had no answer: it may be in the stream all the same.",
        perhaps_put=True,
    )
    doubt.__cause__ = error
    return doubt if error.code is None else doubt.about(error.code, error.hint)


def _expired(record: PendingRecord) -> NotDelivered:
    return NotDelivered(
        f"A record was not put within record_ttl, in {record.attempts} attempts. Do: put it again, or elsewhere.",
        perhaps_put=record.perhaps_twice,
    )


def _halted(record: PendingRecord) -> NotDelivered:
    return NotDelivered(
        "A record was not put, because one before it in its shard was given up, and records are ordered. Do: put both "
        "again in their order, after resume().",
        perhaps_put=record.perhaps_twice,
    )
