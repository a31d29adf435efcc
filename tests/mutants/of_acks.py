"""Bugs of records that are settled one by one: how far a checkpoint follows them, and how long a stop waits."""

from __future__ import annotations

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import keys_of
from pykcl.testing.simulation import Guarantee
from pykcl.worker.ack_delivery import AckDelivery
from pykcl.worker.watermark import Watermark
from tests.mutants.mutant import Function, Mutant, Patch


def passes_an_open_record(patch: Patch) -> None:
    def make(advance: Function) -> Function:
        def too_far(self):
            freed = advance(self)
            if len(self._keys) > 1 and self._is_settled[self._keys[1]]:
                # Only the first record is open, and one will do.
                freed += advance(self)
            return freed

        return too_far

    patch.replace(Watermark, "_advance", make)


def counts_above_a_hole(patch: Patch) -> None:
    def make(settle: Function) -> Function:
        def highest(self, key):
            is_new = settle(self, key)
            if is_new and (self._low is None or Checkpoint(*self._low) < Checkpoint(*key)):
                self._low = key
            return is_new

        return highest

    patch.replace(Watermark, "settle", make)


def settled_by_returning(patch: Patch) -> None:
    def make(deliver: Function) -> Function:
        def and_settle(self, records, millis_behind):
            signal = deliver(self, records, millis_behind)
            for key in keys_of(records) if signal is None else ():
                self._watermark.settle(key)
            return signal

        return and_settle

    patch.replace(AckDelivery, "_deliver", make)


def acks_not_waited_for(patch: Patch) -> None:
    patch.replace(AckDelivery, "wait_before_release", lambda _: lambda self: None)


ACKS = (
    Mutant("M84", "the watermark passes a record that is not acked if the next one is", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_DUPLICATES), passes_an_open_record, acks=True),
    Mutant("M85", "the watermark is the highest record that is acked", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY,), counts_above_a_hole, acks=True),
    Mutant("M86", "a record is settled when process_records returns, and not when it is acked", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_DUPLICATES), settled_by_returning, acks=True),
    Mutant("M87", "a stop does not wait for acks", "-",
            (Guarantee.NO_DUPLICATES,), acks_not_waited_for, acks=True),
)  # fmt: skip
