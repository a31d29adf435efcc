"""One thread that reads for all shards at rest, so that their own threads can sleep.

A page costs a thread that has just read another one a fraction of what it costs one that has slept. So a lease
worker that has caught up leaves the next read of its shard here, as a `Turn`. Its own thread is woken when a page is
there and brings something; a page that brings nothing is followed by the next read, and nobody wakes up.

This thread waits for nobody: it sends requests, and takes in answers that are there to their last byte. What is slow,
refused or broken goes back to the shard's own thread, which does as it would have done alone; and so does what was
left here and is late, whatever the reason. A shard has one request under way at most, and only after the page before
it was delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from pykcl.config import LARGEST_FETCH_BYTES
from pykcl.errors import PyKclError
from pykcl.interfaces import AskableStream, Asked, Coming, Fetched, Stream
from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.planning.read_schedule import PollWindow, next_poll
from pykcl.runtime import Event, Runtime, Task
from pykcl.worker.prefetch import Answer, BufferGate, bytes_kept
from pykcl.worker.threads import Pulse

MOST_UNDER_WAY = 16
"""Requests at a time: each has a connection, of those that the stream keeps."""
_SLOW = 0.25
"""Seconds after which an answer is waited for by the shard's own thread."""
_CROWDED = 0.1
"""Seconds for which a read that is due waits until others have been answered; then its own thread reads."""
_GLANCE = 0.05
_LATE = 0.5
"""Seconds after which the shard's own thread takes a read back that was not begun, or not looked at."""
_LOOK_EVERY = 5.0
"""Seconds between two looks of a sleeping thread at whether the shared one is late."""
_LONGEST_ROUND = 10.0
"""Seconds of work without a pause: of 16 pages of 10 MiB, on a busy machine."""


class _State(Enum):
    WAITING = "waiting"
    ASKED = "asked"
    BUSY = "busy"
    OVER = "over"


@dataclass(eq=False, slots=True)
class Turn:
    """The reads of one shard that are left to the shared thread, until a page brings something.

    What is given is called by that thread. may_ask: looked at before each request. nothing_new: told of each page;
    gives the next iterator and its time where it has dealt with the page, and None where the shard's own thread has
    to. wake: set when there is something to take.
    """

    shard_id: str
    iterator: str = field(repr=False)
    window: PollWindow
    may_ask: Callable[[], bool]
    nothing_new: Callable[[Answer], tuple[str, PollWindow] | None]
    wake: Event
    # WAITING and ASKED: whoever comes first takes it, under the lock. BUSY: the shared thread has it; OVER: the shard's
    # own thread. All below is of SharedReads.
    state: _State = _State.WAITING
    over: Event | None = None
    asked: Asked | None = None
    asked_at: float = 0.0
    there_at: float = 0.0
    answer: Answer | None = None
    error: PyKclError | None = None
    look_at: float = 0.0


