"""Watch processor calls that do not return, and whether this worker and the fleet read what there is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from pykcl.errors import SetupError
from pykcl.events import LossReason, ProcessorReturned, ProcessorSlow, ProcessorTimedOut, RecordNotAcked
from pykcl.interfaces import HasCredentials
from pykcl.metrics import catalog
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.planning.lease_view import LeaseView, Namesakes
from pykcl.planning.lifecycle import State
from pykcl.runtime import Task
from pykcl.status import Activity
from pykcl.worker.context import Context
from pykcl.worker.held_leases import Loss
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.processor_calls import CALLS_THE_PROCESSOR

_MAX_FRAMES = 30


class ProcessorWatchdog:
    """Used by the LeaseManager's thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reported: dict[tuple[str, float], str] = {}
        self._unacked: dict[str, Checkpoint] = {}
        # Shards that were paused at the last check, and when each was found to be, monotonic seconds: behind a pause
        # the time of acks counts anew.
        self._are_paused: frozenset[str] = frozenset()
        self._paused: dict[str, float] = {}

    def check(self, workers: Sequence[tuple[LeaseWorker, Task]], now: float) -> None:
        """Each call is reported once, after `processor_warn_after`, and again when it returned; `processor_timeout`
        costs it the lease, which is reported, too: the lease worker itself reports the loss when the call returns, and
        that may never be."""
        config = self._context.config
        current: dict[tuple[str, float], str] = {}
        self._check_pauses([worker for worker, _ in workers], now)
        for worker, task in workers:
            self._check_acks(worker, now)
            self._measure_ending(worker, now)
            busy = worker.scope.calls.busy
            if busy is None or now - busy[1] < config.processor_warn_after:
                continue
            method, since = busy
            current[worker.key, since] = method
            if (worker.key, since) not in self._reported:
                self._report(worker, method, now - since, task)
            if config.processor_timeout is not None and now - since >= config.processor_timeout:
                self._revoke(worker, method, now - since, config.processor_timeout)
        for (shard, since), method in self._reported.items():
            if (shard, since) not in current:
                self._context.events.emit(ProcessorReturned(shard=shard, method=method, seconds=now - since))
        self._reported = current

    def _check_pauses(self, workers: Sequence[LeaseWorker], now: float) -> None:
        keys = {worker.key for worker in workers}
        paused = frozenset(worker.key for worker in workers if worker.scope.is_paused)
        for key in sorted(keys & (paused | self._are_paused)):
            self._context.meter.measure(key, (catalog.SHARD_PAUSED, float(key in paused)))
        self._are_paused = paused
        self._paused = {key: now if key in paused else self._paused.get(key, -inf) for key in keys}

    def _measure_ending(self, worker: LeaseWorker, now: float) -> None:
        """Measure a shard as behind by the time since its end was read, as no page does that any more: nobody reads its
        children before its end is written.
        """
        meter, since = self._context.meter, worker.unwritten_end
        if meter.is_on and since is not None:
            behind = max(0.0, now - since) * 1000.0
            lag = (catalog.MILLIS_BEHIND_LATEST, behind), (catalog.APPLICATION_BEHIND_LATEST, behind)
            meter.summary(worker.key, lag)

    def _check_acks(self, worker: LeaseWorker, now: float) -> None:
        """Report the record that holds up the checkpoint of its shard, once; `processor_timeout` costs the lease."""
        config, progress = self._context.config, worker.scope.progress
        if progress is None or not progress.waits_for_acks:
            return
        watermark = progress.watermark
        since, paused_at = None if watermark is None else watermark.oldest_since, self._paused[worker.key]
        is_late = since is not None and now - max(since, paused_at) >= config.processor_warn_after
        if watermark is None or not is_late:
            self._unacked.pop(worker.key, None)
            return
        found = watermark.oldest
        if found is None:
            return
        position, since, unacked = found
        since = max(since, paused_at)
        if self._unacked.get(worker.key) != position and now - since >= config.processor_warn_after:
            self._unacked[worker.key] = position
            event = RecordNotAcked(
                shard=worker.key, position=str(position), seconds=now - since, unacked=unacked
            )
            self._context.events.emit(event)
        timeout = config.processor_timeout
        if timeout is not None and now - since >= timeout:
            loss = Loss.of(LossReason.NOT_ACKED, position=position, timeout=timeout)
            if worker.revoke(loss):
                # Else this worker would take it again before another one can, which may do better.
                worker.released_after_failure = True

    def _revoke(self, worker: LeaseWorker, method: str, seconds: float, timeout: float) -> None:
        loss = Loss.of(LossReason.STALLED, method=method, timeout=timeout)
        if worker.revoke(loss):
            event = ProcessorTimedOut(shard=worker.key, method=method, seconds=seconds, cause=loss.cause)
            self._context.events.emit(event)

    def _report(self, worker: LeaseWorker, method: str, seconds: float, task: Task) -> None:
        standing = worker.scope.calls.standing
        found = None if standing is None else standing()
        thread, stack = found or (
            task.name,
            self._context.runtime.stack(task, below=CALLS_THE_PROCESSOR),
        )
        stack = stack[-_MAX_FRAMES:]
        self._context.events.emit(
            ProcessorSlow(shard=worker.key, method=method, seconds=seconds, thread=thread, stack=stack)
        )


