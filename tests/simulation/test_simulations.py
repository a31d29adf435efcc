"""Simulations, and the simulations over processors of users."""

import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pykcl.errors import TableGone
from pykcl.handlers import functions, windows
from pykcl.handlers.windows import PICKLED
from pykcl.testing.runtime.scheduler import Simulation
from pykcl.testing.simulation import Guarantee, GuaranteeBroken
from pykcl.testing.simulation.world import WorkerHost
from pykcl.worker.checkpointer import Progress
from tests.simulation import processors
from tests.simulation.checking import row
from tests.simulation.course import Mode, run_simulation
from tests.simulation.faults import OF_PRODUCERS
from tests.simulation.native_rest import generations_to_read, is_fairly_owned, java_cannot_end
from tests.simulation.runner import Job, failure_line
from tests.simulation.seeds import FIXED, NO_FAULTS, SEEDS


@pytest.mark.parametrize("seed", [*FIXED, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS)])
def test_a_simulation_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.PLAIN)


# Fixed ones in CI, too, until thousands of fresh ones have passed in `tox -e sim`, which runs every fourth with policies.
@pytest.mark.parametrize(
    "seed", [*FIXED[:4], *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(700_060, 700_085))]
)
def test_a_simulation_of_policies_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.POLICIES)


# Likewise, each with a fleet of KCL 3.x in its own mode. In 78077 a leader loses its lock soon after it took it; in 78304
# 37 generations of shards are left after the last fault, and a Java leader assigns one in a round.
@pytest.mark.parametrize(
    "seed",
    [
        *FIXED[:4],
        *(pytest.param(s, marks=pytest.mark.slow) for s in [78_077, 78_304, *range(800_000, 800_025)]),
    ],
)
def test_a_simulation_of_a_native_fleet_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.NATIVE)


@pytest.mark.parametrize(
    "seed", [*FIXED[:4], *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(900_000, 900_025))]
)
def test_a_simulation_of_acks_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.ACKS)


@pytest.mark.parametrize(
    "seed", [*FIXED[:3], *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 120))]
)
def test_a_simulation_of_windows_breaks_no_guarantee(seed):
    outcome = run_simulation(seed, mode=Mode.WINDOWS)
    if outcome.broken is not None:
        failure = f"run_simulation({seed}, mode=Mode.WINDOWS): {outcome.summary}"
        pytest.fail("\n".join([failure, *outcome.last_lines]), pytrace=False)


@pytest.mark.parametrize(
    "seed", [*FIXED[:3], *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 125))]
)
def test_a_simulation_of_pushed_records_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.PUSHED)


@pytest.mark.parametrize(
    "seed", [*FIXED[:3], *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(980_000, 980_025))]
)
def test_a_simulation_of_a_run_with_an_end_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.UNTIL)


@pytest.mark.parametrize(
    "seed",
    [
        *FIXED,
        29,
        31,
        37,
        41,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(950_000, 950_040)),
    ],
)
def test_a_simulation_of_producers_breaks_no_guarantee(seed):
    _must_be_kept(seed, Mode.PRODUCED)


def test_each_kind_of_fault_happens_to_producers_and_leaves_records_put_given_up_and_there_twice():
    missing, outcomes = set(OF_PRODUCERS), Counter()
    for seed in range(113, 123):
        outcome = run_simulation(seed, mode=Mode.PRODUCED, full=True)
        assert outcome.broken is None, outcome.summary
        missing -= outcome.injected.keys()
        outcomes += outcome.figures.puts
        if not missing and min(outcomes.values()) > 10:
            break
    assert missing == set()
    assert {name for name, count in outcomes.items() if count > 10} == {
        "put",
        "given up",
        "not taken",
        "twice",
    }


def test_a_checkpoint_in_the_middle_of_a_window_is_caught(monkeypatch):
    monkeypatch.setattr(Progress, "hold_back", lambda self: None)
    assert run_simulation(3, mode=Mode.WINDOWS).broken.guarantee is Guarantee.CHECKPOINT_AFTER_DELIVERY


def test_a_state_that_a_failing_call_has_changed_is_caught(monkeypatch):
    states = [None]

    def dump(state):
        states.append(state)
        return str(len(states) - 1).encode()

    shared = replace(PICKLED, dump=dump, load=lambda kept: states[int(kept)], empty=b"0")
    monkeypatch.setattr(functions, "PICKLED", shared)
    assert run_simulation(104, mode=Mode.WINDOWS).broken.guarantee is Guarantee.NO_GAP


def test_a_window_that_is_closed_too_early_is_caught(monkeypatch):
    monkeypatch.setattr(windows, "GRACE_MILLIS", -20_000)
    assert run_simulation(2, mode=Mode.WINDOWS).broken.guarantee is Guarantee.NO_GAP


def _must_be_kept(seed, mode):
    outcome = run_simulation(seed, mode=mode)
    if outcome.broken is not None:
        failure = failure_line(Job(seed, modes=frozenset({mode})), outcome.summary)
        pytest.fail("\n".join([failure, *outcome.last_lines]), pytrace=False)


@pytest.mark.parametrize(("active", "owed", "generations"), [
    ({}, [], 5),
    # The rows of the last three are created by the owners of their parents.
    ({"a": False, "b": True}, [], 4),
    ({"a": False, "b": False, "c": True}, [], 3),
    # The rows of ancestors that ended are deleted: nobody reads these again.
    ({"d": True}, [], 2),
    ({"e": False}, [], 0),
    # An operator deleted the row of b.
    ({"c": True}, ["b"], 4),
    # A merge waits for the longer line.
    ({"c": False, "c2": True}, [], 3),
    ({"e": True, "c2": True}, [], 2),
])  # fmt: skip
def test_every_generation_that_is_still_to_be_read_is_waited_for(active, owed, generations):
    parents = {"a": (), "b": ("a",), "c": ("b",), "c2": (), "d": ("c", "c2"), "e": ("d",)}
    assert generations_to_read(parents, active, owed) == generations


