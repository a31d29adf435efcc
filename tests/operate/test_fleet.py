"""Fleets of KCL 3.x as an operator sees them: leader, members and guests, whatever their rows hold."""

import pytest
from fleet_table import METRICS, NAME, STATE, FleetTable, lease, metrics_item, note, old, shard

from pykcl.model.lease_item import to_item
from pykcl.operate.fleet import Standing, fleet_hints, fleet_of, ids_of_shards, leader_text, plain
from pykcl.operate.hints import hints_of
from pykcl.operate.states import owner_kinds, states_of
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.dynamodb import denied as access_denied
from tests.java_compat.scenarios import java_3x

CPU = {"C": [12.5]}
FULL = {"C": [100]}


def overview(table):
    return fleet_of(table.sampler().poll())


def standings(table):
    return {one.worker: one.standing for one in overview(table).members}


def hints(table):
    found = table.sampler().poll()
    return hints_of(found, states_of(found, 10), 10, is_known=True)


def test_a_table_that_no_worker_of_3x_has_touched_has_no_fleet_of_3x(table):
    table.put(lease(0, "w1"), lease(1))
    assert overview(table) is None
    assert list(fleet_hints(None)) == []


def test_members_guests_and_the_leader_with_what_each_delivers(table):
    table.lead("j1")
    table.put(
        lease(0, "j1", throughput="100.5"),
        lease(1, "j1", throughput="20"),
        lease(2, "p1", metadata=note("p1")),
        lease(3, "guest"),
        lease(4, "j1", checkpoint_owner="p1", throughput="7"),
    )
    table.report("j1", sts=CPU, opr=FULL)
    table.report("p1")
    found = overview(table)
    assert (found.client_version, found.is_native, found.leader_name) == (java_3x.NATIVE, True, "j1")
    members = {one.worker: one for one in found.members}
    assert (members["j1"].leases, members["j1"].throughput, members["j1"].metrics) == (2, 120.5, {"C": 12.5})
    assert members["j1"].is_leader
    assert not members["p1"].is_leader
    assert (members["p1"].leases, members["p1"].throughput, members["p1"].metrics) == (2, 7.0, {})
    assert members["guest"].standing is Standing.NO_REPORT
    assert members["guest"].reported_ago is None
    assert members["j1"].reported_ago == pytest.approx(5, abs=2)
    assert any("guest reports no metrics" in hint for hint in hints(table))
    assert any("p1 → j1" in hint for hint in hints(table))


def test_who_leads_without_a_lease_or_a_report_is_shown(table):
    table.lead("j1")
    (only,) = overview(table).members
    assert (only.worker, only.is_leader, only.standing, only.leases) == ("j1", True, Standing.NO_REPORT, 0)
    assert not any("reports no metrics" in hint for hint in hints(table)), "it holds nothing"


HOSTILE = {
    "half": ({"sts": None}, Standing.UNFIT),
    "text-time": ({"lut": {"S": "now"}}, Standing.UNFIT),
    "huge-time": ({"lut": {"N": "9" * 38}}, Standing.UNFIT),
    "no-limit": ({"sts": {"M": {"C": {"L": [{"N": "5"}]}}}}, Standing.UNFIT),
    "failing": ({"sts": {"M": {"C": {"L": [{"N": "-1"}]}}}, "opr": {"M": {"C": {"L": [{"N": "100"}]}}}}, Standing.UNFIT),
    "zero-limit": ({"sts": {"M": {"C": {"L": [{"N": "5"}]}}}, "opr": {"M": {"C": {"L": [{"N": "0"}]}}}}, Standing.UNFIT),
    "a-list": ({"sts": {"L": []}}, Standing.UNFIT),
    "by-throughput": ({"sts": {"M": {"THROUGHPUT": {"L": [{"N": "5"}]}}}}, Standing.MEMBER),
    "no-limit-of-t": ({"sts": {"M": {"T": {"L": [{"N": "5"}]}}}}, Standing.UNFIT),
}  # fmt: skip


