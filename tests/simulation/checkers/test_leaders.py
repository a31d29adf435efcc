"""The checker of leaders reports each thing that a leader must not do, and nothing else."""

from types import SimpleNamespace

import pytest

from pykcl.model.fleet_rows import LeaderLock, keep_lock, release_lock, take_lock
from pykcl.model.lease_item import parse_row
from pykcl.model.lease_writes import assign, begin_hand_over
from pykcl.planning.leader_lock import HeldLock
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Guarantee, GuaranteeBroken, Violations
from tests.java_compat.scenarios.java_3x import leader_lock
from tests.simulation.checkers.leaders import LeaderChecker

VERSION = "0b5c1b0e-7c1e-4c53-9d3a-3f1f5b0c8a11"
OTHER = "1b5c1b0e-7c1e-4c53-9d3a-3f1f5b0c8a12"
SHARD = "shardId-000000000000"
ROW = {
    "leaseKey": {"S": SHARD},
    "leaseOwner": {"S": "w2"},
    "leaseCounter": {"N": "3"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
}


class Setting:
    """A checker at work. now: virtual seconds; the clocks of hosts show the same."""

    def __init__(self):
        self.now = 1000.0
        self.violations = Violations()
        self.checker = LeaderChecker(
            self.violations,
            now=lambda: self.now,
            aws_seconds=lambda: self.now,
            clock=lambda host: self.now,
            on_clock=lambda host, seconds: seconds,
            frozen=Freezes(lambda: self.now),
            worker_ids={"w1": "w1", "w2": "w2"},
            failover=10.0,
            is_changed_by_hand=lambda key: False,
        )
        self.leaderships = {}
        for host in ("w1", "w2"):
            self.leaderships[host] = SimpleNamespace(_held=None)
            manager = SimpleNamespace(_leadership=self.leaderships[host])
            self.checker.watch(host, SimpleNamespace(_manager=manager))

    def holds(self, host, version, seconds=30.0):
        self.leaderships[host]._held = HeldLock(LeaderLock(host, version, seconds), self.now)
        self.checker.poll()

    def lock_changed(self, before, after, *, by="w1", operation="PutItem"):
        self.checker.lock_changed(Change(operation, "orders-app", "Leader", before, after, by))

    def assigned(self, write, after, *, by="w1"):
        _, params = write.request()
        self.checker.lease_changed(
            Change("UpdateItem", "orders-app", SHARD, ROW, after, by, params), by_leader=True
        )

    def broken(self):
        with pytest.raises(GuaranteeBroken) as found:
            self.violations.check()
        others = (Guarantee.CONDITIONAL, Guarantee.FOREIGN_KEPT, Guarantee.COUNTER_BY_ONE)
        assert found.value.guarantee in (Guarantee.LEADS_ALONE, *others)
        return str(found.value)


@pytest.fixture
def setting():
    return Setting()


def lock(owner="w1", version=VERSION, **changes):
    return {**leader_lock(owner, version), **changes}


def test_two_that_believe_are_reported_and_one_after_the_other_is_not(setting):
    setting.holds("w1", VERSION)
    setting.now += 22.6
    setting.holds("w2", OTHER)
    setting.violations.check()
    setting.now += 1
    setting.holds("w1", VERSION + "x")
    assert "w1 and w2 both believe" in setting.broken()


def test_a_java_worker_believes_for_the_whole_duration(setting):
    java = SimpleNamespace(version="version-1", held_for=119.0)
    setting.checker.watch_java("java1", java)
    setting.checker.poll()
    setting.holds("w1", VERSION)
    assert "w1 and java1 both believe" in setting.broken()


@pytest.mark.parametrize("is_heard", [True, False], ids=["answered", "no answer yet"])
def test_a_lock_that_somebody_replaced_by_hand_is_no_second_one(setting, is_heard):
    setting.holds("w1", VERSION)
    setting.checker.replaced_by_hand(lock(version=VERSION if is_heard else VERSION + "x"))
    setting.holds("w2", OTHER)
    setting.violations.check()


@pytest.mark.parametrize(("after", "fine"), [(119.8, False), (120.0, True)])
def test_the_lock_is_left_alone_for_its_duration(setting, after, fine):
    setting.lock_changed(None, lock("java1", "version-1"), by="java1")
    setting.now += after
    setting.lock_changed(lock("java1", "version-1"), lock())
    if fine:
        setting.violations.check()
    else:
        assert "takes the lock of java1 after 119.8 s of 119.9 s" in setting.broken()


@pytest.mark.parametrize("before", [None, lock("java1", "version-1", isReleased={"S": "1"})])
def test_a_free_lock_is_taken_at_once(setting, before):
    setting.lock_changed(before, lock())
    setting.violations.check()


@pytest.mark.parametrize(
    "row",
    [
        lock(pykcl={"M": {}}),
        lock(leaseDuration={"N": "120000"}),
        lock(entityType={"S": "LOCK"}),
        lock(version="version-1"),
        lock("w2"),
    ],
)
def test_another_form_than_that_of_java_is_reported(setting, row):
    setting.lock_changed(None, row)
    assert "a lock of another form than Java's" in setting.broken()


def test_a_foreign_row_in_its_place_is_not_to_be_written_over(setting):
    setting.lock_changed({"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}, lock())
    assert "w1 writes over" in setting.broken()


def test_the_writes_of_a_worker_are_fine_as_they_are_and_not_without_the_version(setting):
    held = LeaderLock("w1", VERSION, 30.0)
    for write in (take_lock(None, held), keep_lock(held, held), release_lock(held)):
        operation = "PutItem" if write.method == "put_item" else "UpdateItem"
        setting.checker.lock_sent(operation, {**write.request}, "w1")
    setting.violations.check()
    values = {":owner": {"S": "w1"}, ":released": {"S": "1"}}
    request = {
        **release_lock(held).request,
        "ConditionExpression": "ownerName = :owner",
        "ExpressionAttributeValues": values,
    }
    setting.checker.lock_sent("UpdateItem", request, "w1")
    assert "under a condition that any version of it fulfils" in setting.broken()


def test_only_who_believes_may_assign(setting):
    request = {"Key": {"leaseKey": {"S": SHARD}}}
    setting.holds("w1", VERSION)
    setting.now += 22.4
    setting.checker.assignment_sent(request, "w1")
    setting.violations.check()
    setting.now += 0.2
    setting.checker.assignment_sent(request, "w1")
    assert "w1 assigns shardId-000000000000, and does not believe that it leads" in setting.broken()


def test_an_expired_lease_must_have_stood_still(setting):
    given = {**ROW, "leaseOwner": {"S": "w1"}, "leaseCounter": {"N": "4"}}
    write = assign(parse_row(ROW), "w1", stands_still=True)
    setting.checker.lease_changed(
        Change("UpdateItem", "orders-app", SHARD, {**ROW, "leaseCounter": {"N": "2"}}, ROW, "w2"),
        by_leader=False,
    )
    setting.now += 10.0
    setting.assigned(write, given)
    setting.violations.check()
    assert setting.checker.expired == 1
    setting.now += 9.8
    setting.assigned(write, given)
    assert "takes shardId-000000000000 for expired, which moved 9.8 s ago" in setting.broken()


def test_an_expired_lease_is_assigned_only_under_its_counter(setting):
    given = {**ROW, "leaseOwner": {"S": "w1"}, "leaseCounter": {"N": "4"}}
    setting.now += 20.0
    setting.assigned(assign(parse_row(ROW), "w1", stands_still=False), given)
    assert "for expired, whether it has moved since or not" in setting.broken()


def test_a_hand_over_moves_no_counter_and_an_assignment_changes_nothing_else(setting):
    asked = {**ROW, "leaseOwner": {"S": "w1"}, "checkpointOwner": {"S": "w2"}}
    write = begin_hand_over(parse_row(ROW), "w1")
    setting.assigned(write, asked)
    setting.violations.check()
    setting.assigned(write, {**asked, "leaseCounter": {"N": "4"}})
    assert "counter +1" in setting.broken()


def test_an_assignment_that_moves_a_checkpoint_is_reported(setting):
    given = {**ROW, "leaseOwner": {"S": "w1"}, "leaseCounter": {"N": "4"}, "checkpoint": {"S": "LATEST"}}
    setting.assigned(assign(parse_row(ROW), "w1", stands_still=True), given)
    assert "assigns shardId-000000000000 and changes ['checkpoint'," in setting.broken()


@pytest.mark.parametrize(("age", "fine"), [(86_400, True), (86_000, False)])
def test_only_metrics_of_a_day_ago_are_deleted(setting, age, fine):
    setting.now = 1_000_000.0
    setting.checker.metrics_deleted("w1", {"lut": {"N": str(int(setting.now) - age)}})
    if fine:
        setting.violations.check()
    else:
        assert "86000 s old" in setting.broken()


def test_a_worker_that_stops_must_not_hold_the_lock(setting):
    setting.holds("w1", VERSION)
    setting.checker.stopped("w1", None, must_be_released=False)
    assert "w1 has stopped, and holds the lock" in setting.broken()


@pytest.mark.parametrize(
    ("is_sent", "must_be", "fine"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_worker_that_stops_releases_its_lock(setting, is_sent, must_be, fine):
    setting.holds("w1", VERSION)
    if is_sent:
        request = dict(release_lock(LeaderLock("w1", VERSION, 30.0)).request)
        setting.checker.lock_sent("UpdateItem", request, "w1")
    setting.leaderships["w1"]._held = None
    setting.checker.poll()
    setting.checker.stopped("w1", lock(), must_be_released=must_be)
    if fine:
        setting.violations.check()
    else:
        assert "the lock is not released" in setting.broken()


@pytest.mark.parametrize("must_be", [True, False])
def test_a_lock_that_another_worker_failed_to_release_is_not_that_of_a_worker_that_stops(setting, must_be):
    setting.holds("w2", VERSION)
    request = dict(release_lock(LeaderLock("w2", VERSION, 30.0)).request)
    setting.checker.lock_sent("UpdateItem", request, "w2")
    setting.leaderships["w2"]._held = None
    setting.checker.poll()
    setting.checker.stopped("w1", lock("w2"), must_be_released=must_be)
    setting.violations.check()
    if must_be:
        setting.checker.stopped("w2", lock("w2"), must_be_released=True)
        assert "w2 has stopped, and the lock is not released" in setting.broken()


@pytest.mark.parametrize(
    ("is_sent", "must_be", "fine"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_lock_that_was_put_without_an_answer_is_to_be_released_as_well(setting, is_sent, must_be, fine):
    setting.lock_changed(None, lock())
    if is_sent:
        request = dict(release_lock(LeaderLock("w1", VERSION, 30.0)).request)
        setting.checker.lock_sent("UpdateItem", request, "w1")
    setting.checker.stopped("w1", lock(), must_be_released=must_be)
    if fine:
        setting.violations.check()
    else:
        assert "the lock is not released" in setting.broken()
