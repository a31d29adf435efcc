"""planning.assignment_decider: who counts as a worker, what is assigned and what moves; beside decisions of Java."""

import json
import math
from random import Random

import pytest
from assignment_vectors import FIXTURE, RECORDED, decided, result_of, tables

from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.fleet_rows import WorkerMetrics
from pykcl.model.lease import Lease
from pykcl.planning.assignment_decider import (
    AssignmentKind,
    AssignmentMemory,
    AssignmentReason,
    AssignmentSettings,
    HandOver,
    Strategy,
    active_workers,
    decide,
    give_left,
    is_valid,
    living,
    silent_workers,
)

NOW = 1_800_000_000
BY_COUNT = AssignmentSettings(strategy=Strategy.LEASE_COUNT_BASED)
NO_BALANCE = AssignmentMemory(runs=1)


def lease(key, owner=None, throughput=None, **more):
    return Lease(f"shardId-{key}", Checkpoint("10"), owner=owner, counter=5, throughput=throughput, **more)


def idle(*names, at=NOW):
    """Reports of workers that measure nothing."""
    return [WorkerMetrics(name, at) for name in names]


def busy(name, cpu, limit=100.0):
    return WorkerMetrics(name, NOW, {"C": (float(cpu),)}, {"C": (limit,)})


def run(leases, metrics, *, expired=(), memory=AssignmentMemory(), settings=AssignmentSettings(), **more):  # noqa: B008
    more = {"now": NOW, "rng": Random(1), **more}
    keys = {f"shardId-{key}" for key in expired}
    return decide(leases, metrics, expired=keys, memory=memory, settings=settings, **more)


def given(decision):
    return {one.lease_key.removeprefix("shardId-"): one.new_owner for one in decision.assignments}


def silent(reports, leases, expired=(), untouched=(), before=None):
    """The silent workers. expired, untouched: last parts of the keys of leases."""
    keys = {
        "expired": {f"shardId-{key}" for key in expired},
        "untouched": {f"shardId-{key}" for key in untouched},
    }
    return silent_workers(reports, leases, **keys, before=before or {})


def test_a_worker_all_of_whose_leases_have_expired_is_given_none_though_its_report_is_young():
    leases = [lease("1", "dead"), lease("2", "dead"), lease("3", "late"), lease("4", "late")]
    reports = idle("dead", "late", "new")
    found = silent(reports, leases, expired="123")
    assert found == {"dead": NOW}
    assert living(reports, found) == idle("late", "new")
    # Java leaves them with it for a minute, as it has the most room.
    decision = run(leases[:2], living(reports[:1] + reports[2:], found), expired=("1", "2"))
    assert set(given(decision).values()) == {"new"}


def test_a_silent_worker_stays_so_when_others_have_its_leases_until_it_reports_again():
    reports, before = idle("dead", "new"), {"dead": NOW}
    leases = [lease("1", "new", 10.0), lease("2", "new", 10.0)]
    assert silent(reports, leases, before=before) == before
    # Otherwise the next balancing would take a lease from the one that lives.
    assert given(run(leases, reports))
    assert not given(run(leases, living(reports, before)))
    # A lease that was being handed over to it, and that it cannot have found yet, is no sign of life.
    assert silent(reports, [*leases, lease("3", "dead")], untouched="3", before=before) == before
    assert silent(idle("dead", at=NOW + 30) + reports[1:], leases, before=before) == {}


def test_a_silent_worker_that_works_on_a_lease_again_is_alive():
    leases = [lease("1", "late"), lease("2", "new")]
    assert silent(idle("late", "new"), leases, before={"late": NOW}) == {}
    # One that has withdrawn its report is forgotten.
    assert silent(idle("new"), leases[1:], before={"late": NOW}) == {}


def test_a_lease_that_a_worker_has_not_worked_on_yet_says_nothing_of_its_life():
    leases = [lease("1", "dead"), lease("2", "dead"), lease("3", "new")]
    assert silent(idle("dead", "new"), leases, expired="1", untouched="23") == {"dead": NOW}
    # Nobody has found it for two failover times.
    assert silent(idle("new", "other"), leases[2:], expired="3", untouched="23") == {"new": NOW}


