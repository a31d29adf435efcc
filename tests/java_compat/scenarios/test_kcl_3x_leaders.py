"""pykcl as the leader of a KCL 3.x fleet: the lock, the assignments, and its end. Numbers are of the acceptance list."""

import re

import pytest

from pykcl.events import (
    FailureStarted,
    LeaderAbsent,
    LeaderElected,
    LeaderReturned,
    LeadershipMoved,
    LeaseAssigned,
    LeaseTaken,
)
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Fault, denied, failing
from tests.java_compat.scenarios import java_3x
from tests.java_compat.scenarios.scenario_fleet import create_indexed_table
from tests.java_compat.scenarios.test_kcl_3x import ROUND, Fleet3x

pytestmark = pytest.mark.parametrize("backend", ["memory"])


@pytest.fixture
def founded(new_fleet):
    """founded(shards): a fleet whose table Java has founded; nobody works on it, and all its leases are unowned."""

    def make(shards):
        fleet = new_fleet(shards=shards)
        create_indexed_table(fleet)
        creator = fleet.java_by_hand("j0", "3.5.1")
        for shard in fleet.shards().values():
            creator.create(shard)
        fleet.dynamodb.put_raw(TABLE, java_3x.migration_row(java_3x.NATIVE, "j0", fleet.epoch() * 1000))
        return fleet

    return make


def lock_of(fleet):
    return fleet.items().get("Leader", {})


def leads(fleet, name):
    return lambda: lock_of(fleet).get("ownerName") == {"S": name} and "isReleased" not in lock_of(fleet)


def seconds_of(fleet):
    return int(lock_of(fleet)["leaseDuration"]["S"]) / 1000


def test_a_free_lock_is_taken_in_the_form_of_java_and_kept(founded):
    fleet = founded(2)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    row = lock_of(fleet)
    assert row.keys() == {"leaseKey", "entityType", "ownerName", "leaseDuration", "recordVersionNumber"}
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", row["recordVersionNumber"]["S"])
    versions = set()
    for _ in range(60):
        versions.add(lock_of(fleet)["recordVersionNumber"]["S"])
        fleet.simulation.sleep(1)
    # Every 7.5 seconds of its 30.
    assert 7 <= len(versions) <= 10
    assert seconds_of(fleet) == 30.0
    assert len(fleet.happened(LeaderElected)) == 1


def test_a_worker_that_never_leads_leaves_the_lock_alone(founded):
    fleet = founded(1)
    fleet.start_pykcl("p1", leader="never")
    fleet.simulation.sleep(300)
    assert "Leader" not in fleet.items()


def test_the_report_of_a_java_worker_that_has_gone_does_not_make_the_lock_last_longer(founded):
    fleet = founded(2)
    fleet.client_of("j0").update_item(**java_3x.worker_metrics(TABLE, "j0", fleet.epoch() - 50))
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    assert seconds_of(fleet) == 120.0
    fleet.wait(lambda: seconds_of(fleet) == 30.0, 60, "a brief lock")
    fleet.client_of("j0").update_item(**java_3x.worker_metrics(TABLE, "j0", fleet.epoch()))
    fleet.wait(lambda: seconds_of(fleet) == 120.0, 20, "a long lock again")


def test_a_fallback_leaves_java_half_a_minute_more_than_it_needs(founded):
    fleet = founded(1)
    fleet.start_pykcl("p1")
    fleet.simulation.sleep(59)
    assert "Leader" not in fleet.items()
    fleet.wait(leads(fleet, "p1"), 30, "the lock")


def test_a_leader_that_stops_releases_the_lock_and_the_next_one_takes_it_at_once(founded):
    fleet = founded(2)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    fleet.start_pykcl("p2", leader="equal")
    fleet.simulation.sleep(30)
    fleet.stop_pykcl("p1")
    assert leads(fleet, "p2")() or lock_of(fleet)["isReleased"] == {"S": "1"}
    fleet.wait(leads(fleet, "p2"), 5, "the lock")
    assert [event.leader for event in fleet.happened(LeadershipMoved)] == [None]


def test_a_lock_is_never_taken_before_the_duration_of_its_row(founded):
    fleet = founded(2)
    fleet.dynamodb.put_raw(TABLE, java_3x.leader_lock("j0", "version-1"))
    began = fleet.simulation.now
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 140, "the lock")
    assert 120 <= fleet.simulation.now - began <= 123
    assert [event.leader for event in fleet.happened(LeaderAbsent)] == ["j0"]
    assert [event.leader for event in fleet.happened(LeaderReturned)] == ["p1"]


