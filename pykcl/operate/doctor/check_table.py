"""The lease table: its shape, whose it is, and what stands in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.operate.doctor.facts import Facts, StreamFacts, TableFacts, WatchFacts
from pykcl.operate.doctor.findings import Finding, command, found, listed, many
from pykcl.operate.hints import short_shard
from pykcl.planning.fleet_protocol import FleetKind


def check_table(facts: Facts) -> Iterator[Finding]:
    table = facts.table
    if table is None:
        return
    if table.exists is False:
        yield _missing(facts, table)
        return
    if table.foreign:
        yield found(
            "table-foreign",
            f"{table.foreign} The name of the application doubles as the table's.",
            "pykcl run … --app ANOTHER   (or: --option table_name=ANOTHER)",
        )
        return
    if table.exists is None and table.watch is None:
        return
    if table.status not in (None, "ACTIVE"):
        yield found(
            "table-changing",
            f"Table {table.name!r} is {table.status}: workers wait until it is ACTIVE.",
            command("aws", "dynamodb", "wait", "table-exists", "--table-name", table.name),
        )
    else:
        yield found("table-ok", _described(table))
    yield from _small(facts, table)


def _missing(facts: Facts, table: TableFacts) -> Finding:
    if facts.config.create_table:
        return found(
            "table-to-be-made",
            f"There is no lease table {table.name!r} yet. The first worker makes it, if it may call "
            "dynamodb:CreateTable.",
        )
    return found(
        "table-missing",
        f"There is no lease table {table.name!r}, and create_table is off.",
        f"aws dynamodb create-table --table-name {command(table.name)} --billing-mode PAY_PER_REQUEST "
        "--attribute-definitions AttributeName=leaseKey,AttributeType=S "
        "--key-schema AttributeName=leaseKey,KeyType=HASH",
    )


def _described(table: TableFacts) -> str:
    billing = "billing unknown"
    if table.provisioned is not None:
        units = f"PROVISIONED {table.read_units:g}/{table.write_units:g}"
        billing = units if table.provisioned else "PAY_PER_REQUEST"
    leases = ""
    if table.watch is not None:
        view = table.watch.view
        leases = f", {many(len(view.leases), 'lease')} ({view.schema})"
    return f"{table.name} {table.status or 'state unknown'}, {billing}, key leaseKey{leases}"


def _small(facts: Facts, table: TableFacts) -> Iterator[Finding]:
    if not table.provisioned:
        return
    needed = facts.shards_to_read / facts.config.renew_interval
    if table.write_units < needed:
        yield found(
            "table-small",
            f"{many(facts.shards_to_read, 'lease')} take {needed:.1f} writes a second for their heartbeats "
            "alone, and the "
            f"table has {table.write_units:g} write units: renewals are throttled, and leases are lost.",
            command(
                "aws",
                "dynamodb",
                "update-table",
                "--table-name",
                table.name,
                "--billing-mode",
                "PAY_PER_REQUEST",
            ),
        )


def check_rows(facts: Facts) -> Iterator[Finding]:
    table, watch = facts.table, facts.watch
    if table is None or watch is None:
        return
    if watch.view.unreadable:
        keys = sorted(watch.view.unreadable)
        problem = watch.view.unreadable[keys[0]].problem
        yield found(
            "rows-unreadable",
            f"{listed(map(short_shard, keys))} cannot be understood ({problem}): nobody reads that shard.",
            command("pykcl", "leases", "describe", keys[0], "--table", table.name),
        )
    fleet = table.fleet
    if fleet is not None and fleet.kind is FleetKind.JAVA_3X_NATIVE:
        yield found(
            "fleet-native-3x",
            f"Java KCL 3.x works on this table in its own mode ({fleet.why_native}): a leader assigns the "
            "leases, and a "
            "worker that speaks 2.x would fight it. pykcl refuses to join.",
            "set clientVersionConfig=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1 in every Java worker "
            "(KCL 3.5), "
            "or stop them all and cut over",
        )
    if watch.view.streams:
        names = sorted(set(watch.view.streams.values()))
        yield found(
            "several-streams",
            f"Leases of {many(len(names), 'stream')} stand in this table ({listed(names, 3)}), as Java's "
            "multi-stream "
            "mode keeps them. pykcl reads one stream per application.",
            "pykcl run … --app ANOTHER",
        )
    elif facts.stream is not None:
        yield from _whose(facts, facts.stream, watch)


def _whose(facts: Facts, stream: StreamFacts, watch: WatchFacts) -> Iterator[Finding]:
    if stream.arn is None:
        return
    notes = [lease.metadata for lease in watch.view.leases.values() if lease.metadata is not None]
    others = [note.stream_arn for note in notes if note.stream_arn and note.stream_arn != stream.arn]
    earlier = [
        note
        for note in notes
        if note.stream_arn == stream.arn
        and None not in (note.stream_created_at, stream.created_at)
        and note.stream_created_at != stream.created_at
    ]
    if others or earlier:
        whose = (
            f"stream {listed(sorted(set(others)))}"
            if others
            else "an earlier stream of this name, deleted since"
        )
        yield found(
            "table-of-another-stream",
            f"{many(len(others) or len(earlier), 'lease')} here belong to {whose}; this is {stream.name}. "
            "Every stream "
            "needs an application of its own. pykcl refuses to read.",
            command("pykcl", "run", "…", "--app", f"{facts.application_word}-{stream.name}"),
        )
    elif stream.shards and watch.view.leases and not stream.shards & watch.view.leases.keys():
        yield found(
            "leases-of-no-shard",
            f"None of the {many(len(watch.view.leases), 'lease')} is of a shard that {stream.name} lists: "
            "another stream's "
            "table, or a fleet that stood for longer than records are kept.",
            command(
                "pykcl",
                "streams",
                "describe",
                stream.name,
                "--tree",
                "--table",
                facts.table.name if facts.table else None,
            ),
        )
