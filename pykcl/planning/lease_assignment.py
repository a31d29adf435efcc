"""Which leases to take, and from whom.

Fair and calm: a fleet ends with every worker within one lease of every other, and then moves nothing. A lease
is stolen only from a worker with at least two more, so that a steal always makes the fleet more even; a batch
of steals never turns the tables. Ended leases and leases whose parents are not ended take no part: nobody
works on them. Shares need not add up: a worker may be limited, or may leave alone a lease it cannot process. What
nobody takes within its share is overdue after a while, and then goes to whoever has room (as in Java). Where each
worker looks at a part of the table, those who look at a lease take it sooner, a few beyond their share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Literal

from pykcl.model.lease import Lease
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.shard_graph import FamilyTree


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Take this lease, provided that it still is as `seen`: the same counter, the same owner. (For a rebalance the same
    owner will do: it is alive, so the counter is read again just before.)

    `reason`: "rebalance" takes it from a live owner; "expired" from one whose counter stood still; "child" is an
    unowned child of a lease this worker ended.
    """

    seen: Lease
    reason: Literal["unowned", "expired", "rebalance", "child"]

    @property
    def lease_key(self) -> str:
        return self.seen.key

    @property
    def is_steal(self) -> bool:
        return self.reason == "rebalance"


ADOPTED = 2
"""How many leases beyond its share a worker takes because it, and hardly anybody else, sees that they are free."""


def calculate_acquire(
    view: LeaseView,
    *,
    worker: str,
    leases_to_acquire: int,
    max_leases: int,
    max_steal: int,
    failover_time: float,
    rng: Random,
    recently_ended_by_us: Collection[str] = frozenset(),
    left_alone: Collection[str] = frozenset(),
    pending: Collection[str] = frozenset(),
    held: Collection[str] = frozenset(),
    overdue_after: float | None = None,
    watched: Collection[str] = frozenset(),
    adopt_after: float = 0.0,
) -> list[Acquisition]:
    """What to take in this pass, sorted by key. Does not cap by fair share: `leases_to_acquire` does.

    recently_ended_by_us: leases this worker has just ended; their unowned children are preferred to
    everything.
    left_alone: leases this worker has just handed back; neither taken nor counted.
    pending: leases this worker is acquiring; counted as its own, not chosen again.
    held: leases this worker believes it holds. A row that names `worker` but is neither held nor pending is
    an orphan of its own, and available once it has expired like anybody's.
    overdue_after: seconds. A lease that was available for longer is taken whatever `leases_to_acquire` says, up to
    `max_leases`; by chance, so that not the whole fleet reaches for it at once. None: never.
    watched: leases that this worker and few others look at often. They are preferred to others, and one that was
    available for longer than `adopt_after` seconds is taken whatever `leases_to_acquire` says, up to `max_leases` and
    to ADOPTED beyond the fair share.
    """
    fleet = _Fleet.of(view, worker, failover_time, left_alone, frozenset(held) | frozenset(pending))
    room = max_leases - fleet.occupied
    limit = min(leases_to_acquire, room)
    spare = min(room, fleet.share(max_leases) + ADOPTED - fleet.load[worker])
    adopted = fleet.overdue(view, failover_time, adopt_after, among=watched) if watched and spare > 0 else []
    if limit <= 0 and not adopted:
        overdue = [] if overdue_after is None else fleet.overdue(view, failover_time, overdue_after)
        return fleet.some_of(overdue, room, rng)
    children = fleet.unowned_children_of(recently_ended_by_us) if limit > 0 else []
    available = children or fleet.available
    if not available:
        return fleet.steal(min(limit, max_steal), rng)
    chosen = _chosen([] if children else adopted[:spare], watched, available, limit, rng)
    return sorted(
        (Acquisition(lease, _reason(lease, bool(children))) for lease in chosen),
        key=lambda plan: plan.lease_key,
    )


def fair_share(
    view: LeaseView,
    *,
    worker: str,
    failover_time: float,
    max_leases: int,
    left_alone: Collection[str] = frozenset(),
    held: Collection[str] = frozenset(),
    pending: Collection[str] = frozenset(),
) -> int:
    """How many leases this worker may hold: countable leases divided by live workers, rounded up.

    A live worker is one that owns countable leases of which none is expired, and this one: who lets one expire, while
    the others were only seen not long enough, is dead or about to lose them. Workers without a lease are invisible in
    the table, so the share may be too large, never too small.
    """
    return _Fleet.of(view, worker, failover_time, left_alone, frozenset(held) | frozenset(pending)).share(
        max_leases
    )


def room_in_share(
    view: LeaseView,
    *,
    worker: str,
    failover_time: float,
    max_leases: int,
    left_alone: Collection[str] = frozenset(),
    held: Collection[str] = frozenset(),
    pending: Collection[str] = frozenset(),
) -> int:
    """The fair share less those leases in hand that count: one that waits for its parents takes nobody's place."""
    in_hand = frozenset(held) | frozenset(pending)
    fleet = _Fleet.of(view, worker, failover_time, left_alone, in_hand)
    return max(0, fleet.share(max_leases) - sum(lease.key in in_hand for lease in fleet.countable))


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """How the fleet stands, as one worker sees it.

    leases: all of the table. workers: live owners and this one. available: leases anybody may take; long_available: of
    them those free for `overdue_after` and longer. share: the fair one, without any limit. mine: those that count.
    """

    leases: int
    workers: int
    available: int
    long_available: int
    share: int
    mine: int


