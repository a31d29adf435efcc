"""Findings of a migration from Java: in a .properties file, and in the rows of a lease table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pykcl.compat.multilang.command import Unfit
from pykcl.compat.properties import Interpretation
from pykcl.compat.properties.interpretation import TIME_OF_1X
from pykcl.compat.properties.parsing import POLLING_NOTICE, capital, retrieval_of
from pykcl.model.lease import ForeignRow, JavaState, Lease, Row, UnreadableRow
from pykcl.planning.fleet_protocol import Fleet, FleetKind, sense_fleet
from pykcl.planning.membership import why_not_to_follow
from pykcl.planning.read_schedule import BUSY_INTERVAL, QUIET_INTERVAL

Weight = Literal["must", "changes", "review", "can go", "fine"]
"""must: to be changed before anything runs. changes: works, but behaves differently from Java. review: a person has to
decide. can go: no longer needed. fine: for information."""

WEIGHTS: tuple[Weight, ...] = ("must", "changes", "review", "can go", "fine")


@dataclass(frozen=True, slots=True)
class Finding:
    """what: a few words. text: consequences, and what to do. file, lines: place; lines may be empty."""

    weight: Weight
    what: str
    text: str
    file: str = ""
    lines: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """Place such as "app.py:7, 12"; "" without a file."""
        lines = ", ".join(map(str, self.lines))
        return f"{self.file}:{lines}" if lines else self.file


# -- the properties --------------------------------------------------------------------------------------------


def properties_findings(
    properties: Mapping[str, str],
    found: Interpretation,
    *,
    in_process: bool = True,
    unfit: Unfit | None = None,
) -> list[Finding]:
    """Return the findings, the heaviest first. properties: of `read_properties`, so that findings have line numbers.
    in_process: the program runs by --kclpy, not in children. unfit: reason why a child cannot start on this host."""
    found_here = [
        *_fanout(properties),
        *_honoured(properties, found),
        *_running(properties, found, in_process),
        *_unstarted(properties, unfit),
        *_unknown(properties, found),
    ]
    return sorted(found_here, key=lambda finding: WEIGHTS.index(finding.weight))


def _at(properties: Mapping[str, str], *keys: str) -> tuple[str, tuple[int, ...]]:
    lines: Mapping[str, int] = getattr(properties, "lines", {})
    found = tuple(sorted(lines[key] for key in keys if key in lines))
    return (getattr(properties, "source", "the properties"), found) if found else ("", ())


def _fanout(properties: Mapping[str, str]) -> Iterator[Finding]:
    """Report that Java reads by enhanced fan-out, which is its default."""
    reading = retrieval_of(properties)
    if not reading.java_uses_fanout:
        return
    place = _at(properties, "retrievalMode", "RetrievalMode")
    if not reading.pushes:
        text = POLLING_NOTICE.format(why=reading.why)
        yield Finding("changes", "enhanced fan-out becomes polling", text, *place)
        return
    text = (
        f"{reading.notice} pykcl uses Java's consumer. `pip install 'pykcl[fanout]'` lets records come over HTTP/2; "
        "over HTTP/1.1 each shard takes a thread and a connection."
    )
    yield Finding("fine", "enhanced fan-out stays", text, *place)


def _honoured(properties: Mapping[str, str], found: Interpretation) -> Iterator[Finding]:
    """Report keys that Java silently ignores, and pykcl honours."""
    if found.config.cleanup_interval == 0:
        yield Finding(
            "changes",
            "leases of ended shards are kept",
            "cleanupLeasesUponShardCompletion=false is honoured; Java ignores false and deletes them. Delete the line "
            "to keep Java's behaviour.",
            *_at(properties, "cleanupLeasesUponShardCompletion"),
        )
    if found.config.stream_arn is not None:
        yield Finding(
            "changes",
            "the whole streamArn is used",
            "Java uses only its stream name, and reads that stream in its own account and region; pykcl reads the "
            f"stream of the ARN, in {found.config.effective_region}.",
            *_at(properties, "streamArn"),
        )
    if properties.get(TIME_OF_1X, "").strip():
        yield Finding(
            "changes",
            f"{TIME_OF_1X} is read",
            "KCL 1.x reads it, and the daemons of KCL 2 and 3 ignore it: they start an application without leases at "
            "initialPositionInStream, by default at LATEST. pykcl starts it at that time.",
            *_at(properties, TIME_OF_1X),
        )
    capital = [row for row in found.verdicts if row.key == "RetrievalMode" and row.verdict == "mapped"]
    if capital:
        yield Finding(
            "changes",
            "RetrievalMode is read",
            "Java's own log recommends this spelling, but Java ignores it.",
            *_at(properties, "RetrievalMode"),
        )


def _running(properties: Mapping[str, str], found: Interpretation, in_process: bool) -> Iterator[Finding]:
    """Report differences that no key decides, or an absent one."""
    yield from _in_process(properties, found) if in_process else _children(properties)
    if not int(properties.get("shutdownGraceMillis", "").strip() or 0):
        yield Finding(
            "changes",
            "a stop waits",
            "Java's default is 0: SIGTERM does not wait for shutdown_requested. pykcl waits up to "
            f"{found.config.shutdown_grace:g} s for it, and releases its leases. A checkpoint is written only if that "
            "method writes one. Give the process a longer time to stop in your platform.",
        )
    reading = retrieval_of(properties)
    if found.config.idle_time_between_reads is None and not reading.pushes:
        pushed = reading.java_uses_fanout
        yield Finding(
            "changes",
            "shards are polled at adaptive intervals" if pushed else "shards are polled at other intervals",
            ("pykcl polls" if pushed else "Java polls every 1.5 s; pykcl")
            + f" every {QUIET_INTERVAL:g} s while no records arrive, every {BUSY_INTERVAL:g} s while records arrive, "
            "and five times a second while it lags behind. If other applications read the stream, too, set "
            "idleTimeBetweenReadsInMillis.",
        )
    if found.config.metrics_sinks:
        yield Finding(
            "changes",
            "CloudWatch metrics count samples differently",
            "Names, dimensions, namespace and sums are those of KCL, so alarms on them keep working. Java adds a "
            "sample of 0 to each RecordsProcessed and DataBytesProcessed: SampleCount and Average of these two change.",
            *_at(properties, "metricsLevel"),
        )


def _in_process(properties: Mapping[str, str], found: Interpretation) -> Iterator[Finding]:
    yield Finding(
        "changes",
        "a batch whose processor raises is delivered again",
        "Java skips it: the next checkpoint covers records that were never processed. pykcl delivers it again, with "
        f"growing pauses, for {found.config.retry_timeout:g} s, then releases the lease to another worker. "
        "`--on-error skip` restores Java's behaviour.",
    )
    yield Finding(
        "changes",
        "an exception in initialize is a failure",
        "in Java it is reported as success, and records are delivered to a half-initialized object; here initialize is "
        "called again, with pauses, before any record.",
    )
    if found.config.processor_timeout is not None:
        yield Finding(
            "changes",
            "a call that takes too long costs its shard only",
            "in Java timeoutInSeconds stops the whole worker; here the lease is released, and another worker continues "
            "at the checkpoint.",
            *_at(properties, "timeoutInSeconds"),
        )


def _children(properties: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding(
        "changes",
        "a child that dies, hangs or answers nonsense costs its shard only",
        "in Java it ends the whole daemon; here a new child starts at the last checkpoint, after a pause. A child that "
        "hangs is ended only with timeoutInSeconds: without it its shard waits for ever, as in Java. "
        "`--exit-on-child-failure` restores Java's behaviour.",
        *_at(properties, "timeoutInSeconds"),
    )
    yield Finding(
        "changes",
        "what a child prints goes to the log",
        "under the name of its shard; in Java a line that resembled the protocol broke it. amazon_kclpy in the child "
        "still swallows exceptions: those batches are skipped, as in Java.",
    )


def _unstarted(properties: Mapping[str, str], unfit: Unfit | None) -> Iterator[Finding]:
    if unfit is not None:
        yield Finding(
            "review",
            "executableName cannot be started on this host",
            "if that is also true on the host that is to run the children, `pykcl multilangd` refuses the file there. "
            f"executableName{unfit.what}. Do there: {unfit.do}. Check with `pykcl doctor -p` on that host.",
            *_at(properties, "executableName"),
        )


def _unknown(properties: Mapping[str, str], found: Interpretation) -> Iterator[Finding]:
    """Report keys that nothing reads, and values that nothing replaces."""
    for row in found.verdicts:
        if row.literal:
            yield Finding(
                "review",
                f"{row.key} is taken as it stands",
                capital(row.literal) + ".",
                *_at(properties, row.key),
            )
        if row.verdict == "unknown":
            yield Finding(
                "review",
                f"{row.key} is not a key",
                capital(row.text),
                *_at(properties, row.key),
            )


# -- the lease table -------------------------------------------------------------------------------------------

_KINDS = {
    "WORKER_METRIC_STATS": "metrics of a KCL 3.x worker",
    "LEADER": "leader lock of KCL 3.x",
    "CLIENT_VERSION_MIGRATION": "migration state of KCL 3.x",
    "TABLE_MIGRATION": "move of KCL 3.5 into one table",
}


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Snapshot of a table. rows: of a full scan; None without one, and why_not gives the reason as a sentence."""

    name: str
    rows: tuple[Row, ...] | None = None
    state: JavaState = field(default_factory=JavaState)
    why_not: str = ""

    @property
    def fleet(self) -> Fleet | None:
        if self.rows is None:
            return None
        # One scan does not show who is dead: every owner of a lease counts.
        return sense_fleet(self.rows, worker="", state=self.state)

    @property
    def is_native(self) -> bool:
        fleet = self.fleet
        return fleet is not None and fleet.kind is FleetKind.JAVA_3X_NATIVE

    @property
    def why_not_to_follow(self) -> str:
        """The reason for which pykcl cannot join a fleet of KCL 3.x in its own mode; "" if it can."""
        fleet = self.fleet
        if fleet is None or not self.is_native:
            return ""
        index = self.state.has_owner_index
        return why_not_to_follow(fleet, "auto", self.rows or (), has_owner_index=index)


