"""Delivery of events to the log, to listeners that are called at once, and to listeners that may take their time.

None of them can harm a lease: one that raises is reported, and one of the second kind may even never return.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pykcl.errors import TemporaryError
from pykcl.events import Event, WorkerStopped
from pykcl.runtime import Runtime, SystemRuntime, Task, error_of

log = logging.getLogger("pykcl")

Listener = Callable[[Event], None]
EVENT_OF_RECORD = "pykcl_event"
"""Attribute of a LogRecord under which a formatter finds the event that it is about."""
MOST_WAITING = 10_000
"""Events that wait for one slow listener, at most; beyond it the newest are dropped, and counted."""
_IDLE_SECONDS = 5.0
_MINUTE = 60.0
_ONCE = ("records", "first", "last")
"""Fields that the line of a repeated event leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Event):
    """Delivered to one listener only: it took so long over earlier events that some were dropped."""

    LEVEL = logging.WARNING
    TEXT = "events dropped for a slow listener"
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesLeftOut(Event):
    """A line of the log only, no event for listeners: they had each event. left_out: kind of lines."""

    LEVEL = logging.WARNING
    TEXT = "lines of one kind left out of the log"
    left_out: str
    lines: int
    seconds: float


@dataclass(slots=True)
class _Minute:
    """Lines of one kind. began: monotonic seconds."""

    began: float
    lines: int = 0
    left_out: int = 0


