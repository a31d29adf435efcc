"""The scope of one lease: what its states share while a lease worker takes it, reads its shard and lets it go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from pykcl.errors import LeaseLostError
from pykcl.events import ProcessorRaised
from pykcl.model.lease import Lease, Standstill
from pykcl.model.lease_item import MAX_CAUSE
from pykcl.model.shard import HashRange, Shard
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lifecycle import Signal
from pykcl.planning.read_schedule import backoff
from pykcl.processor import RecordProcessor
from pykcl.status import Activity
from pykcl.worker.checkpointer import Progress
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.measurements import TakeoverTimer
from pykcl.worker.processor_calls import ProcessorCalls

KEPT_FAILING = "its processor kept failing"


class LeaseScope:
    """Written by the lease worker's thread, which alone waits. Other threads call `request_stop`, set `wake`, and read.

    iterator: opened at LATEST when this process put the row, if nobody has read from it since.
    listed: the hash range of the shard as Kinesis lists it; None where it does not. still_for: as in `TakeoverTimer`.
    on_change: called after the first answer of Kinesis and at the end.

    wake: set by whoever has news for the thread. stop_requested: the worker stops. is_in_vain: the lease is not to be
    taken any more, if its take still waits at the gate. held: None until the lease is taken.
    why_handed_back: the cause to report if the lease is. processor, progress: None until the processor was initialized.
    children: of the shard, once it was read to its end. end_began: when that was, monotonic seconds; None before.
    has_answered: Kinesis has answered a read. lag: milliseconds behind the tip by the last page, and when that came
    (monotonic seconds). waits_for_acks: the thread does nothing else, except checkpoints. acks_until: the end of waits
    for acks, doubts and robbed owners once a stop was requested, monotonic seconds.
    """

    def __init__(
        self,
        context: Context,
        plan: Acquisition,
        *,
        iterator: str | None,
        listed: HashRange | None = None,
        still_for: float = 0.0,
        on_change: Callable[[], None],
    ) -> None:
        self.context = context
        self.plan = plan
        self.key = plan.lease_key
        self.iterator = iterator
        self.listed = listed
        self.on_change = on_change
        self.wake = context.runtime.event()
        self.calls = ProcessorCalls(context, self.key, self.check, self.pause, self._on_call)
        self.held: HeldLease | None = None
        self.why_handed_back = KEPT_FAILING
        self.processor: RecordProcessor | None = None
        self.progress: Progress | None = None
        self.children: tuple[Shard, ...] = ()
        self.end_began: float | None = None
        self.has_answered = False
        self.lag: tuple[int, float] | None = None
        self.first_arrival: float | None = None
        self._takeover = TakeoverTimer(context.meter, plan, still_for)
        self.stop_requested = False
        self.is_in_vain = False
        self.waits_for_acks = False
        self.acks_until = inf
        # Since when (monotonic seconds), and the note.
        self._failing: tuple[float, Standstill] | None = None

    @property
    def mine(self) -> HeldLease:
        """The lease. Raises LeaseLostError before it was taken."""
        if self.held is None:
            raise LeaseLostError(f"The lease of {self.key} was never taken.")
        return self.held

    @property
    def initialized(self) -> tuple[RecordProcessor, Progress]:
        """The processor, and how far it got. Raises LeaseLostError before it was initialized."""
        if self.processor is None or self.progress is None:
            raise LeaseLostError(f"The processor of {self.key} was never initialized.")
        return self.processor, self.progress

    def answered(self) -> None:
        """Kinesis has answered a read."""
        if not self.has_answered:
            self.has_answered = True
            self._takeover.answered()
            self.on_change()

    @property
    def is_read(self) -> bool:
        """True if Kinesis has answered a read, and nothing but a pause keeps this worker from the next one.

        Before the first one a pause does, once the processor is there.
        """
        is_in_doubt = self.held is not None and self.held.is_in_doubt
        return (self.has_answered or (self.is_paused and self.progress is not None)) and not is_in_doubt

    def delayed(self) -> None:
        """Something else holds up the first read: a parent shard that is still being read."""
        self._takeover.interrupted()

    @property
    def busy(self) -> tuple[str, float] | None:
        """The method of the processor that is running, or "acks" while it is waited for them; and since when."""
        if self.waits_for_acks and self.progress is not None and self.progress.watermark is not None:
            since = self.progress.watermark.oldest_since
            return None if since is None else ("acks", since)
        return self.calls.busy

    # -- a note of what holds the shard up ---------------------------------------------------------------------

    def _on_call(self, failure: ProcessorRaised | None) -> None:
        """A method of the processor has raised; None: process_records has returned."""
        if failure is None:
            self.gets_on()
            return
        at = "" if failure.where == "-" else f" at {failure.where}"
        self.stands(failure.code, f"{failure.method} raised {failure.error}{at}", records=failure.records)

    def stands(self, code: str | None, cause: str, *, records: int = 0) -> None:
        """Note a failure that the shard does not get past; the row gets the note once that has lasted for the failover
        time, or when the lease is let go. The arguments are as in `Standstill`.
        """
        held = self.held
        if held is None:
            return
        at, now = held.lease.checkpoint, self.context.runtime.monotonic()
        known = held.standstill if held.standstill is not None and held.standstill.at == at else None
        since, note = self._failing or (now, None)
        if note is None or note.at != at:
            since, note = now, known or Standstill(at, self.context.stream.server_time_millis())
        note = replace(note, records=records, code=(code or "")[:MAX_CAUSE], cause=cause[:MAX_CAUSE])
        self._failing = (since, note)
        held.note(note, since=now if known is not None else since + self.context.config.failover_time)

    def begins_to_end(self) -> None:
        """The shard was read to its end, which is to be written now. As long as that is not done its children have no
        lease, so the row gets a note, unless a former owner has left one. No thread is needed for that: it may hang.
        """
        now, held = self.context.runtime.monotonic(), self.mine
        if self.end_began is None:
            self.end_began = now
        if held.standstill is None:
            at, since = held.lease.checkpoint, self.context.stream.server_time_millis()
            note = Standstill(at, since, cause="shard_ended has not returned")
            held.note(note, since=now + self.context.config.failover_time)

    def gets_on(self) -> None:
        """The shard has got past what held it up, or has no record that could: its row needs no note of that."""
        self._failing = None
        if self.held is not None:
            self.held.note(None)

    def leave(self) -> Lease:
        """Let the lease go, with a note of what fails at this moment. Returns and raises as `HeldLease.leave`."""
        if self._failing is not None:
            self.mine.note(self._failing[1])
        return self.mine.leave()

    # -- stopping and waiting ----------------------------------------------------------------------------------

    def request_stop(self, until: float = inf) -> None:
        """until: the end of a wait for acks, monotonic seconds; by default as it was."""
        if until < inf:
            self.acks_until = until
        self.stop_requested = True
        # In this order, and in `holds` the other way round: whichever comes last sees both.
        if self.held is not None:
            self.held.end_doubt_at(self.acks_until)
        self.wake.set()

    def holds(self, held: HeldLease) -> None:
        """Note the lease that was taken."""
        self.held = held
        held.end_doubt_at(self.acks_until)

    @property
    def is_paused(self) -> bool:
        """True while the application has paused the shard."""
        return self.context.pauses.has(self.key)

    def interrupted(self) -> Signal | None:
        """Return the reason to begin no further batch, and none of its parts; None: go on."""
        if self.must_stop():
            return Signal.STOP
        return Signal.PAUSE if self.is_paused else None

    def must_stop(self) -> bool:
        """True once this shard is to be finished with: the worker stops, or the next owner has asked for the lease."""
        return self.stop_requested or (self.held is not None and self.held.next_owner is not None)

    def calls_until(self) -> float:
        """Return when nothing more of a batch is to begin, or to be waited for, once the shard is to be finished with.

        Monotonic seconds. It leaves time to write what is done, and to release the lease.
        """
        if self.stop_requested:
            return self.acks_until
        config, now = self.context.config, self.context.runtime.monotonic()
        grace = config.graceful_handoff_timeout
        return now + grace - min(config.write_timeout, grace / 5) - self.mine.asked_for(now)

    def check(self, *, waits: bool = True) -> None:
        """Raise LeaseLostError if the lease was taken and is no longer held. While it is in doubt, wait; or raise
        LeaseInDoubt unless `waits`.
        """
        if self.held is None:
            return
        if waits:
            self.held.wait_until_certain()
        else:
            self.held.check()

    def pause(self, seconds: float, *, outlasts_stop: bool = False) -> bool:
        """Wait. True as soon as the shard is to be finished with. Raises LeaseLostError once the lease is lost.
        outlasts_stop: go on waiting then, until `calls_until`."""
        runtime = self.context.runtime
        until = runtime.monotonic() + seconds
        return self.sleep(lambda: until - runtime.monotonic(), outlasts_stop=outlasts_stop)

    def sleep(self, left: Callable[[], float], *, outlasts_stop: bool = False) -> bool:
        """Pause as `pause` does, while `left` returns seconds that are left. It is called again after each `wake`."""
        while True:
            # Cleared before the check of what it announces: a stop requested after that sets it again.
            self.wake.clear()
            self.check()
            longest = inf
            if self.must_stop():
                longest = self.calls_until() - self.context.runtime.monotonic() if outlasts_stop else 0.0
                if longest <= 0:
                    return True
            seconds = min(left(), longest)
            if seconds <= 0:
                return False
            self.wake.wait(seconds)

    def failed(self, activity: Activity, error: Exception, attempt: int) -> bool:
        """Report a failed attempt, and wait before the next one. Returns and raises as `pause`."""
        self.context.failures.failed(activity, error, shard=self.key)
        return self.pause(backoff(attempt, self.context.runtime.random()))
