"""The fleet by the rows of its lease table: its workers, and the protocol they use.

What is evidence, and of what (Java KCL 3.5.1 unless said otherwise):

* **The client version** (`cv` of the row `Migration3.0`) is the protocol itself: every Java 3.x worker works by it,
  whatever its own configuration says (`coordinator/migration/ClientVersion.java`,
  `MigrationClientVersionStateInitializer.java`). 3X and 3X_WITH_ROLLBACK are native: a leader assigns the leases.
  INIT, UPGRADE_FROM_2X and 2X are the protocol of 2.x. It stays native when all Java workers have gone, for those
  that come back follow it; so it is believed at any age. 3.5 keeps it in the lease table when it upgrades from 2.x or
  starts anew, 3.0-3.4 in a table of its own; where the lease table has the row, that one counts. A client version
  nobody here has heard of is later than 3X, and counts as native.
* **The leader lock** (row `Leader`) is taken in native mode only (`leader/MigrationAdaptiveLeaderDecider.java`).
  After a way back it may be left over, so it counts only where no client version is known.
* **A hand-off that begins** while somebody scans (`checkpointOwner` appears on a lease, and its counter has moved) is
  the work of a native leader (`LeaseAssignmentManager.java`), and counts likewise. One that merely stands there may
  be left over: a take by 2.x does not remove it.
* **No evidence of native mode**: the index of owners, the metrics of workers, `throughputKBps` on leases. 3.x has
  them from the first day of its upgrade from 2.x, and 2.x keeps what it finds on a row. They, and `entityType` LEASE
  on a lease (created by 3.5 or later), show that 3.x is here or has been; never which of the owners it is, apart from
  the metrics, whose key is the worker identifier.
* **The private attribute of pykcl** distinguishes its workers from others, if it names the owner of the row. Whoever is
  not pykcl counts as Java; another library that keeps Java's rows cannot be distinguished from it.
* **Leases of several streams** have keys with an account, a stream and a time in them (multi-stream mode).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum

from pykcl.model.lease import ForeignRow, JavaState, Lease, Row
from pykcl.model.lease_item import LEADER_KIND, METRICS_KIND, MIGRATION_KIND, OWNER_INDEX

NATIVE_VERSIONS = frozenset({"CLIENT_VERSION_3X", "CLIENT_VERSION_3X_WITH_ROLLBACK"})
COMPATIBLE_VERSIONS = frozenset(
    {"CLIENT_VERSION_INIT", "CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_2X"}
)
MULTI_STREAM_LEASE = "multi-stream lease"
_STATE_TABLE = "the state table of KCL 3.0-3.4"


class FleetKind(Enum):
    """The kind of fleet that a worker has joined. The values are for people."""

    ALONE = "nobody else"
    PYKCL = "pykcl only"
    JAVA_2X = "Java KCL 2.x"
    JAVA_3X_COMPATIBLE = "Java KCL 3.x, compatible with 2.x"
    JAVA_3X_NATIVE = "Java KCL 3.x, native"
    MULTI_STREAM = "several streams in one table"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The other workers of one table, as one scan shows them.

    java, pykcl: worker identifiers, without one's own. java_3x: those of `java` whose metrics are in the lease table.
    client_version: where one is known. has_own_tables: it was found in a table of KCL 3.0-3.4, which then keeps metrics
    and lock in tables of their own, too. evidence: sentences for people. why_native: "" in any other
    kind. has_leases: whether there is any lease of a single stream.
    """

    kind: FleetKind
    java: frozenset[str] = frozenset()
    pykcl: frozenset[str] = frozenset()
    java_3x: frozenset[str] = frozenset()
    client_version: str | None = None
    has_own_tables: bool = False
    evidence: tuple[str, ...] = ()
    why_native: str = ""
    has_leases: bool = False

    @property
    def beside(self) -> str:
        """The others in a few words, such as "2 Java workers (KCL 2.x), 1 pykcl worker"."""
        versions = {
            FleetKind.JAVA_2X: " (KCL 2.x)",
            FleetKind.JAVA_3X_COMPATIBLE: " (KCL 3.x in the mode of 2.x, or 2.x beside it)",
            FleetKind.JAVA_3X_NATIVE: " (KCL 3.x, native)",
        }
        parts = []
        if self.java:
            parts.append(_count(len(self.java), "Java worker") + versions.get(self.kind, ""))
        if self.pykcl:
            parts.append(_count(len(self.pykcl), "pykcl worker"))
        return ", ".join(parts) or "nobody else"


