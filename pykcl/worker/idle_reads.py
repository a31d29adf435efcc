"""One thread that reads all idle shards, so that their own threads can sleep.

A read by a thread that has just read another page costs a fraction of one by a thread that has slept. So a lease
worker that has caught up delegates the next read of its shard to this thread, as an `IdlePoll`. The shard's own thread
is woken by a page with records; after an empty page this thread schedules the next read itself.

This thread never blocks on one shard: it sends requests, and reads answers that have arrived completely. A request that
is slow, refused or broken goes back to the shard's own thread, and so does a read that is late, whatever the reason. A
shard has at most one pending request, and only after the page before it was delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import PyKclError
from pykcl.interfaces import Fetched, NonBlockingStream, PageStatus, PendingRead, Stream
from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.planning.read_schedule import PollWindow, next_poll
from pykcl.runtime import Event, Runtime, Task
from pykcl.worker.prefetch import Answer, MemoryBudget, bytes_kept
from pykcl.worker.threads import ThreadHeartbeat

MAX_UNDER_WAY = 16
"""Maximum of pending requests: each uses one of the stream's kept connections."""
_SLOW = 0.25
"""Seconds after which the shard's own thread waits for an answer."""
_CROWDED = 0.1
"""Seconds for which a due read waits for answers to others; then the shard's own thread reads."""
_SOCKET_WAIT = 0.05
_LATE = 0.5
"""Seconds after which the shard's own thread reclaims a read that was not started, or not checked."""
_CHECK_EVERY = 5.0
"""Seconds between two checks of a sleeping thread whether the shared one is late."""
_LONGEST_ROUND = 10.0
"""Seconds of work without a pause: of 16 pages of 10 MiB, on a busy machine."""


class _State(Enum):
    WAITING = "waiting"
    ASKED = "asked"
    BUSY = "busy"
    OVER = "over"


@dataclass(eq=False, slots=True)
class IdlePoll:
    """The delegated reads of one shard, until a page has records.

    The shared thread calls the callables. may_ask: before each request. on_empty_page: with each page; it returns the
    next iterator and its time if it has handled the page, and None if the shard's own thread has to. wake: set when
    there is something to reclaim.
    """

    shard_id: str
    iterator: str = field(repr=False)
    window: PollWindow
    may_ask: Callable[[], bool]
    on_empty_page: Callable[[Answer], tuple[str, PollWindow] | None]
    wake: Event
    # WAITING and ASKED: either thread may claim it, under the lock. BUSY: the shared thread has it; OVER: the shard's
    # own thread. The fields below belong to IdleShardPoller.
    state: _State = _State.WAITING
    over: Event | None = None
    asked: PendingRead | None = None
    asked_at: float = 0.0
    there_at: float = 0.0
    answer: Answer | None = None
    error: PyKclError | None = None
    check_at: float = 0.0


