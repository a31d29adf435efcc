"""Lists the shards, scans the lease table, decides with `planning`, and starts and reaps the lease workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykcl.errors import SetupError, ShardGone, StreamMissing, TableGone, TemporaryError, WrongStream
from pykcl.events import RowRefused, StartingAtLatest
from pykcl.model.checkpoint import LATEST, ReadFrom
from pykcl.model.lease import ForeignRow, Lease, Row, UnreadableRow
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.acquire import calculate_acquire, room_in_share, still_awaited
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.lifecycle import State
from pykcl.planning.lineage import cover_every_key
from pykcl.planning.new_leases import create_new_leases
from pykcl.planning.pace import backoff, scan_pause
from pykcl.planning.plans import Acquisition, LeaseCreation
from pykcl.runtime import Task
from pykcl.worker.context import Context
from pykcl.worker.gone_shards import refuse_part_of_a_listing
from pykcl.worker.leader_duty import LeaderDuty
from pykcl.worker.lease_cleaner import LeaseCleaner
from pykcl.worker.lease_creation import create_lease
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.processor_watch import ProcessorWatch
from pykcl.worker.vanished_rows import VanishedRows
from pykcl.worker.vital import vital

SHORTEST_SCAN_PAUSE = 0.2
"""Seconds between two scans when something just happened."""
OVERDUE_AFTER = 3
"""Fail-over times for which a lease may be free before it is taken beyond the fair share (Java: the same)."""


class LeaseManager:
    """One thread. It puts new rows and deletes old ones; a lease is taken by the lease worker it starts for it."""

    def __init__(self, context: Context, *, name: str) -> None:
        self._context = context
        self._name = name
        self._stop = False
        self._wake = context.runtime.event()
        self.ready = context.runtime.event()
        self._workers: dict[str, tuple[LeaseWorker, Task]] = {}
        self._workers_lock = context.runtime.lock()
        self._view = LeaseView()
        self._vanished = VanishedRows(context.config.loss_noticed_within)
        self._cleaner = LeaseCleaner(context, lambda: self._stop)
        self._shards: Mapping[str, Shard] = {}
        self._duty = LeaderDuty(context, lambda: self._stop)
        self._processors = ProcessorWatch(context)
        self._latest_iterators: dict[str, str] = {}
        self._ended_here: set[str] = set()
        self._left_alone: dict[str, float] = {}
        self._refused_rows: set[str] = set()
        self._next_scan = 0.0
        self._scanned_at = 0.0
        self._next_listing = 0.0
        self._listing_failures = 0
        # As far as it knows, until it has listed the shards: another worker may just have begun to create the leases.
        self._start_is_unfinished = True
        self._next_steal = 0.0
        self._task: Task | None = None

    def start(self) -> None:
        name = f"{self._name}-manager"
        self._task = self._context.runtime.spawn(name, vital(self._run, name, self._context.on_fatal))

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
            try:
                pause = self._step()
                failures = 0
                self._context.trouble.worked("managing leases")
            except (WrongStream, StreamMissing, TableGone) as error:
                self._context.on_fatal(error)
                return
            except (TemporaryError, SetupError) as error:
                if isinstance(error, SetupError) and not self._context.has_taken.is_set():
                    # It cannot work at all. Later it is trouble that may pass, such as a policy changed by mistake.
                    self._context.on_fatal(error)
                    return
                failures += 1
                self._context.trouble.failed("managing leases", error)
                pause = backoff(failures, self._context.runtime.random(), first=0.5, longest=10.0)
            if not self._stop:
                self._wake.wait(pause)

    def _step(self) -> float:
        """One round; returns the seconds until the next one."""
        now = self._context.runtime.monotonic()
        self._reap()
        self._processors.look([worker for worker, _ in self.workers()], now)
        must_list = self._vanished.is_due(now) or now >= self._next_listing
        listing = self._list_shards(now) if must_list else None
        if listing is not None or now >= self._next_scan:
            # In this order: a scan older than the listing could miss the lease of a parent.
            self._scan()
            if listing is not None and self._create_missing(listing):
                self._listing_done()
            if not self._must_finish_the_start():
                self._acquire()
            self._cleaner.clean(self._view)
            if not self._start_is_unfinished and self._duty.audit(self._view, self._shards):
                self._list_at_once()
        self._judge_readiness()
        return max(
            0.01, min(self._next_scan, self._next_listing, now + 1.0) - self._context.runtime.monotonic()
        )

    # -- looking -----------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Fold one scan into the view."""
        context = self._context
        scan = context.table.scan()
        self._duty.scanned(scan.rows)
        # The time after the scan: a counter in it stood so at the latest now, so an age is never overrated.
        now = self._scanned_at = context.runtime.monotonic()
        before, self._view = self._view, self._view.observe(self._own_rows(scan.rows), now)
        context.fleet.look(scan.rows, self._view)
        self._vanished.observe(before, self._view)
        # Once anybody has taken the lease, reading goes on from the row. One whose row is not in the scan yet stays.
        taken = {key for key, lease in self._view.leases.items() if lease.counter > 0}
        self._latest_iterators = {
            key: iterator for key, iterator in self._latest_iterators.items() if key not in taken
        }
        self._next_scan = now + scan_pause(
            scan.read_units,
            shortest=min(1.0, context.config.renew_interval),
            longest=context.config.full_scan_interval,
            rng=context.runtime.random(),
        )

    def _own_rows(self, rows: Iterable[Row]) -> list[Row]:
        """Without the leases of another stream; what is refused is reported once, while it stays."""
        own: list[Row] = []
        refused: set[str] = set()
        for row in rows:
            problem = self._problem(row)
            if problem is not None:
                refused.add(row.key)
                if row.key not in self._refused_rows:
                    self._context.events.emit(RowRefused(key=row.key, problem=problem))
            if problem is None or isinstance(row, UnreadableRow):
                own.append(row)
        self._refused_rows = refused
        return own

    def _problem(self, row: Row) -> str | None:
        if isinstance(row, ForeignRow):
            return None
        if isinstance(row, UnreadableRow):
            return row.problem
        return "it belongs to another stream" if self._context.identity.conflicts_with(row) else None

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
            listing = context.stream.list_shards()
            if not listing.complete:
                raise TemporaryError("A page of the listing failed; no leases are created from a part of it.")
        except TemporaryError as error:
            context.trouble.failed("listing shards", error)
            return None
        context.trouble.worked("listing shards")
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
        context = self._context
        view = self._view
        leases = {**view.leases, **self._vanished.remembered(listing.shards, view)}
        creations = self._vanished.to_restore(view.observed_at) + create_new_leases(
            context.config.start_position, listing.shards, leases, view.unreadable.keys()
        )
        starts_a_shard = any(plan.reason == "start of the application" for plan in creations)
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
            refuse_part_of_a_listing(context.gone, listing, creations, view, lambda: self._stop)
        except TemporaryError as error:
            if len(context.gone) > answered:
                # Kinesis answers so many questions a second: the others shall not wait ever longer for their turn.
                self._listing_failures = 0
            context.trouble.failed("checking the list of shards", error)
            return False
        context.trouble.worked("checking the list of shards")
        latest = [plan for plan in creations if plan.lease.checkpoint.sequence_number == LATEST]
        if latest and not leases:
            context.events.emit(
                StartingAtLatest(shards=len(latest), server_time_millis=context.stream.server_time_millis())
            )
        for plan in creations:
            if self._stop:
                return False
            iterator = self._iterator_for(plan)
            if create_lease(context, plan) and iterator is not None:
                self._latest_iterators[plan.lease.key] = iterator
        self._start_is_unfinished = False
        if creations:
            self._scan()
        return True

    def _must_finish_the_start(self) -> bool:
        """Nobody reads from half a start: Java would take the rest for shards that need no lease.

        That counts only until somebody has read. From then on what has expired is taken over, even if this worker
        never comes to list the shards again.
        """
        untouched = all(lease.owner is None and lease.counter == 0 for lease in self._view.leases.values())
        return self._start_is_unfinished and untouched

    def _iterator_for(self, plan: LeaseCreation) -> str | None:
        """An iterator at the tip, for a lease at LATEST, opened before its row exists.

        From the moment a row exists its application may be called ready, so reading has to begin at or before that.
        Whoever takes the lease can start at the server time in the row, which is rounded down to a second; the worker
        that put the row starts at the very place, however much later it comes to read.
        """
        lease = plan.lease
        # One with a note completes a start that was broken off, and begins when that start did: not "now".
        if lease.checkpoint.sequence_number != LATEST or lease.note is not None:
            return None
        try:
            return self._context.stream.open(lease.key, ReadFrom("LATEST"))
        except ShardGone:
            # It was listed a moment ago. Its reader finds out; until then the server time in the row will do.
            return None

    # -- acting ------------------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        context, config = self._context, self._context.config
        now = context.runtime.monotonic()
        busy = {worker.key for worker, _ in self.workers()}
        self._left_alone = {key: until for key, until in self._left_alone.items() if until > now}
        self._ended_here = still_awaited(self._view, self._ended_here)
        self._end_troubles_of_others(busy)
        room = room_in_share(
            self._view,
            worker=context.worker_id,
            failover_time=config.failover_time,
            max_leases=config.max_leases,
            left_alone=self._left_alone,
            held=busy,
        )
        # Stealing is slower than taking what is free: a steal costs its owner a batch.
        may_steal = now >= self._next_steal and context.fleet.may_steal
        plans = calculate_acquire(
            self._view,
            worker=context.worker_id,
            leases_to_acquire=room,
            max_leases=config.max_leases,
            max_steal=config.max_leases_to_steal_at_one_time if may_steal else 0,
            failover_time=config.failover_time,
            rng=context.runtime.random(),
            recently_ended_by_us=self._ended_here,
            left_alone=self._left_alone,
            held=busy,
            overdue_after=OVERDUE_AFTER * config.failover_time,
        )
        if may_steal:
            self._next_steal = now + config.renew_interval
        for plan in plans:
            self._start_worker(plan)

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
            iterator=self._latest_iterators.pop(key, None) if plan.seen.counter == 0 else None,
            listed=shard.hash_range if shard else None,
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
            # What they freed or created is worth a look soon, yet never in a spin: leases that end as quickly as they
            # are taken must not cost more than a few scans a second. Who was refused the lease has changed nothing.
            self._next_scan = min(self._next_scan, self._scanned_at + SHORTEST_SCAN_PAUSE)

    def _wake_children(self) -> None:
        for worker, _ in self.workers():
            worker.nudge()

    def _judge_readiness(self) -> None:
        """Ready: no shard lacks its lease, whatever can be read now is owned, and ours have answered GetRecords."""
        leases = self._view.leases
        # The very leases that may be acquired: one below a row nobody can understand is awaited by nobody.
        open_leases = self._view.tree.readable(leases, self._view.unreadable)
        answered = {worker.key for worker, _ in self.workers() if worker.has_answered}
        mine = self._context.worker_id
        are_read = all(lease.key in answered or lease.owner not in (None, mine) for lease in open_leases)
        if open_leases and are_read and not self._start_is_unfinished:
            self.ready.set()
        else:
            self.ready.clear()
