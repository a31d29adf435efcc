"""Every bug of the mutants is caught, by the guarantee it breaks or by its test; and what catches it are the checkers."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykcl.handlers import filters
from pykcl.planning.lease_view import LeaseView
from pykcl.testing.runtime import Deadlock
from pykcl.testing.simulation import Guarantee, GuaranteeBroken, Outcome
from pykcl.testing.simulation.guarantees import Figures
from pykcl.worker import reading_place
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.lease_worker import LeaseWorker
from tests.mutants import __main__ as command
from tests.mutants import catalog
from tests.mutants.__main__ import Found, known_seeds, learned, search, table
from tests.mutants.catalog import MUTANTS, run_mutant, run_tests
from tests.mutants.mutant import NothingToPatch, Patch
from tests.simulation.report import caught_bugs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "about" / "verification.md"
SIMULATED = [name for name, mutant in MUTANTS.items() if not mutant.tests]
TESTED = [name for name, mutant in MUTANTS.items() if mutant.tests]
GUARANTEES = {guarantee: name for name in reversed(SIMULATED) for guarantee in known_seeds()[name].values()}
"""One bug for each guarantee that is broken by some: the first."""
FURTHER = 60
"""Simulations to try when the product has changed so that the known ones pass a bug by."""


@pytest.mark.filterwarnings("default:.*no longer:UserWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in GUARANTEES.values() else pytest.mark.slow) for name in SIMULATED],
)
def test_a_bug_is_in_the_code_that_runs_and_is_caught_by_the_guarantee_it_breaks(name):
    known = [int(seed) for seed in known_seeds()[name]]
    called: Counter[str] = Counter()
    for seed in chain(known, range(FURTHER)):
        run = run_mutant(MUTANTS[name], seed)
        assert run.called
        for function, calls in run.called.items():
            called[function] += calls
        if run.result != "caught":
            continue
        assert all(called.values()), f"never called: {called}"
        if seed not in known:
            text = f"{name} is no longer caught by the simulations {known}, but by {seed}. Do: python -m tests.mutants --relearn"
            warnings.warn(text, stacklevel=1)
        return
    pytest.fail(f"{name} ({MUTANTS[name].what}) was not caught in {len(known) + FURTHER} simulations")


@pytest.mark.parametrize("name", TESTED)
def test_a_bug_that_no_simulation_comes_by_makes_its_test_fail(name):
    found = search(name, [], 1, 600.0, False)
    assert found.is_caught, found.why_not
    assert found.tests == ", ".join(test.rpartition("::")[2] for test in MUTANTS[name].tests)


def test_every_bug_is_caught_either_by_guarantees_or_by_tests():
    assert [name for name, mutant in MUTANTS.items() if bool(mutant.tests) == bool(mutant.caught_by)] == []


def test_every_guarantee_is_broken_by_some_bug():
    caught = {guarantee for seeds in known_seeds().values() for guarantee in seeds.values()}
    assert {guarantee.name for guarantee in Guarantee} - caught == set()


def test_the_bugs_known_from_elsewhere_are_all_here():
    assert {f"B{number}" for number in range(1, 15)} <= MUTANTS.keys()
    assert len([name for name in MUTANTS if name.startswith("M")]) >= 16


def test_the_known_seeds_are_of_these_mutants_and_name_guarantees_they_may_break():
    assert list(known_seeds()) == SIMULATED
    for name, seeds in known_seeds().items():
        assert all(seed.isdigit() for seed in seeds)
        assert set(seeds.values()) <= {guarantee.name for guarantee in MUTANTS[name].caught_by}, name


def test_what_is_not_caught_any_more_loses_its_seeds_and_what_left_the_mutants_its_place(tmp_path):
    found = {"B1": Found("B1", caught={7: "CONDITIONAL"}), "B2": Found("B2", cut_short=60)}
    known = learned({"B2": {"3": "ONE_OWNER"}, "B3": {"4": "CONDITIONAL"}, "B99": {"5": "STOP"}}, found)
    assert list(known) == SIMULATED
    assert (known["B1"], known["B2"], known["B3"]) == ({"7": "CONDITIONAL"}, {}, {"4": "CONDITIONAL"})
    page = tmp_path / "known.json"
    page.write_text('{"B1": {"7": "CONDITIONAL"}, "B2": {}, "B3": {"4": "CONDITIONAL"}}')
    assert caught_bugs(page) == "2 of 3"
    assert caught_bugs(tmp_path / "no_such.json") == "-"


def test_everything_is_as_before_when_a_bug_is_taken_out():
    owners = (HeldLease, LeaseWorker, LeaseView)
    before = [dict(vars(owner)) for owner in owners]
    for mutant in MUTANTS.values():
        with Patch() as patch:
            mutant.apply(patch)
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.parametrize("name", MUTANTS)
def test_every_bug_puts_something_else_where_the_function_was(name):
    class Noting(Patch):
        def replace(self, owner, name, make):
            originals.append((owner, name, vars(owner)[name]))
            super().replace(owner, name, make)

    originals = []
    with Noting() as patch:
        MUTANTS[name].apply(patch)
        assert originals
        assert [f"{owner}.{name}" for owner, name, before in originals if vars(owner)[name] is before] == []
        assert len(patch.called) == len(originals)


@pytest.mark.parametrize("name", ["renamed_since", "__slots__"])
def test_a_bug_that_no_longer_fits_the_code_is_refused(name):
    with Patch() as patch, pytest.raises(NothingToPatch, match=name):
        patch.replace(LeaseView, name, lambda original: original)


def test_a_function_that_is_replaced_by_itself_is_refused():
    with (
        Patch() as patch,
        pytest.raises(NothingToPatch, match=r"HeldLease\.check was to be replaced by itself"),
    ):
        patch.replace(HeldLease, "check", lambda original: original)


# -- the mutants itself: mutants that are none -----------------------------------------------------------------


def _harmless(patch):
    patch.replace(
        reading_place,
        "batches_of",
        lambda batches_of: lambda *args, **kw: iter(list(batches_of(*args, **kw))),
    )


def _gone(patch):
    patch.replace(LeaseView, "renamed_since", lambda original: original)


def _dies(*_, **__):
    raise KeyError("in a checker")


@pytest.fixture
def hung(monkeypatch):
    """Hang a mutant of this kind up under the name of B11."""

    def hang(apply):
        monkeypatch.setitem(MUTANTS, "B11", replace(MUTANTS["B11"], apply=apply))

    return hang


def _search(name="B11", *, most=1, blind=False):
    return search(name, [], most, 600.0, blind)


def test_a_bug_that_changes_nothing_is_not_caught(hung):
    hung(_harmless)
    found = _search()
    assert not found.is_caught
    assert (found.caught, found.tries) == ({}, [])
    assert found.results == {"kept": 1}
    assert found.called["pykcl.worker.reading_place.batches_of"] > 0
    assert found.why_not == "of its simulations 1 kept"


def test_a_bug_whose_function_is_gone_is_not_caught_and_told(hung):
    hung(_gone)
    found = _search()
    assert not found.is_caught
    assert "LeaseView has no function, method or property 'renamed_since' (any more)" in found.why_not


def test_a_bug_that_is_never_called_is_not_caught_even_if_something_is(monkeypatch):
    run = catalog.MutantRun("caught", Counter({"HeldLease.check": 0}), "NO_GAP")
    monkeypatch.setattr(command, "run_mutant", lambda *_, **__: run)
    found = _search()
    assert not found.is_caught
    assert found.why_not == "put into the code, but never called: HeldLease.check"


def test_a_simulation_that_dies_with_a_bug_in_it_does_not_count_as_caught(monkeypatch):
    monkeypatch.setattr(catalog, "run_simulation", _dies)
    found = _search()
    assert not found.is_caught
    assert found.results == {"crashed": 1}
    assert found.why_not == "of its simulations 1 crashed; the last crash: seed 0: KeyError: 'in a checker'"


@pytest.mark.parametrize(("broken", "result"), [
    (GuaranteeBroken(Guarantee.NO_GAP, "x"), "caught"),
    (GuaranteeBroken(Guarantee.STOP, "x"), "another guarantee"),
    (Deadlock("x"), "crashed"),
    (None, "kept"),
])  # fmt: skip
def test_only_a_guarantee_of_the_mutant_catches_it(monkeypatch, broken, result):
    simulations = iter([broken, None])
    monkeypatch.setattr(catalog, "run_simulation", lambda *_, **__: _outcome(next(simulations)))
    # A seed of its own: what the sound worker came to is remembered.
    run = run_mutant(MUTANTS["B11"], hash(result))
    assert run.result == result
    assert run.guarantee == ("NO_GAP" if result == "caught" else None)


@pytest.mark.parametrize("sound", [GuaranteeBroken(Guarantee.STOP, "x"), KeyError("in a checker")])
def test_a_simulation_that_the_sound_worker_does_not_survive_is_no_evidence(monkeypatch, sound):
    def run_simulation(*_, **__):
        answer = next(simulations)
        if isinstance(answer, KeyError):
            raise answer
        return _outcome(answer)

    simulations = iter([GuaranteeBroken(Guarantee.NO_GAP, "x"), sound])
    monkeypatch.setattr(catalog, "run_simulation", run_simulation)
    run = run_mutant(MUTANTS["B11"], id(simulations))
    assert (run.result, run.guarantee) == ("no evidence", None)


def _reads_as_before(patch):
    patch.replace(filters, "read_json", partial)


def _cannot_read(patch):
    patch.replace(filters, "read_json", lambda _: _dies)


def _asserts_elsewhere(patch):
    def assert_it(*_, **__):
        raise AssertionError("of the code, and of no test")

    patch.replace(filters, "read_json", lambda _: assert_it)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("apply", "result"),
    [
        (_reads_as_before, "kept"),
        (_cannot_read, "crashed: KeyError: 'in a checker'"),
        (_asserts_elsewhere, "crashed: AssertionError: of the code, and of no test"),
    ],
)
def test_only_an_assertion_of_its_test_catches_a_mutant(apply, result):
    run = run_tests(replace(MUTANTS["M101"], apply=apply))
    assert (f"{run.result}: {run.details}".rstrip(": "), run.guarantee) == (result, None)
    assert all(run.called.values())


@pytest.mark.parametrize("apply", [_reads_as_before, MUTANTS["M101"].apply])
def test_a_test_that_is_gone_is_an_error_and_catches_nothing(monkeypatch, apply):
    there, gone = MUTANTS["M101"].tests[0], "tests/handlers/test_filters.py::test_renamed_since"
    monkeypatch.setitem(MUTANTS, "M101", replace(MUTANTS["M101"], apply=apply, tests=(there, gone)))
    found = _search("M101")
    assert not found.is_caught
    assert found.why_not.startswith(f"pytest cannot run {there} {gone}")


@pytest.mark.parametrize("sound", ["asserted", "KeyError: 'x'", "Skipped: x"])
def test_a_test_that_the_sound_code_does_not_pass_is_no_evidence(monkeypatch, sound):
    results = iter([sound, "asserted"])
    monkeypatch.setattr(catalog, "_run_pytest", lambda tests: {tests[0]: {"passed", next(results)}})
    run = catalog._without_and_with(MUTANTS["M101"])
    assert (run.result, run.guarantee) == ("no evidence", None)


def test_each_test_of_a_mutant_must_fail(monkeypatch):
    mutant = replace(MUTANTS["M101"], tests=("a", "b"))
    results = iter([{"a": {"passed"}, "b": {"passed"}}, {"a": {"passed", "asserted"}, "b": {"passed"}}])
    monkeypatch.setattr(catalog, "_run_pytest", lambda _: next(results))
    assert catalog._without_and_with(mutant).result == "kept"


def _outcome(broken):
    return Outcome(0, "d", 1.0, 1, Counter(), Figures(), [], broken)


@pytest.mark.slow
def test_without_checkers_the_bug_is_at_work_the_simulation_ends_and_nothing_is_caught():
    # No record is lost by this one, so that the simulation ends as early as one of the sound worker.
    most = 1 + min(map(int, known_seeds()["B2"]))
    seeing, blind = _search("B2", most=most), _search("B2", most=most, blind=True)
    assert set(seeing.caught.values()) == {"COUNTER_BY_ONE"}
    assert seeing.is_caught
    assert (blind.caught, blind.is_caught, blind.trouble) == ({}, False, "")
    # Not because it was not there, nor because the simulation broke off.
    assert blind.results == {"kept": most}
    assert blind.called
    assert all(blind.called.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_fails_when_the_checkers_are_off_and_says_that_the_simulations_were_kept():
    words = [sys.executable, "-m", "tests.mutants", "--only", "B11"]
    seeing = subprocess.run([*words, "--seeds", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    blind = subprocess.run([*words, "--blind"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (seeing.returncode, blind.returncode) == (0, 1)
    assert "NO_GAP" in seeing.stdout
    assert "not caught: 1 of 1: B11" in blind.stdout
    assert re.search(r"B11: of its simulations \d+ kept$", blind.stdout, re.M)


def test_the_command_fails_for_a_bug_that_no_longer_fits_and_shows_the_others(monkeypatch):
    found = {
        "B1": Found("B1", [1], {0: "CONDITIONAL"}),
        "B2": Found("B2", trouble="has no function 'x' (any more)"),
    }
    monkeypatch.setattr(command, "_all", lambda *_: iter(found.values()))
    done = CliRunner().invoke(command.main, ["--only", "B1", "--only", "B2"])
    assert done.exit_code == 1
    assert "not caught: 1 of 2: B2\n  B2: has no function 'x' (any more)" in done.output
    assert "| B1 |" in done.output


def test_the_page_lists_every_bug_as_the_mutants_has_it():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| [BM]\d+", line)]
    listed = {
        row.split(" | ")[0].strip("| "): [cell.strip(" |") for cell in row.split(" | ")] for row in rows
    }
    assert listed.keys() == MUTANTS.keys()
    for name, mutant in MUTANTS.items():
        assert listed[name][1:3] == [mutant.what, mutant.seen_in], name
        tests = {test.rpartition("::")[2] for test in mutant.tests}
        caught_by = {guarantee.name for guarantee in mutant.caught_by} | tests
        assert set(listed[name][3].split(", ")) <= caught_by, name


def test_the_median_counts_a_search_that_was_cut_short():
    assert Found("B1", [3, 1, 8]).seeds == "3"
    assert Found("B1", [3], cut_short=9).seeds == "3"
    assert Found("B1", cut_short=9).seeds == "> 9"
    assert "nothing" in "\n".join(table({"B1": Found("B1", cut_short=9)}))
