"""Scenarios 32 to 36: leaders of KCL 3.x that assign and hand over leases, and the migration from 2.x."""

import pytest

from pykcl.testing.fleet import TABLE
from tests.java_compat.scenarios import java_3x
from tests.java_compat.scenarios.java_3x import Java3xWorker, LeaseAssignmentManager, MigrationReadyMonitor
from tests.java_compat.scenarios.scenario_fleet import (
    HEARTBEAT,
    NOTICED,
    counter_in,
    create_indexed_table,
    owner_in,
)

IN_MEMORY_ONLY = pytest.mark.parametrize("backend", ["memory"])
"""For what takes minutes of simulated time."""
ROUND = 20.0
METRICS = 30.0


class Fleet3x:
    """Workers of 3.x beside the pykcl workers of a fleet: they beat, discover and report by themselves.

    The leader's rounds, and the end of hand-offs (`hands_over`), can be left to the test.
    """

    def __init__(self, fleet, *names):
        self.fleet = fleet
        self.leader = LeaseAssignmentManager(client=fleet.client_of("leader"), table=TABLE)
        self.monitor = MigrationReadyMonitor("leader", client=fleet.client_of("leader"), table=TABLE)
        fleet.unchecked.add("leader")
        self.workers = {name: self._worker(name) for name in names}

    def _worker(self, name):
        return Java3xWorker(
            name, client=self.fleet.client_of(name), table=TABLE, runtime=self.fleet.simulation.runtime(name)
        )

    def live(self, *names):
        """From now on these renew what they hold, look for what they were given, and report metrics."""
        for name in names:
            self.fleet.simulation.spawn(
                f"{name}-java-3x", name, lambda worker=self.workers[name]: self._live(worker)
            )

    def _live(self, worker):
        ticks = 0
        while True:
            if ticks % round(METRICS / HEARTBEAT) == 0:
                worker.report_metrics(self.fleet.epoch())
            if ticks % 3 == 0:
                worker.discover()
            worker.renew_all()
            ticks += 1
            self.fleet.simulation.sleep(HEARTBEAT)

    def report_metrics(self):
        for worker in self.workers.values():
            worker.report_metrics(self.fleet.epoch())

    def lead(self, rounds=1):
        """The leader's rounds, each with the pause before it; what it did."""
        done = []
        for _ in range(rounds):
            self.fleet.simulation.sleep(ROUND)
            done += self.look()
        return done

    def look(self):
        return self.leader.run(self.fleet.simulation.now, self.fleet.epoch())


def a_native_fleet(fleet, *names):
    """The table of a 3.x application, all leases unowned. Its client version is in a table of KCL 3.0-3.4 that pykcl may
    not read, so that pykcl works beside it by the protocol of 2.x."""
    creator = fleet.java_by_hand("j0", "3.5.1")
    creator.create_table()
    for shard in fleet.shards().values():
        creator.create(shard)
    return Fleet3x(fleet, *names)


@IN_MEMORY_ONLY
def test_scenario_32_ten_rounds_of_the_leader_take_no_live_lease_from_pykcl(new_fleet):
    fleet = new_fleet(shards=6)
    native = a_native_fleet(fleet, "n1", "n2")
    native.live("n1", "n2")
    fleet.simulation.sleep(1)
    native.look()
    assert sorted(fleet.load().values()) == [3, 3]
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.load()["p1"] == 2, what="pykcl to steal its share")
    mine = {key for key, owner in fleet.owners().items() if owner == "p1"}
    since = len(fleet.dynamodb.changes)
    native.lead(rounds=10)
    assert {key for key, owner in fleet.owners().items() if owner == "p1"} == mine
    taken = [
        change
        for change in fleet.dynamodb.changes[since:]
        if change.key in mine and (change.author != "p1" or owner_in(change.after) != "p1")
    ]
    assert not taken
    assert not fleet.lost_by("p1")
    # The leader is not asleep: what nobody keeps alive it gives away, pykcl's too.
    fleet.simulation.kill("p1")
    native.lead(rounds=2)
    assert "p1" not in fleet.load()


