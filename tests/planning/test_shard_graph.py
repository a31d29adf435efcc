"""The family tree from two partial sources."""

from __future__ import annotations

import pytest

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.shard import HashRange, Shard
from pykcl.planning.shard_graph import FamilyTree, cover_every_key, is_youngest, without_successors


def test_the_tree_knows_what_the_listing_says():
    tree = FamilyTree.of([Shard("p"), Shard("a", ("p",)), Shard("b", ("p",)), Shard("m", ("a", "b"))])
    assert set(tree.children_of("p")) == {"a", "b"}
    assert set(tree.parents_of("m")) == {"a", "b"}
    assert tree.ancestors_of(["m"]) == {"a", "b", "p"}
    assert tree.descendants_of(["p"]) == {"a", "b", "m"}
    assert tree.open_leaves() == {"m"}


def test_the_tree_knows_what_rows_say_about_parents_and_children():
    leases = {
        "a": Lease("a", AT_TRIM_HORIZON, parents=("p",)),
        "q": Lease("q", AT_SHARD_END, children=("a",)),
    }
    tree = FamilyTree.of(leases=leases)
    assert set(tree.parents_of("a")) == {"p", "q"}
    assert tree.open_leaves() == set()


def test_a_leaf_is_open_although_a_row_names_children_that_are_not_listed():
    tree = FamilyTree.of([Shard("a")], {"a": Lease("a", Checkpoint("1"), children=("gone",))})
    assert tree.open_leaves() == {"a"}


def test_a_tree_of_a_hundred_thousand_generations_is_walked_without_recursion():
    shards = [Shard("0"), *(Shard(str(i), (str(i - 1),)) for i in range(1, 100_000))]
    tree = FamilyTree.of(shards)
    assert len(tree.ancestors_of(["99999"])) == 99_999
    assert len(tree.descendants_of(["0"])) == 99_999


def test_cycles_end():
    tree = FamilyTree.of([Shard("a", ("b",)), Shard("b", ("a",)), Shard("c", ("c",))])
    assert tree.ancestors_of(["a"]) == {"a", "b"}
    assert tree.parents_of("c") == ()


def parents_ended(child: Lease, leases: dict[str, Lease], unreadable: tuple[str, ...] = ()) -> bool:
    rows = {**leases, child.key: child}
    ended = FamilyTree.of(leases=rows).parents_ended(child.key, rows, unreadable)
    assert (child in FamilyTree.of(leases=rows).readable(rows, unreadable)) == ended
    return ended


def test_parents_have_ended_when_every_row_of_them_has_or_is_gone():
    child = Lease("m", AT_TRIM_HORIZON, parents=("a", "b"))
    ended, reading = Lease("a", AT_SHARD_END), Lease("b", Checkpoint("7"))
    assert parents_ended(child, {})
    assert parents_ended(child, {"a": ended})
    assert not parents_ended(child, {"a": ended, "b": reading})
    assert parents_ended(child, {"a": ended, "b": reading.with_(checkpoint=AT_SHARD_END)})
    assert not parents_ended(child, {"a": ended}, unreadable=("b",))


def test_what_has_ended_is_not_readable():
    rows = {"a": Lease("a", AT_SHARD_END), "b": Lease("b", Checkpoint("7")), "c": Lease("c", AT_TRIM_HORIZON)}
    assert [lease.key for lease in FamilyTree.of(leases=rows).readable(rows)] == ["b", "c"]


def test_a_stale_sub_sequence_number_does_not_make_an_end_unfinished():
    child = Lease("a", AT_TRIM_HORIZON, parents=("p",))
    assert parents_ended(child, {"p": Lease("p", Checkpoint("SHARD_END", 1_700_000_000_000))})


# -- what a listing lacks --------------------------------------------------------------------------------------


def test_ancestors_that_are_neither_listed_nor_leased_are_unaccounted_for():
    tree = FamilyTree.of([Shard("m", ("a", "b")), Shard("b", ("p",)), Shard("c", ("x",))])
    assert tree.unaccounted(["m"], ()) == {"a", "p"}
    assert tree.unaccounted(["m", "c"], ()) == {"a", "p", "x"}
    assert tree.unaccounted(["b"], ()) == {"p"}
    assert tree.unaccounted([], ()) == set()


