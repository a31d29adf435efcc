"""The processor of a simulation: reports its calls, does the user's work, and misbehaves in every way we know.

Records up to a checkpoint inside `process_records` are done before it returns. With on_error="skip" the batch that
raised is given up, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pykcl.errors import CheckpointRefused, LeaseLostError, PyKclError, TemporaryError
from pykcl.events import BatchSkipped
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.processor import (
    Batch,
    Checkpointer,
    InitializationInput,
    LeaseLostInput,
    PreparedCheckpoint,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation.delivery import DeliveryChecker, Ownership, Position, position_in, position_of
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Guarantee


def claiming(batch: Batch, owning: Ownership, checker: DeliveryChecker) -> Batch:
    """Return the batch for the user's processor; its checkpointer notes in the record_log what the user checkpoints."""
    return replace(batch, checkpointer=_ClaimingCheckpointer(batch, owning, checker))


class _ClaimingCheckpointer:
    """A `processor.Checkpointer`. Notes the claim before it writes: checkers compare the write with the record_log."""

    def __init__(self, batch: Batch, owning: Ownership, checker: DeliveryChecker) -> None:
        self._inner: Checkpointer = batch.checkpointer
        self._given = [position_of(r.sequence_number, r.sub_sequence_number) for r in batch]
        self._owning, self._checker = owning, checker

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        self._write(
            self._claim(at, sub_sequence_number), lambda: self._inner.checkpoint(at, sub_sequence_number)
        )

    def _write(self, upto: Position | None, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException:
            # The outcome is unknown: records that are repeated from here on do not break the guarantee of a clean stop.
            self._owning.perhaps = upto
            self._owning.delivered.difference_update(self._given)
            raise
        self._owning.confirmed = upto

    def prepare_checkpoint(
        self,
        at: Record | Checkpoint | str | None = None,
        sub_sequence_number: int = 0,
        *,
        state: bytes | None = None,
    ) -> PreparedCheckpoint:
        upto = self._claim(at, sub_sequence_number)
        prepared = self._inner.prepare_checkpoint(at, sub_sequence_number, state=state)
        return _ClaimingPrepared(prepared, lambda: self._write(upto, prepared.checkpoint))

    def _claim(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Position | None:
        upto = self._position(at, sub_sequence_number)
        done = [position for position in self._given if upto is not None and position <= upto]
        self._checker.record_log.shards[self._owning.shard_id].delivered.update(done)
        self._owning.delivered.update(done)
        return upto

    def _position(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Position | None:
        try:
            if at is None:
                return self._given[-1]
            if isinstance(at, str):
                return position_of(at, sub_sequence_number)
            return position_of(at.sequence_number, at.sub_sequence_number)
        except ValueError:
            # Not a position: the worker refuses it, and nothing is claimed.
            return None


class _ClaimingPrepared:
    """A `processor.PreparedCheckpoint`. put_in_force: writes it, and notes whether it is written."""

    def __init__(self, inner: PreparedCheckpoint, put_in_force: Callable[[], None]) -> None:
        self.position = inner.position
        self.checkpoint = put_in_force


class Skips:
    """Checker of NO_GAP for skipped batches. skipped: number of records that were skipped as guaranteed."""

    def __init__(self, checker: DeliveryChecker) -> None:
        self._checker = checker
        self._raised: dict[tuple[str, str], tuple[Ownership, list[Position]]] = {}
        self.skipped = 0

    def raises(self, owning: Ownership, positions: list[Position]) -> None:
        """The processor is about to raise for this batch."""
        self._raised[(owning.host, owning.shard_id)] = (owning, positions)

    def heard(self, host: str, event: BatchSkipped) -> None:
        """Check that the skipped batch is the one that raised last. Its records are not owed any more."""
        owning, positions = self._raised.pop((host, event.shard), (None, []))
        first = position_in(event.first)
        # What the processor has checkpointed of the batch before it raised is not skipped.
        rest = [position for position in positions if position >= first]
        done = set(positions) - set(rest)
        fits = bool(rest) and (len(rest), rest[0], rest[-1]) == (
            event.records,
            first,
            position_in(event.last),
        )
        if owning is None or not fits or not done <= self._checker.record_log.shards[event.shard].delivered:
            what = f"{host} skipped {event.records} records of {event.shard} up to {event.last}, which did not raise"
            self._checker.expect(False, Guarantee.NO_GAP, what)
            return
        self.skipped += len(rest)
        owning.after = positions[-1]
        self._checker.record_log.shards[event.shard].delivered.update(positions)
        self._checker.on_skipped(owning)


_BY_HAND = 0.6
_STRAINED_BATCH_SECONDS = 20.0


class FaultyProcessor(RecordProcessor):
    """One per lease. inner: the user's processor, which is called in between.

    stop_worker: asks the host to stop; False when it had been asked before.

    skips: notified of batches for which it raises, where they are then skipped.
    """

    def __init__(
        self,
        host: str,
        simulation: Simulation,
        faults: Faults,
        checker: DeliveryChecker,
        *,
        by_hand: bool,
        inner: RecordProcessor | None,
        stop_worker: Callable[[], bool],
        skips: Skips | None = None,
    ) -> None:
        self._host, self._simulation, self._faults, self._checker = host, simulation, faults, checker
        self._by_hand = by_hand
        self._inner = inner
        self._stop_worker = stop_worker
        self._skips = skips
        self._never = False
        self._owning: Ownership | None = None
        self._last: tuple[Checkpointer, Record] | None = None

    def initialize(self, init: InitializationInput) -> None:
        self._stop_perhaps("F18.initialize", init.shard_id)
        self._raise_perhaps(init.shard_id)
        self._never = self._by_hand and self._faults.happens("F17.never", f"{self._host} {init.shard_id}")
        if self._inner is not None:
            self._inner.initialize(init)
        position = position_of(init.position.sequence_number, init.position.sub_sequence_number)
        self._owning = self._checker.ownership_starts(self._host, init.shard_id, position)

    def process_records(self, batch: Batch) -> Any:
        owning = self._must_own("process_records")
        positions = [position_of(r.sequence_number, r.sub_sequence_number) for r in batch]
        with owning.call(self._checker, "process_records"), owning.tried_again_if_it_raises() as comes_again:
            self._checker.batch_starts(owning, positions)
            self._dawdle_perhaps(batch.shard_id)
            if self._drops(batch):
                comes_again()
                return None
            claimed = claiming(batch, owning, self._checker)
            if self._inner is not None:
                self._inner.process_records(claimed)
            if self._faults.happens("F17.raises", f"{self._host} {batch.shard_id}"):
                never_run = self._fail(claimed, owning, positions)
                comes_again()
                return never_run
            self._checker.delivered(owning, positions)
            self._last = (batch.checkpointer, batch.records[-1])
            self._checkpoint_somehow(batch)
        return None

    def lease_lost(self, loss: LeaseLostInput) -> None:
        owning = self._must_own("lease_lost")
        self._checker.ownership_lost(owning)
        self._stop_perhaps("F18.losing", loss.shard_id)
        if self._last is not None and self._faults.happens("F17.lost", f"{self._host} {loss.shard_id}"):
            self._must_refuse(LeaseLostError, Guarantee.SILENT_AFTER_LOSS, *self._last)
        if self._inner is not None:
            self._inner.lease_lost(loss)

    def shard_ended(self, end: ShardEndedInput) -> None:
        owning = self._must_own("shard_ended")
        with owning.call(self._checker, "shard_ended"):
            self._checker.shard_ends(owning)
            self._raise_perhaps(end.shard_id)
            if self._inner is not None:
                self._inner.shard_ended(end)
            if not self._by_hand or self._faults.rng("F17.never").random() < _BY_HAND:
                end.checkpointer.checkpoint()

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        self._must_own("shutdown_requested")
        if self._inner is not None:
            self._inner.shutdown_requested(request)
        # Also for a user's processor, which cannot know that its seed chose manual checkpoints.
        if self._by_hand and (not self._never or self._faults.healed):
            request.checkpointer.checkpoint()

    # -- misbehaviour ------------------------------------------------------------------------------------------

    def _raise_perhaps(self, shard_id: str) -> None:
        if self._faults.happens("F17.raises", f"{self._host} {shard_id}"):
            raise ValueError("at random")

    def _fail(self, batch: Batch, owning: Ownership, positions: list[Position]) -> Iterator[None]:
        """Raise, perhaps after a checkpoint of a part of the batch; or return a generator that is never run, as a
        processor with a stray yield does."""
        seed, now = self._simulation.seed, self._simulation.now
        rng = random.Random(f"{seed}/{self._host}/{batch.shard_id}/{now}")  # noqa: S311 - reproducible
        way = rng.choice(["raises", "raises", "checkpoints and raises", "runs nothing"])
        if way == "runs nothing":
            return (None for _ in ())
        if way == "checkpoints and raises" and len(batch) > 1 and not self._never:
            self._checkpoint(batch.checkpointer, batch.records[rng.randrange(len(batch) - 1)])
        if self._skips is not None:
            self._skips.raises(owning, positions)
        raise ValueError("at random")

    def _stop_perhaps(self, fault: str, shard_id: str) -> None:
        """The worker is asked to stop, and finds this call still running for a while."""
        if self._faults.is_due(fault) and self._stop_worker():
            self._faults.note(fault, f"{self._host} {shard_id}")
            self._simulation.sleep(self._faults.rng(fault).uniform(0, 5))

    def _dawdle_perhaps(self, shard_id: str) -> None:
        rng = self._faults.rng("F17.hangs")
        if self._faults.strained:
            self._simulation.sleep(_STRAINED_BATCH_SECONDS)
        if self._faults.happens("F17.hangs", f"{self._host} {shard_id}"):
            self._simulation.sleep(rng.uniform(8, 30))
        if self._faults.is_due("F18.processor") and self._stop_worker():
            self._faults.note("F18.processor", self._host)

    def _drops(self, batch: Batch) -> bool:
        """Return True for a batch that is left, late, because its lease is lost: its work is not done."""
        is_lost = bool(getattr(batch.checkpointer, "is_lost", False))
        if not is_lost or not self._faults.happens("F17.drops", f"{self._host} {batch.shard_id}"):
            return False
        self._simulation.sleep(self._faults.rng("F17.drops").choice([0.0, 1.0, 10.0]))
        return True

    def _checkpoint_somehow(self, batch: Batch) -> None:
        faults, about = self._faults, f"{self._host} {batch.shard_id}"
        checkpointer, last = batch.checkpointer, batch.records[-1]
        by_hand = self._by_hand and not self._never and faults.rng("F17.twice").random() < _BY_HAND
        twice = faults.happens("F17.twice", about)
        if by_hand or twice:
            self._checkpoint(checkpointer, last)
        if twice:
            self._checkpoint(checkpointer, last)
            if len(batch) > 1 and faults.happens("F17.backwards", about):
                self._must_refuse(
                    CheckpointRefused, Guarantee.CHECKPOINT_FORWARD, checkpointer, batch.records[0]
                )
        if faults.happens("F17.ahead", about):
            ahead = Record(b"", "", str(int(last.sequence_number) + 10**30), shard_id=batch.shard_id)
            self._must_refuse(CheckpointRefused, Guarantee.CHECKPOINT_AFTER_DELIVERY, checkpointer, ahead)
        if faults.happens("F17.thread", about):
            task = self._simulation.spawn(
                f"app-{batch.shard_id}", self._host, lambda: self._checkpoint_alone(checkpointer, last)
            )
            task.join(5.0)

    def _checkpoint(self, checkpointer: Checkpointer, at: Record) -> None:
        try:
            checkpointer.checkpoint(at)
        except (CheckpointRefused, LeaseLostError, TemporaryError):
            # Retried and checkpointed further the first time; lost meanwhile; no answer: all as documented.
            return

    def _checkpoint_alone(self, checkpointer: Checkpointer, at: Record) -> None:
        try:
            checkpointer.checkpoint(at)
        except PyKclError as error:
            self._checker.refused(self._host, at.shard_id, error)

    def _must_refuse(
        self, kind: type[Exception], guarantee: Guarantee, checkpointer: Checkpointer, at: Record
    ) -> None:
        try:
            checkpointer.checkpoint(at)
        except (kind, LeaseLostError, TemporaryError):
            return
        self._checker.expect(
            False, guarantee, f"{self._host} {at.shard_id}: a checkpoint at {at.position} was accepted"
        )

    def _must_own(self, method: str) -> Ownership:
        if self._owning is None:
            self._checker.expect(False, Guarantee.LIFE_CYCLE, f"{self._host}: {method} before initialize")
            raise LeaseLostError("not initialized")
        self._checker.called(self._owning, method)
        return self._owning
