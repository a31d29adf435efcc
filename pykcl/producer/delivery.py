"""The threads that send what the accumulator holds, the futures that they resolve, and the bound on what waits.

A thread takes a request under the lock, sends it without, and reports the answer under it. There is one thread while
one can do all; another is started when more is to be sent at that moment, up to `connections`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

from pykcl.errors import BufferFull, InternalError, NotDelivered, PyKclError, TemporaryError
from pykcl.events import Event as EventOfStream
from pykcl.events import KeysIgnored
from pykcl.interfaces import Events, PutStream
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.producer.accumulator import (
    MAX_RECORDS,
    Accumulator,
    Outcome,
    PendingRecord,
    PutResult,
    Request,
    given_up,
)
from pykcl.producer.measurements import ProducerMeasures
from pykcl.producer.shard_map import ShardMap
from pykcl.runtime import (
    Event,
    LazyFuture,
    Runtime,
    Task,
    error_of,
    in_main_thread,
    outcome_of,
    resolve_unwatched,
)

log = logging.getLogger("pykcl.producer")

RECORD_OVERHEAD = 1024
"""Bytes of memory that are counted for each record besides its payload and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutsDelayed(EventOfStream):
    """Kinesis has refused records, or not answered. They are sent again.

    records: Kinesis records of the request that showed it; 0 where the shards cannot be listed.
    """

    LEVEL = logging.WARNING
    TEXT = "records are not put yet and sent again"
    stream: str
    records: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutsResumed(EventOfStream):
    """Kinesis takes all records again. seconds: since PutsDelayed."""

    TEXT = "records are put again"
    stream: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsNotDelivered(EventOfStream):
    """Records were given up. Their futures have the error, and so does the next flush."""

    LEVEL = logging.ERROR
    TEXT = "records were not delivered"
    MOST_LINES = 5
    stream: str
    records: int
    error: str


class Flag(Protocol):
    """The part of an event that is for whoever ends the wait for it. Its `set` returns at once."""

    def set(self) -> None: ...


