"""A fleet that has stopped, and every sign that it has not: heartbeats, reports of metrics, the leader's lock."""

import pytest
from fleet_table import METRICS, STATE, FleetTable, ended, lease, metrics_item, old

from pykcl.errors import Refused
from pykcl.operate.idle import activity_between, wait_until_idle
from tests.java_compat.scenarios import java_3x


@pytest.fixture
def fleet(table, clock):
    """Two leases, and AWS' clock, which moves with the waiting."""
    begun, at_first = clock.utcnow_millis(), clock.now
    clock.utcnow_millis = lambda: begun + round((clock.now - at_first) * 1000)
    table.put(lease(0, "j1"), ended(1, 2, owner="j1"))
    return table


def still(table, **options):
    begun = table.clock.now
    wait_until_idle(table.scanner.scan, table.clock, **{"failover": 10.0, **options})
    return table.clock.now - begun


def test_leases_alone_decide_in_a_fleet_of_2x(fleet, clock):
    assert still(fleet) == pytest.approx(10, abs=0.1)
    clock.meanwhile = lambda: fleet.renew(0)
    with pytest.raises(
        Refused, match=r"has not stopped: 1 lease moved during the check; active: j1\. Nothing"
    ):
        still(fleet)


def test_an_ended_lease_that_is_renewed_shows_its_owner(fleet, clock):
    clock.meanwhile = lambda: fleet.renew(1)
    with pytest.raises(Refused, match="active: j1"):
        still(fleet)


def test_a_worker_without_a_lease_is_alive_while_its_report_is_believed(fleet):
    fleet.report("idle-worker", ago=30)
    with pytest.raises(
        Refused, match=r"metrics reported by idle-worker \(3\ds ago\).* 60 s after its last report"
    ):
        still(fleet)
    assert 30 <= still(fleet, patience=120) <= 45


def test_a_report_that_changes_is_a_sign_of_life_whatever_time_it_names(fleet, clock):
    times = iter((10**6, 10**6, 10**6 + 5))

    def report():
        fleet.put_item(**metrics_item("far", fleet.seconds // 1 + next(times, 0)))

    report()
    clock.meanwhile = report
    with pytest.raises(Refused, match=r"metrics reported by far\."):
        still(fleet)


@pytest.mark.parametrize("ago", [-(10**6), 61, 10**6])
def test_a_report_of_another_time_that_stays_as_it_is_is_none(fleet, ago):
    fleet.report("w", ago=ago)
    assert still(fleet) == pytest.approx(10, abs=0.1)


def test_half_a_report_counts_only_if_it_changes(fleet, clock):
    half = {
        "leaseKey": {"S": "half"},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": str(int(fleet.seconds))},
    }
    fleet.put_item(**half)
    assert still(fleet) == pytest.approx(10, abs=0.1)
    clock.meanwhile = lambda: fleet.put_item(**{**half, "lut": {"N": str(int(fleet.seconds))}})
    with pytest.raises(Refused, match="metrics reported by half"):
        still(fleet)


def test_a_lock_whose_owner_reports_nothing_is_watched_for_longer_than_its_heartbeats_are_apart(fleet, clock):
    fleet.lead("j9")
    assert still(fleet) == pytest.approx(35, abs=0.1)
    begun = clock.now
    clock.meanwhile = lambda: fleet.lead("j9", f"v{int((clock.now - begun) // 30)}")
    with pytest.raises(Refused, match=r"not stopped: j9 renewed the lock of the leader\."):
        still(fleet)


def test_a_lock_that_is_released_or_whose_owner_is_known_to_be_silent_takes_no_longer(fleet):
    fleet.lead("j9", released=True)
    assert still(fleet) == pytest.approx(10, abs=0.1)
    fleet.lead("j9")
    fleet.report("j9", ago=100)
    assert still(fleet) == pytest.approx(10, abs=0.1)


def test_reports_and_lock_of_kcl_3_4_count_as_well(clock):
    table = FleetTable(clock, indexed=True)
    table.make_own_tables()
    table.put(lease(0, "j1"))
    table.client.put_raw(STATE, old(java_3x.migration_row(java_3x.NATIVE, "j1", 1)))
    table.client.put_raw(METRICS, old(metrics_item("j1", table.seconds - 5), "wid"))
    with pytest.raises(Refused, match="metrics reported by j1"):
        still(table)


def test_everything_is_said_in_one_line(fleet, clock):
    fleet.lead("j1", "v1")
    before = fleet.view()
    fleet.lead("j1", "v2")
    fleet.renew(0)
    fleet.report("j2", ago=7)
    found = activity_between(before.rows, fleet.view(), fleet.seconds)
    assert found.text.startswith(
        "1 lease moved during the check; active: j1; j1 renewed the lock of the leader; metrics"
    )
    assert not activity_between(fleet.view().rows, fleet.view(), fleet.seconds + 100)