_OVERDUE_AFTER = 3
"""Failover times, as in the LeaseManager."""


class Readiness:
    """Updated by the LeaseManager's thread only, after each round that worked; any thread may read it.

    everywhere: no shard lacks its lease, whatever can be read now is owned, and ours have answered GetRecords.
    initialized: this worker has done its first round, and whatever it took in it has answered, or waits for parents.
    It stays: a lease that is taken later, or is nobody's for a moment, makes no worker unfit that was fit.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._me = context.worker_id
        self.everywhere = context.runtime.event()

    @property
    def initialized(self) -> bool:
        return self._context.initialized.is_set()

    def update(self, view: LeaseView, workers: Sequence[LeaseWorker], *, start_is_unfinished: bool) -> None:
        """start_is_unfinished: as far as is known, not every lease that the application starts with was created."""
        leases = view.leases
        # The very leases that may be acquired: one below a row nobody can understand is awaited by nobody.
        open_leases = view.tree.readable(leases, view.unreadable)
        answered = {worker.key for worker in workers if worker.scope.is_read}
        are_read = all(lease.key in answered or lease.owner not in (None, self._me) for lease in open_leases)
        if open_leases and are_read and not start_is_unfinished:
            self.everywhere.set()
        else:
            self.everywhere.clear()
        if not start_is_unfinished and all(map(_is_at_work, workers)):
            self._context.initialized.set()
        self._report_unread(view, open_leases, {worker.key for worker in workers})

    def _report_unread(self, view: LeaseView, open_leases: Sequence[Lease], busy: Collection[str]) -> None:
        """Report leases that nobody has taken for long, while this worker has all that it may have.

        For long: it would have taken them itself by then, beyond its share, had it room.
        """
        config = self._context.config
        patience = _OVERDUE_AFTER * config.failover_time
        is_full = len(busy) >= config.max_leases
        unread = [
            lease.key
            for lease in open_leases
            if is_full and lease.key not in busy and view.unchanged_for(lease.key) > patience
        ]
        if not unread:
            self._context.failures.worked(Activity.READING_EVERY_SHARD)
            return
        why = SetupError(
            f"{len(unread)} of {len(open_leases)} open shards are read by nobody, and this worker holds all the leases "
            f"it may: max_leases={config.max_leases}."
        )
        self._context.failures.failed(Activity.READING_EVERY_SHARD, why.about("E20"))


class NameWatch:
    """Used by the LeaseManager's thread only: reports another process that works under this worker's identifier.

    A lease that it holds would be lost to that process with a word; but one that holds none would stand by for ever,
    as all the leases name it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.namesakes = Namesakes()

    def scanned(self, view: LeaseView, busy: Collection[str], *, is_consistent: bool) -> None:
        """Compare with a scan of all the table. busy: leases that lease workers hold or are taking."""
        context = self._context
        before = self.namesakes.leases
        self.namesakes = self.namesakes.observe(
            view,
            context.worker_id,
            process_token=context.process_token,
            in_hand=busy,
            failover_time=context.config.failover_time,
            is_consistent=is_consistent,
        )
        found = self.namesakes.leases
        if found:
            # Of those that nobody works on, this worker renews the ones that have ended itself.
            held = {held.key for held in context.held.all()}
            found = [key for key in found if key not in held]
        if not found:
            if before:
                context.failures.worked(Activity.HAVING_ITS_OWN_NAME)
            return
        why = SetupError(
            f"Another process renews leases as {context.worker_id!r}, which is the name of this worker, too; the first "
            f"is {found[0]}. Each takes them for its own, so this one leaves them alone."
        )
        context.failures.failed(Activity.HAVING_ITS_OWN_NAME, why.about("E08"))


class CredentialsWatch:
    """Used by the LeaseManager's thread only: reports credentials that are not renewed, long before they end."""

    def __init__(self, context: Context) -> None:
        self._failures = context.failures
        self._adapters = [one for one in (context.table, context.stream) if isinstance(one, HasCredentials)]

    def check(self) -> None:
        troubles = [trouble for one in self._adapters if (trouble := one.credentials_trouble()) is not None]
        if troubles:
            self._failures.failed(Activity.RENEWING_CREDENTIALS, troubles[0])
        else:
            self._failures.worked(Activity.RENEWING_CREDENTIALS)


def _is_at_work(worker: LeaseWorker) -> bool:
    return (
        worker.scope.has_answered
        or worker.is_final
        or worker.state in (State.WAITING_FOR_PARENTS, State.PAUSED)
    )
