"""Random fleets in simulation keep every promise; and the judge is not blind: broken workers are caught.

`python -m pytest tests/simulation --seeds 500` tries more fleets.
"""

import logging
from collections.abc import Callable

import pytest
from fleet_invariants import Invariant, InvariantBroken
from random_fleet import run_random_fleet

from pykcl.model.lease_row import LeaseWrite
from pykcl.planning.lineage import FamilyTree
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.processor_calls import ProcessorCalls
from pykcl.worker.shard_delivery import ShardDelivery
from pykcl.worker.shard_reader import Page

MUTANT_SEEDS = range(12, 32)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seeds = range(metafunc.config.getoption("--seeds"))
        metafunc.parametrize("seed", seeds, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """What thousands of faults make the workers say would bury the one line that counts."""
    caplog.set_level(logging.CRITICAL, logger="pykcl")


def test_a_random_fleet_keeps_every_promise(seed):
    try:
        run_random_fleet(seed)
    except AssertionError as error:
        replay = f"python -m pytest tests/simulation -k seed{seed} --seeds {seed + 1}"
        pytest.fail(f"{error}\nreplay: {replay}")


def checkpoint_before_delivery(monkeypatch):
    deliver = ShardDelivery._deliver

    def checkpoint_first(self, records, millis_behind):
        self._progress.handing_over(records[-1].position)
        self._progress.batch_done(records[-1].position)
        self._checkpoint_if_due()
        return deliver(self, records, millis_behind)

    monkeypatch.setattr(ShardDelivery, "_deliver", checkpoint_first)


def take_a_failure_for_a_return(monkeypatch):
    attempt = ProcessorCalls._attempt

    def always_returned(self, method, call, argument):
        attempt(self, method, call, argument)

    monkeypatch.setattr(ProcessorCalls, "_attempt", always_returned)


def do_not_wait_for_parents(monkeypatch):
    # Both: who takes no lease before its parents ended seldom has to wait for them, and the other way round.
    monkeypatch.setattr(FamilyTree, "parents_ended", lambda self, key, leases, unreadable: True)
    monkeypatch.setattr(LeaseWorker, "_unfinished_parents", lambda self: ())


def take_whatever_the_counter_became(monkeypatch):
    condition = LeaseWrite._condition

    def any_later_counter(self):
        text, values = condition(self)
        if self.kind == "take":
            text = text.replace("leaseCounter = :seenCounter", "leaseCounter >= :seenCounter")
        return text, values

    monkeypatch.setattr(LeaseWrite, "_condition", any_later_counter)


def drop_all_but_the_first_chunk_of_a_page(monkeypatch):
    chunks = Page.chunks
    monkeypatch.setattr(Page, "chunks", lambda self, most: list(chunks(self, most))[:1])


@pytest.mark.parametrize(
    ("mutate", "broken"),
    [
        (checkpoint_before_delivery, Invariant.CHECKPOINT_AFTER_DELIVERY),
        (take_a_failure_for_a_return, Invariant.CHECKPOINT_AFTER_DELIVERY),
        (do_not_wait_for_parents, Invariant.PARENTS_FIRST),
        (take_whatever_the_counter_became, Invariant.COUNTER_BY_ONE),
        (drop_all_but_the_first_chunk_of_a_page, Invariant.NO_GAP),
    ],
    ids=lambda value: getattr(value, "__name__", None) or value.name,
)
def test_a_broken_worker_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], broken: Invariant, monkeypatch: pytest.MonkeyPatch
):
    mutate(monkeypatch)
    caught = set()
    for seed in MUTANT_SEEDS:
        try:
            run_random_fleet(seed)
        except InvariantBroken as error:
            caught.add(error.invariant)
        if broken in caught:
            return
    pytest.fail(f"never caught as {broken.name}, only as {sorted(each.name for each in caught)}")
