"""The checks of how far the fleet has got: its lag against the retention, and shards that stand. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.model.lease import Lease, Standstill
from pykcl.model.shard import short_shard
from pykcl.operate.doctor.facts import Facts, StreamFacts
from pykcl.operate.doctor.findings import Finding, command, found, listed, many
from pykcl.operate.hints import MANY_SWITCHES, standstill_of
from pykcl.times import format_duration

NEAR, AT = 0.5, 0.9
"""Fractions of the retention period."""
_MAX_RETENTION = 8760
"""Hours: a year, Kinesis' limit."""
_MAX_STANDING = 5
"""Shards with a finding each."""


def check_lag(facts: Facts) -> Iterator[Finding]:
    if facts.lags is None or facts.stream is None or not facts.lags:
        return
    lags = facts.lags
    trimmed = sorted(key for key, lag in lags.items() if lag.verdict == "trimmed")
    if trimmed:
        yield found(
            "records-trimmed",
            f"{listed(map(short_shard, trimmed))}: Kinesis no longer has the checkpointed record. Unread records after "
            "it may have been dropped, too.",
            _longer_retention(facts.stream),
        )
    unknown = sorted(key for key, lag in lags.items() if lag.behind is None)
    if unknown:
        yield found(
            "lag-unknown",
            f"{listed(map(short_shard, unknown))}: unknown lag. {lags[unknown[0]].why}",
            command("pykcl", "lag", "--application", facts.application_word, "--stream", facts.stream.name),
        )
    yield from _against_retention(facts, facts.stream)


def _against_retention(facts: Facts, stream: StreamFacts) -> Iterator[Finding]:
    known = {key: lag.behind for key, lag in (facts.lags or {}).items() if lag.behind is not None}
    if not known or not stream.retention_hours:
        return
    worst = max(known, key=lambda key: known[key])
    behind, kept = known[worst], stream.retention_hours * 3600.0
    retention = in_hours(stream.retention_hours)
    text = f"{short_shard(worst)} is {format_duration(behind)} behind, and records are kept for {retention}"
    fix = _longer_retention(stream)
    left = f"unread records are dropped in {format_duration(kept - behind)} unless it catches up"
    if behind >= AT * kept:
        yield found("lag-at-retention", f"{text}: {left}." if behind < kept else f"{text}.", fix)
    elif behind >= NEAR * kept:
        yield found("lag-near-retention", f"{text}: {left}.", fix)
    else:
        yield found(
            "lag-ok",
            f"at most {format_duration(behind)} behind; records are kept for {in_hours(stream.retention_hours)}",
        )


def _longer_retention(stream: StreamFacts) -> str:
    hours = min(_MAX_RETENTION, max(168, 2 * (stream.retention_hours or 24)))
    return command(
        "aws", "kinesis", "increase-stream-retention-period", "--stream-name", stream.name,
        "--retention-period-hours", str(hours),
    )  # fmt: skip


def in_hours(hours: int | None) -> str:
    return "for an unknown time" if hours is None else f"{hours}h"


def check_unleased(facts: Facts) -> Iterator[Finding]:
    """Check for shards that nobody can read, as they have no lease."""
    if facts.watch is None or not facts.watch.snapshot.leases:
        return
    by_parents: dict[tuple[str, ...], list[str]] = {}
    for one in facts.unleased:
        by_parents.setdefault(one.waits_for, []).append(one.key)
    reasons = {one.key: one.reason for one in facts.unleased}
    for keys in list(by_parents.values())[:_MAX_STANDING]:
        known = {key: lag for key, lag in (facts.lags or {}).items() if key in keys and lag.why}
        worst = max(known, key=lambda key: known[key].behind or 0.0, default=keys[0])
        why = known[worst].why if worst in known else reasons[worst]
        yield found(
            "shards-without-lease",
            f"{listed(map(short_shard, keys))} cannot be read yet, without a lease: {short_shard(worst)} {why}.",
            command("pykcl", "lag", *_of_the_fleet(facts)),
        )


def check_progress(facts: Facts) -> Iterator[Finding]:
    """Check what keeps shards where they are, by the notes of their workers and by the changes of their owners."""
    if facts.watch is None:
        return
    leases = facts.watch.open_leases
    standing = [lease for lease in leases if lease.standstill is not None]
    for lease in standing[:_MAX_STANDING]:
        yield _standing(facts, lease, lease.standstill)
    if more := standing[_MAX_STANDING:]:
        yield found(
            "shard-stands",
            f"So do {many(len(more), 'more shard')}: {listed(short_shard(lease.key) for lease in more)}.",
            command("pykcl", "lag", *_of_the_fleet(facts)),
        )
    changing = [
        lease for lease in leases if lease.standstill is None and lease.owner_switches >= MANY_SWITCHES
    ]
    if changing:
        most = max(lease.owner_switches for lease in changing)
        yield found(
            "owners-change",
            f"{listed(short_shard(lease.key) for lease in changing)} changed hands up to {most} times without a "
            "checkpoint: workers die over what is in it, or are too slow to checkpoint. Their logs say which.",
            _shown(facts, changing[0], 10),
        )


def _standing(facts: Facts, lease: Lease, note: Standstill | None) -> Finding:
    text = f"{short_shard(lease.key)} {standstill_of(lease)}. Its checkpoint is {lease.checkpoint}."
    if note is None or not note.records:
        return found("shard-stands", text, f"pykcl explain {note.code if note and note.code else 'E31'}")
    step = command(
        "pykcl", "checkpoints", "reset", *_of_the_fleet(facts), "--shard", lease.key, "--shift-by", "1"
    )
    return found(
        "shard-stands",
        f"{text} The command below shows what comes next. Correct the processor. If none can digest the next record, "
        f"step over it while the fleet is stopped: {step}. Or let workers give such records up: --option "
        "max_attempts=5 --option dead_letters=file:DIRECTORY",
        _shown(facts, lease, min(note.records, 10)),
    )


def _of_the_fleet(facts: Facts) -> tuple[str, ...]:
    return ("--application", facts.application_word, "--stream", facts.stream_word)


def _shown(facts: Facts, lease: Lease, records: int) -> str:
    """Return the command that prints the records after its checkpoint."""
    return command(
        "pykcl", "tail", facts.stream_word, "--shard", lease.key, "--from-app", facts.application_word, "-n",
        str(records),
    )  # fmt: skip
