"""Rows of every kind in one scan, and names as they are shown."""

from fleet_table import lease, shard

from pykcl.model.lease_item import to_item
from pykcl.operate.hints import hints_of
from pykcl.operate.snapshot import short_shard
from pykcl.operate.states import (
    LeaseState,
    counts,
    states_of,
)

MULTI = "123456789012:orders:1790000000"


def test_rows_of_kcl_3x_are_foreign_and_no_lease_is_made_of_them(table):
    table.put(lease(0, "w1"))
    table.put_item(leaseKey={"S": "w1"}, entityType={"S": "WORKER_METRIC_STATS"}, lut={"N": "5"})
    table.put_item(leaseKey={"S": "Leader"}, entityType={"S": "LEADER"}, leaseOwner={"S": "w1"})
    view = table.view()
    assert list(view.leases) == [shard(0)]
    assert {row.kind for row in view.foreign} == {"WORKER_METRIC_STATS", "LEADER"}
    assert view.schema == "KCL 3.x"
    states = states_of(table.sampler().poll(), 10)
    assert counts(states) == {"UNKNOWN": 1, "FOREIGN": 2}


def test_leases_of_several_streams_are_shown_with_their_own_families(table):
    for number, parents in ((0, ()), (1, (shard(0),))):
        item = to_item(lease(number, "w1", parents=parents))
        table.put_item(**{**item, "leaseKey": {"S": f"{MULTI}:{shard(number)}"}, "streamName": {"S": MULTI}, "shardId": {"S": shard(number)}})  # fmt: skip
    view = table.view()
    assert view.schema == "KCL, several streams"
    assert view.streams[f"{MULTI}:{shard(1)}"] == MULTI
    states = states_of(table.sampler().poll(), 10)
    assert states[f"{MULTI}:{shard(1)}"].waits_for == (f"{MULTI}:{shard(0)}",)
    assert states[f"{MULTI}:{shard(1)}"].state is LeaseState.WAITING


def test_rows_as_kcl_1x_wrote_them_are_leases(table):
    table.put_item(leaseKey={"S": shard(0)}, leaseCounter={"N": "7"}, leaseOwner={"S": "old"}, ownerSwitchesSinceCheckpoint={"N": "0"}, checkpoint={"S": "TRIM_HORIZON"})  # fmt: skip
    view = table.view()
    assert view.leases[shard(0)].owner == "old"
    assert view.schema == "KCL 1.x or 2.x before 2.3"


def test_junk_that_only_looks_like_a_lease_is_unreadable_and_blocks_its_children(table):
    table.put_item(leaseKey={"S": shard(0)}, leaseCounter={"S": "seven"}, checkpoint={"S": "TRIM_HORIZON"})
    table.put(lease(1, "w1", parents=(shard(0),)))
    found = table.sampler().poll()
    states = states_of(found, 10)
    assert states[shard(0)].state is LeaseState.UNREADABLE
    assert states[shard(1)].state is LeaseState.WAITING
    assert any("cannot be understood" in hint for hint in hints_of(found, states, 10, is_known=True))


def test_an_empty_table_is_said_to_be_empty(table):
    found = table.sampler().poll_until_moved(10)
    assert found.samples == 1
    states = states_of(found, 10)
    assert states == {}
    assert found.snapshot.schema == "empty"
    assert "no rows" in hints_of(found, states, 10, is_known=True)[0]


def state(found, number, failover=10.0):
    return states_of(found, failover)[shard(number)].state


def test_short_names_are_numbers_and_other_names_stay():
    assert short_shard(shard(3)) == "003"
    assert short_shard(shard(12345)) == "12345"
    assert short_shard(f"{MULTI}:{shard(3)}") == f"{MULTI}:003"
    assert short_shard("w1") == "w1"
    assert short_shard("shardId-3") == "shardId-3"
