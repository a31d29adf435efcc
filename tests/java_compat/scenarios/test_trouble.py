"""Scenarios 39 and 40: a throttled table, and a fleet in which everything happens at once."""

import random

import pytest

from pykcl.testing.fleet import STREAM
from pykcl.testing.memory.dynamodb import Fault, throttled
from tests.java_compat.scenarios.scenario_fleet import FAILOVER

IN_MEMORY_ONLY = pytest.mark.parametrize("backend", ["memory"])
"""For what takes minutes of simulated time."""
BELIEF = 0.9 * FAILOVER
"""How long pykcl believes in a lease after its last heartbeat was sent."""


def throttle(fleet, *kinds):
    for kind in kinds:
        fleet.when("p1", kind, lambda: Fault(before=throttled()), always=True)


@pytest.mark.parametrize(
    "kinds", [("Scan",), ("renew",), ("checkpoint",), ("Scan", "renew", "checkpoint")], ids="-".join
)
def test_scenario_39_a_throttled_table_costs_no_lease_as_long_as_the_fail_over_time(new_fleet, kinds):
    fleet = new_fleet(shards=2)
    fleet.start_pykcl("p1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    throttle(fleet, *kinds)
    fleet.put_everywhere(1)
    fleet.simulation.sleep(FAILOVER / 2)
    fleet.forget_steps()
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(FAILOVER)
    assert not fleet.lost_by("p1")
    assert fleet.ledger.duplicates == 0
    assert all(fleet.rows()[key].checkpoint == fleet.position(key, 2) for key in fleet.shards())


def test_scenario_39_beyond_the_fail_over_time_pykcl_fences_itself_before_java_takes(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    fleet.start_pykcl("p1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(1)
    fleet.start_java("j1")
    throttle(fleet, "Scan", "renew", "checkpoint")
    (last_write, _) = fleet.moments[-1]
    fleet.wait(lambda: fleet.workers["p1"].status().leases[0].in_doubt, what="pykcl to fence itself")
    assert fleet.simulation.now - last_write <= BELIEF + 0.2
    assert fleet.owners()[key] == "p1", "nobody has taken it yet"
    fleet.put_everywhere(2)
    fleet.simulation.sleep(1)
    assert len(fleet.ledger.by("p1")) == 1
    assert not fleet.lost_by("p1"), "nobody has taken it yet, so it may be confirmed"
    fleet.wait_owner("j1", key)
    fleet.wait_all_delivered()
    fleet.forget_steps()
    fleet.wait(lambda: fleet.lost_by("p1"), what="pykcl to hear of it")
    fleet.simulation.sleep(FAILOVER)
    assert len(fleet.ledger.by("p1")) == 1


# -- 40 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", range(3))
@IN_MEMORY_ONLY
def test_scenario_40_three_java_and_three_pykcl_workers_live_through_kills_splits_and_merges(
    new_fleet, chance
):
    fleet = new_fleet(shards=6)
    story = random.Random(chance)
    alive = ["j1", "p1", "j2", "p2", "j3", "p3"]
    for name in alive:
        start(fleet, name, story)
    for number in range(14):
        fleet.put_everywhere(2, packed=story.choice([1, 1, 4]))
        happening = story.choice(["kill", "split", "merge", "nothing"])
        if happening == "kill":
            dead = alive.pop(story.randrange(len(alive)))
            fleet.simulation.kill(dead)
            alive.append(f"{dead[0]}{number + 4}")
            start(fleet, alive[-1], story)
        elif happening == "split" and len(fleet.open_shards()) < 9:
            fleet.split(story.choice(fleet.open_shards()))
        elif happening == "merge" and len(fleet.open_shards()) > 4:
            left = story.randrange(len(fleet.neighbours()) - 1)
            first, second = fleet.neighbours()[left : left + 2]
            fleet.kinesis.merge(STREAM, first.shard_id, second.shard_id)
        fleet.simulation.sleep(story.uniform(2, 18))
    fleet.put_everywhere(1)
    fleet.wait_all_delivered(400)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered(400)
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), 400, "deletion of the ended leases")
    fleet.wait_balanced(*alive)
    # Every record at least once, parents first, counters and checkpoints forwards, no stub rows: the checker, all along.
    assert {name[0] for name, _ in fleet.ledger.delivered} == {"j", "p"}


def start(fleet, name, story):
    if name.startswith("j"):
        fleet.start_java(name, version=story.choice(["2.7.2", "3.5.1"]))
    else:
        fleet.start_pykcl(name)
