"""`pykcl leases`: list and describe the leases of a fleet, release one, and prune the table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.console import print_notice, say
from pykcl.cli.errors import ExitCode
from pykcl.cli.options import Duration, VerbGroup
from pykcl.cli.output import (
    Colour,
    Column,
    Format,
    Section,
    format_option,
    json_text,
    print_wait,
    render,
    repeat,
    show,
    watch_option,
)
from pykcl.cli.target import Target, complete_shards, fleet_options
from pykcl.errors import PyKclError, printable
from pykcl.model.lease import Lease
from pykcl.model.lease_item import LEADER_KIND, METRICS_KIND, MIGRATION_KIND
from pykcl.model.shard import short_shard
from pykcl.operate.fleet import (
    FleetOverview,
    Standing,
    fleet_of,
    leader_text,
    metric_text,
    plain,
    throughput_of,
)
from pykcl.operate.hints import hints_of
from pykcl.operate.snapshot import Observation, Sampler, TableSnapshot, known_failover
from pykcl.operate.states import (
    NO_MARKS,
    LeaseState,
    LeaseStatus,
    Marks,
    OwnerKind,
    counts,
    marks_among,
    owner_kinds,
    states_of,
)
from pykcl.operate.unleased import Unleased
from pykcl.planning.lease_deletion import Deletion
from pykcl.runtime import SystemRuntime
from pykcl.times import format_duration, format_time

if TYPE_CHECKING:
    from pykcl.operate.aws.lease_table import TableScanner
    from pykcl.operate.leases import ReleasePlan

_STATE_COLOURS: Mapping[str, Colour] = {
    "ACTIVE": "green",
    "STALE": "red",
    "UNREADABLE": "red",
    "NO LEASE": "red",
    "UNOWNED": "yellow",
    "UNKNOWN": "yellow",
}
_DIGITS_SHOWN = 4


def state_colour(row: Mapping[str, Any]) -> Colour | None:
    return _STATE_COLOURS.get(str(row.get("state")))


def owner_colour(row: Mapping[str, Any]) -> Colour | None:
    """Return the colour of a row that has the mark of its owner, or worker, as "mark"."""
    return row["mark"].rgb if row.get("owner") or row.get("worker") else None


def _standing_colour(row: Mapping[str, Any]) -> Colour | None:
    return {Standing.MEMBER.value: "green", Standing.SILENT.value: "red"}.get(
        str(row.get("standing")), "yellow"
    )


def short_checkpoint(text: str | None) -> str:
    """Shorten 56 digits to "4968…0466:0", which differs from shard to shard; -o wide shows all."""
    number, colon, sub = (text or "-").partition(":")
    if len(number) > 3 * _DIGITS_SHOWN and number.isdigit():
        number = f"{number[:_DIGITS_SHOWN]}…{number[-_DIGITS_SHOWN:]}"
    return number + colon + sub


def _short_all(keys: Any) -> str:
    return ",".join(short_shard(key) for key in keys) or "-"


def _rate(kib: Any) -> str:
    return "-" if kib is None else f"{kib:.1f}"


def _metrics(metrics: Any) -> str:
    return "-" if metrics is None else metric_text(metrics) or "none reported"


def _ago(seconds: Any) -> str:
    if seconds is None:
        return "never"
    return f"{format_duration(seconds)} ago" if seconds >= 0 else f"{format_duration(-seconds)} ahead"


def _moved(row_text: Any) -> str:
    return "-" if row_text is None else f"{row_text:+d}"


LEASE_COLUMNS = (
    Column("shard", weight=9, short=short_shard),
    Column("lease_key", "LEASE KEY", wide=True),
    Column("state", weight=9, colour=state_colour),
    Column("owner", weight=9, colour=owner_colour),
    Column("kind", weight=6),
    Column("checkpoint", weight=4, short=short_checkpoint),
    Column("counter", right=True, weight=3),
    Column("moved", right=True, weight=7, text=_moved),
    Column("unmoved_seconds", "UNMOVED FOR", right=True, wide=True, text=format_duration),
    Column("switches", right=True, weight=1),
    Column("parents", weight=2, text=_short_all),
    Column("waits_for", "WAITS FOR", wide=True, text=_short_all),
    Column("children", wide=True, text=_short_all),
    Column("stream", wide=True),
    Column("pending_checkpoint", "PENDING", wide=True, text=short_checkpoint),
    Column("next_owner", "NEXT OWNER", wide=True, weight=8),
    Column("consumer", wide=True, weight=5),
    Column("throughput_kib", "KIB/S", right=True, wide=True, weight=2, text=_rate),
    Column("what", wide=True),
)
_WHERE_GIVEN = ("next_owner", "throughput_kib", "consumer")
"""Columns that a table shows only if a row has a value: those of KCL 3.x, and of enhanced fan-out."""
MEMBER_COLUMNS = (
    Column("worker", weight=9, colour=owner_colour),
    Column("kind", weight=6),
    Column("leases", right=True, weight=7),
    Column("throughput_kib", "KIB/S", right=True, weight=4, text=_rate),
    Column("reported_seconds_ago", "REPORTED", weight=8, text=_ago),
    Column("metrics", weight=5, text=_metrics),
    Column("standing", weight=8, colour=_standing_colour),
    Column("leads", weight=7, text=lambda leads: "yes" if leads else "-"),
    Column("why", wide=True),
)
FACT_COLUMNS = (Column("name", weight=9), Column("value", weight=9))
_SHOWN_AS_FLEET = (METRICS_KIND, LEADER_KIND, MIGRATION_KIND)
PRUNE_COLUMNS = (
    Column("shard", weight=9, short=short_shard),
    Column("lease_key", "LEASE KEY", wide=True),
    Column("checkpoint", weight=4, short=short_checkpoint),
    Column("owner", weight=3, colour=owner_colour),
    Column("counter", right=True, weight=2),
    Column("reason", weight=9),
)


@dataclass(frozen=True)
class Answer:
    """One output. marks: of all owners of the table, whichever rows are shown. fleet: of KCL 3.x."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    hints: list[str]
    marks: Marks = NO_MARKS
    fleet: Section | None = None


