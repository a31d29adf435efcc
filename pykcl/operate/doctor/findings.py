"""The catalogue of findings, and one finding."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
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


_KINDS: Mapping[str, Sequence[tuple[str, Level, str | None, str]]] = {
    "credentials": [
        ("credentials-ok", "ok", None, "AWS says whose credentials these are"),
        ("credentials-missing", "error", "E04", "boto3 finds no credentials it can use"),
        ("credentials-refused", "error", "E04", "AWS does not accept the credentials, or they have expired"),
        ("credentials-temporary", "warning", "E04",
         "they expire and nothing renews them: a session token in the environment or in a file"),
        ("identity-unknown", "info", None, "the identity of the credentials could not be determined"),
    ],
    "region": [
        ("region-ok", "ok", None, "the region of both services, and its source"),
        ("region-missing", "error", "E01", "no region is named anywhere"),
        ("region-differs", "warning", "E03",
         "the environment names another region than the one used, so other programs here talk to that one"),
        ("regions-two", "warning", None, "the stream is in one region, the lease table in another"),
    ],
    "clock": [
        ("clock-ok", "ok", None, "this machine's clock agrees with AWS'"),
        ("clock-off", "warning", None,
         "the clocks differ by half a minute or more; times and lags shown here are off by as much"),
        ("clock-wrong", "error", None,
         "the clocks differ by four minutes or more; AWS refuses signatures that are off by five"),
    ],
    "reach": [
        ("hosts-asked", "info", None, "the hosts that the requests of this check went to, each with the operations"),
        ("aws-unreachable", "error", None, "a service did not answer, or failed"),
        ("aws-throttles", "warning", "E19",
         "a service refused calls for their rate; others use up the shards' reads or the table's units"),
    ],
    "stream": [
        ("stream-ok", "ok", None, "the stream is there: its state, shards and retention"),
        ("stream-unnamed", "info", None, "no stream is named, neither here nor in the table, so it was not checked"),
        ("stream-missing", "error", "E03", "there is no such stream in that region and account"),
        ("stream-deleting", "error", None, "the stream is being deleted"),
        ("keys-ignored", "info", "E28",
         "RecordDistributionStrategy is AUTO: records of one partition key lie in any shard, and come in no order"),
        ("stream-changing", "warning", None, "the stream is being created or changed"),
        ("consumers-billed", "info", None,
         "the stream has consumers of enhanced fan-out: AWS bills each of them for every open shard and hour"),
        ("consumer-unused", "warning", None,
         "no live application was found that reads by a consumer, which is billed all the same"),
        ("consumer-missing", "error", None,
         "the consumer that is configured here does not exist, and `register_consumer` is off"),
    ],
    "puts": [
        ("puts-ok", "ok", None, "what the shards take from all producers together, and how large a record may be"),
        ("puts-throttled", "warning", None, "Kinesis has refused records within 15 minutes, as a shard had too many"),
        ("key-untried", "info", None, "the stream is encrypted with a key of your own, which producers need, too"),
    ],
    "lag": [
        ("lag-ok", "ok", None, "how far the fleet is behind, against the retention"),
        ("lag-near-retention", "warning", "E18", "half the retention period or more behind"),
        ("lag-at-retention", "error", "E18", "nine tenths of the retention period or more behind"),
        ("records-trimmed", "error", "E18",
         "Kinesis has dropped the checkpointed record: unread ones after it may be lost"),
        ("shards-without-lease", "warning", "E31",
         "nobody can read some shards yet: they get a lease when a parent has ended, or when a worker creates it"),
        ("lag-unknown", "info", None, "the lag of some leases could not be measured"),
    ],
    "table": [
        ("table-ok", "ok", None, "the lease table is there: key, billing, leases"),
        ("table-to-be-made", "info", None, "there is no lease table yet; the first worker creates it"),
        ("table-missing", "error", None, "there is no lease table and `create_table` is off"),
        ("table-foreign", "error", "E05", "the table is not a lease table: it has another key"),
        ("table-changing", "warning", None, "the table is not ACTIVE"),
        ("table-small", "warning", None, "a PROVISIONED table has fewer units than the heartbeats of its leases take"),
        ("table-expires", "error", None,
         "the table has a time to live: DynamoDB deletes rows, and positions with them"),
        ("table-of-another-stream", "error", "E07",
         "its leases belong to another stream, or to an earlier one of that name"),
        ("leases-of-no-shard", "warning", "E07", "no lease is of a shard that the stream lists"),
        ("several-streams", "error", "E07",
         "the table has leases of several streams (Java's multi-stream mode); pykcl does not join"),
        ("fleet-native-3x", "error", "E06", "Java KCL 3.x works on it in its own mode, in which pykcl cannot follow"),
        ("table-migration-running", "warning", "E06", "KCL 3.5 is moving its rows into the table; pykcl does not join"),
        ("owner-index-missing", "error", "E06",
         "a fleet of KCL 3.x in its own mode whose index of owners is missing, or being made"),
        ("java-state-unread", "info", None, "the tables of KCL 3.0-3.4 could not be read"),
        ("rows-unreadable", "warning", None, "rows like leases that cannot be understood"),
    ],
    "permissions": [
        ("permissions-ok", "ok", None, "calls that succeeded just now, so are permitted"),
        ("permission-denied", "error", "E02", "a call was denied"),
        ("key-denied", "error", "E02", "the stream is encrypted and its key may not, or cannot, be used"),
        ("permissions-unproven", "info", None, "writes are not tried, so their permissions are unknown"),
        ("permissions-simulated", "ok", None, "IAM says that everything the program needs is permitted"),
        ("permission-would-be-denied", "error", "E02", "IAM says that something the program needs is not permitted"),
        ("simulation-failed", "warning", None, "IAM could not simulate the policy"),
        ("dead-letters-ok", "ok", None, "the destination of dead letters"),
        ("dead-letters-unreachable", "error", "E22", "the destination of dead letters cannot be used"),
        ("dead-letters-elsewhere", "info", None, "the destination of dead letters is of another account"),
    ],
    "fleet": [
        ("peers-ok", "ok", None, "the workers of the table, and their libraries"),
        ("nobody-works", "info", None, "no lease was seen moving"),
        ("peers-other-version", "warning", None, "other pykcl workers have another version than this one"),
        ("leader-absent", "warning", None,
         "in KCL 3.x's own mode: nobody holds the leader's lock, or its owner no longer reports"),
        ("owner-without-metrics", "warning", None,
         "in KCL 3.x's own mode: a worker owns leases and reports no metrics"),
        ("metrics-stale", "warning", None,
         "in KCL 3.x's own mode: an owner's last report is older than a minute"),
        ("metrics-ahead", "warning", None,
         "in KCL 3.x's own mode: a report is more than a minute ahead of AWS' clock"),
        ("metrics-unfit", "warning", None,
         "in KCL 3.x's own mode: a report that Java does not count: half written, without limits, or of a failed "
         "measurement"),
        ("worker-id-of-a-shard", "error", None,
         "a worker's identifier is the id of a shard, whose lease KCL 3.x replaces by its metrics"),
        ("leases-stale", "warning", None, "owned leases were unchanged for the failover time"),
        ("failover-too-short", "warning", None,
         "the fleet's heartbeats are too rare for the failover time given here, which must be the same everywhere"),
        ("failover-too-long", "warning", None,
         "the fleet's heartbeats are much more frequent than the failover time given here requires"),
        ("shard-stands", "error", "E31",
         "a pykcl worker has noted that a shard does not get past its checkpoint: since when, why, and what to do"),
        ("owners-change", "warning", None, "a lease changes its owner again and again, and no checkpoint is written"),
        ("max-leases-small", "warning", "E20", "all workers together may hold fewer leases than there are open shards"),
        ("worker-id-taken", "warning", "E08", "a live worker has the `worker_id` that is configured here"),
        ("worker-id-shared", "warning", "E08", "two processes renew leases under one worker identifier"),
        ("start-latest", "info", "E16",
         "no lease yet, and the start is LATEST: records from before the first lease are not read"),
        ("start-ignored", "info", "E17", "a start is configured, but every lease has a checkpoint"),
    ],
    "process": [
        ("process-ok", "ok", None, "Python, boto3, connections and open files"),
        ("connections-few", "warning", None, "one worker may hold more leases than its connection pool has room for"),
        ("files-few", "warning", None, "the limit of open files is below what the connections need"),
        ("package-missing", "error", None, "a package that the metrics or the compression need is not installed"),
        ("metrics-off", "info", None, "no metrics are sent: no alarm when the fleet falls behind"),
    ],
    "file": [
        ("program-unfit", "error", None,
         "`executableName` of the .properties file cannot be started here, so `pykcl multilangd` refuses the file"),
        ("key-unknown", "warning", None, "nothing reads a key of the .properties file, Java neither"),
        ("value-literal", "warning", None,
         "a value of the .properties file has a $, ~, # or tab that only a shell would replace"),
        ("fan-out-used", "info", None,
         "by the .properties file the stream is read by enhanced fan-out, as by Java, and that is billed"),
    ],
}  # fmt: skip
"""Topic -> (id, level, error code, condition) of its findings."""

CATALOGUE = {
    id: Kind(id, topic, level, means, code)
    for topic, kinds in _KINDS.items()
    for id, level, code, means in kinds
}
"""By id, in the order of the diagnosis."""
TOPICS = tuple(_KINDS)


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
