"""The checkers of the lease table and of who believes in which lease, each fed what breaks its guarantee."""

from types import SimpleNamespace

import pytest

from pykcl.model.shard import HashRange
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.checkers.rows import RowChecker
from tests.simulation.checkers.validity import ValidityChecker
from tests.simulation.checking import broken_by, delivery_checker, row
from tests.simulation.native import leaves_to_next_owner


@pytest.fixture
def rows():
    """A row checker over the same shards; w1 is ours, java1 is not; `table` is the lease table, `gone` what Kinesis forgot."""
    delivery = delivery_checker()
    table, gone = {"parent": row(), "child": row()}, set()
    checker = RowChecker(
        delivery.record_log, delivery.violations,
        is_peer=lambda host: host.startswith("java"), rows=lambda: table, is_gone=gone.__contains__,
    )  # fmt: skip
    return SimpleNamespace(
        checker=checker,
        violations=delivery.violations,
        record_log=delivery.record_log,
        table=table,
        gone=gone,
    )


def _changed(rows, before, after, *, operation="UpdateItem", key="parent", author="w1"):
    rows.checker.row_changed(Change(operation, "leases", key, before, after, author))
    return broken_by(rows.violations)


def test_a_checkpoint_up_to_what_was_delivered_breaks_nothing(rows):
    rows.record_log.delivered("parent", [(1, 0), (2, 0)])
    assert _changed(rows, row(), row("2", 2)) is None


def test_a_checkpoint_before_its_delivery(rows):
    rows.record_log.delivered("parent", [(1, 0)])
    assert _changed(rows, row(), row("2", 2)) is Guarantee.CHECKPOINT_AFTER_DELIVERY


def test_a_shard_end_before_its_delivery_even_by_java(rows):
    rows.record_log.delivered("parent", [(1, 0)])
    before, after = ({**each, "leaseOwner": {"S": "java1"}} for each in (row(), row("SHARD_END", 2)))
    assert _changed(rows, before, after, author="java1") is Guarantee.CHECKPOINT_AFTER_DELIVERY


@pytest.mark.parametrize("owner", ["other-library-1", "java2"])
def test_java_may_write_into_a_row_whose_counter_another_library_put_back(rows, owner):
    rows.record_log.delivered("parent", [(1, 0), (2, 0)])
    before, after = ({**each, "leaseOwner": {"S": owner}} for each in (row("2", 4), row("1", 5)))
    assert _changed(rows, before, after, author="java1") is None


@pytest.mark.parametrize(
    ("old", "new"), [("2", "1"), ("SHARD_END", "2"), ("10", "9"), ("1", "TRIM_HORIZON"), ("1", "junk")]
)
def test_a_checkpoint_that_moves_back_or_is_none(rows, old, new):
    rows.record_log.delivered("parent", [(number, 0) for number in (1, 2, 3, 4)])
    assert _changed(rows, row(old), row(new, 2)) is Guarantee.CHECKPOINT_FORWARD


def test_a_checkpoint_where_no_record_is(rows):
    rows.record_log.delivered("parent", [(number, 0) for number in (1, 2, 3, 4)])
    after = row("2", 2, checkpointSubSequenceNumber={"N": "7"})
    assert _changed(rows, row(), after) is Guarantee.CHECKPOINT_FORWARD


def test_a_checkpoint_at_a_record_that_was_put_before_the_start(rows):
    """A start at LATEST that was noted by a clock that is behind reads it."""
    rows.record_log.delivered("parent", [(number, 0) for number in (1, 2, 3, 4)])
    rows.record_log.shard("parent").before.add((2, 7))
    after = row("2", 2, checkpointSubSequenceNumber={"N": "7"})
    assert _changed(rows, row("LATEST"), after) is None


@pytest.mark.parametrize("counter", [1, 3, 0])
def test_a_counter_that_does_not_rise_by_one(rows, counter):
    assert _changed(rows, row(), row(counter=counter)) is Guarantee.COUNTER_BY_ONE


RANGE = {"startingHashKey": {"S": "0"}, "endingHashKey": {"S": "9"}}
NULLS = {"startingHashKey": {"NULL": True}, "endingHashKey": {"NULL": True}}


@pytest.mark.parametrize("lacking", [{}, NULLS, {"startingHashKey": {"S": "0"}}])
@pytest.mark.parametrize("place", ["TRIM_HORIZON", "SHARD_END"])
def test_a_hash_range_that_a_row_lacked_may_be_added_by_anybody_at_the_same_counter(rows, lacking, place):
    rows.record_log.ranges["parent"] = HashRange(0, 9)
    assert _changed(rows, row(place, **lacking), row(place, **RANGE), author="w2") is None


@pytest.mark.parametrize(("before", "after", "listed"), [
    ({}, RANGE, (0, 8)), (RANGE, {**RANGE, "endingHashKey": {"S": "8"}}, (0, 8)), (RANGE, {}, (0, 9)),
    ({}, {"startingHashKey": {"S": "0"}}, (0, 9)), ({}, {**RANGE, "childShardIds": {"SS": ["child"]}}, (0, 9)),
    ({}, {**RANGE, "leaseOwner": {"S": "w2"}}, (0, 9)), ({}, {**RANGE, "checkpoint": {"S": "1"}}, (0, 9)),
])  # fmt: skip
def test_a_hash_range_that_is_wrong_or_replaced_or_comes_with_something_else(rows, before, after, listed):
    rows.record_log.ranges["parent"] = HashRange(*listed)
    rows.record_log.delivered("parent", [(1, 0)])
    assert _changed(rows, row(**before), row(**after), author="w2") is Guarantee.COUNTER_BY_ONE


