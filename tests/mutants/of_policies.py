"""Bugs on a record's way to the dead letters: when it is given up, and what is settled by that."""

from __future__ import annotations

from pykcl.planning.attempts import WorkList
from pykcl.testing.simulation import Guarantee
from pykcl.worker.batch_delivery import BatchDelivery
from tests.mutants.mutant import Function, Mutant, Patch
from tests.simulation.course import Mode


def settled_before_the_answer(patch: Patch) -> None:
    def make(give_up: Function) -> Function:
        def early(self, work, part, condition, chosen):
            self._settle(chosen, False)
            return give_up(self, work, part, condition, chosen)

        return early

    patch.replace(BatchDelivery, "_give_up", make)


def age_by_the_hosts_clock(patch: Patch) -> None:
    def make(_: Function) -> Function:
        def by_the_host(self, work, first, records):
            max_age = self._policy.max_age
            now = self._context.runtime.utcnow_millis()
            if max_age is None or not 0 < first.arrived_at_millis < now - max_age:
                return False
            return work.expire(now, [record.arrived_at_millis for record in records])

        return by_the_host

    patch.replace(BatchDelivery, "_expire", make)


def right_half_forgotten(patch: Patch) -> None:
    def make(cut: Function) -> Function:
        def forgetful(self, part, start, stop, verdict, chosen):
            decision = cut(self, part, start, stop, verdict, chosen)
            if part.stop > stop:
                del self._parts[len(self._parts) - (2 if start == part.start else 3)]
            return decision

        return forgetful

    patch.replace(WorkList, "_cut", make)


POLICIES = (
    Mutant("M56", "records are settled before the destination of their dead letter answered", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY,), settled_before_the_answer, mode=Mode.POLICIES),
    Mutant("M57", "the age of a record is taken by the clock of the host", "-",
            (Guarantee.NO_GAP,), age_by_the_hosts_clock, mode=Mode.POLICIES),
    Mutant("M58", "the right half of a batch that was split is forgotten", "-",
            (Guarantee.NO_GAP, Guarantee.CHECKPOINT_AFTER_DELIVERY), right_half_forgotten, mode=Mode.POLICIES),
)  # fmt: skip
