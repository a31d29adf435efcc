"""Pollers of the page, each in a thread of its own: lease table, lag of the shards, worker pages.

`FleetPoller` compares each scan of the lease table with the previous one, and publishes the changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pykcl.errors import PyKclError, TemporaryError, printable
from pykcl.model.fleet_rows import LeaderLock
from pykcl.model.lease import Lease
from pykcl.operate.fleet import FleetOverview, fleet_of
from pykcl.operate.hints import LeaseChange, changes_between, hints_of
from pykcl.operate.lag import MAX_PARALLEL, LagSource, with_standstills
from pykcl.operate.snapshot import Observation, Sampler, TableSnapshot, known_failover, shown
from pykcl.operate.states import (
    NO_MARKS,
    LeaseState,
    LeaseStatus,
    Marks,
    counts,
    marks_among,
    owner_kinds,
    states_of,
)
from pykcl.operate.unleased import Unleased
from pykcl.operate.worker_status import StatusClient, WorkerReport
from pykcl.runtime import Runtime, Task
from pykcl.ui.state_store import Rates, StateStore
from pykcl.ui.view import Measured, OwnerBook, PageView, ViewBuilder, event_of, fleet_values

log = logging.getLogger("pykcl.ui")

SHARDS_PER_SECOND = 16.0
READS_PER_ROUND = 3
"""Max reads of one shard. A stretch without records may take several rounds."""
_PAUSE_AFTER_ERROR = 10.0


class LagPoller:
    """Lag of all shards from Kinesis, a few at a time. latest: by lease key; a value is as old as its `at`.

    A round of many shards is slow on purpose: all readers of a shard share its five reads a second.

    The shards are listed for it, as one that has no lease yet is behind, too.

    source: opened for the first leases, and again after an error. every: seconds from one round to the
    next, if there are few shards.
    """

    def __init__(self, source: Callable[[], ShardSource], every: float, runtime: Runtime) -> None:
        self._open, self._every, self._runtime = source, every, runtime
        self._lock = runtime.lock()
        self._over = runtime.event()
        self._leases: Sequence[Lease] = ()
        self._view = TableSnapshot()
        self._unleased: Sequence[Unleased] = ()
        self._source: ShardSource | None = None
        self._task: Task | None = None
        self._latest: dict[str, Measured] = {}
        self._problem = ""

    def start(self) -> None:
        self._task = self._runtime.spawn("pykcl-ui-lag", self._run)

    def stop(self) -> None:
        self._over.set()

    def watch(self, leases: Sequence[Lease], view: TableSnapshot) -> None:
        """Set the leases of the next round: those that may be read now, and those that shards without one are to get.

        view: the scan that they are from.
        """
        with self._lock:
            self._leases, self._view = tuple(leases), view
            for gone in self._latest.keys() - {lease.key for lease in leases}:
                del self._latest[gone]

    def latest(self) -> dict[str, Measured]:
        with self._lock:
            return dict(self._latest)

    def unleased(self) -> Sequence[Unleased]:
        """Return the shards that had no lease when they were listed last."""
        with self._lock:
            return self._unleased

    @property
    def problem(self) -> str:
        """Error of the last round; "" if there was none."""
        return self._problem

    @property
    def description(self) -> str:
        """Source of the lag and its cost, as text for the page."""
        count = len(self._leases)
        seconds = max(self._every, count / SHARDS_PER_SECOND)
        return (
            f"Lag: Kinesis, each shard every {seconds:.0f} s; it costs one of the 5 reads a second of the shard that "
            "all its readers share, and up to three while it searches for the next record."
        )

    def _run(self) -> None:
        while not self._over.is_set():
            started = self._runtime.monotonic()
            with self._lock:
                leases = self._leases
            try:
                self._problem = self._round(leases)
                rest = self._every if leases or self._source is not None else 0.5
            except PyKclError as error:
                self._problem = str(error)
                rest = _PAUSE_AFTER_ERROR
                if not isinstance(error, TemporaryError):
                    self._source = None
            except Exception as error:
                # A defect must not end the thread: the page would show an old lag for ever.
                log.exception("the lag could not be measured, because of a defect")
                self._problem = f"the lag could not be measured ({type(error).__name__}, see the log)"
                rest, self._source = _PAUSE_AFTER_ERROR, None
            self._over.wait(max(0.2, rest - (self._runtime.monotonic() - started)))

    def _round(self, leases: Sequence[Lease]) -> str:
        """Return what could not be found out, as text."""
        with self._lock:
            view = self._view
        if view.leases and self._source is None:
            self._source = self._open()
        unlisted = self._list(self._source, view) if self._source is not None else ""
        for first in range(0, len(leases), MAX_PARALLEL):
            if self._over.is_set() or self._source is None:
                break
            started = self._runtime.monotonic()
            part = leases[first : first + MAX_PARALLEL]
            now_leases = self._as_they_are(part)
            found = with_standstills(now_leases, self._source.lags(now_leases))
            now = self._runtime.utcnow_millis()
            with self._lock:
                self._latest |= {
                    key: Measured(now, lag.behind, "Kinesis", lag.why or _WORDS.get(lag.verdict, ""))
                    for key, lag in found.items()
                }
            if first + MAX_PARALLEL < len(leases):
                spent = self._runtime.monotonic() - started
                self._over.wait(max(0.0, MAX_PARALLEL / SHARDS_PER_SECOND - spent))

        return unlisted

    def _list(self, source: ShardSource, view: TableSnapshot) -> str:
        unleased: Sequence[Unleased] = ()
        problem = ""
        try:
            unleased = source.unleased(view.leases, view.unreadable.keys())
        except PyKclError as error:
            problem = f"Shards without a lease are not shown: {error}"
        with self._lock:
            self._unleased = unleased
        return problem

    def _as_they_are(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases of the latest scan: those at the start of a long round are old."""
        with self._lock:
            now = {lease.key: lease for lease in self._leases}
        return [now[lease.key] for lease in leases if lease.key in now]


