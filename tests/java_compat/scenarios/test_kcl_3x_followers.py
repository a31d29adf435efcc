"""pykcl as a member of a fleet that a leader of KCL 3.x runs. Numbers are those of the acceptance list (C)."""

from contextlib import suppress

import pytest

from pykcl.errors import LeaseLostError, NativeFleet, SetupError, TableGone
from pykcl.events import (
    FailureStarted,
    FleetFollowed,
    FleetUnfollowed,
    FleetUpgradedToV3,
    LeaderAbsent,
    LeaderReturned,
    LeaseLost,
    LeaseTaken,
    LossReason,
    ReportedLoadChanged,
    ReportsEnded,
    ReportsStarted,
)
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Fault, denied, failing, timed_out
from tests.host import FakeHost
from tests.java_compat.scenarios import java_3x
from tests.java_compat.scenarios.scenario_fleet import ScenarioProcessor, counter_in, create_indexed_table
from tests.java_compat.scenarios.test_kcl_3x import ROUND, Fleet3x

pytestmark = pytest.mark.parametrize("backend", ["memory"])


class LedFleet(Fleet3x):
    """A fleet with a leader that holds the lock, and runs until it dies."""

    def __init__(self, fleet, *names):
        super().__init__(fleet, *names)
        self.version = 0
        self.leads = True

    def lead_on(self):
        """From now on: a heartbeat of the lock every thirty seconds, and a round of assignments every twenty."""
        self.beat()
        self.fleet.simulation.spawn("leader-lock", "leader", lambda: self._every(30.0, self.beat))
        self.fleet.simulation.spawn("leader-rounds", "leader", lambda: self._every(ROUND, self.look))

    def _every(self, seconds, what):
        while True:
            self.fleet.simulation.sleep(seconds)
            if self.leads:
                what()

    def beat(self):
        self.version += 1
        self.fleet.dynamodb.put_raw(TABLE, java_3x.leader_lock("n1", f"version-{self.version}"))


@pytest.fixture
def led(new_fleet):
    """led(shards, *names): fleet and leader over a table of 3.x with its index; all leases unowned at first."""

    def start(shards, *names, state=java_3x.NATIVE):
        fleet = new_fleet(shards=shards)
        create_indexed_table(fleet)
        creator = fleet.java_by_hand("j0", "3.5.1")
        for shard in fleet.shards().values():
            creator.create(shard)
        fleet.dynamodb.put_raw(TABLE, java_3x.migration_row(state, "j0", fleet.epoch() * 1000))
        native = LedFleet(fleet, *names)
        native.live(*names)
        fleet.simulation.sleep(1)
        native.look()
        native.lead_on()
        return fleet, native

    return start


def works_on(fleet, name, least=1):
    """Not only owns: a lease that is handed over has the next owner's name for a while."""
    return lambda: len(fleet.workers[name].leases) >= least and fleet.load()[name] >= least


def metrics_rows(fleet):
    return {
        key for key, row in fleet.items().items() if row.get("entityType") == {"S": "WORKER_METRIC_STATS"}
    }


def test_c2_leases_are_shared_between_java_and_pykcl_and_then_stay(led):
    fleet, _ = led(12, "n1", "n2")
    assert sorted(fleet.load().values()) == [6, 6]
    fleet.start_pykcl("p1")
    fleet.start_pykcl("p2")
    fleet.wait(lambda: len(fleet.happened(ReportsStarted)) == 2, what="two reports")
    fleet.simulation.sleep(180)
    assert sorted(fleet.load().values()) == [3, 3, 3, 3]
    assert {event.reason for event in fleet.happened(LeaseTaken)} == {"assigned"}
    before = fleet.owners()
    fleet.put_everywhere(2)
    fleet.simulation.sleep(300)
    assert fleet.owners() == before
    assert not fleet.happened(LeaderAbsent)


