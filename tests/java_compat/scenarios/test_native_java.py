"""The scripted Java 3.x worker by itself: its lock, its assignments and its hand-overs are those of Java."""

import pytest

from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.simulation.service_faults import STREAM
from tests.java_compat.scenarios import java_3x
from tests.java_compat.scenarios.scenario_fleet import FAILOVER, create_indexed_table
from tests.java_peer.native_peer import LOCK_SECONDS, NativePeer
from tests.java_peer.options import JavaOptions

pytestmark = pytest.mark.parametrize("backend", ["memory"])
ROUND = 2 * FAILOVER
ELECTED = 35.0
"""Seconds until a worker that finds the lock free has it, and has assigned what there is."""


@pytest.fixture
def native(new_fleet):
    """native(shards, *names): a fleet of Java 3.x workers in 3.x's own mode, and the peers by name."""

    def start(shards, *names, state=java_3x.NATIVE):
        fleet = new_fleet(shards=shards)
        create_indexed_table(fleet)
        fleet.dynamodb.put_raw(TABLE, java_3x.migration_row(state, "j0", 1))
        fleet.unchecked.add("leader")
        versions = iter(range(10_000))

        def deliver(worker, shard, records):
            fleet.done.setdefault(shard, set()).update(record.position for record in records)
            fleet.ledger.delivered.extend((worker, record) for record in records)

        peers = {}
        for name in names:
            runtime = fleet.simulation.runtime(name)
            peers[name] = NativePeer(
                name,
                runtime=runtime,
                client=fleet.dynamodb,
                table=TABLE,
                stream=MemoryStream(fleet.kinesis, STREAM, runtime, fleet.simulation.switch),
                on_records=deliver,
                options=JavaOptions(version="3.5.1", startup_wait=2.0, failover=FAILOVER),
            ).lead_with(
                client=fleet.client_of("leader"),
                table=TABLE,
                epoch=fleet.epoch,
                next_version=lambda: f"version-{next(versions)}",
                on_assigned=lambda leader, assignment: None,
            )
            peers[name].start()
        return fleet, peers

    return start


def leaders(peers):
    return [name for name, peer in peers.items() if peer.lock.is_held]


def test_one_leads_and_shares_the_leases_out(native):
    fleet, peers = native(4, "n1", "n2")
    fleet.wait(lambda: len(leaders(peers)) == 1, ELECTED, "a leader")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2], 4 * ROUND, "a share for each")
    fleet.put_everywhere(3)
    fleet.wait(lambda: len(fleet.ledger.delivered) == 12, 60, "all records")
    assert fleet.ledger.duplicates == 0
    assert len(leaders(peers)) == 1


def test_the_lock_of_a_dead_leader_is_taken_after_its_duration_and_not_before(native):
    fleet, peers = native(2, "n1", "n2")
    fleet.wait(lambda: leaders(peers), ELECTED, "a leader")
    (dead,) = leaders(peers)
    (other,) = peers.keys() - {dead}
    fleet.simulation.kill(dead)
    began = fleet.simulation.now
    fleet.wait(lambda: peers[other].lock.is_held, LOCK_SECONDS + 65, "the other to lead")
    # The last heartbeat may be half a minute old.
    assert fleet.simulation.now - began >= LOCK_SECONDS - 30
    fleet.wait(lambda: fleet.load()[other] == 2, 3 * ROUND, "its leases")


def test_a_lock_that_is_released_is_taken_at_the_next_attempt(native):
    fleet, peers = native(2, "n1", "n2")
    fleet.wait(lambda: leaders(peers), ELECTED, "a leader")
    (first,) = leaders(peers)
    (other,) = peers.keys() - {first}
    fleet.simulation.spawn("stop", first, peers[first].stop)
    fleet.wait(lambda: fleet.items()["Leader"].get("isReleased") == {"S": "1"}, 65, "the release")
    fleet.wait(lambda: peers[other].lock.is_held, 35, "the other to lead")


def test_a_lease_that_the_leader_asks_for_is_handed_over_behind_its_last_checkpoint(native):
    fleet, peers = native(2, "n1", "n2")
    fleet.wait(lambda: sorted(fleet.load().values()) == [1, 1], ELECTED + 4 * ROUND, "a share for each")
    fleet.put_everywhere(2)
    fleet.wait(lambda: len(fleet.ledger.delivered) == 4, 60, "all records")
    key, owner = next((key, owner) for key, owner in fleet.owners().items() if owner == "n1")
    seen = fleet.rows()[key]
    asked = java_3x.JavaLease(key, seen.checkpoint, counter=seen.counter, owner=owner)
    fleet.client_of("leader").update_item(**java_3x.begin_hand_off(TABLE, asked, "n2"))
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[key], 10, "the hand-over")
    assert fleet.owners()[key] == "n2"
    fleet.wait(lambda: key in peers["n2"].holds, 15, "the discovery")
    fleet.put_everywhere(1)
    fleet.wait(lambda: len(fleet.ledger.delivered) == 6, 60, "the rest")
    assert fleet.ledger.duplicates == 0


def test_while_the_fleet_is_upgraded_it_takes_as_in_2x_and_nobody_has_the_lock(native):
    fleet, peers = native(4, "n1", "n2", state=java_3x.UPGRADING)
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2], 8 * ROUND, "a share for each")
    assert "Leader" not in fleet.items()
    assert {"n1", "n2"} <= fleet.items().keys()
    row = java_3x.migration_row(java_3x.FLIPPED, "n1", 2)
    fleet.dynamodb.put_raw(TABLE, row)
    fleet.wait(lambda: len(leaders(peers)) == 1, 60 + ELECTED, "a leader")


def test_rows_that_are_not_what_they_are_called_count_for_nothing(backend):
    whole = java_3x.worker_metrics("t", "w", 1000)["ExpressionAttributeValues"]
    item = {"leaseKey": {"S": "w"}, **{name.removeprefix(":"): value for name, value in whole.items()}}
    assert java_3x.active_workers([item], 1010) == ["w"]
    for name in ("lut", "sts", "opr"):
        assert java_3x.active_workers([{**item, name: {"S": "x"}}], 1010) == []
        assert java_3x.active_workers([{key: item[key] for key in item if key != name}], 1010) == []