def test_a_lost_answer_to_the_first_heartbeat_is_found_out_by_reading(founded):
    fleet = founded(1)
    lost = []

    def lose(operation, params):
        if params.get("Key") == {"leaseKey": {"S": "Leader"}} and operation == "UpdateItem" and len(lost) < 1:
            lost.append(operation)
            return Fault(after=failing())
        return None

    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    fleet.dynamodb.fault = lose
    fleet.simulation.sleep(120)
    assert lost
    assert leads(fleet, "p1")()
    assert not fleet.happened(LeadershipMoved)


def test_a_take_whose_every_answer_is_lost_is_recognized_by_the_next_read(founded):
    fleet = founded(1)
    until = [fleet.simulation.now + 20]

    def lose(operation, params):
        is_lock = params.get("Item", {}).get("leaseKey") == {"S": "Leader"}
        return Fault(after=failing()) if is_lock and fleet.simulation.now < until[0] else None

    fleet.dynamodb.fault = lose
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(lambda: fleet.happened(LeaderElected), 30, "the lock to be recognized")
    fleet.simulation.sleep(120)
    assert leads(fleet, "p1")()
    assert not fleet.happened(LeadershipMoved)


def is_released(fleet):
    return lock_of(fleet).get("isReleased") == {"S": "1"}


def test_a_take_whose_answer_was_lost_is_released_by_a_stop_before_the_next_read(founded):
    fleet = founded(1)
    lost = []

    def lose(operation, params):
        if params.get("Item", {}).get("leaseKey") == {"S": "Leader"}:
            lost.append(operation)
            return Fault(after=failing())
        # The reads by which the take would be recognized.
        is_read = bool(lost) and operation == "GetItem" and params["Key"] == {"leaseKey": {"S": "Leader"}}
        return Fault(before=failing()) if is_read else None

    fleet.dynamodb.fault = lose
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(lambda: fleet.happened(FailureStarted), 30, "the lost answer")
    assert leads(fleet, "p1")()
    fleet.stop_pykcl("p1")
    assert is_released(fleet)
    # Nobody has led.
    assert not fleet.happened(LeadershipMoved)


def test_a_release_without_an_answer_does_not_keep_a_stop_from_releasing_a_heartbeat_whose_answer_was_lost(
    founded,
):
    fleet = founded(1)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    first, lost = lock_of(fleet)["recordVersionNumber"], []

    def lose(operation, params):
        if params.get("Key") != {"leaseKey": {"S": "Leader"}}:
            return None
        values = params.get("ExpressionAttributeValues", {})
        if ":released" in values:
            return Fault(before=failing()) if values[":seen"] == first else None
        if operation == "UpdateItem":
            lost.append(operation)
        # One heartbeat is applied. Neither its next attempt nor a read shows it.
        return Fault(after=failing()) if lost == ["UpdateItem"] else Fault(before=failing())

    fleet.dynamodb.fault = lose
    fleet.wait(lambda: fleet.happened(FailureStarted), 30, "the lost answer")
    fleet.stop_pykcl("p1")
    assert lock_of(fleet)["recordVersionNumber"] != first
    assert is_released(fleet)


def test_a_lock_whose_release_failed_when_the_fleet_went_back_is_released_at_the_stop(founded):
    fleet = founded(1)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    failed = []

    def refuse(operation, params):
        if ":released" not in params.get("ExpressionAttributeValues", {}):
            return None
        failed.append(operation)
        return Fault(before=failing())

    fleet.dynamodb.fault = refuse
    fleet.dynamodb.put_raw(TABLE, java_3x.migration_row("CLIENT_VERSION_2X", "j0", fleet.epoch() * 1000))
    fleet.wait(lambda: failed, 60, "the fleet to go back")
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(30)
    assert leads(fleet, "p1")()
    fleet.stop_pykcl("p1")
    assert is_released(fleet)