def test_where_every_worker_has_only_expired_leases_their_reports_decide():
    reports = idle("a", "b")
    found = silent(reports, [lease("1", "a"), lease("2", "b")], expired="12")
    assert found == {"a": NOW, "b": NOW}
    assert living(reports, found) == reports


# -- Java's decisions --------------------------------------------------------------------------------------------

JAVA = json.loads(FIXTURE.read_text("utf-8"))


@pytest.mark.parametrize("entry", JAVA, ids=lambda entry: str(entry["table"]["seed"]))
def test_c17_we_can_decide_as_java_does_and_in_no_other_way(entry):
    table, rng = entry["table"], Random(7)
    ours = {json.dumps(result_of(table, decided(table, rng, shuffled=True))) for _ in range(150)}
    assert ours == set(map(json.dumps, entry["results"]))


def test_the_recorded_decisions_are_of_every_kind():
    assert len(JAVA) == len(RECORDED)
    tables = [entry["table"] for entry in JAVA]
    assert {table["settings"]["strategy"] for table in tables} == {one.name for one in Strategy}
    written = [text for entry in JAVA for result in entry["results"] for text in result]
    assert {text.rsplit(":", 1)[1] for text in written} == {"ASSIGN", "HAND_OVER"}
    rows = [row for table in tables for row in table["leases"]]
    for name in ("still_for", "asked_for", "ended_at", "checkpoint_owner"):
        assert sum(name in row for row in rows) >= 10, name
    assert sum(row["throughput"] is None for row in rows) >= 10
    names = {name for table in tables for report in table["metrics"] for name in report["values"]}
    assert names >= {"C", "M", "X", "T", "THROUGHPUT"}
    assert sum(len(entry["results"]) > 1 for entry in JAVA) >= 10


# -- workers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "limits", "valid"),
    [
        ({}, {}, True),
        ({"C": (1.0,)}, {"C": (80.0,)}, True),
        ({"C": (1.0,)}, {"C": (80.0,), "M": (80.0,)}, True),
        ({"C": (1.0,)}, {}, False),
        ({"C": (1.0,)}, {"M": (80.0,)}, False),
        ({"C": (1.0,)}, {"C": ()}, False),
        ({"C": (1.0,)}, {"C": (0.0,)}, False),
        ({"C": (1.0,)}, {"C": (80.5,)}, False),
        ({}, {"C": (80.0,)}, True),
        ({"THROUGHPUT": (1.0,)}, {}, True),
        ({"THROUGHPUT": (1.0,)}, {"C": (0.0,)}, True),
    ],
)
def test_a_report_counts_if_every_value_has_a_limit(values, limits, valid):
    """Source: WorkerMetricStats.isValidWorkerMetric."""
    assert is_valid(WorkerMetrics("w", NOW, values, limits)) is valid


@pytest.mark.parametrize(("age", "active"), [(0, True), (60, True), (60.1, False), (-300, True)])
def test_a_worker_is_active_for_two_periods(age, active):
    assert (len(active_workers(idle("w"), NOW + age, 30)) == 1) is active


@pytest.mark.parametrize(
    ("values", "active"), [((5.0, -1.0), False), ((-1.0, 5.0), True), ((), True), ((-1.0,), False)]
)
def test_a_worker_whose_last_measurement_failed_gets_nothing(values, active):
    metrics = WorkerMetrics("w", NOW, {"C": values}, {"C": (80.0,)})
    assert (len(active_workers([metrics], NOW, 30)) == 1) is active


def test_nobody_gets_anything_where_no_worker_reports():
    leases = [lease(0), lease(1, "gone")]
    for settings in (AssignmentSettings(), BY_COUNT):
        found = run(leases, idle("old", at=NOW - 61), expired=[1], settings=settings)
        assert (found.assignments, found.workers) == ((), ())
        assert found.left == ("shardId-0", "shardId-1")


