"""A worker tells what it has joined, refuses a native fleet of Java KCL 3.x, and goes on where a fleet changes later."""

import logging
from dataclasses import replace

import pytest

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import NativeFleet, WrongStream
from pykcl.event_dispatch import log_event
from pykcl.events import (
    FailureStarted,
    FleetChanged,
    FleetJoined,
    FleetUpgradedToV3,
    LeaseTaken,
)
from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import to_item
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Fault
from tests.java_peer.peer import java_peer

COORDINATOR_STATE_TABLE = f"{TABLE}-CoordinatorState"


def create_table(fleet, name=TABLE, key="leaseKey"):
    fleet.dynamodb.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )


def put_state(fleet, version, *, table=TABLE):
    key = "leaseKey" if table == TABLE else "key"
    row = {
        key: {"S": "Migration3.0"},
        "cv": {"S": version},
        "mb": {"S": "j1"},
        "mts": {"N": "1"},
        "h": {"L": []},
    }
    if table == TABLE:
        row["entityType"] = {"S": "CLIENT_VERSION_MIGRATION"}
    if table not in fleet.dynamodb.tables:
        create_table(fleet, table, key)
    fleet.dynamodb.put_raw(table, row)


def start_java(fleet, *names, **options):
    peers = [java_peer(fleet, name, **{"startup_wait": 2.0, "parent_poll": 1.0, **options}) for name in names]
    for peer in peers:
        peer.start()
    fleet.wait(
        lambda: TABLE in fleet.dynamodb.tables and set(names) <= fleet.load().keys(), 180, "leases for Java"
    )
    return peers


def joined(fleet, name):
    return [event for who, event in fleet.events if who == name and isinstance(event, FleetJoined)]


def state_requests(fleet):
    return [
        params for _, params in fleet.dynamodb.requests if params.get("TableName") == COORDINATOR_STATE_TABLE
    ]


# -- what is told ----------------------------------------------------------------------------------------------


def test_a_worker_tells_in_one_line_whom_it_has_joined(new_fleet, caplog):
    fleet = new_fleet(shards=6)
    start_java(fleet, "j1", "j2")
    fleet.start("p1")
    fleet.wait(lambda: fleet.load().get("p1"), what="a lease for p1")
    fleet.start("p2")
    fleet.wait(lambda: joined(fleet, "p2"))
    (first,), (second,) = joined(fleet, "p1"), joined(fleet, "p2")
    assert (first.beside, first.kind) == ("2 Java workers (KCL 2.x)", "Java KCL 2.x")
    assert second.beside == "2 Java workers (KCL 2.x), 1 pykcl worker"
    with caplog.at_level(logging.INFO, logger="pykcl"):
        log_event(second)
    assert "beside='2 Java workers (KCL 2.x), 1 pykcl worker'" in caplog.text
    assert "failover_time=10.0" in caplog.text


def test_the_first_worker_of_all_is_alone(new_fleet):
    fleet = new_fleet()
    fleet.start("p1")
    fleet.wait(lambda: joined(fleet, "p1"))
    assert [event.beside for event in joined(fleet, "p1")] == ["nobody else"]