class SharedReads:
    """`leave`, `left`, `take` and `drop` are for the lease workers' threads. limit: records in a page.

    Of no use where the stream is no AskableStream: then there is no thread.
    """

    def __init__(
        self,
        stream: Stream,
        runtime: Runtime,
        gate: BufferGate,
        meter: Meter,
        *,
        limit: int,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._stream = stream if isinstance(stream, AskableStream) else None
        self._runtime, self._gate, self._meter = runtime, gate, meter
        self._limit = limit
        self._on_fatal = on_fatal
        self._lock = runtime.lock()
        self._stop = runtime.event()
        self._work = runtime.event()
        self._sleeps_until = float("inf")
        # In the order in which they came, so that chance has no part in it.
        self._waiting: dict[Turn, None] = {}
        # Only the shared thread's. Full: no more can be asked for until one of these has come.
        self._under_way: list[Turn] = []
        self._is_full = False
        self.pulse = Pulse("pykcl-reads", runtime, patience=_LONGEST_ROUND)
        self.tasks: tuple[Task, ...] = ()

    def start(self) -> None:
        if self._stream is not None:
            self.tasks = (self.pulse.spawn(partial(self._run, self._stream), self._on_fatal),)

    def stop(self) -> None:
        """Once nobody leaves a read here any more."""
        self._stop.set()
        self._work.set()

    # -- for the shards' own threads ---------------------------------------------------------------------------

    @property
    def is_of_use(self) -> bool:
        return self._stream is not None and self._stream.pages_at_a_time > 0

    def leave(self, turn: Turn) -> None:
        """Have a shard read from `turn.iterator` on, until `take` or `drop`."""
        turn.look_at = turn.window.latest + _LATE
        with self._lock:
            self._waiting[turn] = None
            is_sooner = turn.window.due < self._sleeps_until
        if is_sooner:
            self._work.set()

    def left(self, turn: Turn) -> float:
        """Seconds to sleep, unless woken. 0: `take` it, for it is over, or late."""
        now = self._runtime.monotonic()
        if turn.state is not _State.OVER and now < turn.look_at:
            return turn.look_at - now
        with self._lock:
            since = turn.asked_at if turn.state is _State.ASKED else turn.window.latest
            is_late = turn.state is not _State.BUSY and now >= since + _LATE
            if turn.state is _State.OVER or is_late:
                return 0.0
        turn.look_at = now + _LOOK_EVERY
        return _LOOK_EVERY

    def take(self, turn: Turn) -> Answer | Asked | None:
        """Have the shard's reads back: its page, whose bytes the caller gives back; or a request whose answer is still
        to be waited for; or nothing, and no request is under way. Raises what reading the page raised.

        Waits only while this very page is being dealt with.
        """
        with self._lock:
            if turn.state is _State.WAITING:
                del self._waiting[turn]
            over = None
            if turn.state is _State.BUSY:
                over = turn.over = self._runtime.event()
            else:
                turn.state = _State.OVER
        if over is not None:
            over.wait()
        if turn.error is not None:
            raise turn.error
        return turn.answer if turn.answer is not None else turn.asked

    def drop(self, turn: Turn) -> None:
        """Have them back, and throw away what has come."""
        try:
            found = self.take(turn)
        except PyKclError:
            return
        if isinstance(found, tuple):
            self._gate.release(bytes_kept(found))
        elif found is not None:
            found.drop()

    # -- the shared thread -------------------------------------------------------------------------------------

    def _run(self, stream: AskableStream) -> None:
        while True:
            self.pulse.beat()
            # Cleared before looking: what is left here after the look sets it again.
            self._work.clear()
            if self._stop.is_set():
                return
            self._ask_for_the_due(stream)
            self._wait(stream)
            self._take_in()

    def _wait(self, stream: AskableStream) -> None:
        with self._lock:
            until = next_poll(turn.window for turn in self._waiting)
            if self._is_full:
                until = float("inf")
            if self._under_way:
                # What is left here meanwhile wakes nobody who waits for answers.
                until = min(until, self._runtime.monotonic() + _GLANCE)
            self._sleeps_until = until
        seconds = min(until - self._runtime.monotonic(), _LOOK_EVERY)
        if seconds > 0:
            self.pulse.rest(seconds)
            if self._under_way:
                asked = [turn.asked for turn in self._under_way if turn.asked is not None]
                stream.wait_for_answers(asked, seconds)
            else:
                self._work.wait(seconds)
        self._sleeps_until = 0.0

    def _ask_for_the_due(self, stream: AskableStream) -> None:
        now = self._runtime.monotonic()
        with self._lock:
            if now < next_poll(turn.window for turn in self._waiting):
                return
            due = [turn for turn in self._waiting if turn.window.earliest <= now]
        most = min(stream.pages_at_a_time, MOST_UNDER_WAY)
        for turn in due:
            if self._under_way and len(self._under_way) >= most:
                self._is_full = True
            if self._is_full and now < turn.window.due + _CROWDED:
                continue
            if self._claim(turn, _State.WAITING):
                if self._is_full:
                    self._back_to(turn, _State.OVER)
                else:
                    self._ask(turn, stream)

    def _claim(self, turn: Turn, state: _State) -> bool:
        """Deal with it, unless its own thread has taken it meanwhile."""
        with self._lock:
            if turn.state is not state:
                return False
            self._waiting.pop(turn, None)
            turn.state = _State.BUSY
            return True

    def _ask(self, turn: Turn, stream: AskableStream) -> None:
        try:
            if turn.may_ask():
                turn.asked_at = self._runtime.monotonic()
                turn.asked = stream.ask(turn.shard_id, turn.iterator, self._limit)
        finally:
            if turn.asked is not None:
                self._under_way.append(turn)
            self._back_to(turn, _State.OVER if turn.asked is None else _State.ASKED)

    def _back_to(self, turn: Turn, state: _State) -> None:
        """Dealt with for now. OVER, too, where its own thread waits for it."""
        with self._lock:
            # 1) Its own thread wants it back; 2) waiting again, it would never be given back.
            turn.state = state if turn.over is None else _State.OVER
            if turn.state is _State.WAITING:
                self._waiting[turn] = None
            is_over, over = turn.state is _State.OVER, turn.over
        if is_over:
            turn.wake.set()
        if over is not None:
            over.set()

    def _take_in(self) -> None:
        """Look at all that are under way, and then read those that are there: so none of them waits for the others
        before it counts as answered, and what was asked for together goes on together."""
        under_way, self._under_way = self._under_way, []
        there = [turn for turn in under_way if self._is_there(turn)]
        for turn in there:
            if self._claim(turn, _State.ASKED):
                self._read(turn)

    def _is_there(self, turn: Turn) -> bool:
        if not self._claim(turn, _State.ASKED):
            self._is_full = False
            return False
        coming, state = Coming.TO_BE_WAITED_FOR, _State.OVER
        try:
            if turn.asked is not None:
                coming = turn.asked.look()
            turn.there_at = self._runtime.monotonic()
            is_slow = coming is Coming.NOT_YET and turn.there_at >= turn.asked_at + _SLOW
            if coming is not Coming.TO_BE_WAITED_FOR and not is_slow:
                state = _State.ASKED
            if state is _State.ASKED and coming is Coming.NOT_YET:
                self._under_way.append(turn)
            else:
                self._is_full = False
        finally:
            self._back_to(turn, state)
        return state is _State.ASKED and coming is Coming.THERE

    def _read(self, turn: Turn) -> None:
        if turn.asked is None or not self._gate.reserve_spare(LARGEST_FETCH_BYTES):
            # Its own thread waits for the space.
            self._back_to(turn, _State.OVER)
            return
        asked, turn.asked = turn.asked, None
        state, kept = _State.OVER, 0
        try:
            answer = page_of(turn, asked, self._meter), turn.there_at
            following = turn.nothing_new(answer)
            if following is None:
                turn.answer, kept = answer, bytes_kept(answer)
            else:
                turn.iterator, turn.window = following
                state = _State.WAITING
        except PyKclError as error:
            turn.error = error
        finally:
            self._gate.release(LARGEST_FETCH_BYTES - kept)
            self._back_to(turn, state)


def page_of(turn: Turn, asked: Asked, meter: Meter) -> Fetched:
    """Wait for it. Measured from when it was asked for, whoever waits."""
    finished = partial(meter.took, catalog.GET_RECORDS, turn.shard_id, turn.asked_at)
    try:
        fetched = asked.page()
    except PyKclError:
        finished(worked=False)
        raise
    finished(worked=True)
    return fetched
