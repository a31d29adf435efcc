"""Scenarios 5 to 14: whose lease it is, when both want it, when one freezes or dies, when answers get lost."""

from itertools import pairwise

import pytest

from pykcl.errors import LeaseLostError
from pykcl.events import LeaseLost, LeaseTaken
from pykcl.testing.memory.dynamodb import Fault, timed_out
from tests.java_compat.scenarios.scenario_fleet import (
    FAILOVER,
    NOTICED,
    ScenarioProcessor,
    counter_in,
    owner_in,
)

JAVA_SCAN = 2 * (FAILOVER + 0.025)
"""Seconds between two rounds of Java's lease taker."""


class ByHand(ScenarioProcessor):
    """Checkpoints nothing by itself."""


def by_hand(fleet, name):
    return {"processor": lambda: ByHand(name, fleet), "checkpoint_mode": "manual"}


def java_scans(fleet, since):
    """Scans by Java's worker after the first `since` requests; pykcl's ask for the read units."""
    return [
        params
        for operation, params in fleet.dynamodb.requests[since:]
        if operation == "Scan" and "ReturnConsumedCapacity" not in params and "Limit" not in params
    ]


def test_scenario_05_java_renews_between_pykcl_s_scan_and_take(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    java = fleet.java_with_leases("j1", key)

    def java_wakes_up():
        assert java.renew(key)
        fleet.keep_renewing(java, key)

    fleet.when("p1", "take", java_wakes_up)
    fleet.start_pykcl("p1")
    fleet.wait(fleet.all_steps_ran, what="pykcl to reach for the silent lease")
    fleet.simulation.sleep(30)
    assert not fleet.changes_by("p1")
    assert fleet.owner_changes(key) == [None, "j1"]
    assert not fleet.happened(LeaseTaken)


def test_scenario_06_pykcl_steals_a_live_lease_and_java_can_write_no_more(new_fleet):
    fleet = new_fleet(shards=2)
    keys = sorted(fleet.shards())
    java = fleet.java_with_leases("j1", *keys)
    fleet.keep_renewing(java, *keys)
    fleet.put_everywhere(2)
    java_s_turn = []

    def at_the_moment_of_the_steal():
        # Right behind it, before any heartbeat of pykcl: the steal alone must fence Java off.
        (stolen,) = [key for key in keys if fleet.owners()[key] == "p1"]
        held = java.held[stolen]
        row = fleet.items()[stolen]
        assert not java.renew(stolen)
        assert not java.checkpoint(stolen, fleet.position(stolen, 0))
        assert fleet.items()[stolen] == row
        java_s_turn.append((stolen, held.counter, counter_in(row)))

    fleet.when("p1", "take", lambda: fleet.after_this_write(at_the_moment_of_the_steal))
    fleet.start_pykcl("p1")
    fleet.wait(lambda: bool(java_s_turn), what="the steal")
    stolen, before, after = java_s_turn[0]
    assert after == before + 1
    fleet.wait_read("p1", stolen)
    counters = [counter_in(change.after) for change in fleet.changes_of(stolen)]
    assert all(later == earlier + 1 for earlier, later in pairwise(counters))
    (kept,) = set(keys) - {stolen}
    assert fleet.owners()[kept] == "j1"


def test_scenario_07_java_steals_a_live_lease_and_pykcl_stops_within_one_heartbeat(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    fleet.start_pykcl("p1", **by_hand(fleet, "p1"))
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    java = fleet.java_by_hand("j1")
    assert java.take(key)
    stolen = fleet.items()[key]
    fleet.simulation.sleep(NOTICED)
    assert fleet.lost_by("p1") == [key]
    fleet.put_everywhere(3)
    fleet.simulation.sleep(FAILOVER - NOTICED - 1)
    assert len(fleet.ledger.by("p1")) == 2
    with pytest.raises(LeaseLostError):
        fleet.checkpointers[key].checkpoint()
    assert fleet.items()[key] == stolen
    fleet.done[key] = set(fleet.positions[key])


@pytest.mark.parametrize("under_way", ["nothing", "renew", "checkpoint"])
def test_scenario_08_pykcl_freezes_java_takes_and_pykcl_wakes_up(new_fleet, under_way):
    fleet = new_fleet()
    (key,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.rows()[key].checkpoint == fleet.position(key, 1), what="the checkpoint")
    fleet.start_java("j1")
    if under_way != "nothing":
        # Its last write before the freeze is still in the network when Java takes the lease.
        fleet.when("p1", under_way, Fault(postponed=timed_out()))
        fleet.put_everywhere(1)
        fleet.wait(fleet.all_steps_ran, what="the last write")
    frozen_at = len(fleet.dynamodb.changes)
    fleet.simulation.freeze("p1", 70)
    woken_at = fleet.simulation.now + 70
    fleet.wait_owner("j1", key, 65)
    fleet.dynamodb.deliver_postponed()
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(woken_at + 8 - fleet.simulation.now)
    assert fleet.lost_by("p1") == [key]
    assert not [change for change in fleet.dynamodb.changes[frozen_at:] if change.author == "p1"]
    assert fleet.owner_changes(key) == [None, "p1", "j1"]


@pytest.mark.parametrize("counter", [1, 2])
def test_scenario_09_java_freezes_at_a_low_counter_and_pykcl_takes(new_fleet, counter):
    fleet = new_fleet()
    (key,) = fleet.shards()
    java = fleet.java_with_leases("j1", key)
    fleet.put_everywhere(1)
    if counter == 2:
        assert java.renew(key)
    assert java.held[key].counter == counter
    answers = []

    def java_wakes_up():
        answers.append(java.renew(key))
        answers.append(java.checkpoint(key, fleet.position(key, 0)))

    # Behind the take, and behind each of pykcl's next writes: its counter must never come by Java's again.
    fleet.when("p1", "take", lambda: fleet.after_this_write(java_wakes_up))
    for _ in range(3):
        fleet.when("p1", "renew", lambda: fleet.after_this_write(java_wakes_up))
    fleet.start_pykcl("p1")
    fleet.wait(lambda: len(answers) == 8, what="all of Java's attempts")
    assert not any(answers)
    assert fleet.owner_changes(key) == [None, "j1", "p1"]


def test_scenario_10_pykcl_is_killed_and_java_takes_all_within_two_scans(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start_java("j1", auditor_interval=1000.0)
    fleet.start_pykcl("p1")
    fleet.wait_settled("j1", "p1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    theirs = {key for key, owner in fleet.owners().items() if owner == "p1"}
    since, before = len(fleet.dynamodb.requests), len(fleet.starts)
    fleet.simulation.kill("p1")
    fleet.wait_balanced("j1", timeout=2 * JAVA_SCAN + 1)
    assert len(java_scans(fleet, since)) <= 2
    for key in theirs:
        fleet.wait_read("j1", key)
        (resumed_at,) = [at for who, shard, at in fleet.starts[before:] if (who, shard) == ("j1", key)]
        assert resumed_at == fleet.position(key, 1)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    assert fleet.ledger.duplicates == 0


def test_scenario_11_pykcl_stops_and_java_takes_on_its_next_scan(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start_java("j1", auditor_interval=1000.0)
    fleet.start_pykcl("p1")
    fleet.wait_settled("j1", "p1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    theirs = [key for key, owner in fleet.owners().items() if owner == "p1"]
    since = len(fleet.dynamodb.requests)
    fleet.stop_pykcl("p1")
    for key in theirs:
        last = fleet.changes_by("p1", key)[-1]
        assert owner_in(last.before) == "p1"
        assert "leaseOwner" not in last.after
        assert counter_in(last.after) == counter_in(last.before) + 1
    fleet.wait_balanced("j1", timeout=JAVA_SCAN + 1)
    assert len(java_scans(fleet, since)) == 1
    assert fleet.ledger.duplicates == 0


def test_scenario_12_java_stops_and_pykcl_takes_after_expiry_not_before(new_fleet):
    fleet = new_fleet(shards=2)
    keys = sorted(fleet.shards())
    fleet.start_java("j1")
    fleet.wait(lambda: fleet.load()["j1"] == 2, what="Java to take both")
    fleet.start_pykcl("p1", max_leases=2)
    fleet.wait_balanced("j1", "p1")
    fleet.java["j1"].stop()
    last_word = {key: max(at for at, change in fleet.moments if change.key == key) for key in keys}
    (java_s,) = [key for key in keys if fleet.owners()[key] == "j1"]
    assert fleet.items()[java_s]["leaseOwner"] == {"S": "j1"}
    fleet.wait_owner("p1", java_s, 60)
    waited = fleet.simulation.now - last_word[java_s]
    assert FAILOVER < waited < 3 * FAILOVER
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()


def answer_lost(fleet, kind):
    """Applied, the answer lost, and sent once more: what a client's own retry does."""
    fleet.when("p1", kind, Fault(after=timed_out()))


def test_scenario_13_pykcl_s_renewal_is_delivered_twice(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.wait_read("p1", key)
    answer_lost(fleet, "renew")
    fleet.wait(fleet.all_steps_ran, what="the lost answer")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(2 * FAILOVER)
    assert not fleet.happened(LeaseLost)
    assert fleet.owner_changes(key) == [None, "p1"]
    assert fleet.ledger.duplicates == 0


def test_scenario_14_pykcl_s_checkpoint_is_delivered_twice(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    said = []

    class Checkpointing(ScenarioProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            batch.checkpointer.checkpoint()
            said.append("success")

    fleet.start_pykcl("p1", processor=lambda: Checkpointing("p1", fleet), checkpoint_mode="manual")
    fleet.wait_read("p1", key)
    answer_lost(fleet, "checkpoint")
    fleet.put_everywhere(2)
    fleet.wait(lambda: bool(said), what="the checkpoint to return")
    assert fleet.all_steps_ran()
    assert fleet.rows()[key].checkpoint == fleet.position(key, 1)
    fleet.simulation.sleep(2 * FAILOVER)
    assert not fleet.happened(LeaseLost)
    assert fleet.owner_changes(key) == [None, "p1"]
    assert len(said) == 1
