"""Tumbling windows of a handler: which records belong to one, when it closes, and the state that its calls hand on.

A window has the records that arrived in a span of so many seconds; the spans follow one another from the epoch on. Its
state is in memory only. The checkpoint stays before the first record of an open window, so the next owner of the shard
reads all of its records again, and builds the same state.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pykcl.errors import ConfigError
from pykcl.model.record import Record

LONGEST = 900
"""Seconds; the longest window, as in Lambda."""
GRACE_MILLIS = 120_000
"""Time after the end of a window at which it closes though no later record has come."""
MOST_STATE = 1024 * 1024
"""Bytes of a state, above which its window ends early."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one call. It has the records that arrived from `start` on, and before `end`.

    state: what the call before it has returned, a copy; None at the beginning of the window. shard_id: name of the
    shard. is_final: the window is closed, and the call has no records. is_terminated_early: it is closed because its
    state became too large; later records of the same span begin with no state.
    """

    start: datetime
    end: datetime
    state: Any
    shard_id: str
    is_final: bool = False
    is_terminated_early: bool = False


def checked_seconds(given: object) -> int | None:
    """Return the length of a window; None: there are none. Raises ConfigError."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or given % 1 != 0:
        raise ConfigError(f"window takes whole seconds, not {given!r:.50}. Do: window=60.")
    if not 1 <= given <= LONGEST:
        raise ConfigError(f"window={given:g} is out of range. Do: write 1 to {LONGEST} seconds.")
    return int(given)


# -- which records belong to a window, and when it closes ------------------------------------------------------


def start_of(arrived_millis: float, length: int) -> int:
    """Return the start of the window that a time lies in. All in epoch milliseconds; length: of a window."""
    return int(arrived_millis // length) * length


@dataclass(frozen=True, slots=True)
class Run:
    """Records from `first` to `stop`, all of the window that begins at `start`."""

    start: int
    first: int
    stop: int


def runs_of(arrivals: Iterable[float], length: int, opened: int | None) -> Iterator[Run]:
    """Cut records where a new window begins. opened: start of the open window; None: there is none.

    A record of a later window closes the open one. A late record, of an earlier window, belongs to the open one: a
    closed window does not come back.
    """
    start, first, stop = opened, 0, 0
    for at, arrived in enumerate(arrivals):
        own = start_of(arrived, length)
        if start is not None and own > start and at > first:
            yield Run(start, first, at)
            first = at
        start = own if start is None else max(start, own)
        stop = at + 1
    if start is not None and stop > first:
        yield Run(start, first, stop)


def is_over(start: int, length: int, read_upto: float) -> bool:
    """Return True for a window that no record comes for any more. read_upto: the shard is read up to this time."""
    return read_upto >= start + length + GRACE_MILLIS


# -- state -----------------------------------------------------------------------------------------------------


class NoState(Exception):
    """A call with records returned no state: what it has counted would be lost."""


class StateNotKept(Exception):
    """A call returned a state that cannot be copied."""


@dataclass(frozen=True, slots=True)
class StateForm:
    """The form in which a state is kept between two calls. Each call gets a copy: one that fails has changed nothing.

    dump: raises any Exception for what has not that form. empty: the state at the beginning of a window.
    """

    name: str
    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]
    empty: bytes


def _number(value: object) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


PICKLED = StateForm("pickle", pickle.dumps, pickle.loads, pickle.dumps(None))
"""Of functions: whatever pickle copies."""
JSON = StateForm(
    "JSON", lambda state: json.dumps(state, default=_number, ensure_ascii=False).encode(), json.loads, b"{}"
)
"""Of Lambda handlers."""


# -- one shard -------------------------------------------------------------------------------------------------