# -- leases that nobody works on ---------------------------------------------------------------------------------


def test_leases_without_an_owner_go_in_turn_to_the_worker_with_the_most_room():
    leases = [lease(0, "a", "10"), lease(1, "b", "30"), lease(2), lease(3)]
    found = run(leases, idle("a", "b"), memory=NO_BALANCE)
    assert given(found) == {"2": "a", "3": "a"}
    assert {one.kind for one in found.assignments} == {AssignmentKind.ASSIGN}
    assert {one.reason for one in found.assignments} == {AssignmentReason.UNOWNED}


def test_a_worker_without_leases_counts_as_if_it_could_double_its_load():
    """Source: computePercentageToReachAverage. So one that is further below the average goes before it."""
    leases = [lease(0, "a", "1"), lease(1, "b", "60"), lease(2)]
    assert given(run(leases, idle("a", "b", "new"), memory=NO_BALANCE)) == {"2": "a"}


def test_where_nothing_flows_two_of_the_workers_get_everything():
    """Java's heap: the capacities are 0/0, and what is put back changes places with the other one only."""
    found = run([lease(number) for number in range(8)], idle("a", "b", "c", "d"), memory=NO_BALANCE)
    assert list(given(found).values()) == ["a", "d"] * 4


def test_an_expired_lease_of_a_worker_with_the_most_room_stays_with_it():
    leases = [lease(0, "a", "10"), lease(1, "b", "30")]
    found = run(leases, idle("a", "b"), expired=[0], memory=NO_BALANCE)
    assert (found.assignments, found.left) == ((), ())
    assert given(run(leases, idle("a", "b"), expired=[1], memory=NO_BALANCE)) == {"1": "a"}


def test_the_lease_that_has_stood_still_the_longest_goes_first_after_those_without_an_owner():
    leases = [lease(0, "gone"), lease(1, "gone"), lease(2)]
    since = {"shardId-0": 9.0, "shardId-1": 8.0, "shardId-2": 20.0}
    found = run(leases, idle("a"), expired=[0, 1], unchanged_since=since, memory=NO_BALANCE)
    assert list(given(found)) == ["2", "1", "0"]
    assert [one.reason for one in found.assignments][1:] == [AssignmentReason.EXPIRED] * 2


def test_an_expired_hand_over_goes_to_its_old_owner_too():
    leases = [lease(0, "next", "1", checkpoint_owner="a")]
    found = run(leases, idle("a"), expired=[0], memory=NO_BALANCE)
    (one,) = found.assignments
    assert (one.new_owner, one.kind, one.reason) == ("a", AssignmentKind.ASSIGN, AssignmentReason.EXPIRED)


@pytest.mark.parametrize(
    ("settings", "given_away"),
    [
        (AssignmentSettings(max_leases=2), 3),
        (AssignmentSettings(max_throughput=25.0), 5),
        (AssignmentSettings(max_leases=2, max_throughput=5.0), 1),
    ],
)
def test_a_worker_that_is_full_gets_nothing_more(settings, given_away):
    leases = [lease(0, "a", "10"), *(lease(number) for number in range(1, 9))]
    found = run(leases, idle("a", "b"), settings=settings, memory=NO_BALANCE)
    assert len(found.assignments) == given_away
    assert len(found.left) == 8 - given_away