def test_a_row_accounts_for_its_shard_and_for_all_above_it():
    tree = FamilyTree.of([Shard("m", ("a", "b")), Shard("b", ("p",))])
    assert tree.unaccounted(["m"], {"a"}) == {"p"}
    assert tree.unaccounted(["m"], {"b"}) == {"a"}
    assert tree.unaccounted(["m"], {"a", "b"}) == set()
    assert tree.unaccounted(["m"], {"m"}) == set(), "whoever has a row is settled with all its ancestors"
    assert tree.unaccounted(["m", "b"], {"m", "a"}) == {"p"}, (
        "one of two children being leased proves nothing"
    )


def test_rows_tell_of_ancestors_too_and_cycles_end():
    leases = {"a": Lease("a", AT_SHARD_END, parents=("g",))}
    tree = FamilyTree.of([Shard("m", ("a",))], leases)
    assert tree.unaccounted(["m"], ()) == {"a", "g"}
    assert tree.unaccounted(["m"], leases) == set()
    ring = FamilyTree.of(
        [Shard("a", ("b",)), Shard("c", ("a",))], {"b": Lease("b", AT_SHARD_END, parents=("a",))}
    )
    assert ring.unaccounted(["c"], ()) == {"b"}


LAST = 2**128 - 1


def shard(name: str, first: int, last: int, *parents: str, closed: bool = False) -> Shard:
    return Shard(name, parents, HashRange(first, last), "1", "2" if closed else None)


@pytest.mark.parametrize(
    ("ranges", "covered"),
    [
        ([(0, LAST)], True),
        ([(8, LAST), (0, 7)], True),
        ([(0, 9), (5, LAST)], True),
        ([(0, LAST), (3, 4), (9, 9)], True),
        ([], False),
        ([(1, LAST)], False),
        ([(0, 6), (8, LAST)], False),
        ([(3, 4)], False),
        ([(0, 7), (8, LAST - 1)], False),
        ([(0, 20), (5, 6), (22, LAST)], False),
    ],
    ids=[
        "one shard",
        "neighbours, in any order",
        "overlapping",
        "one within another",
        "no shards",
        "gap at the begin",
        "gap in the middle",
        "gaps on both sides",
        "gap at the end",
        "gap behind an overlap",
    ],
)
def test_open_shards_cover_every_key_unless_there_is_a_gap(ranges: list[tuple[int, int]], covered: bool):
    assert cover_every_key(shard(f"s{first}", first, last) for first, last in ranges) == covered


def test_closed_shards_take_no_keys():
    assert not cover_every_key([shard("p", 0, LAST, closed=True), shard("a", 0, 7, "p")])
    assert cover_every_key(
        [shard("p", 0, LAST, closed=True), shard("a", 0, 7, "p"), shard("b", 8, LAST, "p")]
    )


def test_shards_listed_without_ranges_are_believed():
    assert cover_every_key([Shard("a")])
    assert cover_every_key([Shard("a"), shard("b", 3, 4)])
    assert without_successors([Shard("p", ending_sequence_number="2"), Shard("a", ("p",))]) == set()
    assert without_successors([shard("p", 0, 9, closed=True), Shard("a", ("p",))]) == set()


def test_a_closed_shard_whose_keys_no_child_takes_is_without_successors():
    split = [shard("p", 0, 9, closed=True), shard("a", 0, 4, "p"), shard("b", 5, 9, "p")]
    merge = [shard("x", 0, 4, closed=True), shard("y", 5, 9, closed=True), shard("m", 0, 9, "x", "y")]
    assert without_successors(split) == set()
    assert without_successors(merge) == set()
    assert without_successors(split[:2]) == {"p"}
    assert without_successors(split[:1]) == {"p"}
    assert without_successors(merge[:2]) == {"x", "y"}
    assert without_successors([*split[:1], shard("z", 0, 9)]) == {"p"}, (
        "a stranger with the same keys is no child"
    )
    assert without_successors([Shard("p", ending_sequence_number="2")]) == {"p"}
    assert without_successors(split[1:]) == set()
    assert without_successors([]) == set()


@pytest.mark.parametrize(
    ("shard_id", "listed", "expected"),
    [
        ("shardId-000000000007", ["shardId-000000000005", "shardId-000000000006"], True),
        ("shardId-000000000007", ["shardId-000000000005", "shardId-000000000008"], False),
        ("shardId-000000000010", ["shardId-000000000009"], True),
        ("shardId-1000000000000", ["shardId-999999999999"], True),
        ("shardId-000000000007", ["another"], False),
        ("another", ["shardId-000000000005"], False),
        ("shardId-\u0667", ["shardId-000000000005"], False),
    ],
)
def test_the_youngest_shard_has_the_highest_number(shard_id, listed, expected):
    assert is_youngest(shard_id, listed) is expected
