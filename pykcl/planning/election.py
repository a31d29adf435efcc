"""Who leads a fleet by the rule of Java KCL 2.x: everybody works it out alone, from the owners in the lease table.

Java: `coordinator/DeterministicShuffleShardSyncLeaderDecider.java` (2.7.2, 3.1.3 and 3.5.1 decide alike; 3.x only
while it is compatible with 2.x, its own leaders hold a lock). What a leader is for: `auditor`.

Java counts whoever owns a row, so it elects pykcl workers, dead workers and workers of other libraries. Nobody asks the
elected one whether it lives, or does anything. A dead leader is replaced once its leases are taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykcl.model.lease import ForeignRow, Lease, Row
from pykcl.model.lease_parse import LEASE_OWNER
from pykcl.planning.java_random import JavaRandom

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
    """Whether Java's rule elects this worker, alone or with everybody else."""
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