def test_leases_that_nobody_can_read_leave_room_for_those_that_somebody_can():
    """Java counts them: 1) they are as many as `max_leases`; 2) nobody is given the others; 3) they stay until it is."""
    rows = [
        lease("1", "a", 1.0).with_(checkpoint=AT_SHARD_END),
        lease("2", "a", 1.0),
        lease("3", None, 1.0),
        lease("4", "gone", 1.0),
        lease("5", None, 1.0),
        lease("6", None, 1.0),
    ]
    # 2 and 6 wait for their parents.
    readable = {"shardId-3", "shardId-4", "shardId-5"}
    settings = AssignmentSettings(max_leases=2)
    decision = run(rows, idle("a"), expired=("4",), memory=NO_BALANCE, settings=settings)
    assert given(decision) == {}
    all_given = give_left(decision, rows, readable, settings.max_leases, NOW)
    assert given(all_given) == {"3": "a", "5": "a"}
    assert all_given.left == ("shardId-6", "shardId-4")
    assert [one.reason for one in all_given.assignments] == [AssignmentReason.UNOWNED] * 2
    assert all_given.memory.given == {"shardId-3": NOW, "shardId-5": NOW}
    nobody = run(rows, (), memory=NO_BALANCE, settings=settings)
    assert given(give_left(nobody, rows, readable, settings.max_leases, NOW)) == {}


def test_a_lease_that_is_released_at_once_is_not_given_with_each_scan():
    first = run([lease("1", None, 1.0)], idle("a"), memory=NO_BALANCE)
    assert given(first) == {"1": "a"}
    soon = run([lease("1", None, 1.0)], idle("a"), memory=first.memory, now=NOW + 4.9)
    assert given(soon) == {}
    later = run([lease("1", None, 1.0)], idle("a"), memory=soon.memory, now=NOW + 5.0)
    assert given(later) == {"1": "a"}
    other = run([lease("2", None, 1.0)], idle("a"), memory=first.memory, now=NOW + 1.0)
    assert given(other) == {"2": "a"}


def test_an_ended_lease_is_assigned_like_any_other():
    ended = lease(0, "gone").with_(checkpoint=AT_SHARD_END)
    assert given(run([ended], idle("a"), expired=[0])) == {"0": "a"}


# -- balancing ----------------------------------------------------------------------------------------------------


def test_every_third_run_balances_and_an_extra_one_does_not():
    leases = [lease(number, "a", "10") for number in range(4)]
    moves, memory = [], AssignmentMemory()
    for is_extra in (True, False, False, True, False, False):
        found = run(leases, idle("a", "b"), memory=memory, is_extra=is_extra)
        moves.append(len(found.assignments))
        memory = AssignmentMemory(found.memory.runs)
    assert moves == [0, 1, 0, 0, 0, 1]


def test_the_hot_worker_hands_over_to_the_cool_one():
    leases = [lease(number, "a", "10") for number in range(5)] + [lease(9, "b", "10")]
    found = run(leases, [busy("a", 90), busy("b", 10)])
    assert {one.new_owner for one in found.assignments} == {"b"}
    assert {one.kind for one in found.assignments} == {AssignmentKind.HAND_OVER}
    assert {one.reason for one in found.assignments} == {AssignmentReason.BALANCE}
    assert 1 <= len(found.assignments) <= 2


def test_within_the_threshold_nothing_moves_unless_a_worker_is_above_its_limit():
    leases = [lease(number, "ab"[number % 2], "10") for number in range(6)]
    assert not run(leases, [busy("a", 52), busy("b", 50)]).assignments
    assert not run(leases, [busy("a", 56), busy("b", 50)], memory=NO_BALANCE).assignments
    metrics = [busy("a", 52, limit=51.0), busy("b", 46)]
    assert given(run(leases, metrics)).keys() <= {"0", "2", "4"}
    small = [*leases, lease(6, "a", "0.1")]
    assert given(run(small, metrics)) == {"6": "b"}


def moved(leases, metrics):
    """Whether anything moves by our rule, and by that of Java 3.5.1."""
    return tuple(
        bool(run(leases, metrics, settings=AssignmentSettings(steady=steady)).assignments)
        for steady in (True, False)
    )


@pytest.mark.parametrize(
    ("least", "most", "found"),
    [
        (2, 4, (False, True)),
        (2, 11.9, (False, True)),
        (2, 12.1, (True, True)),
        (50, 60, (False, False)),
        (50, 62, (True, True)),
    ],
)
def test_a_cpu_must_be_five_points_and_a_tenth_from_the_average(least, most, found):
    leases = [lease(number, "ab"[number % 2], "1") for number in range(40)]
    assert moved(leases, [busy("a", most), busy("b", least)]) == found


