"""The checks of the doctor: from facts to findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from pykcl.model.shard import short_shard
from pykcl.operate.aws.iam import actions_of
from pykcl.operate.doctor.consumers import check_consumers
from pykcl.operate.doctor.facts import (
    RENEWALS_SHOW,
    Facts,
    StreamFacts,
    TableFacts,
    WatchFacts,
    doctor_command,
    needed_policy,
    policy_command,
)
from pykcl.operate.doctor.findings import Finding, command, found, listed, many
from pykcl.operate.doctor.letters import check_letters
from pykcl.operate.doctor.members import check_members
from pykcl.operate.doctor.progress import check_lag, check_progress, check_unleased, in_hours
from pykcl.operate.doctor.puts import check_puts
from pykcl.planning.fleet_protocol import FleetKind

SPARE_CONNECTIONS = 12
_SPARE_FILES = 64
OFF = 30.0
WRONG = 240.0
"""Seconds. AWS refuses a signature that is five minutes off."""
_LIST_COMMANDS = {"kinesis": "list-streams", "dynamodb": "list-tables"}
_TOO_OFTEN, _SPARE_BEATS = 2.0, 2
_SHARED_READS = (
    "All readers of a shard without enhanced fan-out share five GetRecords calls a second; of a table, its "
    "units."
)
_KEYS_OF_WORKER = ", and concurrency and windows divide them as they lie."
_KEYS_OF_PRODUCER = (
    ". A producer puts each by itself, in no aggregate and at no rate; with ordered=True it does not start."
)
_EXTRAS = {"prometheus_client": "prometheus", "opentelemetry": "otel", "zstandard": "zstd"}


# -- this process and its file -------------------------------------------------------------------------------


def check_process(facts: Facts) -> Iterator[Finding]:
    process = facts.process
    for package, option in process.missing:
        yield found(
            "package-missing",
            f"{option} needs the package {package!r}, which is not installed: a {facts.program} would not start.",
            f"pip install 'pykcl[{_EXTRAS.get(package, package)}]'",
        )
    python = f"Python {process.python}{' free-threaded' if process.free_threaded else ''}"
    parts = [python, f"pykcl {process.pykcl}"]
    parts += [f"{name} {version}" for name, version in process.versions.items()]
    yield found("process-ok", " · ".join([*parts, *([process.platform] if process.platform else [])]))


def check_worker_process(facts: Facts) -> Iterator[Finding]:
    process = facts.process
    leases = min(facts.config.max_leases, facts.shards_to_read)
    if facts.connections and leases + SPARE_CONNECTIONS > facts.connections:
        yield found(
            "connections-few",
            f"One worker may come to hold {leases} leases, and its pool has {facts.connections} connections: threads "
            "wait for one another.",
            f"pykcl run … --option max_leases={facts.connections - SPARE_CONNECTIONS}   (and more workers)",
        )
    # One connection to Kinesis and one to DynamoDB for each lease's thread.
    files = 2 * (leases + SPARE_CONNECTIONS) + _SPARE_FILES
    if process.open_files is not None and files > process.open_files:
        yield found(
            "files-few",
            f"A worker with {many(leases, 'lease')} opens up to {files} files and connections, and "
            f"{process.open_files} are allowed.",
            f"ulimit -n {max(4096, files)}",
        )
    if not facts.config.metrics_sinks:
        yield found(
            "metrics-off",
            "No metrics are configured: no alarm when this fleet falls behind or stops.",
            "pykcl run … --option metrics=cloudwatch   (or prometheus, otel)",
        )


def check_file(facts: Facts) -> Iterator[Finding]:
    file = facts.file
    if file is None:
        return
    if file.unfit is not None:
        what, do = file.unfit
        yield found(
            "program-unfit",
            f"{file.name}: executableName{what}. `pykcl multilangd` refuses the file on this host; `pykcl run` does "
            "not use that key.",
            do,
        )
    for place, key, text in file.unknown:
        yield found("key-unknown", f"{place}: {key} {text}", "correct it, or delete the line")
    for place, key, text in file.literal:
        yield found(
            "value-literal", f"{place}: {key}: {text}", "write the value itself, as nothing replaces it"
        )
    if file.notice:
        yield found(
            "fan-out-used",
            f"{file.name}: {file.notice}",
            command("pykcl", "multilangd", "-p", file.name, "--accept-polling")
            + "   (only if polling is wanted; or retrievalMode = POLLING in the file)",
        )


# -- credentials, region, clock, network ---------------------------------------------------------------------


def check_credentials(facts: Facts) -> Iterator[Finding]:
    account = facts.account
    if account.no_credentials:
        yield found(
            "credentials-missing",
            account.no_credentials,
            "aws sts get-caller-identity   (or: aws configure, aws sso login)",
        )
        return
    refused = [probe for probe in facts.probes if probe.trouble and probe.trouble.kind == "credentials"]
    if refused and refused[0].trouble is not None:
        yield found("credentials-refused", refused[0].trouble.text, "aws sts get-caller-identity")
        return
    who = account.identity
    if who is None:
        return
    if who.is_fixed:
        yield found(
            "credentials-temporary",
            f"The credentials ({who.source}) have a session token that nothing renews: they expire within hours, and a "
            f"{facts.program} that runs on them stops then. Use a role, or a profile that renews itself.",
            "aws configure sso",
        )
    if who.arn is None:
        yield found(
            "identity-unknown",
            f"Credentials were found ({who.source}); their identity is unknown: {who.why_not}",
        )
        return
    expires = f", renewed by {who.expires_at}" if who.expires_at else ""
    yield found("credentials-ok", f"{who.arn} ({who.source}{expires})")


def check_region(facts: Facts) -> Iterator[Finding]:
    account = facts.account
    if account.no_region:
        yield found("region-missing", account.no_region, "export AWS_REGION=us-east-1")
        return
    regions = account.regions
    if not regions:
        return
    used = regions.get("kinesis") or regions["dynamodb"]
    if len(set(regions.values())) > 1:
        where = ", ".join(f"{service} in {region}" for service, region in sorted(regions.items()))
        yield found(
            "regions-two",
            f"The services are asked in different regions: {where}. That works, but every heartbeat travels, and a "
            "lease table of the same name may stand in both.",
            f"pykcl doctor --region {used}   (and set one region in the file)",
        )
    others = {source: region for source, region in account.named_regions.items() if region != used}
    if others:
        named = ", ".join(f"{source} says {region}" for source, region in sorted(others.items()))
        yield found(
            "region-differs",
            f"{used} is used, but {named}: another program started here, such as a Java worker, uses that one.",
            f"export AWS_REGION={used} AWS_DEFAULT_REGION={used}",
        )
    agreeing = [source for source, region in sorted(account.named_regions.items()) if region == used]
    yield found("region-ok", used + (f" (from {listed(agreeing)})" if agreeing else ""))


def check_clock(facts: Facts) -> Iterator[Finding]:
    skew = facts.account.skew
    if skew is None:
        return
    side = "behind" if skew > 0 else "ahead of"
    text = f"This machine's clock is {abs(skew):,.0f} s {side} AWS'"
    fix = "timedatectl set-ntp true"
    if abs(skew) >= WRONG:
        yield found("clock-wrong", f"{text}; AWS refuses signatures that are 300 s off.", fix)
    elif abs(skew) >= OFF:
        yield found("clock-off", f"{text}; every time shown here is off by as much.", fix)
    else:
        yield found("clock-ok", f"differs from AWS' by {abs(skew):.1f} s")


def check_reach(facts: Facts) -> Iterator[Finding]:
    if facts.account.no_clients:
        yield found("aws-unreachable", facts.account.no_clients, "aws sts get-caller-identity")
    hosts = facts.account.hosts
    if hosts:
        asked = "; ".join(f"{host} ({', '.join(operations)})" for host, operations in hosts.items())
        yield found("hosts-asked", f"asked: {asked}")
    for kind, id in (("unreachable", "aws-unreachable"), ("refused", "aws-unreachable")):
        bad = {
            probe.action.split(":")[0]: probe for probe in facts.probes if probe.trouble and probe.trouble.kind == kind
        }  # fmt: skip
        for service, probe in bad.items():
            yield found(
                id,
                f"{service}: {probe.trouble.text if probe.trouble else ''}",
                f"aws {service} {_LIST_COMMANDS.get(service, 'help')}",
            )
    throttled = sorted({
        probe.action for probe in facts.probes if probe.trouble and probe.trouble.kind == "throttled"
    })  # fmt: skip
    if throttled:
        yield found(
            "aws-throttles",
            f"Refused for the rate, twice within a second or so: {listed(throttled)}. "
            + (_SHARED_READS if facts.program == "worker" else "All of the account share the calls."),
            "pykcl run … --option idle_time_between_reads=1   (in every application that reads this stream)"
            if facts.program == "worker"
            else f"{doctor_command(facts)}   (again, later)",
        )


# -- the stream and the lag ----------------------------------------------------------------------------------


def check_stream(facts: Facts) -> Iterator[Finding]:
    stream = facts.stream
    if stream is None:
        if facts.account.can_ask:
            yield found(
                "stream-unnamed",
                "No stream is named, and the lease table does not say which it is of.",
                command("pykcl", "doctor", "--application", facts.application_word) + " --stream NAME",
            )
        return
    missing = [
        probe for probe in facts.probes if probe.action == "kinesis:DescribeStreamSummary" and probe.trouble
    ]
    if missing and missing[0].trouble is not None and missing[0].trouble.kind == "missing":
        region = facts.account.regions.get("kinesis", "?")
        account = facts.account.identity.account if facts.account.identity else None
        where = f"{region} (account {account})" if account else region
        nearby = f" There are here: {listed(stream.nearby)}." if stream.nearby else ""
        yield found(
            "stream-missing",
            f"Stream {stream.name!r} does not exist in {where}.{nearby}",
            command("pykcl", "streams", "list", "--region", region),
        )
        return
    yield from _state(facts, stream)
    if stream.distribution == "AUTO":
        yield found(
            "keys-ignored",
            f"Stream {stream.name!r} puts records into any shard, whatever their partition key "
            "(RecordDistributionStrategy AUTO): records of one key come in no order"
            + (_KEYS_OF_WORKER if facts.program == "worker" else _KEYS_OF_PRODUCER),
            "pykcl explain E28",
        )


def _state(facts: Facts, stream: StreamFacts) -> Iterator[Finding]:
    status = stream.status
    describe = command("pykcl", "streams", "describe", stream.name)
    if status == "DELETING":
        yield found("stream-deleting", f"Stream {stream.name!r} is being deleted.", describe)
    elif status in ("CREATING", "UPDATING"):
        yield found(
            "stream-changing",
            f"Stream {stream.name!r} is {status}: some calls are refused meanwhile.",
            describe,
        )
    elif status is not None:
        mode = f", {stream.mode}" if stream.mode else ""
        shards = many(stream.open_shards or 0, "open shard")
        yield found(
            "stream-ok", f"{stream.name} {status}, {shards}, kept {in_hours(stream.retention_hours)}{mode}"
        )


# -- the lease table -----------------------------------------------------------------------------------------


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
    if table.expires_by:
        yield found(
            "table-expires",
            f"DynamoDB deletes rows of {table.name!r} by the time in their attribute {table.expires_by!r}. A lease "
            "that is deleted loses its position: its shard is read again, or records are skipped.",
            f"aws dynamodb update-time-to-live --table-name {command(table.name)} --time-to-live-specification "
            f"Enabled=false,AttributeName={command(table.expires_by)}",
        )
    yield from _small(facts, table)


def _missing(facts: Facts, table: TableFacts) -> Finding:
    if facts.config.create_table:
        return found(
            "table-to-be-made",
            f"There is no lease table {table.name!r} yet. The first worker creates it, if it may call "
            "dynamodb:CreateTable.",
        )
    return found(
        "table-missing",
        f"There is no lease table {table.name!r}, and create_table is off.",
        f"aws dynamodb create-table --table-name {command(table.name)} --billing-mode PAY_PER_REQUEST "
        "--attribute-definitions AttributeName=leaseKey,AttributeType=S --key-schema "
        "AttributeName=leaseKey,KeyType=HASH",
    )


def _described(table: TableFacts) -> str:
    billing = "billing unknown"
    if table.provisioned is not None:
        units = f"PROVISIONED {table.read_units:g}/{table.write_units:g}"
        billing = units if table.provisioned else "PAY_PER_REQUEST"
    leases = ""
    if table.watch is not None:
        view = table.watch.snapshot
        leases = f", {many(len(view.leases), 'lease')} ({view.schema})"
    return f"{table.name} {table.status or 'state unknown'}, {billing}, key leaseKey{leases}"


def _small(facts: Facts, table: TableFacts) -> Iterator[Finding]:
    if not table.provisioned:
        return
    needed = facts.shards_to_read / facts.config.renew_interval
    if table.write_units < needed:
        yield found(
            "table-small",
            f"{many(facts.shards_to_read, 'lease')} take {needed:.1f} writes a second for their heartbeats alone, and "
            f"the table has {table.write_units:g} write units: renewals are throttled, and leases are lost.",
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
    if watch.snapshot.unreadable:
        keys = sorted(watch.snapshot.unreadable)
        problem = watch.snapshot.unreadable[keys[0]].problem
        yield found(
            "rows-unreadable",
            f"{listed(map(short_shard, keys))} cannot be understood ({problem}): no worker reads that shard, "
            "and whoever did gave it up. Put back what is missing; a leaseCounter above all that the row has had.",
            command("pykcl", "leases", "describe", keys[0], "--table", table.name),
        )
    fleet = table.fleet
    if fleet is not None and fleet.kind is FleetKind.JAVA_3X_NATIVE and table.why_not_to_follow:
        yield found(
            "fleet-native-3x",
            f"Java KCL 3.x works on this table in its own mode ({fleet.why_native}): a leader assigns the leases. "
            f"pykcl refuses to join, because it cannot follow it: {table.why_not_to_follow}.",
            "pykcl explain E06",
        )
    if watch.snapshot.streams:
        names = sorted(set(watch.snapshot.streams.values()))
        yield found(
            "several-streams",
            f"Leases of {many(len(names), 'stream')} stand in this table ({listed(names, 3)}), as Java's multi-stream "
            "mode keeps them. pykcl reads one stream per application.",
            "pykcl run … --app ANOTHER",
        )
    elif facts.stream is not None:
        yield from _whose(facts, facts.stream, watch)


def _whose(facts: Facts, stream: StreamFacts, watch: WatchFacts) -> Iterator[Finding]:
    if stream.arn is None:
        return
    notes = [lease.metadata for lease in watch.snapshot.leases.values() if lease.metadata is not None]
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
            f"{many(len(others) or len(earlier), 'lease')} here belong to {whose}; this is {stream.name}. Every stream "
            "needs an application of its own. pykcl refuses to read.",
            command("pykcl", "run", "…", "--app", f"{facts.application_word}-{stream.name}"),
        )
    elif stream.shards and watch.snapshot.leases and not stream.shards & watch.snapshot.leases.keys():
        yield found(
            "leases-of-no-shard",
            f"None of the {many(len(watch.snapshot.leases), 'lease')} is of a shard that {stream.name} lists: another "
            "stream's table, or a fleet that was stopped for longer than records are kept.",
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


# -- permissions ---------------------------------------------------------------------------------------------


def check_permissions(facts: Facts) -> Iterator[Finding]:
    yield from _proven(facts)
    yield from _simulated(facts)


def _proven(facts: Facts) -> Iterator[Finding]:
    denied = sorted({p.action for p in facts.probes if p.trouble and p.trouble.kind == "denied"})
    who = facts.account.identity.arn if facts.account.identity else None
    if denied:
        yield found(
            "permission-denied",
            f"Denied{f' for {who}' if who else ''}: {listed(denied, 12)}.",
            policy_command(facts),
        )
    for probe in facts.probes:
        if probe.trouble is not None and probe.trouble.kind == "key":
            yield found(
                "key-denied",
                f"The stream is encrypted, and its key cannot be used ({probe.trouble.code}): nothing can be read. The "
                "worker needs kms:Decrypt on the key, and the key must be enabled.",
                command("pykcl", "streams", "describe", facts.stream_word) + "   (names the key)",
            )
            break
    # An answer that a resource is missing, or throttling, proves the permission.
    proven = [
        p.action for p in facts.probes if p.trouble is None or p.trouble.kind in ("missing", "throttled")
    ]
    if proven:
        yield found("permissions-ok", f"called, and permitted: {listed(dict.fromkeys(proven), 12)}")


def _simulated(facts: Facts) -> Iterator[Finding]:
    simulation = facts.simulation
    if simulation is None:
        if any(p.trouble is None for p in facts.probes):
            proven = {p.action for p in facts.probes} | {facts.letters.proven if facts.letters else ""}
            unproven = sorted(actions_of(needed_policy(facts)) - proven)
            if not unproven:
                return
            yield found(
                "permissions-unproven",
                f"The doctor writes nothing, so these are not proven: {listed(unproven, 12)}. IAM can simulate them.",
                f"{doctor_command(facts)} --simulate-iam",
            )
    elif simulation.why_not:
        yield found(
            "simulation-failed",
            f"IAM could not simulate the policy: {simulation.why_not}",
            "grant iam:SimulatePrincipalPolicy and iam:GetRole to whoever runs this, or run it as an administrator",
        )
    elif simulation.denied:
        denied = [f"{action} on {resource.rpartition(':')[2]}" for action, resource in simulation.denied]
        yield found(
            "permission-would-be-denied", f"IAM would not permit {listed(denied, 12)}.", policy_command(facts)
        )
    else:
        yield found(
            "permissions-simulated",
            f"IAM permits all {many(simulation.asked, 'action')} that a {facts.program} needs",
        )


# -- the fleet -----------------------------------------------------------------------------------------------


def check_peers(facts: Facts) -> Iterator[Finding]:
    watch, table = facts.watch, facts.table
    if watch is None or table is None or not watch.snapshot.leases:
        return
    live = watch.live_owners
    if not live:
        if watch.span:
            yield found(
                "nobody-works",
                f"No lease moved in {watch.span:.1f} s: no worker is running, or none holds a lease.",
                command("pykcl", "leases", "list", "--table", table.name),
            )
    else:
        kinds = Counter(table.kinds[owner].kind for owner in live if owner in table.kinds)
        libraries = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        versions = sorted({version for version in _versions(facts).values() if version})
        tail = f" ({', '.join(versions)})" if versions else ""
        yield found("peers-ok", f"{many(len(live), 'live worker')}: {libraries}{tail}")
    mine = facts.process.pykcl
    others = {owner: version for owner, version in _versions(facts).items() if version and version != mine}
    if others:
        yield found(
            "peers-other-version",
            f"{listed(f'{owner} runs pykcl {version}' for owner, version in sorted(others.items()))}; this is {mine}. "
            "That works, and should not stay so.",
            f"pip install pykcl=={max([mine, *others.values()])}   (everywhere)",
        )


def _versions(facts: Facts) -> dict[str, str | None]:
    """Return the versions of live pykcl workers."""
    watch, table = facts.watch, facts.table
    if watch is None or table is None:
        return {}
    return {
        owner: table.kinds[owner].version
        for owner in watch.live_owners
        if owner in table.kinds and table.kinds[owner].kind == "pykcl"
    }


def check_timing(facts: Facts) -> Iterator[Finding]:
    watch, failover = facts.watch, facts.config.failover_time
    if watch is None or not facts.knows_failover:
        return
    stale = sorted(
        lease.key
        for lease in watch.open_leases
        if lease.actual_owner is not None and watch.unmoved_for.get(lease.key, 0.0) >= failover
    )
    if stale:
        yield found(
            "leases-stale",
            f"{listed(map(short_shard, stale))} did not change for the failover time of {failover:g} s: their owners "
            "are dead, or their failover time is longer.",
            command("pykcl", "leases", "list", "--table", facts.table.name if facts.table else None)
            + f" --failover {failover:g}s",
        )
    if watch.span >= RENEWALS_SHOW * failover:
        yield from _beats(watch, failover)


def _beats(watch: WatchFacts, failover: float) -> Iterator[Finding]:
    """Compare the rate of heartbeats with the failover time.

    A worker renews twice per failover time, a Java worker three times, and every checkpoint moves the counter, too. So
    rare changes prove a longer failover time for any lease, frequent ones a shorter one only without checkpoints.
    """
    fewest, most_often = watch.span / (failover / 2), watch.span / (failover / 3)
    slow = {owner: beats for owner, beats in watch.heartbeats.items() if beats == 1}
    if slow:
        yield found(
            "failover-too-short",
            f"{listed(sorted(slow))} renewed once in {watch.span:.1f} s, where a failover time of {failover:g} s asks "
            f"for {fewest:.0f} times: theirs is longer. Whoever runs with {failover:g} s takes leases from them while "
            "they live, and records come twice.",
            "set failover_time (failoverTimeMillis) to the same in the whole fleet; theirs is about "
            f"{3 * watch.span:.0f} s at most",
        )
    fast = {
        owner: beats
        for owner, beats in watch.quiet_heartbeats.items()
        if beats >= _TOO_OFTEN * most_often + _SPARE_BEATS
    }
    if fast:
        highest = max(fast.values())
        yield found(
            "failover-too-long",
            f"{listed(sorted(fast))} renewed {highest} times in {watch.span:.1f} s, where {failover:g} s asks for "
            f"{most_often:.0f}: theirs is shorter. They take leases from a worker that runs with {failover:g} s at its "
            "first hiccup.",
            "set failover_time (failoverTimeMillis) to the same in the whole fleet; theirs is about "
            f"{3 * watch.span / highest:.1f} s",
        )


def check_room(facts: Facts) -> Iterator[Finding]:
    config, watch = facts.config, facts.watch
    workers = max(1, len(watch.live_owners)) if watch is not None else 1
    room = workers * config.max_leases
    if facts.shards_to_read > room:
        yield found(
            "max-leases-small",
            f"{many(facts.shards_to_read, 'open shard')}, and {many(workers, 'worker')} with at most "
            f"{config.max_leases} leases each: {facts.shards_to_read - room} are not read.",
            f"pykcl run … --option max_leases={-(-facts.shards_to_read // workers)}   (Java: maxLeasesForWorker)",
        )


def check_worker_ids(facts: Facts) -> Iterator[Finding]:
    config, watch = facts.config, facts.watch
    if watch is None:
        return
    if config.worker_id is not None and config.worker_id in watch.live_owners:
        yield found(
            "worker-id-taken",
            f"A live worker is called {config.worker_id!r}, as is configured here. If that is another process, the two "
            "take each other's leases for their own.",
            "drop worker_id (workerId): every process then gets a name of its own",
        )
    shared = watch.shared_worker_ids
    if shared:
        yield found(
            "worker-id-shared",
            f"Several processes renewed leases as {listed(map(repr, shared))} within {watch.span:.1f} s. They take "
            "each other's leases for their own, so leases move back and forth. (A process that was killed and started "
            "again within this time is no second one.)",
            "drop worker_id (workerId): every process then gets a name of its own",
        )


def check_start(facts: Facts) -> Iterator[Finding]:
    config, watch, table = facts.config, facts.watch, facts.table
    if table is None or table.foreign:
        return
    has_leases = watch is not None and bool(watch.snapshot.leases)
    if (
        not has_leases
        and config.initial_position == "LATEST"
        and (watch is not None or table.exists is False)
    ):
        yield found(
            "start-latest",
            "There is no lease yet, and the start is LATEST: records put before the first worker starts are not read.",
            "pykcl run … --start TRIM_HORIZON   (reads all that is kept)",
        )
    if watch is None or not has_leases or config.initial_position == "LATEST":
        return
    if all(not lease.checkpoint.is_start for lease in watch.snapshot.leases.values()):
        yield found(
            "start-ignored",
            f"initial_position={config.initial_position} has no effect: "
            f"{many(len(watch.snapshot.leases), 'lease')} have a checkpoint, and go on there.",
            command("pykcl", "checkpoints", "reset", "--table", table.name, "--stream", facts.stream_word)
            + " --to-earliest   (shows a plan first)",
        )


Check = Callable[[Facts], Iterable[Finding]]
OF_WORKER: tuple[Check, ...] = (
    check_process, check_worker_process, check_file, check_credentials, check_region, check_clock, check_reach,
    check_stream, check_consumers, check_lag, check_unleased, check_table, check_rows, check_permissions, check_letters,
    check_peers, check_members, check_progress, check_timing, check_room, check_worker_ids, check_start,
)  # fmt: skip
OF_PRODUCER: tuple[Check, ...] = (
    check_process, check_credentials, check_region, check_clock, check_reach, check_stream, check_puts,
    check_permissions,
)  # fmt: skip


def diagnose(facts: Facts) -> list[Finding]:
    """Return every finding, in the order of the checks."""
    checks = OF_WORKER if facts.program == "worker" else OF_PRODUCER
    return [finding for check in checks for finding in check(facts)]