def wanted_states(names: Collection[str]) -> frozenset[str]:
    known = [state.value for state in LeaseState]
    for name in names:
        if name.upper() not in known:
            raise click.BadParameter(f"{name!r} is none of {', '.join(known)}.", param_hint="--state")
    return frozenset(name.upper() for name in names)


def lease_answer(
    target: Target,
    found: Observation,
    *,
    owner: str | None = None,
    wanted: frozenset[str] = frozenset(),
    before: Marks = NO_MARKS,
    unleased: Iterable[Unleased] = (),
) -> Answer:
    """Return everything `leases list` shows. before: the marks of the scan before."""
    failover, is_known = known_failover(target.failover, found.snapshot.leases.values())
    states = states_of(found, failover, unleased=unleased)
    kinds = owner_kinds(found.snapshot, found.renewed_after_end)
    fleet = fleet_of(found)
    owners = [status.owner for status in states.values()]
    marks = marks_among(owners, before)
    if fleet is not None:
        # Owners first, so that they have the same marks as where only they are shown.
        marks = marks_among([*owners, *(member.worker for member in fleet.members)], marks)
    rows = [
        {**_lease_row(status, kinds, found), "mark": marks.of(status.owner)}
        for status in states.values()
        if (not wanted or status.state.value in wanted) and (owner is None or owner in (status.owner or ""))
    ]
    hints = hints_of(found, states, failover, is_known=is_known)
    section = _fleet_section(fleet, kinds, marks) if fleet is not None else None
    return Answer(rows, _facts(target, found, states, kinds), hints, marks, section)


def _fleet_section(fleet: FleetOverview, kinds: Mapping[str, OwnerKind], marks: Marks) -> Section:
    rows = [
        {
            "worker": member.worker,
            "mark": marks.of(member.worker),
            "kind": kinds[member.worker].kind if member.worker in kinds else None,
            "leases": member.leases,
            "throughput_kib": _rounded(member.throughput),
            "reported_seconds_ago": _rounded(member.reported_ago),
            "metrics": None if member.metrics is None else dict(member.metrics),
            "standing": member.standing.value,
            "leads": member.worker == fleet.leader_name,
            "why": member.why or None,
        }
        for member in fleet.members
    ]
    line = {
        "client version": fleet.client_version or "unknown",
        "leader": leader_text(fleet) if fleet.is_native else None,
        "members": len(fleet.with_standing(Standing.MEMBER)),
        "table migration": fleet.table_migration,
    }
    return Section("fleet", plain(fleet), line, "members", rows, MEMBER_COLUMNS)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def lease_table(answer: Answer, output: Format, *, all_rows: bool) -> str:
    """Return the text of `leases list`. In a table the section of the fleet stands for the rows that it shows."""
    rows: list[dict[str, Any]] = answer.rows
    columns: tuple[Column, ...] = LEASE_COLUMNS
    if output == "table":
        given = {name for name in _WHERE_GIVEN if any(row.get(name) is not None for row in rows)}
        columns = tuple(replace(one, wide=False) if one.key in given else one for one in columns)
        if answer.fleet is not None and not all_rows:
            rows = [row for row in rows if row.get("what") not in _SHOWN_AS_FLEET]
    return render(rows, columns, output, facts=answer.facts, hints=answer.hints, section=answer.fleet)


