"""The gate that the writes of a worker to lease rows pass: as many in flight as the table answers in time.

A worker that starts with a thousand shards has a thousand writes to send at the same moment. Sent together, most of
them run into their time-outs, although they take effect, and so do the heartbeats between them. So the number in
flight follows the answers, as that of TCP does: one more for each answer as long as they come fast, then one more for
each round of them, and half as many after one that is late.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

from pykcl.errors import TemporaryError
from pykcl.runtime import Event, Runtime


class Rank(IntEnum):
    """Kinds of writes in the order in which the gate lets them go. HEARTBEAT never waits, and counts as in flight."""

    HEARTBEAT = 0
    CHECKPOINT = 1
    TAKE = 2
    RELEASE = 3


FIRST_WINDOW = 16.0
_LEAST, _MOST = 2.0, 128.0
_AT_LEAST_EVERY = 0.25
"""Seconds after which one more write goes, whatever is in flight: a table that answers late need not be a busy one."""
_REMEMBERED = 10
"""Times `in_time` for which a write without an answer counts, if none follows: heartbeats in doubt follow sooner."""
_CHECK_EVERY = 1.0
"""Seconds between two checks of a write that waits, whether it is still wanted."""


@dataclass(frozen=True, slots=True)
class WriteWindow:
    """The number of writes that may be in flight, and how it follows the answers. Times are monotonic seconds.

    in_time: seconds within which an answer is in time; it is fast within half of them. size: the number. ceiling: below
    it the size grows with each fast answer, above it with each round. shrunk_at: when it was halved last. sent_at: when
    a write was last let go.
    """

    in_time: float
    size: float = FIRST_WINDOW
    ceiling: float = inf
    shrunk_at: float = -inf
    sent_at: float = -inf

    def lets_go(self, in_flight: int, now: float) -> bool:
        """Return whether one more write may go beside those in flight."""
        return in_flight < self.size or now >= self.sent_at + _AT_LEAST_EVERY

    def sent(self, now: float) -> WriteWindow:
        return replace(self, sent_at=now)

    def answered(self, sent: float, now: float, *, was_full: bool) -> WriteWindow:
        """Return the window after a write that was let go at `sent` and answered.

        was_full: more could have been sent. A window that is not used proves nothing.
        """
        took = now - sent
        if took > self.in_time:
            return self.late(sent, now)
        if not was_full:
            return self
        # Fast only while the answers are, too: those on their way were sent by a window half as large.
        is_fast = self.size < self.ceiling and took <= self.in_time / 2
        step = 1.0 if is_fast else 1.0 / self.size
        return replace(self, size=min(_MOST, self.size + step))

    def late(self, sent: float, now: float) -> WriteWindow:
        """Return the window after a write that got no answer, or a late one.

        Those sent before it was halved say nothing about the half: a whole window that is late is one event.
        """
        if sent < self.shrunk_at:
            return self
        half = max(_LEAST, self.size / 2)
        return replace(self, size=half, ceiling=half, shrunk_at=now)


@dataclass(slots=True, eq=False)
class _Waiting:
    rank: Rank
    number: int
    go: Event
    is_let_go: bool = field(default=False)

    def __lt__(self, other: _Waiting) -> bool:
        return (self.rank, self.number) < (other.rank, other.number)


class WriteGate:
    """One for each worker. Used by any thread.

    in_time: seconds, as in `WriteWindow`: half a request time-out. heartbeats_due: those that wait for a thread to send
    them, set by the LeaseRenewer. They count as in flight: its threads are few, and each heartbeat would have to wait
    for an answer behind a window of takes. While no write waits, none takes a lock.
    """

    def __init__(self, runtime: Runtime, in_time: float) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._in_flight: dict[object, float] = {}
        # When the last of the answered writes was let go, and the first of those without an answer.
        self._answered, self._unanswered = -inf, inf
        self._remembered_until = -inf
        self._waiting: list[_Waiting] = []
        self._number = 0
        self.heartbeats_due = 0
        self.window = WriteWindow(in_time)

    @contextmanager
    def passed(self, rank: Rank, *, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[bool]:
        """Wait for the write's turn; it is in flight within the block. One that raises TemporaryError had no answer;
        if it does so in time, it was not sent.

        is_wanted: asked once a second and at each `check_again` while it waits. False, or an exception that it raises,
        ends that. The value is False then, and nothing may be sent.
        """
        write = object()
        if not self._enter(write, rank, is_wanted):
            yield False
            return
        was_answered = True
        try:
            yield True
        except TemporaryError:
            was_answered = False
            raise
        finally:
            self._leave(write, was_answered)

    def is_silent(self) -> bool:
        """Return whether writes wait for answers, for longer than one request may, and none let go since has got one.

        Then other workers may have got none for theirs either, and that their leases stand still proves nothing. Not
        for ever. 1) A heartbeat gets no answer; 2) the lease is lost, the only one of this worker, which writes no
        more; 3) it would take, or as a leader give away, no lease of a dead worker.
        """
        now = self._runtime.monotonic()
        waiting = [
            since for since in tuple(self._in_flight.values()) if now - since > 2 * self.window.in_time
        ]
        if self._unanswered > self._answered and now < self._remembered_until:
            waiting.append(self._unanswered)
        return self._answered < min(waiting, default=inf) < inf

    def check_again(self) -> None:
        """Have all that wait check at once whether they are still wanted."""
        with self._lock:
            for waiting in self._waiting:
                waiting.go.set()

    def _enter(self, write: object, rank: Rank, is_wanted: Callable[[], bool]) -> bool:
        now = self._runtime.monotonic()
        if rank is Rank.HEARTBEAT or (not self._waiting and self._lets_go(now)):
            # Two threads that come here at once may both go, where there is room for one.
            self._in_flight[write] = now
            self.window = self.window.sent(now)
            return True
        with self._lock:
            self._number += 1
            me = _Waiting(rank, self._number, self._runtime.event())
            insort(self._waiting, me)
        try:
            return self._wait(me, write, is_wanted)
        finally:
            with self._lock:
                if not me.is_let_go:
                    self._waiting.remove(me)
            self._wake_first()

    def _lets_go(self, now: float) -> bool:
        return self.window.lets_go(len(self._in_flight) + self.heartbeats_due, now)

    def _wait(self, me: _Waiting, write: object, is_wanted: Callable[[], bool]) -> bool:
        while True:
            # Cleared before the checks of what it announces.
            me.go.clear()
            if not is_wanted():
                return False
            with self._lock:
                is_first = self._waiting[0] is me
                now = self._runtime.monotonic()
                if is_first and self._lets_go(now):
                    del self._waiting[0]
                    me.is_let_go = True
                    self._in_flight[write] = now
                    self.window = self.window.sent(now)
                    return True
                pause = self.window.sent_at + _AT_LEAST_EVERY - now if is_first else _CHECK_EVERY
            me.go.wait(max(pause, 0.001))

    def _leave(self, write: object, was_answered: bool) -> None:
        now, was_full = self._runtime.monotonic(), bool(self._waiting)
        sent = self._in_flight.pop(write)
        if was_answered:
            self._answered = max(self._answered, sent)
            self.window = self.window.answered(sent, now, was_full=was_full)
        elif now - sent > self.window.in_time:
            self._remembered_until = now + _REMEMBERED * self.window.in_time
            self._unanswered = sent if self._answered >= self._unanswered else min(self._unanswered, sent)
            self.window = self.window.late(sent, now)
        if self._waiting:
            self._wake_first()

    def _wake_first(self) -> None:
        """Wake the first one that waits: there may be room for it, or it has become the first."""
        with self._lock:
            if self._waiting:
                self._waiting[0].go.set()
