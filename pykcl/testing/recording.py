"""A record of what happened to a processor: every call, every checkpoint, and which records are done by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from pykcl.errors import CheckpointRefused
from pykcl.events import BatchSkipped, Checkpointed, Event, ShardEnded
from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.record import Record
from pykcl.processor import (
    Batch,
    Checkpointer,
    Initialization,
    LeaseLoss,
    PreparedCheckpoint,
    ProcessorFactory,
    RecordProcessor,
    ShardEnd,
    ShutdownRequest,
)
from pykcl.testing.simulation.scheduler import SimulationOver, ThreadStruck
from pykcl.worker.processor_factory import must_have_run

Place = tuple[str, str, int]
"""Shard, sequence number and sub-sequence number of a record."""


def place_of(record: Record) -> Place:
    return record.shard_id, record.sequence_number, record.sub_sequence_number


@dataclass(slots=True)
class Call:
    """One call of a method of a processor.

    worker: its name. records: of the batch, empty for other methods. returned: whether the call returned normally.
    error: what it raised. checkpoint: where the processor itself checkpointed last during the call.
    """

    worker: str
    shard: str
    method: str
    records: tuple[Record, ...] = field(default=(), repr=False)
    returned: bool = False
    error: BaseException | None = None
    checkpoint: Checkpoint | None = None


class Recorder:
    """Everything about one run. Calls may come from any thread.

    around: encloses each call of user code. before, written, after: called before a batch is handed over, after the
    processor has written a checkpoint, and after it has returned, to interrupt the run there. shards: those under test,
    None for all. is_manual: whether only the processor checkpoints. hears_checkpoints: learn of checkpoints by events;
    a worker that dies behind a write, or gets no answer to it, emits none.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self.checkpoints: list[tuple[str, Checkpoint]] = []
        self.reached: dict[str, Checkpoint] = {}
        self.delivered: list[Record] = []
        self.done: set[Place] = set()
        self.claimed: set[Place] = set()
        self.handed: set[Place] = set()
        self.shards: set[str] | None = None
        self.is_manual = False
        self.hears_checkpoints = True
        self._skips: list[tuple[str, Checkpoint, Checkpoint]] = []
        self.around: Callable[[str], AbstractContextManager[None]] = lambda call: nullcontext()
        self.before: Callable[[Call], None] = self.nothing
        self.written: Callable[[Call], None] = self.nothing
        self.after: Callable[[Call], None] = self.nothing

    def put(self, records: Sequence[Record]) -> None:
        """Note what was put into the stream."""
        self.records += records

    def hear(self, event: Event) -> None:
        """Note an event of a worker; a listener."""
        self.events.append(event)
        if isinstance(event, BatchSkipped):
            self._skips.append((event.shard, _position(event.first), _position(event.last)))
        if self.hears_checkpoints and isinstance(event, Checkpointed):
            self.checkpoint(event.shard, _position(event.checkpoint))
        elif self.hears_checkpoints and isinstance(event, ShardEnded):
            self.checkpoint(event.shard, AT_SHARD_END)

    def checkpoint(self, shard: str, checkpoint: Checkpoint) -> None:
        """Note that the row of a lease has a new checkpoint."""
        if self.shards is None or shard in self.shards:
            self.checkpoints.append((shard, checkpoint))
            self.reached[shard] = checkpoint

    def factory(self, make: ProcessorFactory, worker: str) -> ProcessorFactory:
        """Return a factory of processors that do what those of `make` do, and are recorded."""
        return lambda: RecordedProcessor(make, worker, self)

    def is_checkpointed(self, record: Record) -> bool:
        """Return whether a restart would go on behind this record."""
        reached = self.reached.get(record.shard_id)
        return reached is not None and record.position <= reached

    def is_settled(self, record: Record) -> bool:
        """Return whether nothing more will happen to this record."""
        return self.is_done(record) or self.is_skipped(record) or self.is_checkpointed(record)

    def is_done(self, record: Record) -> bool:
        """Return whether a call that had this record returned, or checkpointed it by itself."""
        place = place_of(record)
        return place in self.done or (place in self.claimed and self.is_checkpointed(record))

    def is_skipped(self, record: Record) -> bool:
        """Return whether its batch was given up as on_error="skip" says."""
        spans = ((first, last) for shard, first, last in self._skips if shard == record.shard_id)
        return any(first <= record.position <= last for first, last in spans)

    def failure_of(self, record: Record) -> Call | None:
        """Return the last call that had this record and raised."""
        place = place_of(record)
        failed = (call for call in reversed(self.calls) if call.error is not None)
        return next((call for call in failed if place in map(place_of, call.records)), None)

    @contextmanager
    def call(self, worker: str, shard: str, method: str, records: tuple[Record, ...] = ()) -> Iterator[Call]:
        """Record one call of user code around the block that makes it."""
        call = Call(worker, shard, method, records)
        self.calls.append(call)
        try:
            with self.around(f"{method} for {shard}"):
                yield call
        except (SimulationOver, ThreadStruck):
            # The simulation has ended meanwhile; the processor has raised nothing.
            raise
        except BaseException as error:
            call.error = error
            raise
        call.returned = True

    def nothing(self, call: Call) -> None:
        """Do nothing at a place where a run can be interrupted."""


