"""Lists the shards, scans the lease table, decides with `planning`, and starts and reaps the lease workers."""

from __future__ import annotations

from collections.abc import Mapping

from pykcl.errors import SetupError, TemporaryError
from pykcl.events import DataLost, StartingAtLatest
from pykcl.model.checkpoint import LATEST
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.lease_assignment import Acquisition, Fleet, still_awaited
from pykcl.planning.lease_creation import CreationReason, LeaseCreation, create_new_leases
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.lifecycle import State
from pykcl.planning.read_schedule import backoff
from pykcl.planning.shard_graph import cover_every_key
from pykcl.runtime import Task
from pykcl.status import Activity
from pykcl.worker.context import Context
from pykcl.worker.leader import LeaderDuty
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.measurements import TakeMeasures
from pykcl.worker.shard_sync import LatestStart, LeaseCleaner, VanishedRows
from pykcl.worker.stream_identity import refuse_part_of_a_listing
from pykcl.worker.table_scanner import TableLooks
from pykcl.worker.threads import Pulse
from pykcl.worker.watchdog import ProcessorWatch, Readiness

_STARTS = (CreationReason.START, CreationReason.OLDEST_LISTED)
"""Of creations: the second as well, for it is what is left of a start that was broken off."""
OVERDUE_AFTER = 3
"""Fail-over times for which a lease may be free before it is taken beyond the fair share (Java: the same)."""

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
        self.pulse = Pulse(f"{name}-manager", context.runtime, patience=_LONGEST_REQUEST)
        self._workers: dict[str, tuple[LeaseWorker, Task]] = {}
        self._workers_lock = context.runtime.lock()
        self._looks = TableLooks(context)
        self._vanished = VanishedRows(context.config.loss_noticed_within, self._tell_of_loss)
        self._cleaner = LeaseCleaner(context, self._must_stop)
        self._shards: Mapping[str, Shard] = {}
        self._duty = LeaderDuty(context, self._must_stop)
        self._processors = ProcessorWatch(context)
        self._measures = TakeMeasures(context, OVERDUE_AFTER * context.config.failover_time)
        self._latest = LatestStart(context, self._must_stop)
        self._ended_here: set[str] = set()
        self._left_alone: dict[str, float] = {}
        self._next_listing = 0.0
        self._listing_failures = 0
        # As far as it knows, until it has listed the shards: another worker may just have begun to create the leases.
        self._start_is_unfinished = True
        self._next_steal = 0.0
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self.pulse.spawn(self._run, self._context.on_fatal)

    def stop(self) -> None:
        """Ask the thread to end and take no further lease. Lease workers are not touched."""
        self._stop = True
        self._wake.set()

    def stop_workers(self) -> None:
        """Ask every lease worker to finish its batch, checkpoint and release."""
        for worker, _ in self.workers():
            worker.request_stop()

    def workers(self) -> list[tuple[LeaseWorker, Task]]:
        with self._workers_lock:
            return list(self._workers.values())

    @property
    def tasks(self) -> tuple[Task, ...]:
        return (self._task,) if self._task else ()

    def _run(self) -> None:
        failures = 0
        while not self._stop:
            self._wake.clear()
            self.pulse.beat()
            try:
                pause = self._step()
                failures = 0
                self._context.trouble.worked(Activity.MANAGING_LEASES)
            except (TemporaryError, SetupError) as error:
                if self._context.must_stop(error, self._context.has_taken):
                    self._context.on_fatal(error)
                    return
                failures += 1
                self._context.trouble.failed(Activity.MANAGING_LEASES, error)
                pause = backoff(failures, self._context.runtime.random(), first=0.5, longest=10.0)
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
        self._processors.look(self.workers(), now)
        must_list = self._vanished.is_due(now) or now >= self._next_listing
        listing = self._list_shards(now) if must_list else None
        if self._is_scan_due(now, listing):
            # In this order: a scan older than the listing could miss the lease of a parent.
            self._scan()
            if listing is not None and self._measures.synced(now, self._create_missing(listing)):
                self._listing_done()
            if not self._must_finish_the_start():
                self._acquire()
            self._cleaner.clean(self._view)
            if not self._start_is_unfinished and self._duty.audit(self._view, self._shards):
                self._list_at_once()
        workers = [worker for worker, _ in self.workers()]
        self.readiness.judge(self._view, workers, start_is_unfinished=self._start_is_unfinished)
        return max(
            0.01, min(self._looks.next_at, self._next_listing, now + 1.0) - self._context.runtime.monotonic()
        )

    @property
    def _view(self) -> LeaseView:
        return self._looks.view

    def _is_scan_due(self, now: float, listing: ShardListing | None) -> bool:
        """Whether to scan all of the table: where that is seldom done, not for a listing that brings nothing to do."""
        if self._looks.must_scan(now, lambda keys: self._fleet().is_any_available(keys)):
            return True
        if listing is None:
            return False
        if not self._looks.is_calm or self._start_is_unfinished or self._planned(listing, now):
            return True
        self._context.trouble.worked(Activity.CHECKING_LISTING)
        self._measures.synced(now, True)
        self._measures.chosen(self._fleet(), 0)
        self._listing_done()
        return False

    def _planned(self, listing: ShardListing, now: float) -> list[LeaseCreation]:
        """The leases that seem to lack at `now`, by what was seen last."""
        config, view = self._context.config, self._view
        leases = self._known_leases(listing)
        missing = create_new_leases(config.start_position, listing.shards, leases, view.unreadable.keys())
        return self._vanished.to_restore(now) + missing

    def _busy(self) -> set[str]:
        return {worker.key for worker, _ in self.workers()}

    # -- looking -----------------------------------------------------------------------------------------------

    def _scan(self, *, consistent: bool = False) -> None:
        """Fold a scan of all the table into the view."""
        context = self._context
        self.pulse.beat()
        before = self._view
        rows = self._looks.whole(consistent=consistent)
        self._duty.scanned(rows)
        context.fleet.look(rows, self._view)
        self._vanished.observe(before, self._view)
        # What is not in the scan yet may be of our own making.
        self._latest.taken(key for key, lease in self._view.leases.items() if lease.counter > 0)
        self._looks.pace(len(rows))

    def _list_shards(self, now: float) -> ShardListing | None:
        """A complete listing of the stream the worker started with, or None while that cannot be had.

        Trouble here must not keep the leases of dead workers from being found and taken.
        """
        context = self._context
        # Until everything that follows from the listing is done, it has to be repeated: soon, then ever more slowly.
        self._listing_failures += 1
        self._next_listing = now + backoff(
            self._listing_failures,
            context.runtime.random(),
            first=min(2.0, context.config.shard_sync_interval),
            longest=min(30.0, context.config.shard_sync_interval),
        )
        try:
            context.identity.confirm()
            self.pulse.beat()
            listing = context.stream.list_shards()
            if not listing.complete:
                raise TemporaryError("A page of the listing failed; no leases are created from a part of it.")
        except TemporaryError as error:
            context.trouble.failed(Activity.LISTING_SHARDS, error)
            self._measures.synced(now, False)
            return None
        context.trouble.worked(Activity.LISTING_SHARDS)
        self._cleaner.listed(listing)
        self._shards = listing.by_id
        return listing

    def _listing_done(self) -> None:
        context = self._context
        self._listing_failures = 0
        interval = context.config.shard_sync_interval * context.runtime.random().uniform(0.9, 1.1)
        self._next_listing = context.runtime.monotonic() + interval

    def _list_at_once(self) -> None:
        # While listing fails its own pauses hold: what no listing mends must not cost more than one for each audit.
        if self._listing_failures == 0:
            self._next_listing = self._context.runtime.monotonic()

    def _create_missing(self, listing: ShardListing) -> bool:
        """False: not all of it was done; it shall be done again with another listing."""
        creations = self._missing(listing)
        self._latest.settle(creations or ())
        if creations and self._context.config.start_position.kind == "LATEST":
            self._scan(consistent=True)
            creations = self._missing(listing)
        if creations is None:
            return False
        at_latest = sum(plan.lease.checkpoint.sequence_number == LATEST for plan in creations)
        if at_latest and not self._known_leases(listing):
            since = self._latest.since
            self._context.events.emit(StartingAtLatest(shards=at_latest, server_time_millis=since))
        for plan in creations:
            if self._must_stop():
                return False
            self._latest.create(plan)
        self._start_is_unfinished = False
        if creations:
            self._scan()
        return True

    def _tell_of_loss(self, lease: Lease) -> None:
        self._context.events.emit(
            DataLost(shard=lease.key, checkpoint=str(lease.checkpoint), resumed_at=None)
        )

    def _known_leases(self, listing: ShardListing) -> dict[str, Lease]:
        return {**self._view.leases, **self._vanished.remembered(listing.shards, self._view)}

    def _missing(self, listing: ShardListing) -> list[LeaseCreation] | None:
        """The leases to create, by what the last scan shows; None: the listing is not to be believed."""
        context, view = self._context, self._view
        creations = self._planned(listing, view.observed_at)
        starts_a_shard = any(plan.reason in _STARTS for plan in creations)
        at_latest = context.config.start_position.kind == "LATEST"
        # 1) Two of three shards get leases at LATEST, then creating fails; 2) the next listing lacks the third: nothing
        # seems to be missing, though the start is not finished, nor the application ready.
        lacks_a_shard = at_latest and not cover_every_key(listing.shards)
        self._start_is_unfinished = starts_a_shard or lacks_a_shard
        answered = len(context.gone)
        try:
            if lacks_a_shard:
                # It would be begun later, and LATEST would then be a later time.
                raise TemporaryError(
                    "The open shards that Kinesis lists do not cover every hash key; asking again."
                )
            refuse_part_of_a_listing(context.gone, listing, creations, view, self._must_stop)
        except TemporaryError as error:
            if len(context.gone) > answered:
                # Kinesis answers so many questions a second: the others shall not wait ever longer for their turn.
                self._listing_failures = 0
            context.trouble.failed(Activity.CHECKING_LISTING, error)
            return None
        context.trouble.worked(Activity.CHECKING_LISTING)
        return creations

    def _must_finish_the_start(self) -> bool:
        """Nobody reads from half a start: Java would take the rest for shards that need no lease.

        That counts only until somebody has read. From then on what has expired is taken over, even if this worker
        never comes to list the shards again.
        """
        untouched = all(lease.owner is None and lease.counter == 0 for lease in self._view.leases.values())
        return self._start_is_unfinished and untouched

    # -- acting ------------------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        context, config = self._context, self._context.config
        now = context.runtime.monotonic()
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
            segment_keys=self._looks.watched,
            segment_grace=self._looks.adopt_after,
        )
        if may_steal:
            self._next_steal = now + config.steal_interval
        self._measures.chosen(fleet, len(plans))
        if plans or fleet.available:
            self._looks.busy()
        else:
            mine = busy | {lease.key for lease in self._view.leases.values() if lease.is_ended}
            if busy and room <= 1:  # else it may be the only one who can take anything
                self._looks.calm(has_all=mine >= self._view.leases.keys())
        for plan in plans:
            self._start_worker(plan)

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
        """A lease that could not be taken may live on elsewhere: nobody else would tell the end of that trouble."""
        for key in sorted(self._context.trouble.shards() - busy):
            lease = self._view.leases.get(key)
            if lease is None or lease.is_ended or self._lives_elsewhere(lease):
                self._context.trouble.over(key)

    def _lives_elsewhere(self, lease: Lease) -> bool:
        """Whether another worker moved the counter between the last two scans."""
        is_others = lease.owner not in (None, self._context.worker_id)
        return is_others and self._view.unchanged_for(lease.key) == 0

    def _start_worker(self, plan: Acquisition) -> None:
        if self._stop:
            return
        key = plan.lease_key
        shard = self._shards.get(key)
        worker = LeaseWorker(
            self._context,
            plan,
            iterator=self._latest.opened.pop(key, None) if plan.seen.counter == 0 else None,
            listed=shard.hash_range if shard else None,
            still_for=self._view.unchanged_for(key),
            on_change=self._wake.set,
        )
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
                self._wake_children()
            if worker.vanished is not None:
                self._vanished.was_held(worker.vanished)
            if worker.gave_up:
                self._left_alone[worker.key] = now + self._context.config.retry_for
        if any(worker.had_the_lease for worker, _ in finished):
            # What they freed or created is worth a look. Who was refused the lease has changed nothing.
            self._looks.hurry()

    def _wake_children(self) -> None:
        for worker, _ in self.workers():
            worker.nudge()
