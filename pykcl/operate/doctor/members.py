"""The checks of a fleet of KCL 3.x: its leader, its members and what they report, the index of owners. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.model.lease_item import is_lease_key
from pykcl.model.shard import short_shard
from pykcl.operate.doctor.facts import Facts, TableFacts
from pykcl.operate.doctor.findings import Finding, command, found, listed
from pykcl.operate.fleet import FleetOverview, Member, Standing, ids_of_shards, leader_text
from pykcl.times import format_duration

_OWN_NAME = "drop worker_id (workerId): every process then gets a name of its own"


def check_members(facts: Facts) -> Iterator[Finding]:
    table, watch = facts.table, facts.watch
    if table is None or watch is None:
        return
    yield from _identifiers(facts)
    overview = watch.overview
    if overview is None:
        return
    if overview.unread:
        yield found(
            "java-state-unread",
            f"The state and the metrics of KCL 3.0-3.4 could not be read: {overview.unread} So its members and its "
            "leader are unknown.",
            command("pykcl", "iam", "--application", facts.application_word, "--stream", facts.stream_word)
            + " --for operator",
        )
    if overview.table_migration is not None:
        yield found(
            "table-migration-running",
            f"KCL 3.5 is moving its rows into this table ({overview.table_migration}). It waits until every owner "
            "reports metrics as 3.5 does, and pykcl workers do not join meanwhile.",
            _list(table),
        )
    if overview.is_native:
        yield from _of_native(table, overview)


def _of_native(table: TableFacts, overview: FleetOverview) -> Iterator[Finding]:
    if table.knows_index and table.index_status != "ACTIVE":
        state = (
            f"is {table.index_status}"
            if table.index_status
            else "is missing: a Java worker of 3.x creates it"
        )
        yield found(
            "owner-index-missing",
            f"The index of owners {state}. In this fleet a worker finds its leases there.",
            command("aws", "dynamodb", "describe-table", "--table-name", table.name),
        )
    yield from _leader(table, overview)
    guests = [one.worker for one in overview.with_standing(Standing.NO_REPORT) if one.leases]
    if guests:
        yield found(
            "owner-without-metrics",
            f"{listed(guests)} owns leases and reports no metrics: the leader gives it no leases and relieves it of "
            "none, and balances the load without it.",
            _list(table),
        )
    old = [one for one in overview.with_standing(Standing.SILENT) if one.leases]
    if old:
        yield found(
            "metrics-stale",
            f"{_reported(old, 'ago')}, and owns leases: for the leader it is dead, and its leases are given away. Its "
            "clock is behind, or it cannot write.",
            "timedatectl set-ntp true   (on its host)",
        )
    early = overview.with_standing(Standing.AHEAD)
    if early:
        yield found(
            "metrics-ahead",
            f"{_reported(early, 'ahead of the clock')} of AWS: until then the leader gives it leases even if it has "
            "ended.",
            "timedatectl set-ntp true   (on its host)",
        )
    unfit = overview.with_standing(Standing.UNFIT)
    if unfit:
        yield found(
            "metrics-unfit",
            f"{listed(f'{one.worker} ({one.why})' for one in unfit)}: the leader does not count such a report, and "
            "gives that worker no leases.",
            _list(table),
        )


def _leader(table: TableFacts, overview: FleetOverview) -> Iterator[Finding]:
    """Check the lock. Its row has no time; whether its owner still reports is what one pass can show."""
    leader = next((one for one in overview.members if one.is_leader), None)
    why = ""
    if overview.lacks_leader:
        why = f"leader: {leader_text(overview)}"
    elif leader is not None and not overview.leader_beats and leader.standing is not Standing.MEMBER:
        why = f"{leader.worker} holds the lock and seems to be dead: {leader.why}"
    if why:
        yield found(
            "leader-absent",
            f"Nobody leads this fleet ({why}), so nobody assigns leases. A Java worker, or a pykcl "
            "worker with leader=equal, takes the lock two minutes after its last heartbeat; until then pykcl workers "
            "take what stands still.",
            f"{_list(table)} --watch",
        )


def _identifiers(facts: Facts) -> Iterator[Finding]:
    watch, own = facts.watch, facts.config.worker_id
    taken = ids_of_shards(watch.snapshot) if watch is not None else []
    if own is not None and is_lease_key(own) and own not in taken:
        taken.append(own)
    if taken:
        yield found(
            "worker-id-of-a-shard",
            f"{listed(map(short_shard, taken))} is the identifier of a worker and of a shard. Java KCL 3.x writes the "
            "worker's metrics over that lease, whose position is lost then.",
            _OWN_NAME,
        )


def _reported(members: list[Member], side: str) -> str:
    return listed(
        f"{one.worker} last reported {format_duration(abs(one.reported_ago or 0.0))} {side}"
        for one in members
    )


def _list(table: TableFacts) -> str:
    return command("pykcl", "leases", "list", "--table", table.name)
