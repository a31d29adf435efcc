"""The checker of followers reports each broken promise of a fleet with a leader, and nothing that is sound."""

from types import SimpleNamespace

import pytest

from pykcl.events import FleetFollowed, FleetUnfollowed, LeaseStateChanged
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.fleet_rows import WorkerMetrics, report, withdraw
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.delivery import RecordLog
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Violations
from pykcl.testing.simulation.service_faults import kind_of_write
from tests.java_compat.scenarios.java_3x import leader_lock
from tests.simulation.checkers.followers import (
    METRICS,
    FollowerChecker,
    FollowerRowChecker,
    LockHistory,
    follower_rules,
)
from tests.simulation.checkers.leaders import LeaderChecker
from tests.simulation.checkers.request_budget import RequestBudgetChecker
from tests.simulation.checkers.test_request_budget import OPTIONS
from tests.simulation.checking import broken_by, row

KEY = "parent"
FOLLOWED = FleetFollowed(client_version="CLIENT_VERSION_3X", beside="1 Java worker")


@pytest.fixture
def fleet():
    """A checked fleet of two hosts, w1 and w2, of which w1 follows. now[0]: the time."""
    now, violations, ahead = [1000.0], Violations(), {"w1": 0.0, "w2": 0.0}
    record_log = RecordLog(lambda: 0)
    record_log.parents[KEY] = ()
    frozen = Freezes(lambda: now[0])
    worker_ids = {"w1": "w1", "w2": "w2"}
    lock = LockHistory(lambda: now[0])
    rows = FollowerRowChecker(
        record_log, violations, is_peer=lambda h: not h.startswith("w"), rows=dict, is_gone=lambda key: False
    )
    checker = FollowerChecker(
        violations,
        now=lambda: now[0],
        aws_seconds=lambda: now[0],
        seen_seconds=lambda host: now[0] + ahead[host],
        frozen=frozen,
        worker_ids=worker_ids,
        options={"graceful_handoff_timeout": 10.0},
        failover=10.0,
        lock=lock,
        on_clock=lambda host, seconds: seconds,
        believes=lambda host, key: True,
        is_changed_by_hand=(by_hand := set()).__contains__,
    )
    checker.cannot_hand_over = lambda host, since: False
    rows.worker_ids.update(worker_ids)
    rows.follower = checker
    rows.leader = LeaderChecker(
        violations,
        now=lambda: now[0],
        aws_seconds=lambda: now[0],
        clock=lambda host: now[0],
        on_clock=lambda host, seconds: seconds,
        frozen=frozen,
        worker_ids=worker_ids,
        failover=10.0,
        is_changed_by_hand=lambda key: False,
    )
    checker.heard("w1", FOLLOWED)
    lock.note(leader_lock("java1", "v1"))
    now[0] += 100.0
    lock.note(leader_lock("java1", "v1b"))
    now[0] += 20.0
    return SimpleNamespace(
        now=now, violations=violations, rows=rows, checker=checker, lock=lock, frozen=frozen, by_hand=by_hand,
        ahead=ahead,
    )  # fmt: skip


def sent(fleet, write, host="w1"):
    operation = "UpdateItem" if write.method == "update_item" else "DeleteItem"
    fleet.rows.request_sent(operation, {"TableName": "t", **write.request}, host)


def metrics(fleet, worker="w1", off=0):
    return WorkerMetrics(worker, int(fleet.now[0]) + off)


def written(fleet, write, host="w1", **seen):
    """Apply a write of pykcl to the row of the lease."""
    _, params = write.request()
    fleet.rows.request_sent("UpdateItem", params, host)
    before = row(counter=write.seen.counter, **seen)
    after = {**before, "leaseCounter": {"N": str(write.seen.counter + 1)}}
    if write.kind in ("take", "adopt"):
        after["leaseOwner"] = {"S": write.after.owner}
    if write.kind == "end":
        after["checkpoint"] = {"S": "SHARD_END"}
        if write.after.owner is None:
            del after["leaseOwner"]
    fleet.rows.row_changed(Change("UpdateItem", "t", KEY, before, after, host, params))


