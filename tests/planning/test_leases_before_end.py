"""Which leases exist before a shard ends: the child's, and those of its ancestors that nobody would read otherwise."""

from __future__ import annotations

import pytest

from pykcl.model.checkpoint import StartPosition
from pykcl.model.shard import Shard
from pykcl.planning.lease_creation import leases_before_end

TREE = {
    shard.shard_id: shard
    for shard in (
        Shard("0"),
        Shard("1"),
        Shard("2", ("1",)),
        Shard("3", ("1",)),
        Shard("4", ("2",)),
        Shard("5", ("2",)),
        Shard("6", ("0", "4")),
    )
}
OLDEST = StartPosition("TRIM_HORIZON")


def created(leased: str, start: StartPosition = OLDEST) -> list[str]:
    return [plan.lease.key for plan in leases_before_end(TREE["6"], start, TREE, leased.split())]


def test_the_child_of_a_split_needs_nothing_but_itself():
    (plan,) = leases_before_end(TREE["2"], OLDEST, {}, {"1"})
    assert (plan.lease.key, plan.lease.checkpoint.sequence_number) == ("2", "TRIM_HORIZON")
    assert plan.lease.parents == ("1",)


def test_every_ancestor_that_nobody_leased_comes_first_the_child_last():
    assert created("0") == ["1", "2", "4", "6"]


def test_the_chain_begins_below_the_ancestor_that_is_being_read():
    assert created("0 1") == ["2", "4", "6"]
    assert created("0 2 3") == ["4", "6"]
    assert created("0 4") == ["6"]


def test_what_has_a_leased_descendant_was_read_or_skipped_and_gets_no_lease():
    assert created("0 5") == ["4", "6"]
    assert created("0 3") == ["2", "4", "6"]


def test_a_child_that_was_read_already_is_not_leased_again():
    tree = TREE | {"7": Shard("7", ("6",))}
    assert leases_before_end(tree["6"], OLDEST, tree, {"0", "7"}) == []


def test_a_start_at_latest_passed_over_the_ancestors_of_the_missing_parent():
    latest = StartPosition("LATEST")
    assert created("0", latest) == ["4", "6"]
    assert created("0 1", latest) == ["2", "4", "6"]


@pytest.mark.parametrize("leased", ["0", "0 1"])
def test_a_start_at_a_time_starts_the_whole_chain_there(leased):
    start = StartPosition("AT_TIMESTAMP", at_millis=7)
    plans = leases_before_end(TREE["6"], start, TREE, leased.split())
    assert {plan.lease.checkpoint.sequence_number for plan in plans} == {"AT_TIMESTAMP"}


def test_under_latest_what_lies_below_a_gap_left_by_retention_is_read_from_the_time_of_the_start():
    # 9 was being read; what came between it and 1 has expired, so nobody can say that 1 and 2 were passed over.
    tree = {**TREE, "1": Shard("1", ("expired",))}
    latest = StartPosition("LATEST")
    plans = leases_before_end(tree["6"], latest, tree, {"0", "9"}, started_at=1234)
    found = [
        (p.lease.key, p.lease.checkpoint.sequence_number, p.lease.metadata and p.lease.metadata.latest_from)
        for p in plans
    ]
    assert found == [
        ("1", "LATEST", 1234),
        ("2", "LATEST", 1234),
        ("4", "LATEST", 1234),
        ("6", "TRIM_HORIZON", None),
    ]
    unknown = leases_before_end(tree["6"], latest, tree, {"0", "9"})
    assert [(p.lease.key, p.lease.checkpoint.sequence_number) for p in unknown] == [
        (key, "TRIM_HORIZON") for key in "1246"
    ]
