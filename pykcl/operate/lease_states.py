"""What state every lease is in, as far as looking can tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pykcl.model.lease import ForeignRow, Lease, UnreadableRow
from pykcl.operate.sampling import Observation
from pykcl.planning.shard_graph import FamilyTree


class LeaseState(Enum):
    """ACTIVE: somebody owns it, and its counter moved within the fail-over time. STALE: somebody owns it, and it was
    seen unmoved for at least the fail-over time: any living worker may take it. UNKNOWN: somebody owns it, and it was
    not watched for long enough to tell. UNOWNED: nobody owns it. WAITING: a parent has not ended, so nobody may read it
    yet, whether somebody owns it or not. ENDED: read to the end of its shard. FOREIGN: a row that is no lease, such as
    KCL 3.x's own. UNREADABLE: a row that looks like a lease and is none that can be understood.
    """

    ACTIVE = "ACTIVE"
    STALE = "STALE"
    UNKNOWN = "UNKNOWN"
    UNOWNED = "UNOWNED"
    WAITING = "WAITING"
    ENDED = "ENDED"
    FOREIGN = "FOREIGN"
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True)
class LeaseStatus:
    """One row.

    lease: None for FOREIGN and UNREADABLE; other: the row itself then. moved: how far the counter went between the last
    two looks, None where there was one only. unmoved_for: seconds. waits_for: parents that have not ended.
    """

    key: str
    state: LeaseState
    lease: Lease | None = None
    moved: int | None = None
    unmoved_for: float = 0.0
    waits_for: tuple[str, ...] = ()
    other: ForeignRow | UnreadableRow | None = None

    @property
    def owner(self) -> str | None:
        """Who works on it: during a hand-off of KCL 3.x not yet the next owner."""
        return self.lease.actual_owner if self.lease is not None else None


def states_of(found: Observation, failover: float, tree: FamilyTree | None = None) -> dict[str, LeaseStatus]:
    """The state of every row by key, sorted; rows that are no leases come last.

    failover: seconds. tree: with what a listing of the stream knows, else what the rows say of their families.
    """
    leases, unreadable = found.view.leases, found.view.unreadable
    tree = tree or FamilyTree.of(leases=leases)
    states = {}
    for key in sorted(leases):
        lease = leases[key]
        waits_for = tuple(
            parent
            for parent in sorted(tree.parents_of(key))
            if parent in unreadable or (parent in leases and not leases[parent].is_ended)
        )
        unmoved_for = found.unmoved_for.get(key, 0.0)
        states[key] = LeaseStatus(
            key,
            _state(lease, bool(waits_for), key in found.alive, unmoved_for >= failover),
            lease,
            found.moved.get(key),
            unmoved_for,
            () if lease.is_ended else waits_for,
        )
    for key in sorted(unreadable):
        states[key] = LeaseStatus(key, LeaseState.UNREADABLE, other=unreadable[key])
    for row in sorted(found.view.foreign, key=lambda one: one.key):
        states[row.key] = LeaseStatus(row.key, LeaseState.FOREIGN, other=row)
    return states


def _state(lease: Lease, waits: bool, alive: bool, overdue: bool) -> LeaseState:
    if lease.is_ended:
        return LeaseState.ENDED
    if waits:
        return LeaseState.WAITING
    if lease.actual_owner is None:
        return LeaseState.UNOWNED
    if overdue:
        return LeaseState.STALE
    return LeaseState.ACTIVE if alive else LeaseState.UNKNOWN


def counts(states: Mapping[str, LeaseStatus]) -> dict[str, int]:
    """State -> how many, of those there are."""
    found: dict[str, int] = {}
    for status in states.values():
        found[status.state.value] = found.get(status.state.value, 0) + 1
    return found
