"""Bugs on a record's way from the stream to the processor, and from there to the checkpoint."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from weakref import WeakSet

from pykcl.aws import server_clock
from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint, ReadFrom
from pykcl.model.lease import PykclMetadata
from pykcl.planning.read_schedule import SHARD_READ_INTERVAL
from pykcl.planning.shard_graph import FamilyTree
from pykcl.processor import RecordProcessor
from pykcl.testing.simulation import Guarantee
from pykcl.worker import lease_worker, processor_calls, reading_place, record_delivery
from pykcl.worker.checkpointer import Progress
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.processor_calls import ProcessorCalls
from pykcl.worker.reading_place import ReadingPlace
from pykcl.worker.record_delivery import RecordDelivery
from pykcl.worker.shard_reader import ShardReader
from pykcl.worker.shard_sync import ShardSync
from tests.mutants.mutant import Function, Mutant, Patch


def failure_taken_for_a_return(patch: Patch) -> None:
    def make(attempt: Function) -> Function:
        def always_returned(self, method, call, argument, **how):
            attempt(self, method, call, argument, **how)

        return always_returned

    patch.replace(ProcessorCalls, "_attempt", make)


def parent_done_when_fetched(patch: Patch) -> None:
    fetched: dict[int, set[str]] = {}

    def make_read(read: Function) -> Function:
        def noting(self, give_up):
            page = read(self, give_up)
            if page is not None and page.is_last:
                fetched.setdefault(id(self._context.table), set()).add(self._shard_id)
            return page

        return noting

    def make_parents(unfinished: Function) -> Function:
        return lambda table, lease: tuple(
            k for k in unfinished(table, lease) if k not in fetched.get(id(table), ())
        )

    def make_step(step: Function) -> Function:
        def believing(self, *arguments):
            view = self._view
            done = fetched.get(id(self._context.table), set())
            leases = {k: v.with_(checkpoint=AT_SHARD_END) if k in done else v for k, v in view.leases.items()}
            self._scanner.view = replace(view, leases=leases)
            return step(self, *arguments)

        return believing

    patch.replace(ShardReader, "read", make_read)
    patch.replace(lease_worker, "unfinished_parents", make_parents)
    patch.replace(ShardSync, "_create_missing", make_step)
    patch.replace(LeaseManager, "_acquire", make_step)


def rest_of_a_page_dropped(patch: Patch) -> None:
    def make(batches_of: Function) -> Function:
        return lambda *arguments, **options: iter(list(batches_of(*arguments, **options))[:1])

    patch.replace(reading_place, "batches_of", make)


def checkpoint_before_delivery(patch: Patch) -> None:
    def make(deliver: Function) -> Function:
        def checkpoint_first(self, records, millis_behind):
            self._progress.handing_over(records[-1].position)
            self._progress.batch_done(records[-1].position)
            self._checkpoint_if_due()
            return deliver(self, records, millis_behind)

        return checkpoint_first

    patch.replace(RecordDelivery, "_deliver", make)


def any_position_may_be_checkpointed(patch: Patch) -> None:
    patch.replace(Progress, "_refuse_unless_allowed", lambda _: lambda self, at, durable: None)


def parents_not_waited_for(patch: Patch) -> None:
    # Both: who takes no lease before its parents ended seldom has to wait for them, and the other way round.
    patch.replace(FamilyTree, "parents_ended", lambda _: lambda self, key, leases, unreadable=(): True)
    patch.replace(lease_worker, "unfinished_parents", lambda _: lambda table, lease: ())


def read_after_the_checkpoint(patch: Patch) -> None:
    def make(first_read: Function) -> Function:
        def after(lease, *others):
            found = first_read(lease, *others)
            is_number = found.kind == "AT_SEQUENCE_NUMBER"
            return replace(found, kind="AFTER_SEQUENCE_NUMBER") if is_number else found

        return after

    patch.replace(record_delivery, "first_read", make)


def latest_is_always_now(patch: Patch) -> None:
    def make_first(first_read: Function) -> Function:
        def now(lease, *others):
            found = first_read(lease, *others)
            return ReadFrom("LATEST") if lease.checkpoint.sequence_number == "LATEST" else found

        return now

    def make_open(open_: Function) -> Function:
        def forgetting(self):
            at = self._place.open_at
            open_(self)
            self._place.open_at = at

        return forgetting

    patch.replace(record_delivery, "first_read", make_first)
    patch.replace(ShardReader, "_open", make_open)


def answers_believed_ahead_of_time(patch: Patch) -> None:
    patch.replace(server_clock, "vouched_millis", lambda _: lambda seen, own: seen)


def reopened_at_the_first_position(patch: Patch) -> None:
    def make(finish: Function) -> Function:
        def forgetting(self, page, keep):
            at, after = self._place.open_at, self._place.after
            pause = finish(self, page, keep)
            self._place.open_at, self._place.after = at, after
            return pause

        return forgetting

    patch.replace(ShardReader, "finish", make)


def half_done_record_skipped(patch: Patch) -> None:
    def make(init: Function) -> Function:
        def whole_records(self, context, shard_id, hash_range, first, after, *more):
            behind = None if after is None else Checkpoint(after.sequence_number, 2**62)
            init(self, context, shard_id, hash_range, first, behind, *more)

        return whole_records

    patch.replace(ReadingPlace, "__init__", make)


def loss_not_reported(patch: Patch) -> None:
    patch.replace(ReadingPlace, "_notice_trimming", lambda _: lambda self, fetched: None)


def no_pause_after_a_refused_iterator(patch: Patch) -> None:
    def make(pause: Function) -> Function:
        def pause_less(self, seconds: float, **how: bool) -> bool:
            return pause(self, 0.0 if seconds == SHARD_READ_INTERVAL else seconds, **how)

        return pause_less

    patch.replace(LeaseScope, "pause", make)


def last_checkpoint_left_out(patch: Patch) -> None:
    patch.replace(RecordDelivery, "flush_before_leaving", lambda _: lambda self: None)


def failed_initialize_counts(patch: Patch) -> None:
    def make(_: Function) -> Function:
        def once(self, init):
            self.scope.processor = self._context.processor()
            with suppress(ValueError):
                self.scope.processor.initialize(init)

        return once

    patch.replace(LeaseWorker, "_make_processor", make)


def one_processor_for_all_shards(patch: Patch) -> None:
    made: dict[int, RecordProcessor] = {}

    def make(_: Function) -> Function:
        def shared(self, init):
            processor = made.setdefault(id(self._context), self._context.processor())
            processor.initialize(init)
            self.scope.processor = processor

        return shared

    patch.replace(LeaseWorker, "_make_processor", make)


def page_of_the_shared_thread_thrown_away(patch: Patch) -> None:
    def make(accept_empty_page: Function) -> Function:
        def careless(self, answer):
            fetched, answered_at = answer
            return accept_empty_page(self, (replace(fetched, records=[]), answered_at))

        return careless

    patch.replace(ShardReader, "accept_empty_page", make)


def refused_iterator_ends_the_reading(patch: Patch) -> None:
    ended: WeakSet[ShardReader] = WeakSet()

    def make_reopen(reopen: Function) -> Function:
        def for_the_last_time(self):
            reopen(self)
            ended.add(self)

        return for_the_last_time

    def make_read(read: Function) -> Function:
        return lambda self, give_up: None if self in ended else read(self, give_up)

    patch.replace(ShardReader, "reopen", make_reopen)
    patch.replace(ShardReader, "read", make_read)


def reopened_though_nothing_came(patch: Patch) -> None:
    def make(open_: Function) -> Function:
        def as_if_moved(self):
            open_(self)
            self._place.has_moved = True

        return as_if_moved

    patch.replace(ShardReader, "_open", make)


def gaps_are_not_doubted(patch: Patch) -> None:
    patch.replace(ReadingPlace, "_is_doubtful", lambda _: lambda self, fetched, answered_at: False)


def returned_coroutine_ignored(patch: Patch) -> None:
    patch.replace(processor_calls, "must_have_run", lambda _: lambda method, returned: None)


def whole_batch_again(patch: Patch) -> None:
    patch.replace(RecordDelivery, "_rest_of", lambda _: lambda self, batch: batch)


def latest_is_always_the_first_start(patch: Patch) -> None:
    patch.replace(PykclMetadata, "after", lambda _: lambda self, position: self)


READING = (
    Mutant("B9", "a batch whose processor raised is passed over", "Java KCL 2.x",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_GAP), failure_taken_for_a_return, full=True),
    Mutant("B10", "a parent counts as done when its last page was fetched", "async-kinesis",
            (Guarantee.PARENTS_FIRST,), parent_done_when_fetched),
    Mutant("B11", "the rest of a page is dropped, the next iterator used", "async-kinesis",
            (Guarantee.NO_GAP, Guarantee.CHECKPOINT_AFTER_DELIVERY), rest_of_a_page_dropped),
    Mutant("M30", "a batch is checkpointed before it is handed out", "-",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY,), checkpoint_before_delivery),
    Mutant("M31", "children do not wait for their parents", "-",
            (Guarantee.PARENTS_FIRST,), parents_not_waited_for),
    Mutant("M32", "reading goes on after the checkpointed record, not at it", "-",
            (Guarantee.NO_GAP, Guarantee.LOSS_REPORTED), read_after_the_checkpoint),
    Mutant("M33", "LATEST means now, whenever a shard is opened", "-",
            (Guarantee.NO_GAP,), latest_is_always_now),
    Mutant("M34", "a shard is opened again where this reader began", "-",
            (Guarantee.NO_GAP,), reopened_at_the_first_position),
    Mutant("M35", "the rest of a half-done aggregate is skipped", "-",
            (Guarantee.NO_GAP,), half_done_record_skipped),
    Mutant("M36", "what retention took is never reported", "-",
            (Guarantee.LOSS_REPORTED,), loss_not_reported),
    Mutant("M37", "after a refused iterator the next read follows at once", "here",
            (Guarantee.BUDGETS,), no_pause_after_a_refused_iterator),
    Mutant("M38", "a lease is given up without its last checkpoint", "-",
            (Guarantee.NO_DUPLICATES,), last_checkpoint_left_out),
    Mutant("M39", "an initialize that raised is not called again", "-",
            (Guarantee.LIFE_CYCLE,), failed_initialize_counts, full=True),
    Mutant("M44", "a checkpoint may move backwards, or ahead of what was delivered", "-",
            (Guarantee.CHECKPOINT_FORWARD, Guarantee.CHECKPOINT_AFTER_DELIVERY), any_position_may_be_checkpointed),
    Mutant("M48", "one processor serves all shards of a worker", "-",
            (Guarantee.LIFE_CYCLE, Guarantee.NO_GAP, Guarantee.SILENT_AFTER_LOSS), one_processor_for_all_shards),
    Mutant("M49", "after a refused iterator a lease is held, and its shard read no more", "-",
            (Guarantee.ALL_DELIVERED,), refused_iterator_ends_the_reading),
    Mutant("M51", "a page with records counts as one that brings nothing, and wakes nobody", "here",
            (Guarantee.NO_GAP, Guarantee.CHECKPOINT_AFTER_DELIVERY), page_of_the_shared_thread_thrown_away),
    Mutant("M52", "near the trim horizon a shard is opened again, though its page was empty", "here",
            (Guarantee.ALL_DELIVERED, Guarantee.BUDGETS), reopened_though_nothing_came),
    Mutant("M53", "an iterator that is good passes for one that steps over nothing", "here",
            (Guarantee.LOSS_REPORTED,), gaps_are_not_doubted),
    Mutant("M54", "a call that returned a coroutine counts as one that did its work", "here",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.NO_GAP), returned_coroutine_ignored,
            only=frozenset({"F17.raises"})),
    Mutant("M55", "a batch that raised comes again with the records that are checkpointed", "here",
            (Guarantee.NO_GAP,), whole_batch_again, only=frozenset({"F17.raises"})),
    Mutant("M98", "LATEST that is set later means the time of the first start", "here",
            (Guarantee.NO_DUPLICATES,), latest_is_always_the_first_start, full=True,
            only=frozenset({"F15.reset"})),
    Mutant("M100", "Date headers of Kinesis' answers are believed ahead of time", "here",
            (Guarantee.ALL_DELIVERED, Guarantee.NO_GAP), answers_believed_ahead_of_time,
            only=frozenset({"F1", "F5.date", "F17.never"})),
)  # fmt: skip