def test_an_attribute_of_others_that_disappears(rows):
    assert _changed(rows, row(theirs={"S": "x"}), row(counter=2)) is Guarantee.FOREIGN_KEPT


def test_a_write_to_a_row_that_is_not_of_the_stream(rows):
    assert _changed(rows, row(), row(counter=2), key="Leader") is Guarantee.FOREIGN_KEPT


@pytest.mark.parametrize(("operation", "condition"), [
    ("UpdateItem", ""), ("UpdateItem", "leaseOwner = :me"), ("PutItem", "leaseCounter = :c"), ("DeleteItem", ""),
])  # fmt: skip
def test_a_request_without_its_condition(rows, operation, condition):
    rows.checker.request_sent(operation, {"ConditionExpression": condition}, "java1")
    assert broken_by(rows.violations) is None
    rows.checker.request_sent(operation, {"ConditionExpression": condition}, "w1")
    assert broken_by(rows.violations) is Guarantee.CONDITIONAL


def test_an_update_that_creates_and_a_creation_that_overwrites(rows):
    assert _changed(rows, None, row()) is Guarantee.CONDITIONAL
    other = Violations()
    rows.checker._violations = other
    rows.checker.row_changed(Change("PutItem", "leases", "parent", row(), row(), "w1"))
    assert broken_by(other) is Guarantee.CONDITIONAL


@pytest.mark.parametrize(("place", "child", "is_gone", "allowed"), [
    ("SHARD_END", "9", False, True), ("2", "9", False, False), ("SHARD_END", "TRIM_HORIZON", False, False),
    ("2", "TRIM_HORIZON", True, True),
])  # fmt: skip
def test_a_deletion_needs_the_end_and_children_started_or_that_the_shard_is_gone(
    rows, place, child, is_gone, allowed
):
    rows.table["child"] = row(child)
    del rows.table["parent"]
    rows.gone.update({"parent"} if is_gone else ())
    found = _changed(rows, row(place), None, operation="DeleteItem")
    assert found is (None if allowed else Guarantee.DELETION_BY_EVIDENCE)


def test_a_deletion_after_an_operator_moved_the_child_to_latest_and_its_owner_moved_it_back(rows):
    """Seed 54876183243: whoever deletes by a scan that is a moment old saw the child at LATEST."""
    rows.table["child"] = row("AT_TIMESTAMP")
    rows.checker.edited("child", row("LATEST"))
    del rows.table["parent"]
    assert _changed(rows, row("SHARD_END"), None, operation="DeleteItem") is None


# -- beliefs ---------------------------------------------------------------------------------------------------


class _Held(dict):
    """What a worker believes: as HeldLeases looks to the checker."""

    version = 0

    def snapshot(self):
        return dict(self)


@pytest.mark.parametrize(("stolen", "gone", "frozen", "gave_up", "broken_after"), [
    (False, False, False, False, 0.0), (True, False, False, False, 5.0), (False, True, False, False, 5.0),
    (False, False, True, False, None), (False, False, False, True, None),
])  # fmt: skip
def test_two_who_believe_in_one_lease(stolen, gone, frozen, gave_up, broken_after):
    now, violations = [0.0], Violations()
    checker = ValidityChecker(
        violations, now=lambda: now[0], is_frozen=lambda host: frozen and host == "w1",
        steal_overlap=lambda: 5.0, drift_overlap=lambda one, other: 0.0, is_gone=lambda key: gone,
    )  # fmt: skip
    for host in ("w1", "w2"):
        checker.watch(host, _Held(parent=SimpleNamespace(is_valid_unlocked=lambda: True)))
    if stolen:
        checker.stolen("parent")
    if gave_up:
        checker.wrote_owner("w1", "parent", None)
    checker.poll()
    for now[0] in (4.0, 6.0):
        checker.poll()
    expected = None if broken_after is None else Guarantee.ONE_OWNER
    assert broken_by(violations) is expected
    assert checker.worst["steal"] == (4.0 if stolen else 6.0 if gone else 0.0) or broken_after != 5.0


@pytest.mark.parametrize(("asked_for", "checkpoint", "leaves"), [
    (True, "SHARD_END", True), (True, "5", False), (False, "SHARD_END", False),
])  # fmt: skip
def test_an_owner_that_was_asked_for_its_lease_and_ends_it_leaves_it_to_the_next_one(
    asked_for, checkpoint, leaves
):
    before = {**row("4"), "checkpointOwner": {"S": "w1"}} if asked_for else row("4")
    params = {"ExpressionAttributeValues": {":checkpoint": {"S": checkpoint}}}
    change = Change("UpdateItem", "leases", "parent", before, row(checkpoint, 2), "w1", params)
    assert leaves_to_next_owner(change) is leaves