@pytest.mark.parametrize("first", ["leader", "pykcl"])
def test_scenario_33_the_leader_assigns_a_lease_while_pykcl_takes_it(new_fleet, first):
    fleet = new_fleet()
    (key,) = fleet.shards()
    native = a_native_fleet(fleet, "n1")
    native.report_metrics()
    (plan,) = native.leader.plan(fleet.simulation.now, fleet.epoch())
    assert (plan.seen.key, plan.how) == (key, "assign")
    answers = []
    send = lambda: answers.append(native.leader.send(plan))  # noqa: E731
    fleet.when("p1", "take", send if first == "leader" else lambda: fleet.after_this_write(send))
    fleet.start_pykcl("p1")
    fleet.wait(lambda: bool(answers), what="both to reach for the lease")
    assert answers == [first == "leader"]
    fleet.simulation.sleep(1)
    winner = "n1" if first == "leader" else "p1"
    assert fleet.owners()[key] == winner
    assert [change.author for change in fleet.changes_of(key)[1:2]] == [
        "leader" if first == "leader" else "p1"
    ]
    assert counter_in(fleet.changes_of(key)[1].after) == 1
    assert fleet.owner_changes(key) == [None, winner]


def owned_by_a_native_worker(new_fleet):
    """A lease of n1's, which has stopped renewing it."""
    fleet = new_fleet(shards=1)
    (key,) = fleet.shards()
    native = a_native_fleet(fleet, "n1", "n2")
    native.report_metrics()
    assert native.workers["n1"].take(key)
    return fleet, native, key


def begin_hand_off(fleet, native, key, to):
    row = native.workers["n1"].scan()[key]
    params = java_3x.begin_hand_off(TABLE, row, to)
    fleet.client_of("leader").update_item(**params)
    assert fleet.items()[key]["checkpointOwner"]["S"] == row.owner
    assert counter_in(fleet.items()[key]) == row.counter


def test_scenario_34_pykcl_takes_a_lease_in_the_middle_of_a_hand_off(new_fleet):
    fleet, native, key = owned_by_a_native_worker(new_fleet)
    begin_hand_off(fleet, native, key, "n2")
    before = fleet.items()[key]
    old_owner, next_owner = native.workers["n1"], native.workers["n2"]
    next_owner.discover()
    assert not next_owner.held, "as long as there is a checkpoint owner it is not n2's"
    answers = []

    def the_old_owner_finishes_late():
        answers.append(old_owner.finish_hand_off(key))
        # And the request it would have sent had it looked before: conditional on both owners.
        seen = old_owner.held[key].with_(owner="n2", checkpoint_owner="n1")
        with pytest.raises(Exception, match="ConditionalCheckFailed"):
            fleet.client_of("n1").update_item(**java_3x.finish_hand_off(TABLE, seen))

    fleet.when("p1", "take", lambda: fleet.after_this_write(the_old_owner_finishes_late))
    fleet.start_pykcl("p1")
    fleet.wait(lambda: bool(answers), what="pykcl to take the silent lease")
    assert answers == [False]
    row = fleet.items()[key]
    assert "checkpointOwner" not in row
    assert row["leaseOwner"] == {"S": "p1"}
    assert counter_in(row) >= counter_in(before) + 1
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()


def test_scenario_34_pykcl_leaves_a_hand_off_alone_as_long_as_the_old_owner_is_alive(new_fleet):
    fleet, native, key = owned_by_a_native_worker(new_fleet)
    begin_hand_off(fleet, native, key, "n2")
    native.workers["n1"].held.clear()
    fleet.start_pykcl("p1")
    for _ in range(8):
        # In hand-off the old owner goes on renewing, without the condition on the checkpoint owner.
        fleet.client_of("n1").update_item(
            TableName=TABLE,
            Key={"leaseKey": {"S": key}},
            AttributeUpdates={"leaseCounter": {"Value": {"N": "1"}, "Action": "ADD"}},
            Expected={"checkpointOwner": {"Value": {"S": "n1"}}},
        )
        fleet.simulation.sleep(HEARTBEAT)
    assert not fleet.changes_by("p1")
    assert native.workers["n1"].finish_hand_off(key)
    native.workers["n2"].discover()
    assert key in native.workers["n2"].held


