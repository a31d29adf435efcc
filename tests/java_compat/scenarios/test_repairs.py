"""Scenarios 26 and 28: what Java's rule makes the duty of one worker, whichever library that worker is of."""

import pytest

from pykcl.planning.leader import leader
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Fault, throttled

PYKCL_IDS = {"java": "p1", "pykcl": "a1"}
"""Who leads beside Java's j1 -> pykcl's worker identifier."""
AUDIT = 10.0
LEADERS = pytest.mark.parametrize("leads", list(PYKCL_IDS))


def a_fleet(new_fleet, leads, shards=4, before=lambda fleet: None):
    """Half Java's, half pykcl's, of which the one or the other is elected."""
    fleet, pykcl = new_fleet(shards=shards), PYKCL_IDS[leads]
    before(fleet)
    fleet.start_java("j1", auditor_interval=AUDIT, election_interval=AUDIT)
    fleet.start_pykcl(pykcl, audit_interval=AUDIT)
    fleet.wait_settled("j1", pykcl)
    assert leader(owner for owner in fleet.owners().values() if owner) == ("j1" if leads == "java" else pykcl)
    return fleet, pykcl


def lose_row_of(fleet, owner):
    lost = next(key for key, name in sorted(fleet.owners().items()) if name == owner)
    fleet.unchecked.add("operator")
    fleet.client_of("operator").delete_item(TableName=TABLE, Key={"leaseKey": {"S": lost}})
    return lost, len(fleet.dynamodb.changes)


def who_put_it_back(fleet, key, since):
    return [
        change.author
        for change in fleet.dynamodb.changes[since:]
        if (change.key, change.operation) == (key, "PutItem")
    ]


def is_read_again(fleet, lost):
    fleet.put_everywhere(2)
    fleet.wait(lambda: fleet.owners().get(lost), what="a new row of the lost lease, and an owner")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()


@LEADERS
@pytest.mark.parametrize("owner", ["java", "pykcl"])
def test_scenario_26_the_lost_row_of_an_open_shard_is_put_back_once(new_fleet, leads, owner):
    fleet, pykcl = a_fleet(new_fleet, leads)
    lost, since = lose_row_of(fleet, "j1" if owner == "java" else pykcl)
    is_read_again(fleet, lost)
    fleet.wait_settled("j1", pykcl)
    # pykcl lists the shards more often than Java audits, so it is the first also where it does not lead.
    assert who_put_it_back(fleet, lost, since) == [pykcl]


@pytest.mark.parametrize("backend", ["memory"])
def test_scenario_26_where_java_leads_and_pykcl_may_not_create_java_puts_it_back(new_fleet):
    fleet, pykcl = a_fleet(new_fleet, "java")
    fleet.when(pykcl, "create", lambda: Fault(before=throttled()), always=True)
    lost, since = lose_row_of(fleet, pykcl)
    is_read_again(fleet, lost)
    assert who_put_it_back(fleet, lost, since) == ["j1"]
    fleet.wait_balanced("j1", pykcl)


@pytest.mark.parametrize("backend", ["memory"])
def test_scenario_26_where_pykcl_leads_java_does_not_put_it_back(new_fleet):
    fleet, pykcl = a_fleet(new_fleet, "pykcl")
    fleet.when(pykcl, "create", lambda: Fault(before=throttled()), always=True)
    lost, since = lose_row_of(fleet, "j1")
    fleet.put_everywhere(2)
    fleet.simulation.sleep(8 * AUDIT)
    assert who_put_it_back(fleet, lost, since) == []
    fleet.forget_steps()
    is_read_again(fleet, lost)
    assert who_put_it_back(fleet, lost, since) == [pykcl]


def rows_of_an_old_java(fleet):
    fleet.java_with_leases("j0")
    for key, row in fleet.items().items():
        fleet.dynamodb.put_raw(TABLE, {name: row[name] for name in row if not name.endswith("ingHashKey")})
        assert fleet.rows()[key].hash_range is None


@LEADERS
def test_scenario_28_the_leader_fills_in_hash_ranges_and_pykcl_goes_on(new_fleet, leads):
    fleet, pykcl = a_fleet(new_fleet, leads, shards=2, before=rows_of_an_old_java)
    fleet.put_everywhere(2)
    shards = fleet.shards()
    fleet.wait(
        lambda: all(fleet.rows()[key].hash_range == shard.hash_range for key, shard in shards.items()),
        what="the hash ranges",
    )
    filled = [
        change.author
        for change in fleet.dynamodb.changes
        if change.before and "startingHashKey" not in change.before and "startingHashKey" in change.after
    ]
    assert "j1" in filled if leads == "java" else pykcl in filled
    since = len(fleet.ledger.calls)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(12)
    assert not [call for call in fleet.ledger.calls[since:] if call[1] == "lease_lost"]
    assert fleet.load()[pykcl] == 1


def test_scenario_28_rows_of_pykcl_need_no_back_fill(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start_pykcl("p1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.split(fleet.open_shards()[0])
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.start_java("j1", auditor_interval=AUDIT, election_interval=AUDIT)
    fleet.wait_balanced("j1", "p1")
    # Twice, so that it has elected itself and looked.
    fleet.simulation.sleep(3 * AUDIT)
    assert leader(["j1", "p1"]) == "j1"
    assert not [
        params
        for operation, params in fleet.dynamodb.requests
        if operation == "UpdateItem"
        and set(params.get("AttributeUpdates", ())) == {"startingHashKey", "endingHashKey"}
    ]
    for key, shard in fleet.shards().items():
        if key in fleet.rows():
            assert fleet.rows()[key].hash_range == shard.hash_range