@pytest.mark.parametrize(("rows", "cannot_end"), [
    ("b d", True),
    # Native seed 121002: the child has ended, and its row was deleted, too.
    ("b e", True),
    ("b b2 d", False),
    ("b b2 e", False),
    # The other parent has no row yet: its own parent is still read.
    ("a2 b", False),
    # Below a split every child has this parent alone.
    ("a b c", False),
])  # fmt: skip
def test_java_never_ends_a_parent_of_a_merge_that_was_begun_while_the_other_one_has_no_row(rows, cannot_end):
    parents = {"a": (), "a2": (), "b": ("a",), "c": ("a",), "b2": ("a2",), "d": ("b", "b2"), "e": ("d",)}
    assert java_cannot_end("b", rows.split(), parents) is cannot_end


@pytest.mark.parametrize(
    ("owners", "max_leases", "by_java", "is_fair"),
    [
        (("w1", "w1", "w2", "w2"), None, True, True),
        (("w1", "w1", "w1", "w2"), None, True, False),
        (("w1", "w1", "w1", "w2"), None, False, True),
        (("w1", "w1", "w1", "dead"), None, False, False),
        # Seed 219002477254: the row of an ended lease waits for a child that has no checkpoint yet.
        (("w1", "w1", "w2", "w2", "ended"), 2, False, True),
        (("w1", "w1", "w2", "w2", "ended"), 3, False, False),
        (("w1", "w1", "w2", "w2", "ended"), None, False, False),
        (("w1", "w1", "w2", "w2", "ended"), 2, True, False),
        (("w1", "w1", "w2", "w2", "free"), 2, False, False),
        (("w1", "w1", "w2", "w2", "ended", "free"), 2, False, False),
    ],
)
def test_a_fleet_is_fairly_owned_as_far_as_its_leader_has_room(owners, max_leases, by_java, is_fair):
    rows = {
        str(n): row("SHARD_END" if who == "ended" else "7", leaseOwner={"S": who})
        for n, who in enumerate(owners)
    }
    for one in rows.values():
        if one["leaseOwner"]["S"] in ("ended", "free"):
            del one["leaseOwner"]
    assert is_fairly_owned(rows, {"w1", "w2"}, max_leases=max_leases, by_java=by_java) is is_fair


def test_a_host_says_why_its_worker_ends_while_the_stop_still_waits():
    """Seed 36232811280: a stop waited 22 seconds, and the checker missed the loss of the table."""
    failure = TableGone("the lease table is gone")
    with Simulation() as simulation:
        never = simulation.runtime("w1").event()
        worker = SimpleNamespace(
            worker_id="w1", initialized=True, failure=failure, start=int, stop=lambda: never.wait(22.0)
        )
        host = WorkerHost("w1", worker, simulation, lambda *_: None)
        simulation.sleep(1.0)
        assert (host.failure, host.is_over) == (failure, False)
        simulation.sleep(30.0)
        assert (host.failure, host.is_over) == (failure, True)


def test_a_sound_processor_comes_through_a_simulation():
    outcome = run_simulation(3, processor=processors.Sound)
    assert outcome.summary == "kept"
    assert outcome.figures.deliveries


def test_a_processor_may_checkpoint_by_hand_before_it_returns():
    outcome = run_simulation(3, off=NO_FAULTS, processor=processors.ByHand)
    assert outcome.summary == "kept"


def test_a_processor_that_never_gets_past_a_record_leaves_records_owed():
    outcome = run_simulation(3, off=NO_FAULTS, processor=processors.StumblesForEver)
    assert isinstance(outcome.broken, GuaranteeBroken)
    assert outcome.broken.guarantee is Guarantee.ALL_DELIVERED


def test_what_a_processor_raises_is_its_own_failure_and_is_tried_again_even_an_assertion():
    processors.StumblesOnce.seen.clear()
    outcome = run_simulation(3, off=NO_FAULTS, processor=processors.StumblesOnce)
    assert outcome.summary == "kept"
    assert len(processors.StumblesOnce.seen) > 10


def test_a_processor_that_mixes_up_its_shards_is_caught_at_its_checkpoint():
    processors.MixesShards.last.clear()
    outcome = run_simulation(3, off=NO_FAULTS, processor=processors.MixesShards)
    assert isinstance(outcome.broken, GuaranteeBroken)
    # Its checkpoint is refused, so the shard is handed back again and again and its records stay owed.
    assert outcome.broken.guarantee in (Guarantee.NO_CHURN, Guarantee.ALL_DELIVERED)


def test_a_processor_that_cannot_be_made_leaves_records_owed():
    outcome = run_simulation(3, off=NO_FAULTS, processor=processors.CannotBeMade)
    assert isinstance(outcome.broken, GuaranteeBroken)
    # Two such workers may also take the lease from each other before they should.
    assert outcome.broken.guarantee in (Guarantee.ALL_DELIVERED, Guarantee.BUDGETS)


def test_after_a_simulation_the_loggers_speak_as_before(caplog):
    """A logger remembers whether it may speak; what it learned while the simulation was silent must be forgotten."""

    class Asks(processors.Sound):
        def initialize(self, init):
            super().initialize(init)
            assert not logging.getLogger("pykcl.events").isEnabledFor(logging.ERROR)

    assert run_simulation(3, off=NO_FAULTS, processor=Asks).summary == "kept"
    assert logging.getLogger("pykcl.events").isEnabledFor(logging.ERROR)
