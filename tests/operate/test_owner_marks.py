"""Colours and shapes of owners: no two alike while there are enough, and nobody's changes while it is in sight."""

from itertools import combinations
from types import SimpleNamespace

from fleet_table import FleetTable, lease
from hypothesis import given
from hypothesis import strategies as st

from pykcl.cli.lease_tables import lease_answer
from pykcl.operate.owner_marks import MARKS, NO_MARKS, NOBODY, mark_of, marks_among
from pykcl.operate.sampling import Sampler
from pykcl.ui.poller import Fleet, FleetPoller
from pykcl.ui.state_store import Rates, StateStore
from pykcl.ui.view import places_of

CROWD = [f"worker-{number}" for number in range(400)]
TWINS = next(pair for pair in combinations(CROWD, 2) if mark_of(pair[0]) == mark_of(pair[1]))
"""Two names that come to the same mark; the first is the earlier in the alphabet, too."""
FIRST, SECOND = sorted(TWINS)
owners = st.lists(st.sampled_from(CROWD), unique=True, max_size=len(MARKS))
crowds = st.lists(st.lists(st.sampled_from(CROWD[:120]), max_size=90), max_size=6)


def told(marks, names):
    return {name: marks.of(name) for name in names}


def test_there_are_names_that_come_to_the_same_mark():
    assert mark_of(FIRST) == mark_of(SECOND)
    assert len(set(MARKS)) == len(MARKS) == 56


@given(owners)
def test_owners_seen_together_have_marks_of_their_own_however_they_are_listed(names):
    marks = marks_among(names)
    assert len({marks.of(name) for name in names}) == len(names)
    assert told(marks_among(reversed(names)), names) == told(marks, names)
    alone = [name for name in names if [mark_of(one) for one in names].count(mark_of(name)) == 1]
    assert all(marks.of(name) == mark_of(name) for name in alone), "nobody else wants it"


@given(crowds)
def test_who_stays_in_sight_keeps_its_mark_and_no_two_share_one(looks):
    marks, before = NO_MARKS, set()
    for look in looks:
        after = marks_among(look, marks)
        visible = set(look)
        if len(visible) <= len(MARKS):
            assert len({after.of(name) for name in visible}) == len(visible)
            if len(before) <= len(MARKS):
                assert told(after, before & visible) == told(marks, before & visible)
        marks, before = after, visible
        assert len(marks.by_owner) <= max(len(MARKS), len(visible)), "who is gone is not remembered for ever"


def test_who_comes_later_takes_the_next_mark_whichever_name_it_has():
    marks = marks_among([FIRST], marks_among([SECOND]))
    assert marks_among([FIRST, SECOND], marks).of(SECOND) == mark_of(SECOND)
    assert marks_among([FIRST, SECOND]).of(FIRST) == mark_of(FIRST)
    moved = marks_among([FIRST, SECOND]).of(SECOND)
    assert moved.colour != mark_of(SECOND).colour
    assert moved.shape != mark_of(SECOND).shape


def test_who_is_gone_for_a_while_finds_its_mark_again():
    marks = marks_among([FIRST])
    marks = marks_among([SECOND], marks)
    assert marks.of(SECOND) != mark_of(SECOND), "the other is in the charts still"
    marks = marks_among([FIRST, SECOND], marks)
    assert marks.of(FIRST) == mark_of(FIRST)


def test_the_longest_gone_gives_way_where_marks_run_out():
    many = CROWD[: len(MARKS)]
    marks = marks_among(many[:1])
    marks = marks_among(many, marks)
    marks = marks_among(many[1:], marks)
    marks = marks_among([*many[1:], "newcomer"], marks)
    assert len({marks.of(name) for name in [*many[1:], "newcomer"]}) == len(MARKS)
    assert many[0] not in marks.by_owner


def test_more_owners_than_marks_share_them_and_nobody_is_none_of_them():
    marks = marks_among([*CROWD, None, ""])
    assert {marks.of(name) for name in CROWD} == set(MARKS)
    assert marks.of(None) == marks.of("") == NOBODY
    assert marks.of("never seen") == mark_of("never seen")


def test_the_page_and_leases_list_give_the_same_marks(clock):
    table = FleetTable(clock)
    table.put(lease(0, SECOND), lease(1, "someone"))
    page = FleetPoller(
        Fleet(application="orders-app", failover=10.0), table.scanner, clock, StateStore(clock), rates=Rates(asks_workers=False)
    )  # fmt: skip
    target = SimpleNamespace(table="orders-app", stream_name="orders", failover=3.0)
    sampler, marks = Sampler(table.scanner.scan, clock), NO_MARKS
    for change in (None, lease(2, FIRST), lease(3, "another"), lease(1, None)):
        clock.now += 1
        if change is not None:
            table.put(change)
        page.step()
        answer = lease_answer(target, sampler.look(), before=marks)
        marks = answer.marks
        there = page.memory.whole()[1]["owners"]
        for row in answer.rows:
            owner = row["owner"]
            assert row["mark"] == marks.of(owner)
            if owner is not None:
                on_page = {part: there[owner][part] for part in ("colour", "shape")}
                assert on_page == places_of(marks.of(owner))
        seen = {row["owner"] for row in answer.rows}
        assert len({marks.of(owner) for owner in seen}) == len(seen)
        assert marks.of(SECOND) == mark_of(SECOND), "who comes later takes another"


def test_events_of_the_page_name_owners_by_the_marks_they_have(clock):
    table = FleetTable(clock)
    table.put(lease(0, FIRST), lease(1, "someone"))
    page = FleetPoller(
        Fleet(application="orders-app", failover=10.0), table.scanner, clock, StateStore(clock), rates=Rates(asks_workers=False)
    )  # fmt: skip
    page.step()
    table.put(lease(1, SECOND, counter=6))
    page.step()
    whole = page.memory.whole()[1]
    (event,) = [one for one in whole["events"] if one["kind"] == "taken over"]
    now = whole["owners"][SECOND]
    assert (event["after"]["colour"], event["after"]["shape"]) == (now["colour"], now["shape"])
    assert now["colour"] != whole["owners"][FIRST]["colour"]
