"""Readiness and the start of a fleet that was broken off."""

from pykcl.events import (
    InvalidLeaseRow,
)
from pykcl.local.errors import AwsError
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, throttled

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def _no_listing(fleet, group=None):
    """A fault: shards cannot be listed, by nobody or not by this worker."""

    def fault(operation, stream, shard):
        if operation == "ListShards" and group in (None, fleet.simulation.current_group):
            raise AwsError("LimitExceededException", "too many")

    return fault


def test_a_worker_whose_start_was_broken_off_takes_over_though_it_cannot_list_the_shards(new_fleet):
    fleet = new_fleet(shards=2)

    def refuse(operation, params):
        mine = fleet.simulation.current_group == "w1"
        if mine and operation == "PutItem" and params["Item"]["leaseKey"]["S"] == SECOND:
            fleet.kinesis.fault = _no_listing(fleet, "w1")
            return Fault(before=throttled(operation))
        return None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait(lambda: fleet.kinesis.fault is not None, what="the broken start")
    fleet.start("w2")
    fleet.wait(lambda: set(fleet.owners()) == {FIRST, SECOND} and None not in fleet.owners().values())
    fleet.simulation.kill("w2")
    fleet.wait_delivered(fleet.put(10), 90)
    assert set(fleet.owners().values()) == {"w1"}


def test_a_scan_that_fails_after_all_leases_of_a_start_were_created_does_not_wait_for_a_listing(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    began, created, failed = fleet.simulation.now, [], []

    def refuse(operation, params):
        if operation == "PutItem":
            created.append(operation)
        if operation == "Scan" and len(created) == 2 and fleet.simulation.now < began + 8:
            failed.append(operation)
            fleet.kinesis.fault = _no_listing(fleet)
            return Fault(before=throttled(operation))
        return None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait_delivered(put, 60)
    assert failed


def test_a_child_of_a_row_that_cannot_be_read_does_not_keep_a_worker_from_being_ready(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1", cleanup_interval=600.0)
    fleet.kinesis.split(STREAM, FIRST)
    fleet.wait_delivered(fleet.put(20))
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended)
    fleet.workers["w1"].stop()
    fleet.dynamodb.put_item(
        TableName=TABLE, Item={**fleet.items()[FIRST], "checkpoint": {"S": "not a number"}}
    )
    worker = fleet.start("w2", cleanup_interval=0.0)
    assert worker.wait_ready(60)
    assert fleet.happened(InvalidLeaseRow)
    children = {
        shard.shard_id
        for shard in fleet.kinesis.list_shards(STREAM, operation=None)
        if FIRST in shard.parents
    }
    assert {fleet.owners()[child] for child in children} == {None}
    assert fleet.owners()[SECOND] == "w2"
