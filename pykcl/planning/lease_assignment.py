"""Lease assignment: the leases that one worker takes, and from whom.

Fair and calm: a fleet ends with every worker within one lease of every other, and then moves nothing. A lease
is stolen only from a worker with at least two more, so that a steal always makes the fleet more even; a batch
of steals never turns the tables. Ended leases and leases whose parents are not ended take no part: nobody
works on them. Shares need not add up: a worker may be limited, or may leave alone a lease it cannot process. What
nobody takes within its share is overdue after a while, and then goes to whoever has room (as in Java). Where
each worker scans segments of the table, those who scan a lease take it sooner, a few beyond their share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Literal

from pykcl.model.lease import Lease
from pykcl.planning.lease_view import LeaseView


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Take this lease, provided that it still is as `seen`: the same counter, the same owner. (For a rebalance the same
    owner will do: it is alive, so the counter is read again just before.)

    `reason`: "rebalance" takes it from a live owner; "expired" from one whose counter stood still; "child" is an
    unowned child of a lease this worker ended; "assigned" was given to this worker by a leader of KCL 3.x.
    """

    seen: Lease
    reason: Literal["unowned", "expired", "rebalance", "child", "assigned"]

    @property
    def lease_key(self) -> str:
        return self.seen.key

    @property
    def is_steal(self) -> bool:
        return self.reason == "rebalance"


