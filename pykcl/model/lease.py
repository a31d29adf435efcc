"""A lease: who reads a shard, how far it got, and the heartbeat counter that fences every write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pykcl.model.checkpoint import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Checkpoint, ReadFrom, StartPosition
from pykcl.model.shard import HashRange, StreamDescription

AttributeValue = Mapping[str, Any]
"""A DynamoDB attribute in its wire form, such as {"S": "text"}."""


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """The first half of a two-phase checkpoint: a position, and state the application wants back after a crash."""

    checkpoint: Checkpoint
    state: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Standstill:
    """A note of the owner that its shard does not get past a checkpoint. For whoever operates the fleet: no worker
    decides by it. It counts only while the row has that very checkpoint, so whoever moves it need not know of the note.

    at: the checkpoint. since: Kinesis' clock, epoch milliseconds, at the first failure. handed_back: how often the
    lease was let go at that checkpoint. records: of the call that failed last; 0 for a call without records. code: the
    error code, such as "E12", or "". cause: the failure, such as "process_records raised KeyError at orders.py:12";
    never the text of an exception, which may quote a payload.
    """

    at: Checkpoint
    since: int
    handed_back: int = 0
    records: int = 0
    code: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class PykclMetadata:
    """The content of pykcl's one private attribute, the map `pykcl` (Java ignores and preserves it).

    stream_arn, stream_created_at: which stream the lease belongs to; creation time in epoch milliseconds.
    owner, version: the pykcl worker that wrote this; believed only while `owner` equals the row's leaseOwner.
    latest_from: server time, epoch milliseconds, from which the application's start at LATEST counts.
    process_token: of the process that wrote this, so that two processes of one worker identifier differ
    (in the row it is called `session`).
    failover_millis: the failover time of that worker, for whoever operates the fleet; no worker decides by it.
    standstill: as written; `Lease.standstill` is the one that counts.
    latest_done: the first sequence number that the row had after that start, as far as pykcl wrote or saw it. From then
    on `latest_from` is history.
    latest_reset: server time, epoch milliseconds, at which a worker found that somebody had set an old row to LATEST.
    It is gone with the next sequence number.
    consumer: name of the consumer by which that worker reads, with enhanced fan-out; for whoever operates the fleet.
    until: end of the run that the lease belongs to, epoch milliseconds; None for a run without an end.
    begin: where a run with an end begins: "TRIM_HORIZON", "LATEST" or a time in ISO 8601 (in the row: `from`).
    shards: short ids of the shards that such a run was given, with commas; None: all of the stream.
    extra: keys of later versions, kept as they are.
    """

    stream_arn: str | None = None
    stream_created_at: int | None = None
    owner: str | None = None
    version: str | None = None
    latest_from: int | None = None
    extra: Mapping[str, AttributeValue] = field(default_factory=dict, repr=False)
    process_token: str | None = None
    failover_millis: int | None = None
    standstill: Standstill | None = None
    latest_done: str | None = None
    consumer: str | None = None
    until: int | None = None
    begin: str | None = None
    latest_reset: int | None = None
    shards: str | None = None

    def after(self, position: Checkpoint) -> PykclMetadata:
        """Return what the note says once the row has this position."""
        if position.is_start or self.latest_since is None:
            return self
        is_first = self.latest_from is not None and self.latest_done is None
        done = position.sequence_number if is_first else self.latest_done
        return replace(self, latest_done=done, latest_reset=None)

    @property
    def latest_since(self) -> int | None:
        """Server time, epoch milliseconds, from which LATEST in the row counts; None: from now on."""
        if self.latest_reset is not None:
            return self.latest_reset
        return self.latest_from if self.latest_done is None else None

    def conflicts_with(self, stream: StreamDescription) -> bool:
        """Return whether the lease belongs to another stream than this one, or to an earlier stream of its name."""
        other = self.stream_arn is not None and self.stream_arn != stream.arn
        made_again = self.stream_created_at is not None and self.stream_created_at != stream.created_at
        return other or made_again


@dataclass(frozen=True, slots=True)
class Lease:
    """One row of the lease table, parsed.

    key: the shard id. counter: moves by exactly one with every write of an owner; it is the fence.
    checkpoint_owner: (KCL 3.x) the worker that still processes while a graceful hand-off is under way.
    throughput: (KCL 3.x) what its owner delivers, KiB a second, as the text of a number.
    extra: every attribute pykcl has no use for, in wire form, so that a row survives a round trip unchanged.
    """

    key: str
    checkpoint: Checkpoint
    counter: int = 0
    owner: str | None = None
    owner_switches: int = 0
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    hash_range: HashRange | None = None
    pending: PendingCheckpoint | None = None
    checkpoint_owner: str | None = None
    entity_type: str | None = None
    metadata: PykclMetadata | None = None
    throughput: str | None = None
    extra: Mapping[str, AttributeValue] = field(default_factory=dict, repr=False)

    @property
    def is_ended(self) -> bool:
        return self.checkpoint.is_shard_end

    @property
    def actual_owner(self) -> str | None:
        """The worker that works on it now: during a KCL 3.x hand-off the checkpoint owner, not the next owner."""
        return self.checkpoint_owner or self.owner

    @property
    def consumer(self) -> str | None:
        """The consumer by which its owner reads the shard; None if it polls, or is no pykcl worker."""
        note = self.metadata
        is_of_owner = note is not None and note.owner is not None and note.owner == self.actual_owner
        return note.consumer if note is not None and is_of_owner and not self.is_ended else None

    @property
    def latest_from(self) -> int | None:
        """Server time, epoch milliseconds, of the application's start at LATEST, where the row has one."""
        return self.metadata.latest_from if self.metadata is not None else None

    @property
    def standstill(self) -> Standstill | None:
        """The note that its shard stands at this checkpoint; None if it has none, or one of another checkpoint."""
        note = self.metadata.standstill if self.metadata is not None else None
        return note if note is not None and note.at == self.checkpoint and not self.is_ended else None

    @property
    def latest_since(self) -> int | None:
        """Server time, epoch milliseconds, from which LATEST in the row counts; None: from now on."""
        return self.metadata.latest_since if self.metadata is not None else None

    def with_(self, **changes: Any) -> Lease:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """A row of the table that is not a lease of ours (KCL 3.5 state, another stream): never counted or touched.

    client_version: of KCL 3.x's own state (`Migration3.0`), by which protocol its workers work, such as
    CLIENT_VERSION_2X; None where the row does not say so in a form that is believed.
    item: the attributes of a row that belongs to a worker or to the leader of a KCL 3.x fleet; else empty.
    """

    key: str
    kind: str
    client_version: str | None = None
    item: Mapping[str, AttributeValue] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class JavaState:
    """The state of KCL 3.x beside the rows of a scan.

    has_owner_index: the lease table has KCL 3.x's index of owners, `LeaseOwnerToLeaseKeyIndex`.
    migration: the row `Migration3.0` that KCL 3.0-3.4 keeps in a table of its own; None: there is none, or it could not
    be read. unread: why it could not; "" where it was read, or where there is no such table.
    """

    has_owner_index: bool = False
    migration: ForeignRow | None = None
    unread: str = ""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that looks like a lease but cannot be understood: reported once, never counted or touched.

    owner: its leaseOwner, if that is text of any kind: Java may understand the row, and count its owner as a worker.
    """

    key: str
    problem: str
    owner: str | None = None


Row = Lease | ForeignRow | UnreadableRow


def metadata_for(
    lease: Lease,
    *,
    stream: StreamDescription,
    owner: str,
    version: str,
    process_token: str,
    now_millis: int,
    failover_time: float,
    consumer: str | None = None,
    until: int | None = None,
    begin: str | None = None,
    shards: str | None = None,
) -> PykclMetadata:
    """The private attribute for a row that the worker `owner` creates or takes.

    now_millis: Kinesis' clock, epoch milliseconds. A lease at LATEST counts from then on, unless it has a time whose
    first checkpoint is still to come. Other notes stay: the time of the start, keys of later versions, a standstill
    that counts. failover_time: of that worker, in seconds. consumer, until, begin, shards: as in
    `PykclMetadata`.

    1) An application starts at LATEST, and reads for days; 2) an operator skips its backlog, and writes LATEST into
    the row; 3) by the time of step 1 all that was to be skipped would come again, and more. And the time of step 2
    says nothing of shards that were never read: a new lease that began then would skip what is older. So only a row
    that nobody has worked on yet shows a start.
    """
    before = (lease.metadata or PykclMetadata()).after(lease.checkpoint)
    latest_from, latest_reset = before.latest_from, before.latest_reset
    if lease.checkpoint.sequence_number == LATEST and before.latest_since is None:
        if lease.metadata is None and lease.counter == 0:
            latest_from = now_millis
        else:
            latest_reset = now_millis
    return PykclMetadata(
        stream_arn=stream.arn,
        stream_created_at=stream.created_at,
        owner=owner,
        version=version,
        latest_from=latest_from,
        process_token=process_token,
        extra=before.extra,
        failover_millis=round(failover_time * 1000),
        standstill=lease.standstill,
        latest_done=before.latest_done,
        consumer=consumer,
        until=until,
        begin=begin,
        latest_reset=latest_reset,
        shards=shards,
    )


def first_read(lease: Lease, start: StartPosition, now_millis: int | None = None) -> ReadFrom:
    """Return the position at which the new holder of `lease` opens the shard.

    LATEST with a known server time starts there, not "now": from the moment the row existed producers could
    know that the application is ready, and a predecessor may have died before its first checkpoint. Numbers are
    read AT, never AFTER: the rest of a half-done aggregated record is in the very record that was checkpointed
    (Java writes sub-sequence 0 for those too). now_millis: Kinesis' clock, epoch milliseconds. An application that has
    a row has started: a time in the row that is still to come was taken from a wrong clock, and would skip records.
    """
    sequence_number = lease.checkpoint.sequence_number
    if sequence_number == TRIM_HORIZON:
        return ReadFrom("TRIM_HORIZON")
    if sequence_number == LATEST:
        since = lease.latest_since
        if since is None:
            return ReadFrom("LATEST")
        return ReadFrom("AT_TIMESTAMP", at_millis=since if now_millis is None else min(since, now_millis))
    if sequence_number == AT_TIMESTAMP:
        # The row never carries the time (lease-protocol: Java takes it from its configuration). Without one of ours
        # the oldest record is the only start that loses nothing.
        if start.kind == "AT_TIMESTAMP":
            return ReadFrom("AT_TIMESTAMP", at_millis=start.at_millis)
        return ReadFrom("TRIM_HORIZON")
    return ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=sequence_number)
