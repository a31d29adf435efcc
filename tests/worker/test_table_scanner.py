"""Looks at the lease table: all of it, or a part; how often, and what comes of what they show."""

import pytest

from pykcl.events import FailureResolved, FailureStarted, LeaseTaken, ShardEnded
from pykcl.local.errors import AwsError
from pykcl.planning import scan_schedule as planning_looks
from pykcl.testing.fleet import STREAM, TABLE

PARTS = {"failover_time": 10.0, "lease_scan_mode": "segmented", "shard_sync_interval": 5.0}


def looks(fleet, seconds):
    """Scans of (all, a part) of the table within the next seconds."""
    first = len(fleet.dynamodb.requests)
    fleet.simulation.sleep(seconds)
    scans = [params for operation, params in fleet.dynamodb.requests[first:] if operation == "Scan"]
    parts = sum("TotalSegments" in params for params in scans)
    return len(scans) - parts, parts


def settled(fleet, workers, **options):
    names = [f"w{number}" for number in range(1, workers + 1)]
    for name in names:
        fleet.start(name, **options)
    shards = len(fleet.open_shards())
    fleet.wait(
        lambda: sorted(fleet.load().values()) == [shards // workers] * workers and None not in fleet.load(),
        120.0,
        "an even fleet",
    )
    fleet.simulation.sleep(30.0)
    return names


def test_a_calm_fleet_looks_at_parts_and_scans_seldom_though_it_lists_the_shards(new_fleet):
    fleet = new_fleet(shards=8)
    settled(fleet, 4, **PARTS)
    whole, parts = looks(fleet, 60.0)
    # Half a unit for a scan, eight leases: each of the four scans all of them every 5.6 s.
    assert 30 <= whole <= 60
    # Two segments, each looked at by two workers once a second; whoever has both asks once.
    assert 90 <= parts <= 250


def test_a_worker_that_holds_every_lease_scans_once_in_a_heartbeat(new_fleet):
    fleet = new_fleet(shards=4)
    settled(fleet, 1, failover_time=10.0, shard_sync_interval=3600.0)
    whole, parts = looks(fleet, 60.0)
    assert (10 <= whole <= 14, parts) == (True, 0)


def test_two_workers_scan_once_a_second_each(new_fleet):
    fleet = new_fleet(shards=4)
    settled(fleet, 2, failover_time=10.0, shard_sync_interval=3600.0)
    whole, parts = looks(fleet, 60.0)
    assert (100 <= whole <= 140, parts) == (True, 0)


def test_the_leases_of_a_dead_worker_are_found_by_those_who_look_at_them(new_fleet):
    fleet = new_fleet(shards=8)
    names = settled(fleet, 4, **PARTS)
    died = fleet.simulation.now
    fleet.simulation.kill(names[0])
    fleet.wait(lambda: names[0] not in fleet.load(), 60.0, "every lease of the dead one")
    assert fleet.simulation.now - died <= 15.0
    fleet.wait_delivered(fleet.put(40), 60.0)


def test_released_leases_are_found_within_some_looks(new_fleet):
    fleet = new_fleet(shards=8)
    names = settled(fleet, 4, **PARTS)
    fleet.workers[names[0]].stop()
    left = fleet.simulation.now
    fleet.wait(lambda: None not in fleet.load(), 60.0, "every lease of the one that left")
    assert fleet.simulation.now - left <= 5.0
    assert sum(event.reason == "unowned" for event in fleet.happened(LeaseTaken)[8:]) >= 2


def test_a_listing_with_a_shard_that_has_no_lease_is_acted_on_at_once(new_fleet):
    """Its parent's owner dies before it makes the children: nobody but the listing knows of them."""
    fleet = new_fleet(shards=8)
    settled(fleet, 4, **{**PARTS, "cleanup_interval": 0.0})
    payloads = fleet.put(20)
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    payloads += fleet.put(20)
    fleet.wait_delivered(payloads, 60.0)
    assert len(fleet.happened(ShardEnded)) == 1


@pytest.mark.parametrize("mode", ["full", "segmented"])
def test_nothing_is_lost_and_the_fleet_is_even_again_after_crashes(new_fleet, mode):
    fleet = new_fleet(shards=12)
    names = settled(fleet, 6, **{**PARTS, "lease_scan_mode": mode})
    payloads = fleet.put(60)
    for name in names[:3]:
        fleet.simulation.kill(name)
        payloads += fleet.put(20)
        fleet.simulation.sleep(7.0)
    fleet.wait_delivered(payloads, 200.0)
    fleet.wait(lambda: sorted(fleet.load().values()) == [4, 4, 4], 200.0, "an even fleet")


@pytest.fixture
def rarely(monkeypatch):
    """Scans of all the table as rare as in a fleet of a hundred workers and more."""
    monkeypatch.setattr(planning_looks, "UNITS_PER_LEASE", 0.0045)


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_standby_takes_over_where_all_others_are_full(new_fleet, end):
    fleet = new_fleet(shards=6)
    names = settled(fleet, 6, **{**PARTS, "max_leases": 1})
    fleet.start("standby", **{**PARTS, "max_leases": 1})
    fleet.simulation.sleep(60.0)
    began = fleet.simulation.now
    if end == "kill":
        fleet.simulation.kill(names[2])
    else:
        fleet.workers[names[2]].stop()
    fleet.wait(lambda: fleet.load()["standby"] == 1, 60.0, "the lease of the one that went")
    assert fleet.simulation.now - began <= (15.0 if end == "kill" else 5.0)


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("victim", range(4))
def test_who_alone_sees_the_leases_of_the_dead_takes_them_though_the_parts_change_with_its_death(
    new_fleet, victim
):
    """Seven workers look at half as many parts as eight; those who will look at these leases have not heard of it."""
    fleet = new_fleet(shards=14)
    names = [f"w{number}" for number in range(1, 9)]
    for name in names:
        fleet.start(name, **PARTS)
    fleet.wait(lambda: sorted(fleet.load().values()) == [1, 1] + [2] * 6, 120.0, "an even fleet")
    fleet.simulation.sleep(30.0)
    died = fleet.simulation.now
    fleet.simulation.kill(names[victim])
    fleet.wait(lambda: names[victim] not in fleet.load(), 200.0, "every lease of the dead one")
    assert fleet.simulation.now - died <= 15.0


@pytest.mark.usefixtures("rarely")
def test_a_newcomer_whose_first_listing_fails_is_ready_in_the_end(new_fleet):
    fleet = new_fleet(shards=6)
    settled(fleet, 6, **PARTS)
    truth, fails = fleet.kinesis.list_shards, [True]

    def failing(*args, **options):
        if fails[0]:
            raise AwsError("InternalFailure", "down")
        return truth(*args, **options)

    fleet.kinesis.list_shards = failing
    late = fleet.start("late", **PARTS)
    fleet.simulation.sleep(20.0)
    fails[0] = False
    fleet.wait(lambda: late.wait_ready(0.0), 60.0, "the newcomer")
    fleet.simulation.sleep(60.0)
    begun, ended = fleet.happened(FailureStarted), fleet.happened(FailureResolved)
    assert sorted(event.what for event in begun) == sorted(event.what for event in ended)


@pytest.mark.usefixtures("rarely")
def test_a_deleted_row_comes_back_soon_after_its_owner_died(new_fleet):
    fleet = new_fleet(shards=8)
    names = settled(fleet, 8, **{**PARTS, "shard_sync_interval": 60.0})
    key, owner = next((key, owner) for key, owner in fleet.owners().items() if owner)
    fleet.simulation.kill(owner)
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": key}})
    fleet.wait(lambda: fleet.owners().get(key) in names, 60.0, "the lease")