def test_throughput_is_reported_also_where_every_batch_is_checkpointed_before_a_heartbeat_is_due(led):
    fleet, _ = led(2, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    (key,) = fleet.workers["p1"].leases
    for _ in range(20):
        fleet.put_everywhere(1)
        fleet.simulation.sleep(1)
    assert float(fleet.items()[key]["throughputKBps"]["N"]) > 0


def test_c4_leases_of_a_pykcl_worker_that_is_killed_go_to_java(led):
    fleet, _ = led(4, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    fleet.simulation.kill("p1")
    # Its metrics are believed for a minute, and some leases are assigned to it once more meanwhile.
    fleet.wait(lambda: fleet.load()["n1"] == 4, 60 + 10 + 3 * ROUND, "Java to have them all")


def test_c4_leases_of_a_java_worker_that_is_killed_come_to_pykcl(led):
    fleet, _ = led(6, "n1", "n2")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    fleet.simulation.kill("n2")
    # Its metrics are believed for a minute.
    fleet.wait(lambda: not fleet.load()["n2"], 60 + 10 + 3 * ROUND, "n2 to lose its leases")
    fleet.wait(works_on(fleet, "p1", 3), 3 * ROUND, "pykcl to have its part")


def test_c4_a_stop_withdraws_the_metrics_first_and_then_releases(led):
    fleet, _ = led(4, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    since = len(fleet.dynamodb.changes)
    fleet.stop_pykcl("p1")
    mine = [change for change in fleet.dynamodb.changes[since:] if change.author == "p1"]
    kinds = ["metrics" if change.key == "p1" else "lease" for change in mine]
    assert kinds[0] == "metrics"
    assert kinds.count("metrics") == 1
    assert metrics_rows(fleet) == {"n1"}
    assert fleet.load()["p1"] == 0
    fleet.wait(lambda: fleet.load()["n1"] == 4, ROUND + 1, "Java to have them all")
    assert len(fleet.happened(ReportsEnded)) == 1


@pytest.mark.parametrize("unanswered", ["first", "later"])
def test_c4_a_report_whose_answer_was_lost_is_withdrawn_too(led, unanswered):
    fleet, _ = led(2, "n1")
    if unanswered == "later":
        fleet.start_pykcl("p1")
        fleet.wait(works_on(fleet, "p1"), 180, "its share")
    answers = []

    def lose(operation, params):
        if operation == "UpdateItem" and params["Key"] == {"leaseKey": {"S": "p1"}}:
            answers.append(fleet.simulation.now)
            return Fault(after=timed_out())
        return None

    fleet.dynamodb.fault = lose
    if unanswered == "first":
        fleet.start_pykcl("p1")
    fleet.wait(lambda: answers, 60, "a report")
    assert metrics_rows(fleet) == {"n1", "p1"}
    fleet.stop_pykcl("p1")
    assert metrics_rows(fleet) == {"n1"}


@pytest.mark.parametrize("how", ["the thread dies", "permission taken away"])
def test_c4_a_report_that_was_applied_before_its_sender_failed_is_withdrawn_too(led, how):
    """Native seed 121194."""
    fleet, _ = led(2, "n1")
    reports = []

    def lose(operation, params):
        if operation != "UpdateItem" or params["Key"] != {"leaseKey": {"S": "p1"}}:
            return None
        reports.append(fleet.simulation.now)
        if how == "the thread dies":
            (manager,) = (task for task in fleet.simulation.unfinished("p1") if "manager" in task.name)
            fleet.simulation.strike(manager)
        return Fault(after=timed_out()) if len(reports) == 1 else Fault(before=denied())

    fleet.dynamodb.fault = lose
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.changes_of("p1"), 60, "a report")
    fleet.simulation.sleep(5)
    assert not fleet.happened(ReportsStarted)
    fleet.stop_pykcl("p1")
    assert metrics_rows(fleet) == {"n1"}


def test_c4_what_is_assigned_while_it_stops_is_released_too(led):
    fleet, native = led(2, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1"), 180, "its share")
    (late,) = (key for key, owner in fleet.owners().items() if owner == "n1")

    def assign_late():
        row = native.workers["n1"].scan()[late]
        fleet.client_of("leader").update_item(**java_3x.assign(TABLE, row, "p1"))

    fleet.when("p1", "release", lambda: fleet.after_this_write(assign_late))
    fleet.stop_pykcl("p1")
    assert fleet.load()["p1"] == 0


def test_c5_a_follower_rescues_the_leases_of_a_dead_leader(led):
    fleet, native = led(4, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    native.leads = False
    fleet.simulation.kill("n1")
    began = fleet.simulation.now
    fleet.wait(lambda: fleet.load()["p1"] == 4, 120, "the rescue")
    # The lock's last heartbeat may have come just after a scan.
    assert fleet.simulation.now - began <= max(3 * 10, 60) + 30 + 5 + 5
    (absent,) = fleet.happened(LeaderAbsent)
    assert absent.leader == "n1"
    native.leads = True
    native.beat()
    fleet.wait(lambda: fleet.happened(LeaderReturned), 60, "the leader")
    assert fleet.load()["p1"] == 4


def test_c5_a_follower_rescues_what_java_followers_have_room_for_as_they_rescue_nothing(led):
    fleet, native = led(6, "n1", "n2")
    fleet.start_pykcl("p1")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2, 2], 300, "an equal share")
    fleet.wait(works_on(fleet, "p1", 2), 30, "its share")
    native.leads = False
    fleet.simulation.kill("n1")
    began = fleet.simulation.now
    fleet.wait(lambda: fleet.load() == {"n2": 2, "p1": 4}, 120, "the rescue")
    assert fleet.simulation.now - began <= max(3 * 10, 60) + 30 + 5 + 5


def test_c5_a_rescue_that_comes_too_late_is_tried_again_only_after_the_next_scan(led):
    fleet, native = led(2, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1"), 180, "its share")
    (key,) = native.workers["n1"].held
    native.leads = False
    fleet.simulation.kill("n1")
    takes = []

    def moves():
        # Somebody else was first, again and again.
        takes.append(fleet.simulation.now)
        row = fleet.items()[key]
        fleet.dynamodb.put_raw(TABLE, {**row, "leaseCounter": {"N": str(counter_in(row) + 1)}})

    fleet.when("p1", "take", moves, key=key, always=True)
    fleet.wait(lambda: takes, 150, "the rescue")
    fleet.simulation.sleep(20)
    assert len(takes) == 1


def test_c5_without_rescue_it_waits_for_the_next_leader(led):
    fleet, native = led(4, "n1")
    fleet.start_pykcl("p1", rescue=False, leader="never")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    native.leads = False
    fleet.simulation.kill("n1")
    fleet.simulation.sleep(200)
    assert fleet.load() == {"n1": 2, "p1": 2}


def test_c6_a_hand_over_to_java_loses_and_repeats_nothing(led):
    fleet, native = led(3, "n1", "n2")
    fleet.start_pykcl("p1", checkpoint_mode="interval", checkpoint_interval=3600.0)
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    (key,) = (key for key, owner in fleet.owners().items() if owner == "p1")
    fleet.put_everywhere(3)
    fleet.wait(lambda: len(fleet.ledger.by("p1")) == 3, what="three records")
    row = native.workers["n1"].scan()[key]
    fleet.client_of("leader").update_item(**java_3x.begin_hand_off(TABLE, row, "n2"))
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[key], 5 + 2, "pykcl to let go")
    assert fleet.rows()[key].owner == "n2"
    assert fleet.rows()[key].checkpoint == fleet.position(key, 2)
    assert not fleet.happened(LeaseLost)


def test_c6_a_hand_over_from_java_is_adopted_within_three_seconds(led):
    fleet, native = led(3, "n1", "n2")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    key = next(key for key, owner in fleet.owners().items() if owner != "p1")
    owner = fleet.owners()[key]
    row = native.workers[owner].scan()[key]
    fleet.client_of("leader").update_item(**java_3x.begin_hand_off(TABLE, row, "p1"))
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[key], 10, "Java to let go")
    began = fleet.simulation.now
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 2, 10, "pykcl to adopt it")
    assert fleet.simulation.now - began <= 3.0


