"""The processor of a storm: says what it was given, does the user's work, and misbehaves in every way we know."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from pykcl.errors import CheckpointRefused, LeaseLost, PyKclError, TemporaryError
from pykcl.model.record import Record
from pykcl.processor import (
    Batch,
    Checkpointer,
    Initialization,
    LeaseLoss,
    RecordProcessor,
    ShardEnd,
    ShutdownRequest,
)
from pykcl.testing.simulation import Simulation
from pykcl.testing.storm.claims import claiming
from pykcl.testing.storm.delivery_judge import DeliveryJudge
from pykcl.testing.storm.faults import Faults
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.places import Place, place_of
from pykcl.testing.storm.promises import Promise
from pykcl.testing.storm.skips import Skips

_BY_HAND = 0.6
_STRAINED_BATCH_SECONDS = 20.0


class StormProcessor(RecordProcessor):
    """One per lease. inner: the user's processor, which is called in between.

    stop_worker: asks the host to stop; False when it had been asked before.

    skips: told of batches for which it raises, where they are then skipped.
    """

    def __init__(
        self,
        host: str,
        simulation: Simulation,
        faults: Faults,
        judge: DeliveryJudge,
        *,
        by_hand: bool,
        inner: RecordProcessor | None,
        stop_worker: Callable[[], bool],
        skips: Skips | None = None,
    ) -> None:
        self._host, self._simulation, self._faults, self._judge = host, simulation, faults, judge
        self._by_hand = by_hand
        self._inner = inner
        self._stop_worker = stop_worker
        self._skips = skips
        self._never = False
        self._owning: Ownership | None = None
        self._last: tuple[Checkpointer, Record] | None = None

    def initialize(self, init: Initialization) -> None:
        self._stop_perhaps("F18.initialize", init.shard_id)
        self._raise_perhaps(init.shard_id)
        self._never = self._by_hand and self._faults.happens("F17.never", f"{self._host} {init.shard_id}")
        if self._inner is not None:
            self._inner.initialize(init)
        position = place_of(init.position.sequence_number, init.position.sub_sequence_number)
        self._owning = self._judge.ownership_begins(self._host, init.shard_id, position)

    def process_records(self, batch: Batch) -> Any:
        owning = self._must_own("process_records")
        places = [place_of(r.sequence_number, r.sub_sequence_number) for r in batch]
        with owning.call(self._judge, "process_records"), owning.tried_again_if_it_raises():
            self._judge.batch_begins(owning, places)
            self._dawdle_perhaps(batch.shard_id)
            claimed = claiming(batch, owning, self._judge)
            if self._inner is not None:
                self._inner.process_records(claimed)
            if self._faults.happens("F17.raises", f"{self._host} {batch.shard_id}"):
                return self._fail(claimed, owning, places)
            self._judge.delivered(owning, places)
            self._last = (batch.checkpointer, batch.records[-1])
            self._checkpoint_somehow(batch)
        return None

    def lease_lost(self, loss: LeaseLoss) -> None:
        owning = self._must_own("lease_lost")
        self._judge.ownership_lost(owning)
        self._stop_perhaps("F18.losing", loss.shard_id)
        if self._last is not None and self._faults.happens("F17.lost", f"{self._host} {loss.shard_id}"):
            self._must_refuse(LeaseLost, Promise.SILENT_AFTER_LOSS, *self._last)
        if self._inner is not None:
            self._inner.lease_lost(loss)

    def shard_ended(self, end: ShardEnd) -> None:
        owning = self._must_own("shard_ended")
        with owning.call(self._judge, "shard_ended"):
            self._judge.shard_ends(owning)
            self._raise_perhaps(end.shard_id)
            if self._inner is not None:
                self._inner.shard_ended(end)
            if not self._by_hand or self._faults.rng("F17.never").random() < _BY_HAND:
                end.checkpointer.checkpoint()

    def shutdown_requested(self, request: ShutdownRequest) -> None:
        self._must_own("shutdown_requested")
        if self._inner is not None:
            self._inner.shutdown_requested(request)
        # The storm checkpoints by hand for a user's processor too: which way its seed chose is not the user's to know.
        if self._by_hand and (not self._never or self._faults.healed):
            request.checkpointer.checkpoint()

    # -- misbehaviour ------------------------------------------------------------------------------------------

    def _raise_perhaps(self, shard_id: str) -> None:
        if self._faults.happens("F17.raises", f"{self._host} {shard_id}"):
            raise ValueError("at random")

    def _fail(self, batch: Batch, owning: Ownership, places: list[Place]) -> Iterator[None]:
        """Raise, perhaps behind a checkpoint of a part of the batch; or return what nobody runs, as if its work were
        in there."""
        seed, now = self._simulation.seed, self._simulation.now
        rng = random.Random(f"{seed}/{self._host}/{batch.shard_id}/{now}")  # noqa: S311 - reproducible
        way = rng.choice(["raises", "raises", "checkpoints and raises", "runs nothing"])
        if way == "runs nothing":
            return (None for _ in ())
        if way == "checkpoints and raises" and len(batch) > 1 and not self._never:
            self._checkpoint(batch.checkpointer, batch.records[rng.randrange(len(batch) - 1)])
        if self._skips is not None:
            self._skips.raises(owning, places)
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
                    CheckpointRefused, Promise.CHECKPOINT_FORWARD, checkpointer, batch.records[0]
                )
        if faults.happens("F17.ahead", about):
            ahead = Record(b"", "", str(int(last.sequence_number) + 10**30), shard_id=batch.shard_id)
            self._must_refuse(CheckpointRefused, Promise.CHECKPOINT_AFTER_DELIVERY, checkpointer, ahead)
        if faults.happens("F17.thread", about):
            task = self._simulation.spawn(
                f"app-{batch.shard_id}", self._host, lambda: self._checkpoint_alone(checkpointer, last)
            )
            task.join(5.0)

    def _checkpoint(self, checkpointer: Checkpointer, at: Record) -> None:
        try:
            checkpointer.checkpoint(at)
        except (CheckpointRefused, LeaseLost, TemporaryError):
            # Retried and checkpointed further the first time; lost meanwhile; no answer: all as documented.
            return

    def _checkpoint_alone(self, checkpointer: Checkpointer, at: Record) -> None:
        try:
            checkpointer.checkpoint(at)
        except PyKclError as error:
            self._judge.refused(self._host, at.shard_id, error)

    def _must_refuse(
        self, kind: type[Exception], promise: Promise, checkpointer: Checkpointer, at: Record
    ) -> None:
        try:
            checkpointer.checkpoint(at)
        except (kind, LeaseLost, TemporaryError):
            return
        self._judge.expect(
            False, promise, f"{self._host} {at.shard_id}: a checkpoint at {at.position} was accepted"
        )

    def _must_own(self, method: str) -> Ownership:
        if self._owning is None:
            self._judge.expect(False, Promise.LIFE_CYCLE, f"{self._host}: {method} before initialize")
            raise LeaseLost("not initialized")
        self._judge.called(self._owning, method)
        return self._owning
