"""The stream, and how far behind the fleet is against the time that records are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.operate.doctor.facts import Facts, StreamFacts
from pykcl.operate.doctor.findings import Finding, command, found, listed, many
from pykcl.operate.hints import short_shard

NEAR = 0.5
AT = 0.9
"""Parts of the retention period."""
_LONGEST_RETENTION = 8760
"""Hours: a year, Kinesis' limit."""


def check_stream(facts: Facts) -> Iterator[Finding]:
    stream = facts.stream
    if stream is None:
        if not (facts.account.no_credentials or facts.account.no_region):
            yield found(
                "stream-not-told",
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


def _state(facts: Facts, stream: StreamFacts) -> Iterator[Finding]:
    status = stream.status
    look = command("pykcl", "streams", "describe", stream.name)
    if status == "DELETING":
        yield found("stream-deleting", f"Stream {stream.name!r} is being deleted.", look)
    elif status in ("CREATING", "UPDATING"):
        yield found(
            "stream-changing", f"Stream {stream.name!r} is {status}: some calls are refused meanwhile.", look
        )
    elif status is not None:
        mode = f", {stream.mode}" if stream.mode else ""
        shards = many(stream.open_shards, "open shard")
        yield found(
            "stream-ok", f"{stream.name} {status}, {shards}, kept {_hours(stream.retention_hours)}{mode}"
        )


def check_lag(facts: Facts) -> Iterator[Finding]:
    if facts.lags is None or facts.stream is None or not facts.lags:
        return
    lags = facts.lags
    trimmed = sorted(key for key, lag in lags.items() if lag.verdict == "trimmed")
    if trimmed:
        yield found(
            "records-trimmed",
            f"{listed(map(short_shard, trimmed))}: Kinesis no longer has the checkpointed record. Unread "
            "records behind "
            "it may have been dropped, too.",
            _longer_retention(facts.stream),
        )
    unknown = sorted(key for key, lag in lags.items() if lag.behind is None)
    if unknown:
        yield found(
            "lag-unknown",
            f"{listed(map(short_shard, unknown))}: nobody can tell how far behind. {lags[unknown[0]].why}",
            command("pykcl", "lag", "--application", facts.application_word, "--stream", facts.stream.name),
        )
    yield from _against_retention(facts, facts.stream)


def _against_retention(facts: Facts, stream: StreamFacts) -> Iterator[Finding]:
    known = {key: lag.behind for key, lag in (facts.lags or {}).items() if lag.behind is not None}
    if not known or not stream.retention_hours:
        return
    worst = max(known, key=lambda key: known[key])
    behind, kept = known[worst], stream.retention_hours * 3600.0
    text = f"{short_shard(worst)} is {_span(behind)} behind, and records are kept for {_hours(stream.retention_hours)}"
    fix = _longer_retention(stream)
    left = f"unread records are dropped in {_span(kept - behind)} unless it catches up"
    if behind >= AT * kept:
        yield found("lag-at-retention", f"{text}: {left}." if behind < kept else f"{text}.", fix)
    elif behind >= NEAR * kept:
        yield found("lag-near-retention", f"{text}: {left}.", fix)
    else:
        yield found(
            "lag-ok", f"at most {_span(behind)} behind; records are kept for {_hours(stream.retention_hours)}"
        )


def _longer_retention(stream: StreamFacts) -> str:
    hours = min(_LONGEST_RETENTION, max(168, 2 * (stream.retention_hours or 24)))
    return command(
        "aws", "kinesis", "increase-stream-retention-period", "--stream-name", stream.name,
        "--retention-period-hours", str(hours),
    )  # fmt: skip


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{rest:02d}s"


def _hours(hours: int | None) -> str:
    return "for an unknown time" if hours is None else f"{hours}h"
