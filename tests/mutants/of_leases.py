"""Bugs in who believes in which lease, until when, and what is done with that belief."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from pykcl.errors import TemporaryError
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.lifecycle import Signal
from pykcl.processor import RecordProcessor
from pykcl.testing.simulation import Guarantee
from pykcl.worker import held_leases, threads
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease, HeldLeases
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_renewer import LeaseRenewer
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.processor_calls import ProcessorCalls
from pykcl.worker.record_delivery import RecordDelivery
from pykcl.worker.write_gate import Rank
from tests.mutants.mutant import Function, Mutant, Patch


def expiry_by_wall_clock(patch: Patch) -> None:
    """The row says, in pykcl's own attribute, at which time of day its lease expires; others compare their clock."""

    def stamped(note: PykclMetadata | None, runtime, seconds: float) -> PykclMetadata:
        until = {"expires": {"N": str(runtime.utcnow_millis() + int(seconds * 1000))}}
        return replace(note or PykclMetadata(), extra={**(note.extra if note else {}), **until})

    def make_note(metadata_for: Function) -> Function:
        return lambda self, lease: stamped(metadata_for(self, lease), self.runtime, self.config.failover_time)

    def make_write(write: Function) -> Function:
        def stamping(self, build, **how):
            def stamped_build(lease: Lease):
                plain = build(lease)
                if plain.after is None:
                    return plain
                note = stamped(lease.metadata, self._runtime, self._config.failover_time)
                written = tuple(sorted({*plain.written, "metadata"}))
                return replace(plain, after=plain.after.with_(metadata=note), written=written)

            return write(self, stamped_build, **how)

        return stamping

    def make_acquire(acquire: Function) -> Function:
        def by_the_clock(self):
            now, view = self._context.runtime.utcnow_millis(), self._view
            since = {key: _since(view, lease, now) for key, lease in view.leases.items()}
            self._scanner.view = replace(view, unchanged_since=since)
            try:
                acquire(self)
            finally:
                self._scanner.view = view

        return by_the_clock

    patch.replace(Context, "metadata_for", make_note)
    patch.replace(HeldLease, "write", make_write)
    patch.replace(LeaseManager, "_acquire", make_acquire)


def _since(view: LeaseView, lease: Lease, now_millis: int) -> float:
    """When the lease was last seen to move, as if the time in its row were to be trusted."""
    expires = lease.metadata.extra.get("expires") if lease.metadata else None
    if expires is None:
        return view.unchanged_since[lease.key]
    return float("-inf") if now_millis > int(expires["N"]) else view.observed_at


def heartbeats_only_between_batches(patch: Patch) -> None:
    busy: set[tuple[int, str]] = set()

    def make_attempt(attempt: Function) -> Function:
        def noted(self, method, call, argument, **how):
            mark = (id(self._context.held), self._shard)
            busy.add(mark)
            try:
                return attempt(self, method, call, argument, **how)
            finally:
                busy.discard(mark)

        return noted

    def make_beat(beat: Function) -> Function:
        def when_idle(self, held):
            if (id(self._held), held.key) not in busy:
                beat(self, held)

        return when_idle

    patch.replace(ProcessorCalls, "_attempt", make_attempt)
    patch.replace(LeaseRenewer, "_beat", make_beat)


def deadline_stamped_after_the_answer(patch: Patch) -> None:
    def make(settle: Function) -> Function:
        return lambda self, write, answer, sent: settle(self, write, answer, self._runtime.monotonic())

    patch.replace(HeldLease, "_record_answer", make)


def no_answer_taken_for_a_heartbeat(patch: Patch) -> None:
    def make(settle: Function) -> Function:
        def hopeful(self, write, answer, sent):
            if isinstance(answer, Unknown):
                self._sent = sent
            return settle(self, write, answer, sent)

        return hopeful

    patch.replace(HeldLease, "_record_answer", make)


def belief_not_checked(patch: Patch) -> None:
    def make(check: Function) -> Function:
        def only_if_reported(self, **how):
            if self.is_over:
                check(self, **how)

        return only_if_reported

    patch.replace(HeldLease, "check", make)


def expired_belief_taken_for_a_loss(patch: Patch) -> None:
    def make(check: Function) -> Function:
        def gives_up(self, **how):
            self._doubt_ends = 0.0
            check(self, **how)

        return gives_up

    patch.replace(HeldLease, "check", make)


def calls_begin_in_doubt(patch: Patch) -> None:
    patch.replace(HeldLease, "wait_until_certain", lambda _: lambda self: self.check(may_be_in_doubt=True))
    patch.replace(
        LeaseScope,
        "check",
        lambda _: lambda self, *, waits=True: self.held and self.held.wait_until_certain(),
    )


