"""Who may follow a leader of KCL 3.x, what is adopted, and when nobody leads."""

from random import Random

import pytest

from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.model.fleet_rows import WorkerMetrics
from pykcl.model.lease import ForeignRow, Lease, PykclMetadata
from pykcl.planning.fleet_protocol import Fleet, FleetKind
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_assignment import Fleet as Assignment
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.membership import (
    discovery_pause,
    is_assigned,
    reports_in,
    rescue,
    rescued,
    wants_cpu,
    why_not_to_follow,
)
from pykcl.worker.held_leases import Throughput

NATIVE = Fleet(FleetKind.JAVA_3X_NATIVE, client_version="CLIENT_VERSION_3X", why_native="…")
MINE = Lease("a", AT_TRIM_HORIZON, counter=3, owner="me")


def lock(version, *, released=False, owner="j1"):
    item = {
        "leaseKey": {"S": "Leader"},
        "ownerName": {"S": owner},
        "recordVersionNumber": {"S": version},
        "leaseDuration": {"S": "120000"},
    }
    return ForeignRow("Leader", "LEADER", item=item | ({"isReleased": {"S": "1"}} if released else {}))


def migration(phase):
    return ForeignRow("TableMigration3.5", "TABLE_MIGRATION", item={"tm": phase} if phase else {})


# -- who may follow --------------------------------------------------------------------------------------------


def test_a_native_fleet_with_its_index_is_followed():
    assert why_not_to_follow(NATIVE, "auto", (), has_owner_index=True) == ""
    assert (
        why_not_to_follow(NATIVE, "3x", [migration({"S": "TABLE_MIGRATION_COMPLETE"})], has_owner_index=True)
        == ""
    )


@pytest.mark.parametrize(
    ("mode", "version", "rows", "index", "why"),
    [
        ("2x", "CLIENT_VERSION_3X", (), True, 'fleet_mode="2x"'),
        ("auto", None, (), True, "no client version"),
        ("auto", "CLIENT_VERSION_4X", (), True, "later than the versions"),
        ("auto", "CLIENT_VERSION_3X", (), False, "no index of owners"),
        *(
            ("auto", "CLIENT_VERSION_3X", [migration(phase)], True, "moving its state")
            for phase in (None, {"S": "TABLE_MIGRATION_PENDING"}, {"N": "1"})
        ),
    ],
)
def test_what_cannot_be_followed_is_named(mode, version, rows, index, why):
    fleet = Fleet(FleetKind.JAVA_3X_NATIVE, client_version=version)
    assert why in why_not_to_follow(fleet, mode, rows, has_owner_index=index)


# -- what is adopted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "still_for", "adopted"),
    [
        (MINE, 0.0, True),
        (None, 0.0, False),
        (ForeignRow("a", "LEADER"), 0.0, False),
        (MINE.with_(owner="other"), 0.0, False),
        (MINE.with_(checkpoint_owner="other"), 0.0, False),
        (MINE.with_(metadata=PykclMetadata(owner="me", process_token="mine")), 0.0, True),
        (MINE.with_(metadata=PykclMetadata(owner="other", process_token="theirs")), 0.0, True),
        # Another process of the same worker identifier may be at work on it.
        (MINE.with_(metadata=PykclMetadata(owner="me", process_token="theirs")), 9.0, False),
        (MINE.with_(metadata=PykclMetadata(owner="me", process_token="theirs")), 11.0, True),
    ],
)
def test_a_lease_is_adopted_when_nobody_else_may_work_on_it(row, still_for, adopted):
    assert is_assigned(row, "me", "mine", still_for, 10.0) is adopted


def test_the_index_is_read_more_often_while_it_shows_news():
    assert (discovery_pause(0.0), discovery_pause(29.0), discovery_pause(31.0)) == (2.0, 2.0, 5.0)


# -- when nobody leads -----------------------------------------------------------------------------------------


def test_only_what_stood_still_for_long_is_rescued_and_nothing_is_stolen():
    old, young = MINE.with_(owner="dead"), Lease("b", AT_TRIM_HORIZON, counter=1, owner=None)
    view = LeaseView().observe([old], 0.0).observe([old, young], 31.0)
    fleet = Assignment.seen_by("me", view, failover_time=30.0)
    plans = [Acquisition(old, "expired"), Acquisition(young, "unowned"), Acquisition(old, "rebalance")]
    assert rescued(fleet, plans) == plans[:1]


