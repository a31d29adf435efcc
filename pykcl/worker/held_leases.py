"""The one shared mutable object: which leases this worker believes it holds, until when, with which counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from pykcl.config import Config
from pykcl.errors import LeaseInDoubt, LeaseLostError, TemporaryError
from pykcl.events import CheckpointOverwritten, LeaseConfirmed, LeaseDoubted, LossReason
from pykcl.interfaces import Applied, Events, LeaseTable, Rejected, Unknown
from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.fleet_rows import decimal_text
from pykcl.model.lease import Lease, PykclMetadata, Standstill, UnreadableRow
from pykcl.model.lease_writes import LeaseWrite, is_checkpoint_of_others, resolve_conflict
from pykcl.runtime import Event, Runtime
from pykcl.worker.signals import OwnProcess
from pykcl.worker.write_gate import Rank, WriteGate

_LONGEST_WAIT = 1.0
"""Seconds between two checks of a lease that is in doubt."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a lease: its reason, the same in a sentence, and the new owner as far as known.

    is_planned: somebody took it who cannot have seen it expired. is_missed: its row is gone, by mistake.
    """

    reason: LossReason
    cause: str
    new_owner: str | None = None
    is_planned: bool = False
    is_missed: bool = False

    @classmethod
    def of(cls, reason: LossReason, *, new_owner: str | None = None, **names: object) -> Loss:
        """Fill in the sentence of the reason. names: those that it has in braces."""
        return cls(reason, reason.sentence.format(**names), new_owner)


class HeldLease:
    """One lease as its holder believes it: the row as last written, and until when that may be trusted.

    Belief ends `belief_time` after the last successful write was *sent* (never after it was answered: the row moves
    no later than the answer, so an observer's clock may already run while the answer is on its way).
    Where only the row confirms the success, it may be that of an earlier write, so belief counts from the first one
    that got no answer: 1) a heartbeat sent at 0 s lands, and its answer and those to its repetitions are lost; 2) the
    next one, sent at 7 s, is refused: the row is as it would make it; 3) to others the lease stands still since 0 s.

    Once the belief has ended the lease is in doubt: another worker may have taken it, or nobody. No call begins,
    nothing is read ahead, and nothing is written but heartbeats, with the condition that they always have: owner and
    counter as this worker left them. Each taker moves the counter. So one that is applied proves that nobody had the
    lease in between: it is believed again, and the shard goes on where it stood. One that is rejected ends it. Nobody
    outside hears of a loss before that: 1) a processor sees that its lease is lost, and returns without having done
    its records; 2) a heartbeat is applied; 3) the checkpoint would pass them.
    1) A call runs across the deadline; 2) another worker takes the lease; 3) the call returns: the thread waits until
    the lease is certain, hears of the loss, and settles nothing. 1) A checkpoint is on its way at the deadline; 2) a
    taker is first: the checkpoint is refused, as the counter has moved; or it is first, and the taker is refused.
    1) A heartbeat is sent, and lands late; 2) the next one is refused, as the row is one further: that proves no more
    than the first, so the lease stays in doubt until one more is applied.

    All writes for the lease go through `write`, one at a time, because each is conditional on the counter that the
    one before it left behind.
    """

    def __init__(
        self,
        lease: Lease,
        sent: float,
        *,
        table: LeaseTable,
        runtime: Runtime,
        config: Config,
        wake: Event,
        events: Events,
        gate: WriteGate | None = None,
    ) -> None:
        self.key = lease.key
        self.fencing_token = lease.counter
        self._table = table
        self._runtime = runtime
        self._config = config
        self._wake = wake
        self._events = events
        self._gate = gate or WriteGate(runtime, config.request_timeout / 2)
        self._one_write = runtime.lock()
        self._state = runtime.lock()
        self._lease = lease
        self._sent = sent
        self._unknown_since: float | None = None
        # Checkpoints of writes that got no answer; and whether the row has one that somebody else wrote.
        self._unanswered: frozenset[Checkpoint] = frozenset()
        self._must_restate = False
        self._writing_since: float | None = None
        self._lost: Loss | None = None
        self._released = False
        # Since when it is known to be in doubt; until when that may last; and set when it ends.
        self._doubted_since: float | None = None
        self._doubt_ends = inf
        self._is_certain = runtime.event()
        self._own_process = OwnProcess()
        self._throughput = Throughput(sent)
        self._asked_at: float | None = None
        self._note: tuple[Standstill | None, float] = (lease.standstill, 0.0)
        # Of its reader, for the status, monotonic seconds: since when the shard is subscribed to (enhanced fan-out),
        # and the last event before subscriptions that said nothing. None: it is not, and none was silent.
        self.subscribed_at: float | None = None
        self.silent_since: float | None = None

    @property
    def lease(self) -> Lease:
        with self._state:
            return self._lease

    @property
    def standstill(self) -> Standstill | None:
        """The note that the row is to have by now: heartbeats write it, and remove it."""
        note, since = self._note
        return note if self._runtime.monotonic() >= since else None

    def note(self, standstill: Standstill | None, *, since: float = 0.0) -> None:
        """Set the note. Called by the lease worker's thread. since: when the row is to have it, monotonic seconds."""
        self._note = (standstill, since)

    @property
    def next_owner(self) -> str | None:
        """Worker that a leader of KCL 3.x has assigned the lease to, once this one has finished with it."""
        lease = self.lease
        return lease.owner if lease.checkpoint_owner is not None else None

    def asked_for(self, now: float) -> float:
        """Return the seconds since this worker saw that a leader of KCL 3.x asks for the lease; 0: none does."""
        asked_at = self._asked_at
        return now - asked_at if asked_at is not None and not self.is_over else 0.0

    @property
    def deadline(self) -> float:
        with self._state:
            return self._sent + self._config.belief_time

    @property
    def next_renewal(self) -> float:
        """Monotonic seconds of the next heartbeat. A checkpoint is one, too, but says nothing of the throughput."""
        with self._state:
            next_heartbeat = self._sent + self._config.renew_interval
        if self._throughput.is_new:
            return min(next_heartbeat, self._throughput.since + self._config.failover_time)
        return next_heartbeat

    def next_heartbeat(self, again_at: float) -> float:
        """Monotonic seconds at which it is due, and not before `again_at`; at the end of the belief in any case, as the
        thread of the lease is woken then.
        """
        due = max(self.next_renewal, again_at)
        return due if self._doubted_since is not None else min(due, self.deadline)

    @property
    def is_over(self) -> bool:
        """True once the lease is lost or was given up: nothing more will be written."""
        with self._state:
            return self._lost is not None or self._released

    @property
    def is_to_be_put_back(self) -> bool:
        """True if it was lost because its row is gone, and nobody can have deleted that in order.

        1) The worker stands still, and the lease is in doubt; 2) another takes it, ends it, and deletes the row. Or:
        1) the end of the shard is written, and its answer is lost; 2) the children start, and the row is deleted.
        """
        loss = self.loss
        return loss is not None and loss.is_missed

    @property
    def ran_out(self) -> bool:
        """True if it was lost because no heartbeat was answered before a stop, not because one was rejected."""
        loss = self.loss
        return loss is not None and loss.reason is LossReason.EXPIRED

    @property
    def was_released(self) -> bool:
        """True if this worker removed itself as the owner, and the write was acknowledged."""
        with self._state:
            return self._released

    def may_have_made(self, counter: int) -> bool:
        """True if a write under this lease, answered or not, may have left the row with `counter`."""
        with self._state:
            return self._writing_since is not None or counter <= self._lease.counter + (
                self._unknown_since is not None
            )

    @property
    def loss(self) -> Loss | None:
        """The loss; None while the lease is not lost."""
        with self._state:
            return self._lost

    def is_valid_unlocked(self) -> bool:
        """True if the lease is believed at this moment. Takes no lock: see `HeldLeases.snapshot`."""
        believed = self._lost is None and not self._released
        return believed and self._runtime.monotonic() < self._sent + self._config.belief_time

    @property
    def is_in_doubt(self) -> bool:
        """True while it is neither believed, nor lost or given up. Takes no lock: see `HeldLeases.snapshot`."""
        is_over = self._lost is not None or self._released
        return not is_over and self._runtime.monotonic() >= self._sent + self._config.belief_time

    def check(self, *, may_be_in_doubt: bool = False) -> None:
        """Raise LeaseLostError once the lease is lost or given up, and LeaseInDoubt while it is in doubt.

        Called after every wait, before every delivery. may_be_in_doubt: raise the former only.
        """
        self._refuse_a_fork()
        with self._state:
            if self._lost is None and not self._released:
                now = self._runtime.monotonic()
                if now < self._sent + self._config.belief_time:
                    return
                if now >= self._doubt_ends:
                    self._lost = Loss.of(LossReason.EXPIRED)
            is_over = self._lost is not None or self._released
        if is_over:
            self._is_certain.set()
            self._wake.set()
            raise self._refusal()
        self._note_doubt()
        if not may_be_in_doubt:
            raise LeaseInDoubt(
                f"The lease of {self.key} is in doubt: no heartbeat was answered in time. Nothing was written. The "
                "shard goes on where it stands once one is, unless another worker has taken the lease."
            )

    def _note_doubt(self) -> None:
        """Report, once, that the lease is in doubt."""
        with self._state:
            is_new = self._doubted_since is None and self.is_in_doubt
            if is_new:
                self._doubted_since = self._sent + self._config.belief_time
            ago = self._runtime.monotonic() - self._sent
        if is_new:
            # Who waits for something else is to wait for this instead, and to read no more.
            self._wake.set()
            self._events.emit(LeaseDoubted(shard=self.key, heartbeat_sent_ago=ago))

    def wait_until_certain(self) -> None:
        """Wait while the lease is in doubt. Raises LeaseLostError once it is lost or given up."""
        while True:
            try:
                return self.check()
            except LeaseInDoubt:
                # Cleared before the check of what it announces.
                self._is_certain.clear()
                if not self.is_in_doubt:
                    continue
            left = self._doubt_ends - self._runtime.monotonic()
            self._is_certain.wait(max(0.0, min(left, _LONGEST_WAIT)))

    def end_doubt_at(self, until: float) -> None:
        """Let a doubt last until then, monotonic seconds, as the worker stops. A lease in doubt is lost then."""
        self._doubt_ends = until
        self._is_certain.set()

    def still_held(self) -> bool:
        """Return True; raise as `check`."""
        self.check()
        return True

    def _refuse_a_fork(self) -> None:
        """Refuse a forked process before any lock: the thread that had the lock at the fork cannot release it there."""
        if not self._own_process.is_this:
            raise LeaseLostError(
                f"This process was forked from the worker that holds the lease of {self.key}, and may write nothing "
                "for it. Do: checkpoint in the worker's own process, once the forked one has done its work."
            )

    def _refusal(self) -> LeaseLostError:
        loss = self.loss
        cause = loss.cause if loss is not None else "it was given up"
        if loss is not None and loss.reason is LossReason.TAKEN and loss.new_owner:
            cause += f" ({loss.new_owner})"
        with self._state:
            ago = self._runtime.monotonic() - self._sent
        return LeaseLostError(
            f"The lease of {self.key} is no longer held by this worker: {cause}; its last "
            f"heartbeat was sent {ago:.1f} s ago and is good for {self._config.belief_time:g} s. Stop work on it and "
            "do not retry; whoever holds it continues from the last checkpoint."
        )

    def write(
        self,
        build: Callable[[Lease], LeaseWrite],
        *,
        within: float | None = None,
        rank: Rank = Rank.CHECKPOINT,
    ) -> Lease:
        """Send one conditional write built on the row as believed; return the row after it.

        within: seconds to keep trying, from its turn at the gate on; by default as long as the lease is believed. A
        heartbeat is sent also while the lease is in doubt.
        Raises LeaseLostError, LeaseInDoubt, or another TemporaryError when the outcome is still unknown (the belief
        stays until its deadline).
        """
        self._refuse_a_fork()
        in_doubt = rank is Rank.HEARTBEAT
        # The gate first: while this write waits for its turn, heartbeats of the same lease go.
        with self._gate.passed(rank, is_wanted=self.still_held), self._one_write:
            self.check(may_be_in_doubt=in_doubt)
            sent = self._runtime.monotonic()
            until = self.deadline if within is None else min(self.deadline, sent + within)
            if in_doubt and sent >= self.deadline:
                # One request, as a stop does not wait for more.
                until = sent + self._config.request_timeout
            write = replace(build(self.lease), unanswered=self._unanswered)
            if self._must_restate:
                write = write.restating()
            self._writing_since = sent
            try:
                return self._record_answer(write, self._table.write(write, until=until), sent)
            finally:
                self._writing_since = None

    def write_when_certain(self, build: Callable[[Lease], LeaseWrite]) -> Lease:
        """Send a write of the application as `write` does; one that meets a doubt waits until that is over, and is sent
        again. Raises LeaseLostError, TemporaryError.

        1) An application checkpoints by hand; 2) the table does not answer; 3) with an error, it would take its batch
        for failed, and get it once more though nobody has taken the lease.
        """
        while True:
            self.wait_until_certain()
            try:
                return self.write(build)
            except LeaseInDoubt:
                continue

    def _record_answer(self, write: LeaseWrite, answer: Applied | Rejected | Unknown, sent: float) -> Lease:
        if not isinstance(answer, Rejected) and answer.overwritten:
            self._report_overwritten(write, answer.overwritten)
        if isinstance(answer, Applied) and answer.lease is not None:
            row = self._with_own_checkpoint(write, answer.lease)
            with self._state:
                self._released = row.actual_owner != self._lease.actual_owner
                asked = row.checkpoint_owner is not None and self._lease.checkpoint_owner is None
                self._lease = row
                self._sent = first_sent(answer, sent, self._unknown_since)
                self._unknown_since = None
                self._unanswered = frozenset()
            self._note_certainty()
            if asked:
                self._asked_at = self._runtime.monotonic()
                self._wake.set()
            return row
        if isinstance(answer, Unknown):
            self._unanswered = write.after_no_answer().unanswered
            if self._unknown_since is None:
                self._unknown_since = sent
            if answer.seen is not None:
                # An earlier write of ours landed after all: the row is ours, one counter further than believed. Its
                # age is not known better than before.
                with self._state:
                    self._lease = answer.seen
            # It may be in doubt by now.
            self.check(may_be_in_doubt=write.kind == "renew")
            raise TemporaryError(f"The lease table did not answer for {self.key} in time: {answer.cause}")
        self.lose(self._loss_by(write, answer.row if isinstance(answer, Rejected) else None))
        raise self._refusal()

    def _note_certainty(self) -> None:
        """Report the end of a doubt, unless the row alone has confirmed an earlier write, too long ago."""
        with self._state:
            since = None if self.is_in_doubt else self._doubted_since
            if since is not None:
                self._doubted_since = None
        if since is not None:
            self._is_certain.set()
            self._wake.set()
            self._events.emit(LeaseConfirmed(shard=self.key, seconds=self._runtime.monotonic() - since))

    def _with_own_checkpoint(self, write: LeaseWrite, row: Lease) -> Lease:
        """Return the row after a write, with this worker's checkpoint if it has that of somebody else.

        So it is where the sequence number is the same and the sub-sequence number is not: the condition of a write
        compares the former only. The next write puts it back.
        """
        self._must_restate = is_checkpoint_of_others(write, row)
        if not self._must_restate:
            return row
        self._report_overwritten(write, str(row.checkpoint))
        return row.with_(checkpoint=write.own_checkpoint)

    def _report_overwritten(self, write: LeaseWrite, found: str) -> None:
        ours = str(write.own_checkpoint)
        self._events.emit(CheckpointOverwritten(shard=self.key, checkpoint=ours, found=found))

    def _loss_by(self, write: LeaseWrite, row: object) -> Loss:
        """Derive the loss from the row as it is now."""
        if isinstance(row, UnreadableRow):
            return Loss.of(LossReason.ROW_UNREADABLE, new_owner=row.owner, problem=row.problem)
        if not isinstance(row, Lease):
            is_at_the_end = write.kind == "end" or write.own_checkpoint.is_shard_end
            is_missed = not is_at_the_end and not self.is_in_doubt
            return replace(Loss.of(LossReason.ROW_DELETED), is_missed=is_missed)
        is_own = row.owner == self.lease.owner
        went_back = row.counter < self.lease.counter
        if not went_back and is_checkpoint_of_others(write, row):
            ours, found = self.lease.checkpoint, row.checkpoint
            return Loss.of(LossReason.CHECKPOINT_CHANGED, new_owner=row.owner, ours=ours, found=found)
        if went_back or (is_own and row.counter == self.lease.counter):
            # Of workers that live, whatever their names, each write lets the counter grow.
            counters = {"ours": self.lease.counter, "found": row.counter}
            return Loss.of(LossReason.ROW_WENT_BACK, new_owner=row.owner, **counters)
        if is_own:
            return Loss.of(LossReason.IDENTIFIER_IN_USE, new_owner=row.owner, owner=row.owner)
        return replace(Loss.of(LossReason.TAKEN, new_owner=row.owner), is_planned=self._was_in_time(row))

    def _was_in_time(self, row: Lease) -> bool:
        """True if nobody can have seen this lease expired, so that it was taken for somebody's fair share.

        Not so if heartbeats got no answer, or if the taker's failover time, which a pykcl worker writes down, is
        shorter than ours: it takes leases of live workers.
        """
        ours = self._config.failover_time
        note = row.metadata
        theirs = ours
        if note is not None and note.owner == row.owner and note.failover_millis is not None:
            theirs = note.failover_millis / 1000
        with self._state:
            sent = self._sent
        in_time = self._runtime.monotonic() - sent < ours
        return in_time and self._unknown_since is None and theirs >= ours

    def scanned(self, row: Lease) -> None:
        """Lose the lease, if it is in doubt and its row shows that another worker has it: where the table answers reads
        and no writes, no heartbeat would be rejected.

        A row that is older than the lease proves nothing: scans lag.
        """
        mine = self.lease
        if self.is_in_doubt and row.counter > mine.counter and row.actual_owner != mine.actual_owner:
            self.lose(Loss.of(LossReason.TAKEN, new_owner=row.owner))

    def lose(self, loss: Loss) -> None:
        """Stop believing, now. Idempotent; the first loss stays."""
        with self._state:
            if self._lost is None and not self._released:
                self._lost = loss
        self._is_certain.set()
        self._wake.set()

    def renew_if_due(self, give: float) -> bool:
        """One heartbeat, if it is due within `give` seconds: another write may have been one meanwhile.

        Whether it was sent. Raises as `write`.
        """
        if self._runtime.monotonic() < self.next_renewal - give:
            return False
        self.renew()
        return True

    def renew(self) -> None:
        """One heartbeat, whenever the next one is due. Raises as `write`."""
        throughput = self._throughput.reported(self._runtime.monotonic())

        def heartbeat(lease: Lease) -> LeaseWrite:
            return lease_writes.renew(lease, throughput, self._annotated(lease))

        self.write(heartbeat, within=self._config.write_timeout, rank=Rank.HEARTBEAT)

    def leave(self) -> Lease:
        """Release the lease, or hand it over if its next owner waits. A note of a standstill counts that. Raises as
        `write`.
        """
        note = self.standstill
        if note is not None:
            self.note(replace(note, handed_back=note.handed_back + 1))

        def leaving(lease: Lease) -> LeaseWrite:
            end = lease_writes.release if lease.checkpoint_owner is None else lease_writes.hand_over
            return end(lease, self._annotated(lease))

        return self.write(leaving, within=self._config.write_timeout, rank=Rank.RELEASE)

    def _annotated(self, lease: Lease) -> PykclMetadata | None:
        """Return the private map with the note as it is to be; None if it is so, or if another worker wrote the map."""
        metadata, note = lease.metadata, self.standstill
        if note is not None and note.at != lease.checkpoint:
            note = None
        if metadata is None or metadata.owner != lease.actual_owner or metadata.standstill == note:
            return None
        return replace(metadata, standstill=note)

    def delivered(self, size: int) -> None:
        """Note bytes that the processor is done with, for the leader of a KCL 3.x fleet: heartbeats report them."""
        self._throughput.add(size)