def test_a_lock_whose_release_got_no_answer_is_released_again_and_not_believed_again(founded):
    """The release may still arrive: others may take the lock at once then, and a heartbeat does not mend it."""
    fleet = founded(2)
    releases = []

    def fail(operation, params):
        values = params.get("ExpressionAttributeValues", {})
        if ":released" in values:
            releases.append(operation)
            return Fault(before=failing()) if len(releases) == 1 else None
        is_lease = params.get("Key", {}).get("leaseKey", {}).get("S", "").startswith("shardId-")
        return Fault(before=failing()) if operation == "UpdateItem" and is_lease else None

    fleet.dynamodb.fault = fail
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(lambda: len(releases) > 1, 180, "the second release")
    assert is_released(fleet)
    assert len(fleet.happened(LeaderElected)) == 1


def test_a_stop_releases_nothing_where_the_lock_was_lost(founded):
    fleet = founded(1)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    fleet.dynamodb.put_raw(TABLE, java_3x.leader_lock("j0", "version-1"))
    fleet.wait(lambda: fleet.happened(LeadershipMoved), 10, "the loss")
    tried = []

    def note(operation, params):
        if ":released" in params.get("ExpressionAttributeValues", {}):
            tried.append(operation)

    fleet.dynamodb.fault = note
    fleet.stop_pykcl("p1")
    assert leads(fleet, "j0")()
    assert not tried


def test_a_table_that_refuses_the_heartbeat_ends_the_belief_before_others_take_the_lock(founded):
    fleet = founded(1)
    worker = fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    leadership = worker._manager._leadership

    def refuse(operation, params):
        key = params.get("Key", params.get("Item", {})).get("leaseKey")
        return Fault(before=failing()) if key == {"S": "Leader"} else None

    fleet.dynamodb.fault = refuse
    fleet.wait(lambda: not leadership.is_leader, 25, "the end of the belief")
    assert fleet.happened(FailureStarted)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: leadership.is_leader, 5, "the next heartbeat")


def test_a_heartbeat_that_shortens_the_lock_ends_the_belief_in_time_also_where_its_answer_is_lost(founded):
    """Native seed 132942: for 120 seconds a leader believed in a lock whose row said 30."""
    fleet = founded(2)
    fleet.client_of("j0").update_item(**java_3x.worker_metrics(TABLE, "j0", fleet.epoch() - 50))
    worker = fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    assert seconds_of(fleet) == 120.0
    leadership, shortened = worker._manager._leadership, []

    def lose(operation, params):
        key = params.get("Key", params.get("Item", {})).get("leaseKey")
        if key != {"S": "Leader"}:
            return None
        if operation == "UpdateItem" and not shortened:
            shortened.append(fleet.simulation.now)
            return Fault(after=failing())
        return Fault(before=failing()) if shortened else None

    fleet.dynamodb.fault = lose
    fleet.wait(lambda: shortened, 60, "the heartbeat")
    assert seconds_of(fleet) == 30.0
    fleet.wait(lambda: not leadership.is_leader, 25, "the end of the belief")
    assert fleet.simulation.now - shortened[0] < 30


def test_a_leader_that_was_frozen_finds_another_one(founded):
    fleet = founded(2)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(leads(fleet, "p1"), 10, "the lock")
    fleet.start_pykcl("p2", leader="equal")
    fleet.simulation.sleep(20)
    fleet.simulation.freeze("p1", 60.0)
    fleet.wait(leads(fleet, "p2"), 40, "the other one to take it")
    fleet.simulation.sleep(60)
    assert leads(fleet, "p2")()
    assert [event.leader for event in fleet.happened(LeadershipMoved)] == ["p2"]


def test_a_foreign_row_in_the_place_of_the_lock_is_left_alone(founded):
    fleet = founded(1)
    row = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, "ownerName": {"S": "x"}}
    fleet.dynamodb.put_raw(TABLE, row)
    tried = []

    def note(operation, params):
        if operation == "PutItem" and params["Item"]["leaseKey"] == {"S": "Leader"}:
            tried.append(fleet.simulation.now)

    fleet.dynamodb.fault = note
    fleet.start_pykcl("p1", leader="equal")
    fleet.simulation.sleep(200)
    assert lock_of(fleet) == row
    # Each would be refused.
    assert not tried


