"""Delivery to a processor that settles each record by itself, while its `process_records` runs: in lanes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf

from pykcl.errors import LeaseLostError, RestartShard, TemporaryError
from pykcl.events import BatchSkipped, Event
from pykcl.model.record import Key, Record, keys_of
from pykcl.planning.attempts import Part, Successes, Verdict, WorkList
from pykcl.planning.lifecycle import Signal
from pykcl.processor import Batch, LanesStopped, LaneStop
from pykcl.runtime import Runtime
from pykcl.worker.batch_delivery import BatchDelivery
from pykcl.worker.checkpointer import ShardCheckpointer
from pykcl.worker.lease_scope import KEPT_FAILING, LeaseScope
from pykcl.worker.processor_calls import NOBODY, blames_records, reported, span_of, to_blame
from pykcl.worker.shard_end import NOT_RETURNED
from pykcl.worker.signals import OwnProcess
from pykcl.worker.threads import Helpers
from pykcl.worker.turns import Standing
from pykcl.worker.watermark import Watermark

STEP = 1.0
"""Seconds between two checkpoints while lanes run."""
_CANCELLED_WITHIN = 0.5
"""Seconds in which a cancelled call has to end."""


class Settling:
    """The worker, as the lanes of one instance of a processor see it. Any thread calls it but where one is named.

    helpers: threads and loops that all processors of the worker share. ends: keys of records with which a call of
    several records ends, although records of the same lane follow. settle: to be called with the key of a record that
    is done; without effect once the lease is lost, or another instance has taken over.
    """

    def __init__(self, scope: LeaseScope, watermark: Watermark, write: Callable[[], None]) -> None:
        self._scope, self._context, self._held = scope, scope.context, scope.mine
        self._write = write
        self.settle = watermark.settle
        self._own_process = OwnProcess()
        self._is_halted = self._is_lost = False
        self._stops_at_once = scope.context.config.on_error == "raise"
        self.runtime: Runtime = scope.context.runtime
        self.helpers: Helpers = scope.context.helpers
        self.ends: frozenset[Key] = frozenset()
        self.trouble: Exception | None = None

    def goes_on(self) -> bool:
        """Return True if a lane may begin another record."""
        return not self._is_halted and not self._scope.must_stop() and self._held.is_valid_unlocked()

    def may_end(self) -> bool:
        """Return True if a lane may begin what it would, were the shard not to be finished with: there is time left."""
        if self._is_halted or not self._held.is_valid_unlocked():
            return False
        return self.runtime.monotonic() < self._scope.calls_until()

    def halt(self) -> None:
        """Let no lane of this batch begin another record."""
        self._is_halted = True

    def failed(self) -> None:
        """A call has failed."""
        if self._stops_at_once:
            self.halt()

    def is_here(self) -> bool:
        """Return False in a process that was forked from the one of the worker."""
        return self._own_process.is_this

    def run(self, body: Callable[[], None]) -> None:
        """Run a lane in this thread."""
        with self.alone_leaves():
            body()

    def alone_leaves(self) -> AbstractContextManager[None]:
        """Run a lane in the block. A process that is forked in it ends with it."""
        return self._own_process.alone_leaves("process_records", self._held.key)

    def wake(self) -> None:
        """Let `wait` check whether all is over."""
        self._scope.wake.set()

    def emit(self, event: Event) -> None:
        self._context.events.emit(event)

    def show(self, standing: Callable[[], Standing | None] | None) -> None:
        """Let the report of a call that takes long say where its lanes stand."""
        self._scope.calls.standing = standing

    @property
    def shard_id(self) -> str:
        return self._held.key

    # -- for the shard's thread --------------------------------------------------------------------------------

    def begin(self, ends: frozenset[Key]) -> None:
        self.ends, self._is_halted = ends, False

    def wait(
        self,
        is_over: Callable[[], bool],
        *,
        step: Callable[[], None] = lambda: None,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        """Wait until the lanes are over, and write checkpoints meanwhile.

        Not given up when the lease is lost: 1) a call runs on; 2) the lease comes back to this worker; 3) another
        thread would have the next records of the same key.
        step: called about once a second. cancel: ends the calls that run; called when a stop leaves no more time, and
        what does not end then is left alone.
        """
        scope, now = self._scope, self.runtime.monotonic
        left_alone_at = inf
        while True:
            # Cleared before the check of what it announces: a lane that ends after that sets it again.
            scope.wake.clear()
            if is_over():
                return
            pause = STEP
            if cancel is not None and scope.stop_requested:
                if left_alone_at == inf and now() >= scope.acks_until:
                    cancel()
                    left_alone_at = now() + _CANCELLED_WITHIN
                left = (scope.acks_until if left_alone_at == inf else left_alone_at) - now()
                if left <= 0:
                    return
                pause = min(pause, left)
            self._meanwhile(step)
            scope.wake.wait(pause)

    def _meanwhile(self, step: Callable[[], None]) -> None:
        if self.trouble is not None:
            return
        try:
            if not self._is_lost:
                self._write()
            step()
        except LeaseLostError:
            # Lanes see it by themselves, and the caller once they have ended. Not tried again: each try would wake this
            # thread from its next wait.
            self._is_lost = True
        except Exception as error:  # noqa: BLE001 - raised once the lanes have ended
            self.trouble = error
            self.halt()


@dataclass(slots=True)
class _Failing:
    """Records of one lane whose call failed, and their attempts. since: number of rounds before the first of these."""

    records: tuple[Record, ...]
    work: WorkList
    since: int


class LaneDelivery(BatchDelivery):
    """Used by the lease worker's thread, under one lease.

    A batch is delivered in rounds, until all of it is settled. Each call that failed is retried, split or given up by
    itself; calls of the other lanes go on to the end of the batch before. What a round leaves to be given up is given
    up in order of position, and before the lease goes back: each owner then leaves the shard further on than it was.

    delivered: called with records that the processor is done with. write: writes the automatic checkpoint that is due,
    if one is; write_meanwhile: the same while lanes run.
    """

    def __init__(
        self,
        scope: LeaseScope,
        watermark: Watermark,
        *,
        delivered: Callable[[Sequence[Record]], None],
        write: Callable[[], None],
        write_meanwhile: Callable[[], None],
    ) -> None:
        super().__init__(scope, self._settle_all)
        self._watermark = watermark
        self._delivered, self._write = delivered, write
        self._failing: list[_Failing] = []
        self._successes = Successes()
        self._lanes, self._most_fail, self._since = 0, False, 0
        self._is_to_hand_back = False
        self.settling = Settling(scope, watermark, write_meanwhile)

    def close(self) -> None:
        """Settle nothing any more."""
        self._watermark.close()

    def deliver(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        """Settle every record of the batch; None: done. Raises LeaseLostError, DeadLettersUnsent."""
        # An earlier owner may have prepared a later checkpoint, which is committed since.
        left = records[self._durable(records, 0) :]
        # Behind a pause, in which a batch was broken off, records come again that are registered.
        last = self._watermark.last
        known = 0 if last is None else bisect_right(left, last, key=lambda record: record.position)
        self._watermark.register(keys_of(left[known:]), self._context.runtime.monotonic())
        left = self._unsettled(left) if known else left
        self._failing, self._successes, self._lanes = [], Successes(), 0
        while left:
            if (interrupted := self._scope.interrupted()) is not None:
                return interrupted
            if (signal := self._give_up_what_is_due(left)) is not None:
                return signal
            left = self._unsettled(left)
            if left:
                tried = self._unsettled(self._first_ones(left)) if self._is_to_hand_back else left
                found = self._round(tried, millis_behind)
                if found is Signal.GIVE_UP:
                    due = self._give_up_what_is_due(left)
                    if due is None:
                        # Not for what others were given up before: that still waits for the first record.
                        self._scope.why_handed_back = KEPT_FAILING
                    return due or found
                if found is not None:
                    return found
                left = self._unsettled(left)
            self._write()
        if self._successes.are_behind():
            self._in_a_row.worked()
        return None

    def _first_ones(self, left: Sequence[Record]) -> Sequence[Record]:
        """Return the first record, with those of its call if that failed: until it is settled nothing else begins."""
        (first,) = keys_of(left[:1])
        return next((f.records for f in self._failing if first in keys_of(f.records)), left[:1])

    def _settle_all(self, records: Sequence[Record], is_processed: bool) -> None:
        del is_processed
        for key in keys_of(records):
            self._watermark.settle(key)

    def _unsettled(self, records: Sequence[Record]) -> Sequence[Record]:
        is_open = self._watermark.unsettled(keys_of(records))
        if all(is_open):
            return records
        return tuple(record for record, open_ in zip(records, is_open, strict=True) if open_)

    # -- rounds ------------------------------------------------------------------------------------------------

    def _round(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        """Call process_records once, and act on what failed. None: go on with what is left."""
        ends = [each.records[part.stop - 1] for each in self._failing for part in each.work.parts]
        self.settling.begin(frozenset(keys_of(ends)))
        checkpointer = ShardCheckpointer(self._progress, records[-1].position)
        batch = Batch(records, checkpointer, millis_behind, self._held.key, self._context.stream.name)
        try:
            error = self._calls.attempt(self._processor.process_records, batch)
        except BaseException:
            # If this thread ends, lanes may still run: they begin nothing more, because the lease goes with it.
            self.settling.halt()
            raise
        if self.settling.trouble is not None:
            raise self.settling.trouble
        left, done = self._unsettled(records), records[:0]
        if len(left) < len(records):
            open_keys = set(keys_of(left))
            done = records if not left else [r for r in records if keys_of((r,))[0] not in open_keys]
            self._delivered(done)
        self._successes.add(done)
        if (low := self._watermark.low) is not None:
            self._calls.settled(low)
        if not left:
            return None
        if isinstance(error, RestartShard):
            # Not behind the last one, as of a batch: lanes that restart one after the other all get further.
            return NOT_RETURNED[self._calls.restart(error, left[:1], left)]
        if not isinstance(error, LanesStopped):
            # Of what is around the lanes: no record is to blame.
            unknown = TemporaryError("process_records settled a part of its batch")
            unknown.__cause__ = error
            error = LanesStopped([LaneStop((left[0],), unknown)], left)
        self._write()
        # In the first round of the batch all lanes have records.
        self._lanes = max(self._lanes, error.lanes)
        self._most_fail = 2 * len(error.stops) > self._lanes
        return self._act_on(error.stops)

    def _act_on(self, stops: Sequence[LaneStop]) -> Signal | None:
        for failing in self._failing:
            is_open = self._watermark.unsettled(keys_of(failing.records))
            failing.work.settled(is_open.index(True) if True in is_open else len(is_open))
        pauses, signal = [0.0], None
        for stop in stops:
            if self._context.config.on_error == "raise":
                self._calls.report("process_records", reported(stop.error), 1, stop.records, None)
                self._calls.stop_worker(stop.error, stop.records)
                signal = Signal.STOP
            elif not self._skips(stop):
                verdict, pause = self._retry(stop)
                pauses.append(pause)
                if verdict is Verdict.HAND_BACK and signal is None:
                    signal = Signal.GIVE_UP
        if signal is None and max(pauses) and self._scope.pause(max(pauses)):
            return Signal.STOP
        return signal

    def _retry(self, stop: LaneStop) -> tuple[Verdict, float]:
        """Decide what becomes of a call that failed; return that, and the pause before it is called again."""
        key = keys_of(stop.records[:1])
        start, found = 0, None
        for failing in self._failing:
            part = failing.work.next()
            if part is not None and keys_of(failing.records[part.start : part.start + 1]) == key:
                start, found = part.start, failing
        if found is None:
            work = WorkList(len(stop.records), self._policy)
            found = _Failing(stop.records, work, self._successes.rounds - 1)
            self._failing.append(found)
        # Since now: 1) the first record of a lane fails; 2) the others need longer than retry_timeout for the rest of
        # the batch; 3) if the time ran since the beginning, the lease would go back after a single attempt.
        began = self._context.runtime.monotonic()
        decision = self._decide(found.work, stop.records, start, stop.error, began)
        return decision.verdict, decision.pause if decision.verdict is Verdict.RETRY else 0.0

    def _skips(self, stop: LaneStop) -> bool:
        """Give up the records to blame for the error, as on_error="skip" says; False if none is."""
        if self._context.config.on_error != "skip" or not blames_records(stop.error):
            return False
        blamed = to_blame(stop.error, stop.records)
        if blamed == NOBODY:
            return False
        skipped = stop.records[slice(*blamed)]
        self._calls.report("process_records", reported(stop.error), 1, stop.records, None)
        self._context.events.emit(
            BatchSkipped(shard=self._held.key, records=len(skipped), **span_of(skipped))
        )
        self._settle_all(skipped, False)
        self._scope.gets_on()
        return True

    # -- dead letters ------------------------------------------------------------------------------------------

    def _give_up_what_is_due(self, left: Sequence[Record]) -> Signal | None:
        """Keep what was rejected, has failed too often or is too old as dead letters."""
        for failing in self._failing:
            first = failing.work.next()
            if first is not None and first.condition is None:
                chosen = failing.records[first.start : first.stop]
                self._expire(failing.work, chosen[0], chosen)
        signal = self._give_up_parts(*self._failing)
        self._failing = [failing for failing in self._failing if failing.work.parts]
        if signal is not None or self._policy.max_age is None:
            return signal
        failing_keys = {key for failing in self._failing for key in keys_of(failing.records)}
        others = tuple(
            record for record in self._unsettled(left) if keys_of((record,))[0] not in failing_keys
        )
        fresh = _Failing(others, WorkList(len(others), self._policy), self._successes.rounds)
        if others and self._expire(fresh.work, others[0], others):
            return self._give_up_parts(fresh)
        return None

    def _give_up_parts(self, *several: _Failing) -> Signal | None:
        """Give up all that is due before the limit of dead_letters_in_a_row is acted on, in order of position.

        1) A hundred lanes fail at once; 2) the lease goes back in the midst of them; 3) the checkpoint stays before the
        first that is not given up, so the letters of those behind it are written again by the next owner, and so on.
        """
        due: list[tuple[_Failing, Part]] = [
            (failing, part) for failing in several for part in failing.work.parts if part.condition
        ]
        due.sort(key=lambda each: each[0].records[each[1].start].position)
        for failing, part in due:
            assert part.condition is not None
            records = failing.records[part.start : part.stop]
            # Where few lanes are left, and fail, they have the bad records, and the others are done long since. Where
            # most of them fail, something else is down, and what was done before that says nothing.
            self._since = failing.since if self._most_fail else 0
            signal = self._give_up(failing.work, part, part.condition, records)
            if signal is Signal.STOP:
                return signal
            self._is_to_hand_back |= signal is Signal.GIVE_UP
            failing.since = self._successes.rounds
        # Not before the first record is settled, or the next owner would begin where this one has.
        return Signal.GIVE_UP if self._is_to_hand_back and self._watermark.passed else None

    def _are_too_many(self, records: Sequence[Record]) -> bool:
        # Each by itself, as between the records of one lane lie those of the others; and all of them, though one of the
        # first may reach the limit: what is given up counts.
        reached = [self._is_one_too_many(record) for record in records]
        return any(reached)

    def _is_one_too_many(self, record: Record) -> bool:
        if self._successes.are_before(record.position, self._since):
            self._in_a_row.worked()
        return self._in_a_row.exhausted()
