"""The library of an owner, and the marks of owners in every view."""

from itertools import combinations
from types import SimpleNamespace

import pytest
from fleet_table import JAVA, FleetTable, ended, lease, note, shard
from hypothesis import given
from hypothesis import strategies as st

from pykcl.cli.leases import lease_answer
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease_item import to_item
from pykcl.operate.snapshot import Sampler, snapshot_of
from pykcl.operate.states import (
    COLOURS,
    MARKS,
    NO_MARKS,
    NOBODY,
    SHAPES,
    has_javas_form,
    mark_of,
    marks_among,
    owner_kinds,
)
from pykcl.ui.poller import Fleet, FleetPoller
from pykcl.ui.state_store import Rates, StateStore
from pykcl.ui.view import places_of


def kinds(*leases, foreign=(), renewed=()):
    view = snapshot_of([*map(to_item, leases), *foreign])
    return {owner: kind.kind for owner, kind in owner_kinds(view, renewed).items()}


METRICS = {"leaseKey": {"S": "worker-7"}, "entityType": {"S": "WORKER_METRIC_STATS"}}


def test_the_note_of_pykcl_counts_only_while_it_names_the_owner():
    assert kinds(lease(0, "w1", metadata=note("w1"))) == {"w1": "pykcl"}
    assert kinds(lease(0, "w2", metadata=note("w1"))) == {"w2": "unknown"}


def test_a_name_of_javas_form_alone_proves_nothing_nor_does_an_ending_alone():
    assert kinds(lease(0, JAVA)) == {JAVA: "unknown"}
    assert kinds(ended(0, 1, owner="worker-7")) == {"worker-7": "unknown"}


def test_a_name_of_javas_form_on_an_ending_as_java_writes_it_is_java():
    assert kinds(ended(0, 1, owner=JAVA), lease(1, JAVA)) == {JAVA: "Java"}
    bent = ended(0, 1, owner=JAVA).with_(checkpoint=Checkpoint("SHARD_END", 3))
    assert kinds(bent) == {JAVA: "unknown"}
    assert kinds(ended(0, owner=JAVA)) == {JAVA: "unknown"}


def test_an_owner_that_goes_on_renewing_an_ended_lease_is_java_by_whatever_name(table, clock):
    table.put(ended(0, 1, owner="worker-7"), lease(1, "worker-7"))
    sampler = table.sampler()
    sampler.poll()
    table.renew(0, 1)
    found = sampler.poll()
    assert found.renewed_after_end == {shard(0)}
    assert owner_kinds(found.snapshot, found.renewed_after_end)["worker-7"].kind == "Java"


def test_an_ending_that_is_just_being_written_is_no_renewal_of_an_ended_lease(table):
    table.put(lease(0, "worker-7"))
    sampler = table.sampler()
    sampler.poll()
    table.put(ended(0, 1, owner="worker-7", counter=6))
    assert sampler.poll().renewed_after_end == frozenset()


def test_metrics_of_kcl_3x_under_the_owners_name_are_java():
    assert kinds(lease(0, "worker-7"), foreign=[METRICS]) == {"worker-7": "Java"}
    assert kinds(lease(0, "worker-8"), foreign=[METRICS]) == {"worker-8": "unknown"}
    other = {"leaseKey": {"S": "worker-7"}, "entityType": {"S": "STREAM"}}
    assert kinds(lease(0, "worker-7"), foreign=[other]) == {"worker-7": "unknown"}


def test_a_follower_of_pykcl_reports_metrics_and_renews_ended_leases_and_is_pykcl_all_the_same():
    mine = {"metadata": note(JAVA)}
    leases = [lease(0, JAVA, **mine), ended(1, 2, owner=JAVA, **mine)]
    metrics = {**METRICS, "leaseKey": {"S": JAVA}}
    assert kinds(*leases, foreign=[metrics], renewed=[shard(1)]) == {JAVA: "pykcl"}


def test_a_worker_of_pykcl_that_hands_its_only_lease_over_stays_pykcl():
    handed = lease(0, JAVA, checkpoint_owner="worker-7", metadata=note("worker-7"))
    rows = [{**METRICS, "leaseKey": {"S": name}} for name in (JAVA, "worker-7")]
    assert kinds(handed, foreign=rows) == {JAVA: "Java", "worker-7": "pykcl"}


def test_evidence_both_ways_is_unknown_and_says_so():
    rows = [lease(0, "worker-7", metadata=note("worker-7")), ended(1, 2, owner="worker-7")]
    kind = owner_kinds(snapshot_of(map(to_item, rows)), [shard(1)])["worker-7"]
    assert kind.kind == "unknown"
    assert "share" in kind.why


@pytest.mark.parametrize(
    ("name", "is_java"),
    [
        (JAVA, True),
        (JAVA.partition(":")[2], True),
        ("host:17:3f2a9b6c1d0e", False),
        (JAVA.upper(), False),
        ("ip-10-0-1-7:5a0f3c7e-1d2b-1c3d-9e4f-0123456789ab", False),
        ("", False),
    ],
)
def test_javas_form_is_a_random_uuid_with_or_without_a_host(name, is_java):
    assert has_javas_form(name) is is_java


def test_an_owner_has_the_same_mark_everywhere_and_nobody_has_none_of_them():
    assert mark_of("w1") == mark_of("w1")
    assert mark_of(None) == NOBODY
    marks = {mark_of(f"worker-{number}") for number in range(2000)}
    assert len(marks) == len(COLOURS) * len(SHAPES)
    assert all(0 <= part <= 255 for mark in marks for part in mark.rgb)


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
        answer = lease_answer(target, sampler.poll(), before=marks)
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
