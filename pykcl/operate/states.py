"""The state of every lease, the library of its owner, and the colour of its owner in every view. Pure.

An owner is **pykcl** if its private attribute (`pykcl`) on a lease names this very owner. Other libraries keep the
attribute when they take a lease, but then it names another owner.

An owner is **Java** on any of these three pieces of evidence. The last two count on a lease only if pykcl's attribute
does not name its owner: in a fleet that a leader of KCL 3.x runs, pykcl reports metrics and keeps ended leases, too.

* There is a row of worker metrics with this worker identifier as its key, and no lease shows the owner to be pykcl. One
  of pykcl that has just been assigned its first lease passes for Java until its first heartbeat.
* This owner has a lease at SHARD_END whose counter moved between scans: Java renews an ended lease until its row is
deleted (`ShardConsumer`, `LeaseCleanupManager`, all 2.x and 3.x). In any other fleet pykcl removes the owner at the end
of a shard, and so do the other libraries whose source was read.
* The identifier has the form of Java's default one (a UUID, with or without a host name and a colon in front), **and**
this owner is still on a lease at (SHARD_END, 0) that names its children: an ending as Java writes it. Neither the form
nor such an ending proves anything alone.

Any other owner is **unknown**, as is an identifier with evidence for both: two workers share it, or one replaced the
other.

The colours are those of Okabe and Ito, which people with any kind of colour vision can distinguish; the shape serves
where there is no colour. The name decides the colour, so that every view and process shows the same one. Where two
names lead to the same, one of two owners seen together moves on: the later in the alphabet, else the one that came
later.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from pykcl.model.lease import ForeignRow, Lease, UnreadableRow
from pykcl.model.lease_item import METRICS_KIND
from pykcl.operate.snapshot import Observation, TableSnapshot
from pykcl.operate.unleased import Unleased
from pykcl.planning.fleet_protocol import is_of_pykcl
from pykcl.planning.shard_graph import FamilyTree


class LeaseState(Enum):
    """ACTIVE: owned, and its counter moved within the failover time. STALE: owned, and unchanged for at least the
    failover time: any live worker may take it. UNKNOWN: owned, and not watched for long enough. UNOWNED: without an
    owner. WAITING: owned or not, its parent has not ended, so it must not be read yet. ENDED: its shard was read to the
    end. NO_LEASE: a listed shard that is still to be read and has no row yet. FOREIGN: a row that is not a lease, such
    as KCL 3.x's own. UNREADABLE: a row like a lease that cannot be parsed.
    """

    ACTIVE = "ACTIVE"
    STALE = "STALE"
    UNKNOWN = "UNKNOWN"
    UNOWNED = "UNOWNED"
    WAITING = "WAITING"
    ENDED = "ENDED"
    NO_LEASE = "NO LEASE"
    FOREIGN = "FOREIGN"
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True)
class LeaseStatus:
    """One row, or a shard that is to get one.

    lease: None for NO_LEASE, FOREIGN and UNREADABLE; other: the shard, or the row itself, then. moved: change of the
    counter between the last two scans, None after one scan. unmoved_for: seconds. waits_for: parents that have not
    ended; of NO_LEASE, what `Unleased` has.
    """

    key: str
    state: LeaseState
    lease: Lease | None = None
    moved: int | None = None
    unmoved_for: float = 0.0
    waits_for: tuple[str, ...] = ()
    other: ForeignRow | UnreadableRow | Unleased | None = None

    @property
    def owner(self) -> str | None:
        """The worker that reads it: during a hand-off of KCL 3.x still the previous owner."""
        return self.lease.actual_owner if self.lease is not None else None


def states_of(
    found: Observation, failover: float, tree: FamilyTree | None = None, unleased: Iterable[Unleased] = ()
) -> dict[str, LeaseStatus]:
    """Return the state of every row by key, sorted; shards without a lease and rows that are not leases come last.

    failover: seconds. tree: from a listing of the stream; by default from the rows alone. unleased: of a listing that
    may be older than the rows.
    """
    leases, unreadable = found.snapshot.leases, found.snapshot.unreadable
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
    for one in unleased:
        if one.key not in leases and one.key not in unreadable:
            states[one.key] = LeaseStatus(one.key, LeaseState.NO_LEASE, waits_for=one.waits_for, other=one)
    for key in sorted(unreadable):
        states[key] = LeaseStatus(key, LeaseState.UNREADABLE, other=unreadable[key])
    for row in sorted(found.snapshot.foreign, key=lambda one: one.key):
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
    """Return state -> number, without states that do not occur."""
    found: dict[str, int] = {}
    for status in states.values():
        found[status.state.value] = found.get(status.state.value, 0) + 1
    return found


Kind = Literal["pykcl", "Java", "unknown"]

_JAVA_FORM = re.compile(
    r"(?:[A-Za-z0-9._-]{1,255}:)?[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z"
)


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """The library of an owner. why: the evidence, as text."""

    kind: Kind
    why: str
    version: str | None = None


UNKNOWN_KIND = OwnerKind("unknown", "nothing in the table shows which library it is")


def owner_kinds(view: TableSnapshot, renewed_after_end: Collection[str] = ()) -> dict[str, OwnerKind]:
    """Return worker identifier -> kind of every owner. renewed_after_end: see `snapshot.Observation`."""
    pykcl = _pykcl_workers(view.leases)
    java = _java_workers(view, frozenset(renewed_after_end), pykcl)
    found = {}
    for owner in sorted(owners_of(view)):
        if owner in java and owner in pykcl:
            found[owner] = OwnerKind(
                "unknown", f"pykcl's note names it, and {java[owner]}: two workers share this identifier"
            )
        elif owner in pykcl:
            found[owner] = OwnerKind("pykcl", "its note on the lease names this owner", pykcl[owner])
        elif owner in java:
            found[owner] = OwnerKind("Java", java[owner])
        else:
            found[owner] = UNKNOWN_KIND
    return found


def owners_of(view: TableSnapshot) -> set[str]:
    """Return the identifiers of all owners, during a hand-off of both the next and the previous one."""
    names = {name for lease in view.leases.values() for name in (lease.owner, lease.checkpoint_owner)}
    return {name for name in names if name is not None}


def has_javas_form(owner: str) -> bool:
    """Return True for an identifier in the form of Java's default: a random UUID, or host:UUID."""
    return _JAVA_FORM.match(owner) is not None