def table_findings(snapshot: TableSnapshot) -> list[Finding]:
    """Return the findings in the rows, or the reason why they were not read."""
    fleet = snapshot.fleet
    if snapshot.rows is None or fleet is None:
        return [
            Finding(
                "review",
                f"table {snapshot.name} was not read",
                f"{snapshot.why_not} So it is unknown if the fleet is KCL 2.x or 3.x, and if pykcl may join it. Run "
                "this again from a host with access to the table before anything else.",
            )
        ]
    return [*_obstacles(snapshot, fleet), *_owners(fleet), *_rows(snapshot.rows)]


def _obstacles(snapshot: TableSnapshot, fleet: Fleet) -> Iterator[Finding]:
    why_not = snapshot.why_not_to_follow
    if why_not:
        yield Finding(
            "must",
            "pykcl cannot join this fleet of KCL 3.x as it is",
            f"{fleet.why_native}, and {why_not}. A pykcl worker would refuse to start (`pykcl explain E06`). Run this "
            "again once that is over.",
        )
    if fleet.kind is FleetKind.JAVA_3X_NATIVE:
        yield Finding(
            "review",
            "the fleet is KCL 3.x in its own mode",
            f"{fleet.why_native}. Its leader assigns the leases, and pykcl workers follow it (`fleet_mode`). When no "
            "Java worker is left, a pykcl worker leads: at once with the option leader=equal, else after some minutes.",
        )
    elif fleet.kind is FleetKind.MULTI_STREAM:
        yield Finding(
            "must",
            "the table holds leases of several streams",
            "pykcl reads one stream for each application, and does not join such a table.",
        )
    elif not fleet.has_leases:
        yield Finding(
            "review",
            f"table {snapshot.name} has no leases",
            "no worker has ever read the stream under this application, or this is the wrong table, account or region. "
            "Workers would start at `initial_position`.",
        )