def _facts(
    target: Target,
    found: Observation,
    states: Mapping[str, LeaseStatus],
    kinds: Mapping[str, OwnerKind],
) -> dict[str, Any]:
    scans = str(found.samples) if found.samples == 1 else f"{found.samples} in {found.span:.1f}s"
    return {
        "application": target.table,
        "stream": stream_of(target, found.snapshot),
        "schema": found.snapshot.schema,
        "workers": _workers(kinds),
        "leases": counts(states),
        "scans": scans,
    }


def stream_of(target: Target, view: TableSnapshot) -> str | None:
    """Return the given stream, else the one that the leases name; None without either, or with several."""
    return target.stream_name or view.stream_name


def _workers(kinds: Mapping[str, OwnerKind]) -> dict[str, int]:
    """Return the number of owners by kind."""
    return dict(sorted(Counter(kind.kind for kind in kinds.values()).items()))


def _lease_row(status: LeaseStatus, kinds: Mapping[str, OwnerKind], found: Observation) -> dict[str, Any]:
    lease = status.lease
    row: dict[str, Any] = {
        "shard": status.key.rpartition(":")[2] if status.key in found.snapshot.streams else status.key,
        "lease_key": status.key,
        "state": status.state.value,
        "stream": found.snapshot.streams.get(status.key),
    }
    if lease is None:
        return {
            **row,
            "what": _what(status),
            "checkpoint": None,
            "parents": list(status.other.lease.parents) if isinstance(status.other, Unleased) else [],
            "children": [],
            "waits_for": list(status.waits_for),
        }
    owner = lease.actual_owner
    return {
        **row,
        "owner": owner,
        "kind": kinds[owner].kind if owner is not None else None,
        "checkpoint": str(lease.checkpoint),
        "counter": lease.counter,
        "moved": status.moved,
        "unmoved_seconds": round(status.unmoved_for, 1) if found.samples > 1 else None,
        "switches": lease.owner_switches,
        "parents": list(lease.parents),
        "waits_for": list(status.waits_for),
        "children": list(lease.children),
        "pending_checkpoint": str(lease.pending.checkpoint) if lease.pending is not None else None,
        "next_owner": lease.owner if lease.checkpoint_owner is not None else None,
        "throughput_kib": _rounded(throughput_of(lease)),
        "consumer": lease.consumer,
        "what": "lease",
    }


def key_of(shard: str, view: TableSnapshot) -> str:
    """Return the lease key for a lease key, the number of a shard, or the end of a single key.

    Raises click.BadParameter for none, and for more than one.
    """
    keys = [*view.leases, *view.unreadable, *(row.key for row in view.foreign)]
    if shard in keys:
        return shard
    if shard.isascii() and shard.isdigit() and len(shard) <= 12:
        found = [key for key in keys if key.endswith(f"shardId-{int(shard):012d}")]
    else:
        found = [key for key in keys if shard and key.endswith(shard)]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.BadParameter(
            f"{shard!r} is the end of {len(found)} lease keys. Write more of it.", param_hint="SHARD"
        )
    raise click.BadParameter(
        f"There is no lease {shard!r}. Do: pykcl leases list -o wide, which shows the keys.",
        param_hint="SHARD",
    )


