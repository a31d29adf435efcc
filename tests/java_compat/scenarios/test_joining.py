"""Scenarios 1 to 4: who comes first, who comes later, and who comes in between."""

from itertools import pairwise

import pytest

from pykcl.testing.fleet import TABLE
from tests.java_compat.scenarios.scenario_fleet import owner_in
from tests.java_peer.lease import read_row


def test_scenario_01_pykcl_joins_java_s_fleet_and_steals_up_to_its_share(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.put_everywhere(3)
    # Of three records Java's application checkpoints the second one: each move repeats exactly the third.
    fleet.start_java("j1", application=lambda _, __, records: records[1].position)
    fleet.wait(lambda: len(fleet.java_did("checkpointed")) == 4, what="Java to read everything")
    fleet.start_pykcl("p1")
    fleet.wait_balanced("j1", "p1")
    fleet.simulation.sleep(45)
    moved = [key for key, owner in fleet.owners().items() if owner == "p1"]
    assert len(moved) == 2
    for key in fleet.rows():
        assert fleet.owner_changes(key) == [None, "j1", *(["p1"] if key in moved else [])]
    assert fleet.ledger.duplicates == len(moved)


@pytest.mark.parametrize("version", ["2.7.2", "3.5.1"])
def test_scenario_02_java_joins_pykcl_s_table_reads_every_row_and_reaches_its_target(new_fleet, version):
    fleet = new_fleet(shards=3)
    fleet.start_pykcl("p1")
    fleet.put_everywhere(2, packed=2)
    fleet.wait_all_delivered()
    fleet.split(fleet.open_shards()[0])
    fleet.wait(lambda: len(fleet.rows()) == 5, what="the children")
    for row in fleet.items().values():
        read_row(row)
    fleet.start_java("j1", version=version)
    fleet.put_everywhere(2)
    fleet.wait_balanced("j1", "p1")
    assert fleet.load()["j1"] == 2
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    # The checker reports each row that Java's taker cannot read.
    assert not [event for event in fleet.java_did("failed") if "RowUnreadable" in event.detail]


def test_scenario_03_both_start_on_a_missing_table_at_once(new_fleet):
    fleet = new_fleet(shards=4)
    java = fleet.java_by_hand("j1")
    shards = list(fleet.shards().values())

    def create_every_other_one():
        for shard in shards[::2]:
            java.create(shard)

    # pykcl has seen that there is no table; and again that there is no row.
    fleet.when("p1", "CreateTable", java.create_table)
    fleet.when("p1", "create", create_every_other_one)
    fleet.start_pykcl("p1")
    fleet.wait(lambda: len(fleet.rows()) == 4, what="the leases")
    assert fleet.all_steps_ran()
    assert list(fleet.dynamodb.tables) == [TABLE]
    created = [change for change in fleet.dynamodb.changes if change.operation == "PutItem"]
    assert all(change.before is None for change in created)
    assert sorted(change.key for change in created) == sorted(fleet.shards())
    assert {change.author for change in created} == {"j1", "p1"}
    assert java.scan().keys() == fleet.shards().keys()


def test_scenario_03_both_start_at_once_and_share(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start_pykcl("p1")
    fleet.start_java("j1", startup_wait=1.0)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait_balanced("j1", "p1")
    created = [change.key for change in fleet.dynamodb.changes if change.operation == "PutItem"]
    assert sorted(created) == sorted(fleet.shards())


def test_scenario_04_java_creates_takes_and_checkpoints_between_pykcl_s_scan_and_create(new_fleet):
    fleet = new_fleet()
    java = fleet.java_by_hand("j1")
    java.create_table()
    (key,) = fleet.shards()
    fleet.put_everywhere(2)
    after_java = []

    def java_was_first():
        assert java.create(fleet.shards()[key])
        assert java.take(key)
        assert java.checkpoint(key, fleet.java_read(key))
        fleet.keep_renewing(java, key)
        after_java.append(fleet.items()[key])

    fleet.when("p1", "create", java_was_first)
    fleet.start_pykcl("p1")
    fleet.wait(lambda: bool(after_java), what="pykcl to create the lease")
    fleet.simulation.sleep(1)
    assert fleet.items()[key] == after_java[0]
    fleet.simulation.sleep(30)
    assert not fleet.changes_by("p1")
    assert {owner_in(change.after) for change in fleet.changes_of(key)} == {None, "j1"}
    counters = [int(change.after["leaseCounter"]["N"]) for change in fleet.changes_of(key)]
    assert all(later == earlier + 1 for earlier, later in pairwise(counters))