def _owners(fleet: Fleet) -> Iterator[Finding]:
    evidence = "; ".join(fleet.evidence)
    yield Finding(
        "fine",
        f"owners of leases: {'none' if fleet.kind is FleetKind.ALONE else fleet.beside}",
        "as of one scan: some may be dead."
        + (f" Evidence of KCL 3.x: {evidence}." if evidence else " No evidence of KCL 3.x."),
    )


def _rows(rows: tuple[Row, ...]) -> Iterator[Finding]:
    leases = [row for row in rows if isinstance(row, Lease)]
    ended = sum(lease.is_ended for lease in leases)
    started = sum(not lease.checkpoint.is_sentinel for lease in leases)
    free = sum(lease.owner is None and not lease.is_ended for lease in leases)
    yield Finding(
        "fine",
        f"{len(leases)} leases",
        f"{started} with a checkpoint inside the shard, {ended} ended, {free} without an owner. They are not changed, "
        "and pykcl continues from them.",
    )
    others = Counter(_KINDS.get(row.kind, row.kind) for row in rows if isinstance(row, ForeignRow))
    if others:
        kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted(others.items()))
        yield Finding("fine", "rows that are not leases", f"{kinds}. They are not changed.")
    for row in rows:
        if isinstance(row, UnreadableRow):
            yield Finding(
                "review",
                f"row {row.key!r} cannot be read",
                f"{row.problem}. The row is not changed, and its shard is not read.",
            )
