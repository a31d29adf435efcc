"""What a user's processor claims by a checkpoint inside `process_records`: those records are done before it returns."""

from __future__ import annotations

from dataclasses import replace

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.processor import Batch, Checkpointer, PreparedCheckpoint
from pykcl.testing.storm.delivery_judge import DeliveryJudge
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.places import Place, place_of


def claiming(batch: Batch, owning: Ownership, judge: DeliveryJudge) -> Batch:
    """The batch for the user's processor: its checkpointer enters in the ledger what the user says is done."""
    return replace(batch, checkpointer=_ClaimingCheckpointer(batch, owning, judge))


class _ClaimingCheckpointer:
    """A `processor.Checkpointer`. It claims before it writes: the write is judged by what is in the ledger."""

    def __init__(self, batch: Batch, owning: Ownership, judge: DeliveryJudge) -> None:
        self._inner: Checkpointer = batch.checkpointer
        self._given = [place_of(r.sequence_number, r.sub_sequence_number) for r in batch]
        self._owning, self._judge = owning, judge

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        upto = self._claim(at, sub_sequence_number)
        try:
            self._inner.checkpoint(at, sub_sequence_number)
        except BaseException:
            # It may be in the row or not: what comes again from here on is no fault of a clean stop.
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
        self._claim(at, sub_sequence_number)
        return self._inner.prepare_checkpoint(at, sub_sequence_number, state=state)

    def _claim(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Place | None:
        upto = self._place(at, sub_sequence_number)
        done = [place for place in self._given if upto is not None and place <= upto]
        self._judge.ledger.shards[self._owning.shard_id].delivered.update(done)
        self._owning.delivered.update(done)
        return upto

    def _place(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Place | None:
        try:
            if at is None:
                return self._given[-1]
            if isinstance(at, str):
                return place_of(at, sub_sequence_number)
            return place_of(at.sequence_number, at.sub_sequence_number)
        except ValueError:
            # Not a position: the worker refuses it, and nothing is claimed.
            return None