def test_a_leader_whose_lock_is_replaced_counts_the_time_without_one_from_then_on(founded):
    """Not from before its own term, though it saw no lock before and after it, and reads nothing in between."""
    fleet = founded(2)
    junk = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, "ownerName": {"S": "x"}}
    fleet.dynamodb.put_raw(TABLE, junk)
    fleet.start_pykcl("p1", leader="equal")
    fleet.simulation.sleep(25)
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": "Leader"}})
    fleet.wait(lambda: fleet.happened(LeaderElected), 5, "the lock")
    fleet.dynamodb.put_raw(TABLE, junk)
    fleet.wait(lambda: fleet.happened(LeadershipMoved), 10, "the refused heartbeat")
    fleet.simulation.sleep(29)
    assert not fleet.happened(LeaderAbsent)
    fleet.wait(lambda: fleet.happened(LeaderAbsent), 5, "the end of the patience")


def test_a_fallback_that_lost_the_lock_leaves_java_its_time_anew(founded):
    fleet = founded(1)
    fleet.start_pykcl("p1")
    fleet.wait(leads(fleet, "p1"), 90, "the lock")
    fleet.dynamodb.put_raw(TABLE, {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}})
    fleet.wait(lambda: fleet.happened(LeadershipMoved), 10, "the refused heartbeat")
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": "Leader"}})
    fleet.simulation.sleep(55)
    assert "Leader" not in fleet.items()
    fleet.wait(leads(fleet, "p1"), 30, "the lock again")


# -- assignments -------------------------------------------------------------------------------------------------


def keep_putting(fleet):
    """Put a record into each shard every two seconds: a leader balances by what flows."""

    def put():
        while True:
            fleet.put_everywhere(1)
            fleet.simulation.sleep(2)

    fleet.simulation.spawn("producer", "producer", put)


def works_on(fleet, name, least=1):
    return lambda: len(fleet.workers[name].leases) >= least and fleet.load()[name] >= least


def test_a_pykcl_worker_alone_on_a_table_of_java_reads_all_of_it_in_seconds(founded):
    fleet = founded(4)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(works_on(fleet, "p1", 4), 15, "all leases")
    assert {event.reason for event in fleet.happened(LeaseTaken)} == {"assigned"}


def test_a_new_member_queries_every_two_seconds_until_it_has_its_first_leases(founded):
    fleet = founded(4)
    for name in ("p1", "p2"):
        fleet.start_pykcl(name, leader="equal")
    fleet.wait(lambda: len(fleet.happened(LeaseAssigned)) == 4, 15, "the assignments")
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 4, 3, "both to have found theirs")


def test_leases_are_shared_among_pykcl_workers_and_then_stay(founded):
    fleet = founded(9)
    keep_putting(fleet)
    for name in ("p1", "p2", "p3"):
        fleet.start_pykcl(name, leader="equal")
    # One lease moves with each balancing, every third run.
    fleet.wait(lambda: sorted(fleet.load().values()) == [3, 3, 3], 600, "an equal share")
    fleet.simulation.sleep(60)
    before = fleet.owners()
    fleet.simulation.sleep(300)
    assert fleet.owners() == before
    assert len({event.worker_id for event in fleet.happened(LeaderElected)}) == 1


def test_c5_the_leases_of_a_dead_pykcl_leader_are_read_again_within_forty_seconds(founded):
    fleet = founded(6)
    keep_putting(fleet)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(works_on(fleet, "p1", 6), 30, "all leases")
    for name in ("p2", "p3"):
        fleet.start_pykcl(name, leader="equal")
    fleet.wait(lambda: fleet.load()["p2"] and fleet.load()["p3"], 200, "some leases to move")
    fleet.simulation.sleep(40)
    fleet.simulation.kill("p1")
    fleet.wait(lambda: fleet.load()["p1"] == 0, 40, "the others to have its leases")
    fleet.wait(
        lambda: len(fleet.workers["p2"].leases) + len(fleet.workers["p3"].leases) == 6,
        5,
        "the others to read",
    )


# At whatever time of the minute between two balancings it dies.
@pytest.mark.parametrize("later", [0, 15, 30, 45])
def test_a_worker_that_died_gets_no_lease_back_while_its_last_report_is_young(founded, later):
    fleet = founded(6)
    keep_putting(fleet)
    for name in ("p1", "p2", "p3"):
        fleet.start_pykcl(name, leader="equal")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2, 2], 300, "an equal share")
    fleet.simulation.sleep(later)
    leader = lock_of(fleet)["ownerName"]["S"]
    follower = next(name for name in ("p1", "p2", "p3") if name != leader)
    before = len(fleet.happened(LeaseAssigned))
    fleet.simulation.kill(follower)
    fleet.wait(lambda: not fleet.load()[follower], 30, "its leases to move")
    fleet.simulation.sleep(60)
    assert follower not in {event.new_owner for event in fleet.happened(LeaseAssigned)[before:]}


