"""The interface of a record processor: RecordProcessor and the inputs of its methods. And the kinds of functions."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

from pykcl.errors import ConfigError, ProcessingError
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.dead_letter import Condition
from pykcl.model.lease import PendingCheckpoint
from pykcl.model.record import Record


class PreparedCheckpoint(Protocol):
    """A checkpoint that is written down but not yet in force."""

    @property
    def position(self) -> Checkpoint:
        """The position that was prepared."""

    def checkpoint(self) -> None:
        """Put it in force. Raises as `Checkpointer.checkpoint`."""


class Checkpointer(Protocol):
    """Writes down how far the application got. May be called from any thread of the application.

    Every method raises LeaseLostError when this worker no longer holds the lease (stop working on the shard),
    CheckpointRefused for a position behind the last checkpoint or beyond what was delivered,
    and TemporaryError when DynamoDB could not be reached before the lease ran out of time (call again).
    """

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        """Everything up to and including `at` is done: a record, a Checkpoint, a sequence number (the only one that
        `sub_sequence_number` goes with), or by default the last record of the batch this checkpointer came with.

        Handed to `shard_ended`, it means by default that the whole shard is done. Where there is no default (in
        `initialize`, and in `shutdown_requested` before any batch has returned) nothing is written and nothing raised.
        """

    def prepare_checkpoint(
        self,
        at: Record | Checkpoint | str | None = None,
        sub_sequence_number: int = 0,
        *,
        state: bytes | None = None,
    ) -> PreparedCheckpoint:
        """Write a position and `state` (at most 256 KiB) beside the checkpoint without moving it.

        Whoever takes the lease before it is committed gets both in `initialize`. Automatic checkpoints of this
        shard rest until it is committed or any other checkpoint is made; those of the next owner do not.
        The end of a shard cannot be prepared.
        """


class Acknowledgements(Protocol):
    """Receives what `Batch.ack` and `Batch.reject` are given, for one instance of a processor."""

    def ack(self, record: Record) -> bool:
        """Settle the record. Returns and raises as `Batch.ack`."""

    def reject(self, record: Record, reason: str = "") -> bool:
        """Keep the record as a dead letter, then settle it. Returns and raises as `Batch.reject`."""


@dataclass(frozen=True, slots=True)
class InitializationInput:
    """position: where reading resumes. pending: what an earlier owner prepared and did not commit, or None. Finish or
    undo it now: the first checkpoint after `initialize`, an automatic one too, erases it from the row.

    fencing_token: greater than the token of every earlier owner of this lease; hand it to sinks that can refuse
    writes of a smaller one. application, stream_arn: of the worker. is_replay: its run has an end (`until`).
    """

    shard_id: str
    stream: str
    position: Checkpoint
    pending: PendingCheckpoint | None
    fencing_token: int
    checkpointer: Checkpointer
    application: str = ""
    stream_arn: str = ""
    is_replay: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Sequence[Record]):
    """A sequence of records of one shard, in order; empty only with `call_with_empty_batches`.

    records: the same sequence without what stands beside it. Each Record is created when it is asked for, anew each
    time: iterate once, and keep only the records you need. What a program keeps after `process_records` has returned, a
    record, a slice or the batch, stays in memory and is not counted in `max_buffered_bytes`.
    A batch equals itself alone, and can be a key of a dict.
    millis_behind_latest: how far the end of this batch's page is behind the tip of the shard, as Kinesis says.
    acks: None unless checkpoint_mode is "ack".
    """

    records: Sequence[Record]
    checkpointer: Checkpointer
    millis_behind_latest: int | None
    shard_id: str
    stream: str
    acks: Acknowledgements | None = field(default=None, repr=False)

    def ack(self, record: Record) -> bool:
        """Settle a record, with checkpoint_mode="ack": it is done. From any thread, in any order, at any time.

        False, without any effect: it was acked before, the lease is gone or released, another instance of the processor
        has taken over, or this is a forked process. Raises ValueError for a record of another shard, or one that was
        never delivered; ConfigError in another mode.
        """
        return self._receiver("ack").ack(record)

    def reject(self, record: Record, reason: str = "") -> bool:
        """Send a record that can never be processed to the dead letters, in this thread, then settle it as `ack` does.

        Raises what the destination raises; then the record is not settled, and may be rejected again. Raises
        ConfigError without `dead_letters`, and otherwise as `ack`.
        """
        return self._receiver("reject").reject(record, reason)

    def _receiver(self, method: str) -> Acknowledgements:
        if self.acks is None:
            raise ConfigError(
                f"Batch.{method} needs checkpoint_mode='ack': in the other modes a batch is settled as a whole. Do: "
                f"checkpoint_mode='ack', or leave {method} out."
            )
        return self.acks

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __reversed__(self) -> Iterator[Record]:
        return reversed(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self.records[index]


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    """Every record of the shard has been delivered. children: the shards that continue it."""

    shard_id: str
    stream: str
    children: tuple[str, ...]
    checkpointer: Checkpointer


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    """The worker is stopping: last chance to checkpoint. The lease is released when the method returns."""

    shard_id: str
    stream: str
    checkpointer: Checkpointer


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    """This worker may no longer write for the shard; another one has it or soon will. So there is no checkpointer."""

    shard_id: str
    stream: str


class FailedAt(ProcessingError):
    """Raise it in `process_records`: everything before `record` is done; it and the records after it are not.

    What is done is checkpointed as `checkpoint_mode` says, and the rest is delivered again. `raise FailedAt(record)
    from error` reports the cause.
    """

    def __init__(self, record: Record) -> None:
        super().__init__(f"failed at {_place_of(record)}")
        self.record = record


class Reject(ProcessingError):
    """Raise it in `process_records`: this record can never be processed. It goes to the dead letters at once; the
    others of its batch are delivered again without it.

    record: may be left out where the batch has one record; `Reject("no such product")` is a reason alone.
    """

    condition = Condition.REJECTED

    def __init__(self, record: Record | str | None = None, reason: str = "") -> None:
        if isinstance(record, str):
            reason = reason or record
            record = None
        super().__init__(f"rejected {_place_of(record)}")
        self.record = record
        self.reason = reason


class NotDecoded(Reject):
    """A Reject of a record whose data is not of the form that its handler takes. `__cause__` is the decoder's error."""

    condition = Condition.DECODE_FAILED


