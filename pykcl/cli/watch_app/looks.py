"""Looks at a lease table again and again, and makes of every look a frame that can be shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pykcl.cli.fleet_options import Target
from pykcl.cli.lease_tables import answer_of
from pykcl.cli.watch_app.columns import LeaseRow, lease_row
from pykcl.errors import PyKclError
from pykcl.operate.edges import Edge, edges_between
from pykcl.operate.family_tree import TreeLine, tree_lines
from pykcl.operate.lease_states import LeaseStatus, states_of
from pykcl.operate.owner_kind import OwnerKind, owner_kinds
from pykcl.operate.owner_marks import NO_MARKS, Marks
from pykcl.operate.sampling import DEFAULT_FAILOVER, Observation, Sampler, everybody_moved
from pykcl.operate.table_view import TableView
from pykcl.runtime import Runtime, Task

MOST_EVENTS = 1000
LEAST_PAUSE = 1.0
"""Seconds between two looks, whatever keys are pressed."""
_LONGEST_PAUSE = 10.0


class Scans(Protocol):
    """A lease table: `operate.scanning.TableScanner` is one."""

    def scan(self) -> TableView: ...

    @property
    def pace(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Event:
    """serial: counts from 1. at: epoch milliseconds."""

    serial: int
    at: int
    edge: Edge


@dataclass(frozen=True)
class Frame:
    """All there is to show.

    seen_at: when the table was last seen, on the runtime's monotonic clock; None: never yet. trouble: why the looks
    since then have failed, "" where they have not; trouble_since: of the first of them, same clock. events: the newest
    first. The other fields are of the last look that succeeded.
    """

    application: str
    seen_at: float | None = None
    trouble: str = ""
    trouble_since: float = 0.0
    rows: tuple[LeaseRow, ...] = ()
    tree: tuple[TreeLine, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    found: Observation = field(default_factory=lambda: Observation(TableView()))
    states: Mapping[str, LeaseStatus] = field(default_factory=dict)
    kinds: Mapping[str, OwnerKind] = field(default_factory=dict)
    marks: Marks = NO_MARKS


class Looker:
    """Used by one thread at a time."""

    def __init__(self, target: Target, table: Scans, runtime: Runtime) -> None:
        self._target, self._table, self._runtime = target, table, runtime
        self._sampler = Sampler(table.scan, runtime)
        self._failover = target.failover or DEFAULT_FAILOVER
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._serial = 0
        self._states: Mapping[str, LeaseStatus] | None = None
        self.frame = Frame(application=str(target.table))

    @property
    def failed(self) -> bool:
        return bool(self.frame.trouble)

    def look(self) -> Frame:
        """Raises what the scan raises."""
        return self._seen(self._sampler.look())

    def look_well(self) -> Frame:
        """Looks until every owned lease has moved, or long enough to tell that some do not. Raises as `look`."""

        def settled(found: Observation) -> bool:
            self._remember(states_of(found, self._failover))
            return everybody_moved(found)

        return self._seen(self._sampler.look_twice(self._target.failover, until=settled))

    def step(self) -> Frame:
        """One look. What the surroundings do wrong is in the frame, beside what was seen before."""
        try:
            return self.look()
        except PyKclError as error:
            return self.failing(error)

    def failing(self, error: PyKclError) -> Frame:
        """The frame that tells this failure."""
        since = self.frame.trouble_since
        if not self.frame.trouble:
            since = self._runtime.monotonic()
            self._log([Edge("trouble", "the lease table cannot be looked at", tone="bad")])
        self.frame = replace(
            self.frame, trouble=str(error), trouble_since=since, events=tuple(reversed(self._events))
        )
        return self.frame

    def _seen(self, found: Observation) -> Frame:
        states = states_of(found, self._failover)
        kinds = owner_kinds(found.view, found.renewed_after_end)
        if self.frame.trouble:
            seconds = self._runtime.monotonic() - self.frame.trouble_since
            self._log([Edge("trouble", f"the table answers again, after {seconds:.0f} s", tone="good")])
        self._remember(states)
        answer = answer_of(self._target, found, states, kinds, before=self.frame.marks)
        pace = [self._table.pace] if self._table.pace else []
        self.frame = Frame(
            application=self.frame.application,
            seen_at=self._runtime.monotonic(),
            rows=tuple(lease_row(row) for row in answer.rows),
            tree=tuple(tree_lines(states)),
            facts=answer.facts,
            hints=(*answer.hints, *pace),
            events=tuple(reversed(self._events)),
            found=found,
            states=states,
            kinds=kinds,
            marks=answer.marks,
        )
        return self.frame

    def _remember(self, states: Mapping[str, LeaseStatus]) -> None:
        """Of the first look nobody can say what happened before it."""
        if self._states is not None:
            self._log(edges_between(self._states, states))
        self._states = states

    def _log(self, edges: list[Edge]) -> None:
        now = self._runtime.utcnow_millis()
        for edge in edges:
            self._serial += 1
            self._events.append(Event(self._serial, now, edge))


class Looking:
    """The thread. publish: called from it with each frame, or with what ended it, which is a defect of ours."""

    def __init__(
        self,
        looker: Looker,
        runtime: Runtime,
        every: float,
        publish: Callable[[Frame | Exception], None],
    ) -> None:
        self._looker, self._runtime, self._every, self._publish = looker, runtime, every, publish
        self._over, self._please = runtime.event(), runtime.event()
        self._failures = 0
        self._task: Task | None = None
        self.paused = False
        self.asked_at: float | None = None
        """When the look began that is under way, monotonic seconds; None while none is. Read by any thread."""

    def start(self) -> None:
        self._task = self._runtime.spawn("pykcl-leases-watch", self._run)

    def stop(self) -> None:
        """A scan that is under way is not waited for."""
        self._over.set()
        self._please.set()

    def hurry(self) -> None:
        """Look at once, or as soon as may be."""
        self._please.set()

    def pause(self, paused: bool) -> None:
        """While paused, the table is looked at only by `hurry`."""
        self.paused = paused
        if not paused:
            self._please.set()

    def _run(self) -> None:
        try:
            # The caller has looked already.
            self._rest(self._every)
            while not self._over.is_set():
                self.asked_at = began = self._runtime.monotonic()
                frame = self._looker.step()
                self.asked_at = None
                self._failures = self._failures + 1 if self._looker.failed else 0
                if self._over.is_set():
                    return
                self._publish(frame)
                self._rest(self._next_pause(self._runtime.monotonic() - began))
        except Exception as error:  # noqa: BLE001 - told by the main thread, which is the one with the terminal
            self._publish(error)

    def _next_pause(self, took: float) -> float:
        """A table that is slow to scan is scanned half of the time at most."""
        return max(self._every, took, min(_LONGEST_PAUSE, float(self._failures)))

    def _rest(self, pause: float) -> None:
        # A key that is held down must not become a scan each time.
        self._over.wait(min(pause, LEAST_PAUSE))
        self._please.wait(max(0.0, pause - LEAST_PAUSE))
        # Checked after the wait: whoever pauses in between is heard, and whoever goes on sets `_please` afterwards.
        if self.paused and not self._please.is_set():
            self._please.wait()
        self._please.clear()