class EventLog:
    """The listener that is always there. Of events that each record or each attempt may bring, it writes MOST_LINES of
    a kind in a minute, and counts the others: one line for them all, with the first event behind that minute.

    now: monotonic seconds. Any thread may call it; it takes no lock: where two meet, a count may be one off.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._minutes: dict[str, _Minute] = {}

    def hear(self, event: Event) -> None:
        if self._minutes:
            self._end_minutes(self._now(), is_last=isinstance(event, WorkerStopped))
        if event.MOST_LINES is None or not log.isEnabledFor(event.level):
            log_event(event)
            return
        minute = self._minutes.get(event.line_kind)
        if minute is None:
            minute = self._minutes[event.line_kind] = _Minute(self._now())
        if minute.lines < event.MOST_LINES:
            minute.lines += 1
            log_event(event)
        else:
            minute.left_out += 1

    def _end_minutes(self, now: float, *, is_last: bool) -> None:
        for kind, minute in tuple(self._minutes.items()):
            seconds = now - minute.began
            if not is_last and seconds < _MINUTE:
                continue
            # Of two threads that come here at once, one has it.
            if self._minutes.pop(kind, None) is not None and minute.left_out:
                log_event(LinesLeftOut(left_out=kind, lines=minute.left_out, seconds=seconds))


def log_event(event: Event) -> None:
    """Write one log line, `key=value`, foreign text through %r."""
    if log.isEnabledFor(event.level):
        log.log(event.level, "%s %s", event.TEXT, words_of(event), extra={EVENT_OF_RECORD: event})


def words_of(event: Event) -> str:
    """Its fields as `key=value`, in one printable line; behind them what to do about a known mistake."""
    left_out = _ONCE if event.is_repeated else ()
    shown = [field.name for field in fields(event) if field.repr and field.name not in left_out]
    values = {name: getattr(event, name) for name in shown}
    return " ".join(f"{name}={_shown(value)}" for name, value in {**values, **explained(event)}.items())


def explained(event: Event) -> dict[str, str]:
    """Code, hint and docs of an event about a known mistake, the code alone where it is repeated; of any other
    nothing."""
    if event.code is None:
        return {}
    if event.is_repeated:
        return {"code": event.code}
    return {"code": event.code, "hint": event.hint or "", "docs": event.docs or ""}


def line_of(event: Event) -> str:
    """Its line in the log."""
    return f"{event.TEXT} {words_of(event)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, tuple):
        return ",".join(_shown(item) for item in value) or "-"
    if isinstance(value, str):
        return value if value.replace("-", "").replace(":", "").isalnum() else repr(value)
    return "-" if value is None else str(value)


def _name(listener: object) -> str:
    return str(getattr(listener, "__name__", type(listener).__name__))


class EventFan:
    """Hands each event to every listener, at once; one that raises is reported once and then left out."""

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        names: Mapping[str, str] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """names: for the hints of events, by the word that stands for them. now: monotonic seconds."""
        self._listeners: list[Listener] = [EventLog(now or SystemRuntime().monotonic).hear, *listeners]
        self._names = names or {}

    def emit(self, event: Event) -> None:
        event = event.with_names(self._names)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a listener must never end a lease
                # A new list, so that two threads that meet the same failing listener do not trip over each other.
                self._listeners = [other for other in self._listeners if other is not listener]
                log.error(
                    "event listener raised and is left out from now on listener=%r error=%s",
                    _name(listener),
                    type(error).__name__,
                )


class Relay:
    """Hands events, in order, to one listener that may wait as long as it likes: it has a thread of its own.

    The thread comes with the first event and goes when there has been none for a while. Whatever the listener raises is
    logged, the first time and again after it worked; it goes on being called.
    """

    def __init__(self, listener: Listener, runtime: Runtime, *, most: int = MOST_WAITING) -> None:
        self._listener = listener
        self._runtime = runtime
        self._most = most
        self._lock = runtime.lock()
        self._waiting: deque[Event] = deque()
        self._came = runtime.event()
        self._idle = runtime.event()
        self._idle.set()
        self._has_thread = False
        self._task: Task | None = None
        self._dropped = 0
        self._is_failing = self._is_kept = False

    def hear(self, event: Event) -> None:
        """Never waits for the listener, and never raises what it does."""
        with self._lock:
            if len(self._waiting) >= self._most:
                self._dropped += 1
                first = self._dropped == 1
            else:
                self._waiting.append(event)
                first = False
            self._idle.clear()
            starts, self._has_thread = not self._has_thread, True
        self._came.set()
        if first:
            log.error(
                "event listener does not return, events are dropped listener=%r waiting=%d",
                _name(self._listener),
                self._most,
            )
        if starts:
            self._start()

    def keep(self, kept: bool) -> None:
        """Let the thread stay also when it has nothing to do, or no more: once the program has ended, there is no new
        one to be had for the last events."""
        self._is_kept = kept

    def drain(self, within: float) -> bool:
        """Wait until the listener has had every event, for so many seconds at most; whether it has.

        Called by the listener itself (it stops the worker, say) it does not wait: that one has an event in hand.
        """
        if self._task is not None and self._runtime.is_current(self._task):
            return False
        return self._idle.wait(within)

    def _start(self) -> None:
        try:
            self._task = self._runtime.spawn("pykcl-listener", self._run)
        except TemporaryError as error:
            # No thread to be had now: the next event tries again.
            with self._lock:
                self._has_thread = False
            log.error("no thread for an event listener error=%s", type(error).__name__)

    def _run(self) -> None:
        while True:
            event = self._next()
            if event is not None:
                self._deliver(event)
                continue
            self._came.clear()
            # Cleared before the check under the lock: a later event is seen there, or ends the wait.
            with self._lock:
                is_empty = not self._waiting and not self._dropped
                if is_empty:
                    self._idle.set()
            if is_empty and not self._came.wait(_IDLE_SECONDS) and self._leaves():
                return

    def _next(self) -> Event | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                return EventsDropped(events=dropped)
        return None

    def _leaves(self) -> bool:
        with self._lock:
            # Under the lock, where `hear` asks for a thread: it finds this one still there, or starts another.
            self._has_thread = bool(self._waiting or self._dropped or self._is_kept)
            return not self._has_thread

    def _deliver(self, event: Event) -> None:
        error = error_of(lambda: self._listener(event))
        if error is not None and not self._is_failing:
            log.error(
                "event listener raised listener=%r event=%s error=%s",
                _name(self._listener),
                type(event).__name__,
                type(error).__name__,
            )
        # Whatever it raises, the relay stays for its further events.
        self._is_failing = error is not None
