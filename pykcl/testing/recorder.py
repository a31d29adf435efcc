"""A record of what happened to a processor: every call, every checkpoint, and the records that are done by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from pykcl.errors import CheckpointRefused
from pykcl.events import BatchSkipped, Checkpointed, Event, RecordsDeadLettered, RecordsDiscarded, ShardEnded
from pykcl.interfaces import DeadLetterDestination
from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.dead_letter import DeadLetter
from pykcl.model.record import Record
from pykcl.processor import (
    Acknowledgements,
    Batch,
    Checkpointer,
    FailedAt,
    InitializationInput,
    LeaseLostInput,
    PreparedCheckpoint,
    ProcessorFactory,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.testing.runtime.scheduler import SimulationOver, ThreadStruck
from pykcl.testing.runtime.watchdog import Watchdog
from pykcl.worker.options import DeadLetters
from pykcl.worker.processor_calls import index_of
from pykcl.worker.processor_factory import must_have_run
from pykcl.worker.window_delivery import windows_of

RecordId = tuple[str, str, int]
"""Shard, sequence number and sub-sequence number of a record."""


def id_of(record: Record) -> RecordId:
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


def _go_on(call: Call) -> None:
    del call


class Recorder:
    """Everything about one run. Calls may come from any thread.

    watchdog: watches each call of user code, in a simulation. before, written, after: called before a batch is
    delivered, after the processor has checkpointed, and after it has returned, to interrupt the run there. shards:
    those under test, None for all. is_manual: whether only the processor checkpoints. hears_checkpoints: take
    checkpoints from events; a worker that dies after a write, or gets no answer to it, emits none.
    """

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self.records: list[Record] = []
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self.checkpoints: list[tuple[str, Checkpoint]] = []
        self.delivered: list[Record] = []
        self.handed: set[RecordId] = set()
        self.shards: set[str] | None = None
        self.is_manual = False
        self.hears_checkpoints = True
        self.watchdog = watchdog
        self.before = self.written = self.after = _go_on
        self.returned: set[RecordId] = set()
        self.done: set[RecordId] = set()
        self.claimed: set[RecordId] = set()
        # Records of processors that settle each one, not settled yet.
        self.in_lanes: dict[RecordId, Record] = {}
        self._reached: dict[str, Checkpoint] = {}
        self.dead_letters: list[DeadLetter] = []
        self._skips: list[tuple[str, Checkpoint, Checkpoint]] = []
        self._given_up: list[tuple[str, Checkpoint, Checkpoint]] = []

    def hear(self, event: Event) -> None:
        """Note an event of a worker; a listener."""
        self.events.append(event)
        if isinstance(event, BatchSkipped):
            self._skips.append((event.shard, _position(event.first), _position(event.last)))
        if isinstance(event, RecordsDeadLettered | RecordsDiscarded):
            self._given_up.append((event.shard, _position(event.first), _position(event.last)))
        if self.hears_checkpoints and isinstance(event, Checkpointed):
            self.checkpoint(event.shard, _position(event.checkpoint))
        elif self.hears_checkpoints and isinstance(event, ShardEnded):
            self.checkpoint(event.shard, AT_SHARD_END)

    def checkpoint(self, shard: str, checkpoint: Checkpoint) -> None:
        """Note that the row of a lease has a new checkpoint."""
        if self.shards is None or shard in self.shards:
            self.checkpoints.append((shard, checkpoint))
            self._reached[shard] = checkpoint

    def factory(self, create: ProcessorFactory, worker: str) -> ProcessorFactory:
        """Return a factory of processors that do what those of `create` do, and are recorded."""
        return lambda: RecordedProcessor(create, worker, self)

    def has_ended(self, shard: str) -> bool:
        return shard in self._reached and self._reached[shard].is_shard_end

    def is_checkpointed(self, record: Record) -> bool:
        """Return whether a restart would start after this record."""
        reached = self._reached.get(record.shard_id)
        return reached is not None and record.position <= reached

    def is_settled(self, record: Record) -> bool:
        """Return whether nothing more will happen to this record."""
        return self.is_done(record) or self.is_given_up(record) or self.is_checkpointed(record)

    def is_done(self, record: Record) -> bool:
        """Return whether a call that had this record returned, or checkpointed it by itself."""
        # A checkpoint counts once the row has it: the process may die, or the answer be lost, before it is written.
        return id_of(record) in self.done or (id_of(record) in self.claimed and self.is_checkpointed(record))

    def is_skipped(self, record: Record) -> bool:
        """Return whether its batch was given up as on_error="skip" says."""
        return _is_in(record, self._skips)

    def is_given_up(self, record: Record) -> bool:
        """Return whether it was skipped, or is in a dead letter that was kept, or discarded as the options say."""
        return _is_in(record, self._skips) or _is_in(record, self._given_up)

    def failure_of(self, record: Record) -> Call | None:
        """Return the last call that had this record and raised."""
        failed = (call for call in reversed(self.calls) if call.error is not None)
        return next((call for call in failed if id_of(record) in map(id_of, call.records)), None)

    @contextmanager
    def call(self, worker: str, shard: str, method: str, records: tuple[Record, ...] = ()) -> Iterator[Call]:
        """Record one call of user code around the block that makes it."""
        call = Call(worker, shard, method, records)
        self.calls.append(call)
        try:
            with self.watchdog.during(f"{method} for {shard}") if self.watchdog else nullcontext():
                yield call
        except (SimulationOver, ThreadStruck):
            # The simulation has ended meanwhile; the processor has raised nothing.
            raise
        except BaseException as error:
            call.error = error
            raise
        call.returned = True


class RecordedProcessor(RecordProcessor):
    """Stands between the worker and one processor of the user, which is created when `initialize` is called.

    A shard that is not under test, such as the child of one that is, gets no processor of the user.
    """

    def __init__(self, create: ProcessorFactory, worker: str, recorder: Recorder) -> None:
        self._create, self._worker, self._recorder = create, worker, recorder
        self._inner: RecordProcessor | None = None
        self._in_window: set[RecordId] = set()
        self._settles_each = False

    @property
    def wrapped(self) -> RecordProcessor | None:
        """The processor of the user, whose name is in dead letters."""
        return self._inner

    def __getattr__(self, name: str) -> Any:
        """Return what the worker asks of some processors: is_of_no_use, turn, windows, settle_by, handler_name, …"""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._inner, name)
        if name == "settle_by":
            self._settles_each = True
            return lambda settling: found(_RecordedSettling(settling, self._recorder))
        return found

    def initialize(self, init: InitializationInput) -> None:
        recorder = self._recorder
        if recorder.shards is not None and init.shard_id not in recorder.shards:
            return
        with recorder.call(self._worker, init.shard_id, "initialize") as call:
            inner = self._inner = self._create()
            _run(inner, call, _recorded(init, call, recorder))
        has_own_end = getattr(type(inner), "shard_ended", None) is not RecordProcessor.shard_ended
        if has_own_end or not recorder.is_manual:
            # With checkpoint_mode="manual" the worker asks the class for a shard_ended that confirms the end.
            self.__class__ = _RecordedToTheEnd

    def process_records(self, batch: Batch) -> None:
        recorder = self._recorder
        if self._inner is None:
            return
        # The result holds the very records that the processor is given.
        records = tuple(batch)
        batch = replace(batch, records=records)
        ids = set(map(id_of, records))
        with recorder.call(self._worker, batch.shard_id, "process_records", records) as call:
            recorder.handed |= ids
            if self._settles_each:
                recorder.in_lanes.update(zip(map(id_of, records), records, strict=True))
            recorder.before(call)
            try:
                _run(self._inner, call, _recorded(batch, call, recorder))
            except FailedAt as error:
                at = index_of(error.record, records) or 0
                recorder.delivered += records[:at]
                if at:
                    # Of no records it would say that a window is closed.
                    self._returned(set(map(id_of, records[:at])))
                raise
            except Exception:
                # Part of the work was done after a checkpoint of the whole batch, and nobody knows which.
                if call.checkpoint is not None and records[-1].position <= call.checkpoint:
                    recorder.claimed -= ids
                raise
            if not self._settles_each:
                recorder.delivered += records
                self._returned(ids)
            call.returned = True
            recorder.after(call)

    def _returned(self, ids: set[RecordId]) -> None:
        """Note records that the processor has returned from. In a window they are done when it is closed."""
        recorder = self._recorder
        recorder.returned |= ids
        if windows_of(self._inner) is None:
            recorder.done |= ids
        elif ids:
            self._in_window |= ids
        else:
            recorder.done |= self._in_window
            self._in_window = set()

    def lease_lost(self, loss: LeaseLostInput) -> None:
        self._pass_on("lease_lost", loss)

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        self._pass_on("shutdown_requested", request)

    def _pass_on(
        self, method: str, argument: LeaseLostInput | ShutdownRequestedInput | ShardEndedInput
    ) -> None:
        if self._inner is not None:
            with self._recorder.call(self._worker, argument.shard_id, method) as call:
                _run(self._inner, call, _recorded(argument, call, self._recorder))


class _RecordedSettling:
    """A `pykcl.worker.lane_delivery.Settling` that records what is settled, and watches over each lane."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def settle(self, key: tuple[str, int]) -> bool:
        recorder, found = self._recorder, (self._inner.shard_id, *key)
        # First: as soon as it is settled, a checkpoint may pass it.
        if (record := recorder.in_lanes.pop(found, None)) is not None:
            recorder.done.add(found)
            recorder.delivered.append(record)
        settled: bool = self._inner.settle(key)
        return settled

    def run(self, body: Callable[[], None]) -> None:
        watchdog = self._recorder.watchdog
        with watchdog.during(f"process_records for {self._inner.shard_id}") if watchdog else nullcontext():
            self._inner.run(body)