class RecordedProcessor(RecordProcessor):
    """Stands between the worker and one processor of the user, which is made when `initialize` is called.

    A shard that the recorder leaves out, such as the child of a shard under test, gets no processor of the user.
    """

    def __init__(self, make: ProcessorFactory, worker: str, recorder: Recorder) -> None:
        self._make, self._worker, self._recorder = make, worker, recorder
        self._inner: RecordProcessor = _Ignoring()

    @property
    def is_of_no_use(self) -> bool:
        """As the worker asks it of every processor."""
        return bool(getattr(self._inner, "is_of_no_use", False))

    def initialize(self, init: Initialization) -> None:
        if self._recorder.shards is not None and init.shard_id not in self._recorder.shards:
            return
        with self._recorder.call(self._worker, init.shard_id, "initialize"):
            self._inner = self._make()
            must_have_run("initialize", _returned(self._inner.initialize, init))
        has_own_end = getattr(type(self._inner), "shard_ended", None) is not RecordProcessor.shard_ended
        if has_own_end or not self._recorder.is_manual:
            # With checkpoint="manual" the worker asks the class whether it has a shard_ended that confirms the end.
            self.__class__ = _RecordedToTheEnd

    def process_records(self, batch: Batch) -> None:
        recorder = self._recorder
        if isinstance(self._inner, _Ignoring):
            return
        with recorder.call(self._worker, batch.shard_id, "process_records", batch.records) as call:
            recorder.handed.update(map(place_of, batch.records))
            recorder.before(call)
            checkpointer = _RecordedCheckpointer(batch, call, recorder)
            try:
                handed = replace(batch, checkpointer=checkpointer)
                must_have_run("process_records", _returned(self._inner.process_records, handed))
            except Exception:
                checkpointer.raised()
                raise
            recorder.delivered += batch.records
            recorder.done.update(map(place_of, batch.records))
            call.returned = True
            recorder.after(call)

    def lease_lost(self, loss: LeaseLoss) -> None:
        self._pass_on("lease_lost", loss)

    def shutdown_requested(self, request: ShutdownRequest) -> None:
        self._pass_on("shutdown_requested", request)

    def _pass_on(self, method: str, argument: LeaseLoss | ShutdownRequest | ShardEnd) -> None:
        if not isinstance(self._inner, _Ignoring):
            with self._recorder.call(self._worker, argument.shard_id, method):
                must_have_run(method, _returned(getattr(self._inner, method), argument))


class _RecordedToTheEnd(RecordedProcessor):
    def shard_ended(self, end: ShardEnd) -> None:
        self._pass_on("shard_ended", end)


class _Ignoring(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        """Do nothing with a shard that is not under test."""


class _RecordedCheckpointer:
    """A `processor.Checkpointer` that notes what the processor says is done. First as a claim: the process may die
    between the write and its answer, or the answer be lost; then the row shows whether it was written."""

    def __init__(self, batch: Batch, call: Call, recorder: Recorder) -> None:
        self._inner: Checkpointer = batch.checkpointer
        self._call, self._recorder = call, recorder
        self._claimed: set[Place] = set()

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        position = self._position(at, sub_sequence_number)
        records = () if position is None else self._call.records
        claimed = {place_of(each) for each in records if position is not None and each.position <= position}
        claimed -= self._recorder.done
        self._recorder.claimed |= claimed
        try:
            self._inner.checkpoint(at, sub_sequence_number)
        except CheckpointRefused:
            self._recorder.claimed -= claimed
            raise
        self._recorder.claimed -= claimed
        self._recorder.done |= claimed
        self._claimed |= claimed
        self._call.checkpoint = position
        self._recorder.written(self._call)

    def prepare_checkpoint(
        self,
        at: Record | Checkpoint | str | None = None,
        sub_sequence_number: int = 0,
        *,
        state: bytes | None = None,
    ) -> PreparedCheckpoint:
        return self._inner.prepare_checkpoint(at, sub_sequence_number, state=state)

    def raised(self) -> None:
        """Take back what this call has checkpointed, if that was the whole batch: what raised after it was a part of
        the work, and nobody knows which."""
        records, at = self._call.records, self._call.checkpoint
        if at is not None and records and records[-1].position <= at:
            self._recorder.done -= self._claimed

    def _position(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Checkpoint | None:
        if at is None:
            return self._call.records[-1].position if self._call.records else None
        if isinstance(at, Record):
            return at.position
        try:
            return at if isinstance(at, Checkpoint) else Checkpoint(at, sub_sequence_number)
        except (TypeError, ValueError):
            # The worker refuses it, and nothing is claimed.
            return None


def _returned(method: Callable[[Any], object], argument: Any) -> object:
    """Return the answer of a method that is declared to have none: a user's may return a coroutine."""
    return method(argument)


def _position(text: str) -> Checkpoint:
    """Return the Checkpoint that an event shows as text."""
    number, _, sub = text.partition(":")
    return Checkpoint(number, int(sub or 0))