def test_c7_a_processor_that_hangs_holds_up_a_hand_over_for_thirty_seconds(led):
    fleet, native = led(2, "n1")
    hangs = [False]

    class Hangs(ScenarioProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            if hangs[0]:
                fleet.simulation.sleep(60)
                with suppress(LeaseLostError):
                    batch.checkpointer.checkpoint()
                    late.append(batch.shard_id)

    late = []
    fleet.start_pykcl("p1", processor=lambda: Hangs("p1", fleet))
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    (key,) = fleet.workers["p1"].leases
    fleet.put_everywhere(2)
    fleet.wait(lambda: not fleet.rows()[key].checkpoint.is_sentinel, what="a checkpoint")
    at = fleet.rows()[key].checkpoint
    hangs[0] = True
    fleet.put_everywhere(1)
    fleet.wait(lambda: len(fleet.ledger.by("p1")) == 3, what="the batch that hangs")
    row = native.workers["n1"].scan()[key]
    fleet.client_of("leader").update_item(**java_3x.begin_hand_off(TABLE, row, "n1"))
    began = fleet.simulation.now
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[key], 45, "the hand-over")
    assert 30 <= fleet.simulation.now - began <= 30 + 5 + 2
    assert fleet.rows()[key].checkpoint == at
    fleet.wait(lambda: ("p1", "lease_lost", key) in fleet.ledger.calls, 60, "lease_lost")
    assert late == []
    assert fleet.rows()[key].checkpoint == at
    (lost,) = fleet.happened(LeaseLost)
    assert (lost.reason, lost.new_owner) == (LossReason.HANDED_OVER, "n1")


