"""Scan the lease table, whole or by segments, when `planning.scan_schedule` says so, and keep the view of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pykcl.events import InvalidLeaseRow
from pykcl.metrics import catalog
from pykcl.model.lease import ForeignRow, Lease, Row, UnreadableRow
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.read_schedule import READ_UNITS_PER_SECOND, jittered
from pykcl.planning.scan_schedule import ScanPlan, may_be_taken, plan_scans, shows_news
from pykcl.worker.context import Context

SHORTEST_SCAN_PAUSE = 0.2
"""Seconds between two scans when something just happened."""
_SOON = 0.25
"""Of the pause between two scans of segments: the whole table is scanned instead if that is due so soon after."""
_SEGMENTS_CHANGE_AFTER = 1.25
"""Multiple of the full-scan interval after which every worker has seen the new membership."""
_BURST = 3
"""Scans of all the table that parts may ask for at once; from then on they come at the pace of a busy worker."""


class TableScanner:
    """Used by the LeaseManager's thread only.

    view: what was seen. scanned_at: monotonic seconds of the last scan of all the table. is_calm: all of the table is
    scanned seldom at the moment.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.view = LeaseView()
        self.scanned_at = 0.0
        self._watched: frozenset[str] = frozenset()
        self._previous_keys: dict[str, float] = {}
        self._part: tuple[tuple[int, ...], int] | None = None
        self._next_whole = 0.0
        self._next_part: float | None = None
        self._schedule = ScanPlan(1.0, 1.0)
        self._units = 0.0
        self._debt = 0.0
        self._busy_until = 0.0
        self.is_calm = False
        self._refused: set[str] = set()
        # Since a scan that got no answer.
        self._is_blind = False

    @property
    def next_at(self) -> float:
        """Monotonic seconds at which a scan is due."""
        return self._next_whole if self._next_part is None else min(self._next_whole, self._next_part)

    @property
    def affordable_pause(self) -> float:
        """Seconds between two scans of all the table for which the read units of a worker suffice."""
        return self._units / READ_UNITS_PER_SECOND

    def scan_all(self, *, consistent: bool = False) -> tuple[Row, ...]:
        """Scan all of it, and fold it into the view; the rows, those of others too. Raises as `LeaseTable.scan`."""
        context = self._context
        was_blind, self._is_blind = self._is_blind, True
        with context.meter.timed(catalog.LIST_LEASES):
            scan = context.table.scan(consistent=consistent)
        self._is_blind = False
        # The time after the scan: a counter in it stood so at the latest now, so an age is never overrated.
        now = context.runtime.monotonic()
        self._debt = self._debt_at(now) + scan.read_units
        self.scanned_at, self._units = now, scan.read_units
        own, refused = self._own(scan.rows)
        self._refused = refused
        self.view = self._evident(self.view.observe(own, now), was_blind)
        return scan.rows

    def _evident(self, view: LeaseView, was_blind: bool = False) -> LeaseView:
        """Return what a scan proves: little, if this worker's own requests got no answers before it."""
        context = self._context
        if was_blind or context.held.gate.is_silent():
            return view.unwritten(context.config.renew_interval)
        return view

    def pace(self, rows: int) -> None:
        """Plan the next scan after one of so many rows. Until `calm` is called there may be something to do."""
        context, before = self._context, self._schedule
        self._schedule = plan_scans(
            mode=context.config.lease_scan_mode,
            worker=context.worker_id,
            others=context.fleet.pykcl,
            leases=rows,
            read_units=self._units,
            failover_time=context.config.failover_time,
            max_leases=context.config.max_leases,
        )
        self._next_whole = self.scanned_at + jittered(self._schedule.busy_pause, context.runtime.random())
        self.is_calm = False
        self._keep_old_segments(before)
        if self._schedule.segment_pause is None or not self._schedule.my_segments:
            self._next_part, self._watched = None, frozenset()
        else:
            # What has just been seen with all the rest need not be scanned for a while.
            self._next_part = self.scanned_at + jittered(
                self._schedule.segment_pause, context.runtime.random()
            )

    def _keep_old_segments(self, before: ScanPlan) -> None:
        """Answer for the leases of the part until now, if it is another one from now on, until its new watchers can.

        1) A dead worker's leases are silent; of the living, only this one sees them. 2) It scans all of the table, and
        with one worker less there are fewer, greater parts, and this one is another's. 3) The others still scan
        their old parts, where nothing is silent: they know of neither until they scan all of the table themselves.
        """
        now = self.scanned_at
        self._previous_keys = {key: until for key, until in self._previous_keys.items() if until > now}
        if (before.my_segments, before.segments) != (self._schedule.my_segments, self._schedule.segments):
            self._previous_keys |= dict.fromkeys(
                self._watched, now + _SEGMENTS_CHANGE_AFTER * before.idle_pause
            )

    @property
    def watched(self) -> Collection[str]:
        """The leases this worker answers for: those of its segments, as of the last two scans of them."""
        return self._watched | self._previous_keys.keys() if self._previous_keys else self._watched

    @property
    def adopt_after(self) -> float:
        """Seconds after which a watched lease that nobody has taken is taken beyond one's share: about one scan."""
        return 0.8 * (self._schedule.segment_pause or self._schedule.busy_pause)

    def busy(self) -> None:
        """There is something to take: that will bring more to do for a while."""
        self._busy_until = self.scanned_at + self._context.config.failover_time

    def calm(self, *, has_all: bool) -> None:
        """There is nothing to do that all of the table would have to be scanned for again soon.

        has_all: this worker holds every lease that is to be read. A new worker scans for itself, and a rejected
        heartbeat shows what it has taken.
        """
        if self.scanned_at < self._busy_until:
            return
        pause = max(self._schedule.idle_pause, self._context.config.renew_interval if has_all else 0.0)
        self._next_whole = self.scanned_at + jittered(pause, self._context.runtime.random())
        self.is_calm = self._schedule.segment_pause is not None

    def rest(self, pause: float) -> None:
        """Scan the whole table after that many seconds, and no part of it before: others find what is free."""
        self._next_whole = self.scanned_at + jittered(pause, self._context.runtime.random())
        self._next_part, self._watched, self.is_calm = None, frozenset(), False

    def hurry(self) -> None:
        """Something happened here: scan soon, yet never in a spin. Leases that end as quickly as they are taken must
        not cost more than a few scans a second."""
        self._next_whole = min(self._next_whole, self.scanned_at + SHORTEST_SCAN_PAUSE)

    def must_scan(self, now: float, is_any_free: Callable[[Collection[str]], bool]) -> bool:
        """True if the whole table is to be scanned now. Scans the segments of this worker before, if that is due.

        is_any_free: whether one of these leases may be taken, by what was seen. Raises as `LeaseTable.scan_part`.
        """
        if now >= self._next_whole:
            return True
        pause = self._schedule.segment_pause
        if pause is None or self._next_part is None or now < self._next_part:
            return False
        if self._next_whole - now < _SOON * pause:
            return True
        is_wanted = self._part_wants_all(is_any_free)
        now = self._context.runtime.monotonic()
        self._next_part = now + jittered(pause, self._context.runtime.random())
        if is_wanted and self._debt_at(now) > _BURST * self._units:
            self._next_whole = min(self._next_whole, self.scanned_at + self._schedule.busy_pause)
            return now >= self._next_whole
        return is_wanted

    def _part_wants_all(self, is_any_free: Callable[[Collection[str]], bool]) -> bool:
        """Scan the segments of this worker; True if something there calls for a scan of the whole table."""
        before, watched = self.view, self._seen_in_part()
        # A row that is missing was deleted, by a cleanup or by hand; unless other segments were scanned.
        part = (self._schedule.my_segments, self._schedule.segments)
        is_missing = part == self._part and not self._watched <= watched
        self._part, self._watched = part, watched
        failover = self._context.config.failover_time
        return (
            is_missing
            or shows_news(before, self.view, watched, failover)
            or (may_be_taken(self.view, watched, failover) and is_any_free(watched))
        )

    def _seen_in_part(self) -> frozenset[str]:
        """Scan the segments of this worker, and fold them into the view; the leases there."""
        context, seen = self._context, set()
        for segment in self._schedule.my_segments:
            with context.meter.timed(catalog.LIST_LEASES):
                scan = context.table.scan_part(segment, self._schedule.segments)
            own, refused = self._own(scan.rows)
            self._refused |= refused
            self.view = self._evident(self.view.observe_part(own, context.runtime.monotonic()))
            seen |= {row.key for row in own if isinstance(row, Lease)}
        return frozenset(seen)

    def _debt_at(self, now: float) -> float:
        """Read units that were spent faster than `READ_UNITS_PER_SECOND`."""
        return max(0.0, self._debt - (now - self.scanned_at) * READ_UNITS_PER_SECOND)

    def _own(self, rows: Sequence[Row]) -> tuple[list[Row], set[str]]:
        """Return the rows but for leases of other streams, and the keys of rejected ones, each reported once.

        Every scan is checked for rows of other runs: 1) two begin in a table without rows, or a run and an application;
        2) one puts its rows; 3) the other would take them for its own. Raises FatalError.
        """
        self._context.refuse_other_runs(rows)
        own: list[Row] = []
        refused: set[str] = set()
        for row in rows:
            problem = self._problem(row)
            if problem is not None:
                refused.add(row.key)
                if row.key not in self._refused:
                    self._context.events.emit(InvalidLeaseRow(key=row.key, problem=problem))
            if problem is None or isinstance(row, UnreadableRow):
                own.append(row)
        return own, refused

    def _problem(self, row: Row) -> str | None:
        if isinstance(row, ForeignRow):
            return None
        if isinstance(row, UnreadableRow):
            return row.problem
        return "it belongs to another stream" if self._context.identity.conflicts_with(row) else None
