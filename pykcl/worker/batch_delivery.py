"""Delivery of batches under policies: calls, splits and dead letters as `planning.attempts` decides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from pykcl.errors import (
    DeadLettersUnsent,
    PyKclError,
    RestartShard,
    SetupError,
    TemporaryError,
)
from pykcl.events import BatchSplit, RecordsDeadLettered, RecordsDiscarded
from pykcl.interfaces import DeadLetterDestination
from pykcl.model.dead_letter import Condition, DeadLetter
from pykcl.model.record import Record
from pykcl.planning.attempts import Cause, Decision, Failure, InARow, Part, Policy, Verdict, WorkList
from pykcl.planning.lifecycle import Signal
from pykcl.planning.read_schedule import backoff
from pykcl.processor import Batch, FailedAt, Reject, StoppedAt
from pykcl.status import Activity
from pykcl.worker.checkpointer import ShardCheckpointer
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.processor_calls import blames_records, index_of, reported, span_of, where_of
from pykcl.worker.shard_end import NOT_RETURNED

_MAY_BE_THE_WORLD = (Condition.RETRY_ATTEMPTS_EXHAUSTED, Condition.DECODE_FAILED)
"""Conditions that are not the fault of many records in a row: a database is down, or the model is a wrong one."""
_LONGEST_TEXT = 1000
"""Characters of an exception's text, and of a reason, in a dead letter."""


