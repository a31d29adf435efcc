"""The manager thread: scan the lease table, sync it with the shards, assign leases, start and reap lease workers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pykcl.errors import SetupError, TemporaryError
from pykcl.model.lease import Lease
from pykcl.model.shard import ShardListing
from pykcl.planning.lease_assignment import Acquisition, Fleet, still_awaited
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.lifecycle import State
from pykcl.planning.read_schedule import backoff
from pykcl.planning.run_end import is_over
from pykcl.planning.shard_graph import without_successors
from pykcl.runtime import Task
from pykcl.status import Activity
from pykcl.worker.context import Context
from pykcl.worker.leader import Leader
from pykcl.worker.leadership import Leadership
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.measurements import TakeMeasures
from pykcl.worker.membership import Membership
from pykcl.worker.shard_sync import ShardSync
from pykcl.worker.table_scanner import TableScanner
from pykcl.worker.threads import ThreadHeartbeat
from pykcl.worker.watchdog import CredentialsWatch, NameWatch, ProcessorWatchdog, Readiness
from pykcl.worker.write_gate import FIRST_WINDOW

OVERDUE_AFTER = 3
"""Failover times for which a lease may be free before it is taken beyond the fair share (Java: the same)."""

_LED_SCAN_INTERVAL = 30.0
"""Seconds between two scans of the table while another worker leads: the leader finds what is free."""

_LONGEST_REQUEST = 30.0
"""Seconds: how long Kinesis may take for one answer (15 s), and the lease table for a page that it refuses thrice."""


class LeaseManager:
    """One thread. It puts new rows and deletes old ones; a lease is taken by the lease worker it starts for it."""

    def __init__(self, context: Context, *, name: str) -> None:
        self._context = context
        self._name = name
        self._stop = False
        self._wake = context.runtime.event()
        self.readiness = Readiness(context)
        self.pulse = ThreadHeartbeat(f"{name}-manager", context.runtime, patience=_LONGEST_REQUEST)
        self._workers: dict[str, tuple[LeaseWorker, Task]] = {}
        self._workers_lock = context.runtime.lock()
        self._scanner = TableScanner(context)
        self._sync = ShardSync(context, self._scanner, self.pulse, scan=self._scan, must_stop=self._must_stop)
        self._leader = Leader(context, self._must_stop)
        self._leadership = Leadership(context, self._must_stop)
        self._membership = Membership(context)
        self._processors = ProcessorWatchdog(context)
        self._names = NameWatch(context)
        self._credentials = CredentialsWatch(context)
        self._measures = TakeMeasures(context, OVERDUE_AFTER * context.config.failover_time)
        self._ended_here: set[str] = set()
        self._left_alone: dict[str, float] = {}
        self._next_steal = 0.0
        # In the round before: every lease had ended, of a run that ends by itself.
        self._was_over = False
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self.pulse.spawn(self._run, self._context.on_fatal)

    def stop(self) -> None:
        """Ask the thread to end and take no further lease. Lease workers are not touched."""
        self._stop = True
        self._wake.set()

    def stop_workers(self, acks_until: float = inf) -> None:
        """Ask every lease worker to finish its batch, checkpoint and release. acks_until: as of `request_stop`.

        In a fleet with a leader its metrics are withdrawn before: nothing more is assigned to this worker.
        """
        self._membership.leave()
        for worker, _ in self.workers():
            worker.request_stop(acks_until)
        self._context.held.gate.check_again()

    def release_assigned(self) -> None:
        """Release what a leader has assigned while the lease workers were stopping; called when they have ended."""
        try:
            self._membership.release_assigned()
        except (TemporaryError, SetupError) as error:
            self._context.failures.failed(Activity.MANAGING_LEASES, error)

    def workers(self) -> list[tuple[LeaseWorker, Task]]:
        with self._workers_lock:
            return list(self._workers.values())

    @property
    def tasks(self) -> tuple[Task, ...]:
        return (self._task,) if self._task else ()

    def _run(self) -> None:
        try:
            self._manage()
        finally:
            self._leadership.resign()

    def _manage(self) -> None:
        failures = 0
        while not self._stop:
            self._wake.clear()
            self.pulse.beat()
            self._credentials.check()
            try:
                pause = self._step()
                failures = 0
                self._context.failures.worked(Activity.MANAGING_LEASES)
            except (TemporaryError, SetupError) as error:
                if self._context.must_stop(error, self._context.has_taken):
                    self._context.on_fatal(error)
                    return
                failures += 1
                self._context.failures.failed(Activity.MANAGING_LEASES, error)
                pause = backoff(failures, self._context.runtime.random(), first=0.5, longest=10.0)
            self._context.failures.report()
            if not self._stop:
                self.pulse.rest(pause)
                self._wake.wait(pause)

    def _must_stop(self) -> bool:
        """Asked between two pieces of work: whether the next one shall not begin."""
        self.pulse.beat()
        return self._stop

    def _step(self) -> float:
        """One round; returns the seconds until the next one."""
        now = self._context.runtime.monotonic()
        self._reap()
        self._processors.check(self.workers(), now)
        listing = self._sync.list_if_due(now)
        is_scan_due = self._is_scan_due(now, listing)
        if is_scan_due:
            # In this order: a scan older than the listing could miss the lease of a parent.
            self._scan(self._names.namesakes.needs_consistent_scan)
            if listing is not None:
                self._sync.create(listing, now)
            if not self._sync.must_finish_the_start and not self._context.fleet.follows:
                self._acquire()
            self._sync.delete()
            holds_lock = self._leadership.is_leader if self._context.fleet.follows else None
            if not self._sync.start_is_unfinished and self._leader.audit(
                self._view, self._sync.shards, holds_lock=holds_lock
            ):
                self._sync.list_at_once()
        if self._is_run_over(listing, now):
            self._context.on_run_over()
        if self._context.fleet.follows:
            self._follow(has_scanned=is_scan_due)
        elif self._membership.is_member:
            self._membership.withdraw()
            self._leadership.resign()
        workers = [worker for worker, _ in self.workers()]
        self.readiness.update(self._view, workers, start_is_unfinished=self._sync.start_is_unfinished)
        next_at = min(self._scanner.next_at, self._sync.next_listing, self._next_query, now + 1.0)
        return max(0.01, next_at - self._context.runtime.monotonic())

    def _is_run_over(self, listing: ShardListing | None, now: float) -> bool:
        """True once a run that ends by itself has read every shard so far. Asks for a listing where that seems so.

        The listing has to be younger than the end of the last lease. 1) A shard is split before the end of the run, and
        its children get records; 2) its last page still has an iterator, and is 0 behind: it is finished, and
        has made no leases for its children; 3) a listing from before 1 lacks no lease. Nor does one that lacks a child.
        """
        if self._context.config.until is None:
            return False
        was_over, self._was_over = self._was_over, is_over(self._view.leases) and not self._view.unreadable
        if not self._was_over:
            return False
        if listing is None or not was_over:
            self._sync.list_at_once()
            return False
        if without_successors(listing.shards):
            # Asked for again in the round after the next one.
            self._was_over = False
            return False
        return not self._sync.is_needed(listing, now)

    @property
    def _view(self) -> LeaseView:
        return self._scanner.view

    def _is_scan_due(self, now: float, listing: ShardListing | None) -> bool:
        """True if the whole table is to be scanned; in a calm fleet not for a listing that brings nothing to do."""
        if self._scanner.must_scan(now, lambda keys: self._fleet().is_any_available(keys)):
            return True
        if listing is None:
            return False
        if not self._scanner.is_calm or self._sync.is_needed(listing, now):
            return True
        self._sync.skip(now)
        self._measures.chosen(self._fleet(), 0)
        return False

    def _busy(self) -> set[str]:
        return {worker.key for worker, _ in self.workers()}

    # -- scan --------------------------------------------------------------------------------------------------

    def _scan(self, consistent: bool = False) -> None:
        """Fold a scan of the whole table into the view."""
        context = self._context
        self.pulse.beat()
        before = self._view
        rows = self._scanner.scan_all(consistent=consistent)
        self._leader.scanned(rows)
        context.fleet.observe(rows, self._view)
        self._sync.scanned(before)
        self._names.scanned(self._view, self._busy(), is_consistent=consistent)
        for held in context.held.all():
            row = self._view.leases.get(held.key)
            if row is not None:
                held.scanned(row)
        if context.fleet.follows:
            self._leadership.scanned(rows, self._view)
            self._membership.scanned(self._leadership.reports)
            is_ready = self.readiness.everywhere.is_set() and self._leadership.is_led
            pause = _LED_SCAN_INTERVAL if is_ready else context.config.renew_interval
            if self._leadership.is_leader:
                pause = self._leadership.scan_pause(self._scanner.affordable_pause)
            if self._names.namesakes.is_in_doubt:
                pause = min(pause, context.config.failover_time / 4)
            self._scanner.rest(pause)
        else:
            self._scanner.pace(len(rows))

    # -- assign ------------------------------------------------------------------------------------------------

    @property
    def _next_query(self) -> float:
        if not self._context.fleet.follows:
            return float("inf")
        return min(self._membership.next_at, self._leadership.next_at)

    def _follow(self, *, has_scanned: bool) -> None:
        """Adopt what the leader has assigned, and report; take what nobody reads while there is no leader."""
        now = self._context.runtime.monotonic()
        busy = self._busy()
        plans = self._membership.assigned(now, busy)
        # By a new scan only: 1) a take is refused, as the row has moved; 2) its lease worker ends, and wakes this
        # thread; 3) by the same view it would be planned again, without end.
        if has_scanned and not self._sync.must_finish_the_start and self._leadership.may_rescue:
            plans += self._membership.rescue(self._view, busy | {plan.lease_key for plan in plans})
        for plan in plans:
            self._start_worker(plan)
        for worker, _ in self.workers():
            worker.hand_over_if_late(now)
        if has_scanned or plans:
            self._measures.chosen(self._fleet(), len(plans))
        # Behind the first query: whoever reports and does not find its leases holds up their shards.
        self._membership.report_if_due(now)
        self._lead(now, has_scanned=has_scanned)

    def _lead(self, now: float, *, has_scanned: bool) -> None:
        """Work on the lock; assign leases by the scan of this round if this worker holds it."""
        was_leader, was_led = self._leadership.is_leader, self._leadership.is_led
        try:
            self._leadership.work_on_lock(now, may_lead=self._membership.is_member)
            if has_scanned and self._leadership.assign(self._view):
                self._membership.query_at_once()
        except (TemporaryError, SetupError) as error:
            if self._context.must_stop(error, self._context.has_taken):
                raise
            self._context.failures.failed(Activity.LEADING, error)
        else:
            self._context.failures.worked(Activity.LEADING)
        if (self._leadership.is_leader and not was_leader) or (was_led and not self._leadership.is_led):
            self._scanner.hurry()

    def _acquire(self) -> None:
        context, config = self._context, self._context.config
        now = context.runtime.monotonic()
        self._end_takes_in_vain()
        busy = self._busy()
        self._left_alone = {key: until for key, until in self._left_alone.items() if until > now}
        self._ended_here = still_awaited(self._view, self._ended_here)
        self._end_troubles_of_others(busy)
        fleet = self._fleet()
        room = fleet.room(config.max_leases)
        # Stealing is slower than taking what is free: a steal costs its owner a batch.
        may_steal = now >= self._next_steal and context.fleet.may_steal
        plans = fleet.choose(
            room,
            context.runtime.random(),
            max_leases=config.max_leases,
            max_steal=config.max_leases_to_steal_at_one_time if may_steal else 0,
            recently_ended_by_us=self._ended_here,
            overdue_after=OVERDUE_AFTER * config.failover_time,
            segment_keys=self._scanner.watched,
            segment_grace=self._scanner.adopt_after,
        )
        if may_steal:
            self._next_steal = now + config.steal_interval
        self._measures.chosen(fleet, len(plans))
        if plans or fleet.available:
            self._scanner.busy()
        else:
            mine = busy | {lease.key for lease in self._view.leases.values() if lease.is_ended}
            # With more room it may be the only one who can take anything. And a run with an end is over when another
            # worker has ended the last lease, which must be seen soon.
            if busy and room <= 1 and config.until is None:
                self._scanner.calm(has_all=mine >= self._view.leases.keys())
        for plan in self._in_turn(plans):
            self._start_worker(plan)

    def _end_takes_in_vain(self) -> None:
        """Let takes leave the gate, if many wait there, of leases that are not as they were when these were planned.

        1) Ten workers start together, and each plans to take every lease, as it sees no other; 2) a lease is taken; 3)
        nine more takes of it would be sent, and refused.
        """
        # Only this thread changes what it goes over.
        waiting = [one for one, _ in self._workers.values() if one.state is State.ACQUIRING]
        if len(waiting) <= FIRST_WINDOW:
            return
        for one in waiting:
            plan, now = one.scope.plan, self._view.leases.get(one.key)
            one.scope.is_in_vain = (
                now is None
                or now.owner != plan.seen.owner
                # That of a lease that is to be stolen moves with the heartbeats of its owner.
                or (now.counter != plan.seen.counter and not plan.is_steal)
            )
        self._context.held.gate.check_again()

    def _in_turn(self, plans: Sequence[Acquisition]) -> list[Acquisition]:
        """Return the plans in the order in which many of them shall pass the gate.

        At random, since workers that start together would else reach for the same leases, one after the other, and only
        one of them would get each. Shards whose parents are still to be read come last.
        """
        if len(plans) <= FIRST_WINDOW:
            return list(plans)
        chance = self._context.runtime.random()
        turn = {plan.lease_key: (self._waits_for_parents(plan), chance.random()) for plan in plans}
        return sorted(plans, key=lambda plan: turn[plan.lease_key])

    def _waits_for_parents(self, plan: Acquisition) -> bool:
        parents = (self._view.leases.get(parent) for parent in plan.seen.parents)
        return any(parent is not None and not parent.is_ended for parent in parents)

    def _fleet(self) -> Fleet:
        """The fleet by the newest view."""
        return Fleet.seen_by(
            self._context.worker_id,
            self._view,
            failover_time=self._context.config.failover_time,
            in_hand=self._busy(),
            left_alone=self._left_alone,
        )

    def _end_troubles_of_others(self, busy: set[str]) -> None:
        """End the failures of leases that could not be taken and live on in other workers: nobody else would."""
        for key in sorted(self._context.failures.shards() - busy):
            lease = self._view.leases.get(key)
            if lease is None or lease.is_ended or self._lives_elsewhere(lease):
                self._context.failures.over(key)

    def _lives_elsewhere(self, lease: Lease) -> bool:
        """True if another worker moved the counter between the last two scans."""
        is_others = lease.owner not in (None, self._context.worker_id)
        return is_others and self._view.unchanged_for(lease.key) == 0

    def _start_worker(self, plan: Acquisition) -> None:
        if self._stop:
            return
        key = plan.lease_key
        shard = self._sync.shards.get(key)
        scope = LeaseScope(
            self._context,
            plan,
            iterator=self._sync.iterator_for(plan),
            listed=shard.hash_range if shard else None,
            still_for=self._view.unchanged_for(key),
            on_change=self._wake.set,
        )
        worker = LeaseWorker(scope)
        # Under one lock: 1) the new thread comes to `initialize` at once; 2) that calls `Worker.stop`, which must know
        # its own threads, or it waits for itself; 3) only now the thread would be entered.
        with self._workers_lock:
            task = self._context.runtime.spawn(f"{self._name}-{key}", worker.run)
            self._workers[key] = (worker, task)

    def _reap(self) -> None:
        now = self._context.runtime.monotonic()
        finished = [
            (worker, task) for worker, task in self.workers() if worker.is_final or not task.is_alive()
        ]
        for worker, task in finished:
            task.join(1.0)
            if task.is_alive():
                continue
            with self._workers_lock:
                del self._workers[worker.key]
            if worker.state is State.ENDED:
                self._ended_here.add(worker.key)
            if worker.deleted_lease is not None:
                self._sync.row_was_deleted(worker.deleted_lease)
            if worker.released_after_failure:
                self._left_alone[worker.key] = now + self._context.config.retry_timeout
        if any(worker.scope.held is not None for worker, _ in finished):
            # They may have freed or created leases: scan soon. A lease that was not taken has changed nothing.
            self._scanner.hurry()
        self._wake_children({worker.key for worker, _ in finished if worker.state is State.ENDED})

    def _wake_children(self, ended: set[str]) -> None:
        """Wake the lease workers that may wait for the end of one of these shards, and no other.

        Each reads the rows of its parents then: 500 shards that end would have 1,000 children read them 500 times.
        """
        for worker, _ in self.workers() if ended else ():
            if not ended.isdisjoint(worker.scope.plan.seen.parents):
                worker.nudge()