class ShardWindows:
    """The windows of one shard, one after the other. A `pykcl.worker.window_delivery.Windows`.

    The delivery cuts batches, and opens the window of what it delivers; the handler's adapter keeps its state. Used by
    the thread of the shard; `is_due` also by the one that shards at rest share.
    """

    def __init__(self, seconds: int, form: StateForm) -> None:
        self.seconds, self._form = seconds, form
        self._length = seconds * 1000
        self._start: int | None = None
        self._earliest = 0
        self._state = form.empty
        self._copies: list[Any] = []
        self._has_calls = False

    # -- for the delivery --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Records were delivered, and the window that they belong to is not closed."""
        return self._start is not None

    @property
    def is_full(self) -> bool:
        """The window is to be closed, as its state is too large."""
        return len(self._state) > MOST_STATE

    def runs(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Cut records into those of one window each, as they are to be delivered. Close a window in between if it ends
        before the next ones: `ends_before`."""
        arrivals = map(self._arrival_of, records)
        for run in runs_of(arrivals, self._length, self._start):
            yield records[run.first : run.stop]

    def ends_before(self, record: Record) -> bool:
        """Return True if a window is open, and the record is of a later one."""
        return self._start is not None and start_of(self._arrival_of(record), self._length) > self._start

    def open_for(self, record: Record) -> None:
        """Open the window of a record that is about to be delivered, unless one is open."""
        if self._start is None:
            self._start = start_of(self._arrival_of(record), self._length)

    def _arrival_of(self, record: Record) -> float:
        """Return the arrival of a record; that of a late one no earlier than a window that may still be opened.

        1) A window ends early; 2) a record of the window before it comes late; 3) as a window of its own it would have
        a second final call, which overwrites what the first has written by its start.
        """
        return max(record.arrived_at_millis, self._earliest)

    def is_due(self, read_upto: float) -> bool:
        """Return True if the open window is to be closed, as the shard is read up to this time, epoch milliseconds."""
        start = self._start
        return start is not None and is_over(start, self._length, read_upto)

    # -- for the adapter ---------------------------------------------------------------------------------------

    @property
    def has_calls(self) -> bool:
        """A call of the open window has returned: there is something to close."""
        return self._has_calls

    def window(self, shard_id: str, *, is_final: bool = False) -> Window:
        """Return the open window for a call. Raises ConfigError where the records were delivered without any."""
        if self._start is None:
            raise ConfigError(
                f"Records of {shard_id} were handed over outside of a window, which only a worker opens. Do: call the "
                "handler by a Worker, run_processor or pykcl run."
            )
        ends = self._start + self._length
        return Window(
            _time(self._start),
            _time(ends),
            self._copies.pop() if self._copies else self._form.load(self._state),
            shard_id,
            is_final,
            is_final and self.is_full,
        )

    def keep(self, state: object) -> None:
        """Keep the state that a call with records has returned. Raises NoState, StateNotKept."""
        if state is None:
            raise NoState(
                "a call with records returned no state. Do: return the state, also if it is as before"
            )
        try:
            dumped = self._form.dump(state)
            # Now, not when it is needed: the next call would fail for it, and the final one each time. That call gets
            # this copy, and another one if it is tried again.
            copy = self._form.load(dumped)
        except Exception as error:
            raise StateNotKept(
                f"the state, {type(state).__name__}, cannot be copied by {self._form.name}. Do: return plain data"
            ) from error
        self._state, self._copies, self._has_calls = dumped, [copy], True

    def closed(self) -> None:
        """Forget the window and its state: its final call has returned, or there was none to make."""
        if self._start is not None:
            self._earliest = self._start if self.is_full else self._start + self._length
        self._start, self._state, self._copies, self._has_calls = None, self._form.empty, [], False


def _time(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, tz=UTC)


def fields_of_event(window: Window, stream_arn: str) -> dict[str, Any]:
    """Return what the event of a Lambda function has besides its Records."""
    return {
        "window": {"start": _text(window.start), "end": _text(window.end)},
        "state": window.state,
        "shardId": window.shard_id,
        "eventSourceARN": stream_arn,
        "isFinalInvokeForWindow": window.is_final,
        "isWindowTerminatedEarly": window.is_terminated_early,
    }


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