def describe_answer(target: Target, found: Observation, key: str) -> Answer:
    """Return everything `leases describe` shows, one fact a row."""
    failover, is_known = known_failover(target.failover, found.snapshot.leases.values())
    states = states_of(found, failover)
    status = states[key]
    facts: list[tuple[str, Any]] = [("lease key", key), ("state", status.state.value)]
    if status.lease is None:
        facts.append(("what it is", _what(status)))
    else:
        kinds = owner_kinds(found.snapshot, found.renewed_after_end)
        facts += _facts_of(status, status.lease, kinds, states, found)
    mine = {key: status, **{one: states[one] for one in status.waits_for if one in states}}
    return Answer(
        [{"name": name, "value": value} for name, value in facts if value not in (None, "", [], ())],
        {"application": target.table, "stream": stream_of(target, found.snapshot)},
        hints_of(found, mine, failover, is_known=is_known, is_whole=False),
    )


def _what(status: LeaseStatus) -> str | None:
    """Return what it is that is not a lease: a row of another kind, or a shard without a row."""
    if isinstance(status.other, Unleased):
        return status.other.reason
    return getattr(status.other, "kind", None) or getattr(status.other, "problem", None)


def _facts_of(
    status: LeaseStatus,
    lease: Lease,
    kinds: Mapping[str, OwnerKind],
    states: Mapping[str, LeaseStatus],
    found: Observation,
) -> list[tuple[str, Any]]:
    owner = lease.actual_owner
    kind = kinds[owner] if owner is not None else None
    watched = (
        f"{status.moved:+d} in {found.span:.1f}s; still for {format_duration(status.unmoved_for)}"
        if status.moved is not None and found.samples > 1
        else None
    )
    note, pending = lease.metadata, lease.pending
    return [
        ("owner", owner),
        ("owner's kind", f"{kind.kind}: {kind.why}" if kind is not None else None),
        ("owner's version", kind.version if kind is not None else None),
        ("next owner", lease.owner if lease.checkpoint_owner is not None else None),
        ("throughput", f"{rate:.3f} KiB/s" if (rate := throughput_of(lease)) is not None else None),
        ("consumer", lease.consumer),
        ("counter", lease.counter),
        ("counter moved", watched),
        ("checkpoint", str(lease.checkpoint)),
        ("switches since then", lease.owner_switches),
        ("pending checkpoint", str(pending.checkpoint) if pending is not None else None),
        ("pending state", f"{len(pending.state)} bytes" if pending is not None and pending.state else None),
        ("parents", _family(lease.parents, states)),
        ("children", _family(lease.children, states)),
        ("waits for", _family(status.waits_for, states)),
        (
            "hash keys",
            f"{lease.hash_range.first} to {lease.hash_range.last}" if lease.hash_range is not None else None,
        ),
        ("entity type", lease.entity_type),
        ("stream", found.snapshot.streams.get(status.key) or (note.stream_arn if note is not None else None)),
        ("note of pykcl is by", note.owner if note is not None else None),
        ("started at LATEST from", str(lease.latest_from) if lease.latest_from is not None else None),
        ("other attributes", json_text(_known_kinds(lease)) if lease.extra else None),
    ]


def _known_kinds(lease: Lease) -> dict[str, str]:
    """Return names and types only: the values belong to whoever wrote them."""
    return {name: next(iter(value), "?") for name, value in sorted(lease.extra.items())}


def _family(keys: Collection[str], states: Mapping[str, LeaseStatus]) -> list[str]:
    return [f"{short_shard(key)} ({states[key].state.value if key in states else 'no row'})" for key in keys]


def prune_row(deletion: Deletion, marks: Marks) -> dict[str, Any]:
    seen = deletion.seen
    lost = "" if seen.is_ended else "; what was not read of it is lost already"
    return {
        "shard": seen.key,
        "lease_key": seen.key,
        "checkpoint": str(seen.checkpoint),
        "owner": seen.owner,
        "mark": marks.of(seen.owner),
        "counter": seen.counter,
        "reason": deletion.reason + lost,
    }


NO_SAMPLE = click.option(
    "--no-sample", is_flag=True, help="Scan once: faster, but does not show which workers are alive."
)
SHARD = click.argument("shard", metavar="SHARD", shell_complete=complete_shards)
EXECUTE = click.option(
    "--execute", is_flag=True, help="Apply the changes. Without it the command is a dry run."
)


@click.group(cls=VerbGroup)
def leases() -> None:
    """List, describe, release and prune the leases of a fleet.

    Works with lease tables of any KCL version. `list` and `describe` only read; `release` and `prune` are dry runs
    without --execute.
    """