def sense_fleet(
    rows: Iterable[Row],
    *,
    worker: str,
    state: JavaState,
    dead: Set[str] = frozenset(),
    handing_off: bool = False,
) -> Fleet:
    """The fleet as one scan shows it.

    rows: a whole scan, nothing left out. worker: one's own identifier. dead: owners who are known to be silent for
    longer than the failover time. handing_off: whether a hand-off was seen to begin.
    """
    leases: list[Lease] = []
    foreign: list[ForeignRow] = []
    for row in rows:
        if isinstance(row, Lease):
            leases.append(row)
        elif isinstance(row, ForeignRow):
            foreign.append(row)
    owners = _owners(leases) - dead - {worker}
    pykcl = owners & {lease.actual_owner for lease in leases if is_of_pykcl(lease)}
    java = owners - pykcl
    measured = {row.key for row in foreign if row.kind == METRICS_KIND}
    version, where = _client_version(foreign, state)
    traces = _traces(leases, foreign, state, len(measured))
    why_native = _why_native(version, where, foreign, handing_off)
    evidence = [f"{version} in {where}"] if version is not None else []
    streams = sum(row.kind == MULTI_STREAM_LEASE for row in foreign)
    if streams:
        evidence.append(_count(streams, "lease") + " of several streams")
    if state.unread and (traces or java):
        evidence.append(f"state table of KCL 3.0-3.4 not read: {state.unread}")
    return Fleet(
        kind=_kind(bool(why_native), bool(streams), java, pykcl, is_3x=bool(traces) or version is not None),
        java=java,
        pykcl=pykcl,
        java_3x=frozenset(java & measured),
        client_version=version,
        has_own_tables=where == _STATE_TABLE,
        evidence=(*evidence, *traces),
        why_native=why_native,
        has_leases=bool(leases),
    )


def _kind(native: bool, multi: bool, java: Set[str], pykcl: Set[str], *, is_3x: bool) -> FleetKind:
    if native:
        return FleetKind.JAVA_3X_NATIVE
    if multi:
        return FleetKind.MULTI_STREAM
    if java:
        return FleetKind.JAVA_3X_COMPATIBLE if is_3x else FleetKind.JAVA_2X
    return FleetKind.PYKCL if pykcl else FleetKind.ALONE


def _owners(leases: Iterable[Lease]) -> frozenset[str]:
    """Owners; during a hand-off both the next owner and the one that still works."""
    both = ((lease.owner, lease.checkpoint_owner) for lease in leases)
    return frozenset(name for names in both for name in names if name is not None)


def is_of_pykcl(lease: Lease) -> bool:
    """Return whether a pykcl worker works on the lease; while it is handed over, whoever does so still."""
    worker = lease.actual_owner
    return worker is not None and lease.metadata is not None and lease.metadata.owner == worker


def _client_version(foreign: Iterable[ForeignRow], state: JavaState) -> tuple[str | None, str]:
    for row in foreign:
        if row.kind == MIGRATION_KIND and row.client_version is not None:
            return row.client_version, "the lease table"
    if state.migration is not None and state.migration.client_version is not None:
        return state.migration.client_version, _STATE_TABLE
    return None, ""


def _why_native(version: str | None, where: str, foreign: Iterable[ForeignRow], handing_off: bool) -> str:
    if version is not None:
        known = NATIVE_VERSIONS | COMPATIBLE_VERSIONS
        unheard = "" if version in known else ", which is later than the versions pykcl knows"
        return "" if version in COMPATIBLE_VERSIONS else f"{version} in {where}{unheard}"
    if any(row.kind == LEADER_KIND for row in foreign):
        return "a leader lock in the lease table, and no client version"
    return "a hand-off of a lease has begun, and there is no client version" if handing_off else ""


def _traces(leases: list[Lease], foreign: list[ForeignRow], state: JavaState, measured: int) -> list[str]:
    """Traces of KCL 3.x, in any mode."""
    # pykcl marks the rows it creates in the same way; a row it has ever written has its metadata.
    created = sum(lease.entity_type is not None and lease.metadata is None for lease in leases)
    renewed = sum(lease.throughput is not None for lease in leases)
    handed = sum(lease.checkpoint_owner is not None for lease in leases)
    found = [
        (created, _count(created, "lease") + " created by KCL 3.5 or later"),
        (renewed, _count(renewed, "lease") + " renewed by KCL 3.x"),
        (measured, "metrics of " + _count(measured, "KCL 3.x worker")),
        (handed, _count(handed, "lease") + " with a hand-off of KCL 3.x"),
        (any(row.kind == LEADER_KIND for row in foreign), "a leader lock of KCL 3.x"),
        (state.has_owner_index, f"the index {OWNER_INDEX} of KCL 3.x"),
    ]
    return [text for there, text in found if there]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