def test_a_worker_above_its_limit_is_relieved_whatever_the_band():
    leases = [lease(number, "ab"[number % 2], "1") for number in range(40)]
    assert moved(leases, [busy("a", 4, limit=3.0), busy("b", 2)]) == (True, True)


def test_a_throughput_that_may_be_chance_moves_nothing():
    """Its limit is the average, so Java 3.5.1 takes from every worker that is above it."""
    even = [lease(number, "ab"[number % 2], "0.96" if number % 2 else "1.04") for number in range(100)]
    assert moved(even, idle("a", "b")) == (False, True)
    few = [lease(number, "ab"[number % 2], "0" if number % 2 else "0.1") for number in range(10)]
    assert moved(few, idle("a", "b")) == (False, True)
    busier = [lease(number, "ab"[number % 2], "1" if number % 2 else "100") for number in range(10)]
    assert moved(busier, idle("a", "b")) == (True, True)


def test_where_hardly_anything_flows_a_new_worker_gets_leases_all_the_same():
    leases, workers = [lease(number, "a", "0.01") for number in range(10)], idle("a", "b")
    for _ in range(20):
        found = given(run(leases, workers))
        leases = [one.with_(owner=found.get(one.key.removeprefix("shardId-"), one.owner)) for one in leases]
    assert sorted(one.owner for one in leases) == ["a"] * 5 + ["b"] * 5


def test_where_hardly_anything_flows_the_worker_with_few_leases_gives_none_for_the_record_it_got_last():
    """It has the largest throughput of all, and two of seven leases; the least loaded worker has one."""
    leases = [
        *(lease(number, "a", "0.00001") for number in range(4)),
        lease(4, "b", "0.0002"),
        lease(5, "b", "0.00001"),
        lease(6, "c", "0.00001"),
    ]
    assert moved(leases, idle("a", "b", "c")) == (False, True)


@pytest.mark.parametrize("seed", range(40))
def test_what_moves_is_taken_from_workers_from_which_java_may_take(seed):
    table = next(iter(reversed(tables(seed + 1, seed=11))))
    owners = {row["key"]: row["owner"] for row in table["leases"]}

    def taken_from(steady):
        decisions = [decided(table, Random(number), steady=steady) for number in range(30)]
        given_up = [one for decision in decisions for one in decision.assignments]
        return {owners[one.lease_key] for one in given_up if one.reason is AssignmentReason.BALANCE}

    assert taken_from(steady=True) <= taken_from(steady=False)


def test_without_graceful_handoff_a_lease_moves_at_once():
    leases = [lease(number, "a", "10") for number in range(4)]
    found = run(leases, idle("a", "b"), settings=AssignmentSettings(graceful_handoff=False))
    assert {one.kind for one in found.assignments} == {AssignmentKind.ASSIGN}
    assert {one.reason for one in found.assignments} == {AssignmentReason.BALANCE}


def test_an_ended_lease_moves_at_once():
    leases = [lease(number, "a").with_(checkpoint=AT_SHARD_END) for number in range(4)]
    found = run(leases, idle("a", "b"), settings=BY_COUNT)
    assert [one.kind for one in found.assignments] == [AssignmentKind.ASSIGN] * 2


# -- hand-overs ---------------------------------------------------------------------------------------------------


def test_a_hand_over_is_left_alone_until_its_time_is_over():
    leases = [lease(number, "next", checkpoint_owner="a") for number in range(4)]
    metrics, key = idle("a", "b", at=NOW + 40), "shardId-0"
    first = run(leases, metrics, settings=BY_COUNT)
    assert (first.assignments, first.memory.hand_overs[key]) == ((), HandOver("next", "a", NOW))
    for seconds, moved in ((39.9, 0), (40, 2)):
        memory = AssignmentMemory(0, first.memory.hand_overs)
        found = run(leases, metrics, settings=BY_COUNT, memory=memory, now=NOW + seconds)
        assert [one.kind for one in found.assignments] == [AssignmentKind.ASSIGN] * moved
        assert found.memory.hand_overs[key].since == NOW
    other = [one.with_(owner="third") for one in leases]
    found = run(other, metrics, settings=BY_COUNT, memory=memory, now=NOW + 40)
    assert (found.assignments, found.memory.hand_overs[key].since) == ((), NOW + 40)


