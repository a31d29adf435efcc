"""Storms, and the storms over processors of users."""

import logging

import pytest
import storm_processors
from storm_seeds import COMMIT, FINE_WEATHER, FIXED, SEEDS

from pykcl.testing.storm import Promise, PromiseBroken, run_storm
from pykcl.testing.storm.__main__ import failure_line
from pykcl.testing.storm.runner import Job


@pytest.mark.parametrize("seed", [*FIXED, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS)])
def test_a_storm_breaks_no_promise(seed):
    outcome = run_storm(seed)
    if outcome.broken is not None:
        pytest.fail(
            "\n".join([failure_line(Job(seed), outcome.verdict, COMMIT), *outcome.last_lines]), pytrace=False
        )


def test_a_sound_processor_comes_through_a_storm():
    outcome = run_storm(3, processor=storm_processors.Sound)
    assert outcome.verdict == "kept"
    assert outcome.figures.deliveries


def test_a_processor_may_checkpoint_by_hand_before_it_returns():
    outcome = run_storm(3, off=FINE_WEATHER, processor=storm_processors.ByHand)
    assert outcome.verdict == "kept"


def test_a_processor_that_never_gets_past_a_record_leaves_records_owed():
    outcome = run_storm(3, off=FINE_WEATHER, processor=storm_processors.StumblesForEver)
    assert isinstance(outcome.broken, PromiseBroken)
    assert outcome.broken.promise is Promise.ALL_DELIVERED


def test_what_a_processor_raises_is_its_own_failure_and_is_tried_again_even_an_assertion():
    storm_processors.StumblesOnce.seen.clear()
    outcome = run_storm(3, off=FINE_WEATHER, processor=storm_processors.StumblesOnce)
    assert outcome.verdict == "kept"
    assert len(storm_processors.StumblesOnce.seen) > 10


def test_a_processor_that_mixes_up_its_shards_is_caught_at_its_checkpoint():
    storm_processors.MixesShards.last.clear()
    outcome = run_storm(3, off=FINE_WEATHER, processor=storm_processors.MixesShards)
    assert isinstance(outcome.broken, PromiseBroken)
    # Its checkpoint is refused, so the shard is handed back again and again and its records stay owed.
    assert outcome.broken.promise in (Promise.NO_CHURN, Promise.ALL_DELIVERED)


def test_a_processor_that_cannot_be_made_leaves_records_owed():
    outcome = run_storm(3, off=FINE_WEATHER, processor=storm_processors.CannotBeMade)
    assert isinstance(outcome.broken, PromiseBroken)
    # Two such workers may also take the lease from each other before they should.
    assert outcome.broken.promise in (Promise.ALL_DELIVERED, Promise.BUDGETS)


def test_a_blind_storm_lets_everything_pass():
    """This processor fails a simulation with checkers, see above, and lets all records arrive: it ends early."""
    storm_processors.MixesShards.last.clear()
    outcome = run_storm(3, off=FINE_WEATHER, processor=storm_processors.MixesShards, blind=True)
    assert outcome.broken is None
    assert outcome.figures.deliveries


def test_after_a_storm_the_loggers_speak_as_before(caplog):
    """A logger remembers whether it may speak; what it learned while the storm was silent must be forgotten."""

    class Asks(storm_processors.Sound):
        def initialize(self, init):
            super().initialize(init)
            assert not logging.getLogger("pykcl.events").isEnabledFor(logging.ERROR)

    assert run_storm(3, off=FINE_WEATHER, processor=Asks).verdict == "kept"
    assert logging.getLogger("pykcl.events").isEnabledFor(logging.ERROR)
