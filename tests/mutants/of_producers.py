"""Bugs of producers."""

from __future__ import annotations

from pykcl.producer import accumulator
from pykcl.producer.accumulator import Accumulator
from pykcl.producer.delivery import Delivery
from pykcl.producer.shard_map import ShardMap
from pykcl.testing.simulation import Guarantee
from tests.mutants.mutant import Function, Mutant, Patch
from tests.simulation.course import Mode


def an_aggregate_counts_as_put_in_whatever_shard_it_is(patch: Patch) -> None:
    patch.replace(ShardMap, "holds", lambda _: lambda self, shard_id, hash_keys: True)


def a_lost_answer_leaves_no_mark(patch: Patch) -> None:
    patch.replace(accumulator, "_mark_doubtful", lambda _: lambda parcel: None)


def ordered_records_overtake(patch: Patch) -> None:
    patch.replace(Accumulator, "_is_held", lambda _: lambda self, queue: queue.is_doubted)


def ordered_records_do_not_wait_for_those_in_flight_to_a_shard_that_has_gone(patch: Patch) -> None:
    def make(apply_map: Function) -> Function:
        def hasty(self, now, *, is_final=False):
            in_flight = {queue: queue.in_flight for queue in self._queues.values()}
            for queue in in_flight:
                queue.in_flight = 0
            try:
                return apply_map(self, now, is_final=is_final)
            finally:
                for queue, number in in_flight.items():
                    queue.in_flight = number

        return hasty

    patch.replace(Accumulator, "_apply_map", make)


def who_has_waited_for_room_is_taken(patch: Patch) -> None:
    def make(offer: Function) -> Function:
        def generous(self, record, room=None):
            most = self._max_bytes
            self._max_bytes = most if room is None else 2**60
            try:
                return offer(self, record, room)
            finally:
                self._max_bytes = most

        return generous

    patch.replace(Delivery, "offer", make)


def a_missing_permission_hides_that_a_record_may_be_there(patch: Patch) -> None:
    patch.replace(accumulator, "given_up", lambda _: lambda error, *, perhaps_put: error)


PRODUCERS = (
    Mutant("M120", "an aggregate counts as put though consumers of its shard drop it", "-",
            (Guarantee.PUT_DELIVERED,), an_aggregate_counts_as_put_in_whatever_shard_it_is, mode=Mode.PRODUCED),
    Mutant("M121", "a request without an answer does not mark its records as perhaps there twice", "-",
            (Guarantee.PUT_COUNTED,), a_lost_answer_leaves_no_mark, mode=Mode.PRODUCED),
    Mutant("M122", "ordered records are sent while earlier ones of their shard are in flight", "Kinesis Producer Library",
            (Guarantee.PUT_IN_ORDER,), ordered_records_overtake, mode=Mode.PRODUCED),
    Mutant("M123", "ordered records go to a new shard while earlier ones are in flight to its parent", "-",
            (Guarantee.PUT_IN_ORDER,),
            ordered_records_do_not_wait_for_those_in_flight_to_a_shard_that_has_gone, mode=Mode.PRODUCED),
    Mutant("M124", "a put that has waited for room is taken, whether there is room or not", "-",
            (Guarantee.PUT_BOUNDED,), who_has_waited_for_room_is_taken, mode=Mode.PRODUCED),
    Mutant("M125", "a record may be in the stream, and the missing permission that ends it does not say so", "here",
            (Guarantee.PUT_COUNTED,), a_missing_permission_hides_that_a_record_may_be_there, mode=Mode.PRODUCED),
)  # fmt: skip
