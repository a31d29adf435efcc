"""Leases to create: every shard is read exactly once, and never before its parents; children before a shard is ended.

Rules: a shard whose parents have all ended, or have neither lease nor shard left, gets a lease; never one
that has a leased descendant (it was read, or deliberately skipped, before its row was cleaned up). Where the
start is LATEST, what lies before the start is skipped by leasing only the open leaves, but never a leaf whose
ancestor is still being read. In a table that has rows, a shard whose parents are gone without a trace may
continue one that was read: such a shard is never begun at a bare LATEST. Differs from Java's
HierarchicalShardSyncer in that children of ended leases are created too: Java leaves a permanent hole when
the reader of their parent died before it made them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from graphlib import TopologicalSorter

from pykcl.model.checkpoint import AT_LATEST, AT_START_TIMESTAMP, AT_TRIM_HORIZON, Checkpoint, StartPosition
from pykcl.model.lease import Lease, PykclMetadata, Row
from pykcl.model.shard import HashRange, Shard, gaps
from pykcl.planning.shard_graph import FamilyTree


class CreationReason(Enum):
    """Reason for which a lease is created. Its value is the one that `LeaseCreated` gives."""

    START = "start of the application"
    OLDEST_LISTED = "oldest shard still listed"
    CHILD = "child of an ended lease"
    PARENT_OF_MERGE = "missing parent of a merge"
    ANCESTOR_OF_MERGE = "ancestor of a merge"
    ROW_DELETED = "its row was deleted by somebody else"


@dataclass(frozen=True, slots=True)
class LeaseCreation:
    """Put this row if its key is absent. refused_range: that of the shard."""

    lease: Lease
    reason: CreationReason
    refused_range: str = ""


def create_new_leases(
    start: StartPosition,
    shards: Sequence[Shard],
    leases: Mapping[str, Lease],
    unreadable: Collection[str] = frozenset(),
) -> list[LeaseCreation]:
    """The rows to put, ancestors first: by starting sequence number where known, then by shard id.

    shards: a *complete* listing; a shard missing from it is taken for expired. leases: every readable row by
    key.
    unreadable: keys of rows that cannot be understood; they are neither replaced nor believed to have ended.
    The rows carry parents, hash range, counter 0 and entity type. A row at LATEST carries `metadata.latest_from`
    when it completes a start at LATEST that was broken off: it has to begin where its siblings began, not
    now.
    """
    return _Plan.of(start, shards, leases, unreadable).creations()


def started_at_latest(rows: Iterable[Row]) -> int | None:
    """Server time, epoch milliseconds, of the earliest start at LATEST that these rows show; None: no such start."""
    times = (row.latest_from for row in rows if isinstance(row, Lease))
    return min((time for time in times if time is not None), default=None)


class _Parent(Enum):
    ENDED = "its lease has ended"
    CLEANED_UP = "listed, no lease, but a leased descendant: it was read and its row deleted"
    GONE = "neither lease nor shard left"
    READING = "its lease has not ended"
    NEVER_READ = "listed, no lease, and nothing that says it was ever read"


_OVER = {_Parent.ENDED, _Parent.CLEANED_UP, _Parent.GONE}
_WAS_READ = {_Parent.ENDED, _Parent.CLEANED_UP}


@dataclass(frozen=True, slots=True)
class _Plan:
    """leased: keys with a row. history: shards with a leased descendant. skipped: those of them that a start
    at LATEST passed over. orphans: (LATEST) shards with neither lease nor history that name a parent with
    neither lease nor shard left, in a table with rows. begun: (LATEST) listed shards below an orphan, or
    below something that is or was read."""

    start: StartPosition
    shards: Mapping[str, Shard]
    leases: Mapping[str, Lease]
    unreadable: Collection[str]
    leased: frozenset[str]
    history: set[str]
    skipped: set[str]
    orphans: set[str]
    begun: set[str]
    leaves: set[str]

    @classmethod
    def of(
        cls,
        start: StartPosition,
        shards: Sequence[Shard],
        leases: Mapping[str, Lease],
        unreadable: Collection[str],
    ) -> _Plan:
        by_id = {shard.shard_id: shard for shard in shards}
        tree = FamilyTree.of(by_id.values(), leases)
        leased = frozenset(leases) | frozenset(unreadable)
        history = tree.ancestors_of(leased)
        skipped: set[str] = set()
        orphans: set[str] = set()
        begun: set[str] = set()
        leaves: set[str] = set()
        if start.kind == "LATEST":
            # A start at LATEST leases only shards no ancestor of which was ever leased, and no ancestor of a
            # lease is leased later. So the metadata such a row carries proves that its ancestors were passed
            # over, not read.
            skipped = tree.ancestors_of(key for key, lease in leases.items() if lease.latest_from) - leased
            was_read = leased | ((history - skipped) & by_id.keys())
            known = leased | by_id.keys()
            # Whoever was away for longer than retention finds grandchildren of what was leased, and nothing that
            # says so. After a start at LATEST that was broken off they look the same: the start's time suits both.
            orphans = {
                key
                for key, shard in by_id.items()
                if leased and key not in leased and key not in history and not known.issuperset(shard.parents)
            }
            begun = tree.descendants_of(was_read | orphans)
            leaves = tree.open_leaves()
        return cls(start, by_id, leases, unreadable, leased, history, skipped, orphans, begun, leaves)

    def creations(self) -> list[LeaseCreation]:
        missing = [
            shard for key, shard in self.shards.items() if key not in self.leased and key not in self.history
        ]
        found = {}
        for shard in missing:
            creation = self._creation(shard)
            if creation is not None:
                found[shard.shard_id] = creation
        if self.start.kind == "LATEST":
            for shard in missing:
                found.update(self._missing_parents(shard))
        return [
            replace(creation, refused_range=self.shards[creation.lease.key].refused_range)
            for creation in sorted(found.values(), key=self._order)
        ]

    def _creation(self, shard: Shard) -> LeaseCreation | None:
        parents = {self._state(parent) for parent in shard.parents if parent != shard.shard_id}
        if self.start.kind == "LATEST" and not self._is_begun(shard):
            if shard.shard_id not in self.leaves:
                return None
            return LeaseCreation(self._row_at_latest(shard), CreationReason.START)
        if not parents <= _OVER:
            return None
        if parents & _WAS_READ:
            return LeaseCreation(_row(shard, self._child_position(parents)), CreationReason.CHILD)
        if shard.shard_id in self.orphans and started_at_latest(self.leases.values()) is not None:
            return LeaseCreation(self._row_at_latest(shard), CreationReason.OLDEST_LISTED)
        at = AT_START_TIMESTAMP if self.start.kind == "AT_TIMESTAMP" else AT_TRIM_HORIZON
        return LeaseCreation(
            _row(shard, at), CreationReason.OLDEST_LISTED if self.leased else CreationReason.START
        )

    def _missing_parents(self, shard: Shard) -> dict[str, LeaseCreation]:
        """Leases for those parents of a merge that a start at LATEST missed, once only they hold up the
        child.

        A start at LATEST leased one of two shards, broke off, and they were merged before the other was
        leased. The child cannot begin before that other shard was read, and nothing else would ever begin it
        (Java creates the missing parent at TRIM_HORIZON, too).
        """
        if not self._is_begun(shard):
            return {}
        parents = {parent: self._state(parent) for parent in shard.parents if parent != shard.shard_id}
        missed = [key for key, state in parents.items() if state is _Parent.NEVER_READ]
        if any(state not in _OVER and state is not _Parent.NEVER_READ for state in parents.values()):
            return {}
        return {
            key: LeaseCreation(_row(self.shards[key], AT_TRIM_HORIZON), CreationReason.PARENT_OF_MERGE)
            for key in missed
            if key not in self.begun and key not in self.orphans and key not in self.history
        }

    def _is_begun(self, shard: Shard) -> bool:
        return shard.shard_id in self.begun or shard.shard_id in self.orphans

    def _state(self, parent: str) -> _Parent:
        lease = self.leases.get(parent)
        if lease is not None:
            return _Parent.ENDED if lease.is_ended else _Parent.READING
        if parent in self.unreadable:
            return _Parent.READING
        if parent not in self.shards:
            return _Parent.GONE
        if parent in self.history:
            return _Parent.CLEANED_UP
        return _Parent.NEVER_READ

    def _child_position(self, parents: set[_Parent]) -> Checkpoint:
        if self.start.kind == "AT_TIMESTAMP" and _Parent.CLEANED_UP not in parents:
            return AT_START_TIMESTAMP
        return AT_TRIM_HORIZON

    def _row_at_latest(self, shard: Shard) -> Lease:
        """Return the row at the position of the same start, if there is one: this one was left out when it was broken
        off.

        Also without a parent that shows it: 1) two of three shards get leases, and the worker fails; 2) those two are
        read by a Java worker; 3) records are put into the third.
        """
        row = _row(shard, AT_LATEST)
        since = started_at_latest(self.leases.values())
        return row if since is None else row.with_(metadata=PykclMetadata(latest_from=since))

    def _order(self, creation: LeaseCreation) -> tuple[int, str]:
        began = self.shards[creation.lease.key].starting_sequence_number
        return (int(began) if began is not None and began.isdecimal() else -1, creation.lease.key)


def _row(shard: Shard, checkpoint: Checkpoint) -> Lease:
    return Lease(
        key=shard.shard_id,
        checkpoint=checkpoint,
        counter=0,
        parents=shard.parents,
        hash_range=shard.hash_range,
        entity_type="LEASE",
    )


def leases_before_end(
    child: Shard,
    start: StartPosition,
    shards: Mapping[str, Shard],
    leased: Collection[str],
    started_at: int | None = None,
) -> list[LeaseCreation]:
    """The lease of `child`, preceded by those of its ancestors that are still to be read and have none.

    shards: a complete listing by id, made before the scan. leased: the keys of all rows. Both may be left empty when
    every other parent of the child has its row. started_at: when a start at LATEST was, epoch milliseconds, as far as
    the rows show.

    No shard with a leased descendant ever gets a lease. So the lease of a merge's child settles it that no ancestor
    without a lease is ever read: the parent on the other side, the parents of that one, and so on, up to what is
    leased or was. Each of them gets its lease first; the readers then wait for their parents as for any others. (Java
    lets the reader of the ended shard wait until the other parent has its lease. That could wait for ever, for a lease
    this very worker has no room for, and would end nothing sooner.)
    Under LATEST ancestors that descend from nothing leased were passed over by the start, all but the parent itself:
    Java creates that one at TRIM_HORIZON, too. But where retention took what is between an ancestor and what was
    leased, nobody can say that it was passed over: it is read, from the time of the start where that is known.
    Every row starts at TRIM_HORIZON, as Java's do (v3.5.1 `lifecycle/ShutdownTask.java`), or at AT_TIMESTAMP where
    the application starts at a time: the parent may have ended before it.
    """
    tree = FamilyTree.of(shards.values())
    was_read = tree.ancestors_of(leased)
    if child.shard_id in was_read:
        return []
    settled = was_read | set(leased)
    below_a_lease = tree.descendants_of(leased)
    below_a_gap = _below_a_gap(tree, shards, leased) - below_a_lease
    missing: dict[str, Shard] = {child.shard_id: child}
    waiting = [child]
    while waiting:
        shard = waiting.pop()
        for parent in shard.parents:
            if parent not in shards or parent in settled or parent in missing:
                continue
            if start.kind == "LATEST" and shard is not child and parent not in below_a_lease | below_a_gap:
                continue
            missing[parent] = shards[parent]
            waiting.append(shards[parent])
    first = AT_START_TIMESTAMP if start.kind == "AT_TIMESTAMP" else AT_TRIM_HORIZON

    def lease_of(key: str) -> Lease:
        lease = Lease(key, first, parents=missing[key].parents, hash_range=missing[key].hash_range)
        if start.kind != "LATEST" or started_at is None or key not in below_a_gap:
            return lease
        return lease.with_(checkpoint=AT_LATEST, metadata=PykclMetadata(latest_from=started_at))

    return [
        LeaseCreation(
            lease_of(key),
            CreationReason.CHILD if key == child.shard_id else CreationReason.ANCESTOR_OF_MERGE,
            missing[key].refused_range,
        )
        for key in _ancestors_first(missing)
    ]


@dataclass(frozen=True, slots=True)
class UnreadShard:
    """A shard that Kinesis has dropped, and that nobody has read, as far as the rows show.

    keys: its hash keys, as far as the shards after it show; None where they do not. before: rows of shards before it,
    whose reader has not seen to it that it is read. after: shards that come after it, and get their leases now.
    """

    key: str
    keys: HashRange | None
    before: tuple[str, ...]
    after: tuple[str, ...]


def unread_shards(
    creations: Iterable[LeaseCreation],
    shards: Mapping[str, Shard],
    leases: Mapping[str, Lease],
    unreadable: Collection[str] = frozenset(),
) -> list[UnreadShard]:
    """Return the parents of new leases that were never read and cannot be any more, by shard id.

    1) A writer that is no KCL ends the lease of a shard, and makes none for its children; 2) nobody lists the shards,
    or the fleet is stopped; 3) retention takes the children; 4) their children get leases, as the oldest shards that
    are listed. Whoever reads a shard makes the leases of its children before its row is deleted. So a parent without
    row and shard, of whose children none has a lease either, was not read, unless the application began after it: then
    there is no row of a shard before it. Only of Java it is untrue: a shard that is dropped while Java reads it names
    no children, and Java ends its row without theirs, and deletes it. The arguments are as in `create_new_leases`.
    """
    tree = FamilyTree.of(shards.values(), leases)
    leased = leases.keys() | set(unreadable)
    missing: dict[str, list[Lease]] = {}
    for lease in (plan.lease for plan in creations if plan.reason is not CreationReason.ROW_DELETED):
        for parent in lease.parents:
            # Where another child has a lease, an operator deleted the row of this one.
            if parent not in shards and parent not in leased and leased.isdisjoint(tree.children_of(parent)):
                missing.setdefault(parent, []).append(lease)
    known = shards.keys() | leased
    followed = {key for key in leases if not known.isdisjoint(tree.children_of(key))}
    found = []
    for parent, after in sorted(missing.items()):
        keys = [part for lease in after for part in _keys_beside_known_parents(lease, shards, leases)]
        before = [
            key
            for key, row in sorted(leases.items())
            if parent in row.children
            or (
                any(row.hash_range.overlaps(part) for part in keys)
                if row.hash_range is not None and keys
                else row.is_ended and key not in followed
            )
        ]
        if before:
            whole = (
                HashRange(min(part.first for part in keys), max(part.last for part in keys)) if keys else None
            )
            found.append(UnreadShard(parent, whole, tuple(before), tuple(lease.key for lease in after)))
    return found


def _keys_beside_known_parents(
    child: Lease, shards: Mapping[str, Shard], leases: Mapping[str, Lease]
) -> list[HashRange]:
    """Return the hash keys of the child that it has from parents that are not known; none where that is unknown."""
    parents = [leases.get(parent) or shards.get(parent) for parent in child.parents]
    ranges = [parent.hash_range for parent in parents if parent is not None]
    if child.hash_range is None or None in ranges:
        return []
    return gaps((keys for keys in ranges if keys is not None), child.hash_range)


def _below_a_gap(tree: FamilyTree, shards: Mapping[str, Shard], leased: Collection[str]) -> set[str]:
    """Shards without a lease that name a parent with neither a lease nor a listed shard, and all below them."""
    known = shards.keys() | set(leased)
    torn = {key for key, shard in shards.items() if key not in leased and not known.issuperset(shard.parents)}
    return torn | tree.descendants_of(torn)


def _ancestors_first(shards: Mapping[str, Shard]) -> list[str]:
    order: TopologicalSorter[str] = TopologicalSorter()
    for key in sorted(shards):
        order.add(key, *(parent for parent in shards[key].parents if parent in shards and parent != key))
    return list(order.static_order())