class BatchDelivery:
    """Used by the lease worker's thread, under one lease.

    settle: called with records, in order, that are settled: True if process_records is done with them, False if they
    were given up. Raises LeaseLostError.
    """

    def __init__(self, scope: LeaseScope, settle: Callable[[Sequence[Record], bool], None]) -> None:
        self._scope = scope
        self._context = context = scope.context
        self._held = scope.mine
        self._processor, self._progress = scope.initialized
        self._calls, self._settle = scope.calls, settle
        config = context.config
        self._policy = Policy(
            max_attempts=config.max_attempts,
            bisect=config.bisect,
            max_age=None if config.max_record_age is None else config.max_record_age * 1000.0,
            retry_timeout=config.retry_timeout,
        )
        self._gives_up = config.dead_letters is not None
        self._in_a_row = InARow(config.dead_letters_in_a_row)

    def deliver(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        """Settle every record of the batch; None: done. Raises LeaseLostError, DeadLettersUnsent."""
        work = WorkList(len(records), self._policy)
        while (part := work.next()) is not None:
            if (signal := self._scope.interrupted()) is not None:
                return signal
            first = records[part.start]
            if not self._held.lease.checkpoint < first.position:
                # The processor has checkpointed further than the calls that returned, or an earlier owner had, whose
                # prepared checkpoint is committed since.
                work.settled(self._durable(records, part.start))
                continue
            chosen = records[part.start : part.stop]
            if part.condition is not None:
                signal = self._give_up(work, part, part.condition, chosen)
            elif self._expire(work, first, chosen):
                continue
            else:
                signal = self._call(work, part, records, chosen, millis_behind)
            if signal is not None:
                return signal
        return None

    def _durable(self, records: Sequence[Record], start: int) -> int:
        """Return the index of the first record from `start` on that is not checkpointed."""
        return bisect_right(records, self._held.lease.checkpoint, start, key=lambda record: record.position)

    def _expire(self, work: WorkList, first: Record, records: Sequence[Record]) -> bool:
        """Give up those of the records that are too old. Only the first one is checked, unless that is."""
        max_age = self._policy.max_age
        if max_age is None:
            return False
        # The clock of Kinesis: that of the host may be wrong by hours.
        now = self._context.stream.server_time_millis()
        if not 0 < first.arrived_at_millis < now - max_age:
            return False
        return work.expire(now, [record.arrived_at_millis for record in records])

    # -- calls ---------------------------------------------------------------------------------------------------

    def _call(
        self,
        work: WorkList,
        part: Part,
        records: Sequence[Record],
        chosen: Sequence[Record],
        millis_behind: int | None,
    ) -> Signal | None:
        """chosen: the records of the part."""
        # Not the whole batch: a checkpoint must not pass records that are not settled and not part of this call.
        self._progress.handing_over(chosen[-1].position)
        checkpointer = ShardCheckpointer(self._progress, chosen[-1].position)
        batch = Batch(chosen, checkpointer, millis_behind, self._held.key, self._context.stream.name)
        began = self._context.runtime.monotonic()
        error = self._calls.attempt(self._processor.process_records, batch)
        start = part.start if error is None else self._durable(records, part.start)
        if isinstance(error, RestartShard):
            result = self._calls.restart(error, chosen, records[start : part.stop])
            return NOT_RETURNED[result]
        if error is None or start >= part.stop:
            # A call that has checkpointed all of its records counts as one that returned.
            self._in_a_row.worked()
            work.returned()
            self._settle(chosen, True)
            return None
        work.settled(start)
        return self._failed(work, records[start : part.stop], start, error, began)

    def _failed(
        self, work: WorkList, failing: Sequence[Record], start: int, error: BaseException, began: float
    ) -> Signal | None:
        decision = self._decide(work, failing, start, error, began)
        if decision.verdict is Verdict.RETRY and self._scope.pause(decision.pause):
            return Signal.STOP
        return Signal.GIVE_UP if decision.verdict is Verdict.HAND_BACK else None

    def _decide(
        self, work: WorkList, failing: Sequence[Record], start: int, error: BaseException, began: float
    ) -> Decision:
        """Report a failed call of the first part, and settle what it has done.

        failing: records of the call that are not checkpointed; `start` is the index of their first in the batch.
        """
        runtime = self._context.runtime
        done, why = failing[:0], error
        if isinstance(error, StoppedAt):
            before = index_of(error.record, failing) or 0
            done, failing, start = failing[:before], failing[before:], start + before
            work.settled(start)
            why = error.error
        failure, at = self._failure(error, failing)
        decision = work.failed(
            failure,
            began=began,
            now=runtime.monotonic(),
            rng=runtime.random(),
            at=None if at is None else start + at,
            condition=why.condition if isinstance(why, Reject) else Condition.REJECTED,
            now_millis=self._context.stream.server_time_millis(),
            cause=_cause(reported(error), why),
        )
        if at is not None:
            done = failing[:at] if failure is Failure.FAILED_AT and at else done
            failing = failing[at : at + 1] if failure is Failure.REJECTED else failing[at:]
        verdict, tried = decision.verdict, decision.part
        ends = verdict in (Verdict.GIVE_UP_RECORDS, Verdict.HAND_BACK)
        attempt = max(tried.attempts, tried.tries, 1)
        self._calls.report(
            "process_records", reported(error), attempt, failing, None if ends else decision.pause
        )
        if done:
            self._in_a_row.worked()
            self._settle(done, True)
        if verdict is Verdict.SPLIT:
            self._context.events.emit(
                BatchSplit(
                    shard=self._held.key,
                    records=len(failing),
                    next_records=len(tried),
                    **span_of(failing),
                )
            )
        return decision

    def _failure(self, error: BaseException, records: Sequence[Record]) -> tuple[Failure, int | None]:
        """Return the kind of the failure, and the index of the record that it names, if it is one of these.

        Without a destination in the options a Reject gives up nothing.
        """
        stopped = isinstance(error, StoppedAt)
        at = index_of(error.record, records) if isinstance(error, FailedAt | Reject) else None
        why = error.error if isinstance(error, StoppedAt) else error
        if isinstance(why, Reject) and self._gives_up:
            if why.record is None and len(records) == 1:
                at = 0
            is_named = not stopped or why.record is None or index_of(why.record, records) == at
            if at is not None and is_named:
                return Failure.REJECTED, at
        if not blames_records(error) or (stopped and at is None):
            # The latter: the handler has checkpointed the record since, and has not tried those after it.
            return Failure.NOT_COUNTED, None
        if isinstance(error, FailedAt) and at is not None:
            return Failure.FAILED_AT, at
        return Failure.ERROR, None

    # -- dead letters --------------------------------------------------------------------------------------------

    def _give_up(
        self, work: WorkList, part: Part, condition: Condition, records: Sequence[Record]
    ) -> Signal | None:
        """Keep the records as a dead letter; then, and not before, they are settled."""
        letter = self.letter(part, condition, records)
        destination = self._context.dead_letters
        if destination is not None and self._send(destination, letter):
            return Signal.STOP
        event = RecordsDiscarded if destination is None else RecordsDeadLettered
        self._context.events.emit(
            event(
                shard=self._held.key,
                condition=condition.value,
                records=len(records),
                attempts=part.attempts,
                letter=letter.id,
                **span_of(records),
            )
        )
        work.gave_up(part)
        self._scope.gets_on()
        self._settle(records, False)
        if condition in _MAY_BE_THE_WORLD and self._are_too_many(records):
            self._scope.why_handed_back = (
                f"{self._in_a_row.count} records were given up with no success between them, and "
                f"dead_letters_in_a_row={self._in_a_row.limit} says that so many are not to blame"
            )
            return Signal.GIVE_UP
        return None

    def _are_too_many(self, records: Sequence[Record]) -> bool:
        """Count records that are given up; return True if the limit of dead_letters_in_a_row is reached."""
        return self._in_a_row.exhausted(len(records))

    def letter(self, part: Part, condition: Condition, records: Sequence[Record]) -> DeadLetter:
        context = self._context
        # An adapter is not what failed.
        kind = type(getattr(self._processor, "wrapped", self._processor))
        stream = context.identity.description
        return DeadLetter(
            condition=condition,
            application=context.config.application,
            processor=getattr(self._processor, "handler_name", f"{kind.__module__}:{kind.__qualname__}"),
            worker_id=context.worker_id,
            stream=stream.name,
            stream_arn=stream.arn,
            stream_created_at=stream.created_at,
            shard_id=self._held.key,
            records=tuple(records),
            attempts=part.attempts,
            created_at=context.stream.server_time_millis(),
            first_failed_at=part.first_failed_at,
            error=part.cause.error,
            where=part.cause.where,
            message=part.cause.message,
            reason=part.cause.reason if condition is Condition.REJECTED else "",
        )

    def _send(self, destination: DeadLetterDestination, letter: DeadLetter) -> bool:
        """Send until it is kept; True if the worker stops first. Raises DeadLettersUnsent, LeaseLostError.

        The shard stands meanwhile: a letter that is not kept anywhere may not be passed by a checkpoint.
        """
        runtime, failures, shard = self._context.runtime, self._context.failures, self._held.key
        attempt, began = 0, runtime.monotonic()
        while True:
            error = self._calls.send_letters(destination.send, (letter,))
            if error is None:
                failures.worked(Activity.SENDING_DEAD_LETTERS, shard=shard)
                return False
            attempt += 1
            pause = backoff(attempt, runtime.random())
            unsent = self.unsent(error)
            failures.failed(Activity.SENDING_DEAD_LETTERS, unsent, shard=shard)
            out_of_time = runtime.monotonic() - began + pause > self._context.config.retry_timeout
            if isinstance(error, SetupError) or out_of_time:
                raise unsent from error
            if self._scope.pause(pause):
                return True

    def unsent(self, error: BaseException) -> DeadLettersUnsent:
        # Never the text of a foreign exception: it may quote a payload.
        cause = error if isinstance(error, PyKclError) else f"{type(error).__name__} at {where_of(error)}"
        unsent = DeadLettersUnsent(f"Dead letters of {self._held.key} were not kept: {cause}")
        return unsent.about("E22").naming(shard=self._held.key)


def _cause(reported: BaseException, error: BaseException) -> Cause:
    return Cause(
        error=type(reported).__name__,
        where=where_of(reported),
        message=_text(reported),
        reason=_text(error.reason) if isinstance(error, Reject) else "",
    )


def _text(value: object) -> str:
    try:
        return str(value)[:_LONGEST_TEXT]
    except Exception:  # noqa: BLE001 - the application's own code
        return ""


class CallableDestination:
    """A DeadLetterDestination over a function of the application. Whatever that raises means that it is down."""

    def __init__(self, keep: Callable[[Sequence[DeadLetter]], None]) -> None:
        self._keep = keep

    def send(self, letters: Sequence[DeadLetter]) -> None:
        returned: object = self._keep(letters)
        if returned is not None and hasattr(returned, "__await__"):
            raise TemporaryError("dead_letters= returned a coroutine, which nobody runs")
