"""The same seed takes the same course, whatever process runs it; another seed or another fault takes another."""

import os
import subprocess
import sys

import pytest

from tests.simulation.__main__ import modes_left
from tests.simulation.course import Mode, run_simulation
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
from tests.simulation.runner import CHOSEN_BY_SEED, Job, run_job
from tests.simulation.seeds import NO_FAULTS

SEED = 7
_OTHER_PROCESS = "from tests.simulation.course import Mode, run_simulation; print(run_simulation({}).digest)"


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
    for mode in (Mode.POLICIES, Mode.NATIVE, Mode.ACKS):
        without = Job(SEED, modes=CHOSEN_BY_SEED - {mode})
        assert without.replay == f"python -m tests.simulation --seed 7 --no-{mode.value}"
    for mode in set(Mode) - {Mode.PLAIN, Mode.WINDOWS}:
        assert (
            Job(SEED, modes=frozenset({mode})).replay == f"python -m tests.simulation --seed 7 --{mode.value}"
        )
    plain = Job(SEED, modes=frozenset({Mode.PLAIN}))
    assert plain.replay == "python -m tests.simulation --seed 7 --no-policies --no-native --no-acks"
    one = run_job(Job(SEED, NO_FAULTS))
    assert one.kept
    assert one.digest == run_job(Job(SEED, NO_FAULTS)).digest
    totals = Totals()
    totals.add(one)
    assert totals.records == one.figures.records > 0


@pytest.mark.parametrize(
    ("mode", "every", "first"), [(Mode.POLICIES, 4, 3), (Mode.NATIVE, 6, 4), (Mode.ACKS, 12, 5)]
)
def test_some_simulations_have_a_mode_unless_a_processor_is_given_or_the_command_says_otherwise(
    mode, every, first
):
    assert [seed for seed in range(36) if Job(seed).mode is mode] == list(range(first, 36, every))
    assert Job(first, processor="shop:Orders").mode is Mode.PLAIN
    assert Job(first, modes=CHOSEN_BY_SEED - {mode}).mode is Mode.PLAIN
    for only in Mode:
        assert Job(first, modes=frozenset({only})).mode is only


@pytest.mark.parametrize(("options", "modes"), [
    ({}, CHOSEN_BY_SEED),
    ({Mode.POLICIES: False}, {Mode.PLAIN, Mode.NATIVE, Mode.ACKS}),
    ({Mode.POLICIES: False, Mode.NATIVE: False, Mode.ACKS: False}, {Mode.PLAIN}),
    ({Mode.ACKS: True, Mode.NATIVE: False}, {Mode.ACKS}),
    ({Mode.POLICIES: False, Mode.PUSHED: True}, {Mode.PUSHED}),
    ({Mode.PRODUCED: True}, {Mode.PRODUCED}),
    ({Mode.UNTIL: True}, {Mode.UNTIL}),
])  # fmt: skip
def test_the_command_line_leaves_some_modes_or_one(options, modes):
    said = {mode: None if mode in CHOSEN_BY_SEED else False for mode in Mode if mode is not Mode.PLAIN}
    assert modes_left({**said, **options}, None) == modes


def test_acks_have_faults_of_their_own_and_others_take_no_notice_of_them():
    without, acks = run_simulation(SEED), run_simulation(SEED, mode=Mode.ACKS)
    assert not AckFaults.always & without.injected.keys()
    assert {"F23.late", "F23.twice"} <= acks.injected.keys()
    assert run_simulation(SEED, mode=Mode.ACKS).digest == acks.digest
    assert run_simulation(SEED, off=AckFaults.always).digest == without.digest


def test_producers_take_the_same_course_with_the_same_seed_and_meet_faults_of_their_own():
    produced = run_simulation(SEED, mode=Mode.PRODUCED)
    assert run_simulation(SEED, mode=Mode.PRODUCED).digest == produced.digest
    assert OF_PRODUCERS.keys() & produced.injected.keys()
    assert (
        not run_simulation(SEED, mode=Mode.PRODUCED, off=frozenset(OF_PRODUCERS)).injected.keys()
        & OF_PRODUCERS.keys()
    )


def test_native_fleets_have_faults_of_their_own_and_others_take_no_notice_of_them():
    without, native = run_simulation(SEED), run_simulation(SEED, mode=Mode.NATIVE)
    assert not IN_NATIVE_FLEETS & without.injected.keys()
    assert IN_NATIVE_FLEETS & native.injected.keys()
    assert not NOT_IN_NATIVE_FLEETS & native.injected.keys()
    assert run_simulation(SEED, mode=Mode.NATIVE).digest == native.digest
    assert run_simulation(SEED, off=IN_NATIVE_FLEETS).digest == without.digest


@pytest.mark.slow
def test_a_host_whose_clock_is_minutes_off_changes_nothing_in_a_native_fleet():
    for seed in range(3, 60):
        if not NativeFaults(seed).has("F22.clock"):
            continue
        off = run_simulation(seed, mode=Mode.NATIVE)
        if off.injected["F22.clock"]:
            assert run_simulation(seed, mode=Mode.NATIVE, off=frozenset({"F22.clock"})).digest == off.digest
            return
    raise AssertionError("no simulation among these has a host whose clock is off")


def test_policies_have_faults_of_their_own_and_others_take_no_notice_of_them():
    without, policies = run_simulation(SEED), run_simulation(SEED, mode=Mode.POLICIES)
    assert not [name for name in without.injected if name in PolicyFaults.always]
    assert PolicyFaults.always & policies.injected.keys()
    assert run_simulation(SEED, mode=Mode.POLICIES).digest == policies.digest
    assert run_simulation(SEED, off=PolicyFaults.always).digest == without.digest
