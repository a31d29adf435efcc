"""Bugs in the reading of pushed records."""

from __future__ import annotations

from contextlib import suppress
from math import inf

from pykcl.errors import PyKclError
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.planning.push_schedule import PushSchedule
from pykcl.testing.simulation import Guarantee
from pykcl.worker.push_reader import PushReader
from tests.mutants.mutant import Function, Mutant, Patch
from tests.mutants.of_reading import read_after_the_checkpoint


def checkpoint_by_continuation(patch: Patch) -> None:
    def make(finish: Function) -> Function:
        def writing(self, page, keep):
            number = page.fetched.next_iterator
            pause = finish(self, page, keep)
            if number is not None and not page.fetched.records:
                with suppress(PyKclError):
                    self._held.write(lambda lease: lease_writes.checkpoint(lease, Checkpoint(number)))
            return pause

        return writing

    patch.replace(PushReader, "finish", make)


def subscribed_behind_what_was_received(patch: Patch) -> None:
    def make(poll: Function) -> Function:
        def hasty(self):
            fetched = poll(self)
            if fetched is not None and fetched.next_iterator is not None:
                self._place.behind = ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=fetched.next_iterator)
            return fetched

        return hasty

    patch.replace(PushReader, "_poll", make)


def silence_passes_for_an_idle_shard(patch: Patch) -> None:
    patch.replace(PushSchedule, "idle_until", lambda _: lambda self: inf)


PUSHES = (
    Mutant("M111", "the place of a pushed event without records is written as a checkpoint", "-",
            (Guarantee.CHECKPOINT_FORWARD, Guarantee.LOSS_REPORTED, Guarantee.NO_GAP),
            checkpoint_by_continuation, only=frozenset({"F18.stop"}), pushed=True),
    Mutant("M112", "a new owner subscribes after the checkpointed record, not at it", "-",
            (Guarantee.NO_GAP, Guarantee.LOSS_REPORTED), read_after_the_checkpoint,
            only=frozenset({"F18.stop"}), pushed=True),
    Mutant("M113", "a shard is subscribed to again behind what was received, not what was delivered", "-",
            (), subscribed_behind_what_was_received,
            tests=("tests/worker/test_push_reader.py::"
                   "test_an_event_that_was_received_and_not_delivered_comes_again_in_the_next_subscription",)),
    Mutant("M114", "a subscription that says nothing passes for one of an idle shard", "redpanda connect",
            (Guarantee.ALL_DELIVERED,), silence_passes_for_an_idle_shard,
            only=frozenset({"F10.slow"}), pushed=True),
)  # fmt: skip