class ShardSource(LagSource, Protocol):
    """Measures the lag of leases, and finds the shards without one."""

    def unleased(self, leases: Mapping[str, Lease], unreadable: Collection[str]) -> list[Unleased]: ...


_WORDS = {
    "gone": "Kinesis has dropped the shard",
    "trimmed": "Kinesis has dropped the checkpointed record, and perhaps unread ones after it",
}


WORKERS_PER_SECOND = 8.0


class WorkerPoller:
    """Pages of the workers. A worker that does not respond delays nothing else. latest: last page of each, in order."""

    def __init__(self, pages: StatusClient, every: float, runtime: Runtime) -> None:
        self._pages, self._runtime = pages, runtime
        self._every = max(every, len(pages.endpoints) / WORKERS_PER_SECOND)
        self._lock = runtime.lock()
        self._over = runtime.event()
        self._latest: dict[int, list[WorkerReport]] = {}

    def start(self) -> Task:
        return self._runtime.spawn("pykcl-ui-workers", self._run)

    def stop(self) -> None:
        self._over.set()

    def latest(self) -> list[WorkerReport]:
        with self._lock:
            return [page for number in sorted(self._latest) for page in self._latest[number]]

    def _run(self) -> None:
        while not self._over.is_set():
            started = self._runtime.monotonic()
            self._pages.ask(on_answer=self._take)
            self._over.wait(max(0.1, self._every - (self._runtime.monotonic() - started)))

    def _take(self, number: int, pages: list[WorkerReport]) -> None:
        with self._lock:
            self._latest[number] = pages


QUIET_PAUSE = 5.0
"""Seconds between scans while the page is not open; the history goes on."""
_LONGEST_PAUSE = 10.0
_OLD_LAG = 120_000
"""Milliseconds after which a lag without a new value is unknown."""


