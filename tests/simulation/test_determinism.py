"""The same seed takes the same course, whatever process runs it; another seed or another fault takes another."""

import os
import subprocess
import sys

import pytest

from tests.simulation.course import run_simulation
from tests.simulation.faults import (
    IN_NATIVE_FLEETS,
    KINDS,
    NOT_IN_NATIVE_FLEETS,
    OF_PRODUCERS,
    AckFaults,
    FleetFaults,
    NativeFaults,
    PolicyFaults,
)
from tests.simulation.report import Totals
from tests.simulation.runner import Job, run_job
from tests.simulation.seeds import NO_FAULTS

SEED = 7
_OTHER_PROCESS = "from tests.simulation.course import run_simulation; print(run_simulation({}).digest)"


def test_the_same_seed_takes_the_same_course_in_every_process_and_another_seed_another():
    here = run_simulation(SEED)
    assert run_simulation(SEED).digest == here.digest
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS.format(SEED)],
        env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == here.digest
    assert run_simulation(SEED + 1).digest != here.digest


@pytest.mark.slow
def test_leaving_out_what_did_not_happen_changes_nothing_and_what_mattered_something():
    full = run_simulation(SEED)
    absent = next(name for name in KINDS if not full.injected[name])
    assert run_simulation(SEED, off=frozenset({absent})).digest == full.digest
    assert run_simulation(SEED, off=NO_FAULTS).digest != full.digest


@pytest.mark.slow
def test_a_wall_clock_that_jumps_changes_nothing():
    for seed in range(3, 60):
        if not FleetFaults(seed).has("F4.wall"):
            continue
        jumping = run_simulation(seed)
        if jumping.injected["F4.wall"]:
            assert run_simulation(seed, off=frozenset({"F4.wall"})).digest == jumping.digest
            return
    raise AssertionError("no simulation among these lets a wall clock jump")


def test_leaving_one_kind_out_moves_no_other():
    alone, beside = (
        FleetFaults(SEED, everything=True),
        FleetFaults(SEED, everything=True, off=frozenset({"F1"})),
    )
    for name in KINDS:
        if name != "F1":
            assert [alone.happens(name) for _ in range(50)] == [beside.happens(name) for _ in range(50)]
    assert not beside.has("F1")


def test_a_replay_tells_the_same_digest_and_its_command_names_every_option():
    job = Job(SEED, frozenset({"F1", "F6.take"}), full=True, processor="shop:Orders")
    assert job.replay == "python -m tests.simulation --seed 7 --full --off F1,F6.take --processor shop:Orders"
    assert Job(SEED, policies=False).replay == "python -m tests.simulation --seed 7 --no-policies"
    assert Job(SEED, policies=True).replay == "python -m tests.simulation --seed 7 --policies"
    one = run_job(Job(SEED, NO_FAULTS))
    assert one.kept
    assert one.digest == run_job(Job(SEED, NO_FAULTS)).digest
    totals = Totals()
    totals.add(one)
    assert totals.records == one.figures.records > 0


def test_every_fourth_simulation_has_policies_unless_a_processor_is_given_or_the_command_says_otherwise():
    assert [seed for seed in range(12) if Job(seed).has_policies] == [3, 7, 11]
    assert not Job(3, processor="shop:Orders").has_policies
    assert not Job(3, policies=False).has_policies
    assert Job(4, policies=True).has_policies


def test_every_sixth_simulation_is_of_a_native_fleet_and_none_of_these_has_policies():
    assert [seed for seed in range(24) if Job(seed).is_native] == [4, 10, 16, 22]
    assert not [seed for seed in range(24) if Job(seed).is_native and Job(seed).has_policies]
    assert not Job(4, processor="shop:Orders").is_native
    assert not Job(4, native=False).is_native
    assert not Job(4, policies=True).is_native
    assert Job(3, native=True).is_native
    assert not Job(3, native=True).has_policies
    assert Job(SEED, native=True).replay == "python -m tests.simulation --seed 7 --native"
    assert Job(SEED, native=False).replay == "python -m tests.simulation --seed 7 --no-native"


def test_every_twelfth_simulation_has_acks_and_none_of_these_is_of_another_kind():
    assert [seed for seed in range(36) if Job(seed).has_acks] == [5, 17, 29]
    assert not [
        seed for seed in range(36) if Job(seed).has_acks and (Job(seed).has_policies or Job(seed).is_native)
    ]
    assert not Job(5, processor="shop:Orders").has_acks
    assert not Job(5, acks=False).has_acks
    assert not Job(5, policies=True).has_acks
    assert not Job(5, native=True).has_acks
    assert Job(4, acks=True).has_acks
    assert not Job(4, acks=True).is_native
    assert not Job(3, acks=True).has_policies
    for seed in (3, 4, 5):
        pushed = Job(seed, pushed=True)
        assert not any((pushed.has_policies, pushed.is_native, pushed.has_acks))
        produced = Job(seed, produced=True)
        assert not any((produced.has_policies, produced.is_native, produced.has_acks))
    assert Job(SEED, produced=True).replay == "python -m tests.simulation --seed 7 --produced"
    assert Job(SEED, acks=True).replay == "python -m tests.simulation --seed 7 --acks"
    assert Job(SEED, acks=False).replay == "python -m tests.simulation --seed 7 --no-acks"


def test_acks_have_faults_of_their_own_and_others_take_no_notice_of_them():
    without, acks = run_simulation(SEED), run_simulation(SEED, acks=True)
    assert not AckFaults.always & without.injected.keys()
    assert {"F23.late", "F23.twice"} <= acks.injected.keys()
    assert run_simulation(SEED, acks=True).digest == acks.digest
    assert run_simulation(SEED, off=AckFaults.always).digest == without.digest


def test_producers_take_the_same_course_with_the_same_seed_and_meet_faults_of_their_own():
    produced = run_simulation(SEED, produced=True)
    assert run_simulation(SEED, produced=True).digest == produced.digest
    assert OF_PRODUCERS.keys() & produced.injected.keys()
    assert (
        not run_simulation(SEED, produced=True, off=frozenset(OF_PRODUCERS)).injected.keys()
        & OF_PRODUCERS.keys()
    )


def test_native_fleets_have_faults_of_their_own_and_others_take_no_notice_of_them():
    without, native = run_simulation(SEED), run_simulation(SEED, native=True)
    assert not IN_NATIVE_FLEETS & without.injected.keys()
    assert IN_NATIVE_FLEETS & native.injected.keys()
    assert not NOT_IN_NATIVE_FLEETS & native.injected.keys()
    assert run_simulation(SEED, native=True).digest == native.digest
    assert run_simulation(SEED, off=IN_NATIVE_FLEETS).digest == without.digest


@pytest.mark.slow
def test_a_host_whose_clock_is_minutes_off_changes_nothing_in_a_native_fleet():
    for seed in range(3, 60):
        if not NativeFaults(seed).has("F22.clock"):
            continue
        off = run_simulation(seed, native=True)
        if off.injected["F22.clock"]:
            assert run_simulation(seed, native=True, off=frozenset({"F22.clock"})).digest == off.digest
            return
    raise AssertionError("no simulation among these has a host whose clock is off")


def test_policies_have_faults_of_their_own_and_others_take_no_notice_of_them():
    without, policies = run_simulation(SEED), run_simulation(SEED, policies=True)
    assert not [name for name in without.injected if name in PolicyFaults.always]
    assert PolicyFaults.always & policies.injected.keys()
    assert run_simulation(SEED, policies=True).digest == policies.digest
    assert run_simulation(SEED, off=PolicyFaults.always).digest == without.digest