def all_is_written_in_doubt(patch: Patch) -> None:
    def make(write: Function) -> Function:
        return lambda self, build, *, within=None, **how: write(
            self, build, within=within, rank=Rank.HEARTBEAT
        )

    patch.replace(HeldLease, "write", make)
    patch.replace(HeldLease, "wait_until_certain", lambda _: lambda self: self.check(may_be_in_doubt=True))


def reads_go_on_in_doubt(patch: Patch) -> None:
    patch.replace(RecordDelivery, "_is_to_end", lambda _: lambda self: self._scope.must_stop())


def old_heartbeat_ends_a_doubt(patch: Patch) -> None:
    patch.replace(held_leases, "first_sent", lambda _: lambda kept, sent, unknown_since: sent)


def refusal_leaves_the_doubt(patch: Patch) -> None:
    """A lease that somebody has taken is only in doubt: its processor is kept, and the counter is read from the row."""

    def make(settle: Function) -> Function:
        def hopeful(self, write, answer, sent):
            if isinstance(answer, Rejected) and isinstance(answer.row, Lease) and self.is_in_doubt:
                answer = Applied(answer.row.with_(owner=self.lease.owner, checkpoint=self.lease.checkpoint))
            return settle(self, write, answer, sent)

        return hopeful

    patch.replace(HeldLease, "_record_answer", make)


def processor_outlives_a_loss_in_doubt(patch: Patch) -> None:
    """It hears of the loss, and yet goes on with the shard once this worker has taken the lease again."""
    kept: dict[tuple[HeldLeases, str], RecordProcessor] = {}

    def make_loss(lose: Function) -> Function:
        def keeping(self):
            if self.scope.processor is not None and self.scope.mine._doubted_since is not None:
                kept[self._context.held, self.key] = self.scope.processor
            return lose(self)

        return keeping

    def make_start(make_processor: Function) -> Function:
        def as_before(self, init):
            processor = kept.pop((self._context.held, self.key), None)
            if processor is None:
                make_processor(self, init)
            else:
                self.scope.processor = processor

        return as_before

    patch.replace(LeaseWorker, "_lose", make_loss)
    patch.replace(LeaseWorker, "_make_processor", make_start)


def first_trouble_is_fatal(patch: Patch) -> None:
    def make(step: Function) -> Function:
        def impatient(self):
            try:
                return step(self)
            except TemporaryError as error:
                self._context.on_fatal(error)
                raise

        return impatient

    patch.replace(LeaseManager, "_step", make)


def heartbeats_for_a_dead_reader(patch: Patch) -> None:
    def make(remove: Function) -> Function:
        return lambda self, held: remove(self, held) if held.is_over else None

    patch.replace(HeldLeases, "remove", make)


def no_wait_after_a_steal(patch: Patch) -> None:
    patch.replace(LeaseWorker, "_wait_for_old_owner", lambda _: lambda self: Signal.SETTLED)


def expired_lease_taken_with_a_fresh_counter(patch: Patch) -> None:
    def make(acquire: Function) -> Function:
        def refreshed(self):
            if self.scope.plan.reason == "expired":
                with suppress(TemporaryError):
                    row = self._context.table.read(self.key)
                    if isinstance(row, Lease):
                        self.scope.plan = Acquisition(row, self.scope.plan.reason)
            return acquire(self)

        return refreshed

    patch.replace(LeaseWorker, "_acquire", make)


def dead_threads_go_unnoticed(patch: Patch) -> None:
    patch.replace(threads, "stop_worker_on_crash", lambda _: lambda body, name, on_fatal: body)


def handed_back_lease_taken_again(patch: Patch) -> None:
    def make(acquire: Function) -> Function:
        def at_once(self):
            self._left_alone = {}
            acquire(self)

        return at_once

    patch.replace(LeaseManager, "_acquire", make)


def release_not_written(patch: Patch) -> None:
    patch.replace(LeaseWorker, "_release", lambda _: lambda self: Signal.DONE)


def expiry_takes_twice_as_long(patch: Patch) -> None:
    def make(is_expired: Function) -> Function:
        return lambda self, key, failover_time: is_expired(self, key, 2 * failover_time)

    patch.replace(LeaseView, "is_expired", make)


def owner_alone_shows_life(patch: Patch) -> None:
    """A lease whose counter moved between two scans is still the older one: only a new owner counts."""

    def make(observe: Function) -> Function:
        def by_owner(self, rows, now):
            view = observe(self, rows, now)
            before = self.leases
            since = {
                key: self.unchanged_since[key] if key in before and before[key].owner == lease.owner else at
                for key, lease, at in ((k, v, view.unchanged_since[k]) for k, v in view.leases.items())
            }
            return replace(view, unchanged_since=MappingProxyType(since))

        return by_owner

    patch.replace(LeaseView, "observe", make)


