"""Bugs of records that are settled one by one: how far a checkpoint follows them, and how long a stop waits."""

from __future__ import annotations

from itertools import count

from pykcl.errors import TemporaryError
from pykcl.handlers import lanes
from pykcl.handlers.lanes import Lane, Round
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import keys_of
from pykcl.planning.attempts import Successes
from pykcl.testing.simulation import Guarantee
from pykcl.worker.ack_delivery import AckDelivery, ShardAcks
from pykcl.worker.lane_delivery import LaneDelivery, Settling
from pykcl.worker.watermark import Watermark
from tests.mutants.mutant import Function, Mutant, Patch
from tests.simulation.course import Mode


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


def settled_before_the_call(patch: Patch) -> None:
    def make(calls: Function) -> Function:
        def early(self, lane):
            for key in keys_of(lane.records):
                self._settling.settle(key)
            return calls(self, lane)

        return early

    patch.replace(Round, "_calls", make)


def dealt_in_turn(patch: Patch) -> None:
    def make(_: Function) -> Function:
        turns = count()
        return lambda data: next(turns)

    patch.replace(lanes, "crc32", make)


def cancelled_is_done(patch: Patch) -> None:
    def make(calls: Function) -> Function:
        def and_settle(self, lane):
            yield from calls(self, lane)
            if lane.is_broken_off and lane.done < len(lane.records):
                self._settling.settle(keys_of(lane.records)[lane.done])

        return and_settle

    patch.replace(Round, "_calls", make)


def swallowed_is_done(patch: Patch) -> None:
    patch.replace(Lane, "broken_off", lambda _: lambda self: None)


def rejected_in_vain_is_settled(patch: Patch) -> None:
    def make(reject: Function) -> Function:
        def and_ack(self, record, reason=""):
            try:
                return reject(self, record, reason)
            except TemporaryError:
                self.ack(record)
                raise

        return and_ack

    patch.replace(ShardAcks, "reject", make)


def begins_without_the_lease(patch: Patch) -> None:
    patch.replace(Settling, "goes_on", lambda _: lambda self: True)


def hands_back_amid_a_round(patch: Patch) -> None:
    def make(_: Function) -> Function:
        def at_once(self, *several):
            for failing in several:
                for part in failing.work.parts:
                    if part.condition is not None:
                        records = failing.records[part.start : part.stop]
                        signal = self._give_up(failing.work, part, part.condition, records)
                        if signal is not None:
                            return signal
            return None

        return at_once

    patch.replace(LaneDelivery, "_give_up_parts", make)
    patch.replace(
        LaneDelivery, "_are_too_many", lambda _: lambda self, given: self._in_a_row.exhausted(len(given))
    )


def successes_between_do_not_count(patch: Patch) -> None:
    for name in ("are_before", "are_behind"):
        patch.replace(Successes, name, lambda _: lambda self, *where: False)


ACKS = (
    Mutant("M84", "the watermark passes a record that is not acked if the next one is", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_DUPLICATES), passes_an_open_record, mode=Mode.ACKS),
    Mutant("M85", "the watermark is the highest record that is acked", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY,), counts_above_a_hole, mode=Mode.ACKS),
    Mutant("M86", "a record is settled when process_records returns, and not when it is acked", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_DUPLICATES), settled_by_returning, mode=Mode.ACKS),
    Mutant("M87", "a stop does not wait for acks", "-",
            (Guarantee.NO_DUPLICATES,), acks_not_waited_for, mode=Mode.ACKS),
    Mutant("M88", "a lane settles its records before it calls the handler", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_GAP, Guarantee.NO_DUPLICATES),
            settled_before_the_call, mode=Mode.ACKS),
    Mutant("M89", "records are dealt to lanes in turn, and not by their key", "-",
            (Guarantee.NO_GAP,), dealt_in_turn, mode=Mode.ACKS),
    Mutant("M90", "a call that is cancelled counts as done", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_GAP), cancelled_is_done, mode=Mode.ACKS),
    Mutant("M91", "lanes go on after the lease is lost", "-",
            (Guarantee.SILENT_AFTER_LOSS,), begins_without_the_lease, mode=Mode.ACKS),
    Mutant("M92", "a call that was cancelled and returns all the same counts as done", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_GAP), swallowed_is_done, mode=Mode.ACKS),
    Mutant("M93", "a record is settled though its reject failed", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_DUPLICATES, Guarantee.NO_GAP),
            rejected_in_vain_is_settled, mode=Mode.ACKS),
    Mutant("M94", "lanes that fail at once are given up in any order, and the lease goes back in the midst of them", "here",
            (Guarantee.ALL_DELIVERED, Guarantee.NO_FALSE_ALARM), hands_back_amid_a_round, mode=Mode.ACKS),
    Mutant("M95", "a success between two failures of lanes does not count", "here",
            (Guarantee.NO_FALSE_ALARM,), successes_between_do_not_count, mode=Mode.ACKS),
)  # fmt: skip
