"""What the rows of a lease table say to somebody who wants to leave Java: who is there, and whether one may join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pykcl.compat.migrate.findings import Finding
from pykcl.model.lease import ForeignRow, JavaState, Lease, Row, UnreadableRow
from pykcl.planning.fleet_protocol import Fleet, FleetKind, sense_fleet

_KINDS = {
    "WORKER_METRIC_STATS": "metrics of a KCL 3.x worker",
    "LEADER": "leader lock of KCL 3.x",
    "CLIENT_VERSION_MIGRATION": "KCL 3.x's state of its migration",
}


@dataclass(frozen=True, slots=True)
class TableLook:
    """One look at a table. rows: a whole scan; None: there was none, and why_not says why, in a sentence."""

    name: str
    rows: tuple[Row, ...] | None = None
    state: JavaState = field(default_factory=JavaState)
    why_not: str = ""

    @property
    def fleet(self) -> Fleet | None:
        if self.rows is None:
            return None
        # Of one scan alone nobody can tell who is dead: whoever owns a lease counts.
        return sense_fleet(self.rows, worker="", state=self.state)

    @property
    def is_native(self) -> bool:
        fleet = self.fleet
        return fleet is not None and fleet.kind is FleetKind.JAVA_3X_NATIVE


def table_findings(look: TableLook) -> list[Finding]:
    """What the rows tell; that nobody could look, where that is so."""
    fleet = look.fleet
    if look.rows is None or fleet is None:
        return [
            Finding(
                "look",
                f"table {look.name} was not read",
                f"{look.why_not} So nothing is known of the fleet: whether it is KCL 2.x or 3.x, and whether it "
                "may be joined. Run this again where the table can be reached, before anything else.",
            )
        ]
    return [*_whether_to_join(look, fleet), *_who(fleet), *_rows(look.rows)]


def _whether_to_join(look: TableLook, fleet: Fleet) -> Iterator[Finding]:
    if fleet.kind is FleetKind.JAVA_3X_NATIVE:
        yield Finding(
            "must",
            "the fleet is KCL 3.x in its own mode",
            f"{fleet.why_native}. A leader gives the leases away by load there, and pykcl reports none: a worker "
            "of pykcl refuses to start (NativeFleet). There are two ways out, see the plan.",
        )
    elif fleet.kind is FleetKind.MULTI_STREAM:
        yield Finding(
            "must",
            "the table holds leases of several streams",
            "pykcl reads one stream for each application, and does not join such a table.",
        )
    elif not fleet.has_leases:
        yield Finding(
            "look",
            f"table {look.name} has no leases",
            "nobody has ever read the stream under this application, or it is another table, account or region. "
            "Workers would begin at `start`.",
        )


def _who(fleet: Fleet) -> Iterator[Finding]:
    evidence = "; ".join(fleet.evidence)
    yield Finding(
        "fine",
        f"owners of leases: {'nobody' if fleet.kind is FleetKind.ALONE else fleet.beside}",
        "as one look shows them: some may be dead."
        + (f" Of KCL 3.x there is: {evidence}." if evidence else " Nothing tells of KCL 3.x."),
    )


def _rows(rows: tuple[Row, ...]) -> Iterator[Finding]:
    leases = [row for row in rows if isinstance(row, Lease)]
    ended = sum(lease.is_ended for lease in leases)
    begun = sum(not lease.checkpoint.is_sentinel for lease in leases)
    free = sum(lease.owner is None and not lease.is_ended for lease in leases)
    yield Finding(
        "fine",
        f"{len(leases)} leases",
        f"{begun} with a checkpoint inside the shard, {ended} ended, {free} that nobody owns. They stay as they "
        "are, and pykcl goes on from them.",
    )
    others = Counter(_KINDS.get(row.kind, row.kind) for row in rows if isinstance(row, ForeignRow))
    if others:
        told = ", ".join(f"{kind}: {count}" for kind, count in sorted(others.items()))
        yield Finding("fine", "rows that are no leases", f"{told}. They are left alone.")
    for row in rows:
        if isinstance(row, UnreadableRow):
            yield Finding(
                "look",
                f"row {row.key!r} cannot be read",
                f"{row.problem}. It is left alone, and its shard with it.",
            )