@pytest.mark.parametrize("acked", [True, False])
def test_a_hand_over_waits_for_acks_within_its_time(led, acked):
    fleet, native = led(2, "n1")
    given = []

    class Acks(ScenarioProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            given.extend((batch, record) for record in batch)

    fleet.start_pykcl("p1", checkpoint_mode="ack", processor=lambda: Acks("p1", fleet))
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    (key,) = fleet.workers["p1"].leases
    fleet.put_everywhere(3)
    fleet.wait(lambda: len(given) == 3, what="three records")
    given[0][0].ack(given[0][1])
    row = native.workers["n1"].scan()[key]
    fleet.client_of("leader").update_item(**java_3x.begin_hand_off(TABLE, row, "n1"))
    began = fleet.simulation.now
    fleet.wait(lambda: ("p1", "shutdown_requested", key) in fleet.ledger.calls, 10, "the request")
    fleet.simulation.sleep(8)
    assert "checkpointOwner" in fleet.items()[key]
    for batch, record in given[1:] if acked else ():
        assert batch.ack(record)
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[key], 45, "the hand-over")
    assert fleet.simulation.now - began <= (16 if acked else 30 + 5)
    assert fleet.rows()[key].checkpoint == given[2 if acked else 0][1].position
    assert not fleet.happened(LeaseLost), "the thread of the lease hands it over, not the manager"
    assert given[1][0].ack(given[1][1]) is False


def test_c8_children_are_assigned_once_and_the_ended_lease_stays_owned_and_renewed(led):
    fleet, _ = led(2, "n1")
    fleet.start_pykcl("p1", cleanup_interval=0.0)
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    (key,) = (key for key, owner in fleet.owners().items() if owner == "p1")
    fleet.split(key)
    fleet.wait(lambda: fleet.rows()[key].is_ended, 60, "the end")
    assert fleet.rows()[key].owner == "p1"
    children = fleet.rows()[key].children
    fleet.simulation.sleep(2 * ROUND)
    assert all(fleet.owners()[child] for child in children)
    counter = fleet.rows()[key].counter
    since = len(fleet.dynamodb.changes)
    fleet.simulation.sleep(10 * ROUND)
    assert fleet.rows()[key].counter >= counter + 10 * ROUND / 5 - 2
    assert {c.author for c in fleet.dynamodb.changes[since:] if c.key == key} == {"p1"}


