"""Events of a worker as typed values; logging is one listener among others.

Events mark edges (ownership or life cycle changed, trouble began or ended) and carry keys, counts and positions,
never payloads, partition keys, iterators or the text of foreign exceptions, which may quote any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, TypeVar

from pykcl.error_catalog import docs_of, hint_of

Same = TypeVar("Same", bound="Event")


class _Named:
    """Base of Event. The names for its hint are not fields: two events are equal without them."""

    __slots__ = ("_names",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(_Named):
    """Base of all events. LEVEL: logging level. TEXT: the line's first words, in the past tense.

    CODE: error code that the event is about, such as "E16". Without a `code`, `hint` and `docs` are None.
    MOST_LINES: that the log shows in a minute of one `line_kind`; more are counted. None: all of them.
    """

    LEVEL: ClassVar[int] = logging.INFO
    TEXT: ClassVar[str] = ""
    CODE: ClassVar[str | None] = None
    MOST_LINES: ClassVar[int | None] = None

    def with_names(self: Same, names: Mapping[str, str]) -> Same:
        """Return an equal event whose hint has these names, by the words that stand for them; itself without a code."""
        if self.code is None:
            return self
        named = replace(self)
        object.__setattr__(named, "_names", names)
        return named

    @property
    def level(self) -> int:
        """Level of its line in the log."""
        return self.LEVEL

    @property
    def line_kind(self) -> str:
        """Kind of its lines, of which MOST_LINES are shown."""
        return type(self).__name__

    @property
    def code(self) -> str | None:
        """Error code, such as "E16"."""
        return self.CODE

    @property
    def hint(self) -> str | None:
        """The next command or edit."""
        names, shard = dict(getattr(self, "_names", {})), getattr(self, "shard", None)
        if isinstance(shard, str):
            names["SHARD"] = shard
        return hint_of(self.code, names, records=self.failed_records)

    @property
    def docs(self) -> str | None:
        """Address of the page about it."""
        return docs_of(self.code)

    @property
    def failed_records(self) -> int:
        """Number of records that the error was made over, and that can be stepped over."""
        return 0

    @property
    def is_repeated(self) -> bool:
        """True if an event before it said the same at length, about the same call."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    TEXT = "worker started"
    worker_id: str
    application: str
    stream_arn: str
    table: str
    failover_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesInFile(Event):
    TEXT = "leases are in a file: the workers of this machine share them, and no others, nor those of Java"
    worker_id: str
    store: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    TEXT = "worker stopped"
    worker_id: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnded(Event):
    """The main thread has ended, and the worker has been left running."""

    LEVEL = logging.WARNING
    TEXT = "the program ended and its worker runs: it stops as with SIGTERM; let the main thread call run() or join()"
    worker_id: str


