"""Looks for hash keys whose records nobody will read, and for rows that lack the hash range of their shard.

Java: `coordinator/PeriodicShardSyncManager.java` (2.7.2; 3.5.1 is the same), which only the elected leader runs
(`election`), first after a minute, then every two. What it does there, and who does it in pykcl:

- missing leases: `new_leases`, in *every* pykcl worker, with each of its listings (`shard_sync_interval`). That is
  sooner than Java's shard sync, and more: Java gives no lease to a shard below a lease that has ended. It is safe
  beside a Java leader and beside each other: a row is put only if its key is free, so the first one stands.
- a hole that three audits in a row have found: Java then runs its shard sync. Here everybody's next listing would have
  done that already, so a hole that stands that long is one that listings do not mend: the row in its place cannot be
  understood, a reader of another library ended a shard whose children are not listed, listing fails. A person has to
  hear of it, from one worker, not from all.
- a table without leases: a listing at once.
- rows without a hash range (of KCL before 2.3 and of other libraries): Java judges holes by them, so one worker has to
  fill them in.

So the elected one has two duties: it fills in hash ranges, and it tells of holes. Everybody can audit, though: the scan
is at hand, and whoever is elected next has confirmed already what it sees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pykcl.model.lease import Lease
from pykcl.model.shard import HashRange, Shard

FIRST_AUDIT_AFTER = 60.0
"""Seconds, unless audits come sooner than that; Java: the same."""
CONFIRMATIONS = 3
"""Java: `leasesRecoveryAuditorInconsistencyConfidenceThreshold`. While a shard ends, its keys may seem to be nobody's:
an eventually consistent scan shows the end of the parent and not yet the rows of the children."""
_LAST_HASH_KEY = 2**128 - 1


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Hash keys of no lease that has not ended: from `first` to `last`, both of them included."""

    first: int
    last: int

    def holds(self, other: Hole) -> bool:
        return self.first <= other.first and other.last <= self.last

    def touches(self, other: Hole) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class ConfirmedHole:
    """audits: how many in a row have found each of its keys without a lease.

    shards: the open shards that take these keys, as far as they are listed, sorted: what an operator has to look at.
    """

    hole: Hole
    audits: int
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HashRangeFill:
    """Write the hash range into this row, provided that the row is there and still lacks it. Nothing else of it.

    Why neither counter nor owner is asked for, and the counter stays: `lease_row.fill_hash_range`.
    """

    seen: Lease
    hash_range: HashRange


