"""One lease, from acquiring to ended, lost or released: the activities of the states in `planning.lifecycle`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from pykcl.errors import (
    ConfigError,
    FatalError,
    LeaseLostError,
    SetupError,
    TableGone,
    TemporaryError,
)
from pykcl.events import (
    Event,
    KeysIgnored,
    LeaseLost,
    LeaseReleased,
    LeaseStateChanged,
    LeaseTakeFailed,
    LeaseTaken,
    LossReason,
    ReleaseUnacknowledged,
    RetriesExhausted,
    ShardStarted,
    WaitingForParents,
)
from pykcl.interfaces import LeaseTable
from pykcl.metrics import catalog
from pykcl.model import lease_writes
from pykcl.model.lease import Lease
from pykcl.planning.lifecycle import FINAL, Signal, State, next_state
from pykcl.processor import InitializationInput, LeaseLostInput
from pykcl.status import Activity
from pykcl.worker.checkpointer import Progress, ShardCheckpointer
from pykcl.worker.held_leases import HeldLease, Loss
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.processor_factory import (
    must_have_run,
    refuse_what_acks_nothing,
    refuse_what_settles_by_itself,
)
from pykcl.worker.record_delivery import RecordDelivery
from pykcl.worker.shard_end import NOT_RETURNED, end
from pykcl.worker.watermark import Watermark
from pykcl.worker.window_delivery import refuse_beside_windows, windows_of

_BACK_AND_FORTH = 10
"""Failover times within which a lease that is taken twice from this worker moves as nobody planned."""


def unfinished_parents(table: LeaseTable, lease: Lease) -> tuple[str, ...]:
    """Parents that have a row which is not at SHARD_END; a parent without a row was cleaned up: it has ended.

    That holds in the table in which the lease is held. 1) The table is deleted and made anew; 2) this worker waits for
    a parent, whose row is not there; 3) the next scan, a second later, shows that the table is another one: the shard
    would have been begun before its parent. So the row of the lease itself has to be there, too. Raises TemporaryError.
    """
    rows = {parent: table.read(parent) for parent in lease.parents}
    if None in rows.values():
        own = table.read(lease.key)
        if not isinstance(own, Lease) or own.actual_owner != lease.actual_owner:
            raise TemporaryError(
                f"Neither the parents of {lease.key} have a row nor this worker the lease, by the table as it is now. "
                "They are read again, as it may be another table of that name."
            )
    return tuple(
        key for key, row in rows.items() if row is not None and not (isinstance(row, Lease) and row.is_ended)
    )


class LeaseWorker:
    """The body of one thread. Other threads only call `request_stop`, `nudge` and `revoke`, and read attributes.

    released_after_failure: it could not go on with the shard, so this process leaves the lease alone for a while.
    """

    def __init__(self, scope: LeaseScope) -> None:
        self.key = scope.key
        self.scope = scope
        scope.context.pauses.begins(scope.key)
        self.state = State.ACQUIRING
        self.released_after_failure = False
        self._context = scope.context
        self._delivery: RecordDelivery | None = None

    @property
    def busy(self) -> tuple[str, float] | None:
        """The processor method that is running and since when (monotonic seconds); as in LeaseScope."""
        return self.scope.busy

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def unwritten_end(self) -> float | None:
        """Time at which the end of the shard was read, while this worker has the lease and is to write it.

        Monotonic seconds. None otherwise: once the lease is lost, another worker may have written the end, whatever
        this thread does.
        """
        held = self.scope.held
        is_ending = self.state is State.ENDING and held is not None and not held.is_over
        return self.scope.end_began if is_ending else None

    @property
    def deleted_lease(self) -> Lease | None:
        """The lease as last written, if its row was deleted by mistake under this worker, which was its owner."""
        held = self.scope.held
        return held.lease if held is not None and held.is_to_be_put_back else None

    def request_stop(self, acks_until: float = inf) -> None:
        self.scope.request_stop(acks_until)

    def nudge(self) -> None:
        """Something this worker may be waiting for (a parent's end) has happened."""
        self.scope.wake.set()

    def revoke(self, loss: Loss) -> bool:
        """Revoke the lease though the processor is still busy with it: it may write nothing any more.

        Return False if there is none to revoke.
        """
        held = self.scope.held
        if held is None or held.is_over:
            return False
        held.lose(loss)
        return True

    def hand_over_if_late(self, now: float) -> None:
        """Hand the lease over at its last checkpoint if its processor holds that up for too long.

        Called by the LeaseManager's thread. The leader would transfer it anyway, and nobody would know from where on
        both work. Raises TemporaryError, SetupError.
        """
        held = self.scope.held
        if held is None or held.asked_for(now) <= self._context.config.graceful_handoff_timeout:
            return
        if held.is_in_doubt:
            return
        within = self._context.config.write_timeout
        try:
            if self.scope.progress is not None and self._context.config.checkpoint_mode != "manual":
                # Of the batches before the one that runs.
                self.scope.progress.flush()
            held.write(lease_writes.hand_over, within=within)
        except LeaseLostError:
            return
        self.scope.wake.set()

    def run(self) -> None:
        activities: dict[State, Callable[[], Signal]] = {
            State.ACQUIRING: self._acquire,
            State.SETTLING: self._wait_for_old_owner,
            State.WAITING_FOR_PARENTS: self._wait_for_parents,
            State.STARTING: self._start,
            State.READING: self._read,
            State.PAUSED: self._wait_while_paused,
            State.ENDING: partial(end, self.scope),
            State.SHUTTING_DOWN: self._shut_down,
            State.HANDING_BACK: self._hand_back,
            State.RELEASING: self._release,
            State.LOSING: self._lose,
        }
        try:
            while self.state not in FINAL:
                self._enter(next_state(self.state, self._perform(activities[self.state])))
            if self.state is State.LOST:
                self._report_loss()
        finally:
            # Whatever happened, even a thread that dies of a bug: no heartbeat without a reader behind it.
            if self.scope.held is not None:
                if not self._is_kept(self.scope.held):
                    self._context.held.remove(self.scope.held)
                self._context.failures.over(self.key)
            if self._delivery is not None:
                self._delivery.drop()
            self._context.pauses.ends(self.key)
            self.scope.on_change()

    def _is_kept(self, held: HeldLease) -> bool:
        """True for an ended lease of a fleet with a leader, which assigns leases without heartbeats again."""
        return self.state is State.ENDED and not held.is_over

    def _enter(self, state: State) -> None:
        before, self.state = self.state, state
        if state is not before:
            event = LeaseStateChanged(shard=self.key, before=before.value, after=state.value)
            self._context.events.emit(event)

    def _perform(self, activity: Callable[[], Signal]) -> Signal:
        try:
            return activity()
        except LeaseLostError:
            return Signal.LEASE_LOST
        except (FatalError, ConfigError) as error:
            self._context.on_fatal(error)
            if isinstance(error, TableGone):
                # Positions are gone with the table: nothing may be written, and the processor must hear of it.
                self.revoke(Loss.of(LossReason.TABLE_GONE))
                return Signal.LEASE_LOST if self.scope.held else Signal.REFUSED
            self.scope.stop_requested = True
            return Signal.STOP
        except SetupError as error:
            return self._cannot_work(error)

    def _cannot_work(self, error: SetupError) -> Signal:
        """Give a lease in hand to whoever can work on it, and leave it alone for a while: let go and taken again at
        once, it would move without end.
        """
        if self.scope.held is not None:
            self.scope.why_handed_back = str(error)
            self.scope.stands(error.code, type(error).__name__)
            return Signal.GIVE_UP
        if self._context.must_stop(error, self._context.has_taken):
            self._context.on_fatal(error)
        self._context.failures.failed(Activity.TAKING, error, shard=self.key)
        return Signal.REFUSED

    # -- the states --------------------------------------------------------------------------------------------

    def _acquire(self) -> Signal:
        scope, context, seen = self.scope, self._context, self.scope.plan.seen
        if scope.stop_requested:
            return Signal.STOP
        try:
            if scope.plan.is_steal:
                # Only a steal may refresh the counter: its owner is alive and moves it. A lease that was seen to stand
                # still is taken with that very counter, or not at all.
                row = context.table.read(self.key)
                if not isinstance(row, Lease) or row.owner != seen.owner or row.is_ended:
                    context.events.emit(LeaseTakeFailed(shard=self.key))
                    return Signal.REFUSED
                seen = row
            adopts = scope.plan.reason == "assigned"
            metadata = context.metadata_for(seen)
            write = (
                lease_writes.adopt(seen, metadata)
                if adopts
                else lease_writes.take(seen, context.worker_id, metadata)
            )
            held = context.held.acquire(
                write,
                table=context.table,
                config=context.config,
                meter=context.meter,
                wake=scope.wake,
                events=context.events,
                is_wanted=lambda: not scope.stop_requested,
                may_be_sent=lambda: not scope.is_in_vain,
            )
        except TemporaryError as error:
            context.failures.failed(Activity.TAKING, error, shard=self.key)
            return Signal.REFUSED
        if held is None and scope.must_stop():
            return Signal.STOP
        context.failures.worked(Activity.TAKING, shard=self.key)
        if held is None:
            context.events.emit(LeaseTakeFailed(shard=self.key))
            return Signal.REFUSED
        return self._begin_to_hold(held, seen)

    def _begin_to_hold(self, held: HeldLease, seen: Lease) -> Signal:
        scope, context = self.scope, self._context
        reason, counter = scope.plan.reason, held.fencing_token
        # Without an owner it is free, whatever a hand-over has left behind.
        before = seen.actual_owner if seen.owner is not None else None
        context.events.emit(LeaseTaken(shard=self.key, reason=reason, from_owner=before, counter=counter))
        scope.holds(held)
        context.held.add(held)
        context.has_taken.set()
        if held.lease.is_ended:
            # 1) The lease is planned to be taken; 2) somebody ends it by hand; 3) the take lands, as it compares the
            # counter only, or did before and is settled by reading the row. Nothing of it is to be read.
            return Signal.TAKEN_ENDED
        return Signal.TAKEN_FROM_LIVE_OWNER if scope.plan.is_steal else Signal.TAKEN

    def _wait_for_old_owner(self) -> Signal:
        """Let the robbed owner notice (its next heartbeat fails) before the first record is read a second time. Also
        during a stop: the next owner finds a lease that is free, does not wait, and the robbed one may still read."""
        within = self._context.config.loss_noticed_within
        return Signal.STOP if self.scope.pause(within, outlasts_stop=True) else Signal.SETTLED

    def _wait_for_parents(self) -> Signal:
        scope, context = self.scope, self._context
        attempt, reported = 0, False
        while True:
            # Cleared before the check of what it announces: a stop requested after that sets it again.
            scope.wake.clear()
            scope.check()
            if scope.must_stop():
                return Signal.STOP
            try:
                with context.meter.timed(catalog.BLOCK_ON_PARENT):
                    missing = unfinished_parents(context.table, scope.mine.lease)
                context.failures.worked(Activity.READING_PARENTS, shard=self.key)
            except TemporaryError as error:
                attempt += 1
                if scope.failed(Activity.READING_PARENTS, error, attempt):
                    return Signal.STOP
                continue
            if not missing:
                return Signal.PARENTS_ENDED
            scope.delayed()
            if not reported:
                context.events.emit(WaitingForParents(shard=self.key, parents=missing))
                reported = True
            scope.wake.wait(context.config.parent_shard_poll_interval)

    def _start(self) -> Signal:
        scope, context, held = self.scope, self._context, self.scope.mine
        if self._delivery is not None:
            # A second start under this lease. What was opened at LATEST has been read from: the row says since when.
            self._delivery.retire()
            scope.iterator = None
        watermark = None
        if context.config.checkpoint_mode == "ack":
            watermark = Watermark(context.runtime, context.memory.release, scope.wake.set)
        progress = Progress(held, context.runtime, context.meter, context.events, watermark)
        init = InitializationInput(
            shard_id=self.key,
            stream=context.stream.name,
            position=held.lease.checkpoint,
            pending=held.lease.pending,
            fencing_token=held.fencing_token,
            checkpointer=ShardCheckpointer(progress, None),
            application=context.config.application,
            stream_arn=context.identity.description.arn,
            is_replay=context.config.until is not None,
        )
        result = scope.calls.until_it_returns("initialize", self._make_processor, init)
        if result in NOT_RETURNED or scope.processor is None:
            return NOT_RETURNED.get(result, Signal.STOP)
        scope.progress = progress
        # From the row as it is now: initialize may have committed a checkpoint an earlier owner prepared.
        self._delivery = RecordDelivery(scope)
        context.events.emit(ShardStarted(shard=self.key, position=str(held.lease.checkpoint)))
        return Signal.STARTED

    def _make_processor(self, init: InitializationInput) -> None:
        # A new instance for each attempt: one whose initialize raised half-way is in no defined state.
        processor = self._context.processor()
        initialize: Callable[[InitializationInput], object] = processor.initialize
        if self._context.config.checkpoint_mode == "ack":
            refuse_what_acks_nothing(processor)
        must_have_run("initialize", initialize(init))
        if windows_of(processor) is not None:
            refuse_beside_windows(getattr(processor, "handler_name", "-"), self._context.config)
        # A wrapper may have made the handler only now.
        refuse_what_settles_by_itself(processor, self._context.config.checkpoint_mode)
        uses = "windows" if windows_of(processor) is not None else "concurrency"
        counts_on_keys = uses == "windows" or hasattr(processor, "settles_because")
        if counts_on_keys and self._context.identity.says_first_that_keys_are_ignored():
            self._context.events.emit(KeysIgnored(stream=self._context.stream.name, uses=uses))
        remark = getattr(processor, "remark", None)
        if isinstance(remark, Event):
            self._context.events.emit(remark)
        self.scope.processor = processor

    @property
    def _started(self) -> RecordDelivery:
        if self._delivery is None:
            raise LeaseLostError(f"The processor of {self.key} was never initialized.")
        return self._delivery

    def _read(self) -> Signal:
        return self._started.read()

    def _wait_while_paused(self) -> Signal:
        return self._started.wait_while_paused()

    def _shut_down(self) -> Signal:
        self._started.shut_down()
        self._started.wait_for_acks()
        self._started.flush_before_leaving()
        return Signal.DONE

    def _hand_back(self) -> Signal:
        # Said first: also where the lease is lost on the way, this worker is not the one to take it again at once.
        self.released_after_failure = True
        if self._delivery is not None:
            self._delivery.shut_down()
            self._delivery.flush_before_leaving()
        self._context.events.emit(
            RetriesExhausted(
                shard=self.key,
                cause=self.scope.why_handed_back,
                checkpoint=str(self.scope.mine.lease.checkpoint),
                left_alone_for=self._context.config.retry_timeout,
            )
        )
        return self._release()

    def _release(self) -> Signal:
        held = self.scope.mine
        try:
            released = self.scope.leave()
        except (TemporaryError, SetupError) as error:
            held.lose(Loss.of(LossReason.RELEASE_UNANSWERED))
            self._context.events.emit(ReleaseUnacknowledged(shard=self.key, cause=str(error)))
            return Signal.DONE
        self._context.events.emit(
            LeaseReleased(shard=self.key, checkpoint=str(released.checkpoint), counter=released.counter)
        )
        return Signal.DONE

    def _lose(self) -> Signal:
        # Also when the lease was lost while initialize ran: who was initialized hears of it.
        if self.scope.processor is not None:
            loss = LeaseLostInput(self.key, self._context.stream.name)
            self.scope.calls.once("lease_lost", self.scope.processor.lease_lost, loss)
        return Signal.DONE

    def _report_loss(self) -> None:
        mine = self.scope.mine
        loss = mine.loss
        if loss is None and mine.was_released:
            loss = Loss.of(LossReason.HANDED_OVER, new_owner=mine.lease.owner)
        loss = loss or Loss.of(LossReason.OTHER)
        within = _BACK_AND_FORTH * self._context.config.failover_time
        is_planned = loss.is_planned and not self._context.failures.has_moved_again(self.key, within)
        self._context.events.emit(
            LeaseLost(
                shard=self.key,
                cause=loss.cause,
                new_owner=loss.new_owner,
                reason=loss.reason,
                is_planned=is_planned,
            )
        )
