"""Scenarios 29, 30, 31, 37 and 38: rows that are malformed, not leases, of another stream, or written by a careless library."""

import pytest

from pykcl.errors import WrongStream
from pykcl.events import InvalidLeaseRow, LeaseTaken
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.testing.fleet import TABLE
from tests.java_compat.scenarios.careless_worker import CarelessWorker
from tests.java_compat.scenarios.scenario_fleet import (
    FAILOVER,
    counter_in,
    create_indexed_table,
    kind_of,
    owner_in,
)
from tests.java_peer.lease import read_row

N0 = {"N": "0"}
LEASE = {
    "leaseCounter": {"N": "7"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": N0,
    "ownerSwitchesSinceCheckpoint": N0,
}
MALFORMED = {
    "no counter": {name: value for name, value in LEASE.items() if name != "leaseCounter"},
    "junk hash range": {**LEASE, "startingHashKey": {"S": "0x00"}, "endingHashKey": {"S": "ff"}},
    "hash range the wrong way round": {**LEASE, "startingHashKey": {"S": "9"}, "endingHashKey": {"S": "3"}},
    "counter of text": {**LEASE, "leaseCounter": {"S": "7"}},
    "no checkpoint": {name: value for name, value in LEASE.items() if name != "checkpoint"},
    "junk checkpoint": {**LEASE, "checkpoint": {"S": "12ab"}},
}
NOT_LEASES = {
    "Leader": {"entityType": {"S": "LEADER"}, "leaderName": {"S": "w1"}, "leaseDuration": {"N": "120000"}},
    "Migration3.0": {
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": "CLIENT_VERSION_UPGRADE_FROM_2X"},
        "mb": {"S": "w1"},
        "mts": {"N": "1795226977089"},
        "h": {"L": []},
    },
    "TableMigration3.5": {
        "entityType": {"S": "TABLE_MIGRATION"},
        "tm": {"S": "INIT"},
        "mb": {"S": "w1"},
        "mts": {"N": "1795226977089"},
    },
    "w1": {
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "1795226979"},
        "slu": {"N": "1795226979"},
        "sup": {"N": "1"},
        "sts": {"M": {"C": {"L": [{"N": "80.5"}]}}},
        "opr": {"M": {}},
    },
    "123456789012:orders:1790000000": {
        "entityType": {"S": "STREAM"},
        "streamId": {"S": "123456789012:orders:1790000000"},
    },
}
OTHER_STREAMS = {
    f"123456789012:other:1790000000:shardId-00000000000{number}": {
        **LEASE,
        "streamName": {"S": "123456789012:other:1790000000"},
        "shardId": {"S": f"shardId-00000000000{number}"},
        **({"leaseOwner": {"S": f"multi-{number}"}} if number else {}),
    }
    for number in range(3)
}


def a_table_with(fleet, rows):
    java = fleet.java_with_leases("j0")
    for key, row in rows.items():
        fleet.dynamodb.put_raw(TABLE, {"leaseKey": {"S": key}, **row})
    return java


def is_untouched(fleet, rows):
    found = fleet.dynamodb.rows(TABLE)
    return all(found[key] == {"leaseKey": {"S": key}, **row} for key, row in rows.items()) and not [
        change for change in fleet.dynamodb.changes if change.key in rows
    ]


def cycles(fleet, count):
    """Until pykcl has scanned the table so often."""
    wanted = len(pykcl_scans(fleet)) + count
    fleet.wait(lambda: len(pykcl_scans(fleet)) >= wanted, 400, f"{count} scans")


def pykcl_scans(fleet):
    return [
        params
        for operation, params in fleet.dynamodb.requests
        if operation == "Scan" and params.get("ReturnConsumedCapacity") and "ExclusiveStartKey" not in params
    ]