class StoppedAt(FailedAt):
    """FailedAt of a handler that gets records one by one: everything before `record` is done, and `error`, which was
    raised about it, decides what becomes of it. So a Reject costs no record before it a second call."""

    def __init__(self, record: Record, error: BaseException) -> None:
        super().__init__(record)
        self.error = error


@dataclass(frozen=True, slots=True)
class LaneStop:
    """records: of a call that failed, in order, from the first one that is not done on. error: as process_records of a
    batch of these records would raise it."""

    records: tuple[Record, ...]
    error: BaseException


class LanesStopped(ProcessingError):
    """Raised by a processor that settles each record, once nothing of the batch runs any more: some of it is left.

    stops: the calls that failed, at most one for each lane; none if the lanes were only to begin nothing more.
    left: the records that are not settled, in order. lanes: number of lanes that the records were dealt to.
    """

    def __init__(self, stops: Sequence[LaneStop], left: Sequence[Record], lanes: int = 1) -> None:
        super().__init__(f"{len(stops)} lanes stopped, {len(left)} records left")
        self.stops = tuple(stops)
        self.left = tuple(left)
        self.lanes = lanes


def _place_of(record: object) -> str:
    return str(record.position) if isinstance(record, Record) else "a record"


class RecordProcessor(ABC):
    """One instance reads one shard, in one thread. Only `process_records` must be written."""

    def initialize(self, init: InitializationInput) -> None:  # noqa: B027 - optional
        """Called once, before the first batch."""

    @abstractmethod
    def process_records(self, batch: Batch) -> None:
        """Called with each batch. With checkpoint_mode="auto", returning normally says that the whole batch is done;
        raising says that it is not, and costs what `on_error` says. With "ack" only `batch.ack(record)` says so."""

    def lease_lost(self, loss: LeaseLostInput) -> None:  # noqa: B027 - optional
        """Called once when this worker may no longer write for the shard: taken by another worker, heartbeats failed,
        `processor_timeout` passed, the table is gone. Drop what is in flight."""

    def shard_ended(self, end: ShardEndedInput) -> None:  # noqa: B027 - optional
        """Called when every record was delivered, and with checkpoint_mode="ack" acked. With "manual", an own
        shard_ended must call `end.checkpointer.checkpoint()`, else it is called again: children start only after that.
        Without an own one the shard ends as soon as its last record is checkpointed."""

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:  # noqa: B027 - optional
        """Called when the worker stops, or hands this lease back because its batches keep failing.

        With checkpoint_mode="auto" or "interval" what was done is checkpointed anyway. With "ack" the worker waits,
        after this call, until the delivered records are acked, at most `shutdown_grace`.
        """


ProcessorFactory = Callable[[], RecordProcessor]
"""A RecordProcessor subclass, or any callable without arguments that returns a new instance."""


ASYNC = "async def"
"""Kind of a function that returns a coroutine."""


def why_it_runs_nothing(function: Any) -> str | None:
    """Kind of a function whose call runs nothing, as far as that is known without a call; None for any other.

    Through functools.partial and an own `__call__`. Not through functools.wraps: the wrapper may run what it wraps.
    """
    function = behind_partials(function)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the method of an instance, not whether there is one
    for found in (function, *([call] if call is not None else [])):
        if inspect.iscoroutinefunction(found):
            return ASYNC
        if inspect.isasyncgenfunction(found):
            return "async def with a yield"
        if inspect.isgeneratorfunction(found):
            return "a function with a yield"
    return None


def behind_partials(function: Any) -> Any:
    """Return what functools.partial calls in the end."""
    while isinstance(function, functools.partial):
        function = function.func
    return function