def _pykcl_workers(leases: Mapping[str, Lease]) -> dict[str, str | None]:
    """Return worker identifier -> version. During a hand-over the note names the worker that hands over."""
    return {
        note.owner: note.version
        for lease in leases.values()
        if (note := lease.metadata) is not None
        and note.owner is not None
        and note.owner in (lease.owner, lease.checkpoint_owner)
    }


def _java_workers(view: TableSnapshot, renewed: frozenset[str], pykcl: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    measured = {row.key for row in view.fleet_rows if row.kind == METRICS_KIND}.difference(pykcl)
    for key, lease in view.leases.items():
        for owner in (lease.owner, lease.checkpoint_owner):
            if owner in measured and owner is not None:
                found[owner] = "it reports metrics, as workers of KCL 3.x do"
        if lease.owner is None or not lease.is_ended or lease.owner in found or is_of_pykcl(lease):
            continue
        if key in renewed:
            found[lease.owner] = "it renews a lease that has ended, as Java does"
        elif lease.checkpoint.sub_sequence_number == 0 and lease.children and has_javas_form(lease.owner):
            found[lease.owner] = "its name has Java's form, and it ended a shard as Java does"
    return found


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_SALT = b"2880:"
"""Any would do; with this one, common first names (py-1 py-2 py-3, worker-a worker-b) differ in their colours."""
SHAPES = ("●", "▲", "■", "◆", "▼", "★", "◐", "▶")


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """colour: "#RRGGBB". shape: one character."""

    colour: str
    shape: str

    @property
    def rgb(self) -> tuple[int, int, int]:
        number = int(self.colour[1:], 16)
        return number >> 16, number >> 8 & 255, number & 255


NOBODY = OwnerMark("#888888", "○")
# Seven colours and eight shapes have no common divisor: 56 marks, and the next one differs in both.
MARKS = tuple(
    OwnerMark(COLOURS[number % len(COLOURS)], SHAPES[number % len(SHAPES)])
    for number in range(len(COLOURS) * len(SHAPES))
)


def mark_of(owner: str | None) -> OwnerMark:
    """Return the mark of a worker identifier alone; for several owners use `marks_among`."""
    return MARKS[_place_of(owner)] if owner else NOBODY


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of owners seen together, as `marks_among` assigns them.

    by_owner: worker identifier -> mark; owners not seen any more come first, the longest gone before the others.
    """

    by_owner: Mapping[str, OwnerMark] = field(default_factory=dict)

    def of(self, owner: str | None) -> OwnerMark:
        """Return the mark of an owner; of one never seen, that of its name."""
        return (self.by_owner.get(owner) or mark_of(owner)) if owner else NOBODY


NO_MARKS = Marks()


def marks_among(owners: Iterable[str | None], before: Marks = NO_MARKS) -> Marks:
    """Return a mark for each owner; no two share one while there are at most as many as `MARKS`.

    before: the marks of the scan before, which their owners keep. An owner not seen any more keeps its mark, too:
    charts and events still show it, and it may come back. Only when marks run out, the longest gone owner loses its
    mark.
    """
    visible = sorted({owner for owner in owners if owner})
    names = frozenset(visible)
    room = max(0, len(MARKS) - len(visible))
    gone = [owner for owner in before.by_owner if owner not in names]
    kept = {owner: before.by_owner[owner] for owner in gone[max(0, len(gone) - room) :]}
    taken = set(kept.values())
    found: dict[str, OwnerMark] = {}
    for owner in visible:
        # Two may have shared a mark while there were too many owners: the second gets a new one.
        mark = before.by_owner.get(owner)
        if mark is not None and mark not in taken:
            found[owner] = mark
            taken.add(mark)
    _give(found, [owner for owner in visible if owner not in found], taken)
    return Marks({**kept, **{owner: found[owner] for owner in visible}})


def _give(found: dict[str, OwnerMark], newcomers: Iterable[str], taken: set[OwnerMark]) -> None:
    """Assign marks first to owners whose own mark is free, so that no moved owner takes it."""
    moving = []
    for owner in newcomers:
        mark = mark_of(owner)
        if mark in taken:
            moving.append(owner)
        else:
            found[owner] = mark
            taken.add(mark)
    for owner in moving:
        found[owner] = mark = _next_free(owner, taken)
        taken.add(mark)


def _next_free(owner: str, taken: set[OwnerMark]) -> OwnerMark:
    """Return the next free mark; if there is none, the owner's own."""
    place = _place_of(owner)
    if len(taken) >= len(MARKS):
        return MARKS[place]
    return next(mark for mark in (*MARKS[place:], *MARKS[:place]) if mark not in taken)


def _place_of(owner: str) -> int:
    return zlib.crc32(_SALT + owner.encode("utf-8", "surrogatepass")) % len(MARKS)
