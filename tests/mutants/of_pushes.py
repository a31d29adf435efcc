"""Bugs in the reading of pushed records."""

from __future__ import annotations

from contextlib import suppress
from math import inf

from pykcl.errors import PyKclError
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.planning.push_schedule import PushSchedule
from pykcl.testing.simulation import Guarantee
from pykcl.worker.fallback_reader import FallbackReader
from pykcl.worker.push_reader import PushReader
from pykcl.worker.reading_place import ReadingPlace
from tests.mutants.mutant import Function, Mutant, Patch
from tests.mutants.of_reading import read_after_the_checkpoint
from tests.simulation.course import Mode


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


def polled_from_now_on(patch: Patch) -> None:
    def make(poll: Function) -> Function:
        def forgetful(self, push):
            self._place.behind, self._place.open_at = None, ReadFrom("LATEST")
            poll(self, push)

        return forgetful

    patch.replace(FallbackReader, "_poll", make)


def pushed_from_now_on(patch: Patch) -> None:
    def make(change: Function) -> Function:
        def forgetful(self, by):
            if by > 0:
                self.open_at = ReadFrom("LATEST")
            change(self, by)

        return forgetful

    patch.replace(ReadingPlace, "change_clock", make)


def polled_for_ever(patch: Patch) -> None:
    patch.replace(FallbackReader, "_due_in", lambda _: lambda self: inf)


_OF_FALLING_BACK = "tests/worker/test_fallback_reader.py::test_"

PUSHES = (
    Mutant("M111", "the place of a pushed event without records is written as a checkpoint", "-",
            (Guarantee.CHECKPOINT_FORWARD, Guarantee.LOSS_REPORTED, Guarantee.NO_GAP),
            checkpoint_by_continuation, only=frozenset({"F18.stop"}), mode=Mode.PUSHED),
    Mutant("M112", "a new owner subscribes after the checkpointed record, not at it", "-",
            (Guarantee.NO_GAP, Guarantee.LOSS_REPORTED), read_after_the_checkpoint,
            only=frozenset({"F18.stop"}), mode=Mode.PUSHED),
    Mutant("M113", "a shard is subscribed to again behind what was received, not what was delivered", "-",
            (), subscribed_behind_what_was_received,
            tests=("tests/worker/test_reader_conformance.py::test_what_was_not_finished_comes_again",)),
    Mutant("M114", "a subscription that says nothing passes for one of an idle shard", "redpanda connect",
            (Guarantee.ALL_DELIVERED,), silence_passes_for_an_idle_shard,
            only=frozenset({"F10.slow"}), mode=Mode.PUSHED),
    Mutant("M115", "a shard that is pushed no more is polled from its tip on", "-", (), polled_from_now_on,
            tests=(_OF_FALLING_BACK + "a_shard_whose_subscriptions_fail_for_a_minute_is_polled_from_where_it_stood",)),
    Mutant("M116", "a shard that was polled is pushed from its tip on", "-", (), pushed_from_now_on,
            tests=(_OF_FALLING_BACK + "a_shard_to_which_somebody_always_writes_is_subscribed_to_again_as_well",)),
    Mutant("M117", "a shard that was polled once is polled for ever", "-", (), polled_for_ever,
            tests=(_OF_FALLING_BACK + "a_shard_to_which_somebody_always_writes_is_subscribed_to_again_as_well",)),
)  # fmt: skip