class _RecordedToTheEnd(RecordedProcessor):
    def shard_ended(self, end: ShardEndedInput) -> None:
        self._pass_on("shard_ended", end)


class _RecordedCheckpointer:
    """A `processor.Checkpointer` that notes the records that the processor says are done."""

    def __init__(self, inner: Checkpointer, call: Call, recorder: Recorder) -> None:
        self._inner, self._call, self._recorder = inner, call, recorder

    @property
    def is_lost(self) -> bool:
        return bool(getattr(self._inner, "is_lost", False))

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        self._refuse_other_threads()
        recorder, position = self._recorder, self._position(at, sub_sequence_number)
        upto = (each for each in self._call.records if position is not None and each.position <= position)
        claimed = set(map(id_of, upto)) - recorder.claimed
        recorder.claimed |= claimed
        try:
            self._inner.checkpoint(at, sub_sequence_number)
        except CheckpointRefused:
            recorder.claimed -= claimed
            raise
        self._call.checkpoint = position
        recorder.written(self._call)

    def prepare_checkpoint(
        self,
        at: Record | Checkpoint | str | None = None,
        sub_sequence_number: int = 0,
        *,
        state: bytes | None = None,
    ) -> PreparedCheckpoint:
        self._refuse_other_threads()
        return self._inner.prepare_checkpoint(at, sub_sequence_number, state=state)

    def _refuse_other_threads(self) -> None:
        if self._recorder.watchdog is not None:
            self._recorder.watchdog.refuse_other_threads(f"{self._call.method} for {self._call.shard}")

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


