"""One lease, from acquiring to ended, lost or released: the activities of the states in `planning.lifecycle`."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import (
    ConfigError,
    FatalError,
    LeaseLost,
    SetupError,
    TableGone,
    TemporaryError,
)
from pykcl.events import (
    LeaseHandedBack,
    LeaseReleased,
    LeaseStateChanged,
    LeaseTaken,
    LeaseTakenAway,
    LeaseWentElsewhere,
    LossReason,
    ReleaseUnconfirmed,
    ShardStarted,
    WaitingForParents,
)
from pykcl.interfaces import Applied, LeaseTable, Unknown
from pykcl.metrics import catalog
from pykcl.model import lease_writes
from pykcl.model.lease import Lease
from pykcl.model.shard import HashRange
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lifecycle import FINAL, Signal, State, next_state
from pykcl.planning.read_schedule import backoff
from pykcl.processor import Initialization, LeaseLoss, RecordProcessor
from pykcl.status import Activity
from pykcl.worker.checkpointer import Progress, ShardCheckpointer
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease, Loss, first_sent
from pykcl.worker.measurements import HandOver
from pykcl.worker.processor_calls import ProcessorCalls
from pykcl.worker.processor_factory import must_have_run
from pykcl.worker.record_delivery import NOT_RETURNED, ShardDelivery
from pykcl.worker.threads import Waiting


def unfinished_parents(table: LeaseTable, lease: Lease) -> tuple[str, ...]:
    """Parents that have a row which is not at SHARD_END; a parent without a row was cleaned up: it has ended."""
    rows = {parent: table.read(parent) for parent in lease.parents}
    return tuple(
        key for key, row in rows.items() if row is not None and not (isinstance(row, Lease) and row.is_ended)
    )


class LeaseWorker:
    """The body of one thread. Other threads only call `request_stop`, `nudge` and `abandon`, and read attributes.

    iterator: opened at LATEST when this process put the row, if nobody has read from it since.
    listed: the hash range of the shard as Kinesis lists it; None where it does not. still_for: as in `HandOver`.
    on_change: told of the first answer and of the end.
    """

    def __init__(
        self,
        context: Context,
        plan: Acquisition,
        *,
        iterator: str | None,
        listed: HashRange | None = None,
        still_for: float = 0.0,
        on_change: Callable[[], None],
    ) -> None:
        self.key = plan.lease_key
        self.state = State.ACQUIRING
        self.has_answered = False
        self.gave_up = False
        self._context = context
        self._plan = plan
        self._iterator = iterator
        self._listed = listed
        self._on_change = on_change
        self._waiting = Waiting(context.runtime, self._check, self._stop_asked)
        self._wake, self._pause = self._waiting.wake, self._waiting.pause
        self._stopping = False
        self._why_handed_back = "its processor kept failing"
        self._held: HeldLease | None = None
        self._processor: RecordProcessor | None = None
        self._delivery: ShardDelivery | None = None
        self._hand_over = HandOver(context.meter, plan, still_for)
        self._calls = ProcessorCalls(context, self.key, self._check, self._pause)

    @property
    def busy(self) -> tuple[str, float] | None:
        """The processor method that is running and since when (monotonic seconds)."""
        return self._calls.busy

    @property
    def lease(self) -> HeldLease | None:
        """The lease as it is believed; None before it was taken."""
        return self._held

    @property
    def behind(self) -> tuple[int, float] | None:
        """Milliseconds behind the tip, as the last page told, and when it did (monotonic seconds)."""
        return self._delivery.behind if self._delivery is not None else None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def had_the_lease(self) -> bool:
        """Whether it ever took the lease it was made for."""
        return self._held is not None

    @property
    def vanished(self) -> Lease | None:
        """The lease as last written, if somebody deleted its row under this worker, which was its owner."""
        return self._held.lease if self._held is not None and self._held.row_is_gone else None

    def request_stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def nudge(self) -> None:
        """Something this worker may be waiting for (a parent's end) has happened."""
        self._wake.set()

    def abandon(self, loss: Loss) -> bool:
        """Give the lease up though the processor is still busy with it: it may write nothing any more.

        Returns False where there is none to give up.
        """
        if self._held is None or self._held.is_over:
            return False
        self._held.lose(loss)
        return True

    def run(self) -> None:
        activities: dict[State, Callable[[], Signal]] = {
            State.ACQUIRING: self._acquire,
            State.SETTLING: self._settle,
            State.WAITING_FOR_PARENTS: self._wait_for_parents,
            State.STARTING: self._start,
            State.READING: self._read,
            State.ENDING: self._end,
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
            if self._held is not None:
                self._context.held.remove(self._held)
                self._context.trouble.over(self.key)
            if self._delivery is not None:
                self._delivery.drop()
            self._on_change()

    def _enter(self, state: State) -> None:
        before, self.state = self.state, state
        if state is not before:
            event = LeaseStateChanged(shard=self.key, before=before.value, after=state.value)
            self._context.events.emit(event)

    def _perform(self, activity: Callable[[], Signal]) -> Signal:
        try:
            return activity()
        except LeaseLost:
            return Signal.LEASE_LOST
        except (FatalError, ConfigError) as error:
            self._context.on_fatal(error)
            if isinstance(error, TableGone):
                # Positions are gone with the table: nothing may be written, and the processor must hear of it.
                self.abandon(Loss.of(LossReason.TABLE_GONE))
                return Signal.LEASE_LOST if self._held else Signal.REFUSED
            self._stopping = True
            return Signal.STOP
        except SetupError as error:
            return self._cannot_work(error)

    def _cannot_work(self, error: SetupError) -> Signal:
        """Give a lease in hand to whoever can work on it, and leave it alone for a while: let go and taken again at
        once, it would move without end.
        """
        if self._held is not None:
            self._why_handed_back = str(error)
            return Signal.GIVE_UP
        if self._context.must_stop(error, self._context.has_taken):
            self._context.on_fatal(error)
        self._context.trouble.failed(Activity.TAKING, error, shard=self.key)
        return Signal.REFUSED

    # -- waiting -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._held is not None:
            self._held.check()

    def _stop_asked(self) -> bool:
        """Whether to finish with this shard: the worker stops, or the lease is asked for by the next owner."""
        return self._stopping or (self._held is not None and self._held.next_owner is not None)

    @property
    def _mine(self) -> HeldLease:
        if self._held is None:
            raise LeaseLost(f"The lease of {self.key} was never taken.")
        return self._held

    # -- the states --------------------------------------------------------------------------------------------

    def _acquire(self) -> Signal:
        if self._stopping:
            return Signal.STOP
        context, seen = self._context, self._plan.seen
        try:
            if self._plan.is_steal:
                # Only a steal may refresh the counter: its owner is alive and moves it. A lease that was seen to stand
                # still is taken with that very counter, or not at all.
                row = context.table.read(self.key)
                if not isinstance(row, Lease) or row.owner != seen.owner or row.is_ended:
                    context.events.emit(LeaseWentElsewhere(shard=self.key))
                    return Signal.REFUSED
                seen = row
            sent = context.runtime.monotonic()
            metadata = context.metadata_for(seen)
            write = lease_writes.take(seen, context.worker_id, metadata)
            with context.meter.timed(catalog.TAKE_LEASE):
                answer = context.table.write(write, until=sent + context.config.write_timeout)
        except TemporaryError as error:
            context.trouble.failed(Activity.TAKING, error, shard=self.key)
            return Signal.REFUSED
        unknown_since = context.held.unknown_takes.pop(self.key, None)
        if isinstance(answer, Unknown):
            # It may have landed: then the row names us without a reader, and is taken again once it has expired.
            context.held.unknown_takes[self.key] = sent if unknown_since is None else unknown_since
            context.trouble.failed(Activity.TAKING, TemporaryError(answer.cause), shard=self.key)
            return Signal.REFUSED
        context.trouble.worked(Activity.TAKING, shard=self.key)
        if not isinstance(answer, Applied) or answer.lease is None or context.held.outlived(answer):
            context.events.emit(LeaseWentElsewhere(shard=self.key))
            return Signal.REFUSED
        context.events.emit(
            LeaseTaken(
                shard=self.key, reason=self._plan.reason, from_owner=seen.owner, counter=answer.lease.counter
            )
        )
        self._held = HeldLease(
            answer.lease,
            first_sent(answer, sent, unknown_since),
            table=context.table,
            runtime=context.runtime,
            config=context.config,
            wake=self._wake,
        )
        context.held.add(self._held)
        context.has_taken.set()
        return Signal.TAKEN_FROM_LIVE_OWNER if self._plan.is_steal else Signal.TAKEN

    def _settle(self) -> Signal:
        """Let the robbed owner notice (its next heartbeat fails) before the first record is read a second time."""
        return Signal.STOP if self._pause(self._context.config.loss_noticed_within) else Signal.SETTLED

    def _wait_for_parents(self) -> Signal:
        attempt, reported = 0, False
        while True:
            # Cleared before looking at what it announces: a stop requested after the look sets it again.
            self._wake.clear()
            self._check()
            if self._stop_asked():
                return Signal.STOP
            try:
                with self._context.meter.timed(catalog.BLOCK_ON_PARENT):
                    missing = unfinished_parents(self._context.table, self._mine.lease)
                self._context.trouble.worked(Activity.READING_PARENTS, shard=self.key)
            except TemporaryError as error:
                attempt += 1
                self._context.trouble.failed(Activity.READING_PARENTS, error, shard=self.key)
                if self._pause(backoff(attempt, self._context.runtime.random())):
                    return Signal.STOP
                continue
            if not missing:
                return Signal.PARENTS_ENDED
            self._hand_over.interrupted()
            if not reported:
                self._context.events.emit(WaitingForParents(shard=self.key, parents=missing))
                reported = True
            self._wake.wait(self._context.config.parent_poll_interval)

    def _start(self) -> Signal:
        held, context = self._mine, self._context
        if self._delivery is not None:
            # A second start under this lease. What was opened at LATEST has been read from: the row tells since when.
            self._delivery.retire()
            self._iterator = None
        progress = Progress(held, context.runtime, context.meter, context.events)
        init = Initialization(
            shard_id=self.key,
            stream=context.stream.name,
            position=held.lease.checkpoint,
            pending=held.lease.pending,
            fencing_token=held.fencing_token,
            checkpointer=ShardCheckpointer(progress, None),
        )
        result = self._calls.until_it_returns("initialize", self._make_processor, init)
        if result in NOT_RETURNED or self._processor is None:
            return NOT_RETURNED.get(result, Signal.STOP)
        # Made from the row as it is now: initialize may have committed a checkpoint an earlier owner prepared.
        self._delivery = ShardDelivery(
            context,
            held,
            self._calls,
            self._processor,
            progress,
            waiting=self._waiting,
            stopping=self._stop_asked,
            iterator=self._iterator,
            # Kinesis first, as in Java: anybody may have written the row, and aggregates outside the range are dropped.
            hash_range=self._listed or held.lease.hash_range,
            on_answer=self._answered,
        )
        context.events.emit(ShardStarted(shard=self.key, position=str(held.lease.checkpoint)))
        return Signal.STARTED

    def _make_processor(self, init: Initialization) -> None:
        # A new instance for each attempt: one whose initialize raised half-way is in no defined state.
        processor = self._context.processor()
        initialize: Callable[[Initialization], object] = processor.initialize
        must_have_run("initialize", initialize(init))
        self._processor = processor

    def _answered(self) -> None:
        if not self.has_answered:
            self.has_answered = True
            self._hand_over.answered()
            self._on_change()

    @property
    def _started(self) -> ShardDelivery:
        if self._delivery is None:
            raise LeaseLost(f"The processor of {self.key} was never initialized.")
        return self._delivery

    def _read(self) -> Signal:
        return self._started.read()

    def _end(self) -> Signal:
        return self._started.end()

    def _shut_down(self) -> Signal:
        self._started.shut_down()
        self._started.flush_before_leaving()
        return Signal.DONE

    def _hand_back(self) -> Signal:
        # Said first: also where the lease is lost on the way, this worker is not the one to take it again at once.
        self.gave_up = True
        if self._delivery is not None:
            self._delivery.shut_down()
            self._delivery.flush_before_leaving()
        self._context.events.emit(
            LeaseHandedBack(
                shard=self.key,
                cause=self._why_handed_back,
                checkpoint=str(self._mine.lease.checkpoint),
                left_alone_for=self._context.config.retry_for,
            )
        )
        return self._release()

    def _release(self) -> Signal:
        held = self._mine
        try:
            leave = lease_writes.release if held.next_owner is None else lease_writes.hand_over
            released = held.write(leave, within=self._context.config.write_timeout)
        except (TemporaryError, SetupError) as error:
            held.lose(Loss.of(LossReason.RELEASE_UNANSWERED))
            self._context.events.emit(ReleaseUnconfirmed(shard=self.key, cause=str(error)))
            return Signal.DONE
        self._context.events.emit(
            LeaseReleased(shard=self.key, checkpoint=str(released.checkpoint), counter=released.counter)
        )
        return Signal.DONE

    def _lose(self) -> Signal:
        # Also when the lease was lost while initialize ran: who was initialized hears of it.
        if self._processor is not None:
            loss = LeaseLoss(self.key, self._context.stream.name)
            self._calls.once("lease_lost", self._processor.lease_lost, loss)
        return Signal.DONE

    def _report_loss(self) -> None:
        loss = self._mine.loss or Loss.of(LossReason.OTHER)
        self._context.events.emit(
            LeaseTakenAway(shard=self.key, cause=loss.cause, new_owner=loss.new_owner, reason=loss.reason)
        )