class Throughput:
    """The throughput of a lease, as Java reports it: KiB a second since the last heartbeat, averaged with those before.

    Nothing is reported before the first record. now, since: monotonic seconds; since: of the last report.
    """

    def __init__(self, now: float) -> None:
        # The one grows in the lease worker's thread, the other follows it in the renewer's.
        self._delivered, self._reported, self.since = 0, 0, now
        self._average: float | None = None

    @property
    def is_new(self) -> bool:
        """True if more was delivered since the last report."""
        return self._delivered != self._reported

    def add(self, size: int) -> None:
        self._delivered += size

    def reported(self, now: float) -> str | None:
        """Return the average, as the text of a number; None: there is nothing to report."""
        delivered, seconds = self._delivered, now - self.since
        if seconds <= 0:
            return None
        size, self._reported, self.since = delivered - self._reported, delivered, now
        if self._average is None and not size:
            return None
        rate = size / 1024 / seconds
        self._average = rate if self._average is None else (rate + self._average) / 2
        return decimal_text(self._average)


def first_sent(kept: Applied, sent: float, unknown_since: float | None) -> float:
    """Monotonic seconds at which a write that took effect may have done so at the earliest.

    sent: when it was sent this time. unknown_since: when the first of the writes before it was sent that got no answer.
    """
    return sent if unknown_since is None or not kept.confirmed_by_read else min(sent, unknown_since)