def test_scenario_29_malformed_rows_are_reported_once_and_nothing_else_is_touched(new_fleet):
    fleet = new_fleet(shards=2)
    rows = {f"shardId-99999999999{number}": row for number, row in enumerate(MALFORMED.values())}
    a_table_with(fleet, rows)
    fleet.start_pykcl("p1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    cycles(fleet, 10)
    assert sorted(event.key for event in fleet.happened(InvalidLeaseRow)) == sorted(rows)
    assert is_untouched(fleet, rows)
    assert {change.key for change in fleet.changes_by("p1")} == set(fleet.shards())


def test_scenario_29_an_owner_of_type_null_is_nobody_and_is_replaced_by_a_text(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.java_with_leases("j0")
    low, high = sorted(fleet.shards())
    for key in (low, high):
        fleet.dynamodb.put_raw(TABLE, {**fleet.items()[key], "leaseOwner": {"NULL": True}})
    fleet.start_pykcl("p1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    assert fleet.items()[low]["leaseOwner"] == fleet.items()[high]["leaseOwner"] == {"S": "p1"}
    fleet.stop_pykcl("p1")
    assert "leaseOwner" not in fleet.items()[low]


def test_scenario_30_rows_that_are_no_leases_are_never_counted_updated_or_deleted(new_fleet):
    fleet = new_fleet(shards=2)
    a_table_with(fleet, NOT_LEASES)
    fleet.start_pykcl("p1", cleanup_interval=3.0)
    fleet.start_pykcl("p2", cleanup_interval=3.0)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    # With the five rows among the leases, each would want four of seven.
    fleet.wait_balanced("p1", "p2")
    owners = fleet.owners()
    cycles(fleet, 20)
    assert fleet.owners() == owners
    assert is_untouched(fleet, NOT_LEASES)
    assert not fleet.happened(InvalidLeaseRow)
    assert {event.shard for event in fleet.happened(LeaseTaken)} == set(fleet.shards())


def test_scenario_31_with_the_index_of_owners_every_owner_pykcl_writes_is_text_or_removed(new_fleet):
    fleet = new_fleet(shards=2)
    create_indexed_table(fleet)
    fleet.start_pykcl("p1")
    fleet.start_pykcl("p2")
    fleet.put_everywhere(2)
    fleet.wait_settled("p1", "p2")
    fleet.wait_all_delivered()
    fleet.split(fleet.open_shards()[0])
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.simulation.kill("p2")
    fleet.wait_balanced("p1")
    fleet.stop_pykcl("p1")
    kinds = set()
    for operation, params in fleet.dynamodb.requests:
        if operation not in ("PutItem", "UpdateItem"):
            continue
        kinds.add(kind_of(operation, params))
        assert "leaseOwner" not in params.get("Item", {})
        assert "AttributeUpdates" not in params
        text = params.get("ExpressionAttributeValues", {}).get(":leaseOwner", {"S": "absent"})
        assert set(text) == {"S"}
        assert text["S"]
    assert kinds >= {"create", "take", "renew", "checkpoint", "end", "release"}
    # With the index, DynamoDB itself refuses a row whose owner is anything else.
    assert {owner_in(row) for row in fleet.items().values()} == {None}


def test_scenario_37_rows_of_a_multi_stream_application_are_ignored_and_untouched(new_fleet):
    fleet = new_fleet(shards=2)
    a_table_with(fleet, OTHER_STREAMS)
    fleet.start_pykcl("p1", cleanup_interval=3.0)
    fleet.start_pykcl("p2", cleanup_interval=3.0)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait_balanced("p1", "p2")
    cycles(fleet, 20)
    assert is_untouched(fleet, OTHER_STREAMS)


def test_scenario_37_a_table_of_a_multi_stream_application_alone_is_refused_and_untouched(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.java_by_hand("j0").create_table()
    for key, row in OTHER_STREAMS.items():
        fleet.dynamodb.put_raw(TABLE, {"leaseKey": {"S": key}, **row})
    with pytest.raises(WrongStream, match="several streams"):
        fleet.pykcl_worker("p1").start()
    assert is_untouched(fleet, OTHER_STREAMS)
    assert not fleet.dynamodb.changes


# -- 38 --------------------------------------------------------------------------------------------------------


def careless_fleet(new_fleet):
    fleet = new_fleet()
    fleet.unchecked.add("r1")
    return fleet, CarelessWorker("r1", fleet.client_of("r1"), TABLE)


def test_scenario_38_a_live_lease_of_pykcl_is_overwritten_and_nothing_is_lost(new_fleet):
    fleet, careless = careless_fleet(new_fleet)
    (key,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(FAILOVER)
    assert fleet.rows()[key].counter > 3
    careless.create(fleet.shards()[key])
    assert (fleet.rows()[key].counter, fleet.rows()[key].checkpoint) == (0, AT_TRIM_HORIZON)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.rows()[key].checkpoint == fleet.position(key, 3), what="the last checkpoint")
    assert fleet.owners()[key] == "p1"
    # It noticed, and began again at what the row says: twice is not lost.
    assert fleet.lost_by("p1") == [key]
    assert fleet.ledger.payloads.keys() == {b"p1.0", b"p2.0", b"p3.0", b"p4.0"}


def test_scenario_38_a_stale_sub_sequence_number_is_healed_by_pykcl_s_next_checkpoint(new_fleet):
    fleet, careless = careless_fleet(new_fleet)
    (key,) = fleet.shards()
    java = fleet.java_with_leases("j1", key)
    fleet.put_everywhere(packed=10)
    assert java.checkpoint(key, fleet.java_read(key))
    fleet.put_everywhere(3)
    careless.take(key, "j1")
    assert fleet.rows()[key].counter == 1
    careless.checkpoint(key, fleet.position(key, 10))
    assert fleet.rows()[key].checkpoint == Checkpoint(fleet.position(key, 10).sequence_number, 9)
    fleet.done[key].add(fleet.position(key, 10))
    fleet.start_pykcl("p1")
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.rows()[key].checkpoint == fleet.position(key, 12), what="the checkpoint")
    assert fleet.items()[key]["checkpointSubSequenceNumber"] == N0
    assert fleet.ledger.by("p1") == [b"p3.0", b"p4.0"]


def test_scenario_38_pykcl_takes_only_what_stood_still_though_counters_are_reset(new_fleet):
    fleet, careless = careless_fleet(new_fleet)
    (key,) = fleet.shards()
    fleet.java_with_leases("j1", key)
    fleet.start_pykcl("p1")
    # Each take puts the counter back to 1: to a scan in between nothing seems to have moved.
    for _ in range(6):
        careless.take(key, owner_in(fleet.items()[key]))
        fleet.simulation.sleep(FAILOVER / 2)
    assert owner_in(fleet.items()[key]) in ("r1", "p1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait_owner("p1", key)


def test_scenario_38_pykcl_s_own_writes_share_none_of_the_faults(new_fleet):
    fleet, careless = careless_fleet(new_fleet)
    (key,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    careless.take(key, "p1")
    fleet.put_everywhere(packed=4)
    careless.checkpoint(key, fleet.position(key, 0))
    fleet.wait_all_delivered()
    fleet.split(key)
    fleet.wait(lambda: key in fleet.rows() and fleet.rows()[key].is_ended, what="the end")
    for change in fleet.changes_by("p1"):
        params = change.params
        assert params["ConditionExpression"], "never unconditional, so never an upsert"
        if change.operation != "UpdateItem":
            continue
        assert ":seenCounter" in params["ExpressionAttributeValues"]
        assert "SET" in params["UpdateExpression"]
        assert counter_in(change.after) == counter_in(change.before) + 1
        if ":checkpoint" in params["ExpressionAttributeValues"]:
            assert ":checkpointSubSequenceNumber" in params["ExpressionAttributeValues"]
        read_row(change.after)
    ended = fleet.items()[key]
    assert ended["checkpointSubSequenceNumber"] == N0
    assert sorted(ended["childShardIds"]["SS"]) == fleet.open_shards()