@pytest.mark.parametrize("worker", HOSTILE)
def test_a_report_that_java_would_not_count_is_said_to_be_unfit_and_never_raises(table, worker):
    change, standing = HOSTILE[worker]
    item = {**metrics_item(worker, table.seconds), **change}
    table.lead("j1")
    table.put_item(**{name: value for name, value in item.items() if value is not None})
    assert standings(table)[worker] is standing
    assert any(worker in hint for hint in hints(table)) is (standing is Standing.UNFIT)


def test_a_report_counts_for_a_minute_and_one_ahead_of_the_clock_is_said_to_be(table):
    table.lead("j1")
    for worker, ago in (("young", 55), ("old", 70), ("soon", -55), ("far", -(10**8))):
        table.report(worker, ago)
    found = standings(table)
    assert [found[one] for one in ("young", "old", "soon", "far")] == [
        Standing.MEMBER, Standing.SILENT, Standing.MEMBER, Standing.AHEAD,
    ]  # fmt: skip
    said = hints(table)
    assert any("old: last report 1m1" in hint and "dead for the leader" in hint for hint in said)
    assert any("far: last report" in hint and "ahead of AWS' clock" in hint for hint in said)


def test_ages_go_by_the_clock_of_the_answer(table):
    table.lead("j1")
    table.report("j1", 5)
    real = table.client.scan
    headers = {"date": "Tue, 24 Nov 2026 15:00:00 GMT", "content-type": "application/x-amz-json-1.0"}
    headers["x-amzn-requestid"] = "A1"
    metadata = {"HTTPStatusCode": 200, "HTTPHeaders": headers}
    table.client.scan = lambda **params: {**real(**params), "ResponseMetadata": metadata}
    table.put_item(**metrics_item("p1", 1_795_532_400 - 20))
    ages = {one.worker: one.reported_ago for one in overview(table).members}
    assert ages["p1"] == pytest.approx(20.5)


def test_the_lock_is_watched_over_several_scans(table, clock):
    table.lead("j1", "v1")
    sampler = table.sampler()
    sampler.poll()
    clock.now += 40
    found = fleet_of(sampler.poll())
    assert (found.leader_beats, found.lacks_leader, found.lock_unchanged) == (False, False, 40)
    assert leader_text(found) == "j1 (lock unchanged for 40s)"
    clock.now += 30
    found = fleet_of(sampler.poll())
    assert found.lacks_leader
    assert leader_text(found) == "none (j1 has not renewed the lock for 1m10s)"
    assert any("Nobody leads this fleet" in hint for hint in fleet_hints(found))
    table.lead("j1", "v2")
    found = fleet_of(sampler.poll())
    assert (found.leader_beats, found.lacks_leader) == (True, False)
    assert plain(found)["leader"] == {
        "owner": "j1", "released": False, "lock_seconds": 120.0, "unchanged_seconds": 0.0, "renewed": True,
    }  # fmt: skip


def test_a_lock_that_is_missing_or_released_has_no_leader(table):
    table.lead("j1", released=True)
    found = overview(table)
    assert (found.leader_name, leader_text(found)) == (None, "none (j1 released the lock)")
    assert found.lacks_leader


@pytest.mark.parametrize(
    "odd", [{"recordVersionNumber": {"N": "1"}}, {"ownerName": {"S": ""}}, {"leaseDuration": {"S": "x"}}]
)
def test_a_lock_of_another_form_is_none(table, odd):
    table.lead("j1")
    table.put_item(**{**java_3x.leader_lock("j1", "v1"), **odd})
    assert leader_text(overview(table)) == "none"


def test_in_the_mode_of_2x_there_is_no_leader_to_miss(table):
    table.client.put_raw(NAME, java_3x.migration_row(java_3x.UPGRADING, "j1", 1))
    table.put(lease(0, "guest"))
    found = overview(table)
    assert (found.is_native, found.lacks_leader) == (False, False)
    assert list(fleet_hints(found)) == []


def test_a_running_table_migration_is_said(table):
    table.lead("j1")
    row = {"leaseKey": {"S": "TableMigration3.5"}, "entityType": {"S": "TABLE_MIGRATION"}}
    for phase, shown in (({"S": "TABLE_MIGRATION_PENDING"}, "TABLE_MIGRATION_PENDING"), ({"S": "TABLE_MIGRATION_COMPLETE"}, None), ({"N": "1"}, "a phase that cannot be read")):  # fmt: skip
        table.put_item(**row, tm=phase)
        assert overview(table).table_migration == shown