def lease(owner="w1"):
    return Lease(KEY, Checkpoint("TRIM_HORIZON"), counter=1, owner=owner)


def test_each_write_of_a_follower_is_known_by_its_kind():
    metadata = PykclMetadata(owner="w1")
    asked = lease("java1").with_(checkpoint_owner="w1")
    writes = [
        ("adopt", lease_writes.adopt(lease(), metadata)),
        ("hand_over", lease_writes.hand_over(asked)),
        ("hand_over", lease_writes.hand_over(asked, metadata)),
        ("renew", lease_writes.renew(lease(), "1.5")),
        ("release", lease_writes.release(lease())),
        ("release", lease_writes.release(lease(), metadata)),
        ("take", lease_writes.take(lease("w2"), "w1", metadata)),
    ]
    for kind, write in writes:
        assert kind_of_write("UpdateItem", write.request()[1]) == kind
    mine = WorkerMetrics("w1", 5)
    assert kind_of_write("UpdateItem", report(mine).request) == "report"
    assert kind_of_write("DeleteItem", withdraw(mine).request) == "withdraw"


def test_metrics_after_the_first_query_are_sound(fleet):
    fleet.checker.query_answered("w1")
    sent(fleet, report(metrics(fleet)))
    assert broken_by(fleet.violations) is None


def test_metrics_before_the_first_query(fleet):
    sent(fleet, report(metrics(fleet)))
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


def test_metrics_of_one_that_does_not_follow(fleet):
    fleet.checker.query_answered("w1")
    fleet.checker.heard("w1", FleetUnfollowed(client_version="CLIENT_VERSION_2X", beside=""))
    sent(fleet, report(metrics(fleet)))
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


def test_metrics_of_another_worker(fleet):
    fleet.checker.query_answered("w1")
    sent(fleet, report(metrics(fleet, "w2")))
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


@pytest.mark.parametrize("off", [-300, 300])
def test_metrics_by_a_clock_that_is_off(fleet, off):
    fleet.checker.query_answered("w1")
    sent(fleet, report(metrics(fleet, off=off)))
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


@pytest.mark.parametrize(("host", "is_fine"), [("w1", True), ("w2", False)])
def test_metrics_by_the_clock_that_the_answers_to_this_host_show(fleet, host, is_fine):
    """A proxy stands before one of them only."""
    fleet.checker.query_answered("w1")
    fleet.ahead[host] = 300
    # When it has just come, anything may still be under way.
    sent(fleet, report(metrics(fleet, off=300)))
    fleet.now[0] += 30.0
    sent(fleet, report(metrics(fleet, off=300)))
    assert (broken_by(fleet.violations) is None) is is_fine
    fleet.now[0] += 30.0
    sent(fleet, report(metrics(fleet)))
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


def test_metrics_of_a_host_that_stood_still_may_be_old(fleet):
    fleet.checker.query_answered("w1")
    fleet.frozen.add("w1", 60.0)
    fleet.now[0] += 60.0
    sent(fleet, report(metrics(fleet, off=-60)))
    assert broken_by(fleet.violations) is None


def test_metrics_without_a_condition(fleet):
    fleet.checker.query_answered("w1")
    write = report(metrics(fleet))
    open_to_all = {**write.request, "ConditionExpression": "attribute_not_exists(wid) OR entityType = :kind"}
    fleet.rows.request_sent("UpdateItem", {"TableName": "t", **open_to_all}, "w1")
    assert broken_by(fleet.violations) is Guarantee.CONDITIONAL


@pytest.mark.parametrize("key", ["w2", "Migration3.0"])
def test_a_write_to_a_row_that_is_neither_a_lease_nor_its_own_metrics(fleet, key):
    change = Change(
        "UpdateItem", "t", key, None, {"leaseKey": {"S": key}}, "w1", report(metrics(fleet)).request
    )
    fleet.rows.row_changed(change)
    assert broken_by(fleet.violations) is Guarantee.FOREIGN_KEPT