@dataclass(frozen=True, slots=True)
class Findings:
    """What one audit says.

    holes: every one, confirmed or not, in the order of their keys. confirmed: of these, each that was not told of
    before. closed: told of before, and each of its keys has a lease again.
    must_sync: whether the shards are to be listed at once: there are no leases, or a confirmed hole is open.
    fills: by key. unplaced: keys of leases with a range that neither their row nor the listing tells, sorted; what
    they cover seems to be a hole (Java: the same).
    """

    holes: tuple[Hole, ...] = ()
    confirmed: tuple[ConfirmedHole, ...] = ()
    closed: tuple[Hole, ...] = ()
    must_sync: bool = False
    fills: tuple[HashRangeFill, ...] = ()
    unplaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """What the audits so far have found.

    audits_of: for each hole of the last one, how many in a row have found it; a hole that shrinks goes on, each of its
    keys was in it before, and one that grows begins anew (Java: both begin anew). told: confirmed holes some keys of
    which were still without a lease.
    """

    confirmations: int = CONFIRMATIONS
    audits_of: Mapping[Hole, int] = field(default_factory=dict)
    told: frozenset[Hole] = frozenset()

    def next(
        self,
        leases: Mapping[str, Lease],
        shards: Mapping[str, Shard],
        unreadable: Collection[str] = frozenset(),
    ) -> tuple[Audit, Findings]:
        """One more audit.

        leases: every readable row of this stream. shards: what was listed last, by id, complete or not: a shard never
        changes its range. unreadable: keys of rows that cannot be understood; they cover nothing, yet with one the
        table is not without leases.
        """
        fills, unplaced = _without_range(leases, shards)
        if not leases and not unreadable:
            # Somebody has emptied the table, or never filled it. That says nothing new about holes (Java: the same).
            return self, Findings(must_sync=True)
        holes = holes_in(_ranges(leases, shards))
        audits_of = {hole: 1 + self._audits_before(hole) for hole in holes}
        sure = [hole for hole in holes if audits_of[hole] >= self.confirmations]
        closed = {hole for hole in self.told if not any(hole.touches(other) for other in holes)}
        new = [hole for hole in sure if not any(before.holds(hole) for before in self.told)]
        findings = Findings(
            holes=tuple(holes),
            confirmed=tuple(ConfirmedHole(hole, audits_of[hole], _taking(hole, shards)) for hole in new),
            closed=tuple(sorted(closed)),
            must_sync=bool(sure),
            fills=fills,
            unplaced=unplaced,
        )
        return Audit(self.confirmations, audits_of, (self.told - closed) | set(new)), findings

    def untold(self) -> Audit:
        """The same, but nobody has heard of any hole. For a worker that audits without leading: it knows what it has
        confirmed, and tells of it with its first audit as the leader.
        """
        return replace(self, told=frozenset())

    def _audits_before(self, hole: Hole) -> int:
        return max((times for before, times in self.audits_of.items() if before.holds(hole)), default=0)


def holes_in(ranges: Iterable[HashRange]) -> list[Hole]:
    """The hash keys from 0 to 2^128-1 in none of these ranges, which may overlap."""
    holes = []
    expected = 0
    for first, last in sorted((int(keys.starting_hash_key), int(keys.ending_hash_key)) for keys in ranges):
        if first > expected:
            holes.append(Hole(expected, first - 1))
        expected = max(expected, last + 1)
    if expected <= _LAST_HASH_KEY:
        holes.append(Hole(expected, _LAST_HASH_KEY))
    return holes


def _ranges(leases: Mapping[str, Lease], shards: Mapping[str, Shard]) -> list[HashRange]:
    """Of the leases that have not ended. Where the listing and the row differ, Kinesis knows better."""
    open_leases = (lease for lease in leases.values() if not lease.is_ended)
    ranges = (_listed_range(lease.key, shards) or lease.hash_range for lease in open_leases)
    return [keys for keys in ranges if keys is not None]


def _without_range(
    leases: Mapping[str, Lease], shards: Mapping[str, Shard]
) -> tuple[tuple[HashRangeFill, ...], tuple[str, ...]]:
    """What can be filled in, and the keys of what cannot; ended leases need no range any more (Java: the same)."""
    fills, unplaced = [], []
    for key in sorted(leases):
        lease = leases[key]
        if lease.is_ended or lease.hash_range is not None:
            continue
        listed = _listed_range(key, shards)
        if listed is None:
            unplaced.append(key)
        else:
            fills.append(HashRangeFill(lease, listed))
    return tuple(fills), tuple(unplaced)


def _listed_range(key: str, shards: Mapping[str, Shard]) -> HashRange | None:
    """Only what every reader of the row accepts: in Java a range that is none makes the whole table unreadable."""
    shard = shards.get(key)
    if shard is None or shard.hash_range is None:
        return None
    first, last = int(shard.hash_range.starting_hash_key), int(shard.hash_range.ending_hash_key)
    return shard.hash_range if first < last <= _LAST_HASH_KEY else None


def _taking(hole: Hole, shards: Mapping[str, Shard]) -> tuple[str, ...]:
    found = []
    for key in sorted(shards):
        keys = _listed_range(key, shards)
        if keys is None or not shards[key].is_open:
            continue
        if hole.touches(Hole(int(keys.starting_hash_key), int(keys.ending_hash_key))):
            found.append(key)
    return tuple(found)
