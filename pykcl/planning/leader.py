"""The leader of a fleet by the rule of Java KCL 2.x, and the audit of hash ranges that is its duty.

**Election.** Java: `coordinator/DeterministicShuffleShardSyncLeaderDecider.java` (2.7.2, 3.1.3 and 3.5.1 decide alike;
3.x only while it is compatible with 2.x, its own leaders hold a lock). Each worker computes the leader alone, from the
owners in the lease table, in the order that Java's shuffle gives. Java counts whoever owns a row, so it elects pykcl
workers, dead workers and workers of other libraries. Nobody asks the elected one whether it lives, or does anything. A
dead leader is replaced once its leases are taken.

**Audit.** Java: `coordinator/PeriodicShardSyncManager.java` (2.7.2; 3.5.1 is the same), which only the elected leader
runs, first after a minute, then every two. What it does there, and who does it in pykcl:

- missing leases: `lease_creation`, in *every* pykcl worker, with each of its listings (`shard_sync_interval`). That is
  sooner than Java's shard sync, and more: Java gives no lease to a shard below a lease that has ended. It is safe
  beside a Java leader and beside each other: a row is put only if its key is free, so the first one stands.
- a hole that three audits in a row have found: Java then runs its shard sync. Here everybody's next listing would have
  done that already, so a hole that stands that long is one that listings do not mend: the row in its place cannot be
  understood, a reader of another library ended a shard whose children are not listed, listing fails. A person has to
  hear of it, from one worker, not from all.
- a table without leases: a listing at once.
- rows without a hash range (of KCL before 2.3 and of other libraries): Java finds holes by them, so one worker has to
  fill them in.

So the leader has two duties: it fills in hash ranges, and it reports holes. Every worker audits, though: the scan is at
hand, and whoever is elected next has confirmed already what it sees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field, replace
from typing import Any

from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_item import LEASE_OWNER
from pykcl.model.shard import HashRange, Shard, gaps

_MULTIPLIER = 0x5DEECE66D
_STATE = 2**48 - 1
_INT = 2**31


class JavaRandom:
    """java.util.Random with a seed. `seed`: any integer; Java's are of 64 bits."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _MULTIPLIER) & _STATE

    def next_int(self, bound: int) -> int:
        """nextInt(bound): 0 <= answer < bound. Raises ValueError unless 0 < bound < 2^31."""
        if not 0 < bound < _INT:
            raise ValueError(f"the bound of a Java int is 1 to 2^31-1, not {bound}")
        if bound & (bound - 1) == 0:
            return (bound * self._next()) >> 31
        while True:
            bits = self._next()
            answer = bits % bound
            # The last run of numbers below 2^31 is cut short: Java throws it away, noticing that this int overflows.
            if bits - answer + bound - 1 < _INT:
                return answer

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Collections.shuffle(items, this), in place."""
        for size in range(len(items), 1, -1):
            chosen = self.next_int(size)
            items[size - 1], items[chosen] = items[chosen], items[size - 1]

    def _next(self) -> int:
        self._state = (self._state * _MULTIPLIER + 0xB) & _STATE
        return self._state >> 17


_SEED = 1947


def owners_of(rows: Iterable[Row]) -> set[str]:
    """The owners Java would count: of every row it takes for a lease, whatever stream, checkpoint or age it has.

    rows: a whole scan, nothing left out. The owner of an unreadable row counts, for Java reads many that pykcl does not
    believe (a name that is too long, no checkpoint); where it cannot either, Java 2.x has no answer at all. An owner
    that is empty text is one of Java's workers, too; one of type NULL is none.
    """
    return {owner for row in rows if (owner := _owner_in(row)) is not None}


def leader(owners: Iterable[str]) -> str | None:
    """The worker identifier of the leader; None where nobody owns anything: then everybody leads.

    owners: in any order, repeated or not.
    """
    names = sorted(set(owners), key=_as_java_compares)
    JavaRandom(_SEED).shuffle(names)
    return names[0] if names else None


def is_leader(worker: str, owners: Iterable[str]) -> bool:
    """Return whether Java's rule elects this worker, alone or with everybody else."""
    return leader(owners) in (None, worker)


def _owner_in(row: Row) -> str | None:
    if isinstance(row, ForeignRow):
        return None
    if isinstance(row, Lease) and row.extra.get(LEASE_OWNER) == {"S": ""}:
        return ""
    return row.owner


