"""What a worker recognises in a lease table: golden rows of real Java workers, and each piece of evidence by itself."""

import json
from pathlib import Path

import pytest

from pykcl.model.lease import ForeignRow, JavaState
from pykcl.model.lease_item import parse_row
from pykcl.planning.fleet_protocol import FleetKind, sense_fleet

FIXTURES = Path(__file__).parents[1] / "fixtures"
ME = "me"


def lease(number=0, owner=None, **more):
    item = {
        "leaseKey": {"S": f"shardId-00000000000{number}"},
        "leaseCounter": {"N": "7"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
        **({"leaseOwner": {"S": owner}} if owner else {}),
        **more,
    }
    return parse_row(item)


def of_pykcl(number, owner, noted=None):
    return lease(number, owner, pykcl={"M": {"owner": {"S": noted or owner}}})


def migration(version):
    return parse_row(
        {
            "leaseKey": {"S": "Migration3.0"},
            "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
            "cv": {"S": version},
        }
    )


LEADER = parse_row({"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, "ownerName": {"S": "j1"}})
METRICS = parse_row({"leaseKey": {"S": "j1"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"N": "1"}})
MULTI = parse_row({"leaseKey": {"S": "123456789012:a:1:shardId-000000000000"}, "leaseCounter": {"N": "1"}})


def sense(*rows, state=None, **more):
    return sense_fleet(rows, worker=ME, state=state or JavaState(), **more)


def golden(name):
    """The rows of a recorded fleet as they were last seen, by table."""
    tables = {}
    for line in (FIXTURES / name).read_text("utf-8").splitlines():
        record = json.loads(line)
        row = parse_row(record["item"])
        tables.setdefault(record["table"], {})[row.key] = row
    lease_table = min(tables, key=len)
    state = tables.get(f"{lease_table}-CoordinatorState", {}).get("Migration3.0")
    return tables[lease_table].values(), JavaState(migration=state)


# -- recorded fleets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "version"),
    [
        ("java-2.7.2.jsonl", FleetKind.JAVA_2X, None),
        ("java-3.1.3-with-2.7.2.jsonl", FleetKind.JAVA_3X_COMPATIBLE, "CLIENT_VERSION_UPGRADE_FROM_2X"),
        ("java-3.5.1-phase1-with-2.7.2.jsonl", FleetKind.JAVA_3X_COMPATIBLE, None),
        (
            "java-3.5.1-compatible-with-2x.jsonl",
            FleetKind.JAVA_3X_COMPATIBLE,
            "CLIENT_VERSION_UPGRADE_FROM_2X",
        ),
    ],
)
def test_the_recorded_fleets_are_recognised(name, kind, version):
    rows, state = golden(name)
    fleet = sense_fleet(rows, worker=ME, state=state)
    assert (fleet.kind, fleet.client_version) == (kind, version)
    assert fleet.java
    assert not fleet.pykcl
    assert not fleet.why_native


def test_metrics_name_the_worker_of_kcl_3():
    rows, state = golden("java-3.5.1-compatible-with-2x.jsonl")
    fleet = sense_fleet(rows, worker=ME, state=state)
    assert "w1-k351" in fleet.java_3x
    assert sense(lease(0, "j1"), METRICS).java_3x == {"j1"}
    assert sense(lease(0, "j2"), METRICS).java_3x == set()


def test_a_recorded_3_5_fleet_tells_what_it_was_recognised_by():
    rows, state = golden("java-3.5.1-compatible-with-2x.jsonl")
    evidence = sense_fleet(rows, worker=ME, state=state).evidence
    assert evidence[0] == "CLIENT_VERSION_UPGRADE_FROM_2X in the lease table"
    assert any("created by KCL 3.5" in text for text in evidence)
    assert any("renewed by KCL 3.x" in text for text in evidence)
    assert any("metrics of" in text for text in evidence)


# -- who is there ----------------------------------------------------------------------------------------------


def test_nobody_else_is_there_in_an_empty_table_among_free_leases_and_among_ones_own():
    for rows in ((), (lease(0), lease(1)), (lease(0, ME), of_pykcl(1, ME))):
        fleet = sense(*rows)
        assert (fleet.kind, fleet.beside, fleet.evidence) == (FleetKind.ALONE, "nobody else", ())


def test_a_worker_of_pykcl_is_known_by_a_note_that_names_the_owner_of_the_row():
    assert sense(of_pykcl(0, "p1")).kind is FleetKind.PYKCL
    # Java took it and left the metadata of the owner before.
    assert sense(of_pykcl(0, "j1", noted="p1")).kind is FleetKind.JAVA_2X


def test_the_others_are_counted_by_name_and_told_in_one_line():
    fleet = sense(lease(0, "j1"), lease(1, "j1"), lease(2, "j2"), of_pykcl(3, "p1"), of_pykcl(4, ME))
    assert fleet.beside == "2 Java workers (KCL 2.x), 1 pykcl worker"


def test_an_owner_known_to_be_dead_is_nobody():
    assert sense(lease(0, "j1"), dead={"j1"}).kind is FleetKind.ALONE
    assert sense(lease(0, "j1"), lease(1, "j2"), dead={"j1"}).java == {"j2"}


def test_a_worker_of_pykcl_stays_known_while_it_hands_over_its_only_lease():
    handing_over = lease(1, "java", pykcl={"M": {"owner": {"S": "p1"}}}, checkpointOwner={"S": "p1"})
    found = sense(handing_over)
    assert (found.pykcl, found.java) == ({"p1"}, {"java"})


def test_who_still_works_during_a_hand_off_counts_as_well():
    fleet = sense(lease(0, "j2", checkpointOwner={"S": "j1"}))
    assert fleet.java == {"j1", "j2"}


# -- native mode -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version", ["CLIENT_VERSION_3X", "CLIENT_VERSION_3X_WITH_ROLLBACK", "CLIENT_VERSION_4X"]
)
def test_the_client_version_alone_makes_a_fleet_native_whoever_is_left(version):
    for fleet in (
        sense(migration(version)),
        sense(lease(0), migration(version)),
        sense(state=JavaState(migration=migration(version))),
        sense(of_pykcl(0, "p1"), migration(version)),
    ):
        assert fleet.kind is FleetKind.JAVA_3X_NATIVE
        assert version in fleet.why_native


@pytest.mark.parametrize(
    "version", ["CLIENT_VERSION_INIT", "CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"]
)
def test_a_compatible_client_version_outweighs_whatever_is_left_over(version):
    handed = lease(
        0, "j1", checkpointOwner={"S": "j2"}, throughputKBps={"N": "1.5"}, entityType={"S": "LEASE"}
    )
    fleet = sense(handed, LEADER, METRICS, migration(version), handing_off=True, state=JavaState(True))
    assert fleet.kind is FleetKind.JAVA_3X_COMPATIBLE
    assert not fleet.why_native


def test_the_lease_table_counts_where_both_tables_have_a_client_version():
    old = JavaState(migration=migration("CLIENT_VERSION_3X"))
    assert (
        sense(lease(0, "j1"), migration("CLIENT_VERSION_2X"), state=old).kind is FleetKind.JAVA_3X_COMPATIBLE
    )


def test_a_leader_lock_counts_only_where_no_client_version_is_known():
    assert sense(lease(0, "j1"), LEADER).kind is FleetKind.JAVA_3X_NATIVE
    assert sense(lease(0, "j1"), LEADER, migration("CLIENT_VERSION_2X")).kind is FleetKind.JAVA_3X_COMPATIBLE


def test_a_hand_off_counts_when_it_begins_and_not_when_it_stands_there():
    handed = lease(0, "j1", checkpointOwner={"S": "j2"})
    assert sense(handed).kind is FleetKind.JAVA_3X_COMPATIBLE
    assert sense(handed, handing_off=True).kind is FleetKind.JAVA_3X_NATIVE


@pytest.mark.parametrize(
    "rows",
    [
        [METRICS],
        [lease(1, throughputKBps={"N": "0.1"})],
        [lease(1, entityType={"S": "LEASE"})],
        [ForeignRow("TableMigration3.5", "TABLE_MIGRATION")],
        [ForeignRow("a", "STREAM")],
        [],
    ],
)
def test_what_3x_leaves_in_any_mode_is_no_evidence_of_native_mode(rows):
    fleet = sense(lease(0, "j1"), *rows, state=JavaState(has_owner_index=True))
    assert fleet.kind is FleetKind.JAVA_3X_COMPATIBLE
    assert any("LeaseOwnerToLeaseKeyIndex" in text for text in fleet.evidence)


@pytest.mark.parametrize(
    "value", [{"N": "3"}, {"S": ""}, {"S": "3X"}, {"S": "CLIENT_VERSION_" + "X" * 99}, {"NULL": True}]
)
def test_a_client_version_of_no_known_form_says_nothing(value):
    row = parse_row({"leaseKey": {"S": "Migration3.0"}, "cv": value})
    assert isinstance(row, ForeignRow)
    assert sense(lease(0, "j1"), row).client_version is None
    assert not sense(row).why_native


def test_a_row_that_pykcl_created_is_no_trace_of_kcl_3():
    ours = lease(0, "j1", entityType={"S": "LEASE"}, pykcl={"M": {"owner": {"S": "p1"}}})
    assert sense(ours).kind is FleetKind.JAVA_2X
    assert sense(lease(0, "j1", entityType={"S": "LEASE"})).kind is FleetKind.JAVA_3X_COMPATIBLE


# -- other tables ----------------------------------------------------------------------------------------------


def test_leases_of_several_streams_are_recognised_with_and_without_leases_of_ours():
    assert (sense(MULTI).kind, sense(MULTI).has_leases) == (FleetKind.MULTI_STREAM, False)
    assert (sense(MULTI, lease(0)).kind, sense(MULTI, lease(0)).has_leases) == (FleetKind.MULTI_STREAM, True)
    assert "1 lease of several streams" in sense(MULTI).evidence


def test_a_state_table_that_could_not_be_read_is_told_where_it_matters():
    unread = JavaState(unread="not permitted")
    assert not sense(of_pykcl(0, "p1"), state=unread).evidence
    assert "not permitted" in sense(lease(0, "j1"), state=unread).evidence[0]