def _reported(fleet):
    fleet.checker.query_answered("w1")
    sent(fleet, report(metrics(fleet)))
    after = {"leaseKey": {"S": "w1"}, "entityType": {"S": "WORKER_METRIC_STATS"}}
    fleet.rows.row_changed(Change("UpdateItem", "t", "w1", None, after, "w1", report(metrics(fleet)).request))


@pytest.mark.parametrize(("stops", "withdraws", "broken"), [
    (True, False, Guarantee.FOLLOWS_LEADER),
    (True, True, None),
    (False, False, None),
])  # fmt: skip
def test_a_release_before_the_metrics_are_withdrawn(fleet, stops, withdraws, broken):
    _reported(fleet)
    fleet.checker.is_stopping = lambda host: stops
    if withdraws:
        sent(fleet, withdraw(metrics(fleet)))
    fleet.rows.request_sent("UpdateItem", lease_writes.release(lease()).request()[1], "w1")
    assert broken_by(fleet.violations) is broken


@pytest.mark.parametrize(("shard", "broken"), [(KEY, None), ("another", Guarantee.FOLLOWS_LEADER)])
def test_a_worker_that_stops_may_hand_back_what_it_cannot_read(fleet, shard, broken):
    _reported(fleet)
    fleet.checker.is_stopping = lambda host: True
    fleet.checker.heard("w1", LeaseStateChanged(shard=shard, before="reading", after="handing back"))
    fleet.rows.request_sent("UpdateItem", lease_writes.release(lease()).request()[1], "w1")
    assert broken_by(fleet.violations) is broken


@pytest.mark.parametrize("worker", ["w1", "w2"])
@pytest.mark.parametrize(("days", "broken"), [(1.1, None), (0.0, Guarantee.BUDGETS)])
def test_a_leader_may_delete_each_report_that_became_a_day_old(fleet, worker, days, broken):
    """Native seed 121406: the clock of AWS jumps by more than a day, again and again, and each report is outdated."""
    rules = follower_rules({**OPTIONS, "worker_metrics_interval": 30.0}, 10.0)
    budgets = RequestBudgetChecker(fleet.violations, rules, lambda: fleet.now[0])
    fleet.checker.on_outdated = lambda host, key: budgets.spent(host, "outdated report", key)
    fleet.rows.leader = SimpleNamespace(metrics_deleted=lambda host, before: None)
    seconds = int(fleet.now[0] - days * 86400)
    for at in range(seconds, seconds + 4):
        gone = withdraw(WorkerMetrics(worker, at))
        seen = {"leaseKey": {"S": worker}, "entityType": METRICS, "lut": {"N": str(at)}}
        fleet.rows.request_sent("DeleteItem", {"TableName": "t", **gone.request}, "w1")
        fleet.rows.row_changed(Change("DeleteItem", "t", worker, seen, None, "w1", gone.request))
        budgets.spent("w1", "withdraw", worker)
    assert broken_by(fleet.violations) is broken


def test_a_lease_that_is_taken_from_a_fleet_with_a_leader(fleet):
    written(fleet, lease_writes.take(lease("w2"), "w1"), leaseOwner={"S": "w2"})
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


@pytest.mark.parametrize(("silent", "still", "by_hand", "broken"), [
    (90.0, 40.0, False, None),
    (90.0, 20.0, False, Guarantee.FOLLOWS_LEADER),
    (40.0, 40.0, False, Guarantee.FOLLOWS_LEADER),
    # Its counter came back: for a worker it has stood still all the time.
    (90.0, 20.0, True, None),
    (40.0, 40.0, True, Guarantee.FOLLOWS_LEADER),
])  # fmt: skip
def test_a_rescue_needs_a_silent_leader_and_a_lease_that_stands_still(fleet, silent, still, by_hand, broken):
    fleet.by_hand.update({KEY} if by_hand else ())
    fleet.now[0] += 100.0 - silent
    fleet.lock.note(leader_lock("java1", "v2"))
    fleet.now[0] += silent - still
    fleet.rows.row_changed(Change("UpdateItem", "t", KEY, row(), row(counter=2), "java1"))
    fleet.now[0] += still
    written(fleet, lease_writes.take(lease("w2"), "w1"), leaseOwner={"S": "w2"})
    assert broken_by(fleet.violations) is broken


