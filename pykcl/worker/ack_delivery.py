"""Delivery with checkpoint_mode="ack": records are settled one by one, in any order, by threads of the application."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from pykcl.errors import ConfigError
from pykcl.events import RecordsDeadLettered, RecordsDiscarded
from pykcl.model.dead_letter import Condition
from pykcl.model.record import Record, data_bytes, keys_of
from pykcl.planning.attempts import Cause, Part
from pykcl.planning.lifecycle import Signal
from pykcl.processor import Batch, FailedAt, Reject
from pykcl.status import Activity
from pykcl.worker.batch_delivery import BatchDelivery
from pykcl.worker.checkpointer import ShardCheckpointer
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.pausing import PAUSE_POLL
from pykcl.worker.processor_calls import CallResult, index_of, span_of
from pykcl.worker.shard_end import NOT_RETURNED
from pykcl.worker.signals import OwnProcess
from pykcl.worker.watermark import Watermark

WRITE_EVERY = 1.0
"""Seconds between two automatic checkpoints, and longest sleep while one may become due."""


class Intake(ABC):
    """The attribute `intake` of a processor whose records wait in a queue until a program takes them.

    It calls `moved`, without any lock, after whatever may end a wait of the delivery.
    """

    awaited: tuple[Callable[[], bool], Callable[[], object]] | None = None
    """The end of the wait that lasts, and what wakes up the thread that waits."""

    @abstractmethod
    def room(self) -> int:
        """Return how many more records may be delivered now."""

    @abstractmethod
    def is_owed(self) -> bool:
        """Return True while the program has a record that it may still ack."""

    @abstractmethod
    def since(self, delivered: float) -> float:
        """Return since when the first record that is not acked is in the hands of the program, monotonic seconds.

        delivered: when it was delivered, for one that no program could have taken before.
        """

    def moved(self) -> None:
        awaited = self.awaited
        if awaited is not None and awaited[0]():
            awaited[1]()


class ShardAcks:
    """A `pykcl.processor.Acknowledgements`. Any thread of the application calls it, at any time.

    policies: makes dead letters; None without `dead_letters`.
    """

    def __init__(self, scope: LeaseScope, watermark: Watermark, policies: BatchDelivery | None) -> None:
        self._scope, self._context = scope, scope.context
        self._held = scope.mine
        self._watermark, self._policies = watermark, policies
        self._own_process = OwnProcess()

    def ack(self, record: Record) -> bool:
        if self._is_ignored(record):
            return False
        try:
            return self._watermark.settle((record.sequence_number, record.sub_sequence_number))
        except LookupError:
            return self._refuse_unless_durable(record)

    @property
    def is_paused(self) -> bool:
        """True while the application has paused the shard of the records."""
        return self._scope.is_paused

    def reject(self, record: Record, reason: str = "") -> bool:
        policies, context = self._policies, self._context
        if policies is None:
            raise ConfigError(
                "Batch.reject keeps a record as a dead letter, and dead_letters=None names no place for it. Do: "
                'dead_letters="file:letters" or another destination; dead_letters="discard" drops it.'
            ).about("E21")
        if self._is_ignored(record):
            return False
        try:
            is_open = self._watermark.is_open((record.sequence_number, record.sub_sequence_number))
        except LookupError:
            is_open = self._refuse_unless_durable(record)
        if not is_open:
            return False
        records = (record,)
        part = Part(0, 1, attempts=1, cause=Cause(reason=str(reason)))
        letter = policies.letter(part, Condition.REJECTED, records)
        destination = context.dead_letters
        if destination is not None:
            destination.send((letter,))
        event = RecordsDiscarded if destination is None else RecordsDeadLettered
        context.events.emit(
            event(
                shard=self._held.key,
                condition=Condition.REJECTED.value,
                records=1,
                attempts=1,
                letter=letter.id,
                **span_of(records),
            )
        )
        return self.ack(record)

    def _is_ignored(self, record: Record) -> bool:
        """Return True for an ack that has no effect, whatever its record. Raises ValueError for a foreign record."""
        # Before any lock: a thread that had it at the fork cannot release it in the forked process.
        if not self._own_process.is_this:
            return True
        if record.shard_id and record.shard_id != self._held.key:
            raise ValueError(
                f"A record of {record.shard_id} was acked in a batch of {self._held.key}. Ack it in a batch of its "
                "shard."
            )
        # In doubt it counts once the lease is confirmed, and not at all once it is lost.
        return self._held.is_over

    def _refuse_unless_durable(self, record: Record) -> bool:
        """Return False for a record that was checkpointed before it could be delivered; else raise ValueError."""
        if record.position <= self._held.lease.checkpoint:
            return False
        raise ValueError(
            f"The record at {record.position} of {self._held.key} was never delivered to this processor. Ack records "
            "of its batches."
        )


class AckDelivery:
    """Used by the lease worker's thread, under one lease.

    delivered: called with records that process_records has returned from. write: writes the automatic checkpoint that
    is due, if one is. policies: as of ShardAcks.
    """

    def __init__(
        self,
        scope: LeaseScope,
        watermark: Watermark,
        *,
        delivered: Callable[[Sequence[Record]], None],
        write: Callable[[], None],
        policies: BatchDelivery | None,
    ) -> None:
        self._scope = scope
        self._context = scope.context
        self._held = scope.mine
        self._processor, self._progress = scope.initialized
        self._watermark, self._policies = watermark, policies
        self._delivered, self._write = delivered, write
        self._refused_from: int | None = None
        # Bytes of the delivered records whose page is still counted as a whole.
        self._amid_page = 0
        self._intake: Intake | None = getattr(self._processor, "intake", None)
        if self._intake is not None:
            watermark.since = self._intake.since
        self.acks = ShardAcks(scope, watermark, policies)

    # -- delivering ----------------------------------------------------------------------------------------------

    def deliver(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        """Deliver the records, in several batches where there is not room for all of them. Raises LeaseLostError."""
        start = 0
        while start < len(records):
            if not self._wait(lambda: self._room() > 0 or self._scope.is_paused, or_stop=True):
                return Signal.STOP
            if self._scope.is_paused:
                return Signal.PAUSE
            durable = self._held.lease.checkpoint
            if not durable < records[start].position:
                # An earlier owner had prepared a later checkpoint, and it is committed since.
                start = bisect_right(records, durable, start, key=lambda record: record.position)
                continue
            room = self._room()
            if room <= 0:
                # 1) There was room; 2) this worker took one more shard, with which it is shared.
                continue
            part = records[start : start + room]
            signal = self._deliver(part, millis_behind)
            if signal is not None:
                return signal
            start += len(part)
        return None

    def _room(self) -> int:
        room = self._context.config.max_unacked - self._watermark.count
        return room if self._intake is None else min(room, self._intake.room())

    def _deliver(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        # Set before the call, and reset when it has returned: whatever ends it in between, nobody can be expected to
        # ack these records.
        self._refused_from = self._watermark.registered
        self._watermark.register(keys_of(records), self._context.runtime.monotonic())
        self._amid_page += data_bytes(records)
        checkpointer = ShardCheckpointer(self._progress, records[-1].position)
        stream = self._context.stream.name
        batch = Batch(records, checkpointer, millis_behind, self._held.key, stream, self.acks)
        call = self._processor.process_records
        result = self._scope.calls.until_it_returns(
            "process_records", call, batch, self._rest_after, self.hold_on
        )
        if result in NOT_RETURNED:
            return NOT_RETURNED[result]
        self._refused_from = None
        if result is CallResult.RETURNED:
            self._delivered(records)
        self._write()
        return None

    def _rest_after(self, batch: Batch, error: BaseException) -> Batch:
        """Return what is not settled of a batch whose call raised."""
        if isinstance(error, FailedAt) and self._context.config.on_error == "retry":
            done = batch.records[: index_of(error.record, batch.records) or 0]
            for key in keys_of(done):
                self._watermark.settle(key)
        elif isinstance(error, Reject) and self._policies is not None:
            self._reject(error, batch.records, self._policies)
        is_open = self._watermark.unsettled(keys_of(batch.records))
        self._watermark.delivered_again(self._context.runtime.monotonic())
        left = tuple(record for record, open_ in zip(batch.records, is_open, strict=True) if open_)
        return replace(batch, records=left)

    def _reject(self, error: Reject, records: Sequence[Record], policies: BatchDelivery) -> None:
        """Keep the rejected record as a dead letter; if that fails, it is delivered again with the others."""
        at = 0 if error.record is None and len(records) == 1 else index_of(error.record, records)
        if at is None:
            return
        failures, shard = self._context.failures, self._held.key
        try:
            self.acks.reject(records[at], error.reason)
        except Exception as failure:  # noqa: BLE001 - a destination of the application may raise anything
            failures.failed(Activity.SENDING_DEAD_LETTERS, policies.unsent(failure), shard=shard)
        else:
            failures.worked(Activity.SENDING_DEAD_LETTERS, shard=shard)

    # -- memory --------------------------------------------------------------------------------------------------

    def reserve(self, size: int, give_up: Callable[[], bool]) -> bool:
        """Take the bytes for the next page; False if there are none for now.

        A shard whose records hold bytes takes more only while half of all stays free: acks may be long in coming, and
        the other shards go on meanwhile.
        """
        memory = self._context.memory
        if self._watermark.held_bytes:
            return memory.try_reserve(size)
        return memory.reserve_page(size, give_up)

    def hold(self, size: int) -> int:
        """Keep bytes of a delivered page until its records are settled; return how many are kept."""
        self._amid_page = 0
        return self._watermark.hold(size)

    def release(self, size: int) -> None:
        """Release bytes of records that are delivered now, as soon as these are settled."""
        self._amid_page = max(0, self._amid_page - size)
        self._context.memory.release(size - self._watermark.hold(size))

    def page_is_dropped(self) -> None:
        """Count the delivered records of a page by themselves: its bytes were released before all of it was."""
        size, self._amid_page = self._amid_page, 0
        self._context.memory.count(self._watermark.hold(size))

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait_for_all(self) -> bool:
        """Wait until every record is settled; False if the shard is to be finished with. Raises LeaseLostError."""
        return self._wait(lambda: not self._watermark.count, or_stop=True)

    def wait_before_release(self) -> None:
        """Wait until all records are settled that the processor has accepted, as long as a stop leaves time for that.

        Raises LeaseLostError.
        """
        config, now = self._context.config, self._context.runtime.monotonic()
        refused_from, until = self._refused_from, now + config.shutdown_grace
        if not self._scope.stop_requested:
            until = self._scope.calls_until()
        upto = self._watermark.registered if refused_from is None else refused_from
        intake = self._intake
        # What the program has not taken from the queue, it will not ack any more.
        self._wait(
            lambda: self._watermark.passed >= upto or (intake is not None and not intake.is_owed()), until
        )

    def sleep(self, left: Callable[[], float]) -> bool:
        """Sleep as LeaseScope does, and write the checkpoints that become due."""
        now = self._context.runtime.monotonic
        while True:
            step = now() + (WRITE_EVERY if self._watermark.count or self._progress.owed() else inf)
            if self._scope.sleep(lambda until=step: min(left(), until - now())):  # type: ignore[misc]
                return True
            if left() <= 0:
                return False
            self._write()

    def hold_on(self) -> bool:
        """Wait while the shard is paused, and write the checkpoints that become due. Returns and raises as `sleep`."""
        return self.sleep(lambda: PAUSE_POLL if self._scope.is_paused else 0.0)

    def close(self) -> None:
        """Ignore acks from now on, and release what their records hold."""
        self._watermark.close()

    def _wait(self, is_reached: Callable[[], bool], until: float = inf, *, or_stop: bool = False) -> bool:
        """Wait until `is_reached()`, and write checkpoints meanwhile; False if the time is over, or a stop comes first.

        Raises LeaseLostError.
        """
        if is_reached() and not (or_stop and self._scope.must_stop()):
            return True
        scope, monotonic = self._scope, self._context.runtime.monotonic
        scope.waits_for_acks = True
        # Where it is known what ends the wait, not every ack wakes this thread up.
        if self._intake is None:
            self._watermark.is_awaited = True
        else:
            self._intake.awaited = is_reached, scope.wake.set
        try:
            while True:
                # Cleared before the check of what it announces: an ack after that sets it again.
                scope.wake.clear()
                scope.check()
                if or_stop and scope.must_stop():
                    return False
                if is_reached():
                    return True
                left = min(until, scope.acks_until) - monotonic()
                if left <= 0:
                    return False
                self._write()
                scope.wake.wait(min(left, WRITE_EVERY))
        finally:
            scope.waits_for_acks = self._watermark.is_awaited = False
            if self._intake is not None:
                self._intake.awaited = None