_READ_AGAIN_AFTER = 0.5
"""Seconds until a row that could not be read is read again."""


class HeldLeases:
    """The registry: lease workers put in what they took; the renewer goes over it.

    in_time: seconds, of the gate. version: grows with every change of who is in it.
    """

    def __init__(self, runtime: Runtime, *, in_time: float = 0.6) -> None:
        self._runtime = runtime
        self.gate = WriteGate(runtime, in_time)
        self._lock = runtime.lock()
        self._held: dict[str, HeldLease] = {}
        # The earliest moment at which a take may have taken effect of which nobody knows whether it did.
        self._unknown_takes: dict[str, float] = {}
        self._outlived: dict[str, HeldLease] = {}
        self.changed = runtime.event()
        self.version = 0

    def acquire(
        self,
        take: LeaseWrite,
        *,
        table: LeaseTable,
        config: Config,
        meter: Meter,
        wake: Event,
        events: Events,
        rank: Rank = Rank.TAKE,
        is_wanted: Callable[[], bool] = lambda: True,
        may_be_sent: Callable[[], bool] = lambda: True,
    ) -> HeldLease | None:
        """Take a lease, which is then to be put in with `add`. None: it is another worker's, or seems to be.

        rank, is_wanted: as of `WriteGate.passed`; None where the take is not wanted any more. may_be_sent: asked as
        `is_wanted` is, while it waits at the gate, and not once it is sent.
        Raises TemporaryError if no answer came, and the row does not show the take. It may still land: then the row
        names us without a reader, and is taken again once it has expired.
        """
        with self.gate.passed(rank, is_wanted=lambda: is_wanted() and may_be_sent()) as may_send:
            if not may_send:
                return None
            key, sent = take.key, self._runtime.monotonic()
            with meter.timed(catalog.TAKE_LEASE):
                answer = table.write(take, until=sent + config.write_timeout)
            unknown_since = self._unknown_takes.pop(key, None)
            if isinstance(answer, Unknown):
                self._unknown_takes[key] = sent if unknown_since is None else unknown_since
                settled = self._settled_take(take, table, sent + config.belief_time, is_wanted)
                if settled is None:
                    raise TemporaryError(answer.cause)
                answer, unknown_since = settled, self._unknown_takes.pop(key, None)
        if not isinstance(answer, Applied) or answer.lease is None or self._is_old_take(answer):
            return None
        sent = first_sent(answer, sent, unknown_since)
        return HeldLease(
            answer.lease,
            sent,
            table=table,
            runtime=self._runtime,
            config=config,
            wake=wake,
            events=events,
            gate=self.gate,
        )

    def _settled_take(
        self, take: LeaseWrite, table: LeaseTable, until: float, is_wanted: Callable[[], bool]
    ) -> Applied | Rejected | None:
        """Return what the row says of a take that got no answer; None: nothing by then, or it has not landed so far.

        until: monotonic seconds. The take counts from when it was sent, so later the answer is of no use.
        """
        while (asked := self._runtime.monotonic()) < until and is_wanted():
            try:
                row = table.read(take.key)
            except TemporaryError:
                self._runtime.event().wait(_READ_AGAIN_AFTER)
                continue
            if resolve_conflict(take, row) == "applied" and isinstance(row, Lease):
                return Applied(row, confirmed_by_read=True)
            if not isinstance(row, Lease) or row.counter != take.seen.counter or row.owner != take.seen.owner:
                return Rejected(row)
            # It may still be under way; but it cannot have taken effect before this question.
            self._unknown_takes[take.key] = asked
            return None
        return None

    def add(self, held: HeldLease) -> None:
        with self._lock:
            self._held[held.key] = held
            self._outlived.pop(held.key, None)
            self.version += 1
        self.changed.set()

    def remove(self, held: HeldLease) -> None:
        """Forget it, if it is still this very one."""
        with self._lock:
            if self._held.get(held.key) is held:
                del self._held[held.key]
                if not held.was_released:
                    self._outlived[held.key] = held
                self.version += 1

    def _is_old_take(self, kept: Applied) -> bool:
        """True if a take that only the row confirms may be an older one, of when this worker lost the lease.

        1) A take, or the last heartbeat, lands, and no answer comes until the belief has ended; 2) a scan that lags
        shows the row as it was before, and the lease is taken once more; 3) that is refused: the row is as it would
        make it. Nothing was taken: to the others the lease stands still since 1, so it is left until it has expired.
        """
        if kept.lease is None or not kept.confirmed_by_read:
            return False
        with self._lock:
            held = self._held.get(kept.lease.key) or self._outlived.get(kept.lease.key)
        return held is not None and held.may_have_made(kept.lease.counter)

    def all(self) -> list[HeldLease]:
        with self._lock:
            return list(self._held.values())

    def snapshot(self) -> dict[str, HeldLease]:
        """Return `all` by key. Takes no lock: for an invariant checker that must not let another thread go on."""
        return dict(self._held)

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)
