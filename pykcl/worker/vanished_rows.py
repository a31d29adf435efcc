"""Remembers leases whose rows somebody deleted by hand, so that they are put back where they were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.planning.lease_creation import CreationReason, LeaseCreation
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.shard_graph import FamilyTree

_MORE_WRITES = 1000
"""More than an owner has sent since its row was last seen."""
_UNLISTED_FOR = 900.0
"""Seconds after which a shard that no listing has shown meanwhile counts as expired: a single one may lack it."""


class VanishedRows:
    """Used by the LeaseManager's thread only. Leases that had ended are not of interest: those are deleted in order.

    Without this a deleted row is one that never was. 1) An operator deletes the only row of an application that
    started at LATEST; 2) records are put; 3) the shard gets a new lease, at LATEST: they are skipped. Or: 1) of the two
    parents of a merge one has ended, and their child has a lease; 2) the row of the other, which is still being read,
    is deleted; 3) it has a leased descendant and no row, as if it had been read and cleaned up: nobody reads its rest.

    patience: seconds in which its owner, who knows its position best, notices the loss and puts the row back itself.
    on_expired: told of each lease whose shard expired before its row was back: nobody can read its rest.
    """

    def __init__(self, patience: float, on_expired: Callable[[Lease], None]) -> None:
        self._patience, self._on_expired = patience, on_expired
        self._seen: dict[str, tuple[Lease, float]] = {}
        self._held: dict[str, Lease] = {}
        self._unlisted: dict[str, float] = {}
        self._again_at = 0.0

    def observe(self, before: LeaseView, after: LeaseView) -> None:
        """Note which leases that had not ended are missing, and which are there again."""
        there = _keys(after)
        for key in sorted(before.leases.keys() - there):
            if not before.leases[key].is_ended:
                self._seen[key] = (before.leases[key], after.observed_at)
        self._seen = {key: seen for key, seen in self._seen.items() if key not in there}
        self._held = {key: lease for key, lease in self._held.items() if key not in there}

    def is_due(self, now: float) -> bool:
        """Whether something can be put back; the shards have to be listed for it. True once in `patience` seconds."""
        # For what the last listing lacked the regular ones are soon enough: it may have expired.
        due = not self._held.keys() <= self._unlisted.keys() or any(
            now - since >= self._patience
            for key, (_, since) in self._seen.items()
            if key not in self._unlisted
        )
        if not due or now < self._again_at:
            return False
        self._again_at = now + self._patience
        return True

    def was_held(self, lease: Lease) -> None:
        """This worker was its owner: nobody else can have moved it since."""
        self._held[lease.key] = lease

    def remembered(self, shards: Iterable[Shard], view: LeaseView) -> dict[str, Lease]:
        """The leases that are missing in `view` and must not be taken for new ones, by key.

        shards: a complete listing; what none has shown for long has expired. What was only seen may have been read to
        its end and cleaned up since, unless nobody has gone on from it.
        """
        if not self._seen and not self._held:
            self._unlisted.clear()
            return {}
        tree = FamilyTree.of(shards, view.leases)
        followed = tree.ancestors_of(_keys(view))
        self._note_unlisted(tree.listed, view.observed_at)
        self._seen = {k: seen for k, seen in self._seen.items() if k not in followed}
        known = {**{key: lease for key, (lease, _) in self._seen.items()}, **self._held}
        return {key: lease for key, lease in known.items() if key in tree.listed}

    def _note_unlisted(self, listed: Collection[str], now: float) -> None:
        """1) The row of a shard is deleted; 2) a listing lacks the shard, and its lease is forgotten; 3) the next one
        has it: it would get a new lease, at LATEST perhaps."""
        missing = (self._seen.keys() | self._held.keys()) - set(listed)
        self._unlisted = {key: self._unlisted.get(key, now) for key in missing}
        for key in [key for key, since in self._unlisted.items() if now - since > _UNLISTED_FOR]:
            del self._unlisted[key]
            seen, _ = self._seen.pop(key, (None, 0.0))
            lease = self._held.pop(key, seen)
            if lease is not None:
                self._on_expired(lease)

    def to_restore(self, now: float) -> list[LeaseCreation]:
        """What of the remembered is to be put back by now (monotonic seconds), at the last known checkpoint."""
        due = {key: lease for key, (lease, since) in self._seen.items() if now - since >= self._patience}
        known = {**due, **self._held}
        # In `_unlisted` is what the last listing lacked.
        return [
            LeaseCreation(_put_back(known[key]), CreationReason.ROW_DELETED)
            for key in sorted(known.keys() - self._unlisted.keys())
        ]


def _keys(view: LeaseView) -> set[str]:
    return view.leases.keys() | view.unreadable.keys()


def _put_back(lease: Lease) -> Lease:
    """Its counter goes on. 1) A checkpoint under counter 2 is delayed in the network, and sent again; 2) the row is
    deleted and put back; 3) were it to begin at 0, its owner would come to counter 2 once more; 4) the delayed write
    lands, and moves the checkpoint back.
    """
    return Lease(
        key=lease.key,
        checkpoint=lease.checkpoint,
        counter=lease.counter + _MORE_WRITES,
        parents=lease.parents,
        children=lease.children,
        hash_range=lease.hash_range,
        pending=lease.pending,
        entity_type=lease.entity_type,
        note=lease.note,
    )
