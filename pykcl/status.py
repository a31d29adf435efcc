"""Status of a worker at one moment, as values: the result of `Worker.status()`.

Texts come from pykcl and from the lease table, never from a record, its partition key, or an exception of the
application's. Names of shards and workers are what somebody wrote into a row: untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

WorkerState = Literal["new", "starting", "running", "draining", "stopped"]
WORKER_STATES: tuple[WorkerState, ...] = ("new", "starting", "running", "draining", "stopped")


class Activity(StrEnum):
    """A task that a worker tries again while it fails. Its value is its name in events, in the log and in /status."""

    FINDING_STREAM = "finding the stream"
    FINDING_CONSUMER = "finding the consumer"
    PREPARING_TABLE = "preparing the lease table"
    READING_TABLE = "reading the lease table"
    MANAGING_LEASES = "managing leases"
    LISTING_SHARDS = "listing shards"
    CHECKING_LISTING = "checking the list of shards"
    FILLING_HASH_RANGES = "filling in hash ranges"
    READING_EVERY_SHARD = "reading every shard"
    HAVING_ITS_OWN_NAME = "having a worker identifier of its own"
    RENEWING_CREDENTIALS = "renewing credentials"
    RENEWING_LEASES = "renewing leases"
    SENDING_HEARTBEATS = "sending heartbeats in time"
    REPORTING = "reporting to the leader"
    LEADING = "leading the fleet"
    TAKING = "taking"
    READING_PARENTS = "reading the parents"
    READING = "reading"
    CHECKPOINTING = "checkpointing"
    SENDING_DEAD_LETTERS = "sending dead letters"
    ENDING = "ending"
    PUBLISHING_METRICS = "publishing metrics"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStatus:
    """One thread of the worker's own, none of which runs code of the application. All times in seconds.

    died_of: the type of the exception that ended it, if one did. attempted_ago: since it last began a piece of its
    work, whatever came of that. overdue: since it should have begun the next one; 0: in time. patience: how long one
    piece may take besides the failover time, such as a request to Kinesis.
    """

    name: str
    state: Literal["running", "ended", "died"]
    died_of: str | None
    attempted_ago: float
    overdue: float
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStatus:
    """A method of the record processor that has not returned yet. stalled: for longer than `processor_warn_after`."""

    method: str
    seconds: float
    stalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatus:
    """The last event at WARNING or above. event: its type. text: its line in the log. ago: seconds."""

    event: str
    text: str
    ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStatus:
    """Something that has been failing again and again for so many seconds. shard: None where it is the whole worker."""

    what: Activity
    shard: str | None
    cause: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """One lease that this worker holds, or is about to take.

    state: of `planning.lifecycle`, such as "reading". thread, alive: what works on it. checkpoint, counter: of its row
    as last written; None: not taken yet. lease_valid_for: seconds that are left without another heartbeat; 0 or below:
    none. in_doubt: so it is, and no heartbeat was refused: the shard rests until one is answered.
    millis_behind_latest: as the last page reported, `lag_age` seconds ago; None: none was read. call: of the processor,
    if one runs. subscribed_for: since the shard was subscribed to by enhanced fan-out; None: it is not. silent_for:
    since the last event, if subscriptions have said nothing since then. paused: by `Worker.pause`, in whatever state;
    in "paused" nothing of a batch is under way any more. first_arrival_millis: epoch milliseconds, of the first record
    that was read here; None: none was.
    """

    shard: str
    state: str
    thread: str
    alive: bool
    checkpoint: str | None
    counter: int | None
    lease_valid_for: float | None
    in_doubt: bool
    has_answered: bool
    millis_behind_latest: int | None
    lag_age: float | None
    call: CallStatus | None
    last_error: ErrorStatus | None
    subscribed_for: float | None = None
    silent_for: float | None = None
    paused: bool = False
    first_arrival_millis: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker. All times in seconds.

    state_age: since it entered its state. failure: type of the error that stops it, if one does. initialized: it has
    listed the shards and scanned the lease table, and reads the leases it took then. all_shards_assigned: the condition
    of `Worker.wait_ready`, of the whole fleet.
    """

    worker_id: str
    application: str
    stream: str
    table: str
    version: str
    state: WorkerState
    state_age: float
    failure: str | None
    initialized: bool
    all_shards_assigned: bool
    failover_time: float
    shutdown_grace: float
    loops: tuple[LoopStatus, ...] = ()
    leases: tuple[LeaseStatus, ...] = ()
    troubles: tuple[FailureStatus, ...] = ()
    last_error: ErrorStatus | None = None