def part_shows_no_life(patch: Patch) -> None:
    """Rows of a part are taken over, but that they moved is not: to the next scan of all they stand as they stood."""

    def make(observe_part: Function) -> Function:
        def blind(self, rows, now):
            view = observe_part(self, rows, now)
            return replace(view, unchanged_since={**view.unchanged_since, **self.unchanged_since})

        return blind

    patch.replace(LeaseView, "observe_part", make)


_DOUBT = "tests/worker/test_doubt.py::"

BELIEF = (
    Mutant("B6", "a lease expires by the wall clock, at a time stored in its row", "vmware-go-kcl, kinsumer, harlow",
            (Guarantee.ONE_OWNER,), expiry_by_wall_clock),
    Mutant("B12", "heartbeats are sent by the loop that hands out records", "Disney (Rust)",
            (Guarantee.NO_CHURN,), heartbeats_only_between_batches),
    Mutant("B14", "the deadline counts from the answer, not from the request", "Java KCL 2.x",
            (Guarantee.ONE_OWNER,), deadline_stamped_after_the_answer),
    Mutant("M19", "a heartbeat without an answer counts as one that was kept", "-",
            (Guarantee.ONE_OWNER,), no_answer_taken_for_a_heartbeat),
    Mutant("M20", "the deadline is not checked after a wait", "-",
            (Guarantee.SILENT_AFTER_LOSS, Guarantee.ONE_OWNER), belief_not_checked),
    Mutant("M21", "a scan of the table that fails stops the worker", "-",
            (Guarantee.NO_FALSE_ALARM,), first_trouble_is_fatal),
    Mutant("M22", "a reader dies, its heartbeats go on", "-",
            (Guarantee.FAILOVER, Guarantee.ALL_DELIVERED, Guarantee.STOP, Guarantee.BALANCE), heartbeats_for_a_dead_reader),
    Mutant("M23", "no wait after a steal: both read", "-",
            (Guarantee.ONE_OWNER,), no_wait_after_a_steal),
    Mutant("M24", "an expired lease is taken with a counter read again", "-",
            (Guarantee.ONE_OWNER,), expired_lease_taken_with_a_fresh_counter,
            full=True, only=frozenset({"F1", "F3", "F8.stale"})),
    Mutant("M25", "a vital thread dies, and nobody notices", "-",
            (Guarantee.ALL_DELIVERED, Guarantee.BALANCE, Guarantee.NO_CHURN, Guarantee.STOP, Guarantee.FAILOVER),
            dead_threads_go_unnoticed, full=True, only=frozenset({"F2"})),
    Mutant("M26", "a lease that was handed back is taken again at once", "here",
            (Guarantee.BUDGETS,), handed_back_lease_taken_again, full=True),
    Mutant("M27", "a stop does not release", "-",
            (Guarantee.STOP,), release_not_written),
    Mutant("M28", "dead workers are given twice the failover time", "-",
            (Guarantee.FAILOVER,), expiry_takes_twice_as_long),
    Mutant("M29", "heartbeats do not count as signs of life", "-",
            (Guarantee.ONE_OWNER, Guarantee.NO_CHURN, Guarantee.COUNTER_BY_ONE), owner_alone_shows_life),
    Mutant("M50", "that a lease moved between two scans of a segment is not noted", "-",
            (Guarantee.ONE_OWNER, Guarantee.NO_CHURN, Guarantee.COUNTER_BY_ONE), part_shows_no_life),
    Mutant("M105", "a lease is lost once no heartbeat was answered in time, whoever has it", "here",
            (Guarantee.NO_DUPLICATES,), expired_belief_taken_for_a_loss),
    Mutant("M106", "calls begin while the lease is in doubt", "-",
            (Guarantee.SILENT_AFTER_LOSS, Guarantee.ONE_OWNER), calls_begin_in_doubt),
    Mutant("M107", "checkpoints are written while the lease is in doubt", "-", (), all_is_written_in_doubt,
            tests=(_DOUBT + "test_a_call_that_runs_across_the_deadline_counts_once_the_lease_is_confirmed",)),
    Mutant("M108", "shards are read while their leases are in doubt", "-", (), reads_go_on_in_doubt,
            tests=(_DOUBT + "test_a_lease_that_stays_in_doubt_delegates_no_read",)),
    Mutant("M109", "a heartbeat of which only the row tells ends the doubt", "-", (), old_heartbeat_ends_a_doubt,
            tests=(_DOUBT + "test_a_heartbeat_of_unknown_outcome_is_no_proof_until_one_is_applied",)),
    Mutant("M110", "a heartbeat that is refused while the lease is in doubt does not end it", "-",
            (Guarantee.ONE_OWNER, Guarantee.SILENT_AFTER_LOSS, Guarantee.COUNTER_BY_ONE), refusal_leaves_the_doubt),
    Mutant("M143", "the processor of a lease that was lost in doubt goes on once the lease is taken again", "-",
            (Guarantee.SILENT_AFTER_LOSS,), processor_outlives_a_loss_in_doubt),
)  # fmt: skip
