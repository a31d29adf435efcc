"""Every bug of the museum is caught, by the promise it breaks; and what catches it are the judges."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import museum
import pytest
import run
from click.testing import CliRunner
from museum import EXHIBITS, show
from museum_exhibit import NothingToPatch, Patch
from run import Found, known_seeds, learned, search, table

from pykcl.planning.lease_view import LeaseView
from pykcl.testing.simulation import Deadlock
from pykcl.testing.storm import Outcome, Promise, PromiseBroken
from pykcl.testing.storm.outcome import Figures
from pykcl.testing.storm.report import caught_bugs
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.shard_reader import Page

PAGE = Path(__file__).parents[2] / "docs" / "museum.md"
PROMISES = {promise: name for name in reversed(EXHIBITS) for promise in known_seeds()[name].values()}
"""One bug for each promise that is broken by some: the first."""
FURTHER = 60
"""Storms to try when the product has changed so that the known ones pass a bug by."""


@pytest.mark.filterwarnings("default:.*no longer:UserWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in PROMISES.values() else pytest.mark.slow) for name in EXHIBITS],
)
def test_a_bug_is_in_the_code_that_runs_and_is_caught_by_the_promise_it_breaks(name):
    known = [int(seed) for seed in known_seeds()[name]]
    for seed in chain(known, range(FURTHER)):
        showing = show(EXHIBITS[name], seed)
        assert showing.called
        assert all(showing.called.values()), f"never called: {showing.called}"
        if showing.verdict != "caught":
            continue
        if seed not in known:
            text = f"{name} is no longer caught by the storms {known}, but by {seed}. Do: tests/museum/run.py --relearn"
            warnings.warn(text, stacklevel=1)
        return
    pytest.fail(f"{name} ({EXHIBITS[name].what}) was not caught in {len(known) + FURTHER} storms")


def test_every_promise_is_broken_by_some_bug():
    caught = {promise for seeds in known_seeds().values() for promise in seeds.values()}
    assert {promise.name for promise in Promise} - caught == set()


def test_the_bugs_known_from_elsewhere_are_all_here():
    assert {f"B{number}" for number in range(1, 15)} <= EXHIBITS.keys()
    assert len([name for name in EXHIBITS if name.startswith("M")]) >= 16


def test_the_known_seeds_are_of_these_exhibits_and_name_promises_they_may_break():
    assert list(known_seeds()) == list(EXHIBITS)
    for name, seeds in known_seeds().items():
        assert all(seed.isdigit() for seed in seeds)
        assert set(seeds.values()) <= {promise.name for promise in EXHIBITS[name].caught_by}, name


def test_what_is_not_caught_any_more_loses_its_seeds_and_what_left_the_museum_its_place(tmp_path):
    found = {"B1": Found("B1", caught={7: "CONDITIONAL"}), "B2": Found("B2", cut_short=60)}
    known = learned({"B2": {"3": "ONE_OWNER"}, "B3": {"4": "CONDITIONAL"}, "B99": {"5": "STOP"}}, found)
    assert list(known) == list(EXHIBITS)
    assert (known["B1"], known["B2"], known["B3"]) == ({"7": "CONDITIONAL"}, {}, {"4": "CONDITIONAL"})
    page = tmp_path / "known.json"
    page.write_text('{"B1": {"7": "CONDITIONAL"}, "B2": {}, "B3": {"4": "CONDITIONAL"}}')
    assert caught_bugs(page) == "2 of 3"
    assert caught_bugs(tmp_path / "no_such.json") == "-"


def test_everything_is_as_before_when_a_bug_is_taken_out():
    owners = (HeldLease, LeaseWorker, LeaseView)
    before = [dict(vars(owner)) for owner in owners]
    for exhibit in EXHIBITS.values():
        with Patch() as patch:
            exhibit.put_in(patch)
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_bug_puts_something_else_where_the_function_was(name):
    class Noting(Patch):
        def replace(self, owner, name, make):
            originals.append((owner, name, vars(owner)[name]))
            super().replace(owner, name, make)

    originals = []
    with Noting() as patch:
        EXHIBITS[name].put_in(patch)
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


# -- the museum itself: exhibits that are none -----------------------------------------------------------------


def _harmless(patch):
    patch.replace(Page, "chunks", lambda chunks: lambda self, most: iter(list(chunks(self, most))))


def _gone(patch):
    patch.replace(LeaseView, "renamed_since", lambda original: original)


def _dies(*_, **__):
    raise KeyError("in a judge")


@pytest.fixture
def hung(monkeypatch):
    """Hang an exhibit of this kind up under the name of B11."""

    def hang(put_in):
        monkeypatch.setitem(EXHIBITS, "B11", replace(EXHIBITS["B11"], put_in=put_in))

    return hang


def _search(name="B11", *, blind=False):
    return search(name, [], 1, 600.0, blind)


def test_a_bug_that_changes_nothing_is_not_caught(hung):
    hung(_harmless)
    found = _search()
    assert not found.is_caught
    assert (found.caught, found.tries) == ({}, [])
    assert found.verdicts == {"kept": 1}
    assert found.called["Page.chunks"] > 0
    assert found.why_not == "of its storms 1 kept"


def test_a_bug_whose_function_is_gone_is_not_caught_and_told(hung):
    hung(_gone)
    found = _search()
    assert not found.is_caught
    assert "LeaseView has no function, method or property 'renamed_since' (any more)" in found.why_not


def test_a_bug_that_is_never_called_is_not_caught_even_if_something_is(monkeypatch):
    showing = museum.Showing("caught", Counter({"HeldLease.check": 0}), "NO_GAP")
    monkeypatch.setattr(run, "show", lambda *_, **__: showing)
    found = _search()
    assert not found.is_caught
    assert found.why_not == "put into the worker, but never called: HeldLease.check"


def test_a_storm_that_dies_with_a_bug_in_it_does_not_count_as_caught(monkeypatch):
    monkeypatch.setattr(museum, "run_storm", _dies)
    found = _search()
    assert not found.is_caught
    assert found.verdicts == {"crashed": 1}
    assert found.why_not == "of its storms 1 crashed; the last crash: seed 0: KeyError: 'in a judge'"


@pytest.mark.parametrize(("broken", "verdict"), [
    (PromiseBroken(Promise.NO_GAP, "x"), "caught"),
    (PromiseBroken(Promise.STOP, "x"), "another promise"),
    (Deadlock("x"), "crashed"),
    (None, "kept"),
])  # fmt: skip
def test_only_a_promise_of_the_exhibit_catches_it(monkeypatch, broken, verdict):
    storms = iter([broken, None])
    monkeypatch.setattr(museum, "run_storm", lambda *_, **__: _outcome(next(storms)))
    # A seed of its own: what the sound worker came to is remembered.
    showing = show(EXHIBITS["B11"], hash(verdict))
    assert showing.verdict == verdict
    assert showing.promise == ("NO_GAP" if verdict == "caught" else None)


@pytest.mark.parametrize("sound", [PromiseBroken(Promise.STOP, "x"), KeyError("in a judge")])
def test_a_storm_that_the_sound_worker_does_not_survive_is_no_evidence(monkeypatch, sound):
    def run_storm(*_, **__):
        answer = next(storms)
        if isinstance(answer, KeyError):
            raise answer
        return _outcome(answer)

    storms = iter([PromiseBroken(Promise.NO_GAP, "x"), sound])
    monkeypatch.setattr(museum, "run_storm", run_storm)
    showing = show(EXHIBITS["B11"], id(storms))
    assert (showing.verdict, showing.promise) == ("no evidence", None)


def _outcome(broken):
    return Outcome(0, "d", 1.0, 1, Counter(), Figures(), [], broken)


def test_without_judges_the_bug_is_at_work_the_storm_ends_and_nothing_is_caught():
    # No record is lost by this one, so that the simulation ends as early as one of the sound worker.
    seeing, blind = _search("B2"), _search("B2", blind=True)
    assert set(seeing.caught.values()) == {"COUNTER_BY_ONE"}
    assert seeing.is_caught
    assert (blind.caught, blind.is_caught, blind.trouble) == ({}, False, "")
    # Not because it was not there, nor because the storm broke off.
    assert blind.verdicts == {"kept": 1}
    assert blind.called
    assert all(blind.called.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_fails_when_the_judges_are_off_and_says_that_the_storms_were_kept():
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--only", "B11"]
    seeing = subprocess.run([*command, "--seeds", "2"], capture_output=True, text=True, check=False)
    blind = subprocess.run([*command, "--blind"], capture_output=True, text=True, check=False)
    assert (seeing.returncode, blind.returncode) == (0, 1)
    assert "NO_GAP" in seeing.stdout
    assert "not caught: 1 of 1: B11" in blind.stdout
    assert re.search(r"B11: of its storms \d+ kept$", blind.stdout, re.M)


def test_the_command_fails_for_a_bug_that_no_longer_fits_and_shows_the_others(monkeypatch):
    found = {
        "B1": Found("B1", [1], {0: "CONDITIONAL"}),
        "B2": Found("B2", trouble="has no function 'x' (any more)"),
    }
    monkeypatch.setattr(run, "_all", lambda *_: iter(found.values()))
    done = CliRunner().invoke(run.main, ["--only", "B1", "--only", "B2"])
    assert done.exit_code == 1
    assert "not caught: 1 of 2: B2\n  B2: has no function 'x' (any more)" in done.output
    assert "| B1 |" in done.output


def test_the_page_lists_every_bug_as_the_museum_has_it():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| [BM]\d+", line)]
    told = {row.split(" | ")[0].strip("| "): [cell.strip(" |") for cell in row.split(" | ")] for row in rows}
    assert told.keys() == EXHIBITS.keys()
    for name, exhibit in EXHIBITS.items():
        assert told[name][1:3] == [exhibit.what, exhibit.seen_in], name
        assert set(told[name][3].split(", ")) <= {promise.name for promise in exhibit.caught_by}, name


def test_the_median_counts_a_search_that_was_cut_short():
    assert Found("B1", [3, 1, 8]).seeds == "3"
    assert Found("B1", [3], cut_short=9).seeds == "3"
    assert Found("B1", cut_short=9).seeds == "> 9"
    assert "nothing" in "\n".join(table({"B1": Found("B1", cut_short=9)}))