def test_a_fleet_that_becomes_another_one_is_told_once_and_only_if_it_lasts(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("p1")
    fleet.wait(lambda: fleet.load().get("p1") == 4)
    fleet.simulation.sleep(60)
    assert not fleet.happened(FleetChanged)
    start_java(fleet, "j1")
    fleet.wait(lambda: fleet.happened(FleetChanged))
    (changed,) = fleet.happened(FleetChanged)
    assert (changed.kind, changed.beside) == ("Java KCL 2.x", "1 Java worker (KCL 2.x)")
    fleet.simulation.sleep(120)
    assert len(fleet.happened(FleetChanged)) == 1


def test_a_worker_that_dies_at_once_has_not_changed_the_fleet(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("p1")
    fleet.wait(lambda: fleet.load().get("p1") == 4)
    fleet.wait(lambda: joined(fleet, "p1"))
    start_java(fleet, "j1")
    fleet.simulation.kill("j1")
    fleet.simulation.sleep(90)
    assert not fleet.happened(FleetChanged)


def test_a_state_of_kcl_3_that_is_compatible_is_joined_and_told_by_its_evidence(new_fleet):
    fleet = new_fleet()
    put_state(fleet, "CLIENT_VERSION_UPGRADE_FROM_2X", table=COORDINATOR_STATE_TABLE)
    start_java(fleet, "j1")
    fleet.start("p1")
    fleet.wait(lambda: joined(fleet, "p1"))
    (event,) = joined(fleet, "p1")
    assert event.kind == "Java KCL 3.x, compatible with 2.x"
    assert event.evidence == ("CLIENT_VERSION_UPGRADE_FROM_2X in the state table of KCL 3.0-3.4",)


# -- native fleets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [TABLE, COORDINATOR_STATE_TABLE])
@pytest.mark.parametrize("version", ["CLIENT_VERSION_3X", "CLIENT_VERSION_3X_WITH_ROLLBACK"])
def test_a_native_fleet_is_refused_with_the_way_out_and_left_as_it_is(new_fleet, table, version):
    fleet = new_fleet()
    create_table(fleet)
    put_state(fleet, version, table=table)
    before = {name: fleet.dynamodb.rows(name) for name in fleet.dynamodb.tables}
    with pytest.raises(NativeFleet, match=version) as refused:
        fleet.start("p1")
    text = str(refused.value)
    assert "no index of owners" in text
    assert "COMPATIBLE_WITH_2X_PHASE1" in text
    assert ("KclMigrationTool" in text) == (version == "CLIENT_VERSION_3X_WITH_ROLLBACK")
    assert {name: fleet.dynamodb.rows(name) for name in fleet.dynamodb.tables} == before


def test_a_table_of_several_streams_is_refused_and_left_as_it_is(new_fleet):
    fleet = new_fleet()
    create_table(fleet)
    key = "123456789012:orders:1790000000000:shardId-000000000000"
    fleet.dynamodb.put_raw(
        TABLE, {"leaseKey": {"S": key}, "leaseCounter": {"N": "1"}, "streamName": {"S": "x"}}
    )
    before = fleet.dynamodb.rows(TABLE)
    with pytest.raises(WrongStream, match="several streams"):
        fleet.start("p1")
    assert fleet.dynamodb.rows(TABLE) == before


def test_a_scan_older_than_the_leases_a_peer_just_made_does_not_refuse_the_table(new_fleet, monkeypatch):
    fleet = new_fleet(shards=2)
    create_table(fleet)
    key = "123456789012:orders:1790000000000:shardId-000000000000"
    fleet.dynamodb.put_raw(
        TABLE, {"leaseKey": {"S": key}, "leaseCounter": {"N": "1"}, "streamName": {"S": "x"}}
    )
    before = DynamoDBLeaseTable.scan
    scans = []

    def old(table, **how):
        found = before(table, **how)
        scans.append(found)
        rows = [row for row in found.rows if not isinstance(row, Lease)] if len(scans) < 3 else found.rows
        return replace(found, rows=tuple(rows))

    fleet.dynamodb.put_raw(TABLE, to_item(Lease("shardId-000000000000", AT_TRIM_HORIZON)))
    monkeypatch.setattr(DynamoDBLeaseTable, "scan", old)
    fleet.start("p1")
    fleet.wait(lambda: fleet.load() == {"p1": 2}, what="both leases")
    assert len(scans) > 2


def test_a_fleet_that_goes_native_meanwhile_is_reported_and_nothing_is_lost_or_stolen(new_fleet):
    fleet = new_fleet(shards=4)
    start_java(fleet, "j1")
    fleet.start("p1")
    fleet.wait(lambda: fleet.load() == {"j1": 2, "p1": 2}, what="an even load")
    put_state(fleet, "CLIENT_VERSION_3X")
    fleet.wait(lambda: fleet.happened(FleetUpgradedToV3), 20)
    taken = len(fleet.happened(LeaseTaken))
    fleet.kinesis.split("orders", next(key for key, owner in fleet.owners().items() if owner == "j1"))
    put = fleet.put(30, "later")
    fleet.wait_delivered(put)
    fleet.simulation.sleep(60)
    new = fleet.happened(LeaseTaken)[taken:]
    assert "rebalance" not in {event.reason for event in new}
    assert fleet.load()["p1"] >= 2
    assert len(fleet.happened(FleetUpgradedToV3)) == 1
    assert fleet.workers["p1"].failure is None
    # A way back is told as well, and makes it a peer again.
    put_state(fleet, "CLIENT_VERSION_2X")
    fleet.wait(lambda: fleet.happened(FleetChanged))
    assert fleet.happened(FleetChanged)[-1].kind == "Java KCL 3.x, compatible with 2.x"
    assert fleet.workers["p1"].leases


def test_nothing_is_stolen_any_more_once_the_fleet_is_native(new_fleet):
    fleet = new_fleet(shards=10)
    start_java(fleet, "j1")
    fleet.start("p1")
    fleet.wait(lambda: fleet.load()["p1"] >= 1, what="a first steal")
    put_state(fleet, "CLIENT_VERSION_3X_WITH_ROLLBACK")
    fleet.wait(lambda: fleet.happened(FleetUpgradedToV3), 20)
    held = fleet.load()["p1"]
    assert held < 5
    fleet.simulation.sleep(120)
    assert fleet.load() == {"p1": held, "j1": 10 - held}
    put_state(fleet, "CLIENT_VERSION_2X")
    fleet.wait(lambda: fleet.load() == {"p1": 5, "j1": 5}, what="an even load after the way back")


@pytest.mark.parametrize("left_over", [True, False])
def test_a_lock_alone_is_believed_once_later_scans_show_no_client_version_either(new_fleet, left_over):
    """Seed 1209: a scan read the rows of a table while it was restored, the lock before the client version."""
    fleet = new_fleet(shards=1)
    fleet.start("p1")
    fleet.wait(lambda: joined(fleet, "p1"))
    lock = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, "ownerName": {"S": "j1"}}
    fleet.dynamodb.put_raw(TABLE, lock)
    fleet.simulation.sleep(6)
    if left_over:
        put_state(fleet, "CLIENT_VERSION_2X")
    fleet.simulation.sleep(30)
    assert len(fleet.happened(FleetUpgradedToV3)) == (0 if left_over else 1)


def test_a_fleet_that_is_rolled_back_right_after_the_scan_is_not_reported(new_fleet, monkeypatch):
    """Native seed 870: between its scan and its read of the index the worker stood still."""
    fleet = new_fleet(shards=1)
    fleet.start("p1")
    fleet.wait(lambda: joined(fleet, "p1"))
    scan, scans, start = DynamoDBLeaseTable.scan, [], fleet.simulation.now

    def before_the_rollback(table, **how):
        # For long enough that one of the scans is compared with what was known before.
        if fleet.simulation.now - start < 6:
            put_state(fleet, "CLIENT_VERSION_3X_WITH_ROLLBACK")
        scans.append(scan(table, **how))
        put_state(fleet, "CLIENT_VERSION_2X")
        return scans[-1]

    monkeypatch.setattr(DynamoDBLeaseTable, "scan", before_the_rollback)
    fleet.simulation.sleep(60)
    assert len(scans) > 2
    assert not fleet.happened(FleetUpgradedToV3)


def test_a_hand_off_that_begins_where_no_state_can_be_read_is_reported(new_fleet):
    fleet = new_fleet(shards=3)
    start_java(fleet, "j1", "j2")
    fleet.start("p1")
    fleet.wait(lambda: joined(fleet, "p1") and fleet.load().get("p1"))
    key, owner = next((key, owner) for key, owner in fleet.owners().items() if owner in ("j1", "j2"))
    row = fleet.dynamodb.tables[TABLE].rows[key]
    counter = {"leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 1)}}
    fleet.dynamodb.put_raw(TABLE, {**row, **counter, "checkpointOwner": {"S": owner}})
    fleet.wait(lambda: fleet.happened(FleetUpgradedToV3), 20)


# -- the state table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        aws_error("AccessDeniedException", "no", "GetItem"),
        aws_error("ValidationException", "no", "GetItem"),
        aws_error("InternalServerError", "no", "GetItem"),
    ],
    ids=["denied", "another key", "down"],
)
def test_a_state_table_that_cannot_be_read_is_no_trouble_and_asked_for_rarely(new_fleet, error):
    fleet = new_fleet(shards=2)
    fleet.dynamodb.fault = lambda _, params: (
        Fault(before=error) if params["TableName"] == COORDINATOR_STATE_TABLE else None
    )
    start_java(fleet, "j1")
    put = fleet.put(10)
    fleet.start("p1")
    fleet.wait_delivered(put)
    fleet.wait(lambda: joined(fleet, "p1"))
    assert "state table of KCL 3.0-3.4 not read" in joined(fleet, "p1")[0].evidence[0]
    asked = len(state_requests(fleet))
    assert 1 <= asked <= 4
    fleet.simulation.sleep(300)
    assert len(state_requests(fleet)) == asked
    # The Java worker of these tests cannot read it either, and needs not to.
    assert not [
        event for event in fleet.happened(FailureStarted) if event.what != "preparing the lease table"
    ]


def test_the_state_table_is_asked_for_once_while_nobody_could_have_written_it(new_fleet):
    fleet = new_fleet()
    fleet.start("p1")
    fleet.start("p2")
    fleet.simulation.sleep(300)
    assert len(state_requests(fleet)) == 2


def test_the_state_table_is_looked_at_once_a_minute_beside_java(new_fleet):
    fleet = new_fleet()
    start_java(fleet, "j1")
    fleet.start("p1")
    fleet.simulation.sleep(300)
    assert 4 <= len(state_requests(fleet)) <= 7
    put_state(fleet, "CLIENT_VERSION_3X_WITH_ROLLBACK", table=COORDINATOR_STATE_TABLE)
    fleet.wait(lambda: fleet.happened(FleetUpgradedToV3), 80)
