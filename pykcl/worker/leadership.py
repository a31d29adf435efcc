"""The lock of a KCL 3.x fleet: watch who leads, take the lock, keep it, and assign the leases while it is held."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from pykcl.errors import SetupError, TemporaryError
from pykcl.events import LeaderAbsent, LeaderElected, LeaderReturned, LeadershipMoved, LeaseAssigned
from pykcl.interfaces import Applied, Unknown, WriteAnswer
from pykcl.model.fleet_rows import (
    FleetWrite,
    LeaderLock,
    WorkerMetrics,
    keep_lock,
    release_lock,
    take_lock,
    withdraw,
)
from pykcl.model.lease import Row
from pykcl.model.lease_item import LEADER_KEY
from pykcl.planning.assignment_decider import (
    ACTIVE_PERIODS,
    Assignment,
    AssignmentKind,
    AssignmentMemory,
    AssignmentSettings,
    Decision,
    active_workers,
    decide,
    give_left,
    living,
    silent_workers,
)
from pykcl.planning.leader import owners_of
from pykcl.planning.leader_lock import HeldLock, LeaderWatch, lease_seconds
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.membership import reports_in
from pykcl.status import Activity
from pykcl.worker.context import Context

_OLD_LOCK_INTERVAL = 15.0
"""Seconds between two reads of the lock where it is in a table of its own."""
_RETRY_AFTER = 1.0
"""Seconds until a write or a read of the lock is tried again that failed."""
_FRESH_FOR = 10.0
"""Seconds for which a read of the lock counts where leases are taken: somebody may lead since."""
_SHORTEST_SCAN_PAUSE = 2.0
"""Seconds between two scans of a leader, if the table is small: what is free is assigned so soon. Java: 20 s."""
_MAX_FAILED_RUNS = 3
"""Runs in a row that may fail until the lock is released; Java: the same."""
_RESTS_FOR = 120.0
"""Seconds for which a worker that could not lead leaves the lock to others."""
_STALE_AFTER = 86400.0
"""Seconds after which the leader deletes the metrics of a worker; Java: the same."""


class Leadership:
    """Used by the LeaseManager's thread, in a fleet that `FleetMonitor.follows`.

    Two that lead at the same time would do no harm: each assignment is a write on condition that the lease is as its
    author has seen it. The lock spares the fleet two plans.
    """

    def __init__(self, context: Context, must_stop: Callable[[], bool]) -> None:
        self._context = context
        self._must_stop = must_stop
        self._watch: LeaderWatch | None = None
        self._was_led, self._is_in_the_way = True, False
        self._next_read = self._not_before = self._rests_until = 0.0
        self._held: HeldLock | None = None
        # The lock by the write that was sent last, whether an answer came or not; None once another one is there.
        self._sent: HeldLock | None = None
        # Locks of this worker whose release got no answer.
        self._unreleased: tuple[LeaderLock, ...] = ()
        self._rows: tuple[Row, ...] = ()
        self.reports: tuple[WorkerMetrics, ...] = ()
        self._silent: dict[str, int] = {}
        config = context.config
        self._settings = AssignmentSettings(
            failover_time=config.failover_time,
            max_leases=config.max_leases,
            handoff_timeout=config.graceful_handoff_timeout,
            report_period=config.worker_metrics_interval,
        )
        self._memory = AssignmentMemory()
        self._next_run = 0.0
        self._failed_runs = 0

    @property
    def is_led(self) -> bool:
        """True unless the fleet has been without a leader for long."""
        return self._held is not None or self._watch is None or not self._watch.is_absent

    @property
    def may_rescue(self) -> bool:
        """True if the fleet has been without a leader for long, as a read of the lock has just shown."""
        watch, now = self._watch, self._context.runtime.monotonic()
        return not self.is_led and watch is not None and now - watch.seen_at <= _FRESH_FOR

    @property
    def is_leader(self) -> bool:
        """True while this worker holds the lock and nobody else can have taken it."""
        return self._held is not None and self._held.is_believed(self._context.runtime.monotonic())

    @property
    def next_at(self) -> float:
        """Monotonic seconds at which there is something to do with the lock."""
        if self._held is not None:
            return max(self._held.next_heartbeat, self._not_before)
        return self._next_read

    @property
    def _is_eligible(self) -> bool:
        # The state of KCL 3.0-3.4 has phases of its own when it moves; only Java knows them all.
        return self._context.config.leader != "never" and not self._context.fleet.has_own_tables

    @property
    def _seen(self) -> LeaderLock | None:
        """The lock as it was read last."""
        return self._watch.lock if self._watch is not None else None

    # -- the lock ----------------------------------------------------------------------------------------------

    def scanned(self, rows: tuple[Row, ...], view: LeaseView) -> None:
        """Note the rows of a scan of the whole table. view: folded from it.

        Who is silent is noted also while others lead: 1) a leader dies; 2) this worker takes its leases, as nobody
        leads; 3) it takes the lock. From then on no lease shows that the other one is dead.
        """
        self._rows, self.reports = rows, reports_in(rows)
        self._silent = silent_workers(
            self.reports,
            view.leases.values(),
            expired=self._expired(view),
            untouched=view.untouched,
            before=self._silent,
        )

    def work_on_lock(self, now: float, *, may_lead: bool) -> None:
        """Read, take or keep the lock, if that is due. may_lead: this worker is a member of the fleet.

        Raises TemporaryError, SetupError.
        """
        if now < self.next_at:
            return
        self._next_read = self._not_before = now + _RETRY_AFTER
        if self._failed_runs >= _MAX_FAILED_RUNS:
            self.resign()
            self._failed_runs, self._rests_until = 0, now + _RESTS_FOR
        if self._held is not None:
            self._keep(self._held)
            return
        self._read()
        watch = self._watch
        if not may_lead or not self._is_eligible or watch is None or self._held is not None:
            return
        if self._is_in_the_way:
            # A row that is no lock would refuse each attempt, and nobody knows whose it is.
            return
        if now >= self._rests_until and watch.may_be_taken(self._context.config.leader):
            self._take(watch)

    def _read(self) -> None:
        """Read the lock, and recognize an own write whose answer was lost."""
        context = self._context
        if context.fleet.has_own_tables:
            row: Row | None = context.table.old_lock()
        else:
            row = context.table.read(LEADER_KEY)
        self._observe(row)
        lock, sent = self._seen, self._sent
        self._is_in_the_way = row is not None and lock is None
        if lock in self._unreleased:
            # Never believed again: an earlier release of it may still arrive, and others may lead at once then.
            self._unreleased = self._release(self._unreleased)
        elif sent is not None and lock == sent.lock and self._held is None:
            self._lead(sent)

    def _observe(self, row: Row | None) -> None:
        now, rows = self._context.runtime.monotonic(), () if row is None else (row,)
        watch = self._watch
        self._watch = watch = LeaderWatch.first(rows, now) if watch is None else watch.observe(rows, now)
        pause = watch.read_pause(self._context.config.leader)
        self._next_read = now + (_OLD_LOCK_INTERVAL if self._context.fleet.has_own_tables else pause)
        self._compare()

    def _compare(self) -> None:
        """Report that the fleet has lost its leader, or found one."""
        if self.is_led is self._was_led:
            return
        # The lock that was just taken is not the one that was read last.
        lock = self._held.lock if self._held is not None else self._seen
        owner = lock.owner if lock is not None else None
        if self.is_led and owner is None:
            # Nothing is known of the time since the last read.
            return
        self._was_led = self.is_led
        self._context.events.emit(
            LeaderReturned(leader=owner) if self._was_led else LeaderAbsent(leader=owner)
        )

    def _take(self, watch: LeaderWatch) -> None:
        wanted = self._new_lock()
        if self._write(take_lock(watch.lock, wanted.lock), wanted):
            self._lead(wanted)

    def _keep(self, held: HeldLock) -> None:
        wanted = self._new_lock()
        if self._sent is not None and self._sent != held:
            # 1) A heartbeat was applied, and its answer lost; 2) the next one, on condition of the version before it,
            # would be refused.
            lock = self._lock_now()
            if lock is None or lock not in (held.lock, self._sent.lock):
                self._lose(lock)
                return
            held = held if lock == held.lock else self._sent
        self._held = held.may_become(wanted)
        if self._write(keep_lock(held.lock, wanted.lock), wanted):
            self._held = wanted
        else:
            # As `_write` has just read it.
            self._lose(self._seen)

    def _new_lock(self) -> HeldLock:
        context = self._context
        version = str(uuid.UUID(int=context.runtime.random().getrandbits(128), version=4))
        # A report stays for a day when its worker has gone.
        alive_since = (
            context.stream.server_time_millis() / 1000 - ACTIVE_PERIODS * self._settings.report_period
        )
        members = (one.worker for one in self.reports if one.reported_at >= alive_since)
        seconds = lease_seconds(members, {context.worker_id, *context.fleet.pykcl})
        return HeldLock(LeaderLock(context.worker_id, version, seconds), context.runtime.monotonic())

    def _write(self, write: FleetWrite, wanted: HeldLock) -> bool:
        """Return whether the lock is as wanted now. Raises TemporaryError where that is not known."""
        context = self._context
        self._sent = wanted
        if context.table.write_fleet_row(write, until=wanted.sent_at + context.config.write_timeout):
            return True
        # Refused, perhaps since an earlier attempt was applied and its answer lost.
        is_wanted = self._lock_now() == wanted.lock
        self._sent = wanted if is_wanted else None
        return is_wanted

    def _lock_now(self) -> LeaderLock | None:
        self._observe(self._context.table.read(LEADER_KEY))
        return self._seen

    def _lead(self, held: HeldLock) -> None:
        # What was seen before this term says nothing of the time after it: 1) two reads show no lock; 2) this worker
        # takes it, and reads no more; 3) somebody replaces the row; 4) the heartbeat is refused, and a read shows no
        # lock, as if there had been none since 1. Leases would be rescued though they had a leader just now.
        self._held, self._watch, self._unreleased = held, None, ()
        self._memory = AssignmentMemory()
        self._next_run, self._failed_runs = self._context.runtime.monotonic(), 0
        self._context.events.emit(
            LeaderElected(worker_id=self._context.worker_id, owners=len(owners_of(self._rows)))
        )
        self._compare()

    def _lose(self, lock: LeaderLock | None) -> None:
        self._held = self._sent = None
        self._context.events.emit(LeadershipMoved(leader=lock.owner if lock is not None else None))

    def resign(self) -> None:
        """Release the lock, if this worker holds it or may hold it: others need not wait until it expires.

        It may hold one that it does not believe in: 1) a take, or a heartbeat, is applied, and its answer lost; 2) this
        worker stops before it has read the lock again. Or: 1) a release is not applied when the fleet goes back to the
        mode of 2.x; 2) this worker stops later.
        """
        held, self._held = self._held, None
        last = (one.lock for one in (held, self._sent) if one is not None)
        self._unreleased = self._release(dict.fromkeys((*self._unreleased, *last)))
        if not self._unreleased:
            self._sent = None
        if held is not None:
            self._context.events.emit(LeadershipMoved(leader=None))

    def _release(self, locks: Iterable[LeaderLock]) -> tuple[LeaderLock, ...]:
        """Release the one of these that is in the table; return those of which that is not known afterwards."""
        unanswered: list[LeaderLock] = []
        for lock in locks:
            try:
                # Once: a stop must not wait for it, and the lock expires.
                if self._context.table.write_fleet_row(release_lock(lock), until=0.0):
                    return ()
            except (TemporaryError, SetupError) as error:
                unanswered.append(lock)
                self._context.failures.failed(Activity.LEADING, error)
        return tuple(unanswered)

    # -- the assignments ---------------------------------------------------------------------------------------

    @property
    def _run_interval(self) -> float:
        """Seconds between two regular runs; Java: the same (`leaseAssignmentIntervalMillis`)."""
        return 2 * self._context.config.failover_time

    def scan_pause(self, affordable: float) -> float:
        """Return the seconds until a leader scans the table again. affordable: by the read units of the last scan."""
        return min(max(_SHORTEST_SCAN_PAUSE, affordable), self._run_interval)

    def assign(self, view: LeaseView) -> bool:
        """Assign what nobody works on, and now and then balance; called after each scan of the whole table.

        Return whether a lease was assigned to this worker. Raises SetupError; TemporaryError if a write was not
        answered, once the others are sent.
        """
        if not self.is_leader:
            return False
        decision = self._decide(view, self._context.runtime.monotonic())
        self._memory = decision.memory
        unanswered, is_mine = "", False
        for assignment in decision.assignments:
            if self._must_stop() or not self.is_leader:
                return is_mine
            answer = self._write_assignment(assignment)
            if isinstance(answer, Unknown):
                unanswered = f"the assignment of {assignment.lease_key}: {answer.cause}"
            # Rejected: the row has changed, so the next scan shows another one, or none.
            is_mine |= isinstance(answer, Applied) and assignment.new_owner == self._context.worker_id
        if unanswered:
            self._failed_runs += 1
            raise TemporaryError(f"The lease table did not answer to {unanswered}")
        self._failed_runs = 0
        self._delete_stale()
        return is_mine

    def _decide(self, view: LeaseView, now: float) -> Decision:
        context = self._context
        is_extra = now < self._next_run
        if not is_extra:
            self._next_run = now + self._run_interval
        aws_now = context.stream.server_time_millis() / 1000
        decision = decide(
            view.leases.values(),
            living(active_workers(self.reports, aws_now, self._settings.report_period), self._silent),
            now=aws_now,
            expired=self._expired(view),
            memory=self._memory,
            settings=self._settings,
            rng=context.runtime.random(),
            unchanged_since=view.unchanged_since,
            is_extra=is_extra,
        )
        if not decision.left:
            return decision
        readable = {lease.key for lease in view.tree.readable(view.leases, view.unreadable)}
        return give_left(decision, view.leases.values(), readable, self._settings.max_leases, aws_now)

    def _expired(self, view: LeaseView) -> set[str]:
        return {key for key in view.leases if view.is_expired(key, self._patience(view, key))}

    def _patience(self, view: LeaseView, key: str) -> float:
        """Return the seconds after which a lease that stands still counts as expired.

        A Java worker that was given a lease 1) finds it within the failover time; 2) adopts it without a write;
        3) moves the counter with its next renewal, up to a third of that time later. Java's leader scans each two
        failover times, and so sees the counter move.
        """
        failover = self._context.config.failover_time
        return 2 * failover if key in view.untouched else failover

    def _write_assignment(self, assignment: Assignment) -> WriteAnswer:
        context, held = self._context, self._held
        now = context.runtime.monotonic()
        until = min(now + context.config.write_timeout, held.believed_until if held is not None else now)
        answer = context.table.write(assignment.write(), until=until)
        if isinstance(answer, Applied):
            context.events.emit(
                LeaseAssigned(
                    shard=assignment.lease_key,
                    new_owner=assignment.new_owner,
                    owner=assignment.lease.actual_owner,
                    reason=assignment.reason.name.lower(),
                    hands_over=assignment.kind is AssignmentKind.HAND_OVER,
                )
            )
        return answer

    def _delete_stale(self) -> None:
        """Delete the metrics of workers that have gone for a day; Java's leader does so, too."""
        context = self._context
        oldest = context.stream.server_time_millis() / 1000 - _STALE_AFTER
        for metrics in self.reports:
            if metrics.reported_at < oldest and not self._must_stop():
                context.table.write_fleet_row(withdraw(metrics), until=0.0)
