"""Who works on the table, how their clocks beat, and whether the configuration told here fits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pykcl.operate.doctor.facts import RENEWALS_SHOW, Facts, WatchFacts
from pykcl.operate.doctor.findings import Finding, command, found, listed, many
from pykcl.operate.hints import short_shard

_MUCH_TOO_OFTEN = 2.0
_SPARE_BEATS = 2


def check_peers(facts: Facts) -> Iterator[Finding]:
    watch, table = facts.watch, facts.table
    if watch is None or table is None or not watch.view.leases:
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
        told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        versions = sorted({version for version in _versions(facts).values() if version})
        tail = f" ({', '.join(versions)})" if versions else ""
        yield found("peers-ok", f"{many(len(live), 'living worker')}: {told}{tail}")
    mine = facts.process.pykcl
    others = {owner: version for owner, version in _versions(facts).items() if version and version != mine}
    if others:
        yield found(
            "peers-other-version",
            f"{listed(f'{owner} runs pykcl {version}' for owner, version in sorted(others.items()))}; this "
            f"is {mine}. "
            "That works, and should not stay so.",
            f"pip install pykcl=={max([mine, *others.values()])}   (everywhere)",
        )


def _versions(facts: Facts) -> dict[str, str | None]:
    """Of living pykcl workers."""
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
            f"{listed(map(short_shard, stale))} stood still for the fail-over time of {failover:g} s: "
            "their owners are "
            "dead, or their fail-over time is longer.",
            command("pykcl", "leases", "list", "--table", facts.table.name if facts.table else None)
            + f" --failover {failover:g}s",
        )
    if watch.span >= RENEWALS_SHOW * failover:
        yield from _beats(watch, failover)


def _beats(watch: WatchFacts, failover: float) -> Iterator[Finding]:
    """A worker renews twice per fail-over time, a Java worker thrice, and every checkpoint is a move, too. So seldom
    moves prove something of any lease, frequent ones only of a lease without checkpoints."""
    fewest, most_often = watch.span / (failover / 2), watch.span / (failover / 3)
    slow = {owner: beats for owner, beats in watch.heartbeats.items() if beats == 1}
    if slow:
        yield found(
            "failover-too-short",
            f"{listed(sorted(slow))} renewed once in {watch.span:.1f} s, where a fail-over time of "
            f"{failover:g} s asks for "
            f"{fewest:.0f} times: theirs is longer. Whoever runs with {failover:g} s takes leases from "
            "them while they "
            "live, and records come twice.",
            "set failover_time (failoverTimeMillis) to the same in the whole fleet; theirs is about "
            f"{3 * watch.span:.0f} s at most",
        )
    fast = {
        owner: beats
        for owner, beats in watch.quiet_heartbeats.items()
        if beats >= _MUCH_TOO_OFTEN * most_often + _SPARE_BEATS
    }
    if fast:
        most = max(fast.values())
        yield found(
            "failover-too-long",
            f"{listed(sorted(fast))} renewed {most} times in {watch.span:.1f} s, where {failover:g} s asks "
            "for "
            f"{most_often:.0f}: theirs is shorter. They take leases from a worker that runs with "
            f"{failover:g} s at its "
            "first hiccup.",
            "set failover_time (failoverTimeMillis) to the same in the whole fleet; theirs is about "
            f"{3 * watch.span / most:.1f} s",
        )


def check_room(facts: Facts) -> Iterator[Finding]:
    config, watch = facts.config, facts.watch
    workers = max(1, len(watch.live_owners)) if watch is not None else 1
    room = workers * config.max_leases
    if facts.shards_to_read > room:
        yield found(
            "max-leases-small",
            f"{many(facts.shards_to_read, 'open shard')}, and {many(workers, 'worker')} with at most "
            f"{config.max_leases} "
            f"leases each: {facts.shards_to_read - room} are not read.",
            f"pykcl run … --option max_leases={-(-facts.shards_to_read // workers)}   (Java: "
            "maxLeasesForWorker)",
        )
    if config.worker_id is not None and watch is not None and config.worker_id in watch.live_owners:
        yield found(
            "worker-id-taken",
            f"A living worker is called {config.worker_id!r}, as is configured here. If that is another "
            "process, the two "
            "take each other's leases for their own.",
            "drop worker_id (workerId): every process then gets a name of its own",
        )


def check_start(facts: Facts) -> Iterator[Finding]:
    config, watch, table = facts.config, facts.watch, facts.table
    if table is None or table.foreign:
        return
    has_leases = watch is not None and bool(watch.view.leases)
    if not has_leases and config.start == "LATEST" and (watch is not None or table.exists is False):
        yield found(
            "start-latest",
            "There is no lease yet, and the start is LATEST: records put before the first worker starts "
            "are not read.",
            "pykcl run … --start TRIM_HORIZON   (reads all that is kept)",
        )
    if watch is None or not has_leases or config.start == "LATEST":
        return
    if all(not lease.checkpoint.is_start for lease in watch.view.leases.values()):
        yield found(
            "start-ignored",
            f"start={config.start} has no effect: {many(len(watch.view.leases), 'lease')} have a "
            "checkpoint, and go on there.",
            command("pykcl", "checkpoints", "reset", "--table", table.name, "--stream", facts.stream_word)
            + " --to-earliest   (shows a plan first)",
        )