def test_c8_an_ended_lease_that_is_assigned_is_renewed_and_not_read(led):
    fleet, native = led(2, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    key = next(key for key, owner in fleet.owners().items() if owner == "n1")
    row = fleet.items()[key]
    native.workers["n1"].held.pop(key)
    fleet.dynamodb.put_raw(
        TABLE,
        {
            **row,
            "checkpoint": {"S": "SHARD_END"},
            "leaseOwner": {"S": "p1"},
            "leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 1)},
        },
    )
    counter = fleet.rows()[key].counter
    fleet.simulation.sleep(30)
    assert fleet.rows()[key].counter >= counter + 4
    assert key not in fleet.workers["p1"].leases


def test_c9_a_frozen_worker_writes_nothing_when_it_wakes_up_and_rejoins(led):
    fleet, _ = led(4, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    fleet.simulation.freeze("p1", 90.0)
    fleet.simulation.sleep(89)
    assert fleet.load()["n1"] == 4
    since = len(fleet.dynamodb.changes)
    fleet.simulation.sleep(8)
    mine = [change for change in fleet.dynamodb.changes[since:] if change.author == "p1"]
    assert {change.key for change in mine} <= {"p1"}
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share again")


def test_c10_the_report_has_the_time_of_aws_and_not_of_the_host(led):
    fleet, _ = led(2, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(lambda: "p1" in metrics_rows(fleet), 30, "a report")
    assert abs(int(fleet.items()["p1"]["lut"]["N"]) - fleet.epoch()) <= 2


def test_c11_a_refused_report_is_tried_again_and_the_worker_goes_on(led):
    fleet, _ = led(4, "n1")
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    refused = []

    def refuse(operation, params):
        if operation == "UpdateItem" and params["Key"] == {"leaseKey": {"S": "p1"}}:
            refused.append(fleet.simulation.now)
            return Fault(before=failing())
        return None

    fleet.dynamodb.fault = refuse
    fleet.simulation.sleep(120)
    assert len(refused) > 4
    # The leader takes it for dead, and its leases stay where they are, for their counters move.
    assert fleet.load()["p1"] == 2
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(10)
    # Ten seconds, and those for which one write is tried.
    assert fleet.epoch() - int(fleet.items()["p1"]["lut"]["N"]) <= 15
    assert not fleet.happened(LeaseLost)
    assert fleet.workers["p1"].failure is None


def test_c13_beside_java_that_is_being_upgraded_pykcl_works_as_2x(led):
    fleet, _ = led(2, "n1", state=java_3x.UPGRADING)
    fleet.start_pykcl("p1")
    fleet.simulation.sleep(60)
    assert not fleet.happened(FleetFollowed)
    assert "p1" not in metrics_rows(fleet)


def test_c13_it_follows_when_the_fleet_flips_while_it_runs(led):
    fleet, _ = led(4, "n1", state=java_3x.UPGRADING)
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    mine = {key for key, owner in fleet.owners().items() if owner == "p1"}
    fleet.client_of("n1").update_item(**java_3x.flip(TABLE, "n1", fleet.epoch() * 1000))
    fleet.wait(lambda: fleet.happened(FleetFollowed), 90, "pykcl to follow")
    fleet.wait(lambda: "p1" in metrics_rows(fleet), 30, "a report")
    assert {key for key, owner in fleet.owners().items() if owner == "p1"} == mine
    assert not fleet.happened(LeaseLost)
    assert not fleet.happened(FleetUpgradedToV3)


def test_c14_it_takes_again_after_a_rollback(led):
    fleet, native = led(4, "n1", state=java_3x.FLIPPED)
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    row = java_3x.migration_row("CLIENT_VERSION_2X", "tool", fleet.epoch() * 1000)
    fleet.dynamodb.put_raw(TABLE, row)
    native.leads = False
    fleet.simulation.kill("n1")
    fleet.wait(lambda: fleet.happened(FleetUnfollowed), 60, "the way back")
    fleet.wait(lambda: fleet.load()["p1"] == 4, 90, "pykcl to take the others")
    assert "p1" not in metrics_rows(fleet)


def test_c14_a_worker_that_starts_while_the_index_is_removed_goes_on_as_2x(led):
    fleet, native = led(2, "n1", state=java_3x.FLIPPED)

    def roll_back():
        row = java_3x.migration_row("CLIENT_VERSION_2X", "tool", fleet.epoch() * 1000)
        fleet.dynamodb.put_raw(TABLE, row)
        fleet.dynamodb.tables[TABLE].indexes.clear()
        native.leads = False
        fleet.simulation.kill("n1")

    fleet.when("p1", "Query", roll_back)
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.load()["p1"] == 2, 90, "pykcl to take its leases")
    assert fleet.workers["p1"].failure is None
    assert len(fleet.happened(FleetUnfollowed)) == 1


def test_c14_a_worker_that_starts_while_the_fleet_is_upgraded_again_follows(led):
    fleet, _ = led(2, "n1", state=java_3x.FLIPPED)
    indexes = fleet.dynamodb.tables[TABLE].indexes
    index = indexes.pop()
    # It describes the table before the index is there, and scans it afterwards.
    fleet.when("p1", "Scan", lambda: indexes.append(index))
    fleet.start_pykcl("p1")
    assert len(fleet.happened(FleetFollowed)) == 1


def test_c14_a_worker_whose_first_scan_is_older_than_a_rollback_joins_as_2x(led):
    fleet, _ = led(2, "n1", state=java_3x.FLIPPED)

    def roll_back(operation, params):
        if operation == "DescribeTable" and scanned:
            row = java_3x.migration_row("CLIENT_VERSION_2X", "tool", fleet.epoch() * 1000)
            fleet.dynamodb.put_raw(TABLE, row)
            fleet.dynamodb.tables[TABLE].indexes.clear()
        scanned.extend(["scan"] * (operation == "Scan" and fleet.simulation.current_group == "p1"))

    scanned = []
    fleet.dynamodb.fault = roll_back
    fleet.start_pykcl("p1")
    assert fleet.workers["p1"].failure is None
    assert not fleet.happened(FleetFollowed)


def test_c19_a_worker_that_wants_2x_is_refused(led):
    fleet, _ = led(2, "n1")
    with pytest.raises(NativeFleet, match=r'fleet_mode="2x" wants the protocol of KCL 2\.x'):
        fleet.pykcl_worker("p1", fleet_mode="2x").start()


def test_c19_an_unknown_client_version_is_refused_in_every_mode(led):
    fleet, _ = led(2, "n1", state="CLIENT_VERSION_4X")
    for mode in ("auto", "2x", "3x"):
        with pytest.raises(NativeFleet, match="CLIENT_VERSION_4X"):
            fleet.pykcl_worker("p1", fleet_mode=mode).start()


def test_c19_a_worker_that_wants_3x_is_refused_by_another_fleet(new_fleet):
    fleet = new_fleet()
    with pytest.raises(SetupError, match='fleet_mode="3x"'):
        fleet.pykcl_worker("p1", fleet_mode="3x").start()


def test_a_fleet_whose_index_is_missing_is_refused_by_name(new_fleet):
    fleet = new_fleet()
    creator = fleet.java_by_hand("j0", "3.5.1")
    creator.create_table()
    fleet.dynamodb.put_raw(TABLE, java_3x.migration_row(java_3x.NATIVE, "j0", 1))
    with pytest.raises(NativeFleet, match="no index of owners"):
        fleet.pykcl_worker("p1").start()


@pytest.mark.parametrize("name", ["shardId-000000000099", "Leader", "1234:orders:1:shardId-000000000000"])
def test_a_worker_named_like_a_row_of_the_fleet_is_refused_by_name(led, name):
    fleet, _ = led(2, "n1")
    fleet.dynamodb.tables[TABLE].rows.pop(name, None)
    with pytest.raises(NativeFleet, match="its worker identifier is the name of a row"):
        fleet.pykcl_worker(name).start()
    # As metrics it would be in the way of whoever makes that row later.
    assert name not in fleet.items()


def test_a_worker_named_like_another_row_harms_no_row(led):
    fleet, _ = led(2, "n1")
    before = {"leaseKey": {"S": "note"}, "text": {"S": "of an operator"}}
    fleet.dynamodb.put_raw(TABLE, before)
    worker = fleet.start_pykcl("note")
    fleet.wait(lambda: worker.failure is not None, 60, "the refusal")
    assert "is the key of a row" in str(worker.failure)
    assert fleet.items()["note"] == before


# -- CPU utilisation -------------------------------------------------------------------------------------------


class BusyHost(FakeHost):
    """An instance of EC2 that is busy for a quarter of its time."""

    def __init__(self, simulation):
        super().__init__({"/proc/stat": ""}, ec2=True)
        self._simulation = simulation

    def read(self, path):
        ticks = round(100 * self._simulation.now)
        return f"cpu {ticks} 0 0 {3 * ticks} 0\n" if self.files[path] is not None else super().read(path)


def cpu_reported(fleet, name="p1"):
    """The averages and the limit in the report of a worker; None where it has none."""
    row = fleet.items()[name]
    assert row["sts"]["M"].keys() == row["opr"]["M"].keys()
    if not row["sts"]["M"]:
        return None
    assert row["opr"] == {"M": {"C": {"L": [{"N": "100"}]}}}
    return [value["N"] for value in row["sts"]["M"]["C"]["L"]]


def test_cpu_is_reported_where_java_reports_it_and_the_last_ten_averages_are_kept(led):
    fleet, native = led(4, "n1")
    native.workers["n1"].cpu = ["40"]
    native.workers["n1"].report_metrics(fleet.epoch())
    host = BusyHost(fleet.simulation)
    fleet.start_pykcl("p1", host=host)
    fleet.wait(lambda: "p1" in metrics_rows(fleet), 30, "a report")
    assert cpu_reported(fleet) == ["25"]
    (started,) = fleet.happened(ReportsStarted)
    assert started.load == "/proc/stat"
    fleet.wait(works_on(fleet, "p1", 2), 180, "its share")
    fleet.simulation.sleep(400)
    assert cpu_reported(fleet) == ["25"] * 10
    host.files["/proc/stat"] = None
    fleet.wait(lambda: cpu_reported(fleet) == ["25"] * 9 + ["-1"], 35, "an interval without a reading")
    host.files["/proc/stat"] = ""
    fleet.wait(lambda: cpu_reported(fleet) == ["25"] * 8 + ["-1", "25"], 35, "the next average")
    assert host.asked == ["ec2"]


def test_a_worker_that_restarts_begins_with_no_averages(led):
    fleet, native = led(2, "n1")
    native.workers["n1"].cpu = ["40"]
    fleet.start_pykcl("p1", host=BusyHost(fleet.simulation))
    fleet.simulation.sleep(150)
    assert len(cpu_reported(fleet)) > 2
    fleet.stop_pykcl("p1")
    fleet.start_pykcl("p1", host=BusyHost(fleet.simulation))
    fleet.wait(lambda: "p1" in metrics_rows(fleet), 30, "a report")
    assert cpu_reported(fleet) == ["25"]


def test_a_worker_that_follows_again_begins_with_no_averages(led):
    fleet, native = led(2, "n1", state=java_3x.FLIPPED)
    native.workers["n1"].cpu = ["40"]
    fleet.start_pykcl("p1", host=BusyHost(fleet.simulation))
    fleet.simulation.sleep(150)
    assert len(cpu_reported(fleet)) > 2
    for state, follows in (("CLIENT_VERSION_2X", False), (java_3x.FLIPPED, True)):
        fleet.dynamodb.put_raw(TABLE, java_3x.migration_row(state, "tool", fleet.epoch() * 1000))
        fleet.wait(lambda wanted=follows: ("p1" in metrics_rows(fleet)) is wanted, 90, state)
    assert cpu_reported(fleet) == ["25"]


@pytest.mark.parametrize(
    ("cpu", "options"),
    [((), {}), ((), {"worker_metrics": "throughput"}), (["40"], {"worker_metrics": "throughput"})],
)
def test_beside_throughput_alone_no_cpu_is_reported_and_the_host_is_not_asked(led, cpu, options):
    fleet, native = led(2, "n1")
    native.workers["n1"].cpu = cpu
    native.workers["n1"].report_metrics(fleet.epoch())
    host = BusyHost(fleet.simulation)
    fleet.start_pykcl("p1", host=host, **options)
    fleet.simulation.sleep(120)
    assert cpu_reported(fleet) is None
    assert host.asked == []
    (started,) = fleet.happened(ReportsStarted)
    assert started.load == "throughput"


def test_the_kind_follows_the_fleet_while_it_runs(led):
    fleet, native = led(3, "n1", "n2")
    fleet.start_pykcl("p1", host=BusyHost(fleet.simulation))
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    assert cpu_reported(fleet) is None
    native.workers["n1"].cpu = ["40"]
    fleet.wait(lambda: cpu_reported(fleet), 100, "CPU")
    native.workers["n1"].cpu = []
    fleet.wait(lambda: not cpu_reported(fleet), 100, "none")
    native.workers["n2"].cpu = ["40"]
    fleet.wait(lambda: cpu_reported(fleet), 100, "CPU again")
    assert cpu_reported(fleet) == ["25"]
    fleet.simulation.kill("n2")
    # A report that is a minute old is of a dead worker.
    fleet.wait(lambda: not cpu_reported(fleet), 60 + 3 * 35, "none")
    assert [event.load for event in fleet.happened(ReportedLoadChanged)] == ["/proc/stat", "throughput"] * 2
    assert not fleet.happened(LeaseLost)


def test_where_cpu_cannot_be_measured_throughput_is_reported_with_the_reason(led):
    fleet, native = led(2, "n1")
    native.workers["n1"].cpu = ["40"]
    native.workers["n1"].report_metrics(fleet.epoch())
    fleet.start_pykcl("p1")
    fleet.wait(works_on(fleet, "p1"), 180, "a lease")
    assert cpu_reported(fleet) is None
    (started,) = fleet.happened(ReportsStarted)
    assert "no CPU metric: this is neither an ECS task" in started.load


def test_a_refused_report_costs_no_average(led):
    fleet, native = led(2, "n1")
    native.workers["n1"].cpu = ["40"]
    fleet.start_pykcl("p1", host=BusyHost(fleet.simulation))
    fleet.wait(lambda: "p1" in metrics_rows(fleet) and cpu_reported(fleet), 100, "CPU")
    count = len(cpu_reported(fleet))

    def refuse(operation, params):
        is_report = operation == "UpdateItem" and params["Key"] == {"leaseKey": {"S": "p1"}}
        return Fault(before=failing()) if is_report else None

    fleet.dynamodb.fault = refuse
    fleet.simulation.sleep(60)
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(10)
    assert cpu_reported(fleet) == ["25"] * (count + 1)


def test_cpu_that_is_asked_for_is_reported_beside_throughput_too(led):
    fleet, _ = led(2, "n1")
    fleet.start_pykcl("p1", host=BusyHost(fleet.simulation), worker_metrics="cpu")
    fleet.wait(lambda: "p1" in metrics_rows(fleet), 30, "a report")
    assert cpu_reported(fleet) == ["25"]


@pytest.mark.parametrize("state", [java_3x.NATIVE, java_3x.UPGRADING])
def test_cpu_that_is_asked_for_and_cannot_be_measured_is_refused_at_the_start(led, state):
    fleet, _ = led(1, "n1", state=state)
    with pytest.raises(
        SetupError, match=r'worker_metrics="cpu".*neither an ECS task.*Do: leave worker_metrics out'
    ):
        fleet.pykcl_worker("p1", worker_metrics="cpu").start()


# -- tables of KCL 3.0-3.4 ---------------------------------------------------------------------------------------

STATE, METRICS = f"{TABLE}-CoordinatorState", f"{TABLE}-WorkerMetricStats"


@pytest.fixture
def old_fleet(new_fleet):
    """A fleet of KCL 3.0-3.4: state, lock and metrics are in tables of their own. All leases are unowned."""
    fleet = new_fleet(shards=2)
    create_indexed_table(fleet)
    for name, key in ((STATE, "key"), (METRICS, "wid")):
        fleet.dynamodb.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
    creator = fleet.java_by_hand("j0", "3.5.1")
    for shard in fleet.shards().values():
        creator.create(shard)
    version = java_3x.migration_row(java_3x.NATIVE, "j0", fleet.epoch() * 1000)
    fleet.dynamodb.put_raw(STATE, as_old(version))
    fleet.dynamodb.put_raw(STATE, as_old(java_3x.leader_lock("j0", "version-1")))
    return fleet


def as_old(row):
    """The row as KCL 3.0-3.4 has it."""
    return {"key": row["leaseKey"], **{name: row[name] for name in row.keys() - {"leaseKey", "entityType"}}}


def test_c12_metrics_go_to_the_table_of_kcl_3_4(old_fleet):
    fleet = old_fleet
    fleet.start_pykcl("p1", rescue=False, leader="never")
    fleet.wait(lambda: fleet.dynamodb.rows(METRICS), 30, "a report")
    (row,) = fleet.dynamodb.rows(METRICS).values()
    assert row.keys() == {"wid", "lut", "sts", "opr"}
    hand = fleet.java_by_hand("j0", "3.5.1")
    key = sorted(fleet.shards())[0]
    fleet.client_of("leader").update_item(**java_3x.assign(TABLE, hand.scan()[key], "p1"))
    fleet.wait(works_on(fleet, "p1"), 10, "the lease")
    fleet.stop_pykcl("p1")
    assert fleet.dynamodb.rows(METRICS) == {}
    assert set(fleet.items()) == set(fleet.shards())


def old_metrics(fleet, *cpu):
    """A report of a Java worker in the table of KCL 3.0-3.4."""
    row = java_3x.worker_metrics(METRICS, "j0", fleet.epoch(), cpu)["ExpressionAttributeValues"]
    named = {name[1:]: value for name, value in row.items() if name in (":lut", ":sts", ":opr")}
    fleet.dynamodb.put_raw(METRICS, {"wid": {"S": "j0"}, **named})


def test_c12_the_kind_follows_the_reports_in_their_own_table(old_fleet):
    fleet = old_fleet
    old_metrics(fleet, "40")
    fleet.start_pykcl("p1", rescue=False, host=BusyHost(fleet.simulation))
    fleet.wait(lambda: len(fleet.dynamodb.rows(METRICS)) == 2, 30, "a report")
    row = fleet.dynamodb.rows(METRICS)["p1"]
    assert row["sts"] == {"M": {"C": {"L": [{"N": "25"}]}}}
    assert row["opr"] == {"M": {"C": {"L": [{"N": "100"}]}}}
    assert row.keys() == {"wid", "lut", "sts", "opr"}
    old_metrics(fleet)
    fleet.simulation.sleep(35)
    assert fleet.dynamodb.rows(METRICS)["p1"]["sts"] == {"M": {}}


def test_c12_a_metrics_table_that_may_not_be_scanned_leaves_what_is_known(old_fleet):
    fleet = old_fleet
    old_metrics(fleet, "40")
    refused = []

    def refuse(operation, params):
        is_it = operation == "Scan" and params["TableName"] == METRICS
        if not is_it:
            return None
        refused.append(params)
        return Fault(before=denied("Scan"))

    fleet.dynamodb.fault = refuse
    fleet.start_pykcl("p1", rescue=False, host=BusyHost(fleet.simulation))
    fleet.wait(lambda: len(fleet.dynamodb.rows(METRICS)) == 2, 60, "a report")
    assert fleet.dynamodb.rows(METRICS)["p1"]["sts"] == {"M": {}}
    assert refused
    assert fleet.workers["p1"].failure is None


def test_c12_a_lock_that_stands_still_in_its_own_table_is_no_leader(old_fleet):
    fleet = old_fleet
    fleet.start_pykcl("p1")
    fleet.simulation.sleep(50)
    assert fleet.load()["p1"] == 0
    fleet.wait(lambda: fleet.load()["p1"] == 2, 60, "the rescue")


def test_c12_a_fleet_without_a_lock_in_its_own_table_has_no_leader(old_fleet):
    """As Java leaves it that had time to stop: it deletes the lock."""
    fleet = old_fleet
    fleet.dynamodb.delete_item(TableName=STATE, Key={"key": {"S": "Leader"}})
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.load()["p1"] == 2, 90, "the rescue")


def test_c12_a_metrics_table_that_is_missing_is_not_the_loss_of_the_lease_table(old_fleet):
    fleet = old_fleet
    fleet.dynamodb.delete_table(TableName=METRICS)
    worker = fleet.start_pykcl("p1")
    fleet.simulation.sleep(60)
    assert worker.failure is None or not isinstance(worker.failure, TableGone)
    assert worker.failure is not None or fleet.happened(FailureStarted)


def test_c12_a_table_migration_in_progress_is_refused_by_name(led):
    fleet, _ = led(1, "n1")
    row = {"leaseKey": {"S": "TableMigration3.5"}, "entityType": {"S": "TABLE_MIGRATION"}}
    fleet.dynamodb.put_raw(TABLE, {**row, "tm": {"S": "TABLE_MIGRATION_PENDING"}})
    with pytest.raises(NativeFleet, match="moving its state into the lease table"):
        fleet.pykcl_worker("p1").start()
