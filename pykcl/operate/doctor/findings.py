"""The catalogue of findings, and one finding."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("ok", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    code: of the error it may cause, such as "E02". means: its condition, for the documentation.
    """

    id: str
    topic: str
    level: Level
    means: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """text: the fact and why it matters, in one line or a few sentences. fix: a command, or an edit.

    Names from AWS stand in both unescaped: the caller escapes them.
    """

    id: str
    topic: str
    level: Level
    text: str
    code: str | None = None
    fix: str | None = None


_KINDS = (
    Kind("credentials-ok", "credentials", "ok", "AWS says whose credentials these are"),
    Kind("credentials-missing", "credentials", "error", "boto3 finds no credentials it can use", "E04"),
    Kind(
        "credentials-refused",
        "credentials",
        "error",
        "AWS does not accept the credentials, or they have expired",
        "E04",
    ),
    Kind(
        "credentials-temporary",
        "credentials",
        "warning",
        "they expire and nothing renews them: a session token in the environment or in a file",
        "E04",
    ),
    Kind(
        "identity-unknown", "credentials", "info", "the identity of the credentials could not be determined"
    ),
    Kind("region-ok", "region", "ok", "the region of both services, and its source"),
    Kind("region-missing", "region", "error", "no region is named anywhere", "E01"),
    Kind(
        "region-differs",
        "region",
        "warning",
        "the environment names another region than the one used, so other programs here talk to that one",
        "E03",
    ),
    Kind(
        "regions-two",
        "region",
        "warning",
        "the stream is in one region, the lease table in another",
    ),
    Kind("clock-ok", "clock", "ok", "this machine's clock agrees with AWS'"),
    Kind(
        "clock-off",
        "clock",
        "warning",
        "the clocks differ by half a minute or more; times and lags shown here are off by as much",
    ),
    Kind(
        "clock-wrong",
        "clock",
        "error",
        "the clocks differ by four minutes or more; AWS refuses signatures that are off by five",
    ),
    Kind("aws-unreachable", "reach", "error", "a service did not answer, or failed"),
    Kind(
        "aws-throttles",
        "reach",
        "warning",
        "a service refused calls for their rate; others use up the shards' reads or the table's units",
        "E19",
    ),
    Kind("stream-ok", "stream", "ok", "the stream is there: its state, shards and retention"),
    Kind(
        "stream-unnamed",
        "stream",
        "info",
        "no stream is named, neither here nor in the table, so it was not checked",
    ),
    Kind("stream-missing", "stream", "error", "there is no such stream in that region and account", "E03"),
    Kind("stream-deleting", "stream", "error", "the stream is being deleted"),
    Kind("stream-changing", "stream", "warning", "the stream is being created or changed"),
    Kind("lag-ok", "lag", "ok", "how far the fleet is behind, against the retention"),
    Kind("lag-near-retention", "lag", "warning", "half the retention period or more behind", "E18"),
    Kind("lag-at-retention", "lag", "error", "nine tenths of the retention period or more behind", "E18"),
    Kind(
        "records-trimmed",
        "lag",
        "error",
        "Kinesis has dropped the checkpointed record: unread ones after it may be lost",
        "E18",
    ),
    Kind("lag-unknown", "lag", "info", "the lag of some leases could not be measured"),
    Kind("table-ok", "table", "ok", "the lease table is there: key, billing, leases"),
    Kind("table-to-be-made", "table", "info", "there is no lease table yet; the first worker creates it"),
    Kind("table-missing", "table", "error", "there is no lease table and `create_table` is off"),
    Kind("table-foreign", "table", "error", "the table is not a lease table: it has another key", "E05"),
    Kind("table-changing", "table", "warning", "the table is not ACTIVE"),
    Kind(
        "table-small",
        "table",
        "warning",
        "a PROVISIONED table has fewer units than the heartbeats of its leases take",
    ),
    Kind(
        "table-of-another-stream",
        "table",
        "error",
        "its leases belong to another stream, or to an earlier one of that name",
        "E07",
    ),
    Kind("leases-of-no-shard", "table", "warning", "no lease is of a shard that the stream lists", "E07"),
    Kind(
        "several-streams",
        "table",
        "error",
        "the table has leases of several streams (Java's multi-stream mode); pykcl does not join",
        "E07",
    ),
    Kind(
        "fleet-native-3x",
        "table",
        "error",
        "Java KCL 3.x works on it in its own mode; pykcl does not join",
        "E06",
    ),
    Kind("rows-unreadable", "table", "warning", "rows like leases that cannot be understood"),
    Kind("permissions-ok", "permissions", "ok", "calls that succeeded just now, so are permitted"),
    Kind("permission-denied", "permissions", "error", "a call was denied", "E02"),
    Kind(
        "key-denied",
        "permissions",
        "error",
        "the stream is encrypted and its key may not, or cannot, be used",
        "E02",
    ),
    Kind(
        "permissions-unproven",
        "permissions",
        "info",
        "writes are not tried, so their permissions are unknown",
    ),
    Kind(
        "permissions-simulated", "permissions", "ok", "IAM says that everything a worker needs is permitted"
    ),
    Kind(
        "permission-would-be-denied",
        "permissions",
        "error",
        "IAM says that something a worker needs is not permitted",
        "E02",
    ),
    Kind("simulation-failed", "permissions", "warning", "IAM could not simulate the policy"),
    Kind("dead-letters-ok", "permissions", "ok", "the destination of dead letters"),
    Kind(
        "dead-letters-unreachable",
        "permissions",
        "error",
        "the destination of dead letters cannot be used",
        "E22",
    ),
    Kind(
        "dead-letters-elsewhere",
        "permissions",
        "info",
        "the destination of dead letters is of another account",
    ),
    Kind("peers-ok", "fleet", "ok", "the workers of the table, and their libraries"),
    Kind("nobody-works", "fleet", "info", "no lease was seen moving"),
    Kind("peers-other-version", "fleet", "warning", "other pykcl workers have another version than this one"),
    Kind("leases-stale", "fleet", "warning", "owned leases were unchanged for the failover time"),
    Kind(
        "failover-too-short",
        "fleet",
        "warning",
        "the fleet's heartbeats are too rare for the failover time given here, which must be the same everywhere",
    ),
    Kind(
        "failover-too-long",
        "fleet",
        "warning",
        "the fleet's heartbeats are much more frequent than the failover time given here requires",
    ),
    Kind(
        "max-leases-small",
        "fleet",
        "warning",
        "all workers together may hold fewer leases than there are open shards",
        "E20",
    ),
    Kind(
        "worker-id-taken",
        "fleet",
        "warning",
        "a live worker has the `worker_id` that is configured here",
        "E08",
    ),
    Kind(
        "start-latest",
        "fleet",
        "info",
        "no lease yet, and the start is LATEST: records from before the first lease are not read",
        "E16",
    ),
    Kind("start-ignored", "fleet", "info", "a start is configured, but every lease has a checkpoint", "E17"),
    Kind("process-ok", "process", "ok", "Python, boto3, connections and open files"),
    Kind(
        "connections-few",
        "process",
        "warning",
        "one worker may hold more leases than its connection pool has room for",
    ),
    Kind("files-few", "process", "warning", "the limit of open files is below what the connections need"),
    Kind(
        "package-missing", "process", "error", "a package that the configured metrics need is not installed"
    ),
    Kind("metrics-off", "process", "info", "no metrics are sent: no alarm when the fleet falls behind"),
    Kind(
        "program-unfit",
        "file",
        "error",
        "`executableName` of the .properties file cannot be started here, so `pykcl multilangd` refuses the file",
    ),
    Kind("key-unknown", "file", "warning", "nothing reads a key of the .properties file, Java neither"),
    Kind(
        "fan-out-used",
        "file",
        "warning",
        "by the .properties file Java reads by enhanced fan-out, and polling is not accepted in it",
    ),
)

CATALOGUE = {kind.id: kind for kind in _KINDS}
"""By id, in the order of the diagnosis."""
TOPICS = tuple(dict.fromkeys(kind.topic for kind in _KINDS))


def found(id: str, text: str, fix: str | None = None) -> Finding:
    """Return a finding of the catalogue. Raises KeyError for an unknown id."""
    kind = CATALOGUE[id]
    return Finding(id, kind.topic, kind.level, text, kind.code, fix)


def command(*words: str | None) -> str:
    """Return a command to copy, quoted for a shell; None is omitted."""
    return shlex.join(word for word in words if word is not None)


def count(findings: Iterable[Finding], level: Level) -> int:
    return sum(one.level == level for one in findings)


def many(number: int, what: str) -> str:
    """Return "1 lease", "2 leases"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], limit: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
