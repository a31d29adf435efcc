"""Checkpointers of a processor: validation against the delivered records, then one fenced write."""

from __future__ import annotations

from pykcl.errors import CheckpointRefused, LeaseLostError
from pykcl.events import Checkpointed
from pykcl.interfaces import Events
from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_SHARD_END, SHARD_END, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.model.lease_writes import MAX_PENDING_STATE, LeaseWrite
from pykcl.model.record import Record
from pykcl.runtime import Runtime
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.watermark import Watermark


class Progress:
    """Progress of one shard during this ownership: delivered, done and checkpointed. Thread-safe.

    delivered: last position that the processor may checkpoint, of the records of its last call. returned: last position
    of a batch that returned normally. done: the same, or of later records that were given up.
    What is durable is in the lease itself. update: as what a write is measured.
    watermark: where records are settled one by one, its `low` stands in place of all three; else None.
    """

    def __init__(
        self,
        held: HeldLease,
        runtime: Runtime,
        meter: Meter,
        events: Events,
        watermark: Watermark | None = None,
    ) -> None:
        self._held = held
        self.watermark = watermark
        self.waits_for_acks = watermark is not None
        self._events = events
        self._meter = meter
        self.update = catalog.UPDATE_LEASE
        self._runtime = runtime
        self._lock = runtime.lock()
        self._delivered: Checkpoint | None = None
        self._done: Checkpoint | None = None
        self._returned: Checkpoint | None = None
        self._holds_back = False
        self._held_back: Checkpoint | None = None
        self._prepared_here = False
        self._retired = False
        self._written_at = runtime.monotonic()
        inherited = held.lease.pending
        # A position an earlier owner prepared was delivered by that owner: committing it is allowed.
        self._inherited = inherited.checkpoint if inherited else None

    @property
    def shard_id(self) -> str:
        return self._held.key

    def handing_over(self, last: Checkpoint) -> None:
        with self._lock:
            if not self._holds_back:
                self._delivered = last

    def batch_done(self, last: Checkpoint) -> None:
        with self._lock:
            if self._holds_back:
                self._held_back = last
            else:
                self._done = self._returned = last

    def given_up(self, last: Checkpoint) -> None:
        """Note the last of some records that are settled without the processor, right behind those before."""
        with self._lock:
            if self._holds_back:
                self._held_back = last
            else:
                self._done = self._delivered = last

    def hold_back(self) -> None:
        """Let no checkpoint pass the records of batches from now on, before `settle_held_back`."""
        with self._lock:
            self._holds_back = True

    def settle_held_back(self) -> None:
        """Note that the records of all batches until now are settled."""
        with self._lock:
            if self._held_back is not None:
                self._delivered = self._done = self._returned = self._held_back
                self._held_back = None

    @property
    def done(self) -> Checkpoint | None:
        if self.watermark is not None:
            return self.watermark.low
        with self._lock:
            return self._done

    @property
    def reached(self) -> Checkpoint | None:
        """Position of the last record of the batches that are settled, or held back; None: there is none."""
        with self._lock:
            return self._held_back or self._done

    def owed(self) -> Checkpoint | None:
        """Position that an automatic checkpoint would write now. None: nothing is new, a prepared one is waiting, or
        another instance has started at the row's checkpoint."""
        low = None if self.watermark is None else self.watermark.low
        with self._lock:
            done = self._done if self.watermark is None else low
            done = None if self._retired else done
        if done is None or self.is_prepared or done <= self._held.lease.checkpoint:
            return None
        return done

    @property
    def is_prepared(self) -> bool:
        """True if a checkpoint prepared during this ownership waits to be committed."""
        with self._lock:
            prepared_here = self._prepared_here
        return prepared_here and self._held.lease.pending is not None

    @property
    def all_durable(self) -> bool:
        """True if every record that the processor returned for during this ownership has been checkpointed."""
        if self.watermark is not None and self.watermark.count:
            return False
        with self._lock:
            returned = self._returned
            if self._held_back is not None:
                return False
        returned = returned if self.watermark is None else self.watermark.low
        return returned is None or returned <= self._held.lease.checkpoint

    def seconds_since_write(self) -> float:
        with self._lock:
            return self._runtime.monotonic() - self._written_at

    def checkpoint(self, at: Checkpoint, *, waits: bool = True) -> None:
        """Write `at` as the checkpoint. Raises LeaseLostError, CheckpointRefused, TemporaryError.

        waits: while the lease is in doubt, instead of raising LeaseInDoubt.
        """
        self.check()
        row = self._held.lease
        if at == row.checkpoint and row.pending is None:
            return

        def build(lease: Lease) -> LeaseWrite:
            # Checked on the row under the lease's write lock: 1) two threads check 90 and 100 against 80; 2) 100 is
            # written; 3) 90, allowed by the stale check, would move the checkpoint back.
            self.check()
            self._refuse_unless_allowed(at, lease.checkpoint)
            return lease_writes.checkpoint(lease, at)

        write = self._held.write_when_certain if waits else self._held.write
        with self._meter.timed(self.update, self.shard_id):
            row = write(build)
        with self._lock:
            self._prepared_here = False
            self._written_at = self._runtime.monotonic()
        self._events.emit(
            Checkpointed(shard=self.shard_id, checkpoint=str(row.checkpoint), counter=row.counter)
        )

    def flush(self) -> None:
        """Write what automatic checkpoints still owe. Raises LeaseLostError, TemporaryError; LeaseInDoubt at once."""
        owed = self.owed()
        if owed is None:
            return
        try:
            self.checkpoint(owed, waits=False)
        except CheckpointRefused:
            # The application's own thread checkpointed further between the check and the write.
            if self._held.lease.checkpoint < owed:
                raise

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is still held, for the processor instance that this belongs to.

        One that is in doubt may be: see HeldLease.
        """
        self._held.check(may_be_in_doubt=True)
        with self._lock:
            retired = self._retired
        if retired:
            raise LeaseLostError(
                f"The processor of {self._held.key} was replaced by a new one, which goes on. Stop."
            )

    @property
    def is_lost(self) -> bool:
        """True if `check` would raise."""
        try:
            self.check()
        except LeaseLostError:
            return True
        return False

    @property
    def is_in_doubt(self) -> bool:
        """True while nothing may begin under the lease, which may be lost or not."""
        return self._held.is_in_doubt

    def retire(self) -> None:
        """Let `check` and every write raise LeaseLostError from now on.

        A write that is already on its way may land: 1) an old thread of the application sends 200; 2) the new instance
        begins at 100; 3) the row says 200. That the records up to 200 are done was said by who had them.
        """
        with self._lock:
            self._retired = True

    def prepare(self, at: Checkpoint, state: bytes | None) -> None:
        self.check()

        def build(lease: Lease) -> LeaseWrite:
            self.check()
            self._refuse_unless_allowed(at, lease.checkpoint)
            return lease_writes.prepare(lease, PendingCheckpoint(at, state))

        # Said before it is written: an automatic checkpoint right behind the write would erase it.
        with self._lock:
            self._prepared_here = True
        with self._meter.timed(self.update, self.shard_id):
            self._held.write_when_certain(build)

    def _refuse_unless_allowed(self, at: Checkpoint, durable: Checkpoint) -> None:
        with self._lock:
            delivered = self._delivered
        if self.watermark is not None:
            delivered = self.watermark.low
        known = [p for p in (delivered, self._inherited) if p is not None]
        highest = max(known, default=None)
        if at.is_sentinel:
            raise CheckpointRefused(f"Cannot checkpoint {at}: only positions of delivered records can be.")
        if at < durable:
            raise CheckpointRefused(
                f"Cannot checkpoint {at}: the checkpoint of {self._held.key} is already at {durable} and never moves "
                "backwards. Checkpoint a later record, or none."
            )
        if highest is None or at > max(highest, durable):
            if self.watermark is not None:
                self._refuse_unacked(at, self.watermark)
            if self._holds_back:
                raise CheckpointRefused(
                    f"Cannot checkpoint {at}: its window is not closed. Leave it out: the checkpoint moves by itself."
                )
            raise CheckpointRefused(
                f"Cannot checkpoint {at}: the last record of {self._held.key} delivered to this processor is at "
                f"{highest or 'none yet'}. Checkpoint a delivered record."
            )

    def _refuse_unacked(self, at: Checkpoint, watermark: Watermark) -> None:
        """Raise CheckpointRefused if `at` was delivered, and is beyond records that are not acked."""
        count, last = watermark.count_unsettled(at), watermark.last
        if count and last is not None and at <= last:
            records = "1 record up to it is" if count == 1 else f"{count} records up to it are"
            not_yet = (
                "not acked. Ack them first; the checkpoint then follows by itself"
                if self.waits_for_acks
                else "not done. Leave it out: the checkpoint follows by itself as calls of the handler return"
            )
            raise CheckpointRefused(f"Cannot checkpoint {at}: {records} {not_yet}.")


class ShardCheckpointer:
    """A `pykcl.processor.Checkpointer`: `progress`, and which position `checkpoint()` without arguments means."""

    _NO_POSITION = "nothing has been delivered yet. Name a position"

    def __init__(self, progress: Progress, default: Checkpoint | None) -> None:
        self._progress = progress
        self._default = default

    @property
    def is_lost(self) -> bool:
        """True once this worker may no longer write for the shard, as it is at this moment."""
        return self._progress.is_lost

    @property
    def is_in_doubt(self) -> bool:
        """True while no record may be begun, as the lease may be lost or not."""
        return self._progress.is_in_doubt

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        position = self._position(at, sub_sequence_number)
        if position is not None:
            self._progress.checkpoint(position)

    def prepare_checkpoint(
        self,
        at: Record | Checkpoint | str | None = None,
        sub_sequence_number: int = 0,
        *,
        state: bytes | None = None,
    ) -> Prepared:
        position = self._position(at, sub_sequence_number)
        if position is None:
            raise CheckpointRefused(f"Cannot prepare a checkpoint: {self._NO_POSITION}.")
        if state is not None:
            _refuse_state(state)
        self._progress.prepare(position, state)
        return Prepared(self._progress, position)

    def _position(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Checkpoint | None:
        if at is None:
            return self._default
        if isinstance(at, Record):
            if at.shard_id and at.shard_id != self._progress.shard_id:
                # Its number may lie between two records of this shard, and everything before it would count as done.
                raise CheckpointRefused(
                    f"Cannot checkpoint {self._progress.shard_id} at a record of {at.shard_id}. "
                    "Checkpoint a record of the batch this checkpointer came with."
                )
            return at.position
        if isinstance(at, Checkpoint):
            return at
        if not isinstance(at, str):
            raise CheckpointRefused(
                f"Cannot checkpoint: a position is a record, a Checkpoint or a sequence number in text, "
                f"not {type(at).__name__}."
            )
        try:
            return Checkpoint(at, sub_sequence_number)
        except (TypeError, ValueError) as error:
            raise CheckpointRefused(f"Cannot checkpoint: {error}.") from None


def _refuse_state(state: object) -> None:
    """Raise CheckpointRefused for what cannot be the state of a prepared checkpoint."""
    if not isinstance(state, bytes):
        raise CheckpointRefused(f"The state of a prepared checkpoint is bytes, not {type(state).__name__}.")
    if len(state) > MAX_PENDING_STATE:
        raise CheckpointRefused(
            f"The state of a prepared checkpoint has {len(state)} bytes; at most {MAX_PENDING_STATE} fit into a lease "
            "row. Keep the data elsewhere and prepare with its name."
        )


class Prepared:
    """A `pykcl.processor.PreparedCheckpoint`."""

    def __init__(self, progress: Progress, position: Checkpoint) -> None:
        self._progress = progress
        self._position = position

    @property
    def position(self) -> Checkpoint:
        return self._position

    def checkpoint(self) -> None:
        self._progress.checkpoint(self._position)


class EndCheckpointer(ShardCheckpointer):
    """Handed to shard_ended: `checkpoint()` without arguments says that the whole shard is done, and so does the
    position of its last record, as in Java (ShardRecordProcessorCheckpointer, sequenceNumberAtShardEnd).

    It only takes note of that. SHARD_END itself is written when shard_ended has returned, after the children's
    leases exist: a processor that raises after checkpoint() has not ended its shard.
    """

    _NO_POSITION = (
        "the end of a shard has no first phase. Call checkpoint() once all of the shard is done, or name the position "
        "of a delivered record"
    )

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress, None)
        self.confirmed = False

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        if at is None or at in (SHARD_END, AT_SHARD_END):
            self._progress.check()
            self.confirmed = True
            return
        super().checkpoint(at, sub_sequence_number)
        if self._progress.all_durable:
            self.confirmed = True


def is_confirmed(checkpointer: object) -> bool:
    """True if `checkpointer` was given to shard_ended, which has confirmed with it that the whole shard is done."""
    return isinstance(checkpointer, EndCheckpointer) and checkpointer.confirmed
