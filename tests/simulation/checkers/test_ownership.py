"""The checker of ownership, fed with rows and with events about them."""

import pytest

from pykcl.events import LeaseTaken, RetriesExhausted
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.delivery import position_of
from pykcl.testing.simulation.faults import Freezes, Marks
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.checkers.ownership import OwnershipChecker
from tests.simulation.checking import broken_by, row


@pytest.fixture
def ownership():
    """A checker of the lease "parent", its row in `table`, over a clock that can be set; a thief settles for 5 s."""
    violations, table = Violations(), {}
    checker = OwnershipChecker(
        violations, now=lambda: checker.time, row=table.get, worker_ids={"w1": "w1", "w2": "w2"}, failover=10.0, settling=5.0,
        left_alone=30.0, on_clock=lambda host, seconds: seconds,
    )  # fmt: skip
    checker.violations, checker.table, checker.time = violations, table, 100.0
    return checker


def _writes(checker, host, *, takes_from=None, releases=False, counter=2):
    after = row(counter=counter)
    after["leaseOwner"] = {"S": host}
    before = {**after, "leaseOwner": {"S": takes_from}} if takes_from else {**after}
    if takes_from is None:
        del before["leaseOwner"]
    request = {"ExpressionAttributeValues": {":leaseOwner": {"S": host}}}
    if releases:
        before, after = after, before
        request = {"UpdateExpression": "SET leaseCounter = :c REMOVE leaseOwner"}
    checker.table["parent"] = after
    checker.row_changed(Change("UpdateItem", "leases", "parent", before, after, host, request))


def _reports_take(checker, host, reason, from_owner=None, counter=2):
    checker.heard(host, LeaseTaken(shard="parent", reason=reason, from_owner=from_owner, counter=counter))
    return broken_by(checker.violations)


def test_who_reports_what_the_row_says_breaks_nothing(ownership):
    _writes(ownership, "w1")
    assert _reports_take(ownership, "w1", "unowned") is None
    ownership.starts("w1", "parent", position_of("TRIM_HORIZON", 0))
    ownership.time += 10.0
    _writes(ownership, "w2", takes_from="w1")
    assert _reports_take(ownership, "w2", "expired", "w1") is None
    ownership.poll()
    assert (ownership.taken, broken_by(ownership.violations)) == (2, None)


@pytest.mark.parametrize(("counter", "guarantee"), [(2, None), (3, Guarantee.ONE_OWNER)])
def test_only_a_row_whose_counter_moved_shows_that_somebody_works_on_the_lease(ownership, counter, guarantee):
    _writes(ownership, "w1")
    _reports_take(ownership, "w1", "unowned")
    ownership.time += 6.0
    before = ownership.table["parent"]
    after = {**before, "leaseCounter": {"N": str(counter)}, "childShardIds": {"SS": ["child"]}}
    ownership.row_changed(Change("UpdateItem", "leases", "parent", before, after, "java1", {}))
    ownership.time += 6.0
    _writes(ownership, "w2", takes_from="w1", counter=counter)
    assert _reports_take(ownership, "w2", "expired", "w1", counter) is guarantee


@pytest.mark.parametrize(("reason", "owner", "counter"), [
    ("unowned", None, 3), ("expired", "w1", 2), ("unowned", "w1", 2), ("rebalance", None, 2),
])  # fmt: skip
def test_who_reports_what_the_row_does_not_say(ownership, reason, owner, counter):
    _writes(ownership, "w1")
    assert _reports_take(ownership, "w1", reason, owner, counter) is Guarantee.NO_FALSE_ALARM


@pytest.mark.parametrize(("owner", "broken"), [("w1", None), ("w2", Guarantee.NO_FALSE_ALARM)])
def test_a_lease_that_a_leader_gave_to_this_worker_since_its_scan_is_reported_as_it_was_scanned(
    ownership, owner, broken
):
    ownership.time += 10.0
    _writes(ownership, "w1", takes_from=owner)
    assert _reports_take(ownership, "w1", "unowned") is broken


def test_who_reports_twice_one_lease_that_it_took(ownership):
    _writes(ownership, "w1")
    _reports_take(ownership, "w1", "unowned")
    assert _reports_take(ownership, "w1", "unowned") is Guarantee.NO_FALSE_ALARM