class StopReason(StrEnum):
    """Reason for which a worker stops. Its value is the text of `WorkerStopping.cause`, but for FAILED."""

    ASKED = "asked to"
    RUN_OVER = "every shard was read as far as until"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(Event):
    """cause: for people; of a failure the type of the error. reason: for programs; the log does not show it."""

    TEXT = "worker stops"
    worker_id: str
    cause: str
    reason: StopReason = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCreated(Event):
    TEXT = "lease table created"
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJoined(Event):
    """The other workers on the lease table, by its rows. evidence: signs of KCL 3.x, or of several streams."""

    TEXT = "fleet joined"
    beside: str
    kind: str
    java_workers: int
    pykcl_workers: int
    failover_time: float
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChanged(Event):
    """The fleet is of another kind than before, and has been for a while."""

    TEXT = "fleet changed"
    kind: str
    beside: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUpgradedToV3(Event):
    """Nothing is lost: it keeps its leases and takes what nobody reads, but nothing from living owners any more."""

    LEVEL = logging.ERROR
    TEXT = "Java KCL 3.x has left the mode of 2.x; this worker goes on, but its next start will be refused"
    CODE = "E06"
    beside: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFollowed(Event):
    """A leader of KCL 3.x assigns the leases from now on."""

    TEXT = "following the leader of a KCL 3.x fleet"
    client_version: str
    beside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUnfollowed(Event):
    """The fleet has gone back to the protocol of KCL 2.x."""

    TEXT = "taking leases by itself again, as in KCL 2.x"
    client_version: str | None
    beside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsStarted(Event):
    """The leader may assign leases to this worker."""

    TEXT = "metrics reported to the leader"
    worker_id: str
    load: str
    """Source of the CPU utilisation that is reported, or "throughput"; with the reason where CPU was wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLoadChanged(Event):
    """The leader is given another kind of load, because the other workers of the fleet are."""

    TEXT = "other metrics reported to the leader"
    worker_id: str
    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsEnded(Event):
    """The leader assigns nothing to this worker any more."""

    TEXT = "metrics withdrawn"
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAbsent(Event):
    """Nobody assigns leases. leader: the last one, where known."""

    LEVEL = logging.WARNING
    TEXT = "the fleet has no leader"
    leader: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReturned(Event):
    TEXT = "the fleet has a leader again"
    leader: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAssigned(Event):
    """This worker leads a fleet of KCL 3.x and has assigned a lease.

    owner: who had it until now, or None. reason: "unowned", "expired" or "balance". hands_over: the owner finishes its
    batch first.
    """

    TEXT = "lease assigned"
    shard: str
    new_owner: str
    owner: str | None
    reason: str
    hands_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingAtLatest(Event):
    LEVEL = logging.WARNING
    TEXT = "starting at LATEST: records put before now are not read"
    CODE = "E16"
    shards: int
    server_time_millis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysIgnored(Event):
    """Kinesis puts the records of one partition key into any shard of this stream. uses: what counts on keys: "windows"
    or "concurrency" of the processor, or an option of a producer."""

    LEVEL = logging.WARNING
    TEXT = "records of one partition key lie in any shard, and come in no order"
    CODE = "E28"
    stream: str
    uses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCreated(Event):
    TEXT = "lease created"
    shard: str
    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRestored(LeaseCreated):
    """Somebody deleted its row. checkpoint: the last one that is known, from which the shard goes on."""

    LEVEL = logging.WARNING
    TEXT = "deleted row of a lease put back at its last checkpoint: to delete rows is no replay"
    CODE = "E29"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRangeRefused(Event):
    """Kinesis lists a shard with something else than a range of hash keys. It is left out of the lease's row, where it
    would keep Java workers from reading the table; Java creates no lease for such a shard. said: by Kinesis."""

    LEVEL = logging.WARNING
    TEXT = "the shard has no range of hash keys: its aggregated records are all delivered, and its lease has none"
    shard: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDeleted(Event):
    TEXT = "lease deleted"
    shard: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTaken(Event):
    TEXT = "lease taken"
    shard: str
    reason: str
    from_owner: str | None
    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTakeFailed(Event):
    LEVEL = logging.DEBUG
    TEXT = "lease not taken, it changed first"
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStarted(Event):
    TEXT = "shard started"
    shard: str
    position: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForParents(Event):
    TEXT = "shard waits for its parents"
    shard: str
    parents: tuple[str, ...]


class LossReason(StrEnum):
    """Reason for which a worker lost a lease. Its value is that of the dimension Cause in metrics.

    sentence: the text of `LeaseLost.cause`, with names in braces.
    """

    sentence: str

    TAKEN = "Taken", "another worker took it"
    EXPIRED = "Expired", "no heartbeat was answered before the worker stopped"
    STALLED = "Stalled", "{method} did not return within processor_timeout={timeout:g} s"
    NOT_ACKED = "NotAcked", "the record at {position} was not acked within processor_timeout={timeout:g} s"
    ROW_DELETED = "RowDeleted", "its row is gone"
    ROW_UNREADABLE = "RowUnreadable", "its row is there and cannot be read: {problem}"
    CHECKPOINT_CHANGED = (
        "CheckpointChanged",
        "somebody changed its counter, and its checkpoint from {ours} to {found}; the shard begins anew there",
    )
    ROW_WENT_BACK = (
        "RowWentBack",
        "its row is an older or another one (counter {found}, {ours} before): was the table restored, swapped or "
        "edited?",
    )
    IDENTIFIER_IN_USE = (
        "WorkerIdentifierInUse",
        "another process uses the worker identifier {owner!r}; each needs its own",
    )
    RELEASE_UNANSWERED = "ReleaseUnanswered", "its release got no answer"
    HANDED_OVER = "HandedOver", "the leader asked for it, and its processor held that up for too long"
    TABLE_GONE = "TableGone", "the lease table is gone"
    OTHER = "Other", ""

    def __new__(cls, value: str, sentence: str) -> LossReason:
        reason = str.__new__(cls, value)
        reason._value_, reason.sentence = value, sentence
        return reason

    __str__ = str.__str__


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """cause: for people. reason: the same for programs; the log does not show it.

    is_planned: another worker took it for its fair share, though heartbeats came in time: an INFO in the log.
    """

    LEVEL = logging.WARNING
    TEXT = "lease lost"
    shard: str
    cause: str
    new_owner: str | None
    reason: LossReason = field(default=LossReason.OTHER, repr=False)
    is_planned: bool = field(default=False, repr=False)

    @property
    def level(self) -> int:
        return logging.INFO if self.is_planned else self.LEVEL

    @property
    def code(self) -> str | None:
        return _CODES_OF_LOSSES.get(self.reason)


_CODES_OF_LOSSES = {
    LossReason.IDENTIFIER_IN_USE: "E08",
    LossReason.CHECKPOINT_CHANGED: "E29",
    LossReason.ROW_DELETED: "E29",
    LossReason.ROW_WENT_BACK: "E29",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDoubted(Event):
    """No heartbeat was answered in time: another worker may have taken the lease. Its shard rests until a heartbeat is
    answered. heartbeat_sent_ago: seconds since the last one was sent that was answered."""

    LEVEL = logging.WARNING
    TEXT = "lease in doubt, its shard rests until a heartbeat is answered"
    MOST_LINES = 30
    shard: str
    heartbeat_sent_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfirmed(Event):
    """A heartbeat was answered, and nobody had the lease in between: its shard goes on where it stood.

    seconds: since it was in doubt."""

    TEXT = "lease confirmed, its shard goes on"
    MOST_LINES = 30
    shard: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOverwritten(Event):
    """Somebody changed the checkpoint in the row of a lease that this worker holds, and left the counter, which fences
    nothing. checkpoint: the worker's own, which stays. found: the other one, which is overwritten."""

    LEVEL = logging.ERROR
    TEXT = "checkpoint of a held lease was changed by somebody else, and is overwritten"
    CODE = "E29"
    shard: str
    checkpoint: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased(Event):
    TEXT = "lease released"
    shard: str
    checkpoint: str
    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseUnacknowledged(Event):
    LEVEL = logging.WARNING
    TEXT = "lease not released, peers take it when it expires"
    shard: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnded(Event):
    TEXT = "shard ended"
    shard: str
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """The row of the lease has the position now. counter: of the lease, after that write."""

    LEVEL = logging.DEBUG
    TEXT = "checkpoint written"
    shard: str
    checkpoint: str
    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStateChanged(Event):
    LEVEL = logging.DEBUG
    TEXT = "lease state changed"
    shard: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLost(Event):
    """Records between the checkpoint and the oldest one still retained can no longer be read by anyone."""

    LEVEL = logging.ERROR
    TEXT = "records were trimmed before they were read"
    CODE = "E18"
    shard: str
    checkpoint: str
    resumed_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadShardLost(DataLost):
    """A shard had no lease, and Kinesis has dropped it. shard: it. checkpoint: where its reader would have begun.

    first_key, last_key: its hash keys, decimal, both included; None where unknown. before: shards before it that have a
    lease, and whose readers have not made one for it. after: the shards after it, which are read from their beginning.
    """

    TEXT = "a shard was trimmed before anybody had read it"
    first_key: str | None
    last_key: str | None
    before: tuple[str, ...]
    after: tuple[str, ...]