@leases.command("list")
@fleet_options("table", lease_stores="read")
@format_option
@watch_option
@click.option(
    "--sample",
    type=Duration(minimum=0.2, maximum=3600.0),
    metavar="DURATION",
    help="Watch the counters for at most this long (default: the failover time, or 6s if it is unknown).",
)
@NO_SAMPLE
@click.option("--owner", metavar="TEXT", help="Filter by a substring of the owner.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Filter by state (repeatable).")
def list_leases(
    target: Target,
    output: Format,
    watch: float | None,
    sample: float | None,
    no_sample: bool,
    owner: str | None,
    states: tuple[str, ...],
) -> None:
    """List the leases of a fleet with owner, state and checkpoint.

    Needs --application or --table. A lease has no timestamp, so the table is scanned until every owned lease has
    changed its counter, or --sample is over.

    \b
    ACTIVE    has an owner, and its counter changes
    STALE     has an owner, and its counter did not change for the failover time: any worker may take it
    UNKNOWN   has an owner, and was watched for less than the failover time
    UNOWNED   has no owner
    WAITING   a parent shard has not ended, so it must not be read yet
    ENDED     its shard was read to the end
    NO LEASE  a shard of the stream that is still to be read and has no row: it waits for the end of its parents
    FOREIGN   not a lease: a row that KCL 3.x keeps in the table

    CONSUMER is shown where a pykcl worker reads by enhanced fan-out. A hint names shards whose subscriptions say
    nothing.

    Below the leases of a KCL 3.x fleet stand its leader and its workers, each with its last report of metrics.
    """
    if no_sample and sample is not None:
        raise click.UsageError("--sample and --no-sample contradict each other.")
    wanted = wanted_states(states)
    sampler = Sampler(_scanner(target).scan, SystemRuntime())
    marks = NO_MARKS

    def poll() -> tuple[str, int]:
        nonlocal marks
        found = (
            sampler.poll()
            if no_sample or watch is not None
            else sampler.poll_until_moved(target.failover, longest=sample, on_wait=print_wait)
        )
        unleased, unlisted = _unleased(target, found.snapshot)
        answer = lease_answer(target, found, owner=owner, wanted=wanted, before=marks, unleased=unleased)
        answer.hints.extend(unlisted)
        marks = answer.marks
        return lease_table(answer, output, all_rows=bool(wanted)), 0

    sys.exit(repeat(watch, poll))


@leases.command()
@SHARD
@fleet_options("table")
@format_option
@NO_SAMPLE
def describe(target: Target, shard: str, output: Format, no_sample: bool) -> None:
    """Describe one lease.

    Needs --application or --table. SHARD is a lease key, a shard number, such as 3, or the end of a single key.
    """
    sampler = Sampler(_scanner(target).scan, SystemRuntime())
    found = sampler.poll()
    key = key_of(shard, found.snapshot)
    lease = found.snapshot.leases.get(key)
    if not no_sample and lease is not None and lease.actual_owner is not None:
        found = sampler.poll_until_moved(
            target.failover, until=lambda seen: key in seen.alive, on_wait=print_wait
        )
    answer = describe_answer(target, found, key)
    show(answer.rows, FACT_COLUMNS, output, facts=answer.facts, hints=answer.hints)


@leases.command()
@SHARD
@fleet_options("table")
@EXECUTE
def release(target: Target, shard: str, execute: bool) -> None:
    """Release a lease, so that another worker can take it at once.

    Needs --application or --table. SHARD is a lease key, a shard number or the end of a single key. A dry run without
    --execute.

    Removes the owner and increments the counter; the checkpoint does not change. The write is conditional: it fails if
    the lease has changed since the plan. A live owner notices at its next renewal. The next owner reads again
    everything after the last checkpoint, so no record is lost.
    """
    from pykcl.operate.leases import plan_release
    from pykcl.operate.leases import release as do_release

    key, table = key_of(shard, target.scanner().scan()), target.row_writer()
    plan = plan_release(key, table.read(key))
    _show_release(plan, execute)
    if not execute:
        return
    result = do_release(table, plan, lambda newer: _show_release(newer, True))
    if result.outcome == "released":
        say(f"RELEASED  read again: no owner, counter {result.row.counter}")
    else:
        say(f"RELEASED  and taken already, by {_inert(result.row.owner)}")


