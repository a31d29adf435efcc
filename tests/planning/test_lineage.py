"""The family tree from two partial sources."""

from __future__ import annotations

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.planning.lineage import FamilyTree


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