def after_a_death(owners, still_for=40.0):
    """The view after a while in which all worked but "dead". owners: of each lease; p…, me: of pykcl, others of Java."""
    leases = [
        Lease(
            key,
            AT_TRIM_HORIZON,
            counter=3,
            owner=owner,
            metadata=PykclMetadata(owner=owner) if owner[0] in "pm" else None,
        )
        for key, owner in owners.items()
    ]
    later = [lease if lease.owner == "dead" else lease.with_(counter=4) for lease in leases]
    return LeaseView().observe(leases, 0.0).observe(later, still_for)


def rescues(owners, *, max_leases=100, still_for=40.0, seed=1, worker="me"):
    """The keys of what a worker takes. owners: see `after_a_death`."""
    plans = rescue(
        worker,
        after_a_death(owners, still_for),
        Random(seed),
        failover_time=10.0,
        max_leases=max_leases,
        in_hand={key for key, owner in owners.items() if owner == worker},
    )
    return [plan.lease_key for plan in plans]


def test_java_workers_have_no_share_of_a_rescue_as_they_take_nothing():
    # By a fair share of all leases Java's would have room for one of the two, and it would be read by nobody.
    assert rescues({"a": "dead", "b": "dead", "c": "me", "d": "me", "e": "java", "f": "java"}) == ["a", "b"]
    # Two of pykcl rescue them between them.
    owners = {"a": "dead", "b": "dead", "c": "me", "d": "p2", "e": "java"}
    assert len(rescues(owners)) == 1
    assert len(rescues(owners, worker="p2")) == 1
    assert rescues(owners, max_leases=1) == []


def test_what_others_do_not_rescue_within_their_share_is_taken_beyond_it_now_and_then():
    # p2 could take "a", but rescues nothing, or has as many as it may.
    owners = {"a": "dead", "c": "me", "d": "me", "e": "p2"}
    assert [rescues(owners, seed=seed) for seed in range(20)] == [[]] * 20
    later = [rescues(owners, still_for=61.0, seed=seed) for seed in range(20)]
    assert ["a"] in later
    assert [] in later


# -- throughput ------------------------------------------------------------------------------------------------


def test_throughput_is_an_average_of_heartbeats_that_begins_with_the_first_record():
    throughput = Throughput(0.0)
    assert throughput.reported(5.0) is None
    throughput.add(10 * 1024)
    assert throughput.reported(10.0) == "2"
    assert throughput.reported(15.0) == "1"
    throughput.add(5 * 1024)
    assert throughput.reported(20.0) == "1"


# -- what is reported ------------------------------------------------------------------------------------------

WITH_CPU = WorkerMetrics("j1", 1000, {"C": (12.5,)}, {"C": (100.0,)})
WITHOUT = WorkerMetrics("j2", 1000)
OTHER_METRIC = WorkerMetrics("j3", 1000, {"M": (12.5,)}, {"M": (100.0,)})


@pytest.mark.parametrize(
    ("kind", "reports", "since", "wanted"),
    [
        ("auto", [], 0.0, False),
        ("auto", [WITHOUT, OTHER_METRIC], 0.0, False),
        ("auto", [WITHOUT, WITH_CPU], 1000.0, True),
        ("auto", [WITH_CPU], 1000.5, False),  # of a dead worker
        ("auto", [WorkerMetrics("me", 1000, {"C": (1.0,)})], 0.0, False),
        ("auto", [WorkerMetrics("j1", 1000, {"C": (-1.0,)})], 0.0, True),
        ("cpu", [], 0.0, True),
        ("throughput", [WITH_CPU], 0.0, False),
    ],
)
def test_cpu_is_reported_where_others_report_it_unless_the_option_decides(kind, reports, since, wanted):
    assert wants_cpu(kind, reports, "me", since=since) is wanted


def test_reports_are_found_among_rows_of_any_kind_and_in_both_tables():
    metrics = {"lut": {"N": "7"}, "sts": {"M": {}}, "opr": {"M": {}}}
    rows = [
        MINE,
        lock("v1"),
        ForeignRow("w1", "WORKER_METRIC_STATS", item={"leaseKey": {"S": "w1"}, **metrics}),
        ForeignRow("w2", "WORKER_METRIC_STATS", item={"wid": {"S": "w2"}, **metrics}),
        ForeignRow("w3", "WORKER_METRIC_STATS", item={"leaseKey": {"S": "w3"}}),
    ]
    assert [(each.worker, each.reported_at) for each in reports_in(rows)] == [("w1", 7), ("w2", 7)]
