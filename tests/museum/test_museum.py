"""Every bug of the museum is caught, by the promise it breaks; and what catches it are the judges."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from itertools import chain
from pathlib import Path

import pytest
from museum import EXHIBITS, broken_promise, promise_broken_by, storm_with
from museum_exhibit import NothingToPatch, Patch
from run import KNOWN, Found, known_seeds, table

from pykcl.planning.lease_view import LeaseView
from pykcl.testing.storm import Promise
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.lease_worker import LeaseWorker

PAGE = Path(__file__).parents[2] / "docs" / "museum.md"
FURTHER = 60
"""Storms to try when the product has changed so that the known ones pass a bug by."""


@pytest.mark.filterwarnings("default:.*no longer:UserWarning")
@pytest.mark.parametrize("name", EXHIBITS)
def test_a_bug_is_in_the_code_that_runs_and_is_caught_by_the_promise_it_breaks(name):
    known = [int(seed) for seed in known_seeds()[name]]
    for seed in chain(known, range(FURTHER)):
        outcome, patch = storm_with(EXHIBITS[name], seed)
        assert patch.called
        assert all(patch.called.values()), f"never called: {patch.called}"
        if promise_broken_by(EXHIBITS[name], outcome) is None:
            continue
        if seed not in known:
            text = f"{name} is no longer caught by the storms {known}, but by {seed}. Do: tests/museum/run.py --relearn"
            warnings.warn(text, stacklevel=1)
        return
    pytest.fail(f"{name} ({EXHIBITS[name].what}) was not caught in {len(known) + FURTHER} storms")


def test_without_judges_nothing_is_caught():
    seed = int(next(iter(known_seeds()["B11"])))
    assert broken_promise(EXHIBITS["B11"], seed) == "NO_GAP"
    assert broken_promise(EXHIBITS["B11"], seed, blind=True) is None


def test_every_promise_is_broken_by_some_bug():
    caught = {promise for seeds in known_seeds().values() for promise in seeds.values()}
    assert {promise.name for promise in Promise} - caught == set()


def test_the_bugs_known_from_elsewhere_are_all_here():
    assert {f"B{number}" for number in range(1, 15)} <= EXHIBITS.keys()
    assert len([name for name in EXHIBITS if name.startswith("M")]) >= 16
    assert known_seeds().keys() == EXHIBITS.keys()


def test_everything_is_as_before_when_a_bug_is_taken_out():
    owners = (HeldLease, LeaseWorker, LeaseView)
    before = [dict(vars(owner)) for owner in owners]
    for exhibit in EXHIBITS.values():
        with Patch() as patch:
            exhibit.put_in(patch)
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.parametrize("name", ["renamed_since", "__slots__"])
def test_a_bug_that_no_longer_fits_the_code_is_refused(name):
    with Patch() as patch, pytest.raises(NothingToPatch, match=name):
        patch.replace(LeaseView, name, lambda original: original)


def test_the_command_fails_when_the_judges_are_off():
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--only", "B11"]
    seeing = subprocess.run([*command, "--seeds", "2"], capture_output=True, text=True, check=False)
    blind = subprocess.run([*command, "--blind"], capture_output=True, text=True, check=False)
    assert (seeing.returncode, blind.returncode) == (0, 1)
    assert "NO_GAP" in seeing.stdout
    assert "not caught: 1 of 1: B11" in blind.stdout


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
    assert json.loads(KNOWN.read_text("utf-8")) == known_seeds()
