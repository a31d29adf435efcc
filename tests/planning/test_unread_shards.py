"""Shards that were trimmed before they had a lease: what the rows around them show."""

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, StartPosition
from pykcl.model.lease import Lease
from pykcl.model.shard import HashRange, Shard
from pykcl.planning.lease_creation import create_new_leases, unread_shards

HORIZON, LATEST = StartPosition("TRIM_HORIZON"), StartPosition("LATEST")


def opened(key, parents="", keys=(0, 99)):
    return Shard(key, tuple(parents), HashRange(*keys) if keys else None)


def row(key, keys=(0, 99), *, is_ended=True, **more):
    at = AT_SHARD_END if is_ended else AT_TRIM_HORIZON
    return Lease(key, at, hash_range=HashRange(*keys) if keys else None, **more)


def unread(shards, *rows, start=HORIZON):
    leases = {one.key: one for one in rows}
    creations = create_new_leases(start, shards, leases)
    return {
        one.key: (one.keys and (one.keys.first, one.keys.last), one.before, one.after)
        for one in unread_shards(creations, {one.shard_id: one for one in shards}, leases)
    }


def test_the_parent_of_new_leases_below_a_row_of_the_same_keys_was_never_read():
    shards = [opened("d", "b", (0, 24)), opened("e", "b", (25, 49))]
    assert unread(shards, row("a")) == {"b": ((0, 49), ("a",), ("d", "e"))}
    assert unread(shards, row("a"), start=LATEST) == {"b": ((0, 49), ("a",), ("d", "e"))}
    assert unread(shards, row("a", is_ended=False)) == {"b": ((0, 49), ("a",), ("d", "e"))}


def test_a_row_that_names_it_needs_no_keys():
    shards = [opened("d", "b", None)]
    assert unread(shards, row("a", None, children=("b", "c"))) == {"b": (None, ("a",), ("d",))}


def test_a_row_without_keys_that_ended_and_was_not_followed_came_before():
    assert unread([opened("d", "b")], row("a", None)) == {"b": ((0, 99), ("a",), ("d",))}
    shards = [opened("d", "b", (0, 49)), opened("c", "a", (50, 99))]
    followed = row("c", (50, 99), is_ended=False, parents=("a",))
    assert unread(shards, row("a", None), followed) == {}


def test_rows_of_other_keys_are_those_of_a_start_that_was_broken_off():
    shards = [opened("c", "a", (0, 49)), opened("d", "b", (50, 99))]
    assert unread(shards, row("c", (0, 49), is_ended=False)) == {}
    assert unread(shards) == {}


def test_of_a_merge_only_the_side_that_is_gone_was_not_read():
    shards = [opened("e", "cd", (0, 99))]
    assert unread(shards, row("c", (0, 49)), row("b", (50, 99))) == {"d": ((50, 99), ("b",), ("e",))}
    assert unread(shards, row("c", (0, 49))) == {}


def test_a_parent_that_is_listed_or_has_a_row_is_not_lost():
    shards = [opened("b", "a", (0, 49)), opened("c", "a", (50, 99))]
    assert unread(shards, row("a")) == {}


def test_a_parent_whose_other_child_has_a_row_was_read():
    """Seed 79221998196: an operator deletes the row of d after that of b was deleted and retention took b."""
    shards = [opened("d", "b", (0, 24)), opened("e", "b", (25, 49))]
    assert unread(shards, row("a"), row("e", (25, 49), is_ended=False, parents=("b",))) == {}
