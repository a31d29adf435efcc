"""Scenarios 19 to 25: splits and merges of which each side does a part, the rows of ended shards, and children lost."""

from datetime import UTC, datetime

import pytest

from pykcl.events import LeaseDeleted
from pykcl.model.checkpoint import (
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    LATEST,
    TRIM_HORIZON,
    Checkpoint,
    StartPosition,
)
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, timed_out
from pykcl.testing.runtime import EPOCH_MILLIS
from tests.java_compat.scenarios.scenario_fleet import owner_in

EARLY_CLEANUP = {"cleanup_interval": 3.0, "shard_sync_interval": 3.0}


def created(fleet, key):
    """Who put the row, each time somebody did."""
    return [change.author for change in fleet.changes_of(key) if change.operation == "PutItem"]


def children_of(fleet, *parents):
    return [shard for shard in fleet.shards().values() if set(parents) & set(shard.parents)]


def test_scenario_19_before_pykcl_s_shard_end_is_visible_the_children_stand_as_java_wants_them(new_fleet):
    fleet = new_fleet()
    (parent,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.put_everywhere(packed=3)
    fleet.wait_all_delivered()
    at_the_end = []
    fleet.when("p1", "end", lambda: at_the_end.append(fleet.items()))
    fleet.split(parent)
    fleet.wait(lambda: fleet.rows()[parent].is_ended, what="the end of the parent")
    for child in children_of(fleet, parent):
        row = at_the_end[0][child.shard_id]
        assert (row["checkpoint"], row["checkpointSubSequenceNumber"]) == ({"S": "TRIM_HORIZON"}, {"N": "0"})
        assert row["parentShardId"] == {"SS": [parent]}
        assert row["startingHashKey"] == {"S": str(child.hash_range.first)}
        assert row["endingHashKey"] == {"S": str(child.hash_range.last)}
    ended = next(
        change.after
        for change in fleet.changes_of(parent)
        if change.after["checkpoint"] == {"S": "SHARD_END"}
    )
    assert ended["checkpointSubSequenceNumber"] == {"N": "0"}
    assert sorted(ended["childShardIds"]["SS"]) == sorted(fleet.open_shards())
    fleet.simulation.kill("p1")
    fleet.start_java("j1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    assert {shard for who, shard, _ in fleet.starts if who == "j1"} == set(fleet.open_shards())


def test_scenario_20_pykcl_dies_between_the_children_and_the_end_and_java_finishes(new_fleet):
    fleet = new_fleet()
    (parent,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.put_everywhere(3)
    fleet.wait_all_delivered()

    def die():
        fleet.simulation.kill("p1")
        return Fault(before=timed_out())

    fleet.when("p1", "end", die)
    fleet.split(parent)
    fleet.wait(fleet.all_steps_ran, what="the end of the parent")
    children = fleet.open_shards()
    assert set(children) < set(fleet.rows())
    fleet.start_java("j1")
    fleet.wait(lambda: fleet.rows()[parent].checkpoint == AT_SHARD_END, what="Java to end the parent")
    for child in children:
        assert created(fleet, child) == ["p1"]
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("first", ["java", "pykcl"])
def test_scenario_21_java_ends_one_parent_of_a_merge_and_pykcl_the_other(new_fleet, first):
    fleet = new_fleet(shards=2)
    java_s, pykcl_s = sorted(fleet.shards())
    java = fleet.java_with_leases("j1", java_s)
    fleet.keep_renewing(java, java_s)
    fleet.start_pykcl("p1")
    fleet.wait_read("p1", pykcl_s)
    fleet.put_everywhere(2)
    fleet.wait(lambda: not fleet.undelivered(pykcl_s), what="pykcl's half")
    if first == "pykcl":
        fleet.merge_first_two()
        (child,) = fleet.open_shards()
        fleet.wait(lambda: fleet.rows()[pykcl_s].checkpoint == AT_SHARD_END, what="pykcl's end")
    else:
        fleet.when("p1", "end", lambda: ends.append("held back") or Fault(before=timed_out()), always=True)
        ends = []
        fleet.merge_first_two()
        (child,) = fleet.open_shards()
        fleet.wait(lambda: bool(ends), what="pykcl to come to the end")
    fleet.put_everywhere(1)
    fleet.simulation.sleep(4)
    assert child not in {shard for _, shard, _ in fleet.starts}
    fleet.java_read(java_s)
    # Java's own check of a merge: both rows are there, or neither is.
    assert {java_s, pykcl_s} <= set(fleet.rows())
    assert java.end(java_s, [fleet.shards()[child]])
    if first == "java":
        fleet.simulation.sleep(3)
        assert child not in {shard for _, shard, _ in fleet.starts}
        fleet.forget_steps()
    fleet.wait_read("p1", child)
    assert {fleet.rows()[key].checkpoint for key in (java_s, pykcl_s) if key in fleet.rows()} <= {
        AT_SHARD_END
    }
    assert len(created(fleet, child)) == 1
    assert sorted(fleet.items()[child]["parentShardId"]["SS"]) == [java_s, pykcl_s]
    fleet.wait_all_delivered()
    assert not fleet.lost_by("p1")


def test_scenario_22_a_shard_that_was_begun_at_a_timestamp_ends_without_a_sub_sequence_number(new_fleet):
    fleet = new_fleet()
    (parent,) = fleet.shards()
    start = StartPosition("AT_TIMESTAMP", at_millis=EPOCH_MILLIS + int(fleet.simulation.now * 1000) - 1000)
    fleet.start_pykcl("p1", initial_position=datetime.fromtimestamp(start.at_millis / 1000, UTC))
    fleet.wait_read("p1", parent)
    assert fleet.rows()[parent].checkpoint == Checkpoint("AT_TIMESTAMP", 0)
    fleet.split(parent)
    fleet.wait(lambda: fleet.rows()[parent].checkpoint.is_shard_end, what="the end")
    assert fleet.items()[parent]["checkpointSubSequenceNumber"] == {"N": "0"}
    fleet.simulation.kill("p1")
    fleet.start_java("j1", start=start)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    assert {shard for who, shard, _ in fleet.starts if who == "j1"} == set(fleet.open_shards())


def test_scenario_23_pykcl_deletes_what_java_ended_once_all_children_have_begun(new_fleet):
    fleet = new_fleet()
    (parent,) = fleet.shards()
    java = fleet.java_with_leases("j1", parent)
    fleet.split(parent)
    low, high = fleet.neighbours()
    assert java.end(parent, [low, high])
    fleet.start_pykcl("p1", **EARLY_CLEANUP)
    fleet.wait_read("p1", low.shard_id)
    fleet.wait_read("p1", high.shard_id)
    # Both are read, and neither has left TRIM_HORIZON: for several passes nothing is deleted.
    fleet.simulation.sleep(15)
    put_into(fleet, low)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(15)
    assert parent in fleet.rows()
    put_into(fleet, high)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.happened(LeaseDeleted), what="the deletion")
    assert parent not in fleet.rows()


def test_scenario_23_a_row_outlives_its_parent_s_row(new_fleet):
    """Three generations: the middle one's children have begun, but the oldest row is still there."""
    fleet = new_fleet()
    (oldest,) = fleet.shards()
    java = fleet.java_with_leases("j1", oldest)
    fleet.split(oldest)
    low, high = fleet.neighbours()
    assert java.end(oldest, [low, high])
    assert java.take(low.shard_id)
    fleet.split(low.shard_id)
    middle = children_of(fleet, low.shard_id)
    assert java.end(low.shard_id, middle)
    fleet.start_pykcl("p1", **EARLY_CLEANUP)
    for child in middle:
        fleet.wait_read("p1", child.shard_id)
        put_into(fleet, child)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(15)
    # `high` has not left TRIM_HORIZON, so the oldest row stays, and with it the row of `low`.
    assert {oldest, low.shard_id} <= set(fleet.rows())
    put_into(fleet, high)
    fleet.wait(lambda: len(fleet.happened(LeaseDeleted)) == 2, what="the deletions")
    assert [event.shard for event in fleet.happened(LeaseDeleted)] == [oldest, low.shard_id]


def put_into(fleet, shard):
    put = fleet.kinesis.put_record(STREAM, b"x", "k", shard.hash_range.first)
    fleet.positions.setdefault(put.shard_id, []).append(Checkpoint(put.sequence_number))


def test_scenario_23_java_deletes_what_pykcl_ended(new_fleet):
    fleet = new_fleet()
    (parent,) = fleet.shards()
    fleet.start_pykcl("p1", cleanup_interval=0.0)
    fleet.wait_read("p1", parent)
    fleet.put_everywhere(1)
    fleet.split(parent)
    fleet.wait(lambda: fleet.rows()[parent].checkpoint == AT_SHARD_END, what="the end of the parent")
    fleet.start_java("j1", cleanup_interval=3.0)
    fleet.wait(lambda: fleet.rows()[parent].owner == "j1", what="Java to take the ended lease")
    fleet.simulation.sleep(15)
    assert parent in fleet.rows()
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.java_did("deleted"), what="the deletion")
    assert parent not in fleet.rows()


def test_scenario_24_the_row_of_the_quicker_parent_of_a_merge_stays_until_the_slow_one_is_done(new_fleet):
    fleet = new_fleet(shards=2)
    slow, quick = sorted(fleet.shards())
    java = fleet.java_with_leases("j1", slow)
    fleet.keep_renewing(java, slow)
    fleet.start_pykcl("p1", max_leases=1, **EARLY_CLEANUP)
    fleet.wait_read("p1", quick)
    fleet.put_everywhere(1)
    fleet.merge_first_two()
    (child,) = fleet.open_shards()
    fleet.wait(lambda: fleet.rows()[quick].checkpoint == AT_SHARD_END, what="the quick parent's end")
    # By Java's own rule a child at LATEST speaks for deletion of its parents, begun or not.
    fleet.dynamodb.put_raw(TABLE, {**fleet.items()[child], "checkpoint": {"S": LATEST}})
    fleet.simulation.sleep(30)
    assert quick in fleet.rows()
    fleet.dynamodb.put_raw(TABLE, {**fleet.items()[child], "checkpoint": {"S": TRIM_HORIZON}})
    fleet.java_read(slow)
    # Java's check of the merge: with only one of both rows it would wait for ever.
    assert (java.table.get(slow) is None) == (java.table.get(quick) is None)
    assert java.end(slow, [fleet.shards()[child]])
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.wait(lambda: set(fleet.rows()) == {child}, what="deletion of both parents' rows")


def a_child_s_row_is_lost(fleet):
    (parent,) = fleet.shards()
    java = fleet.java_with_leases("j0", parent)
    fleet.put_everywhere(1)
    assert java.checkpoint(parent, fleet.java_read(parent))
    fleet.split(parent)
    low, high = fleet.neighbours()
    assert java.end(parent, [low, high])
    fleet.unchecked.add("crashed")
    fleet.client_of("crashed").delete_item(TableName=TABLE, Key={"leaseKey": {"S": high.shard_id}})
    fleet.put_everywhere(2)
    return parent, high.shard_id


def test_scenario_25_pykcl_puts_back_a_lost_child_of_an_ended_parent(new_fleet):
    fleet = new_fleet()
    _, lost = a_child_s_row_is_lost(fleet)
    fleet.start_pykcl("p1")
    fleet.wait_all_delivered()
    assert created(fleet, lost) == ["j0", "p1"]
    assert ("p1", lost, AT_TRIM_HORIZON) in fleet.starts


def test_scenario_25_a_fleet_of_java_alone_never_does(new_fleet):
    fleet = new_fleet()
    parent, lost = a_child_s_row_is_lost(fleet)
    fleet.start_java("j1", auditor_interval=5.0)
    fleet.simulation.sleep(200)
    assert lost not in fleet.rows()
    assert fleet.undelivered(lost)
    assert parent in fleet.rows()
    assert owner_in(fleet.items()[parent]) == "j1"