EXTRA_FROM_SEGMENT = 2
"""The number of leases beyond its share that a worker takes because few others see that they are free."""


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Figures of the fleet, as one worker sees it.

    leases: all of the table. workers: live owners and this one. available: leases anybody may take; long_available: of
    them those free for `overdue_after` and longer. share: the fair one, without any limit. mine: those that count.
    """

    leases: int
    workers: int
    available: int
    long_available: int
    share: int
    mine: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet in one planning pass, as the worker `worker` sees it.

    in_hand: leases that this worker holds or is taking. A row that names `worker` and is not among them is an orphan of
    its own, and available once it has expired like anybody's.
    countable: leases somebody should work on, sorted by key. owners: who works on each of these, or None.
    load: live owner -> the number of them. silent: owners of whom a countable lease has expired: they are dead or
    about to lose the others too, which were only not seen for long enough.
    """

    worker: str
    view: LeaseView
    failover_time: float
    in_hand: frozenset[str]
    countable: list[Lease]
    owners: dict[str, str | None]
    load: Counter[str]
    silent: frozenset[str]

    @classmethod
    def seen_by(
        cls,
        worker: str,
        view: LeaseView,
        *,
        failover_time: float,
        in_hand: Collection[str] = (),
        left_alone: Collection[str] = (),
    ) -> Fleet:
        """left_alone: leases this worker has just handed back; neither taken nor counted."""
        mine = frozenset(in_hand)
        countable = [
            lease for lease in view.tree.readable(view.leases, view.unreadable) if lease.key not in left_alone
        ]
        owners: dict[str, str | None] = {}
        silent: set[str] = set()
        for lease in countable:
            if lease.key in mine:
                owners[lease.key] = worker
            elif lease.owner is None:
                owners[lease.key] = None
            elif view.is_expired(lease.key, failover_time):
                owners[lease.key] = None
                silent.add(lease.actual_owner or lease.owner)
            else:
                owners[lease.key] = lease.actual_owner
        load = Counter(owner for owner in owners.values() if owner is not None)
        return cls(worker, view, failover_time, mine, countable, owners, load, frozenset(silent))

    @property
    def available(self) -> list[Lease]:
        """Leases that anybody may take."""
        return [lease for lease in self.countable if self.owners[lease.key] is None]

    def is_any_available(self, among: Collection[str]) -> bool:
        return any(lease.key in among for lease in self.available)

    def share(self, max_leases: int) -> int:
        """Return how many leases this worker may hold: countable leases divided by live workers, rounded up.

        A live worker is one that owns countable leases of which none is expired, and this one. Workers without a lease
        are invisible in the table, so the share may be too large, never too small.
        """
        workers = len((self.load.keys() - self.silent) | {self.worker})
        return min(max_leases, -(-len(self.countable) // workers))

    def room(self, max_leases: int) -> int:
        """The fair share less those leases in hand that count: one that waits for its parents takes nobody's place."""
        return max(0, self.share(max_leases) - sum(lease.key in self.in_hand for lease in self.countable))

    def figures(self, overdue_after: float) -> FleetFigures:
        """Figures for metrics; nothing is decided by them."""
        return FleetFigures(
            leases=len(self.view.leases),
            workers=len(self.load.keys() | {self.worker}),
            available=len(self.available),
            long_available=len(self._overdue(overdue_after)),
            share=self.share(len(self.countable)),
            mine=self.load[self.worker],
        )

    def choose(
        self,
        leases_to_acquire: int,
        rng: Random,
        *,
        max_leases: int,
        max_steal: int,
        recently_ended_by_us: Collection[str] = (),
        overdue_after: float | None = None,
        segment_keys: Collection[str] = (),
        segment_grace: float = 0.0,
    ) -> list[Acquisition]:
        """Return what to take in this pass, sorted by key. Only `leases_to_acquire` caps it by the fair share.

        recently_ended_by_us: leases this worker has just ended; their unowned children are preferred to everything.
        overdue_after: seconds. A lease that was available for longer is taken whatever `leases_to_acquire` says, up to
        `max_leases`; by chance, so that not the whole fleet reaches for it at once. None: never.
        segment_keys: leases that this worker and few others scan often. They are preferred to others, and one that was
        available for longer than `segment_grace` seconds is taken whatever `leases_to_acquire` says, up to `max_leases`
        and to EXTRA_FROM_SEGMENT beyond the fair share.
        """
        mine = (key for key, owner in self.owners.items() if owner == self.worker)
        room = max_leases - len(self.in_hand.union(mine))
        limit = min(leases_to_acquire, room)
        spare = min(room, self.share(max_leases) + EXTRA_FROM_SEGMENT - self.load[self.worker])
        extra = self._overdue(segment_grace, among=segment_keys) if segment_keys and spare > 0 else []
        if limit <= 0 and not extra:
            overdue = [] if overdue_after is None else self._overdue(overdue_after)
            return self._some_of(overdue, room, rng)
        children = self._unowned_children_of(recently_ended_by_us) if limit > 0 else []
        available = children or self.available
        if not available:
            return self._steal(min(limit, max_steal), rng)
        chosen = _chosen([] if children else extra[:spare], segment_keys, available, limit, rng)
        return sorted(
            (Acquisition(lease, _reason(lease, bool(children))) for lease in chosen),
            key=lambda plan: plan.lease_key,
        )

    def _unowned_children_of(self, ended: Collection[str]) -> list[Lease]:
        if not ended:
            return []
        parents_of = self.view.tree.parents_of
        return [
            lease
            for lease in self.available
            if lease.owner is None and not set(ended).isdisjoint(parents_of(lease.key))
        ]

    def _overdue(self, after: float, among: Collection[str] | None = None) -> list[Lease]:
        """Available for longer than `after` seconds: unowned, or (longer than failover already) with a dead owner."""
        return [
            lease
            for lease in self.available
            if (among is None or lease.key in among)
            and self.view.unchanged_for(lease.key)
            > after + (self.failover_time if lease.owner is not None else 0.0)
        ]

    def _some_of(self, overdue: list[Lease], room: int, rng: Random) -> list[Acquisition]:
        """Choose leases in such a way that about one live worker per pass takes its part of them.

        At least every tenth one, because those that are full do not.
        """
        workers = len(self.load.keys() | {self.worker})
        if not overdue or room <= 0 or rng.random() >= max(0.1, 1 / workers):
            return []
        chosen = rng.sample(overdue, min(room, -(-len(overdue) // workers)))
        return sorted(
            (Acquisition(lease, _reason(lease, False)) for lease in chosen), key=lambda plan: plan.lease_key
        )

    def _steal(self, max_steal: int, rng: Random) -> list[Acquisition]:
        """Steal from one of the most loaded owners, if it has at least two more than this worker.

        Ties are broken by chance, so that idle workers, which cannot see each other, do not all rob the same
        owner. A lease in the middle of a KCL 3.x hand-off is about to move anyway: it counts, but it is not
        stolen.
        """
        by_owner: dict[str, list[Lease]] = {}
        for lease in self.countable:
            owner = self.owners[lease.key]
            if owner is not None and owner != self.worker and lease.owner == owner:
                by_owner.setdefault(owner, []).append(lease)
        if not by_owner or max_steal <= 0:
            return []
        largest = max(self.load[owner] for owner in by_owner)
        gap = largest - self.load[self.worker]
        if gap < 2:
            return []
        victim = rng.choice(sorted(owner for owner in by_owner if self.load[owner] == largest))
        # Half the gap makes both equal; more would only be stolen back.
        chosen = rng.sample(by_owner[victim], min(max_steal, gap // 2, len(by_owner[victim])))
        return sorted((Acquisition(lease, "rebalance") for lease in chosen), key=lambda plan: plan.lease_key)


def _chosen(
    extra: list[Lease], segment_keys: Collection[str], available: list[Lease], limit: int, rng: Random
) -> list[Lease]:
    """All of `extra`; up to `limit` then others by chance, those of `segment_keys` first."""
    chosen = list(extra)
    for part in ([lease for lease in available if lease.key in segment_keys], available):
        taken = {lease.key for lease in chosen}
        rest = [lease for lease in part if lease.key not in taken]
        chosen += rng.sample(rest, max(0, min(limit - len(chosen), len(rest))))
    return chosen


def _reason(lease: Lease, is_child: bool) -> Literal["unowned", "expired", "child"]:
    if is_child:
        return "child"
    return "unowned" if lease.owner is None else "expired"


def still_awaited(view: LeaseView, ended: Collection[str]) -> set[str]:
    """Those of the leases a worker ended whose children it may still have to take: the others can be forgotten."""
    tree = view.tree

    def is_settled(child: str) -> bool:
        lease = view.leases.get(child)
        return lease is not None and (lease.owner is not None or lease.is_ended)

    awaited = set()
    for key in ended:
        children = tree.children_of(key)
        # An end without known children may only be a scan that is a moment old.
        if key in view.leases and not (children and all(map(is_settled, children))):
            awaited.add(key)
    return awaited