def test_a_worker_that_rescued_the_leases_of_a_dead_leader_gives_it_none_back_when_it_leads_itself(founded):
    fleet = founded(4)
    keep_putting(fleet)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(works_on(fleet, "p1", 4), 30, "all leases")
    fleet.start_pykcl("p2", leader="equal")
    fleet.wait(works_on(fleet, "p2", 2), 300, "an equal share")
    reported = fleet.items()["p1"]["lut"]
    fleet.wait(lambda: fleet.items()["p1"]["lut"] != reported, 40, "the last report")
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=denied()) if params.get("Item", {}).get("leaseKey") == {"S": "Leader"} else None
    )
    fleet.simulation.kill("p1")
    died_at = fleet.epoch()
    before = len(fleet.happened(LeaseAssigned))
    fleet.wait(lambda: fleet.load()["p2"] == 4, 55, "the rescue")
    fleet.simulation.sleep(3)
    fleet.dynamodb.fault = None
    fleet.wait(leads(fleet, "p2"), 5, "the lock")
    # It balances in its first run, at once.
    assert fleet.epoch() < died_at + 55
    fleet.simulation.sleep(20)
    assert not fleet.happened(LeaseAssigned)[before:]


def test_the_leases_of_a_pykcl_worker_that_stops_move_within_two_scans(founded):
    fleet = founded(6)
    keep_putting(fleet)
    for name in ("p1", "p2", "p3"):
        fleet.start_pykcl(name, leader="equal")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2, 2], 300, "an equal share")
    leader = lock_of(fleet)["ownerName"]["S"]
    follower = next(name for name in ("p1", "p2", "p3") if name != leader)
    fleet.stop_pykcl(follower)
    fleet.wait(lambda: sum(fleet.load().values()) == 6 and not fleet.load()[None], 5, "its leases to move")


def test_children_of_an_ended_shard_are_assigned_by_the_next_scan(founded):
    fleet = founded(2)
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(works_on(fleet, "p1", 2), 30, "all leases")
    key = sorted(fleet.shards())[0]
    fleet.split(key)
    fleet.wait(lambda: fleet.rows()[key].is_ended, 60, "the end")
    fleet.wait(
        lambda: all(fleet.owners().get(child) for child in fleet.rows()[key].children), 5, "the children"
    )


def test_c15_java_followers_obey_a_pykcl_leader(founded):
    fleet = founded(6)
    for row in fleet.items().values():
        if "leaseCounter" in row:
            fleet.dynamodb.put_raw(TABLE, {**row, "throughputKBps": {"N": "10"}})
    native = Fleet3x(fleet, "n1", "n2")
    native.live("n1", "n2")
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2, 2], 300, "an equal share")
    assert seconds_of(fleet) == 120.0
    before = fleet.owners()
    fleet.simulation.sleep(10 * ROUND)
    assert fleet.owners() == before
    fleet.simulation.kill("n1")
    fleet.wait(lambda: not fleet.load()["n1"], 90, "the leases of n1 to move")
    fleet.wait(works_on(fleet, "p1", 3), 60, "a share of them")


def test_metrics_of_a_worker_that_has_gone_for_a_day_are_deleted(founded):
    fleet = founded(1)
    old = java_3x.worker_metrics(TABLE, "long-gone", fleet.epoch() - 86_500)
    fleet.client_of("n1").update_item(**old)
    fleet.client_of("n1").update_item(**java_3x.worker_metrics(TABLE, "gone", fleet.epoch() - 3600))
    fleet.start_pykcl("p1", leader="equal")
    fleet.wait(lambda: "long-gone" not in fleet.items(), 60, "the old row to go")
    assert "gone" in fleet.items()


def test_a_second_process_of_the_leader_s_name_says_so_within_the_failover_time(founded):
    fleet = founded(2)
    leader = fleet.start_pykcl("p1", leader="equal")
    fleet.wait(lambda: len(leader.leases) == 2, 60, "both leases")
    second = fleet.start_pykcl("second", worker_id="p1", leader="equal")
    began = fleet.simulation.now
    fleet.wait(lambda: any(event.code == "E08" for event in fleet.happened(FailureStarted)), 60, "E08")
    assert fleet.simulation.now - began < second.config.failover_time