def test_who_has_just_begun_to_follow_may_still_take_what_it_had_decided_on(fleet):
    fleet.checker.heard("w2", FOLLOWED)
    written(fleet, lease_writes.take(lease("w1"), "w2"), "w2")
    assert broken_by(fleet.violations) is None


def test_an_ended_lease_that_nobody_owns(fleet):
    fleet.rows.has_ended = lambda host, shard: True
    written(fleet, lease_writes.end_shard(lease(), (), keeps_owner=True))
    assert broken_by(fleet.violations) is None
    written(fleet, lease_writes.end_shard(lease(), ()))
    assert broken_by(fleet.violations) is Guarantee.FOLLOWS_LEADER


@pytest.mark.parametrize(("seconds", "broken"), [(20.0, None), (40.0, Guarantee.FOLLOWS_LEADER)])
def test_a_lease_that_is_asked_for_and_not_handed_over(fleet, seconds, broken):
    asked = row(leaseOwner={"S": "java1"}, checkpointOwner={"S": "w1"})
    fleet.rows.row_changed(Change("UpdateItem", "t", KEY, row(), asked, "java1"))
    fleet.now[0] += seconds
    fleet.checker.poll()
    assert broken_by(fleet.violations) is broken


def test_a_lease_that_was_handed_over_is_asked_for_no_more(fleet):
    asked = row(leaseOwner={"S": "java1"}, checkpointOwner={"S": "w1"})
    fleet.rows.row_changed(Change("UpdateItem", "t", KEY, row(), asked, "java1"))
    fleet.now[0] += 12.0
    fleet.rows.row_changed(Change("UpdateItem", "t", KEY, asked, row(leaseOwner={"S": "java1"}), "java1"))
    fleet.now[0] += 100.0
    fleet.checker.poll()
    assert broken_by(fleet.violations) is None
    assert fleet.checker.longest_hand_over == 12.0


def test_a_lease_that_the_leader_gives_away_under_its_worker_was_robbed(fleet):
    moved = row(counter=2)
    fleet.rows.row_changed(
        Change("UpdateItem", "t", KEY, row(), moved, "w1", lease_writes.renew(lease()).request()[1])
    )
    given = Change("UpdateItem", "t", KEY, moved, row(counter=3, leaseOwner={"S": "w2"}), "java1")
    assert fleet.checker.was_robbed(given)
    fleet.now[0] += 11.0
    assert not fleet.checker.was_robbed(given)


@pytest.mark.parametrize(
    "junk", [None, {"entityType": {"S": "LEADER"}}, leader_lock("java1", "v3", released=True)]
)
def test_a_lock_that_is_free_or_no_lock_is_nobodys_after_half_a_minute(fleet, junk):
    fleet.lock.note(junk)
    since = fleet.now[0]
    fleet.now[0] += 20.0
    assert not fleet.lock.nobody_led(since)
    fleet.now[0] += 10.0
    assert fleet.lock.nobody_led(fleet.now[0])


@pytest.mark.parametrize("was_held", [True, False])
def test_nobody_leads_by_a_lock_that_its_author_never_knew_to_have_taken(fleet, was_held):
    fleet.lock.was_held = lambda version: version != "v3" or was_held
    fleet.lock.note(None)
    fleet.now[0] += 20.0
    fleet.lock.note(leader_lock("w1", "v3"))
    fleet.now[0] += 1.0
    fleet.lock.note({"entityType": {"S": "LEADER"}})
    fleet.now[0] += 10.0
    assert fleet.lock.nobody_led(fleet.now[0]) is not was_held