class Ticket(Protocol):
    """Whoever waits for the outcome of a record. One of the two is called, once, by any thread."""

    def set_result(self, result: PutResult, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(slots=True)
class Flush:
    """A wait for all records up to `number`, `left` of which have no outcome yet."""

    number: int
    left: int
    done: Flag


@dataclass(slots=True)
class Failures:
    """Records that were given up since the last flush. kept: those of them that the memory bound has room for."""

    count: int
    first: PyKclError
    kept: list[NewRecord]
    bytes: int = 0


class Delivery:
    """max_pending_bytes: bound on what waits. on_failure: called with each record that is given up."""

    def __init__(
        self,
        stream: PutStream,
        records: Accumulator,
        runtime: Runtime,
        events: Events,
        measures: ProducerMeasures,
        *,
        connections: int,
        max_pending_bytes: int,
        max_request_bytes: int,
        linger: float,
        record_ttl: float,
        on_failure: Callable[[NewRecord, PyKclError], object] | None,
    ) -> None:
        self._stream, self._records, self._runtime, self._events = stream, records, runtime, events
        self._measures = measures
        self._connections, self._max_bytes, self._linger = connections, max_pending_bytes, linger
        self._max_request_bytes, self._record_ttl, self._on_failure = (
            max_request_bytes,
            record_ttl,
            on_failure,
        )
        self._lock = runtime.lock()
        self._tasks: list[Task] = []
        self._idle: list[Event] = []
        self._wakes_at, self._busy = inf, 0
        self._fresh_bytes = self._fresh_records = 0
        self._in_flight: set[Request] = set()
        self._number = self._sampled = self._bytes = self._pending = 0
        self._flushes: list[Flush] = []
        self._blocked: list[Flag] = []
        self._failures: Failures | None = None
        self._delayed_since: float | None = None
        self._has_said_keys_ignored = False
        self._takes_no_more = self._is_over = False

    def start(self) -> None:
        """Start the first thread. Raises TemporaryError where there is none to be had."""
        self._tasks.append(self._runtime.spawn("pykcl-producer-0", self._work))

    # -- for the threads of the program ----------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Number of records whose outcome is not known."""
        with self._lock:
            return self._pending

    def shard_of(self, hash_key: int) -> str | None:
        """Return the shard of a hash key; None where that is not known."""
        with self._lock:
            return self._records.shard_of(hash_key)

    def wait_to_put(self, record: PendingRecord, *, may_wait: bool, timeout: float | None) -> None:
        """Take a record that was offered in vain, as soon as there is room for it.

        Raises as `offer`, and BufferFull where it may not wait.
        """
        deadline = inf if timeout is None else self._runtime.monotonic() + timeout
        room: Event | None = None
        try:
            while room is None or not self.offer(record, room):
                now = self._runtime.monotonic()
                if not may_wait or now >= deadline or self._is_own_thread():
                    raise self.full()
                if room is not None:
                    room.wait(None if deadline == inf else deadline - now)
                room = self._runtime.event()
        finally:
            self.wait_no_more(room)

    def offer(self, record: PendingRecord, room: Flag | None = None) -> bool:
        """Take a record if there is room for it, and return True; else return False, and set `room` once there may be.

        Its outcome goes to its ticket. Raises PyKclError after `take_no_more`: BufferFull where it has waited for room.
        """
        size = record.size + RECORD_OVERHEAD
        with self._lock:
            if self._takes_no_more:
                self._refuse(has_waited=room is not None)
            if self._bytes and self._bytes + size > self._max_bytes:
                if room is not None:
                    self._blocked.append(room)
                return False
            self._number = record.number = self._number + 1
            record.added_at = now = self._runtime.monotonic()
            if self._record_ttl != inf:
                record.expires_at = now + self._record_ttl
            self._bytes += size
            self._pending += 1
            outcomes = self._records.add(record, now)
            self._fresh_bytes += record.size
            self._fresh_records += 1
            is_full = self._fresh_bytes >= self._max_request_bytes or self._fresh_records >= MAX_RECORDS
            due_at = now if is_full else now + self._linger
            if due_at < self._wakes_at or not self._idle:
                self._have_watched(due_at)
        if outcomes:
            self._settle(outcomes)
        return True

    def wait_no_more(self, room: Flag | None) -> None:
        """Forget somebody who has waited for room."""
        if room is None:
            return
        with self._lock:
            if room in self._blocked:
                self._blocked.remove(room)

    def full(self) -> BufferFull:
        """Return the error of a record that there is no room for."""
        with self._lock:
            records, size = self._pending, self._bytes
        return BufferFull(
            f"{records} records of {size} bytes wait to be put into stream {self._stream.name!r}, "
            "which is all that max_pending_bytes allows. This one was not taken. Do: put it later; a larger bound only "
            "helps against short delays."
        )

    def _refuse(self, *, has_waited: bool) -> None:
        if has_waited:
            raise BufferFull(
                f"The producer of stream {self._stream.name!r} is closed, and this record was still waiting for room. "
                "It was not taken. Do: put it with another producer."
            )
        raise PyKclError(f"The producer of stream {self._stream.name!r} is closed. Do: make another one.")

    def _is_own_thread(self) -> bool:
        return any(self._runtime.is_current(task) for task in self._tasks)

    def refuse_own_thread(self) -> None:
        """Raise PyKclError in a thread of the producer, which would wait for itself."""
        with self._lock:
            is_own = self._is_own_thread()
        if is_own:
            raise PyKclError(
                "flush() and close() were called in a callback of a future, for which the records would wait. "
                "Do: call them in a thread of the program."
            )

    def flush(self, timeout: float | None) -> bool:
        """Wait for the outcome of all records put so far, and let none wait for others; return whether it has come."""
        self.refuse_own_thread()
        done = self._runtime.event()
        if not self.begin_flush(done):
            return True
        is_done = done.wait(timeout)
        self.end_flush(done)
        return is_done

    def begin_flush(self, done: Flag) -> bool:
        """Let no record put so far wait for others, and set `done` once all have an outcome; False if all have one."""
        with self._lock:
            if not self._pending:
                return False
            self._records.urge(self._number)
            self._flushes.append(Flush(self._number, self._pending, done))
            self._have_watched(self._runtime.monotonic())
        return True

    def end_flush(self, done: Flag) -> None:
        """Forget a flush."""
        with self._lock:
            self._flushes = [flush for flush in self._flushes if flush.done is not done]

    def take_failures(self) -> Failures | None:
        """Return the failures since the last call."""
        with self._lock:
            failures, self._failures = self._failures, None
        return failures

    def resume(self) -> None:
        """Take records for halted shards again."""
        with self._lock:
            self._records.resume()

    def take_no_more(self) -> None:
        """Let each further `put` raise PyKclError, also those that wait for room."""
        with self._lock:
            self._takes_no_more = True
            self._unblock()

    def end(self, timeout: float) -> None:
        """Give up all records without an outcome; end the threads, for which `timeout` seconds are waited."""
        self._give_up_all(None)
        self._sample()
        until = self._runtime.monotonic() + timeout
        for task in self._tasks:
            task.join(max(0.0, until - self._runtime.monotonic()))

    def _give_up_all(self, error: InternalError | None) -> None:
        """Give up all records without an outcome; None: since the producer is closed. Its threads end."""
        with self._lock:
            self._is_over = self._takes_no_more = True
            sent = [user for request in self._in_flight for parcel in request for user in parcel.users]
            self._in_flight.clear()
            doubts = [(record, True) for record in sent]
            doubts += [(record, record.perhaps_twice) for record in self._records.drop()]
            left: list[Outcome] = [
                (record, _closed(record, doubt) if error is None else given_up(error, perhaps_put=doubt))
                for record, doubt in doubts
            ]
            for one in self._idle:
                one.set()
        self._settle(left)

    # -- the threads -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        error = error_of(self._work_on)
        if error is not None:
            # Nobody would send the records, and flush would wait for ever.
            log.error("a thread of the producer died error=%s", type(error).__name__)
            died = InternalError(
                f"A thread of the producer died of {type(error).__name__}. This is a bug in pykcl: please report it. "
                "Records that were not put before are sent no more. Do: make another producer."
            )
            died.__cause__ = error
            self._give_up_all(died)

    def _work_on(self) -> None:
        mine = self._runtime.event()
        while True:
            with self._lock:
                if self._is_over:
                    return
                now = self._runtime.monotonic()
                outcomes = self._records.expire(now)
                job = self._next_job(now)
                seconds = self._records.due_in(now)
                if job is None:
                    mine.clear()
                    self._idle.append(mine)
                    self._wakes_at = now + seconds
                else:
                    self._busy += 1
                    self._wakes_at = inf
                    if seconds < inf:
                        self._have_watched(now + seconds)
            self._settle(outcomes)
            if job is not None:
                job()
                with self._lock:
                    self._busy -= 1
                continue
            mine.wait(None if seconds == inf else seconds)
            with self._lock:
                if mine in self._idle:
                    self._idle.remove(mine)

    def _next_job(self, now: float) -> Callable[[], None] | None:
        if self._records.needs_listing(now):
            self._records.begin_listing()
            return self._list
        request = self._records.take(now)
        if request is None:
            return None
        self._in_flight.add(request)
        self._fresh_bytes = self._fresh_records = 0
        return partial(self._send, request)

    def _have_watched(self, due_at: float) -> None:
        """See to it that a thread without a job checks at this time, or earlier: a request may take long.

        Does nothing while an idle thread wakes up earlier.
        """
        if self._idle:
            if due_at < self._wakes_at:
                # Until it has checked, nobody else need be woken.
                self._wakes_at = -inf
                self._idle.pop().set()
        elif self._busy == len(self._tasks) < self._connections:
            try:
                self._tasks.append(self._runtime.spawn(f"pykcl-producer-{len(self._tasks)}", self._work))
            except TemporaryError as error:
                log.warning("no further thread for the producer error=%s", type(error).__name__)

    def _send(self, request: Request) -> None:
        began = self._measures.clock()
        put, error = outcome_of(lambda: self._stream.put([parcel.record for parcel in request]))
        answers = put or ()
        failure: PyKclError | None = None
        if isinstance(error, PyKclError):
            failure = error
        elif error is not None:
            # A client of somebody else's may raise anything.
            failure = TemporaryError(f"Putting records raised {type(error).__name__}. They are put again.")
        random = self._runtime.random()
        with self._lock:
            if request not in self._in_flight:
                return
            self._in_flight.remove(request)
            now = self._runtime.monotonic()
            if failure is None:
                outcomes = self._records.report(request, answers, now, random)
            else:
                outcomes = self._records.report_failure(request, failure, now, random)
            event = self._delay_of(request, answers, failure, now)
            ignored = self._keys_ignored()
        self._emit(event)
        self._emit(ignored)
        self._measures.requested(request, answers, failure, began)
        self._settle(outcomes)
        self._sample()

    def _list(self) -> None:
        def list_all() -> ShardMap | None:
            listing = self._stream.list_shards()
            return ShardMap(listing.shards) if listing.complete else None

        found, error = outcome_of(list_all)
        trouble = "ListShards did not show all shards."
        if isinstance(error, PyKclError):
            trouble = str(error)
        elif error is not None:
            trouble = f"Listing the shards raised {type(error).__name__}."
        with self._lock:
            now = self._runtime.monotonic()
            event: PutsDelayed | None = None
            if found is None:
                if self._records.is_delayed:
                    event = self._begin_delay(0, trouble, now)
                self._records.listing_failed(now)
                outcomes: Sequence[Outcome] = ()
            else:
                outcomes = self._records.place(found, now)
            ignored = self._keys_ignored()
        self._emit(event)
        self._emit(ignored)
        if found is not None:
            self._measures.listed(found)
        self._settle(outcomes)

    def _delay_of(
        self, request: Request, answers: Sequence[PutAnswer], failure: PyKclError | None, now: float
    ) -> PutsDelayed | PutsResumed | None:
        """Return the event that an answer is: records are sent again, or none is any more. Under the lock."""
        refused = [answer for answer in answers if answer.shard_id is None]
        if failure is not None or refused:
            return self._begin_delay(len(refused) or len(request), str(failure or refused[0].error), now)
        since = self._delayed_since
        if since is None or self._records.is_delayed:
            return None
        self._delayed_since = None
        return PutsResumed(stream=self._stream.name, seconds=now - since)

    def _begin_delay(self, records: int, error: str, now: float) -> PutsDelayed | None:
        if self._delayed_since is not None:
            return None
        self._delayed_since = now
        return PutsDelayed(stream=self._stream.name, records=records, error=error)

    def _keys_ignored(self) -> KeysIgnored | None:
        """Return the event of a stream that has begun to ignore keys, once, where the producer counts on them."""
        uses = self._records.uses_keys
        if self._has_said_keys_ignored or not self._records.ignores_keys or not uses:
            return None
        self._has_said_keys_ignored = True
        return KeysIgnored(stream=self._stream.name, uses=uses)

    def _emit(self, event: EventOfStream | None) -> None:
        if event is not None:
            self._events.emit(event)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        """Resolve futures, then let those go on who wait for that: they find all of them resolved."""
        if not outcomes:
            return
        self._measures.settled(outcomes)
        failed = [(pending.record, error) for pending, error in outcomes if isinstance(error, PyKclError)]
        interrupt = self._resolve(outcomes)
        if failed:
            error = str(failed[0][1])
            self._emit(RecordsNotDelivered(stream=self._stream.name, records=len(failed), error=error))
        with self._lock:
            for record, failure in failed:
                self._keep(record, failure)
            self._bytes -= sum([pending.size for pending, _ in outcomes]) + RECORD_OVERHEAD * len(outcomes)
            self._pending -= len(outcomes)
            for flush in self._flushes:
                flush.left -= sum([pending.number <= flush.number for pending, _ in outcomes])
                if flush.left <= 0:
                    flush.done.set()
            self._unblock()
        if interrupt is not None:
            raise interrupt

    def _resolve(self, outcomes: Sequence[Outcome]) -> KeyboardInterrupt | None:
        """Give each record's outcome to its ticket, and call `on_failure`. Return a Ctrl-C."""
        plain: list[tuple[LazyFuture[PutResult], PutResult]] = []
        others: list[tuple[Ticket, PendingRecord | None, PutResult | PyKclError]] = []
        for pending, outcome in outcomes:
            ticket = pending.ticket
            if type(ticket) is LazyFuture and isinstance(outcome, PutResult):
                plain.append((ticket, outcome))
            else:
                others.append((ticket, pending, outcome))
        others += [(future, None, result) for future, result in resolve_unwatched(plain)]
        interrupt: KeyboardInterrupt | None = None
        for ticket, record, outcome in others:
            if isinstance(outcome, PutResult):
                resolve: Callable[[], object] = partial(ticket.set_result, outcome)
            else:
                resolve = partial(ticket.set_exception, outcome)
                if self._on_failure is not None and record is not None and interrupt is None:
                    interrupt = _call("on_failure", partial(self._on_failure, record.record, outcome))
            found = _call("a callback of a future", resolve)
            interrupt = interrupt or found
        return interrupt

    def _sample(self) -> None:
        if not self._measures.is_on:
            return
        with self._lock:
            received, self._sampled = self._number - self._sampled, self._number
            pending = self._pending
        self._measures.sampled(received, pending)

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, []
        for room in blocked:
            room.set()

    def _keep(self, record: NewRecord, error: PyKclError) -> None:
        if self._failures is None:
            self._failures = Failures(0, error, [])
        self._failures.count += 1
        if self._failures.bytes + record.size <= self._max_bytes:
            self._failures.bytes += record.size + RECORD_OVERHEAD
            self._failures.kept.append(record)


def _call(name: str, code: Callable[[], object]) -> KeyboardInterrupt | None:
    """Call code of the application. Whatever it raises is logged: other records wait for this thread.

    Return a Ctrl-C, which comes in the main thread alone: in `close`, say, which gives up records there.
    """
    raised = error_of(code)
    if isinstance(raised, KeyboardInterrupt) and in_main_thread():
        return raised
    if raised is not None:
        log.error("%s raised error=%s", name, type(raised).__name__)
    return None


def _closed(record: PendingRecord, perhaps_put: bool) -> NotDelivered:
    state = "It may be in the stream all the same" if perhaps_put else "It is not in the stream"
    return NotDelivered(
        f"The producer was closed before a record was put, after {record.attempts} attempts. {state}. Do: put it "
        "again.",
        perhaps_put=perhaps_put,
    )