def test_who_finds_its_own_late_heartbeat_in_the_row_may_report_that_it_took_the_lease(ownership):
    ownership.table["parent"] = after = {**row(counter=7), "leaseOwner": {"S": "w1"}}
    before = {**after, "leaseCounter": {"N": "6"}}
    request = {"UpdateExpression": "SET leaseCounter = :c", "ExpressionAttributeValues": {}}
    ownership.row_changed(Change("UpdateItem", "leases", "parent", before, after, "w1", request))
    assert _reports_take(ownership, "w1", "expired", "w1", 7) is None


@pytest.mark.parametrize(("excused", "expected"), [(False, Guarantee.NO_FALSE_ALARM), (True, None)])
def test_who_was_answered_that_it_has_the_lease_reports_it(ownership, excused, expected):
    ownership.is_excused = lambda host, since: excused
    ownership.answered("w1", "parent")
    ownership.poll()
    ownership.time += 4.0
    ownership.poll()
    assert broken_by(ownership.violations) is expected


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["SHARD_END"], None),
        (["7"], Guarantee.NO_FALSE_ALARM),
        (["SHARD_END", "7"], Guarantee.NO_FALSE_ALARM),
        (["7", "SHARD_END"], None),
    ],
)
def test_an_ended_lease_that_a_leader_assigned_is_kept_without_a_report_though_its_row_goes_before_the_answer(
    ownership, places, expected, is_deleted
):
    """1) The adoption of an ended lease reaches the table; 2) the leader deletes the row, as its children have started;
    3) the answer comes. What was adopted decides, not what is there by then."""
    for counter, place in enumerate(places, 2):
        before, after = row(place, counter - 1), row(place, counter)
        ownership.table["parent"] = after
        request = {"ExpressionAttributeValues": {":pykcl": {"S": "{}"}}}
        ownership.row_changed(Change("UpdateItem", "leases", "parent", before, after, "w1", request))
    if is_deleted:
        del ownership.table["parent"]
        ownership.row_changed(Change("DeleteItem", "leases", "parent", after, None, "w2", {}))
    ownership.answered("w1", "parent")
    ownership.time += 4.0
    ownership.poll()
    assert broken_by(ownership.violations) is expected


@pytest.mark.parametrize(
    ("reports", "released_after", "taken_after", "guarantee"),
    [
        (True, 0.0, 29.0, Guarantee.BUDGETS),
        (True, 0.0, 30.0, None),
        (True, 7.0, 30.0, None),
        (False, 7.0, 36.0, Guarantee.BUDGETS),
        (False, 7.0, 37.0, None),
    ],
)
def test_what_was_handed_back_is_left_alone_from_then_on_however_late_its_release_comes(
    ownership, reports, released_after, taken_after, guarantee
):
    """Seed 880001624: the answer to the release did not come in time, and the release itself came later still."""
    _writes(ownership, "w1")
    _reports_take(ownership, "w1", "unowned")
    started = ownership.time
    if reports:
        reported = RetriesExhausted(shard="parent", cause="no GetItem", checkpoint="0:0", left_alone_for=30.0)
        ownership.heard("w1", reported)
    ownership.time = started + released_after
    _writes(ownership, "w1", releases=True, counter=3)
    ownership.time = started + taken_after
    _writes(ownership, "w1", counter=4)
    assert _reports_take(ownership, "w1", "unowned", counter=4) is guarantee


