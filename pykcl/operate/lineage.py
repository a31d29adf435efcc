"""The shards of a stream as a forest, with their state in the lease table. Pure.

Every walk is a loop that remembers where it has been: families of many generations, and rows that name each other as
parents, are harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pykcl.model.shard import Shard
from pykcl.operate.states import LeaseStatus
from pykcl.planning.shard_graph import FamilyTree

NO_LEASE = "NO LEASE"
CLEANED_UP = "CLEANED UP"
OPEN, CLOSED = "OPEN", "CLOSED"
_MAX_BRANCHES = 60
"""Characters of indentation."""


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One shard in its place. branches: the line drawing in front of it. state: a LeaseState's value, "NO LEASE"
    (nobody reads it), "CLEANED UP" (read before, its row is deleted), or without a table "OPEN" and "CLOSED".

    is_open: None where the stream was not listed, or does not list it any more. again: its children stand elsewhere,
    below another parent (a merge), or it is its own ancestor (corrupt rows).
    """

    key: str
    branches: str
    depth: int
    state: str
    status: LeaseStatus | None = None
    is_open: bool | None = None
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    again: bool = False


def tree_lines(states: Mapping[str, LeaseStatus] | None, shards: Iterable[Shard] = ()) -> list[TreeLine]:
    """Every shard that is listed or leased, parents above their children.

    states: None where no lease table is known. shards: none where the stream was not listed.
    """
    listed = {shard.shard_id: shard for shard in shards}
    leases = {key: one.lease for key, one in (states or {}).items() if one.lease is not None}
    unreadable = {key for key, one in (states or {}).items() if one.state.name == "UNREADABLE"}
    tree = FamilyTree.of(listed.values(), leases)
    known = listed.keys() | leases.keys() | unreadable
    walk = _Walk(tree, known)
    roots = [key for key in sorted(known) if known.isdisjoint(tree.parents_of(key))]
    walk.down_from(roots)
    # Only corrupt rows are in none of these families: they are their own ancestors.
    for key in sorted(known - walk.seen):
        if key not in walk.seen:
            walk.down_from([key])
    return [
        TreeLine(
            key=key,
            branches=branches,
            depth=depth,
            state=_state(key, states, listed, tree),
            status=(states or {}).get(key),
            is_open=listed[key].is_open if key in listed else None,
            parents=tuple(sorted(tree.parents_of(key))),
            children=tuple(sorted(tree.children_of(key))),
            again=again,
        )
        for key, branches, depth, again in walk.lines
    ]


def _state(
    key: str, states: Mapping[str, LeaseStatus] | None, shards: Mapping[str, Shard], tree: FamilyTree
) -> str:
    if states is None:
        return OPEN if shards[key].is_open else CLOSED
    if key in states:
        return states[key].state.value
    return CLEANED_UP if any(one in states for one in tree.descendants_of([key])) else NO_LEASE


class _Walk:
    """lines: (key, branches, depth, again) in the order in which they are drawn."""

    def __init__(self, tree: FamilyTree, known: Collection[str]) -> None:
        self._tree, self._known = tree, frozenset(known)
        self.seen: set[str] = set()
        self.lines: list[tuple[str, str, int, bool]] = []

    def down_from(self, roots: Iterable[str]) -> None:
        # (key, what stands in front of it, what stands in front of its children, depth)
        waiting = [(root, "", "", 0) for root in sorted(roots, reverse=True)]
        while waiting:
            key, branches, below, depth = waiting.pop()
            again = key in self.seen
            self.lines.append((key, branches, depth, again))
            if again:
                continue
            self.seen.add(key)
            children = sorted(self._known.intersection(self._tree.children_of(key)))
            for number, child in reversed(list(enumerate(children))):
                is_last = number == len(children) - 1
                waiting.append(
                    (
                        child,
                        below + ("└─ " if is_last else "├─ "),
                        (below + ("   " if is_last else "│  "))[-_MAX_BRANCHES:],
                        depth + 1,
                    )
                )
