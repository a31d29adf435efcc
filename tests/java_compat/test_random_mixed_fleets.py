"""Random mixed fleets keep every guarantee; and the checker is not blind: broken workers are caught."""

import logging
from collections.abc import Callable

import pytest

from tests.java_compat.mixed_fleet import leave_out_of_creations, leave_out_of_updates
from tests.java_compat.random_mixed_fleet import run_random_mixed_fleet
from tests.java_peer.shard_consumer import LeaseRenewer, ShardConsumer, State

SEEDS = 24
MOST_SEEDS = 20


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="pykcl")


@pytest.mark.parametrize(
    "seed",
    [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, SEEDS))],
    ids=lambda seed: f"seed{seed}",
)
def test_a_random_mixed_fleet_loses_nothing_and_comes_to_rest(seed):
    fleet = run_random_mixed_fleet(seed)
    assert {name[0] for name, _ in fleet.ledger.delivered} == {"j", "p"}, "both libraries deliver"


def test_the_same_seed_takes_the_same_course_and_another_one_does_not():
    first, again, other = (run_random_mixed_fleet(seed).dynamodb.changes for seed in (3, 3, 4))
    assert list(first) == list(again)
    assert list(first) != list(other)


def pykcl_checkpoints_without_moving_the_counter(monkeypatch):
    leave_out_of_updates(monkeypatch, "leaseCounter", {"checkpoint"})


def pykcl_creates_rows_that_java_cannot_read(monkeypatch):
    leave_out_of_creations(monkeypatch, "ownerSwitchesSinceCheckpoint")


def java_checkpoints_before_it_delivers(monkeypatch):
    hand_over = ShardConsumer._hand_over

    def checkpoint_first(self, records):
        self._checkpoint(records[-1].position)
        hand_over(self, records)

    monkeypatch.setattr(ShardConsumer, "_hand_over", checkpoint_first)


def java_does_not_wait_for_parents(monkeypatch):
    def go_on(self):
        self.state = State.INITIALIZING
        return 0.0

    monkeypatch.setattr(ShardConsumer, "_wait_for_parents", go_on)


def java_does_not_renew(monkeypatch):
    monkeypatch.setattr(LeaseRenewer, "renew_all", lambda self: None)


MUTANTS = {
    pykcl_checkpoints_without_moving_the_counter: ("moved by 0", 0),
    pykcl_creates_rows_that_java_cannot_read: ("Java cannot read the table", 0),
    java_checkpoints_before_it_delivers: ("passes undelivered", 0),
    java_does_not_wait_for_parents: ("before its ancestor", 43),
    java_does_not_renew: ("an even load", 8),
}
"""Broken worker -> what is said about it, and the first of the seeds that are tried."""


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_worker_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch):
    mutate(monkeypatch)
    wanted, first = MUTANTS[mutate]
    complaints = []
    for seed in range(first, first + MOST_SEEDS):
        try:
            run_random_mixed_fleet(seed)
        except AssertionError as complaint:
            complaints.append(str(complaint))
            if wanted in complaints[-1]:
                return
    pytest.fail(f"not caught, only {complaints}")