def test_the_time_of_a_hand_over_begins_when_the_leader_begins_it_and_ends_with_it():
    leases = [lease(number, "a", "10") for number in range(4)]
    found = run(leases, idle("a", "b"), settings=BY_COUNT)
    asked = {one.lease_key: HandOver(one.new_owner, "a", NOW) for one in found.assignments}
    assert len(asked) == 2
    assert found.memory.hand_overs == asked
    rows = [one.with_(owner="b", checkpoint_owner="a") if one.key in asked else one for one in leases]
    later = run(rows, idle("a", "b"), settings=BY_COUNT, memory=found.memory, now=NOW + 10)
    assert later.memory.hand_overs == asked
    assert not run(leases, idle("a", "b"), memory=later.memory).memory.hand_overs


# -- by the number of leases -------------------------------------------------------------------------------------


def test_leases_are_counted_where_the_strategy_says_so():
    leases = [lease(0, "a"), lease(1, "a"), lease(2), lease(3), lease(4)]
    found = run(leases, idle("a", "b"), settings=BY_COUNT, memory=NO_BALANCE)
    assert sorted(given(found).values()) == ["b", "b", "b"]
    crowded = [lease(number, "a") for number in range(5)]
    moved = run(crowded, idle("a", "b", "c"), settings=BY_COUNT)
    assert sorted(given(moved).values()) == ["b", "b", "c"]
    assert {one.kind for one in moved.assignments} == {AssignmentKind.HAND_OVER}


def test_the_maximum_caps_the_number_but_for_one_lease():
    settings = AssignmentSettings(strategy=Strategy.LEASE_COUNT_BASED, max_leases=2)
    found = run([lease(0, "a"), lease(1, "a"), *map(lease, range(2, 9))], idle("a"), settings=settings)
    assert len(found.assignments) == 1


# -- writes -------------------------------------------------------------------------------------------------------


def test_an_assignment_writes_itself_and_expects_the_counter_of_a_lease_that_stands_still():
    rows = [
        lease(0),
        lease(1, "gone"),
        lease(2, "a", checkpoint_owner="b"),
        *(lease(n, "b") for n in (3, 4, 5)),
    ]
    memory = AssignmentMemory(0, {"shardId-2": HandOver("a", "b", NOW - 40)})
    kinds, fenced = {}, {}
    for seed in range(20):
        found = run(rows, idle("a", "b"), settings=BY_COUNT, memory=memory, expired=[1], rng=Random(seed))
        for one in found.assignments:
            number, condition = one.lease_key[-1], one.write().request()[1]["ConditionExpression"]
            kinds[number], fenced[number] = one.write().kind, "leaseCounter = " in condition
    assert kinds.pop("2") == "assign"
    assert not fenced.pop("2")
    assert {number: kinds[number] for number in "01"} == {"0": "assign", "1": "assign"}
    assert {number: fenced[number] for number in "01"} == {"0": True, "1": True}
    assert {kinds[number] for number in "345" if number in kinds} <= {"begin-hand-over"}


def test_numbers_that_are_no_numbers_end_no_run():
    odd = [lease(0, "a", "1E+999"), lease(1, "a", "0"), lease(2), lease(3, "b")]
    metrics = [
        busy("a", 0),
        busy("b", 0),
        WorkerMetrics("c", NOW, {"X": (-5.0,)}, {"X": (-7.0,)}),
        *idle("d"),
    ]
    for seed in range(20):
        found = run(odd, metrics, rng=Random(seed), settings=AssignmentSettings(max_throughput=math.inf))
        assert "2" in given(found)