_CODES_OF_HANDLERS = {
    "HandlerRanNothing": "E23", "NoState": "E24", "ResponseRefused": "E24", "StateNotKept": "E24",
}  # fmt: skip
"""By the name of the exception, of mistakes that a handler makes when it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorRaised(Event):
    LEVEL = logging.ERROR
    TEXT = "record processor raised"
    CODE = "E12"
    MOST_LINES = 30
    shard: str
    method: str
    error: str
    where: str
    attempt: int
    records: int
    first: str
    last: str
    next_attempt_in: float | None

    @property
    def code(self) -> str | None:
        return _CODES_OF_HANDLERS.get(self.error, self.CODE)

    @property
    def line_kind(self) -> str:
        return f"ProcessorRaised {self.error} {self.where}"

    @property
    def failed_records(self) -> int:
        """0 for an empty batch and for any other method: they have no record to step over."""
        return self.records

    @property
    def is_repeated(self) -> bool:
        return self.attempt > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSkipped(Event):
    LEVEL = logging.ERROR
    TEXT = 'batch skipped as on_error="skip" says'
    shard: str
    records: int
    first: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit(Event):
    """Records that failed together are tried again in parts. next_records: the number of records in the next call."""

    TEXT = "batch split"
    MOST_LINES = 30
    shard: str
    records: int
    first: str
    last: str
    next_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDeadLettered(Event):
    """Records were given up, and the destination has acknowledged them; the checkpoint may pass them now.

    condition: "RetryAttemptsExhausted", "RecordAgeExpired", "Rejected" or "DecodeFailed". attempts: calls that failed.
    letter: its identifier, the same for the same records.
    """

    LEVEL = logging.WARNING
    TEXT = "records dead-lettered"
    shard: str
    condition: str
    records: int
    first: str
    last: str
    attempts: int
    letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDiscarded(Event):
    """Records were given up and kept nowhere. The fields are those of RecordsDeadLettered."""

    LEVEL = logging.ERROR
    TEXT = 'records discarded as dead_letters="discard" says'
    shard: str
    condition: str
    records: int
    first: str
    last: str
    attempts: int
    letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeBatchesAreGivenUp(Event):
    """Hint at startup: attempts are counted, and batches are not split."""

    TEXT = (
        "a batch that fails max_attempts times is given up as a whole, as in Lambda, unless the processor raises "
        "FailedAt; set bisect to give up the failing record only"
    )
    max_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRecordPerCall(Event):
    """The name of a parameter without an annotation says several records, and the function is called with one."""

    LEVEL = logging.WARNING
    TEXT = (
        "the function is called with one record: annotate the parameter as Batch or list[Record] to get several, "
        "or as Record if one is meant"
    )
    function: str
    place: str
    parameter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesExhausted(Event):
    """This worker cannot work on the lease now: for `left_alone_for` seconds it will not take it again."""

    LEVEL = logging.ERROR
    TEXT = "lease handed back"
    CODE = "E31"
    shard: str
    cause: str
    checkpoint: str
    left_alone_for: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSlow(Event):
    """stack: where its thread stands, innermost last, as "file.py:12 in function"."""

    LEVEL = logging.WARNING
    TEXT = "record processor has not returned"
    shard: str
    method: str
    seconds: float
    thread: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoopBlocked(Event):
    """An async handler holds up all of the process. shard: one that waits for it. stack: as in ProcessorSlow."""

    LEVEL = logging.WARNING
    TEXT = "event loop is blocked by a handler"
    CODE = "E26"
    shard: str
    seconds: float
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorReturned(Event):
    """The call that a ProcessorSlow reported has ended. seconds: its duration, to about one more."""

    TEXT = "record processor returned at last"
    shard: str
    method: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEndNotCheckpointed(Event):
    LEVEL = logging.ERROR
    TEXT = "shard_ended returned without checkpoint(), children cannot start; it will be called again"
    CODE = "E09"
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateRefused(Event):
    """Resembles an aggregated record but is not one, or is damaged; delivered as it came, as Java does."""

    LEVEL = logging.WARNING
    TEXT = "aggregated record refused"
    MOST_LINES = 30
    shard: str
    sequence_number: str
    problem: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateOutsideShard(Event):
    """A sub-record's hash key lies outside the shard: a producer with an old shard map. Not delivered, as in Java:
    KPL producers put such records again to the right shard."""

    LEVEL = logging.WARNING
    TEXT = "aggregated record of another shard dropped"
    MOST_LINES = 30
    shard: str
    sequence_number: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidLeaseRow(Event):
    LEVEL = logging.ERROR
    TEXT = "row of the lease table cannot be read and is left alone"
    key: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElected(Event):
    """Java's rule elects this worker, so it audits for the whole fleet; or it holds the lock of a KCL 3.x fleet, and
    assigns the leases, too. owners: how many workers own leases.
    """

    TEXT = "this worker leads now"
    worker_id: str
    owners: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipMoved(Event):
    """This worker led, and does no more. leader: who does, by Java's rule or by the lock; None: nobody yet."""

    TEXT = "another worker leads now"
    leader: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UncoveredHashRangeFound(Event):
    """Nobody reads the records of these hash keys, and listing the shards has not repaired it: a person has to act.

    first, last: decimal, both included. audits: how many in a row have found it. shards: the open ones that take these
    keys, as far as they are listed: the rows to check, or to search for.
    """

    LEVEL = logging.ERROR
    TEXT = "hash keys without a lease, nobody reads their records"
    first: str
    last: str
    audits: int
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UncoveredHashRangeClosed(Event):
    """Each of these hash keys, which an UncoveredHashRangeFound reported, has a lease again."""

    TEXT = "hash keys have a lease again"
    first: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRangeFilled(Event):
    """The row lacked the hash range of its shard, as those of KCL before 2.3 do."""

    TEXT = "hash range written into a lease"
    shard: str
    first: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStarted(Event):
    """An attempt failed; it is repeated until FailureResolved with this `what` and `shard` (None: the whole worker).

    For programs: each shard has its own, at once. What lasts is a FailureLasted, too.
    """

    LEVEL = logging.DEBUG
    TEXT = "trouble began"
    what: str
    shard: str | None = None
    cause: str
    code: str | None = field(default=None, repr=False)
    hint: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureResolved(Event):
    LEVEL = logging.DEBUG
    TEXT = "trouble ended"
    what: str
    shard: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLasted(Event):
    """Something fails again and again, until FailurePassed with this `what` and `code`; one event for all shards.

    shard: the one that has failed longest. failing, of: number of shards that fail now, and that could. failures: how
    many began since the last such event.
    """

    LEVEL = logging.WARNING
    TEXT = "trouble has lasted"
    what: str
    shard: str | None = None
    failing: int
    of: int
    seconds: float
    failures: int
    cause: str
    code: str | None = field(default=None, repr=False)
    hint: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePassed(Event):
    """seconds: for which it lasted."""

    TEXT = "trouble has passed"
    what: str
    seconds: float
    failures: int
    code: str | None = field(default=None, repr=False)

    @property
    def is_repeated(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsNotStopped(Event):
    LEVEL = logging.ERROR
    TEXT = "threads did not stop in time"
    threads: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialPositionIgnored(Event):
    """The initial position applies to shards without a checkpoint only, and there is none. leases: that have one."""

    TEXT = "initial_position has no effect: every lease has a checkpoint and goes on there"
    CODE = "E17"
    initial_position: str
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StillStarting(Event):
    """The worker cannot start, and tries again. Repeated every 30 seconds. seconds: since the first attempt."""

    LEVEL = logging.WARNING
    TEXT = "worker not started yet, it keeps trying"
    what: str
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionAlmostExceeded(Event):
    """Soon Kinesis drops records that were not read yet. All times in seconds."""

    LEVEL = logging.WARNING
    TEXT = "reading falls behind the retention period, unread records are dropped soon"
    CODE = "E18"
    shard: str
    behind: float
    retention: float
    dropped_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutUnavailable(Event):
    """Records are polled instead. shard: None: all shards of the worker, for lack of the consumer."""

    LEVEL = logging.WARNING
    TEXT = "enhanced fan-out cannot be had, records are polled until it can"
    shard: str | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutRestored(Event):
    """The end of what FanOutUnavailable said. shard: None: the consumer is there, and the shards are subscribed to."""

    TEXT = "enhanced fan-out is back, records are pushed again"
    shard: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionContested(Event):
    """Others have come in the way of three subscriptions within a minute, while the lease was this worker's."""

    LEVEL = logging.WARNING
    TEXT = (
        "another application subscribes to the shard with the same consumer: both read it by turns. Do: give each a "
        "consumer of its own (the option consumer)"
    )
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorTimedOut(Event):
    """A call did not return within `processor_timeout`. Its thread cannot be ended: while it runs, this process takes
    that lease no more. seconds: that the call had taken by then."""

    LEVEL = logging.ERROR
    TEXT = (
        "lease given up with a processor that does not return: another worker goes on with the shard, this process "
        "cannot until it is restarted"
    )
    shard: str
    method: str
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordNotAcked(Event):
    """Holds up the checkpoints of its shard. unacked: records that are not acked, with this one."""

    LEVEL = logging.WARNING
    TEXT = "record is not acked, no checkpoint passes it"
    shard: str
    position: str
    seconds: float
    unacked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverCheckpointed(Event):
    """A processor that is to checkpoint by itself has not, since this worker reads the shard. seconds: since then."""

    LEVEL = logging.WARNING
    TEXT = 'no checkpoint yet: with checkpoint_mode="manual" all of these batches come again after a restart'
    shard: str
    batches: int
    seconds: float