def fleet_figures(
    view: LeaseView,
    *,
    worker: str,
    failover_time: float,
    overdue_after: float,
    left_alone: Collection[str] = frozenset(),
    held: Collection[str] = frozenset(),
) -> FleetFigures:
    """For whoever watches; nothing is decided by it. The arguments are those of `calculate_acquire`."""
    fleet = _Fleet.of(view, worker, failover_time, left_alone, frozenset(held))
    return FleetFigures(
        leases=len(view.leases),
        workers=len(fleet.load.keys() | {worker}),
        available=len(fleet.available),
        long_available=len(fleet.overdue(view, failover_time, overdue_after)),
        share=fleet.share(len(fleet.countable)),
        mine=fleet.load[worker],
    )


def is_any_free(
    view: LeaseView,
    *,
    worker: str,
    failover_time: float,
    left_alone: Collection[str],
    held: Collection[str],
    among: Collection[str] | None = None,
) -> bool:
    """Whether there is a lease (one of `among`) that anybody may take. The rest is as in `calculate_acquire`."""
    available = _Fleet.of(view, worker, failover_time, left_alone, frozenset(held)).available
    return bool(available) if among is None else any(lease.key in among for lease in available)


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


@dataclass(frozen=True, slots=True)
class _Fleet:
    """countable: leases somebody should work on, sorted by key. load: live owner -> how many of them.
    silent: owners of whom a countable lease has expired.
    occupied: how many this worker has in hand, countable or not."""

    worker: str
    tree: FamilyTree
    countable: list[Lease]
    owners: dict[str, str | None]
    load: Counter[str]
    silent: frozenset[str]
    occupied: int

    @classmethod
    def of(
        cls,
        view: LeaseView,
        worker: str,
        failover_time: float,
        left_alone: Collection[str],
        in_hand: frozenset[str],
    ) -> _Fleet:
        leases = view.leases
        tree = view.tree
        countable = [lease for lease in tree.readable(leases, view.unreadable) if lease.key not in left_alone]
        owners: dict[str, str | None] = {}
        silent: set[str] = set()
        for lease in countable:
            if lease.key in in_hand:
                owners[lease.key] = worker
            elif lease.owner is None:
                owners[lease.key] = None
            elif view.is_expired(lease.key, failover_time):
                owners[lease.key] = None
                silent.add(lease.actual_owner or lease.owner)
            else:
                owners[lease.key] = lease.actual_owner
        load = Counter(owner for owner in owners.values() if owner is not None)
        occupied = len(in_hand.union(key for key, owner in owners.items() if owner == worker))
        return cls(worker, tree, countable, owners, load, frozenset(silent), occupied)

    def share(self, max_leases: int) -> int:
        workers = len((self.load.keys() - self.silent) | {self.worker})
        return min(max_leases, -(-len(self.countable) // workers))

    @property
    def available(self) -> list[Lease]:
        return [lease for lease in self.countable if self.owners[lease.key] is None]

    def unowned_children_of(self, ended: Collection[str]) -> list[Lease]:
        if not ended:
            return []
        return [
            lease
            for lease in self.available
            if lease.owner is None and not set(ended).isdisjoint(self.tree.parents_of(lease.key))
        ]

    def overdue(
        self, view: LeaseView, failover_time: float, after: float, among: Collection[str] | None = None
    ) -> list[Lease]:
        """Available for longer than `after` seconds: unowned, or (longer than fail-over already) with a dead owner."""
        return [
            lease
            for lease in self.available
            if (among is None or lease.key in among)
            and view.unchanged_for(lease.key) > after + (failover_time if lease.owner is not None else 0.0)
        ]

    def some_of(self, overdue: list[Lease], room: int, rng: Random) -> list[Acquisition]:
        """About one live worker per pass reaches for its part of them.

        At least every tenth one, because those that are full do not.
        """
        workers = len(self.load.keys() | {self.worker})
        if not overdue or room <= 0 or rng.random() >= max(0.1, 1 / workers):
            return []
        chosen = rng.sample(overdue, min(room, -(-len(overdue) // workers)))
        return sorted(
            (Acquisition(lease, _reason(lease, False)) for lease in chosen), key=lambda plan: plan.lease_key
        )

    def steal(self, at_most: int, rng: Random) -> list[Acquisition]:
        """From one of the most loaded owners, if it has at least two more than this worker.

        Ties are broken by chance, so that idle workers, which cannot see each other, do not all rob the same
        owner. A lease in the middle of a KCL 3.x hand-off is about to move anyway: it counts, but it is not
        stolen.
        """
        by_owner: dict[str, list[Lease]] = {}
        for lease in self.countable:
            owner = self.owners[lease.key]
            if owner is not None and owner != self.worker and lease.owner == owner:
                by_owner.setdefault(owner, []).append(lease)
        if not by_owner or at_most <= 0:
            return []
        most = max(self.load[owner] for owner in by_owner)
        gap = most - self.load[self.worker]
        if gap < 2:
            return []
        victim = rng.choice(sorted(owner for owner in by_owner if self.load[owner] == most))
        # Half the gap makes both equal; more would only be stolen back.
        chosen = rng.sample(by_owner[victim], min(at_most, gap // 2, len(by_owner[victim])))
        return sorted((Acquisition(lease, "rebalance") for lease in chosen), key=lambda plan: plan.lease_key)


def _chosen(
    adopted: list[Lease], watched: Collection[str], available: list[Lease], limit: int, rng: Random
) -> list[Lease]:
    """All that are adopted; up to `limit` then others by chance, those that are watched first."""
    chosen = list(adopted)
    for part in ([lease for lease in available if lease.key in watched], available):
        taken = {lease.key for lease in chosen}
        rest = [lease for lease in part if lease.key not in taken]
        chosen += rng.sample(rest, max(0, min(limit - len(chosen), len(rest))))
    return chosen


def _reason(lease: Lease, is_child: bool) -> Literal["unowned", "expired", "child"]:
    if is_child:
        return "child"
    return "unowned" if lease.owner is None else "expired"
