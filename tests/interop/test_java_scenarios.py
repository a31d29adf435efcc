"""Scenarios of a mixed fleet with real Java workers, by the numbers of the forty. Those that are not here: `java_scenarios`.

One story shows several. What is asserted is in `scenario_owners` and `scenario_shards`, and that it can fail in the tests
of those.
"""

import pytest
import scenario_owners as owners
import scenario_shards as shards
from fleet_checks import nothing_lost
from interop_verdict import problems_of
from scenario_log import ender_of, is_pykcl
from scenario_stories import (
    aggregate_story,
    foreign_story,
    ownership_story,
    reshard_story,
    soak_story,
)

pytestmark = pytest.mark.timeout(600)
FAILOVER = 5.0
"""Of all workers here, in seconds."""
ROUND = 2 * FAILOVER
"""Between two looks of Java's lease taker, in seconds."""


@pytest.fixture(scope="module")
def tell(request, java, fleet):
    """tell(story, version): what it left."""
    if request.config.getoption("--kinesis") != "local":
        pytest.skip("Java scenarios SKIPPED: they hold requests back, and only the local AWS does that")

    def told(story, version="2.7.2"):
        java(version)
        return story(fleet)

    return told


@pytest.fixture(scope="module")
def ownership(tell):
    return tell(ownership_story)


@pytest.fixture(scope="module")
def reshards(tell):
    return tell(reshard_story)


@pytest.fixture(scope="module")
def aggregates(tell):
    return tell(aggregate_story)


@pytest.fixture(scope="module")
def rows_of_3x(tell):
    return tell(foreign_story, "3.5.1")


@pytest.fixture(scope="module")
def soak(tell):
    return tell(soak_story)


@pytest.mark.parametrize("name", ["ownership", "reshards", "aggregates", "rows_of_3x"])
def test_the_fleet_of_each_story_keeps_every_promise(request, name):
    assert problems_of(request.getfixturevalue(name).evidence) == []


# -- ownership ---------------------------------------------------------------------------------------------------------


def test_scenario_03_both_start_on_a_missing_table_at_once(ownership):
    assert owners.made_once(ownership) == []


def test_scenario_06_pykcl_steals_and_java_s_next_renewal_and_checkpoint_are_refused(ownership):
    assert owners.fenced_off(ownership, "j1") == []
    assert shards.rows_are_sound(ownership) == []


def test_scenario_07_java_steals_and_pykcl_stops_within_one_heartbeat(ownership):
    assert owners.gave_up(ownership, "p1") == []


def test_scenario_08_pykcl_freezes_java_takes_and_no_write_lands_when_it_wakes(ownership):
    assert owners.wrote_nothing_frozen(ownership, ownership.notes["frozen"]) == []


def test_scenario_10_pykcl_is_killed_and_java_takes_all_within_two_looks_where_they_were_left(ownership):
    assert owners.taken_over(ownership, ownership.notes["killed"], "j1", rounds=2, apart_seconds=ROUND) == []


def test_scenario_11_pykcl_stops_and_java_takes_all_at_its_next_look(ownership):
    assert owners.taken_over(ownership, "p1", "j1", rounds=1, apart_seconds=ROUND) == []


def test_scenario_12_java_stops_and_pykcl_takes_after_expiry_not_before(ownership):
    assert owners.waited_for_expiry(ownership, "j1", FAILOVER) == []


def test_scenario_26_the_row_of_an_open_shard_is_lost_where_java_leads(ownership):
    """pykcl puts it back at its next listing of the shards (here every 3 s). Java's auditor, whose duty it is, would need
    three looks two minutes apart; it was never seen to be the first."""
    assert nothing_lost(ownership.evidence).problems == ()
    assert shards.put_back_once(ownership, ownership.notes["deleted"], ownership.notes["leader"], "j1") == []


# -- splits, merges ------------------------------------------------------------------------------------------------------


def test_scenario_19_the_children_stand_before_pykcl_s_shard_end_and_java_goes_on_with_them(reshards):
    assert shards.ended_as_java_wants(reshards, reshards.notes["split"], "a2", "j1") == []


def test_scenario_20_pykcl_dies_between_the_children_and_the_end_and_java_finishes(reshards):
    assert shards.finished_for_the_dead(reshards, reshards.notes["crashed"], "a1", "j1") == []


@pytest.mark.parametrize("first", ["java", "pykcl"])
def test_scenario_21_each_side_ends_one_parent_and_the_child_waits_for_both(reshards, first):
    merge = reshards.notes["merges"][first == "pykcl"]
    assert shards.waited_for_both(reshards, merge["first"], merge["second"]) == []
    assert is_pykcl(ender_of(reshards, merge["first"])) == (first == "pykcl")


def test_scenario_26_the_row_of_an_open_shard_is_lost_where_pykcl_leads(reshards):
    """As elected by the rule that is Java's, too: see `pykcl.planning.leader`."""
    assert nothing_lost(reshards.evidence).problems == ()
    assert shards.put_back_once(reshards, reshards.notes["deleted"], reshards.notes["leader"], "a2") == []


# -- positions -------------------------------------------------------------------------------------------------------------


def test_scenario_16_pykcl_checkpoints_record_3_after_java_s_100_and_java_goes_on_with_the_fourth(aggregates):
    shard = aggregates.notes["shard"]
    assert shards.overwrote_greater_sub(aggregates, shard, "j1", "p1") == []
    assert shards.resumed_inside(aggregates, shard, "p1", "j2", 2) == []


def test_scenario_17_java_checkpoints_record_100_of_200_and_pykcl_goes_on_with_the_next(aggregates):
    assert shards.resumed_inside(aggregates, aggregates.notes["shard"], "j1", "p1", 99) == []


def test_scenario_17_of_broken_and_misplaced_aggregates_java_and_pykcl_are_given_the_same(aggregates):
    assert shards.both_given_odd(aggregates, aggregates.notes["shard"], "p1", "j2") == []


# -- rows --------------------------------------------------------------------------------------------------------------------


def test_scenario_30_rows_that_are_no_leases_are_not_counted_and_stay_as_they_are(rows_of_3x):
    notes = rows_of_3x.notes
    assert shards.left_alone(rows_of_3x, notes["planted"], notes["foreign"], notes["rows"]) == []
    # With the rows of 3.5.1 among the leases each of the three workers would want three or more.
    assert sorted(notes["shares"].values()) == [1, 1, 2]


def test_scenario_31_with_the_index_of_owners_every_owner_pykcl_writes_is_text_or_removed(rows_of_3x):
    assert rows_of_3x.notes["index"]
    assert shards.owners_are_text(rows_of_3x) == []


def test_scenario_40_three_workers_of_each_kind_through_kills_splits_and_merges(soak):
    assert problems_of(soak.evidence) == []
    assert shards.rows_are_sound(soak) == []
    assert shards.was_a_soak(soak) == []
