"""One shard under a held lease, with its processor: reading, delivering, checkpointing, ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pykcl.errors import FatalError, PyKclError, SetupError, ShardGone, TemporaryError, Throttled
from pykcl.events import NeverCheckpointed
from pykcl.metrics import catalog
from pykcl.model.absence import GONE_AFTER
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease, first_read
from pykcl.model.record import Record, data_bytes
from pykcl.model.shard import range_of_aggregates
from pykcl.planning.lifecycle import Signal
from pykcl.planning.read_schedule import SHARD_READ_INTERVAL, PollWindow, backoff
from pykcl.planning.run_end import is_finished
from pykcl.processor import Batch, FailedAt, ShutdownRequestedInput
from pykcl.status import Activity
from pykcl.worker.ack_delivery import WRITE_EVERY, AckDelivery
from pykcl.worker.batch_delivery import BatchDelivery
from pykcl.worker.batch_window import BatchWindow, Pace, most_in_batch
from pykcl.worker.checkpointer import ShardCheckpointer
from pykcl.worker.fallback_reader import FallbackReader
from pykcl.worker.lane_delivery import STEP, LaneDelivery
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.measurements import PageMeasures
from pykcl.worker.pausing import PAUSE_POLL
from pykcl.worker.prefetch import Answer
from pykcl.worker.processor_calls import CallResult, index_of
from pykcl.worker.push_reader import PushReader
from pykcl.worker.reading_place import Page, ReadingPlace
from pykcl.worker.shard_end import NOT_RETURNED, children_of_a_gone_shard
from pykcl.worker.shard_reader import ShardReader
from pykcl.worker.turns import StopAsked, turn_of
from pykcl.worker.watermark import Watermark
from pykcl.worker.window_delivery import WindowDelivery, windows_of

_MANY_BATCHES, _LONG = 100, 600.0
"""Batches and seconds without a checkpoint after which the processor has probably forgotten it."""


class RecordDelivery:
    """Delivery to an initialized processor. Used by the lease worker's thread; `_on_empty_page` by the shared one."""

    def __init__(self, scope: LeaseScope) -> None:
        self._scope = scope
        self._context = context = scope.context
        self._held = held = scope.mine
        self._processor, self._progress = scope.initialized
        self._calls = scope.calls
        if (turn := turn_of(self._processor)) is not None:
            self._calls.turn, self._calls.standing = turn, turn.standing
        self._page = PageMeasures(
            context.meter,
            held.key,
            lambda: int(self._number("records_filtered") or 0),
            lambda: self._number("lane_share"),
        )
        lease = held.lease
        self._began_at, self._batches, self._has_checked = lease.checkpoint, 0, False
        config = context.config
        self._behind: int | None = None
        # Kinesis' clock when the last page came: the next one is requested later.
        self._until, self._paged_at = config.until_millis, context.stream.server_time_millis()
        self._failed_checkpoints, self._checkpoint_again_at = 0, 0.0
        # True where a pause begins with everything delivered that was fetched, and the iterator behind it.
        self._is_between_pages = False
        self._policies = BatchDelivery(scope, self._settle) if config.has_policies else None
        self._acking: AckDelivery | None = None
        self._lanes: LaneDelivery | None = None
        reserve, release = None, context.memory.release
        processor: Any = self._processor
        # An attribute named settle_by alone may be the user's own.
        if hasattr(processor, "settles_because"):
            watermark = self._progress.watermark = Watermark(context.runtime, context.memory.release)
            self._lanes = LaneDelivery(
                scope,
                watermark,
                delivered=self._delivered,
                write=self._checkpoint_if_due,
                write_meanwhile=self._checkpoint_meanwhile,
            )
            processor.settle_by(self._lanes.settling)
        elif self._progress.watermark is not None:
            self._acking = AckDelivery(
                scope,
                self._progress.watermark,
                delivered=self._delivered,
                write=self._checkpoint_if_due,
                policies=self._policies,
            )
            reserve, release = self._acking.reserve, self._acking.release
        self._windows: WindowDelivery | None = None
        if (windows := windows_of(self._processor)) is not None:
            self._windows = WindowDelivery(
                scope, windows, deliver=self._deliver_parts, write=self._checkpoint_if_due
            )
        self._reader = self._new_reader(lease, reserve)
        self._window = BatchWindow(most_in_batch(config), config.batch_window, release, context.runtime)
        scope.children, scope.lag, scope.first_arrival = (), None, None

    def _new_reader(
        self, lease: Lease, reserve: Callable[[int, Callable[[], bool]], bool] | None
    ) -> ShardReader | PushReader | FallbackReader:
        """Return a reader that begins where the lease says."""
        scope, context, consumer = self._scope, self._context, self._context.consumer
        after = None if lease.checkpoint.is_sentinel else lease.checkpoint
        first = first_read(lease, context.config.start_position, context.stream.server_time_millis())
        hash_range = range_of_aggregates(
            scope.listed, lease.hash_range, ignores_keys=context.identity.ignores_keys
        )
        self._place = place = ReadingPlace(context, lease.key, hash_range, first, after)
        if consumer is None:
            return ShardReader(context, lease.key, place, scope.iterator, reserve)
        push = partial(PushReader, context, consumer, self._held, place, scope.wake, reserve)
        if not consumer.may_poll:
            return push()
        poll = partial(ShardReader, context, lease.key, place, reserve=reserve)
        return FallbackReader(context, consumer, lease.key, place, push, poll)

    def _number(self, name: str) -> float | None:
        """Return a number that handlers have as this attribute; None where a processor has something else there."""
        found = getattr(self._processor, name, None)
        return found if isinstance(found, int | float) else None

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self) -> Signal:
        """Fetch and deliver until the shard is drained, the worker stops, the lease is lost, or the processor fails."""
        try:
            signal = self._read()
            if signal is Signal.DRAINED and self._windows is not None:
                # No later record comes, and the children begin windows of their own.
                signal = self._windows.close(self._behind) or signal
            if signal is Signal.DRAINED and self._acking is not None and not self._acking.wait_for_all():
                return Signal.STOP
            return signal
        except StopAsked:
            return Signal.STOP
        finally:
            # Not waited for: the next owner of this lease would wait, too, and one more read page is harmless.
            self._reader.stop_others()

    def _read(self) -> Signal:
        failures = 0
        while True:
            self._scope.check()
            if (signal := self._before_read()) is not None:
                return signal
            try:
                page = self._reader.read(self._is_to_end)
            except ShardGone:
                if self._gone():
                    return self._deliver_gathered() or Signal.DRAINED
                failures += 1
                # Sooner asked again, the same answer would prove nothing yet.
                if self._scope.pause(self._back_off(failures, first=GONE_AFTER / 2)):
                    return Signal.STOP
                continue
            except (TemporaryError, SetupError) as error:
                failures += 1
                if self._trouble_ends_it(error) or self._scope.pause(self._back_off_from(error, failures)):
                    return Signal.STOP
                continue
            if page is None:
                left = self._reader.awaited()
                if (signal := self._ask_again() if left is None else self._sleep(left)) is not None:
                    return signal
                continue
            failures = 0
            self._answered()
            signal = self._deliver_page(page)
            if signal is not None:
                return signal

    def _ask_again(self) -> Signal | None:
        """Pause after a read that brought no page, and is to be tried again."""
        # Perhaps there is no buffer space, and what is gathered takes some of it.
        signal = self._deliver_gathered()
        if self._acking is not None:
            # Records that are not acked may take all of it.
            self._checkpoint_if_due()
        # A refused iterator was a read too, and a shard allows five a second.
        if signal is None and self._scope.pause(max(SHARD_READ_INTERVAL, self._reader.too_soon)):
            signal = Signal.STOP
        return signal

    def _is_to_end(self) -> bool:
        return self._scope.interrupted() is not None or not self._held.is_valid_unlocked()

    def drop(self) -> None:
        """Discard what was fetched and not delivered, and read no more. Acks are ignored from now on."""
        for settled_one_by_one in (self._acking, self._lanes):
            if settled_one_by_one is not None:
                settled_one_by_one.close()
        self._context.memory.release(self._window.clear())
        self._reader.close()

    def retire(self) -> None:
        """Prepare for another instance of the processor. Raises LeaseLostError.

        Write the automatic checkpoint of the batches that returned, and invalidate this instance's checkpointers.
        """
        if self._acking is not None:
            # First, or an ack would count that no checkpoint passes: the new instance gets its record, too.
            self._acking.close()
        if self._context.config.checkpoint_mode != "manual":
            self._flush()
        self._progress.retire()
        self.drop()

    def _answered(self) -> None:
        self._place.absence.found()
        self._context.expired_shards.found(self._held.key)
        self._context.has_read.set()
        self._context.failures.worked(Activity.READING, shard=self._held.key)
        self._scope.answered()

    def _back_off(self, failures: int, first: float = 0.5) -> float:
        return backoff(failures, self._context.runtime.random(), first=first, longest=10.0)

    def _back_off_from(self, error: PyKclError, failures: int) -> float:
        return self._reader.throttled() if isinstance(error, Throttled) else self._back_off(failures)

    def _trouble_ends_it(self, error: TemporaryError | SetupError) -> bool:
        """Report the error; return True if reading ends because the worker stops for it.

        Raises it where the lease worker has to act: if it is fatal; and if this was a spare worker until now, which may
        not be permitted to read, so that the lease goes back.
        """
        context = self._context
        if isinstance(error, FatalError):
            raise error
        if context.must_stop(error, context.has_read):
            context.on_fatal(error)
            return True
        if isinstance(error, SetupError) and not context.has_read.is_set():
            raise error
        context.failures.failed(Activity.READING, error, shard=self._held.key)
        if self._held.silent_since is not None:
            self._scope.stands(error.code, "subscriptions say nothing")
        return False

    def _deliver_page(self, page: Page) -> Signal | None:
        """Deliver a page. None: continue reading."""
        self._behind = page.fetched.millis_behind_latest
        self._page.began(self._behind)
        if page.fetched.millis_behind_latest is not None:
            self._scope.lag = (page.fetched.millis_behind_latest, page.answered_at)
        if self._scope.first_arrival is None and page.fetched.records:
            self._scope.first_arrival = page.fetched.records[0].arrived_at_millis
        is_empty = True
        for records in page.batches:
            is_empty = False
            if (signal := self._scope.interrupted()) is not None:
                return signal
            signal = self._gather(records) if self._gathers else self._deliver(records, self._behind)
            if signal is not None:
                return signal
        is_last = page.is_last or self._is_finished_by(page)
        if is_last and (signal := self._deliver_gathered()) is not None:
            return signal
        if is_empty and self._behind == 0 and not self._window:
            self._scope.gets_on()
        if is_empty and not is_last and (signal := self._after_nothing(page)) is not None:
            return signal
        pause = self._reader.finish(page, self._kept if page.fetched.records else self._window.reserve)
        # 1) A table refuses for a while; 2) pages come several times a second, and a window gathers them: none is
        # delivered. Without growing pauses each of them would try the checkpoint that is owed once more.
        if self._context.runtime.monotonic() >= self._checkpoint_again_at:
            self._checkpoint_if_due()
        self._page.ended()
        if is_last:
            self._place.left()
            self._scope.children = self._reader.children
            return Signal.DRAINED
        return self._rest(pause)

    def _is_finished_by(self, page: Page) -> bool:
        """Return True if the run ends somewhere, and the page shows that the shard has no more records before that."""
        if self._until is None:
            return False
        requested_after, now = self._paged_at, self._context.stream.server_time_millis()
        self._paged_at = now - round((self._context.runtime.monotonic() - page.answered_at) * 1000)
        return is_finished(
            page.fetched.records,
            page.fetched.millis_behind_latest,
            until=self._until,
            requested_after=requested_after,
        )

    def _is_window_over(self, millis_behind: int | None, answered_at: float) -> bool:
        return self._windows is not None and self._windows.is_due(millis_behind, answered_at)

    def _after_nothing(self, page: Page) -> Signal | None:
        """Act on a page without records: call a processor that wants such calls, or close a window."""
        if self._context.config.call_with_empty_batches or self._is_of_no_use:
            return self._deliver_nothing(self._behind)
        if not self._is_window_over(self._behind, page.answered_at):
            return None
        if (signal := self._deliver_gathered()) is not None:
            return signal
        # What was gathered may be of a later window, which is open now.
        if self._windows is None or not self._is_window_over(self._behind, page.answered_at):
            return None
        return self._windows.close(self._behind)

    def _kept(self, reserved: int) -> int:
        """Return how many of the bytes of a delivered page stay reserved: for what is gathered, or not acked."""
        kept = self._window.reserve(reserved)
        return kept if self._acking is None else kept + self._acking.hold(reserved - kept)

    def _before_read(self) -> Signal | None:
        if (signal := self._scope.interrupted()) is not None:
            self._is_between_pages = not self._window and not self._place.is_doubtful
            return signal
        return self._deliver_gathered() if self._window and self._window.is_due else None

    @property
    def _gathers(self) -> bool:
        return self._context.config.batch_window > 0

    def _gather(self, records: Sequence[Record]) -> Signal | None:
        """Deliver the records together with those that wait for them, or let them wait for more."""
        self._window.add(records)
        while self._window and self._window.is_due:
            if (signal := self._deliver_one_gathered()) is not None:
                return signal
        return None

    def _deliver_gathered(self) -> Signal | None:
        """Deliver the records that wait, though there are few of them."""
        while self._window:
            if (signal := self._deliver_one_gathered()) is not None:
                return signal
        return None

    def _deliver_one_gathered(self) -> Signal | None:
        if (signal := self._scope.interrupted()) is not None:
            return signal
        signal = self._deliver(self._window.take(), self._behind)
        if signal is None:
            self._window.give_back()
        return signal

    def _rest_while_gathering(self, pause: float) -> Signal | None:
        """Sleep until the next page is due; deliver in between if the window is over before."""
        now = self._context.runtime.monotonic
        until = now() + pause
        if self._scope.pause(max(0.0, min(pause, self._window.left))):
            return Signal.STOP
        if self._window.left <= 0 and (signal := self._deliver_gathered()) is not None:
            return signal
        return Signal.STOP if self._scope.pause(max(0.0, until - now())) else None

    def _rest(self, pause: float) -> Signal | None:
        """Sleep until the next page is due or has arrived."""
        if self._window:
            return self._rest_while_gathering(pause)
        left = self._reader.delegate(lambda: not self._is_to_end(), self._on_empty_page, self._scope.wake)
        if left is None:
            now = self._context.runtime.monotonic
            until = now() + pause
            return self._sleep(lambda: until - now())
        return self._sleep(left)

    def _sleep(self, left: Callable[[], float]) -> Signal | None:
        """Sleep while `left` returns seconds that are left, but no longer than what is gathered may wait."""
        window = self._window
        seconds = (lambda: min(left(), window.left)) if window else left
        stops = self._scope.sleep(seconds) if self._acking is None else self._acking.sleep(seconds)
        return Signal.STOP if stops else None

    def _on_empty_page(self, answer: Answer) -> tuple[str, PollWindow] | None:
        """Accept a page that came while this thread sleeps, if it leaves nothing to do; else return None.

        Called by the thread that shards share, so it must not wait.
        """
        config = self._context.config
        if config.call_with_empty_batches or self._is_of_no_use:
            return None
        if self._until is not None and self._context.stream.server_time_millis() >= self._until:
            # It may show that the shard is finished.
            return None
        if config.checkpoint_mode != "manual" and self._progress.owed() is not None:
            return None
        if self._is_window_over(answer[0].millis_behind_latest, answer[1]):
            return None
        self._page.began(answer[0].millis_behind_latest)
        following = self._reader.accept_empty_page(answer)
        if following is not None:
            self._scope.lag = (answer[0].millis_behind_latest or 0, answer[1])
            self._page.ended()
        return following

    def _deliver(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        if self._context.pace is not None and self._waits_for_its_turn(self._context.pace, len(records)):
            return Signal.STOP
        if self._scope.is_paused:
            return Signal.PAUSE
        deliver = self._deliver_parts if self._windows is None else self._windows.deliver
        return deliver(records, millis_behind)

    def _waits_for_its_turn(self, pace: Pace, records: int) -> bool:
        """Wait until so many records may be delivered; return True if reading is to end meanwhile."""
        now = self._context.runtime.monotonic
        turn = pace.turn_of(records)

        def left() -> float:
            return turn - now()

        return self._scope.sleep(left) if self._acking is None else self._acking.sleep(left)

    def _deliver_parts(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        last = records[-1].position
        self._page.delivering()
        in_parts = self._acking or self._lanes or self._policies
        if in_parts is not None:
            signal = in_parts.deliver(records, millis_behind)
            if signal not in (None, Signal.STOP, Signal.PAUSE):
                self._page.ended(worked=False)
            return signal
        self._progress.handing_over(last)
        checkpointer = ShardCheckpointer(self._progress, last)
        batch = self._rest_of(
            Batch(records, checkpointer, millis_behind, self._held.key, self._context.stream.name)
        )
        result = CallResult.RETURNED
        if batch:
            call = self._processor.process_records
            result = self._calls.until_it_returns("process_records", call, batch, self._rest_after)
        if result in NOT_RETURNED:
            if result not in (CallResult.STOPPED, CallResult.PAUSED):
                self._page.ended(worked=False)
            return NOT_RETURNED[result]
        if result is CallResult.RETURNED:
            self._delivered(records)
        self._progress.batch_done(last)
        self._checkpoint_if_due()
        return None

    def _delivered(self, records: Sequence[Record]) -> None:
        """Note records that the processor has returned from."""
        self._page.delivered(records)
        if self._context.fleet.follows:
            self._held.delivered(data_bytes(records))
        self._report_a_forgotten_checkpoint()

    def _settle(self, records: Sequence[Record], is_processed: bool) -> None:
        """Note records that are settled; automatic checkpoints may pass them now."""
        last = records[-1].position
        if is_processed:
            self._delivered(records)
            self._progress.batch_done(last)
        else:
            self._progress.given_up(last)
        self._checkpoint_if_due()

    def _rest_after(self, batch: Batch, error: BaseException) -> Batch:
        """Return what the error and the checkpoints leave to be done of a batch."""
        if isinstance(error, FailedAt) and self._context.config.on_error != "raise":
            at = index_of(error.record, batch.records)
            if at:
                self._progress.batch_done(batch[at - 1].position)
                self._checkpoint_if_due()
                batch = replace(batch, records=batch.records[at:])
        return self._rest_of(batch)

    def _rest_of(self, batch: Batch) -> Batch:
        """Return the batch without the records that are checkpointed, as in Java.

        The processor checkpointed them before it raised, or an earlier owner did, whose prepared checkpoint is
        committed since. Delivered again, each would be a duplicate, and its checkpoint would be refused.
        """
        durable = self._held.lease.checkpoint
        if not batch or durable < batch[0].position:
            return batch
        return replace(batch, records=tuple(found for found in batch if durable < found.position))

    def _report_a_forgotten_checkpoint(self) -> None:
        """Report, once, a processor that has to checkpoint by itself and never has."""
        if self._context.config.checkpoint_mode != "manual" or self._has_checked:
            return
        self._batches += 1
        seconds = self._progress.seconds_since_write()
        if self._batches < _MANY_BATCHES or seconds < _LONG:
            return
        self._has_checked = True
        lease = self._held.lease
        if lease.checkpoint == self._began_at and lease.pending is None:
            event = NeverCheckpointed(shard=self._held.key, batches=self._batches, seconds=seconds)
            self._context.events.emit(event)

    @property
    def _is_of_no_use(self) -> bool:
        """True if the processor knows that another instance is needed: an empty batch lets it raise RestartShard.

        Records that it was given and has not checkpointed are delivered again then.
        """
        return bool(getattr(self._processor, "is_of_no_use", False))

    def _deliver_nothing(self, millis_behind: int | None) -> Signal | None:
        """Deliver an empty batch. By default its checkpointer writes the last record of the batches before it."""
        checkpointer = ShardCheckpointer(self._progress, self._progress.done)
        acks = None if self._acking is None else self._acking.acks
        batch = Batch((), checkpointer, millis_behind, self._held.key, self._context.stream.name, acks)
        if self._context.config.on_error == "skip" and not self._is_of_no_use:
            self._calls.once("process_records", self._processor.process_records, batch)
            return None
        result = self._calls.until_it_returns("process_records", self._processor.process_records, batch)
        return NOT_RETURNED.get(result)

    def _checkpoint_if_due(self) -> None:
        config = self._context.config
        if config.checkpoint_mode == "manual":
            return
        if config.checkpoint_mode == "interval" and (
            self._progress.seconds_since_write() < config.checkpoint_interval
        ):
            return
        if config.checkpoint_mode == "ack" and (
            self._progress.seconds_since_write() < WRITE_EVERY
            or self._context.runtime.monotonic() < self._checkpoint_again_at
        ):
            return
        # A checkpoint that could not be written stays due: the next batch, idle read or hand-over writes it.
        self._flush()

    def _checkpoint_meanwhile(self) -> None:
        """Write what is due while a batch is delivered: with checkpoint_mode="auto" about once a second."""
        is_soon = self._progress.seconds_since_write() < STEP
        if not is_soon and self._context.runtime.monotonic() >= self._checkpoint_again_at:
            self._checkpoint_if_due()

    def _flush(self) -> None:
        try:
            self._progress.flush()
        except FatalError:
            raise
        except (TemporaryError, SetupError) as error:
            self._context.failures.failed(Activity.CHECKPOINTING, error, shard=self._held.key)
            self._failed_checkpoints += 1
            pause = self._back_off(self._failed_checkpoints)
            self._checkpoint_again_at = self._context.runtime.monotonic() + pause
        else:
            self._failed_checkpoints, self._checkpoint_again_at = 0, 0.0
            self._context.failures.worked(Activity.CHECKPOINTING, shard=self._held.key)

    def _gone(self) -> bool:
        """Return True if the shard is confirmed to be gone; if Kinesis still lists it, reading continues."""
        try:
            self._scope.children = children_of_a_gone_shard(self._context, self._held, self._place.absence)
        except TemporaryError as error:
            self._context.failures.failed(Activity.READING, error, shard=self._held.key)
            self._reader.reopen()
            return False
        return True

    # -- pausing -------------------------------------------------------------------------------------------------

    def wait_while_paused(self) -> Signal:
        """Give back what was fetched and not delivered, and wait. RESUMED: `read` goes on behind what was delivered.

        Checkpoints that become due are written. Raises LeaseLostError.
        """
        scope, monotonic = self._scope, self._context.runtime.monotonic
        self._drop_undelivered()
        # What kept failing until now is not tried any more, and it is no trouble that the shard stands.
        self._context.failures.worked(Activity.READING, shard=self._held.key)
        self._held.silent_since = None
        scope.gets_on()
        if not scope.has_answered:
            # The first read is late for no trouble; and at LATEST what comes during the pause belongs to it.
            scope.delayed()
            self._place.opened(self._context.stream.server_time_millis())
        while scope.is_paused:
            if scope.pause(PAUSE_POLL):
                return Signal.STOP
            if monotonic() >= self._checkpoint_again_at:
                self._checkpoint_if_due()
        return Signal.RESUMED

    def _drop_undelivered(self) -> None:
        """Drop what was fetched, and go back to behind the last record that was delivered."""
        if not self._is_between_pages:
            self._context.memory.release(self._window.clear())
            self._place.back_to(self._reached)
            self._reader.reopen()
            if self._acking is not None:
                self._acking.page_is_dropped()
        self._is_between_pages = False

    @property
    def _reached(self) -> Checkpoint | None:
        """Position behind which reading goes on after a pause; None: where it began."""
        watermark = self._progress.watermark
        if watermark is None:
            return self._progress.reached
        return watermark.last if self._lanes is None else watermark.low

    # -- leaving ------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Call shutdown_requested once. Raises LeaseLostError."""
        self._progress.update = catalog.UPDATE_LEASE_AT_END
        self._scope.check()
        checkpointer = ShardCheckpointer(self._progress, self._progress.done)
        request = ShutdownRequestedInput(self._held.key, self._context.stream.name, checkpointer)
        self._calls.once("shutdown_requested", self._processor.shutdown_requested, request)

    def wait_for_acks(self) -> None:
        """Wait until what was delivered is acked, as long as the stop leaves time for that. Raises LeaseLostError."""
        if self._acking is not None:
            self._acking.wait_before_release()

    def flush_before_leaving(self) -> None:
        """Write the automatic checkpoint that is due. Raises LeaseLostError."""
        self._scope.check()
        if self._acking is not None:
            self._acking.close()
        if self._context.config.checkpoint_mode != "manual":
            self._flush()