def test_scenario_34_a_hand_off_begins_between_pykcl_s_scan_and_take(new_fleet):
    """It moves the owner and not the counter: a take that asked for the counter alone would go through."""
    fleet, native, key = owned_by_a_native_worker(new_fleet)
    fleet.when("p1", "take", lambda: begin_hand_off(fleet, native, key, "n2"))
    fleet.start_pykcl("p1")
    fleet.wait(fleet.all_steps_ran, what="pykcl to reach for the silent lease")
    fleet.simulation.sleep(1)
    assert not fleet.changes_by("p1")
    assert native.workers["n1"].finish_hand_off(key)


def test_scenario_35_a_hand_off_is_asked_of_pykcl(new_fleet):
    """It finishes its batch, checkpoints and lets go of the lease; the next owner begins behind the last record."""
    fleet = new_fleet()
    (key,) = fleet.shards()
    native = a_native_fleet(fleet, "n1", "n2")
    fleet.start_pykcl("p1", checkpoint_mode="interval", checkpoint_interval=3600.0)
    fleet.put_everywhere(3)
    fleet.wait_all_delivered()
    assert fleet.rows()[key].checkpoint.is_sentinel
    counter = fleet.rows()[key].counter
    begin_hand_off(fleet, native, key, "n2")
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[key], NOTICED, "pykcl to let go")
    row = fleet.rows()[key]
    assert row.owner == "n2"
    assert row.checkpoint == fleet.position(key, 2)
    assert row.counter > counter
    assert fleet.lost_by("p1") == [], "nothing was lost: it was asked for"
    native.workers["n2"].discover()
    assert list(native.workers["n2"].held) == [key]
    fleet.put_everywhere(2)
    fleet.simulation.sleep(1)
    assert len(fleet.ledger.by("p1")) == 3
    fleet.done[key] = set(fleet.positions[key])


@IN_MEMORY_ONLY
def test_scenario_35_a_leader_never_asks_it_of_a_worker_without_metrics(new_fleet):
    fleet = new_fleet(shards=4)
    native = a_native_fleet(fleet, "n1", "n2")
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.load()["p1"] == 4, what="pykcl to take everything")
    native.live("n1", "n2")
    assert native.lead(rounds=7) == []
    assert fleet.load()["p1"] == 4


@IN_MEMORY_ONLY
def test_scenario_36_the_migration_is_never_ready_while_pykcl_owns_a_lease(new_fleet):
    fleet = new_fleet(shards=4)
    creator = fleet.java_by_hand("j0", "3.5.1")
    create_table_of_an_upgrade(fleet)
    for shard in fleet.shards().values():
        creator.create(shard)
    upgrade = Fleet3x(fleet, "n1", "n2")
    for key, name in zip(sorted(fleet.shards()), ("n1", "n1", "n2", "n2"), strict=True):
        assert upgrade.workers[name].take(key)
    upgrade.live("n1", "n2")
    fleet.simulation.sleep(1)
    assert upgrade.monitor.is_ready(fleet.epoch())
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.load()["p1"] == 1, what="pykcl to steal its share")
    for _ in range(15):
        fleet.simulation.sleep(60)
        assert not upgrade.monitor.check(fleet.simulation.now, fleet.epoch())
    assert fleet.items()[java_3x.MIGRATION]["cv"] == {"S": java_3x.UPGRADING}
    fleet.stop_pykcl("p1")
    (free,) = [key for key, owner in fleet.owners().items() if owner is None]
    assert not upgrade.monitor.is_ready(fleet.epoch()), "a lease of nobody is not ready either"
    assert upgrade.workers["n2"].take(free)
    flipped = []
    for _ in range(12):
        flipped.append(upgrade.monitor.check(fleet.simulation.now, fleet.epoch()))
        fleet.simulation.sleep(60)
    assert flipped.index(True) == 10
    assert fleet.items()[java_3x.MIGRATION]["cv"] == {"S": java_3x.FLIPPED}


def create_table_of_an_upgrade(fleet):
    create_indexed_table(fleet)
    fleet.dynamodb.put_raw(TABLE, java_3x.migration_row(java_3x.UPGRADING, "n1", fleet.epoch() * 1000))
