"""The mistakes that users of this library make: code, what it is called, what to do, and where to read more.

An error or an event about one of them has its `code`, `hint` and `docs`. docs/operate/troubleshooting.md has a
section for each code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

DOCS = "https://github.com/pykcl/pykcl/blob/main/docs/operate/troubleshooting.md"


@dataclass(frozen=True, slots=True)
class Mistake:
    """do: the next command or edit; APPLICATION, STREAM, TABLE and SHARD stand for names. with_record, with_records:
    the same where it was made over one record, and over several."""

    code: str
    title: str
    do: str
    with_record: str = ""
    with_records: str = ""


_OF = "--app APPLICATION --stream STREAM"
_MISTAKES = (
    Mistake(
        "E01",
        "No AWS region",
        "export AWS_REGION=eu-west-1, or pass region= (regionName); a stream ARN names its region, too",
    ),
    Mistake(
        "E02",
        "A call is not permitted",
        f"pykcl iam {_OF} prints the policy to attach to this identity; pykcl doctor {_OF} checks it",
    ),
    Mistake(
        "E03",
        "The stream does not exist there",
        "pykcl streams list shows what is there; correct the name, the region or the credentials",
    ),
    Mistake(
        "E04",
        "No credentials, or refused ones",
        "aws sts get-caller-identity shows whose are used; aws sso login --profile NAME renews those of SSO",
    ),
    Mistake(
        "E05",
        "The table is not a lease table",
        "name another application, or another table: --option table_name=APPLICATION-leases (tableName)",
    ),
    Mistake(
        "E06",
        "The leader of a KCL 3.x fleet cannot be followed",
        f"pykcl doctor {_OF} shows the evidence; leave out fleet_mode, or let the fleet's own migration end first",
    ),
    Mistake(
        "E07",
        "Two streams under one application name",
        "one application name for each stream (--app, applicationName); pykcl leases list --app APPLICATION shows "
        "whose leases these are",
    ),
    Mistake(
        "E08",
        "Two processes with one worker identifier",
        "drop worker_id (--worker-id, workerId): each process then gets host:pid:random",
    ),
    Mistake(
        "E09",
        "shard_ended did not checkpoint",
        "call end.checkpointer.checkpoint() in shard_ended, or leave that method out; in a program of amazon_kclpy "
        "checkpoint with the input's checkpointer in shard_ended (version 3), or in shutdown when its reason is "
        "TERMINATE (versions 1 and 2)",
    ),
    Mistake(
        "E10",
        "A checkpoint after the lease was lost",
        "stop work on this shard and do not retry; pykcl leases list --app APPLICATION shows who has it now",
    ),
    Mistake(
        "E11",
        "Heartbeats were kept from running",
        "raise failover_time (failoverTimeMillis) in the whole fleet, make batches smaller (max_records, maxRecords), "
        "or give the processor a process of its own (pykcl multilangd)",
    ),
    Mistake(
        "E12",
        "The processor raised",
        "correct the processor; it had no record in hand, so there is none to step over",
        "correct the processor; if none can digest this record, step over it by "
        f"pykcl checkpoints reset --shard SHARD --shift-by 1 {_OF}",
        "correct the processor; the records from first to last are not checkpointed, and any of them may be the one "
        "that failed; pykcl tail STREAM --shard SHARD --from-app APPLICATION shows them",
    ),
    Mistake(
        "E13",
        "A checkpoint beyond what was delivered",
        "checkpoint a record of the batch, checkpointer.checkpoint(record), or all of it, checkpointer.checkpoint()",
    ),
    Mistake(
        "E15",
        "processor= is not a class or factory",
        "processor=Orders (the class), or processor=lambda: Orders(settings)",
    ),
    Mistake(
        "E16",
        "LATEST leaves out the first records",
        "initial_position=TRIM_HORIZON (--start TRIM_HORIZON, initialPositionInStream=TRIM_HORIZON) reads all that is "
        f"kept; now that there are leases: pykcl checkpoints reset {_OF} --to-earliest",
    ),
    Mistake(
        "E17",
        "A changed start replays nothing",
        f"to replay, stop the fleet, then: pykcl checkpoints reset {_OF} --to-earliest",
    ),
    Mistake(
        "E18",
        "Retention overtakes the reader",
        f"pykcl lag {_OF}; keep records longer: aws kinesis increase-stream-retention-period --stream-name STREAM "
        "--retention-period-hours 168",
    ),
    Mistake(
        "E19",
        "The shard's reads are used up",
        "read less often, in every application of this stream: --option idle_time_between_reads=2 "
        "(idleTimeBetweenReadsInMillis=2000); "
        "pykcl streams describe STREAM shows who else reads",
    ),
    Mistake(
        "E20",
        "max_leases is too small",
        "raise max_leases (maxLeasesForWorker) or start another worker; pykcl leases list --app APPLICATION shows what "
        "nobody reads",
    ),
    Mistake(
        "E21",
        "Records to give up, and nowhere to keep them",
        "name a destination: dead_letters='file:DIRECTORY', or Worker(dead_letters=keep) with a function of yours; "
        "dead_letters='discard' drops them for good",
    ),
    Mistake(
        "E22",
        "Dead letters cannot be sent",
        "correct the destination (does it exist, may this identity write to it?) or name another by dead_letters=; "
        f"nothing is lost while the stream keeps its records: pykcl lag {_OF}",
    ),
    Mistake(
        "E23",
        "The Lambda handler cannot be called",
        "write a plain def handler(event, context), without yield; run a coroutine in it by asyncio.run(...)",
    ),
    Mistake(
        "E24",
        "The response of the handler cannot be used",
        "return {'batchItemFailures': [{'itemIdentifier': record['kinesis']['sequenceNumber']}]} for records of this "
        "event, and an empty list if none failed; with windows also {'state': state}, and from a function the state",
    ),
    Mistake(
        "E26",
        "An async handler blocks the event loop",
        "await what waits: an async client, or asyncio.to_thread(function) around a call that blocks; or write a plain "
        "def with concurrency=",
    ),
    Mistake(
        "E28",
        "Order by keys on a stream that ignores them",
        "if the order of a key's records counts, let the stream place records by key: aws kinesis "
        "update-stream-record-distribution-strategy --record-distribution-strategy USER_PARTITION_KEY --stream-arn ARN",
    ),
    Mistake(
        "E29",
        "A lease row changed or deleted under its owner",
        "leave the rows of a working fleet alone; to move a checkpoint, or to replay, stop the fleet, then: "
        f"pykcl checkpoints reset {_OF} --shard SHARD with --to-earliest, --to-datetime or another place",
    ),
    Mistake(
        "E30",
        "A start time that Kinesis' clock has not reached",
        "compare the times in the message: choose an earlier start, set the clock of this machine right (chronyc "
        "tracking), or find the proxy that changes the Date headers of AWS",
    ),
    Mistake(
        "E31",
        "A shard does not get on",
        f"pykcl doctor {_OF} shows since when, why, and the commands that help",
    ),
)

MISTAKES: Mapping[str, Mistake] = {mistake.code: mistake for mistake in _MISTAKES}
"""By code."""
_NAMES = re.compile(r"\b(APPLICATION|STREAM|TABLE|SHARD)\b")


def hint_of(code: str | None, names: Mapping[str, str] | None = None, *, records: int = 0) -> str | None:
    """Return the hint for an error code, with the known names in their places; None where there is no such code.

    records: over how many it was made."""
    found = MISTAKES.get(code or "")
    if found is None:
        return None
    special = (found.with_record if records == 1 else found.with_records) if records else ""
    return with_names(special or found.do, names or {})


def with_names(hint: str, names: Mapping[str, str]) -> str:
    """names: by the word that stands for them. They are quoted where a shell would take them for more than a word."""
    return _NAMES.sub(lambda word: shlex.quote(names[word[0]]) if word[0] in names else word[0], hint)


def docs_of(code: str | None) -> str | None:
    """Address of its section; None where there is no such code."""
    return f"{DOCS}#{code.lower()}" if code is not None and code in MISTAKES else None
