"""The leader is the one whom Java's own class elects: fixtures/election.json holds its answers (election_vectors.py)."""

import json
import os
import shutil
from random import Random

import pytest
from election_vectors import CLASSPATHS, FIXTURE, ask_java, classpaths, dump, fleets, rows
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.lease import ForeignRow, UnreadableRow
from pykcl.model.lease_writes import parse_row
from pykcl.planning.leader import JavaRandom, is_leader, leader, owners_of

JAVA = json.loads(FIXTURE.read_text("ascii"))
FLEETS = [(fleet["owners"], fleet["leader"]) for fleet in JAVA["fleets"]]
names = st.text(max_size=5) | st.sampled_from(["a", "\ue000", "\U00010000"])


def owners_in(rows):
    return [owner for owner in rows if owner is not None]


def test_the_leader_of_every_fleet_is_the_one_java_elects():
    for owners, elected in FLEETS:
        assert leader(owners_in(owners)) == elected, owners


def test_forty_sizes_and_two_hundred_random_fleets_were_asked_about_of_three_versions():
    assert JAVA["asked"] == ["2.7.2", "3.1.3", "3.5.1"]
    assert [len(owners) for owners, _ in FLEETS[:40]] == list(range(1, 41))
    assert len(FLEETS) >= 240
    assert [owners for owners, _ in FLEETS] == fleets()


def test_the_fleets_tell_apart_what_sorts_shuffles_or_counts_otherwise():
    """Each of these would be a plausible mistake; at least ten of the fleets see it."""

    def first(key=None, seed=1947, drop=lambda owner: False):
        def elect(owners):
            found = sorted({owner for owner in owners if not drop(owner)}, key=key)
            JavaRandom(seed).shuffle(found)
            return found[0] if found else None

        return elect

    mistakes = {
        "code points": first(),
        "case": first(lambda name: (name.casefold(), name)),
        "UTF-8": first(lambda name: name.encode()),
        "seed": first(lambda name: name.encode("utf-16-be"), seed=1974),
        "empty": first(lambda name: name.encode("utf-16-be"), drop=lambda owner: owner == ""),
        "stripped": first(lambda name: name.encode("utf-16-be"), drop=lambda owner: not owner.strip()),
        "little endian": first(lambda name: name.encode("utf-16-le")),
    }
    for mistake, elect in mistakes.items():
        seen = sum(elect(owners_in(owners)) != elected for owners, elected in FLEETS)
        assert seen >= 10, f"{mistake}: {seen}"


def test_random_numbers_are_those_of_java_util_random():
    for run in JAVA["random"]:
        random = JavaRandom(run["seed"])
        assert [random.next_int(bound) for bound in run["bounds"]] == run["numbers"], run["seed"]


def test_some_of_those_numbers_came_after_a_rejected_one():
    """Otherwise the rejection loop would be seen by nobody."""

    class Unfair(JavaRandom):
        def next_int(self, bound):
            return self._next() % bound if bound & (bound - 1) else super().next_int(bound)

    def numbers(run):
        random = Unfair(run["seed"])
        return [random.next_int(bound) for bound in run["bounds"]]

    assert sum(numbers(run) != run["numbers"] for run in JAVA["random"]) >= 3


@pytest.mark.parametrize("bound", [0, -1, 2**31])
def test_a_bound_that_is_no_positive_java_int_is_refused(bound):
    with pytest.raises(ValueError, match="bound"):
        JavaRandom(1).next_int(bound)


def test_the_owner_of_each_row_is_the_one_java_reads():
    """Where Java cannot read the row it elects nobody, so whatever is counted there contradicts no one."""
    assert [one["row"] for one in JAVA["rows"]] == rows()
    kinds = set()
    for one in JAVA["rows"]:
        parsed = parse_row(one["row"])
        kinds.add((type(parsed), one["readable"]))
        if one["readable"]:
            expected = set() if one["owner"] is None else {one["owner"]}
            assert owners_of([parsed]) == expected, one
    assert (UnreadableRow, True) in kinds, "no row that Java alone understands"
    assert (UnreadableRow, False) in kinds, "no row that nobody understands"


def test_rows_that_are_no_leases_elect_nobody():
    state = {"leaseKey": {"S": "w9"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "leaseOwner": {"S": "w9"}}
    parsed = parse_row(state)
    assert isinstance(parsed, ForeignRow)
    assert owners_of([parsed]) == set()


def test_without_owners_everybody_leads():
    assert leader([]) is None
    assert is_leader("anybody", [])


def test_exactly_one_of_the_owners_leads_and_nobody_else():
    owners = [f"w{number}" for number in range(9)]
    assert sum(is_leader(owner, owners) for owner in owners) == 1
    assert not is_leader("without a lease", owners)


def test_a_lone_surrogate_is_sorted_like_any_other_code_unit():
    assert leader(["\ud800"]) == "\ud800"
    assert leader(["\ue000", "\ud800"]) == leader(["b", "a"]).translate({97: "\ud800", 98: "\ue000"})


@given(st.lists(names, min_size=1), st.integers())
def test_neither_the_order_nor_the_number_of_rows_matters(owners, seed):
    again = owners * 2
    Random(seed).shuffle(again)
    assert leader(again) == leader(owners)
    assert leader(owners) in owners


def _versions():
    """{version: class path} of the Java to be asked."""
    asked = classpaths(os.environ.get(CLASSPATHS, ""))
    lacking = (
        "there is no jshell"
        if shutil.which("jshell") is None
        else f"{CLASSPATHS} is not set"
        if not asked
        else None
    )
    if lacking:
        pytest.skip(f"ELECTION NOT COMPARED WITH JAVA AFRESH, ONLY WITH {FIXTURE.name}: {lacking}")
    return asked


@pytest.mark.timeout(600)
def test_java_still_answers_as_the_fixture_says():
    for version, classpath in _versions().items():
        answers = ask_java(classpath)
        assert dump(answers) == dump({name: JAVA[name] for name in answers}), version