def test_a_lease_that_is_taken_before_it_stood_still_for_long_enough(ownership):
    _writes(ownership, "w1")
    ownership.time += 9.0
    _writes(ownership, "w2", takes_from="w1")
    assert _reports_take(ownership, "w2", "expired", "w1") is Guarantee.ONE_OWNER


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize(("seconds", "expected"), [(4.0, None), (2.0, Guarantee.ONE_OWNER)])
def test_a_counter_that_another_library_put_back_by_hand_may_hide_that_the_lease_moved(
    ownership, seconds, expected, renews
):
    """As it is after the second take it was before, and nobody need have seen what was in between."""
    hidden = []
    ownership.on_hidden = hidden.append
    _writes(ownership, "w1")
    _reports_take(ownership, "w1", "unowned")
    ownership.time += 6.0
    if renews:
        before = ownership.table["parent"]
        after = {**before, "leaseCounter": {"N": "3"}}
        request = {"UpdateExpression": "SET leaseCounter = :c", "ExpressionAttributeValues": {}}
        ownership.row_changed(Change("UpdateItem", "leases", "parent", before, after, "w1", request))
    # By hand: no write reports that the row named nobody meanwhile.
    _writes(ownership, "w1")
    assert _reports_take(ownership, "w1", "unowned") is None
    ownership.time += seconds
    _writes(ownership, "w2", takes_from="w1")
    assert _reports_take(ownership, "w2", "expired", "w1") is expected
    assert len(hidden) == 1


def test_a_take_that_everybody_could_see_hides_nothing(ownership):
    hidden = []
    ownership.on_hidden = hidden.append
    _writes(ownership, "w1")
    ownership.time += 11.0
    _writes(ownership, "w2", takes_from="w1")
    assert hidden == []


@pytest.mark.parametrize(("seconds", "fine"), [(4.0, False), (5.0, True)])
def test_a_thief_waits_before_it_starts(ownership, seconds, fine):
    _writes(ownership, "w2", takes_from="w1")
    _reports_take(ownership, "w2", "rebalance", "w1")
    ownership.time += seconds
    ownership.starts("w2", "parent", position_of("TRIM_HORIZON", 0))
    assert broken_by(ownership.violations) is (None if fine else Guarantee.ONE_OWNER)


@pytest.mark.parametrize(("host", "place", "fine"), [
    ("w1", "TRIM_HORIZON", True), ("w1", "7", False), ("w2", "7", True),
])  # fmt: skip
def test_an_owner_starts_where_its_row_says(ownership, host, place, fine):
    _writes(ownership, "w1")
    ownership.starts(host, "parent", position_of(place, 0))
    assert broken_by(ownership.violations) is (None if fine else Guarantee.NO_GAP)


@pytest.mark.parametrize(
    ("stopping", "seconds", "fine"), [(False, 29.0, False), (False, 30.0, True), (True, 0.0, True)]
)
def test_who_let_go_without_a_stop_leaves_the_lease_alone(ownership, stopping, seconds, fine):
    released = []
    ownership.on_released = lambda host, key: released.append((host, key))
    ownership.is_stopping = lambda host: stopping
    _writes(ownership, "w1", releases=True)
    ownership.time += seconds
    _writes(ownership, "w1")
    assert released == [("w1", "parent")]
    assert broken_by(ownership.violations) is (None if fine else Guarantee.BUDGETS)


def test_a_fault_counts_from_its_moment_and_the_time_of_a_freeze_does_not_count():
    now = [100.0]
    marks, freezes = Marks(lambda: now[0]), Freezes(lambda: now[0])
    marks.add("w1")
    freezes.add("w1", 10.0)
    now[0] = 120.0
    assert (marks.since("w1", 100.0), marks.since("w1", 100.1), marks.since("w2", 0.0)) == (
        True,
        False,
        False,
    )
    assert freezes.seconds_since("w1", 105.0) == 5.0
    assert freezes.awake_seconds_before("w1", 112.0, 5.0) == 97.0
    assert freezes.awake_seconds_before("w1", 120.0, 5.0) == 115.0
    assert freezes.awake_seconds_before("w1", 99.0, 5.0) == 94.0


@pytest.mark.parametrize(("given", "guarantee"), [("w1", None), ("w2", Guarantee.NO_FALSE_ALARM)])
def test_who_finds_the_row_as_it_would_have_taken_it_was_given_it_by_a_leader(ownership, given, guarantee):
    """Seed 4865627194: 1) w1 takes a lease; 2) a leader that was away assigns it first, to w1; 3) w1 finds what it would
    have written."""
    before, after = row(counter=1), {**row(counter=2), "leaseOwner": {"S": given}}
    before.pop("leaseOwner", None)
    ownership.table["parent"] = after
    ownership.row_changed(Change("UpdateItem", "leases", "parent", before, after, "java1", {}))
    assert _reports_take(ownership, "w1", "unowned") is guarantee