class Scans(Protocol):
    """A lease table that can be scanned."""

    def scan(self) -> TableSnapshot: ...

    @property
    def pace(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Fleet to poll. failover: seconds, None if not given; every: seconds between two scans."""

    application: str
    stream: str | None = None
    region: str | None = None
    failover: float | None = None
    every: float = 1.0


@dataclass(slots=True)
class _Before:
    """Values of the previous scan. lock: of a leader of KCL 3.x, and the epoch milliseconds of its first scan."""

    states: Mapping[str, LeaseStatus] = field(default_factory=dict)
    checkpoints: dict[str, tuple[str | None, object]] = field(default_factory=dict)
    marks: Marks = NO_MARKS
    has_scanned: bool = False
    lock: tuple[LeaderLock | None, int] = (None, 0)


class FleetPoller:
    """Poller of the lease table, in one thread. memory: holds the state of the page.

    publish: called with each change, from that thread. is_watched: the page is open somewhere.
    """

    def __init__(
        self,
        fleet: Fleet,
        table: Scans,
        runtime: Runtime,
        memory: StateStore,
        *,
        rates: Rates,
        lags: LagPoller | None = None,
        workers: WorkerPoller | None = None,
        publish: Callable[[int, bytes], None] = lambda _seq, _frame: None,
        is_watched: Callable[[], bool] = lambda: True,
    ) -> None:
        self.fleet, self.memory = fleet, memory
        self._table, self._runtime = table, runtime
        self._sampler = Sampler(table.scan, runtime)
        self._rates, self._lags, self._workers = rates, lags, workers
        self._publish, self._is_watched = publish, is_watched
        self._owners = OwnerBook()
        self._builder = ViewBuilder()
        self._before = _Before()
        self._over, self._hurry = runtime.event(), runtime.event()
        self._task: Task | None = None
        self._problem, self._problem_since = "", 0
        self._failures = 0

    def start(self) -> None:
        for rounds in (self._lags, self._workers):
            if rounds is not None:
                rounds.start()
        self._task = self._runtime.spawn("pykcl-ui-watch", self._run)

    def stop(self) -> None:
        self._over.set()
        self._hurry.set()
        for rounds in (self._lags, self._workers):
            if rounds is not None:
                rounds.stop()
        if self._task is not None:
            self._task.join(2.0)

    def hurry(self) -> None:
        """Scan at once, for a new viewer."""
        self._hurry.set()

    def _run(self) -> None:
        while not self._over.is_set():
            started = self._runtime.monotonic()
            self._hurry.clear()
            self.step()
            pause = self.fleet.every if self._is_watched() else max(QUIET_PAUSE, self.fleet.every)
            if self._failures:
                pause = min(_LONGEST_PAUSE, max(self.fleet.every, float(self._failures)))
            self._hurry.wait(max(0.05, pause - (self._runtime.monotonic() - started)))

    def step(self) -> None:
        """Scan once. Errors are shown on the page, not raised."""
        try:
            found = self._sampler.poll()
        except PyKclError as error:
            self._failed(error)
            return
        self._failures = 0
        self._scanned(found)

    def _failed(self, error: PyKclError) -> None:
        now = self._runtime.utcnow_millis()
        self._failures += 1
        edges = []
        if not self._problem:
            self._problem_since = now
            log.info("the lease table cannot be read: %s", error)
            edges.append(LeaseChange("trouble", "the lease table cannot be read", tone="bad"))
        again = "" if isinstance(error, TemporaryError) else " Scanning again."
        self._problem = f"{error}{again}"
        self._send(self.memory.trouble(now, self._problem_facts(), self._events_of(edges, now)))

    def _scanned(self, found: Observation) -> None:
        failover, _ = known_failover(self.fleet.failover, found.snapshot.leases.values())
        now = self._runtime.utcnow_millis()
        unleased = self._lags.unleased() if self._lags is not None else ()
        states = states_of(found, failover, unleased=unleased)
        kinds = owner_kinds(found.snapshot, found.renewed_after_end)
        self._request_lags(states, found.snapshot)
        lags = self._known_lags(states, now)
        pages = self._workers.latest() if self._workers is not None else []
        fleet = fleet_of(found)
        marks = self._marks_of(states, fleet, pages)
        view = self._builder.view(states, kinds, lags, marks, now)
        edges = self._edges(states)
        if self._problem:
            seconds = (now - self._problem_since) / 1000
            edges.append(
                LeaseChange(
                    "trouble", f"the lease table can be read again, after {seconds:.0f} s", tone="good"
                )
            )
            self._problem = ""
        edges += self._owners.edges(view.owners, pages) if self._before.has_scanned else []
        owners = self._owners.fold(view.owners, pages, marks)
        rate = self._rates.observe(now, self._moves(states), pages)
        self._before.states, self._before.has_scanned = states, True
        self._send(
            self.memory.fold(
                PageView(now, view.rows, owners),
                states=states,
                lags=lags,
                rate=rate,
                events=self._events_of(edges, now),
                facts={
                    **self._facts(found, states, failover),
                    "fleet": self._fleet_values(fleet, found, now) if fleet is not None else None,
                },
            )
        )

    def _send(self, change: tuple[int, bytes] | None) -> None:
        if change is not None:
            self._publish(*change)

    def _fleet_values(self, fleet: FleetOverview, found: Observation, now: int) -> dict[str, Any]:
        lock = found.leader.lock if found.leader is not None else None
        if lock != self._before.lock[0]:
            self._before.lock = (lock, now)
        return fleet_values(
            fleet, self._before.marks, at=now, server_time=found.at, lock_since=self._before.lock[1]
        )

    def _marks_of(
        self, states: Mapping[str, LeaseStatus], fleet: FleetOverview | None, pages: Sequence[WorkerReport]
    ) -> Marks:
        """Assign marks to owners first, then to members without a lease; last to workers that other views do not
        have."""
        known = [status.owner for status in states.values()]
        marks = marks_among(known, self._before.marks)
        if fleet is not None:
            known += [member.worker for member in fleet.members]
            marks = marks_among(known, marks)
        self._before.marks = marks_among([*known, *(page.worker for page in pages)], marks)
        return self._before.marks

    def _events_of(self, edges: Iterable[LeaseChange], now: int) -> list[dict[str, Any]]:
        return [event_of(edge, self._before.marks, now) for edge in edges]

    def _edges(self, states: Mapping[str, LeaseStatus]) -> list[LeaseChange]:
        """Return the changes since the previous scan; none for the first one."""
        return changes_between(self._before.states, states) if self._before.has_scanned else []

    def _request_lags(self, states: Mapping[str, LeaseStatus], view: TableSnapshot) -> None:
        if self._lags is None:
            return
        known = self._lags_of_workers(states, 0)
        self._lags.watch([lease for key, lease in _readable(states) if key not in known], view)

    def _known_lags(self, states: Mapping[str, LeaseStatus], now: int) -> dict[str, Measured]:
        found = dict(self._lags.latest()) if self._lags is not None else {}
        found |= self._lags_of_workers(states, now)
        return {key: lag for key, lag in found.items() if now - lag.at < _OLD_LAG}

    def _lags_of_workers(self, states: Mapping[str, LeaseStatus], now: int) -> dict[str, Measured]:
        """Return the lags reported by owners only: a worker that has lost a lease may not know it yet."""
        found = {}
        for page in self._workers.latest() if self._workers is not None else ():
            for key, (behind, ago) in page.behind.items():
                status = states.get(key)
                if status is not None and status.owner == page.worker:
                    found[key] = Measured(now - round(ago * 1000), behind, "worker")
        return found

    def _moves(self, states: Mapping[str, LeaseStatus]) -> dict[str, int]:
        """Return the number of checkpoints that moved since the previous scan, by owner."""
        moves: dict[str, int] = {}
        known = self._before.checkpoints
        for key, status in states.items():
            if status.lease is None or status.owner is None:
                known.pop(key, None)
                continue
            is_idle = status.state in (LeaseState.ENDED, LeaseState.WAITING)
            at = (status.owner, status.lease.checkpoint)
            moved = known.get(key, at)[0] == status.owner and known.get(key, at)[1] != status.lease.checkpoint
            known[key] = at
            if moved or not is_idle:
                moves[status.owner] = moves.get(status.owner, 0) + moved
        for key in known.keys() - states.keys():
            del known[key]
        return moves

    def _problem_facts(self) -> dict[str, Any]:
        return {"problem": shown_long(self._problem), "problemSince": self._problem_since}

    def _facts(
        self, found: Observation, states: Mapping[str, LeaseStatus], failover: float
    ) -> dict[str, Any]:
        stream = self.fleet.stream or found.snapshot.stream_name
        _, is_known = known_failover(self.fleet.failover, found.snapshot.leases.values())
        return {
            "application": shown(self.fleet.application),
            "stream": shown(stream) if stream else None,
            "region": self.fleet.region,
            "schema": found.snapshot.schema,
            "failover": failover,
            "failoverTold": is_known,
            "every": self.fleet.every,
            "units": round(found.snapshot.read_units, 1),
            "pace": shown_long(self._table.pace),
            "counts": counts(states),
            "hints": [shown_long(hint) for hint in hints_of(found, states, failover, is_known=is_known)[:12]],
            "lagSource": self._lag_source(),
            "lagProblem": shown_long(self._lags.problem) if self._lags is not None else "",
            "rateUnit": self._rates.unit,
            "rateNote": self._rates.note,
            "problem": "",
            "problemSince": 0,
        }

    def _lag_source(self) -> str:
        if self._workers is not None and self._lags is not None:
            return f"Lag: reported by workers; for the others {self._lags.description}"
        if self._workers is not None:
            return "Lag: reported by the workers."
        return self._lags.description if self._lags is not None else "Lag: not measured (--no-lag)."


def shown_long(text: str) -> str:
    """Escape a sentence that has names in it; it may be longer than a name."""
    return printable(text)[:2000]


def _readable(states: Mapping[str, LeaseStatus]) -> Iterable[tuple[str, Lease]]:
    """Yield the leases that have a lag: neither ended nor waiting for parents, or still to be created."""
    for key, status in states.items():
        if isinstance(status.other, Unleased):
            yield key, status.other.lease
        elif status.lease is not None and status.state not in (LeaseState.ENDED, LeaseState.WAITING):
            yield key, status.lease