def _show_release(plan: ReleasePlan, execute: bool) -> None:
    seen, after = plan.seen, plan.write.after
    say("WRITES NOW" if execute else "PLAN (nothing written)")
    say(f"  lease       {_inert(seen.key)}")
    say(f"  owner       {_inert(seen.owner)}  →  -")
    say(f"  counter     {seen.counter}  →  {after.counter if after else '-'}")
    say(f"  checkpoint  {seen.checkpoint}  (stays)")
    say(f"  only if     counter is {seen.counter} and owner is {_inert(seen.owner)}")
    if not execute:
        say("Run it again with --execute to write.")


@leases.command()
@fleet_options("table", "stream")
@format_option
@EXECUTE
def prune(target: Target, output: Format, execute: bool) -> None:
    """Prune the leases that no worker needs any more.

    Needs --application and --stream. A dry run without --execute.

    These are the leases of shards that were read to the end and whose children have started, and of shards that Kinesis
    has deleted. Workers prune by the same rules; use this command if no worker is
    running. Each row is deleted only if it has not changed since the plan, parents before children.
    """
    from pykcl.operate.leases import plan_prune
    from pykcl.operate.leases import prune as do_prune

    view = _scanner(target).scan()
    plan = plan_prune(view, target.kinesis())
    facts: dict[str, Any] = {
        "application": target.table,
        "stream": plan.stream.name,
        "delete": len(plan.deletions),
        "keep": plan.kept,
        "written": "now" if execute else "nothing",
    }
    marks = marks_among(lease.actual_owner for lease in view.leases.values())
    rows = [prune_row(deletion, marks) for deletion in plan.deletions]
    hints = () if execute else ("Run it again with --execute to delete these rows.",)
    if not rows:
        hints = ("There is nothing to delete.",)
    show(rows, PRUNE_COLUMNS, output, facts=facts, hints=hints)
    if not execute:
        return
    results = list(_reported(do_prune(target.row_writer(), plan)))
    if any(one != "deleted" for one in results):
        sys.exit(ExitCode.FAILED)


@leases.command()
@fleet_options("table", lease_stores="read")
@EXECUTE
def drop(target: Target, execute: bool) -> None:
    """Drop the lease table of a replay.

    Needs --application or --table. A dry run without --execute.

    Where a shard is not done, the leases are watched first, for two failover times. If one of them changes, a worker is
    at work, and the command refuses. It refuses the table of an application that goes on reading, too.
    """
    from pykcl.operate.aws.lease_table import delete_table
    from pykcl.operate.idle import wait_until_idle, watch_time
    from pykcl.operate.leases import end_of_run

    scanner, runtime = _scanner(target), SystemRuntime()
    view = scanner.scan()
    until, seconds = end_of_run(view), watch_time(target.failover, view.leases.values())
    ended = sum(lease.is_ended for lease in view.leases.values())
    is_over = ended == len(view.leases)
    say("DROPS NOW" if execute else "PLAN (nothing changed)")
    say(f"  table    {_inert(target.table)}")
    say(f"  run      until {format_time(until)}: {ended} of {len(view.leases)} shards are done")
    if not is_over:
        say(f"  only if  no lease changes within {seconds:g} s")
    if not execute:
        say("Run it again with --execute to drop it.")
        return
    if not is_over:
        wait_until_idle(scanner.scan, runtime, failover=seconds, remedy="stop the replay")
    delete_table(target.clients.client("dynamodb"), str(target.table), runtime)
    say("DROPPED")


def _reported(results: Any) -> Any:
    """Report each result on standard error as it comes, so that an interrupted run has said what it did."""
    for one in results:
        why = f" ({one.why})" if one.why else ""
        say(f"{one.outcome:<9}  {_inert(one.deletion.seen.key)}{_inert(why)}", err=True)
        yield one.outcome


def _inert(text: str | None) -> str:
    return "-" if text is None else printable(text)


def _unleased(target: Target, view: TableSnapshot) -> tuple[list[Unleased], list[str]]:
    """Return the shards without a lease, and a hint if they cannot be listed: the leases alone are worth showing."""
    if view.streams or (target.stream is None and view.stream_arn is None):
        return [], []
    try:
        return target.kinesis_lag(view, SystemRuntime()).unleased(view.leases, view.unreadable.keys()), []
    except PyKclError as error:
        return [], [f"Shards without a lease are not shown: {error}"]


def _scanner(target: Target) -> TableScanner:
    """Return the scanner of the lease table; print why its scans are slow, if they are."""
    scanner = target.scanner()
    if scanner.pace:
        print_notice(scanner.pace)
    return scanner
