"""A processor that fails, dawdles and checkpoints at random, and says what it was given."""

from __future__ import annotations

from fleet_invariants import Invariant, Watch
from random_faults import RandomFaults

from pykcl.errors import CheckpointRefused
from pykcl.model.checkpoint import Checkpoint
from pykcl.processor import Batch, Initialization, LeaseLoss, RecordProcessor, ShardEnd, ShutdownRequest


class RandomProcessor(RecordProcessor):
    """LIFE_CYCLE: made, initialized, batches, then shard_ended or lease_lost."""

    def __init__(self, watch: Watch, faults: RandomFaults) -> None:
        self._watch = watch
        self._faults = faults
        self._state = "made"
        self._busy = False
        self._after: Checkpoint | None = None

    def initialize(self, init: Initialization) -> None:
        self._faults.processor_may_fail(share=1 / 3)
        self._after, self._state = init.position, "initialized"

    def process_records(self, batch: Batch) -> None:
        self._must_be("process_records", "initialized")
        self._watch.expect(not self._busy, Invariant.LIFE_CYCLE, f"two batches of {batch.shard_id} at once")
        self._busy = True
        try:
            self._process(batch)
        finally:
            self._busy = False

    def _process(self, batch: Batch) -> None:
        assert self._after is not None
        self._watch.batch_begins(batch, self._after)
        if self._watch.by_hand and self._faults.rng.random() < 0.5:
            self._checkpoint_in_the_middle(batch)
        self._faults.processor_may_dawdle()
        self._faults.processor_may_fail()
        self._watch.delivered(batch)
        self._after = batch.records[-1].position
        if self._watch.by_hand and self._faults.rng.random() < 0.5:
            batch.checkpointer.checkpoint()

    def _checkpoint_in_the_middle(self, batch: Batch) -> None:
        self._watch.delivered(batch)
        try:
            batch.checkpointer.checkpoint(self._faults.rng.choice(batch.records))
        except CheckpointRefused:
            # The batch is being retried and was checkpointed further the first time.
            return

    def lease_lost(self, loss: LeaseLoss) -> None:
        self._watch.expect(self._state != "lost", Invariant.LIFE_CYCLE, f"{loss.shard_id} was lost twice")
        self._state = "lost"

    def shard_ended(self, end: ShardEnd) -> None:
        self._must_be("shard_ended", "initialized", "ended")
        self._faults.processor_may_fail()
        if not self._watch.by_hand or self._faults.rng.random() < 0.7:
            end.checkpointer.checkpoint()
        self._state = "ended"

    def shutdown_requested(self, request: ShutdownRequest) -> None:
        if self._watch.by_hand:
            request.checkpointer.checkpoint()

    def _must_be(self, method: str, *states: str) -> None:
        self._watch.expect(self._state in states, Invariant.LIFE_CYCLE, f"{method} when {self._state}")
