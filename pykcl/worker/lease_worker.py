"""One lease, from acquiring to ended, lost or released: the activities of the states in `planning.lifecycle`."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import (
    LeaseLost,
    SetupError,
    ShardGone,
    StreamMissing,
    TableGone,
    TemporaryError,
    WrongStream,
)
from pykcl.events import (
    LeaseHandedBack,
    LeaseReleased,
    LeaseTaken,
    LeaseTakenAway,
    LeaseWentElsewhere,
    ReleaseUnconfirmed,
    ShardEndNotCheckpointed,
    ShardStarted,
    WaitingForParents,
)
from pykcl.model import lease_row
from pykcl.model.lease import Lease
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.planning.lifecycle import FINAL, Signal, State, next_state
from pykcl.planning.pace import backoff
from pykcl.planning.plans import Acquisition
from pykcl.planning.positions import first_read
from pykcl.ports import Kept
from pykcl.processor import Batch, Initialization, LeaseLoss, RecordProcessor, ShardEnd, ShutdownRequest
from pykcl.worker.checkpointer import EndCheckpointer, Progress, ShardCheckpointer
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.processor_calls import CallResult, ProcessorCalls
from pykcl.worker.shard_end import children_of_a_gone_shard, end_shard
from pykcl.worker.shard_reader import Page, ShardReader


class LeaseWorker:
    """The body of one thread. Other threads only call `request_stop`, `nudge` and `abandon`, and read attributes.

    created_here: this process put the row and nobody has read it yet. on_change: told of every state that matters
    to the LeaseManager (first answer, end).
    """

    def __init__(
        self, context: Context, plan: Acquisition, *, created_here: bool, on_change: Callable[[], None]
    ) -> None:
        self.key = plan.lease_key
        self.state = State.ACQUIRING
        self.has_answered = False
        self._context = context
        self._plan = plan
        self._created_here = created_here
        self._on_change = on_change
        self._wake = context.runtime.event()
        self._stopping = False
        self._held: HeldLease | None = None
        self._processor: RecordProcessor | None = None
        self._progress: Progress | None = None
        self._reader: ShardReader | None = None
        self._children: tuple[Shard, ...] = ()
        self._calls = ProcessorCalls(context, self.key, self._check, self._pause)

    @property
    def busy(self) -> tuple[str, float] | None:
        """The processor method that is running and since when (monotonic seconds)."""
        return self._calls.busy

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    def request_stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def nudge(self) -> None:
        """Something this worker may be waiting for (a parent's end) has happened."""
        self._wake.set()

    def abandon(self, cause: str) -> None:
        """Give the lease up though the processor is still busy with it: it may write nothing any more."""
        if self._held is not None:
            self._held.lose(cause)

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
                self.state = next_state(self.state, self._perform(activities[self.state]))
            if self.state is State.LOST:
                self._report_loss()
        finally:
            # Whatever happened, even a thread that dies of a bug: no heartbeat without a reader behind it.
            if self._reader is not None:
                self._reader.drop()
            if self._held is not None:
                self._context.held.remove(self._held)
            self._on_change()

    def _perform(self, activity: Callable[[], Signal]) -> Signal:
        try:
            return activity()
        except LeaseLost:
            return Signal.LEASE_LOST
        except TableGone as error:
            # Positions are gone with the table: nothing may be written, and the processor must hear of it.
            self._context.on_fatal(error)
            self.abandon("the lease table is gone")
            return Signal.LEASE_LOST if self._held else Signal.REFUSED
        except SetupError as error:
            self._context.on_fatal(error)
            self._stopping = True
            return Signal.STOP

    # -- waiting -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._held is not None:
            self._held.check()

    def _stop_asked(self) -> bool:
        return self._stopping

    def _pause(self, seconds: float) -> bool:
        """Wait. True as soon as the worker shall stop. Raises LeaseLost as soon as the lease is lost."""
        until = self._context.runtime.monotonic() + seconds
        while True:
            # Cleared before looking at what it announces: a stop requested after the look sets it again.
            self._wake.clear()
            self._check()
            if self._stopping:
                return True
            left = until - self._context.runtime.monotonic()
            if left <= 0:
                return False
            self._wake.wait(left)

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
                    return Signal.REFUSED
                seen = row
            sent = context.runtime.monotonic()
            note = context.note_for(seen, owner=context.worker_id)
            write = lease_row.take(seen, context.worker_id, note)
            answer = context.table.write(write, until=sent + 3 * context.config.request_timeout)
        except TemporaryError as error:
            context.trouble.failed(f"taking {self.key}", error)
            return Signal.REFUSED
        if not isinstance(answer, Kept) or answer.lease is None:
            context.events.emit(LeaseWentElsewhere(shard=self.key))
            return Signal.REFUSED
        self._held = HeldLease(
            answer.lease,
            sent,
            table=context.table,
            runtime=context.runtime,
            config=context.config,
            wake=self._wake,
        )
        context.held.add(self._held)
        context.events.emit(
            LeaseTaken(
                shard=self.key, reason=self._plan.reason, from_owner=seen.owner, counter=answer.lease.counter
            )
        )
        return Signal.TAKEN_FROM_LIVE_OWNER if self._plan.is_steal else Signal.TAKEN

    def _settle(self) -> Signal:
        """Let the robbed owner notice (its next heartbeat fails) before the first record is read a second time."""
        config = self._context.config
        return Signal.STOP if self._pause(config.renew_interval + config.request_timeout) else Signal.SETTLED

    def _wait_for_parents(self) -> Signal:
        attempt, reported = 0, False
        while True:
            self._check()
            if self._stopping:
                return Signal.STOP
            self._wake.clear()
            try:
                missing = self._unfinished_parents()
                self._context.trouble.worked(f"reading the parents of {self.key}")
            except TemporaryError as error:
                attempt += 1
                self._context.trouble.failed(f"reading the parents of {self.key}", error)
                if self._pause(backoff(attempt, self._context.runtime.random())):
                    return Signal.STOP
                continue
            if not missing:
                return Signal.PARENTS_ENDED
            if not reported:
                self._context.events.emit(WaitingForParents(shard=self.key, parents=missing))
                reported = True
            self._wake.wait(self._context.config.parent_poll_interval)

    def _unfinished_parents(self) -> tuple[str, ...]:
        """Parents that have a row which is not at SHARD_END; a parent without a row was cleaned up: it has ended."""
        rows = {parent: self._context.table.read(parent) for parent in self._mine.lease.parents}
        return tuple(
            key
            for key, row in rows.items()
            if row is not None and not (isinstance(row, Lease) and row.is_ended)
        )

    def _start(self) -> Signal:
        held, context = self._mine, self._context
        self._progress = Progress(held, context.runtime)
        init = Initialization(
            shard_id=self.key,
            stream=context.stream.name,
            position=held.lease.checkpoint,
            pending=held.lease.pending,
            fencing_token=held.fencing_token,
            checkpointer=ShardCheckpointer(self._progress, None),
        )
        result = self._calls.until_it_returns("initialize", self._make_processor, init)
        if result is not CallResult.RETURNED:
            return _NOT_RETURNED[result]
        # Read again: initialize may have committed a checkpoint an earlier owner prepared.
        lease = held.lease
        after = None if lease.checkpoint.is_sentinel else lease.checkpoint
        first = first_read(lease, context.config.start_position, created_here=self._created_here)
        self._reader = ShardReader(context, self.key, lease.hash_range, first, after)
        context.events.emit(ShardStarted(shard=self.key, position=str(lease.checkpoint)))
        return Signal.STARTED

    def _make_processor(self, init: Initialization) -> None:
        # A new instance for each attempt: one whose initialize raised half-way is in no defined state.
        self._processor = self._context.processor()
        self._processor.initialize(init)

    def _read(self) -> Signal:
        if self._reader is None or self._processor is None:
            raise LeaseLost(f"The lease of {self.key} was never started.")
        failures = 0
        while True:
            self._check()
            if self._stopping:
                return Signal.STOP
            try:
                page = self._reader.read(self._stop_asked)
            except ShardGone:
                return self._gone()
            except (TemporaryError, SetupError) as error:
                failures += 1
                if self._trouble_ends_it(error) or self._pause(self._read_backoff(failures)):
                    return Signal.STOP
                continue
            if page is None:
                continue
            failures = 0
            self._answered()
            signal = self._deliver_page(page)
            if signal is not None:
                return signal

    def _answered(self) -> None:
        self._context.trouble.worked(f"reading {self.key}")
        if not self.has_answered:
            self.has_answered = True
            self._on_change()

    def _read_backoff(self, failures: int) -> float:
        return backoff(failures, self._context.runtime.random(), first=0.5, longest=10.0)

    def _trouble_ends_it(self, error: TemporaryError | SetupError) -> bool:
        """A set-up error on the first read means that it never worked; later it is trouble that may pass."""
        if isinstance(error, WrongStream | StreamMissing | TableGone):
            raise error
        if isinstance(error, SetupError) and not self.has_answered:
            self._context.on_fatal(error)
            return True
        self._context.trouble.failed(f"reading {self.key}", error)
        return False

    def _deliver_page(self, page: Page) -> Signal | None:
        """Deliver a page; None means: go on reading."""
        reader = self._reader
        if reader is None:
            raise LeaseLost(f"The lease of {self.key} was never started.")
        for chunk in page.chunks(self._context.config.max_records):
            if self._stopping:
                return Signal.STOP
            signal = self._deliver(chunk, page.fetched.millis_behind_latest)
            if signal is not None:
                return signal
        pause = reader.finish(page)
        self._checkpoint_if_due()
        if page.is_last:
            self._children = reader.children
            return Signal.DRAINED
        return Signal.STOP if self._pause(pause) else None

    def _deliver(self, records: tuple[Record, ...], millis_behind: int | None) -> Signal | None:
        progress, processor = self._progress, self._processor
        if progress is None or processor is None:
            raise LeaseLost(f"The lease of {self.key} was never started.")
        last = records[-1].position
        progress.handing_over(last)
        batch = Batch(
            records, ShardCheckpointer(progress, last), millis_behind, self.key, self._context.stream.name
        )
        result = self._calls.until_it_returns("process_records", processor.process_records, batch, records)
        if result in _NOT_RETURNED:
            return _NOT_RETURNED[result]
        progress.batch_done(last)
        self._checkpoint_if_due()
        return None

    def _checkpoint_if_due(self) -> None:
        config, progress = self._context.config, self._progress
        if progress is None or config.checkpoint == "manual":
            return
        if config.checkpoint == "interval" and progress.seconds_since_write() < config.checkpoint_interval:
            return
        try:
            progress.flush()
            self._context.trouble.worked(f"checkpointing {self.key}")
        except (TemporaryError, SetupError) as error:
            if isinstance(error, TableGone):
                raise
            # What is owed stays owed: the next batch, idle read or hand-over writes it.
            self._context.trouble.failed(f"checkpointing {self.key}", error)

    def _gone(self) -> Signal:
        attempt = 0
        while True:
            attempt += 1
            try:
                self._children = children_of_a_gone_shard(self._context, self._mine)
                return Signal.DRAINED
            except TemporaryError as error:
                self._context.trouble.failed(f"reading {self.key}", error)
                if self._pause(self._read_backoff(attempt)):
                    return Signal.STOP

    def _end(self) -> Signal:
        progress, processor, context = self._progress, self._processor, self._context
        if progress is None or processor is None:
            raise LeaseLost(f"The lease of {self.key} was never started.")
        must_confirm = context.config.checkpoint == "manual" and (
            type(processor).shard_ended is not RecordProcessor.shard_ended
        )
        names = tuple(sorted(child.shard_id for child in self._children))
        attempt = 0
        while True:
            checkpointer = EndCheckpointer(progress)
            end = ShardEnd(self.key, context.stream.name, names, checkpointer)
            result = self._calls.until_it_returns("shard_ended", processor.shard_ended, end)
            if result in _NOT_RETURNED:
                return _NOT_RETURNED[result]
            if checkpointer.confirmed or not must_confirm:
                return self._write_end()
            attempt += 1
            context.events.emit(ShardEndNotCheckpointed(shard=self.key))
            if self._pause(backoff(attempt, context.runtime.random(), first=1.0)):
                return Signal.STOP

    def _write_end(self) -> Signal:
        attempt = 0
        while True:
            try:
                end_shard(self._context, self._mine, self._children)
                return Signal.DONE
            except TemporaryError as error:
                attempt += 1
                self._context.trouble.failed(f"ending {self.key}", error)
                if self._pause(backoff(attempt, self._context.runtime.random())):
                    return Signal.STOP

    def _shut_down(self) -> Signal:
        progress, processor = self._progress, self._processor
        if progress is not None and processor is not None:
            request = ShutdownRequest(
                self.key, self._context.stream.name, ShardCheckpointer(progress, progress.done)
            )
            self._check()
            self._calls.once("shutdown_requested", processor.shutdown_requested, request)
        self._flush_before_leaving()
        return Signal.DONE

    def _hand_back(self) -> Signal:
        self._flush_before_leaving()
        self._context.events.emit(
            LeaseHandedBack(
                shard=self.key,
                checkpoint=str(self._mine.lease.checkpoint),
                left_alone_for=self._context.config.retry_for,
            )
        )
        return self._release()

    def _flush_before_leaving(self) -> None:
        self._check()
        if self._progress is None or self._context.config.checkpoint == "manual":
            return
        try:
            self._progress.flush()
        except (TemporaryError, SetupError) as error:
            self._context.trouble.failed(f"checkpointing {self.key}", error)

    def _release(self) -> Signal:
        held = self._mine
        try:
            released = held.write(lease_row.release, within=3 * self._context.config.request_timeout)
        except (TemporaryError, SetupError) as error:
            held.lose("its release got no answer")
            self._context.events.emit(ReleaseUnconfirmed(shard=self.key, cause=str(error)))
            return Signal.DONE
        self._context.events.emit(
            LeaseReleased(shard=self.key, checkpoint=str(released.checkpoint), counter=released.counter)
        )
        return Signal.DONE

    def _lose(self) -> Signal:
        if self._processor is not None:
            loss = LeaseLoss(self.key, self._context.stream.name)
            self._calls.once("lease_lost", self._processor.lease_lost, loss)
        return Signal.DONE

    def _report_loss(self) -> None:
        cause, new_owner = self._mine.loss
        self._context.events.emit(LeaseTakenAway(shard=self.key, cause=cause, new_owner=new_owner))


_NOT_RETURNED = {CallResult.STOPPED: Signal.STOP, CallResult.GAVE_UP: Signal.GIVE_UP}