def _as_java_compares(name: str) -> bytes:
    """String.compareTo goes by UTF-16 code units, so what lies beyond the BMP comes before U+E000.

    A lone surrogate, which JSON can carry, is a code unit like any other.
    """
    return name.encode("utf-16-be", "surrogatepass")


FIRST_AUDIT_AFTER = 60.0
"""Seconds, unless audits come sooner than that; Java: the same."""
CONFIRMATIONS = 3
"""Java: `leasesRecoveryAuditorInconsistencyConfidenceThreshold`. While a shard ends, its keys may seem to be nobody's:
an eventually consistent scan shows the end of the parent and not yet the rows of the children."""


@dataclass(frozen=True, slots=True)
class UncoveredHashRange:
    """Hash keys of no lease that has not ended, found by several audits in a row.

    audits: how many in a row have found each of its keys without a lease.

    shards: the open shards that take these keys, as far as they are listed, sorted: what an operator has to check.
    """

    hole: HashRange
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
    """The findings of one audit.

    holes: every one, confirmed or not, in the order of their keys. confirmed: of these, each that was not reported
    before. closed: reported before, and each of its keys has a lease again.
    must_sync: whether the shards are to be listed at once: there are no leases, or a confirmed hole is open.
    fills: by key. unplaced: keys of leases with a range that neither their row nor the listing has, sorted; what
    they cover seems to be a hole (Java: the same).
    """

    holes: tuple[HashRange, ...] = ()
    confirmed: tuple[UncoveredHashRange, ...] = ()
    closed: tuple[HashRange, ...] = ()
    must_sync: bool = False
    fills: tuple[HashRangeFill, ...] = ()
    unplaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """The state of the audits so far.

    audits_of: for each hole of the last one, how many in a row have found it; a hole that shrinks goes on, each of its
    keys was in it before, and one that grows begins anew (Java: both begin anew). reported: confirmed holes some keys
    of which were still without a lease.
    """

    confirmations: int = CONFIRMATIONS
    audits_of: Mapping[HashRange, int] = field(default_factory=dict)
    reported: frozenset[HashRange] = frozenset()

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
        holes = gaps(_ranges(leases, shards))
        audits_of = {hole: 1 + self._audits_before(hole) for hole in holes}
        sure = [hole for hole in holes if audits_of[hole] >= self.confirmations]
        closed = {hole for hole in self.reported if not any(hole.overlaps(other) for other in holes)}
        new = [hole for hole in sure if not any(before.contains(hole) for before in self.reported)]
        findings = Findings(
            holes=tuple(holes),
            confirmed=tuple(UncoveredHashRange(hole, audits_of[hole], _taking(hole, shards)) for hole in new),
            closed=tuple(sorted(closed)),
            must_sync=bool(sure),
            fills=fills,
            unplaced=unplaced,
        )
        return Audit(self.confirmations, audits_of, (self.reported - closed) | set(new)), findings

    def unreported(self) -> Audit:
        """The same, but nobody has heard of any hole. For a worker that audits without leading: it knows what it has
        confirmed, and reports it with its first audit as the leader.
        """
        return replace(self, reported=frozenset())

    def _audits_before(self, hole: HashRange) -> int:
        return max((times for before, times in self.audits_of.items() if before.contains(hole)), default=0)


def _ranges(leases: Mapping[str, Lease], shards: Mapping[str, Shard]) -> list[HashRange]:
    """Hash ranges of the leases that have not ended. Where the listing and the row differ, Kinesis knows better."""
    open_leases = (lease for lease in leases.values() if not lease.is_ended)
    ranges = (_listed_range(lease.key, shards) or lease.hash_range for lease in open_leases)
    return [keys for keys in ranges if keys is not None]


def _without_range(
    leases: Mapping[str, Lease], shards: Mapping[str, Shard]
) -> tuple[tuple[HashRangeFill, ...], tuple[str, ...]]:
    """Return what can be filled in, and the keys of what cannot; ended leases need no range (Java: the same)."""
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
    shard = shards.get(key)
    return None if shard is None else shard.hash_range


def _taking(hole: HashRange, shards: Mapping[str, Shard]) -> tuple[str, ...]:
    found = []
    for key in sorted(shards):
        keys = _listed_range(key, shards)
        if keys is None or not shards[key].is_open:
            continue
        if hole.overlaps(keys):
            found.append(key)
    return tuple(found)
