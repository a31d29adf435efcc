"""Leases that nobody takes within its share, leases in hand that do not count, and ends that can be forgotten."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.lease import Lease
from pykcl.planning.lease_assignment import Fleet, still_awaited
from pykcl.planning.lease_view import LeaseView


def seen(rows: list[Lease], seconds: float) -> LeaseView:
    return LeaseView().observe(rows, 0.0).observe(rows, seconds)


def fleet(view: LeaseView, in_hand: Collection[str] = (), left_alone: Collection[str] = ()) -> Fleet:
    return Fleet.seen_by("me", view, failover_time=10, in_hand=in_hand, left_alone=left_alone)


def taken(view: LeaseView, seed: int, *, max_leases: int = 9, **options: Collection[str]) -> list[str]:
    plans = fleet(view, **options).choose(
        0, Random(seed), max_leases=max_leases, max_steal=1, overdue_after=30
    )
    return [plan.lease_key for plan in plans]


FREE = Lease("free", Checkpoint("7"))
MINE = Lease("mine", Checkpoint("7"), owner="me")


def test_an_unowned_lease_is_taken_beyond_the_share_once_it_is_overdue():
    for seed in range(20):
        assert taken(seen([FREE], 30.0), seed) == []
        assert taken(seen([FREE], 30.5), seed) == ["free"]


def test_the_lease_of_a_dead_owner_is_overdue_later_by_the_time_it_took_to_call_it_dead():
    dead = FREE.with_(owner="gone")
    assert taken(seen([dead], 40.0), 1) == []
    assert taken(seen([dead], 40.5), 1) == ["free"]


def test_of_many_workers_only_a_few_reach_for_an_overdue_lease_at_once():
    others = [Lease(f"s{n}", Checkpoint("7"), owner=f"w{n}") for n in range(7)]
    view = LeaseView().observe([FREE], 0.0).observe([FREE, *others], 31.0)
    reached = sum(taken(view, seed) == ["free"] for seed in range(800))
    assert 60 <= reached <= 140, "about one in eight"


def test_overdue_leases_respect_max_leases_and_what_was_handed_back():
    view = seen([FREE, MINE], 31.0)
    assert taken(view, 1, max_leases=1, in_hand={"mine"}) == []
    assert taken(view, 1, max_leases=2, in_hand={"mine"}) == ["free"]
    assert taken(view, 1, max_leases=2, in_hand={"mine"}, left_alone={"free"}) == []


def test_leases_in_hand_that_wait_for_a_parent_leave_room_for_the_parent():
    parent = Lease("p", Checkpoint("7"))
    children = [Lease(key, Checkpoint("7"), owner="me", parents=("p",)) for key in "ab"]
    view = seen([parent, *children], 0.0)
    assert fleet(view, {"a", "b"}).room(9) == 1
    view = seen([parent.with_(owner="me"), *children], 0.0)
    assert fleet(view, {"a", "b", "p"}).room(9) == 0


def test_an_end_is_remembered_until_its_children_are_owned_or_its_row_is_gone():
    end = Lease("p", AT_SHARD_END, children=("a", "b"))
    a, b = (Lease(key, Checkpoint("TRIM_HORIZON"), owner="x", parents=("p",)) for key in "ab")

    def awaited(*rows: Lease) -> set[str]:
        return still_awaited(seen(list(rows), 0.0), {"p"})

    assert awaited(end) == {"p"}, "children not seen yet"
    assert awaited(end, a, b.with_(owner=None)) == {"p"}
    assert awaited(end, a, b) == set()
    assert awaited(end, a, b.with_(owner=None, checkpoint=AT_SHARD_END)) == set()
    assert awaited(a, b) == set(), "cleaned up"
    assert awaited(end.with_(children=())) == {"p"}, "may be an old scan"
