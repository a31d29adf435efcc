"""Findings of a migration from Java: in a .properties file, and in the rows of a lease table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pykcl.compat.multilang.command import Unfit
from pykcl.compat.properties import Interpretation
from pykcl.compat.properties.parsing import FANOUT_NOTICE, retrieval_of
from pykcl.model.lease import ForeignRow, JavaState, Lease, Row, UnreadableRow
from pykcl.planning.fleet_protocol import Fleet, FleetKind, sense_fleet
from pykcl.planning.read_schedule import BUSY_INTERVAL, QUIET_INTERVAL

Weight = Literal["must", "changes", "look", "can go", "fine"]
"""must: it does not work before this is done. changes: it works, and otherwise than under Java. look: a person has to
judge. can go: it is of no use any more. fine: told because people ask."""

WEIGHTS: tuple[Weight, ...] = ("must", "changes", "look", "can go", "fine")


@dataclass(frozen=True, slots=True)
class Finding:
    """what: a few words. text: what it means, and what to do. file, lines: where; lines may be none."""

    weight: Weight
    what: str
    text: str
    file: str = ""
    lines: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """Such as "app.py:7, 12"; "" where it is nowhere in particular."""
        lines = ", ".join(map(str, self.lines))
        return f"{self.file}:{lines}" if lines else self.file


def properties_findings(
    properties: Mapping[str, str],
    found: Interpretation,
    *,
    in_process: bool = True,
    unfit: Unfit | None = None,
) -> list[Finding]:
    """properties: best those of `read_properties`, which know their lines. in_process: whether the program is run by
    --kclpy, and not by children. unfit: what keeps a child from being started on this host. The heaviest first."""
    said = [
        *_fanout(properties),
        *_honoured(properties, found),
        *_running(properties, found, in_process),
        *_unstarted(properties, unfit),
        *_unknown(properties, found),
    ]
    return sorted(said, key=lambda finding: WEIGHTS.index(finding.weight))


def _at(properties: Mapping[str, str], *keys: str) -> tuple[str, tuple[int, ...]]:
    lines: Mapping[str, int] = getattr(properties, "lines", {})
    found = tuple(sorted(lines[key] for key in keys if key in lines))
    return (getattr(properties, "source", "the properties"), found) if found else ("", ())


def _fanout(properties: Mapping[str, str]) -> Iterator[Finding]:
    """What Java reads by without being told is enhanced fan-out."""
    reading = retrieval_of(properties)
    if not reading.java_uses_fanout:
        return
    why = "retrievalMode=FANOUT" if reading.mode == "FANOUT" else "its default, as no polling key is set"
    yield Finding(
        "changes",
        "enhanced fan-out becomes polling",
        reading.notice or FANOUT_NOTICE.format(why=why),
        *_at(properties, "retrievalMode", "RetrievalMode"),
    )


def _honoured(properties: Mapping[str, str], found: Interpretation) -> Iterator[Finding]:
    """Keys that Java ignores, silently, and pykcl does not."""
    if found.config.cleanup_interval == 0:
        yield Finding(
            "changes",
            "leases of ended shards are kept",
            "cleanupLeasesUponShardCompletion=false is honoured; Java ignores false, and deletes them. Drop the "
            "line to have it as it was.",
            *_at(properties, "cleanupLeasesUponShardCompletion"),
        )
    if found.config.stream_arn is not None:
        yield Finding(
            "changes",
            "the whole streamArn counts",
            "Java takes the name out of it and reads the stream of that name in its own account and region; "
            f"pykcl reads the one it names, in {found.config.effective_region}.",
            *_at(properties, "streamArn"),
        )
    capital = [row for row in found.verdicts if row.key == "RetrievalMode" and row.verdict == "mapped"]
    if capital:
        yield Finding(
            "changes",
            "RetrievalMode is read",
            "Java's own log tells people to write it so, and then ignores it.",
            *_at(properties, "RetrievalMode"),
        )


def _running(properties: Mapping[str, str], found: Interpretation, in_process: bool) -> Iterator[Finding]:
    """What the file does not decide, or decides by leaving a key out."""
    yield from _in_process(properties, found) if in_process else _children(properties)
    if not int(properties.get("shutdownGraceMillis", "").strip() or 0):
        yield Finding(
            "changes",
            "a stop waits",
            f"Java's default is 0: SIGTERM does not wait for shutdown_requested. pykcl waits up to "
            f"{found.config.shutdown_grace:g} s for it, and releases its leases. A checkpoint is written only where "
            "that method writes one. Let the platform wait longer.",
        )
    if found.config.idle_time_between_reads is None:
        pushed = retrieval_of(properties).java_uses_fanout
        yield Finding(
            "changes",
            "shards are polled at a pace of pykcl's own" if pushed else "shards are polled at another pace",
            ("reads come" if pushed else "Java polls every 1.5 s; pykcl")
            + f" every {QUIET_INTERVAL:g} s where nothing comes, every {BUSY_INTERVAL:g} s where records "
            "do, five times a second where it is behind. If other applications read the stream, too, write "
            "idleTimeBetweenReadsInMillis.",
        )
    if found.config.metrics_sinks:
        yield Finding(
            "changes",
            "CloudWatch metrics count their samples otherwise",
            "Names, dimensions, namespace and sums are KCL's, so alarms on them go on. Java adds a sample of 0 to each "
            "RecordsProcessed and DataBytesProcessed: what looks at SampleCount or Average of those two changes.",
            *_at(properties, "metricsLevel"),
        )


def _in_process(properties: Mapping[str, str], found: Interpretation) -> Iterator[Finding]:
    yield Finding(
        "changes",
        "a batch whose processor raises comes again",
        "Java passes over it: the next checkpoint covers records that nobody processed. pykcl delivers it again, with "
        f"growing pauses, for {found.config.retry_timeout:g} s, then hands the shard to another worker. "
        "`--on-error skip` is Java's way, by name.",
    )
    yield Finding(
        "changes",
        "an exception in initialize counts",
        "under Java it is reported as success, and records are delivered to an object that is half made; here it is "
        "called again, with pauses, before any record.",
    )
    if found.config.processor_timeout is not None:
        yield Finding(
            "changes",
            "a call that takes too long costs its shard only",
            "under Java timeoutInSeconds ends the whole worker; here the lease is given up, and another worker goes on "
            "at the checkpoint.",
            *_at(properties, "timeoutInSeconds"),
        )


def _children(properties: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding(
        "changes",
        "a child that dies, hangs or answers nonsense costs its shard only",
        "under Java it ends the whole daemon; here a new child begins at the last checkpoint, after a pause. "
        "One that hangs does so only with timeoutInSeconds: without it that shard waits for ever, as under Java. "
        "`--exit-on-child-failure` is Java's way.",
        *_at(properties, "timeoutInSeconds"),
    )
    yield Finding(
        "changes",
        "what a child prints goes to the log",
        "under the name of its shard; under Java a line that looked like the protocol broke it. Exceptions that "
        "amazon_kclpy swallows in the child are swallowed there still: those batches are passed over, as under Java.",
    )


def _unstarted(properties: Mapping[str, str], unfit: Unfit | None) -> Iterator[Finding]:
    if unfit is not None:
        yield Finding(
            "look",
            "executableName cannot be started on this host",
            "where it is so on the host that is to run the children, `pykcl multilangd` refuses the file there. "
            f"executableName{unfit.what}. There: {unfit.do}. `pykcl doctor -p` tells, when it is asked on that host.",
            *_at(properties, "executableName"),
        )


def _unknown(properties: Mapping[str, str], found: Interpretation) -> Iterator[Finding]:
    for row in found.verdicts:
        if row.verdict == "unknown":
            yield Finding(
                "look", f"{row.key} is no key", row.text[0].upper() + row.text[1:], *_at(properties, row.key)
            )


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
            "Workers would begin at `initial_position`.",
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
