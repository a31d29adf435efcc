"""Watch the fleet in every scan: refuse a fleet in native mode at the start, report later changes of its kind."""

from __future__ import annotations

from collections.abc import Iterable

from pykcl.config import Config
from pykcl.errors import NativeFleet, SetupError, TemporaryError, WrongStream
from pykcl.events import (
    FleetChanged,
    FleetFollowed,
    FleetJoined,
    FleetUnfollowed,
    FleetUpgradedToV3,
    InitialPositionIgnored,
)
from pykcl.interfaces import Events, LeaseTable, TableScan
from pykcl.model.lease import JavaState, Lease, Row
from pykcl.planning.fleet_protocol import Fleet, FleetKind, sense_fleet
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.membership import why_not_to_follow
from pykcl.runtime import Runtime

STATE_INTERVAL = 60.0
"""Seconds between two reads of the state table of KCL 3.0-3.4; Java reads it about as often."""
STATE_INTERVAL_UNREAD = 600.0
STALE_FOR = 5.0
"""Seconds for which what a scan does not show is no proof: scans are eventually consistent."""


class FleetMonitor:
    """`scan` and `join` are called before the threads start, `observe` by the LeaseManager's thread after each scan.

    pykcl: the other workers of pykcl that hold leases and are not silent, as of a scan some seconds ago.

    follows: a leader of KCL 3.x assigns the leases, and this worker obeys. has_own_tables: its lock and the metrics are
    in tables of KCL 3.0-3.4.

    What a worker does when Java's fleet goes native while it runs and it may not follow: it goes on. Its writes are
    fenced as ever, a native leader leaves leases alone whose counter moves and whose owner reports no metrics, and
    stopping would leave the shards unread until that leader gives them to somebody. It takes what is free or expired,
    but nothing from a living owner any more: that is the leader's business now.
    """

    def __init__(
        self,
        config: Config,
        worker_id: str,
        table: LeaseTable,
        events: Events,
        runtime: Runtime,
    ) -> None:
        self._config, self._worker_id = config, worker_id
        self._table, self._events, self._runtime = table, events, runtime
        self._state = JavaState()
        self._next_state = 0.0
        self._next_comparison = 0.0
        self._fleet: Fleet | None = None
        self.pykcl: frozenset[str] = frozenset()
        self._differs_since: float | None = None
        self._doubted_since: float | None = None
        self._hand_offs: dict[str, tuple[int, bool]] = {}
        self._handing_off = False
        self._went_native = False
        self._native_since: float | None = None
        self.follows = self.has_own_tables = False

    @property
    def may_steal(self) -> bool:
        """True if leases may be taken from living owners to balance the load."""
        return not self._went_native

    def scan(self) -> TableScan:
        """The scan to join by. Raises TemporaryError while what it lacks may be missing because it is a moment old.

        1) Rows of another application lie in the table; 2) a peer creates the leases of this one; 3) our scan shows the
        rows as they were before, and a table with a fleet at work would be refused.
        """
        scan = self._table.scan()
        now = self._runtime.monotonic()
        fleet = self._sense(scan.rows)
        if fleet.why_native:
            # Once more: 1) the table is prepared while the fleet is rolled back; 2) it is upgraded again, which makes
            # the index of owners; 3) it is scanned.
            self._table.prepare(create=False)
        # It may be rolled back after the scan, which removes the index.
        has_no_index = bool(fleet.why_native) and not self._table.has_owner_index
        if not has_no_index and not _is_of_others_alone(fleet):
            return scan
        self._doubted_since = now if self._doubted_since is None else self._doubted_since
        if now - self._doubted_since >= STALE_FOR:
            return scan
        if has_no_index:
            raise TemporaryError(
                f"Table {self._config.table!r} is of a KCL 3.x fleet in its own mode, and has no index of owners. "
                "Scanning again: the fleet may have been rolled back just now."
            )
        raise TemporaryError(
            f"Table {self._config.table!r} shows leases of several streams and none of a single one. Looking again: "
            "a scan may be older than leases that were just made."
        )

    def join(self, rows: Iterable[Row]) -> None:
        """Raise NativeFleet where Java KCL 3.x assigns the leases and this worker may not follow; WrongStream for a
        table of leases of several streams: Java 2.x could not read a row of ours, and would stop taking leases.
        """
        rows = tuple(rows)
        self._read_state(self._runtime.monotonic())
        fleet = self._sense(rows)
        if fleet.why_native:
            why_not = self._why_not_to_follow(fleet, rows)
            if why_not:
                raise NativeFleet(_native_text(self._config, fleet, why_not))
            self._follow(fleet)
        elif self._config.fleet_mode == "3x":
            raise SetupError(
                f'fleet_mode="3x", and lease table {self._config.table!r} is not of a KCL 3.x fleet in its own mode: '
                f"{fleet.kind.value}. Do: leave fleet_mode out, which joins any fleet by its own protocol."
            )
        if _is_of_others_alone(fleet):
            raise WrongStream(
                f"Table {self._config.table!r} holds leases of several streams and none of a single one: it belongs to "
                "an application that reads several streams. Nothing was changed in it: Java could not read a row of "
                "another form. Do: use another application name."
            )
        self._report_ignored_start(rows)

    def _report_ignored_start(self, rows: Iterable[Row]) -> None:
        """LATEST is the default, so it says nothing about what anybody expected."""
        start = self._config.start_position
        leases = [row for row in rows if isinstance(row, Lease)]
        if leases and start.kind != "LATEST" and not any(lease.checkpoint.is_start for lease in leases):
            self._events.emit(
                InitialPositionIgnored(
                    initial_position=str(self._config.initial_position), leases=len(leases)
                )
            )

    def observe(self, rows: Iterable[Row], view: LeaseView) -> None:
        """Watch the fleet after a scan. rows: all of it. view: folded from it."""
        now = view.observed_at
        rows = tuple(rows)
        self._watch_hand_offs(row for row in rows if isinstance(row, Lease))
        if now < self._next_comparison:
            return
        self._next_comparison = now + self._config.renew_interval
        is_beside_java = self._fleet is not None and bool(self._fleet.java)
        if now >= self._next_state and (is_beside_java or self.follows):
            self._read_state(now)
        fleet = self._sense(rows, view)
        self.pykcl = fleet.pykcl
        self._turn(fleet, rows, now)
        self._compare(fleet, now)

    def _turn(self, fleet: Fleet, rows: tuple[Row, ...], now: float) -> None:
        """Follow a leader from now on, or no more. Raises TemporaryError, SetupError."""
        if not fleet.why_native:
            if self.follows:
                self.follows = False
                event = FleetUnfollowed(client_version=fleet.client_version, beside=fleet.beside)
                self._events.emit(event)
            return
        if self.follows:
            return
        if not self._state.has_owner_index:
            # It may have been made since the start.
            self._table.prepare(create=False)
            self._read_state(now)
        if not self._why_not_to_follow(fleet, rows):
            self._follow(fleet)

    def _follow(self, fleet: Fleet) -> None:
        self.follows, self.has_own_tables = True, fleet.has_own_tables
        self._events.emit(FleetFollowed(client_version=str(fleet.client_version), beside=fleet.beside))

    def _why_not_to_follow(self, fleet: Fleet, rows: Iterable[Row]) -> str:
        return why_not_to_follow(
            fleet,
            self._config.fleet_mode,
            rows,
            worker=self._worker_id,
            has_owner_index=self._state.has_owner_index,
        )

    def _compare(self, fleet: Fleet, now: float) -> None:
        before = self._fleet
        if before is None:
            self._fleet = fleet
            self._events.emit(
                FleetJoined(
                    beside=fleet.beside,
                    kind=fleet.kind.value,
                    java_workers=len(fleet.java),
                    pykcl_workers=len(fleet.pykcl),
                    failover_time=self._config.failover_time,
                    evidence=fleet.evidence,
                )
            )
        if fleet.why_native and not self._went_native and not self.follows:
            # 1) A table is restored, row by row; 2) a scan shows the lock of a leader, and not yet the row with the
            # client version, which says that the lock is left over. Or 1) a scan; 2) the fleet is rolled back, which
            # removes the index of owners; 3) the index is not found.
            self._native_since = now if self._native_since is None else self._native_since
            is_doubtful = fleet.client_version is None or not self._state.has_owner_index
            if is_doubtful and now - self._native_since < STALE_FOR:
                return
            self._went_native = True
            self._fleet = fleet
            self._events.emit(FleetUpgradedToV3(evidence=fleet.evidence, beside=fleet.beside))
            return
        if not fleet.why_native:
            self._went_native, self._native_since = False, None
        if before is None or fleet.kind is before.kind:
            self._differs_since = None
            self._fleet = fleet
            return
        # A worker that comes to hold its first lease, or its last one for a moment, is no news.
        if self._differs_since is None:
            self._differs_since = now
        if now - self._differs_since < 2 * self._config.failover_time:
            return
        self._differs_since = None
        self._fleet = fleet
        self._events.emit(FleetChanged(kind=fleet.kind.value, beside=fleet.beside, evidence=fleet.evidence))

    def _sense(self, rows: Iterable[Row], view: LeaseView | None = None) -> Fleet:
        return sense_fleet(
            rows,
            worker=self._worker_id,
            state=self._state,
            dead=_silent(view, self._config.failover_time) if view is not None else frozenset(),
            handing_off=self._handing_off,
        )

    def _read_state(self, now: float) -> None:
        state = self._table.java_state()
        if state.unread and self._state.migration is not None:
            # What was known once is still the best that is known: a state is left by people, and rarely.
            state = JavaState(state.has_owner_index, self._state.migration, state.unread)
        self._state = state
        self._next_state = now + (STATE_INTERVAL_UNREAD if state.unread else STATE_INTERVAL)

    def _watch_hand_offs(self, leases: Iterable[Lease]) -> None:
        """Note whether a hand-off began between two scans.

        A row that is a moment old may show one that was over already; so the counter has to have moved on as well.
        """
        seen: dict[str, tuple[int, bool]] = {}
        for lease in leases:
            is_handed = lease.checkpoint_owner is not None
            before = self._hand_offs.get(lease.key)
            if before is not None and before[0] < lease.counter and is_handed and not before[1]:
                self._handing_off = True
            seen[lease.key] = (lease.counter, is_handed)
        self._hand_offs = seen


def _is_of_others_alone(fleet: Fleet) -> bool:
    return fleet.kind is FleetKind.MULTI_STREAM and not fleet.has_leases


def _silent(view: LeaseView, failover_time: float) -> frozenset[str]:
    """Owners of whom no lease has moved within the failover time."""
    silent: set[str] = set()
    living: set[str] = set()
    for key, lease in view.leases.items():
        if lease.owner is not None:
            (silent if view.is_expired(key, failover_time) else living).add(lease.owner)
    return frozenset(silent - living)


def _native_text(config: Config, fleet: Fleet, why_not: str) -> str:
    if fleet.client_version == "CLIENT_VERSION_3X_WITH_ROLLBACK":
        back = "roll it back with KCL's own KclMigrationTool.py (--mode rollback)"
    else:
        back = "update pykcl, or wait until the fleet's own migration is over"
    return (
        f"Java KCL 3.x works on lease table {config.table!r} in its own mode: {fleet.why_native}; beside "
        f"{fleet.beside}. There a leader assigns the leases, and this worker cannot follow it: {why_not}. Nothing was "
        f"changed. Do: {back}. Java workers that are to stay beside pykcl as KCL 2.x run with "
        "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1 from their first day on 3.5."
    )
