"""The shard family tree, as far as the listing and the lease rows show it.

Both sources are partial: Kinesis stops listing a shard when its last record has expired, and rows are deleted
after their shard was read. Every walk is iterative and remembers where it has been, so deep trees and corrupt
rows that name each other as parents are harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pykcl.model.lease import Lease
from pykcl.model.shard import EVERY_HASH_KEY, HashRange, Shard, gaps

_MAX_DIGITS = 40


@dataclass(frozen=True, slots=True)
class FamilyTree:
    """Shard id -> parents and shard id -> children. Ids without any are absent from the mapping.

    listed: the shard ids of the listing the tree was made from.
    """

    parents: Mapping[str, Collection[str]]
    children: Mapping[str, Collection[str]]
    listed: frozenset[str]

    @classmethod
    def of(cls, shards: Iterable[Shard] = (), leases: Mapping[str, Lease] | None = None) -> FamilyTree:
        """Build the tree from the listing, the `parentShardId` of every row, and the `childShardIds` of every row.

        Rows of foreign libraries may lack either side, hence both.
        """
        parents: dict[str, set[str]] = defaultdict(set)
        children: dict[str, set[str]] = defaultdict(set)
        listed = set()
        edges: list[tuple[str, str]] = []
        for shard in shards:
            listed.add(shard.shard_id)
            edges.extend((parent, shard.shard_id) for parent in shard.parents)
        for key, lease in (leases or {}).items():
            edges.extend((parent, key) for parent in lease.parents)
            edges.extend((key, child) for child in lease.children)
        for parent, child in edges:
            if parent != child:
                parents[child].add(parent)
                children[parent].add(child)
        return cls(dict(parents), dict(children), frozenset(listed))

    def parents_of(self, shard_id: str) -> Collection[str]:
        return self.parents.get(shard_id, ())

    def children_of(self, shard_id: str) -> Collection[str]:
        return self.children.get(shard_id, ())

    def ancestors_of(self, shard_ids: Iterable[str]) -> set[str]:
        """Parents, their parents and so on, of all of these ids together."""
        return _reachable(shard_ids, self.parents)

    def descendants_of(self, shard_ids: Iterable[str]) -> set[str]:
        """Children, their children and so on, of all of these ids together."""
        return _reachable(shard_ids, self.children)

    def unaccounted(self, shard_ids: Iterable[str], leased: Collection[str]) -> set[str]:
        """Ancestors of these ids with neither a listed shard nor a row, as far as no row lies in between.

        Either retention took them, or the listing is older than they are or has lost them: only Kinesis knows.
        """
        above = {key: parents for key, parents in self.parents.items() if key not in leased}
        return _reachable(set(shard_ids) - set(leased), above) - self.listed - set(leased)

    def open_leaves(self) -> set[str]:
        """Listed shards without a listed child: where new records go.

        A shard that was closed a moment ago and whose children are not listed yet is among them. That is
        wanted: a lease at LATEST on it ends at once and hands over to its children from their first record.
        """
        return {shard_id for shard_id in self.listed if self.listed.isdisjoint(self.children_of(shard_id))}

    def parents_ended(
        self, key: str, leases: Mapping[str, Lease], unreadable: Collection[str] = frozenset()
    ) -> bool:
        """Return whether every parent of this shard has ended or has no row (Java: `BlockOnParentShardTask`).

        unreadable: keys of rows that cannot be understood; such a parent may well be unfinished.
        Unlike Java this accepts SHARD_END with any sub-sequence number: a stale one says nothing about unread
        records.
        """
        return all(
            parent not in unreadable and _is_over(leases.get(parent)) for parent in self.parents_of(key)
        )

    def readable(self, leases: Mapping[str, Lease], unreadable: Collection[str] = frozenset()) -> list[Lease]:
        """The leases somebody can work on now, sorted by key: not ended themselves, and all their parents have."""
        return [
            leases[key]
            for key in sorted(leases)
            if not leases[key].is_ended and self.parents_ended(key, leases, unreadable)
        ]


def _is_over(parent: Lease | None) -> bool:
    return parent is None or parent.is_ended


def _reachable(start: Iterable[str], edges: Mapping[str, Collection[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        for neighbour in edges.get(waiting.pop(), ()):
            if neighbour not in seen:
                seen.add(neighbour)
                waiting.append(neighbour)
    return seen


def cover_every_key(shards: Iterable[Shard]) -> bool:
    """Return whether the open shards among these take every hash key: a listing in which they do not has lost some."""
    return _cover((shard for shard in shards if shard.is_open), EVERY_HASH_KEY)


def without_successors(shards: Iterable[Shard]) -> set[str]:
    """Closed shards whose hash keys their children among these do not take.

    Kinesis lists a child for longer than its parents, so a listing with such a shard has lost one of its children. Who
    walks down from above no longer sees whether something below was read.
    """
    shards = tuple(shards)
    children: dict[str, list[Shard]] = defaultdict(list)
    for shard in shards:
        for parent in shard.parents:
            children[parent].append(shard)
    return {
        shard.shard_id
        for shard in shards
        if not shard.is_open and not _succeeded(shard, children[shard.shard_id])
    }


def _succeeded(shard: Shard, children: list[Shard]) -> bool:
    keys = shard.hash_range
    if keys is None:
        return bool(children)
    return _cover(children, keys)


def _cover(shards: Iterable[Shard], keys: HashRange) -> bool:
    """Return whether these shards take all of `keys`. Shards without ranges cannot be checked: True."""
    ranges = [shard.hash_range for shard in shards]
    return None in ranges or not gaps((found for found in ranges if found is not None), keys)


def is_youngest(shard_id: str, listed: Iterable[str]) -> bool:
    """Return whether the shard was made after all of `listed`. Kinesis numbers the shards of a stream one by one.

    Retention takes the oldest shards first, so Kinesis cannot have forgotten the youngest one. False where a name has
    no number, which proves nothing. Sequence numbers would say the same, but a lease row has none before its shard is
    read.
    """
    numbers = [_number(other) for other in listed]
    own = _number(shard_id)
    return own is not None and all(number is not None and number < own for number in numbers)


def _number(shard_id: str) -> int | None:
    digits = shard_id.removeprefix("shardId-")
    is_number = digits != shard_id and digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS
    return int(digits) if is_number else None
