"""Description of a stream: its shards, their shares of the hash keys, gaps between them, and their lineage as a forest.

Every walk is a loop that remembers where it has been: families of many generations, and rows that name each other as
parents, are harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pykcl.model.shard import HashRange, Shard
from pykcl.operate.aws.streams import Consumer, StreamSummary
from pykcl.operate.states import LeaseStatus
from pykcl.planning.shard_graph import FamilyTree, without_successors
from pykcl.times import format_time

HASH_KEYS = 2**128
_UNEVEN = 3.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of the hash keys 0..2^128-1 by the open shards. gaps, overlaps: closed ranges of keys.

    unknown: open shards without a readable range. largest, smallest: shares of one open shard, 0 to 1.
    """

    gaps: tuple[tuple[int, int], ...] = ()
    overlaps: tuple[tuple[int, int], ...] = ()
    unknown: tuple[str, ...] = ()
    largest: float = 0.0
    smallest: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if every hash key has exactly one open shard."""
        return not (self.gaps or self.overlaps or self.unknown)


def coverage(shards: Iterable[Shard]) -> Coverage:
    """Return the coverage by the open ones among these."""
    gaps, overlaps, unknown, sizes = [], [], [], []
    ranges = []
    for shard in shards:
        if shard.is_open and shard.hash_range is None:
            unknown.append(shard.shard_id)
        elif shard.is_open and shard.hash_range is not None:
            ranges.append((shard.hash_range.first, shard.hash_range.last))
    expected = 0
    for first, last in sorted(ranges):
        if first > expected:
            gaps.append((expected, first - 1))
        elif first < expected:
            overlaps.append((first, min(last, expected - 1)))
        expected = max(expected, last + 1)
        sizes.append(_share(HashRange(first, last)))
    if expected < HASH_KEYS and not unknown:
        gaps.append((expected, HASH_KEYS - 1))
    return Coverage(
        tuple(gaps), tuple(overlaps), tuple(unknown), max(sizes, default=0.0), min(sizes, default=0.0)
    )


def stream_row(stream: StreamSummary) -> dict[str, Any]:
    """Return the row of one stream in a list. created: UTC time as text."""
    return {**asdict(stream), "created": time_text(stream.created_at)}


def shard_rows(shards: Sequence[Shard]) -> list[dict[str, Any]]:
    """Return rows by shard id. share: of the hash keys, 0 to 1; None without a range."""
    tree = FamilyTree.of(shards)
    return [
        {
            "shard": shard.shard_id,
            "state": "open" if shard.is_open else "closed",
            "share": _share(shard.hash_range) if shard.hash_range else None,
            "parents": sorted(shard.parents),
            "children": sorted(tree.children_of(shard.shard_id)),
            "starting_hash_key": str(shard.hash_range.first) if shard.hash_range else None,
            "ending_hash_key": str(shard.hash_range.last) if shard.hash_range else None,
            "starting_sequence_number": shard.starting_sequence_number,
            "ending_sequence_number": shard.ending_sequence_number,
        }
        for shard in sorted(shards, key=lambda one: one.shard_id)
    ]


def stream_facts(
    stream: StreamSummary, shards: Sequence[Shard], consumers: Sequence[Consumer] | None
) -> dict[str, Any]:
    """Return the facts about the whole stream. consumers: None where they could not be listed."""
    is_open = sum(1 for shard in shards if shard.is_open)
    keys = coverage(shards)
    return {
        "stream": stream.name,
        "arn": stream.arn,
        "status": stream.status,
        "mode": stream.mode,
        "created": time_text(stream.created_at),
        "retention_hours": stream.retention_hours,
        "encryption": stream.encryption,
        "key_id": stream.key_id,
        "largest_record_bytes": stream.largest_record,
        "shard_metrics": list(stream.shard_metrics),
        "open_shards": is_open,
        "closed_shards": len(shards) - is_open,
        "hash_keys": "covered" if keys.is_complete else "not covered",
        "consumers": None if consumers is None else [_consumer(one) for one in consumers],
        "consumer_count": stream.consumers if consumers is None else len(consumers),
    }


def hints(stream: StreamSummary, shards: Sequence[Shard], unread: str) -> list[str]:
    """Return sentences on problems. unread: the reason why the consumers could not be listed, or ""."""
    found = []
    keys = coverage(shards)
    for first, last in keys.gaps:
        found.append(
            f"no open shard takes the hash keys {first} to {last}: a reshard is under way, or the listing is old. "
            "List it again in a moment."
        )
    for first, last in keys.overlaps:
        found.append(
            f"more than one open shard takes the hash keys {first} to {last}: a reshard is under way."
        )
    if keys.unknown:
        found.append(f"Kinesis lists no hash keys of {', '.join(keys.unknown)}.")
    if keys.is_complete and keys.largest > _UNEVEN * keys.smallest:
        found.append(
            f"the largest shard takes {keys.largest / keys.smallest:.0f} times the hash keys of the smallest: with "
            "even keys it is the first to be throttled. Split it."
        )
    lost = sorted(without_successors(shards))
    if lost:
        found.append(f"the children of {', '.join(lost)} are not listed.")
    if stream.status not in (None, "ACTIVE"):
        found.append(f"the stream is {stream.status}: this description may be outdated.")
    if unread:
        found.append(f"the consumers of enhanced fan-out could not be listed: {unread}")
    return found


def _share(keys: HashRange) -> float:
    return (keys.last - keys.first + 1) / HASH_KEYS


def _consumer(consumer: Consumer) -> Mapping[str, Any]:
    return {
        "name": consumer.name, "status": consumer.status,
        "created": time_text(consumer.created_at), "arn": consumer.arn,
    }  # fmt: skip


def time_text(millis: int | None) -> str | None:
    return None if millis is None else format_time(millis, milliseconds=False)


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