class IdleShardPoller:
    """The shared thread. Lease workers call `delegate`, `time_left`, `reclaim` and `drop`. limit: records in a page.

    Without a NonBlockingStream there is no thread, and `is_of_use` is False.
    """

    def __init__(
        self,
        stream: Stream,
        runtime: Runtime,
        gate: MemoryBudget,
        meter: Meter,
        *,
        limit: int,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._stream = stream if isinstance(stream, NonBlockingStream) else None
        self._runtime, self._gate, self._meter = runtime, gate, meter
        self._limit = limit
        self._on_fatal = on_fatal
        self._lock = runtime.lock()
        self._stop = runtime.event()
        self._work = runtime.event()
        self._sleeps_until = float("inf")
        # In order of arrival, so that a simulation is repeatable.
        self._waiting: dict[IdlePoll, None] = {}
        # Used by the shared thread only. Full: no request can be sent before one of these is answered.
        self._under_way: list[IdlePoll] = []
        self._is_full = False
        self.pulse = ThreadHeartbeat("pykcl-reads", runtime, patience=_LONGEST_ROUND)
        self.tasks: tuple[Task, ...] = ()

    def start(self) -> None:
        if self._stream is not None:
            self.tasks = (self.pulse.spawn(partial(self._run, self._stream), self._on_fatal),)

    def stop(self) -> None:
        """End the thread, after the last lease worker has ended."""
        self._stop.set()
        self._work.set()

    # -- for the shards' own threads ---------------------------------------------------------------------------

    @property
    def is_of_use(self) -> bool:
        return self._stream is not None and self._stream.max_pending_pages > 0

    def delegate(self, poll: IdlePoll) -> None:
        """Read a shard from `poll.iterator` on, until `reclaim` or `drop`."""
        poll.check_at = poll.window.latest + _LATE
        with self._lock:
            self._waiting[poll] = None
            is_sooner = poll.window.due < self._sleeps_until
        if is_sooner:
            self._work.set()

    def time_left(self, poll: IdlePoll) -> float:
        """Return the seconds to sleep unless woken; 0: `reclaim` it now, because it is over or late."""
        now = self._runtime.monotonic()
        if poll.state is not _State.OVER and now < poll.check_at:
            return poll.check_at - now
        with self._lock:
            since = poll.asked_at if poll.state is _State.ASKED else poll.window.latest
            is_late = poll.state is not _State.BUSY and now >= since + _LATE
            if poll.state is _State.OVER or is_late:
                return 0.0
        poll.check_at = now + _CHECK_EVERY
        return _CHECK_EVERY

    def reclaim(self, poll: IdlePoll) -> Answer | PendingRead | None:
        """Take the shard's reads back: a page, whose bytes the caller releases; or a pending request; or None, and no
        request is pending. Raises the error of reading the page.

        Waits only while the shared thread handles this very page.
        """
        with self._lock:
            if poll.state is _State.WAITING:
                # It is not there if its thread is ended before `delegate` has added it.
                self._waiting.pop(poll, None)
            over = None
            if poll.state is _State.BUSY:
                over = poll.over = self._runtime.event()
            else:
                poll.state = _State.OVER
        if over is not None:
            over.wait()
        if poll.error is not None:
            raise poll.error
        return poll.answer if poll.answer is not None else poll.asked

    def drop(self, poll: IdlePoll) -> None:
        """Take the reads back, and discard the page or the request."""
        try:
            found = self.reclaim(poll)
        except PyKclError:
            return
        if isinstance(found, tuple):
            self._gate.release(bytes_kept(found))
        elif found is not None:
            found.drop()

    # -- the shared thread -------------------------------------------------------------------------------------

    def _run(self, stream: NonBlockingStream) -> None:
        while True:
            self.pulse.beat()
            # Cleared before the check: a poll that is left here after it sets it again.
            self._work.clear()
            if self._stop.is_set():
                return
            self._start_due_polls(stream)
            self._wait(stream)
            self._collect()

    def _wait(self, stream: NonBlockingStream) -> None:
        with self._lock:
            until = next_poll(poll.window for poll in self._waiting)
            if self._is_full:
                until = float("inf")
            if self._under_way:
                # A poll queued now cannot interrupt the wait on sockets, so keep that wait short.
                until = min(until, self._runtime.monotonic() + _SOCKET_WAIT)
            self._sleeps_until = until
        seconds = min(until - self._runtime.monotonic(), _CHECK_EVERY)
        if seconds > 0:
            self.pulse.rest(seconds)
            if self._under_way:
                asked = [poll.asked for poll in self._under_way if poll.asked is not None]
                stream.wait_for_any(asked, seconds)
            else:
                self._work.wait(seconds)
        self._sleeps_until = 0.0

    def _start_due_polls(self, stream: NonBlockingStream) -> None:
        now = self._runtime.monotonic()
        with self._lock:
            if now < next_poll(poll.window for poll in self._waiting):
                return
            due = [poll for poll in self._waiting if poll.window.earliest <= now]
        most = min(stream.max_pending_pages, MAX_UNDER_WAY)
        for poll in due:
            if self._under_way and len(self._under_way) >= most:
                self._is_full = True
            if self._is_full and now < poll.window.due + _CROWDED:
                continue
            if self._claim(poll, _State.WAITING):
                if self._is_full:
                    self._back_to(poll, _State.OVER)
                else:
                    self._ask(poll, stream)

    def _claim(self, poll: IdlePoll, state: _State) -> bool:
        """Return True if the shared thread has it now; False if its own thread has reclaimed it meanwhile."""
        with self._lock:
            if poll.state is not state:
                return False
            self._waiting.pop(poll, None)
            poll.state = _State.BUSY
            return True

    def _ask(self, poll: IdlePoll, stream: NonBlockingStream) -> None:
        try:
            if poll.may_ask():
                poll.asked_at = self._runtime.monotonic()
                poll.asked = stream.request_page(poll.shard_id, poll.iterator, self._limit)
        finally:
            if poll.asked is not None:
                self._under_way.append(poll)
            self._back_to(poll, _State.OVER if poll.asked is None else _State.ASKED)

    def _back_to(self, poll: IdlePoll, state: _State) -> None:
        """Leave the BUSY state. The new one is OVER, too, if its own thread waits for it."""
        with self._lock:
            # 1) Its own thread wants it back; 2) waiting again, it would never be given back.
            poll.state = state if poll.over is None else _State.OVER
            if poll.state is _State.WAITING:
                self._waiting[poll] = None
            is_over, over = poll.state is _State.OVER, poll.over
        if is_over:
            poll.wake.set()
        if over is not None:
            over.set()

    def _collect(self) -> None:
        """Check all pending requests, and then read the pages of those that are answered.

        So none of them counts as answered late because of the others, and shards that were read together stay together.
        """
        under_way, self._under_way = self._under_way, []
        there = [poll for poll in under_way if self._is_there(poll)]
        for poll in there:
            if self._claim(poll, _State.ASKED):
                self._read(poll)

    def _is_there(self, poll: IdlePoll) -> bool:
        if not self._claim(poll, _State.ASKED):
            self._is_full = False
            return False
        status, state = PageStatus.NEEDS_WAIT, _State.OVER
        try:
            if poll.asked is not None:
                status = poll.asked.poll()
            poll.there_at = self._runtime.monotonic()
            is_slow = status is PageStatus.PENDING and poll.there_at >= poll.asked_at + _SLOW
            if status is not PageStatus.NEEDS_WAIT and not is_slow:
                state = _State.ASKED
            if state is _State.ASKED and status is PageStatus.PENDING:
                self._under_way.append(poll)
            else:
                self._is_full = False
        finally:
            self._back_to(poll, state)
        return state is _State.ASKED and status is PageStatus.READY

    def _read(self, poll: IdlePoll) -> None:
        if poll.asked is None or not self._gate.try_reserve(LARGEST_FETCH_BYTES):
            # Its own thread waits for the space.
            self._back_to(poll, _State.OVER)
            return
        asked, poll.asked = poll.asked, None
        state, kept = _State.OVER, 0
        try:
            answer = page_of(poll, asked, self._meter), poll.there_at
            following = poll.on_empty_page(answer)
            if following is None:
                poll.answer, kept = answer, bytes_kept(answer)
            else:
                poll.iterator, poll.window = following
                state = _State.WAITING
        except PyKclError as error:
            poll.error = error
        finally:
            self._gate.release(LARGEST_FETCH_BYTES - kept)
            self._back_to(poll, state)


def page_of(poll: IdlePoll, asked: PendingRead, meter: Meter) -> Fetched:
    """Wait for the page. Its latency is measured from the request, whichever thread waits."""
    finished = partial(meter.took, catalog.GET_RECORDS, poll.shard_id, poll.asked_at)
    try:
        fetched = asked.page()
    except PyKclError:
        finished(worked=False)
        raise
    finished(worked=True)
    return fetched