class _RecordedAcks:
    """A `processor.Acknowledgements` that refuses threads of which a simulation does not decide when they run."""

    def __init__(self, inner: Acknowledgements, shard: str, recorder: Recorder) -> None:
        self._inner, self._shard, self._recorder = inner, shard, recorder

    def ack(self, record: Record) -> bool:
        self._refuse_other_threads()
        return self._inner.ack(record)

    def reject(self, record: Record, reason: str = "") -> bool:
        self._refuse_other_threads()
        return self._inner.reject(record, reason)

    def _refuse_other_threads(self) -> None:
        if self._recorder.watchdog is not None:
            self._recorder.watchdog.refuse_other_threads(f"process_records for {self._shard}", "acks")


def _recorded(argument: Any, call: Call, recorder: Recorder) -> Any:
    """Return the argument of a call with a checkpointer that is recorded, where it has one."""
    if not hasattr(argument, "checkpointer"):
        return argument
    argument = replace(argument, checkpointer=_RecordedCheckpointer(argument.checkpointer, call, recorder))
    if isinstance(argument, Batch) and argument.acks is not None:
        argument = replace(argument, acks=_RecordedAcks(argument.acks, argument.shard_id, recorder))
    return argument


def _run(processor: RecordProcessor, call: Call, argument: Any) -> None:
    """Call a method that is declared to return nothing: a user's may return a coroutine."""
    must_have_run(call.method, getattr(processor, call.method)(argument))


def _is_in(record: Record, runs: Iterable[tuple[str, Checkpoint, Checkpoint]]) -> bool:
    return any(first <= record.position <= last for shard, first, last in runs if shard == record.shard_id)


class RecordedLetters:
    """A DeadLetterDestination that records what `inner` has kept; without one it keeps all in memory."""

    def __init__(self, recorder: Recorder, inner: DeadLetters | None) -> None:
        self._recorder = recorder
        self._send = inner.send if isinstance(inner, DeadLetterDestination) else inner

    def send(self, letters: Sequence[DeadLetter]) -> None:
        if callable(self._send):
            must_have_run("dead_letters", self._send(letters))
        self._recorder.dead_letters += letters


def _position(text: str) -> Checkpoint:
    """Return the Checkpoint that an event shows as text."""
    number, _, sub = text.partition(":")
    return Checkpoint(number, int(sub or 0))