def test_a_worker_whose_identifier_is_a_shard_id_is_said(table):
    table.lead("j1")
    table.put(lease(0, "w1"))
    assert ids_of_shards(table.view()) == []
    overwritten = {**to_item(lease(1, "w1")), **metrics_item(shard(1), table.seconds)}
    table.put_item(**overwritten)
    table.put(lease(2, shard(0)))
    assert ids_of_shards(table.view()) == [shard(0), shard(1)]
    assert any("000, 001 is the identifier of a worker and of a shard" in hint for hint in hints(table))


# -- tables of KCL 3.0-3.4 ---------------------------------------------------------------------------------------


@pytest.fixture
def old_table(clock):
    """A fleet of KCL 3.0-3.4: client version, lock and metrics are in tables of their own."""
    table = FleetTable(clock, indexed=True)
    table.make_own_tables()
    table.put(lease(0, "j1"), lease(1, "guest"))
    table.client.put_raw(STATE, old(java_3x.migration_row(java_3x.NATIVE, "j1", 1)))
    table.client.put_raw(STATE, old(java_3x.leader_lock("j1", "v1")))
    table.client.put_raw(METRICS, old(metrics_item("j1", table.seconds - 5, CPU, FULL), "wid"))
    return table


def test_tables_of_3_4_are_read_where_the_lease_table_has_no_client_version(old_table):
    found = overview(old_table)
    assert (found.client_version, found.is_native, found.leader_name) == (java_3x.NATIVE, True, "j1")
    assert standings(old_table) == {"j1": Standing.MEMBER, "guest": Standing.NO_REPORT}
    assert owner_kinds(old_table.view())["j1"].kind == "Java"
    assert old_table.view().schema == "KCL 3.x"


def test_they_are_not_read_beside_a_lease_table_that_has_one_or_that_is_not_of_3x(old_table, table):
    old_table.lead("j2")
    assert overview(old_table).leader_name == "j2"
    table.put(lease(0, "w1"))
    table.view()
    for one in (old_table, table):
        assert not [params for operation, params in one.client.requests if operation == "GetItem"]


def test_they_are_read_every_few_seconds_only(old_table, clock):
    scanner = old_table.scanner
    scanner.scan()
    scanner.scan()
    assert old_table.operations().count("GetItem") == 2
    clock.now += 5
    assert scanner.scan().own_tables.rows
    assert old_table.operations().count("GetItem") == 4


@pytest.mark.parametrize("operation", ["GetItem", "Scan"])
def test_what_may_not_be_read_of_them_is_said_and_fails_nothing(old_table, operation):
    old_table.client.fault = lambda name, params: (
        Fault(before=access_denied(name))
        if name == operation and params["TableName"] in (STATE, METRICS)
        else None
    )
    found = overview(old_table)
    assert "not permitted" in found.unread
    assert len(old_table.view().leases) == 2
    assert any("tables of KCL 3.0-3.4 are not shown" in hint for hint in hints(old_table))
    if operation == "GetItem":
        assert leader_text(found) == "unknown"
        assert not found.lacks_leader


def test_tables_that_are_not_there_are_none(clock):
    table = FleetTable(clock, indexed=True)
    table.put(lease(0, "w1"))
    assert table.view().own_tables.unread == ""
    assert overview(table) is None


def test_an_index_that_is_being_made_is_no_index_yet(clock):
    table = FleetTable(clock, indexed=True)
    assert (table.scanner.facts.index_status, table.scanner.facts.has_owner_index) == ("ACTIVE", True)
    described = table.client.tables[NAME].description
    table.client.tables[NAME].description = lambda: {
        **described(), "GlobalSecondaryIndexes": [{"IndexName": java_3x.OWNER_INDEX, "IndexStatus": "CREATING"}]
    }  # fmt: skip
    assert (table.scanner.facts.index_status, table.scanner.facts.has_owner_index) == ("CREATING", False)
