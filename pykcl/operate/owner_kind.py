"""Whether an owner is a worker of pykcl, of Java, or nobody can tell. Pure.

**pykcl**: its private attribute (`pykcl`) on a lease names this very owner. Other libraries keep the attribute when
they take a lease, but then it names somebody else.

**Java**, on evidence only; each of these alone is enough:

* The table has a row of worker metrics with this worker identifier as its key. KCL 3.x writes one per worker
  (`worker/metricstats/WorkerMetricStats.java`); nobody else writes such rows.
* This owner has a lease at SHARD_END whose counter moved while it was watched: Java goes on renewing a lease that has
  ended until its row is deleted (`ShardConsumer`, `LeaseCleanupManager`, all 2.x and 3.x). pykcl removes the owner at
  the end of a shard, and so do the other libraries whose source was read.
* The identifier has the form of Java's default one (a UUID, with or without a host name and a colon in front) **and**
  this owner still stands on a lease at (SHARD_END, 0) that names its children: an ending as Java writes it. The form
  alone proves nothing, as anybody may call a worker so; nor does such an ending alone.

**unknown**: everything else. A Java worker with a name of its own and no ended lease is unknown, which is the truth. So
is a worker identifier for which evidence speaks both ways: two workers share it, or one was replaced by the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pykcl.model.lease import Lease
from pykcl.operate.table_view import TableView
from pykcl.planning.fleet_protocol import is_of_pykcl

Kind = Literal["pykcl", "Java", "unknown"]

_METRICS = "WORKER_METRIC_STATS"
_JAVA_FORM = re.compile(
    r"(?:[A-Za-z0-9._-]{1,255}:)?[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z"
)


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """why: what it was told by, for people."""

    kind: Kind
    why: str
    version: str | None = None


UNKNOWN_KIND = OwnerKind("unknown", "nothing in the table tells which library it is")


def owner_kinds(view: TableView, renewed_after_end: Collection[str] = ()) -> dict[str, OwnerKind]:
    """Worker identifier -> kind, of everybody who owns a lease. renewed_after_end: see `sampling.Observation`."""
    java = _java_workers(view, frozenset(renewed_after_end))
    pykcl = _pykcl_workers(view.leases)
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


def owners_of(view: TableView) -> set[str]:
    """During a hand-off both the next owner and the one who still works."""
    names = {name for lease in view.leases.values() for name in (lease.owner, lease.checkpoint_owner)}
    return {name for name in names if name is not None}


def has_javas_form(owner: str) -> bool:
    """Whether a worker identifier looks like Java's default one: a random UUID, or host:UUID."""
    return _JAVA_FORM.match(owner) is not None


def _pykcl_workers(leases: Mapping[str, Lease]) -> dict[str, str | None]:
    return {
        lease.owner: lease.metadata.version
        for lease in leases.values()
        if lease.owner is not None and lease.metadata is not None and is_of_pykcl(lease)
    }


def _java_workers(view: TableView, renewed: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    measured = {row.key for row in view.foreign if row.kind == _METRICS}
    for key, lease in view.leases.items():
        for owner in (lease.owner, lease.checkpoint_owner):
            if owner in measured and owner is not None:
                found[owner] = "KCL 3.x keeps its metrics in the table"
        if lease.owner is None or not lease.is_ended or lease.owner in found:
            continue
        if key in renewed:
            found[lease.owner] = "it goes on renewing a lease that has ended, as Java does"
        elif lease.checkpoint.sub_sequence_number == 0 and lease.children and has_javas_form(lease.owner):
            found[lease.owner] = "its name has Java's form, and it ended a shard as Java does"
    return found
