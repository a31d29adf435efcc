"""Calls of user code by a lease worker: retries, skipped batches, errors, and the state for the watchdog."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar, cast

from pykcl.errors import (
    LeaseInDoubt,
    LeaseLostError,
    NotAProcessor,
    ProcessingError,
    ProcessorFailed,
    PyKclError,
    RestartShard,
    TableGone,
)
from pykcl.events import BatchSkipped, ProcessorRaised
from pykcl.metrics import catalog
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.dead_letter import DeadLetter
from pykcl.model.record import Record
from pykcl.planning.read_schedule import backoff
from pykcl.processor import Batch, FailedAt, Reject, StoppedAt
from pykcl.runtime import EndsThread
from pykcl.worker.context import Context
from pykcl.worker.processor_factory import NeverRan, must_have_run
from pykcl.worker.signals import OwnProcess
from pykcl.worker.turns import Standing, StopAsked, Turn

Input = TypeVar("Input")

log = logging.getLogger("pykcl.worker")

SENDING = "dead_letters"
"""What a call of a destination is called, beside the methods of a processor."""

_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARY_HOMES = (Path(traceback.__file__).parent, Path(__file__).parents[1])


class CallResult(Enum):
    RETURNED = "returned"
    SKIPPED = "skipped"
    STOPPED = "stopped"
    PAUSED = "paused"
    RETRIES_EXHAUSTED = "retries exhausted"
    RESTART = "restart"


_BEFORE_A_CHECKPOINT = ("initialize", "process_records", "shard_ended")
"""Methods that have to return before the checkpoint can move on."""


class Check(Protocol):
    """`LeaseScope.check`."""

    def __call__(self, *, waits: bool = True) -> None: ...


class ProcessorCalls:
    """Calls methods of one processor.

    turn: what process_records waits for, if the processor has one. Such a wait is no call that is under way, neither
    for `busy` nor for a worker that stops. standing: where a processor runs its records in other threads, returns where
    the one stands that the others wait for.

    check: raises LeaseLostError if the lease is lost; while it is in doubt, waits or raises LeaseInDoubt. pause:
    waits for a number of seconds and returns True if the lease worker is to stop; raises LeaseLostError. on_call:
    called with the report of a call that raised, and with None once process_records has returned.
    """

    def __init__(
        self,
        context: Context,
        shard: str,
        check: Check,
        pause: Callable[[float], bool],
        on_call: Callable[[ProcessorRaised | None], None],
    ) -> None:
        self._context = context
        self._shard = shard
        self._check = check
        self._pause = pause
        self._on_call = on_call
        self._lock = context.runtime.lock()
        self._busy: tuple[str, float] | None = None
        self._restarts = _Restarts(context.config.retry_timeout)
        self._own_process = OwnProcess()
        self._shown: tuple[type[BaseException], str] | None = None
        self.turn: Turn | None = None
        self.standing: Callable[[], Standing | None] | None = None

    @property
    def busy(self) -> tuple[str, float] | None:
        """The running method and the monotonic time of its call, for the watchdog."""
        with self._lock:
            return self._busy

    def until_it_returns(
        self,
        method: str,
        call: Callable[[Input], object],
        argument: Input,
        rest: Callable[[Input, BaseException], Input] = lambda argument, error: argument,
        hold: Callable[[], bool] | None = None,
    ) -> CallResult:
        """Call the method and, while it raises, act as `on_error` says. Raises LeaseLostError.

        rest: returns the part of a batch that its checkpoints, and the error, leave to be done; if nothing is left, the
        batch counts as returned.
        hold: waits while the shard is paused, and returns True if the lease worker is to stop. Without it the result is
        PAUSED where process_records would be called again on a paused shard.
        RESTART: only another instance can continue. `initialize` creates one at each attempt anyway.
        """
        runtime = self._context.runtime
        attempt, began, records = 0, runtime.monotonic(), _records_of(argument)
        while True:
            attempt += 1
            error = self._attempt(method, call, argument, only_if_held=True)
            # A processor that raises because its checkpoint was refused has not failed: its lease is gone.
            self._check()
            if error is None:
                return self._returned(method, records)
            if isinstance(error, TableGone | NotAProcessor):
                # A checkpoint raised it inside the call, or there is nothing to call. The processor has not failed, and
                # a retry is of no use.
                raise error
            argument = rest(argument, error)
            left = _records_of(argument)
            if len(left) < len(records):
                # There was progress: another record fails now, which has not been tried before.
                attempt, began = 1, runtime.monotonic()
            restart = isinstance(error, RestartShard) and method != "initialize"
            if restart:
                now, at_end = runtime.monotonic(), method == "shard_ended"
                attempt, began = self._restarts.wanted(now, records, at_end=at_end)
            pause = backoff(attempt, runtime.random())
            out_of_time = runtime.monotonic() - began + pause > self._context.config.retry_timeout
            end = self._end_of_trying(error, records, left, restart=restart, out_of_time=out_of_time)
            self.report(method, reported(error), attempt, left, None if end else pause)
            records = left or records
            if end is CallResult.SKIPPED and len(untried := self._skip(left, error)):
                argument = cast(Input, replace(cast(Batch, argument), records=untried))
                records, attempt, began, end, pause = untried, 0, runtime.monotonic(), None, 0.0
            elif end is CallResult.STOPPED:
                self.stop_worker(error, left, method)
            elif end is CallResult.RETURNED:
                return self._returned(method, records)
            if end is None:
                may_be_paused = method == "process_records" and not restart
                end, held = self._wait_for_retry(pause, hold, may_be_paused=may_be_paused)
                began += held
            if end is not None or restart:
                return end or CallResult.RESTART

    def _wait_for_retry(
        self, pause: float, hold: Callable[[], bool] | None, *, may_be_paused: bool
    ) -> tuple[CallResult | None, float]:
        """Wait before the next attempt; return the result if there is none, and the seconds of `hold`."""
        if self._pause(pause):
            return CallResult.STOPPED, 0.0
        if not may_be_paused or not self._context.pauses.has(self._shard):
            return None, 0.0
        if hold is None:
            return CallResult.PAUSED, 0.0
        began = self._context.runtime.monotonic()
        stops = hold()
        return CallResult.STOPPED if stops else None, self._context.runtime.monotonic() - began

    def stop_worker(
        self, error: BaseException, records: Sequence[Record], method: str = "process_records"
    ) -> None:
        """Stop it, as on_error="raise" says; it releases this lease with all others, and nothing is handed back."""
        self._context.on_fatal(_failure(method, self._shard, reported(error), records))

    def _skip(self, records: Sequence[Record], error: BaseException) -> Sequence[Record]:
        """Give up the records to blame for the error, as on_error="skip" says; return the others, not tried yet."""
        start, stop = to_blame(error, records)
        skipped = records[start:stop]
        self._context.events.emit(BatchSkipped(shard=self._shard, records=len(skipped), **span_of(skipped)))
        self._on_call(None)
        return records[stop:] if start == 0 else (*records[:start], *records[stop:])

    def _end_of_trying(
        self,
        error: BaseException,
        records: Sequence[Record],
        left: Sequence[Record],
        *,
        restart: bool,
        out_of_time: bool,
    ) -> CallResult | None:
        """Decide on a call that raised; None: retry it. left: the records still to be done."""
        on_error = self._context.config.on_error
        if on_error == "raise":
            return CallResult.STOPPED
        if records and not left and not restart:
            return CallResult.RETURNED
        if on_error == "skip" and left and blames_records(error) and to_blame(error, left) != NOBODY:
            return CallResult.SKIPPED
        return CallResult.RETRIES_EXHAUSTED if out_of_time else None

    def _returned(self, method: str, records: Sequence[Record]) -> CallResult:
        if method == "process_records":
            self._restarts.returned(records)
            self._on_call(None)
        return CallResult.RETURNED

    def attempt(self, call: Callable[[Batch], object], batch: Batch) -> BaseException | None:
        """Call process_records once; return its error. Raises LeaseLostError, and what no retry can help."""
        error = self._attempt("process_records", call, batch, only_if_held=True)
        # A processor that raises because its checkpoint was refused has not failed: its lease is gone.
        self._check()
        if error is None:
            self._returned("process_records", batch)
        elif isinstance(error, TableGone | NotAProcessor):
            raise error
        return error

    def settled(self, upto: Checkpoint) -> None:
        """Note that all records up to there are settled, though others of their batch may have failed."""
        self._restarts.got_to(upto)

    def restart(self, error: RestartShard, records: Sequence[Record], left: Sequence[Record]) -> CallResult:
        """Act on a RestartShard as `until_it_returns` does. left: the records still to be done.

        records: of the call, or those of them that an instance has to get past to be better than the ones before it.
        """
        runtime = self._context.runtime
        attempt, began = self._restarts.wanted(runtime.monotonic(), records, at_end=False)
        pause = backoff(attempt, runtime.random())
        out_of_time = runtime.monotonic() - began + pause > self._context.config.retry_timeout
        self.report("process_records", error, attempt, left, None if out_of_time else pause)
        if out_of_time:
            return CallResult.RETRIES_EXHAUSTED
        return CallResult.STOPPED if self._pause(pause) else CallResult.RESTART

    def send_letters(
        self, send: Callable[[Sequence[DeadLetter]], object], letters: Sequence[DeadLetter]
    ) -> BaseException | None:
        """Call a destination once, under the eyes of the watchdog; return its error. Raises LeaseLostError."""
        return self._attempt(SENDING, send, letters, only_if_held=True)

    def once(self, method: str, call: Callable[[Input], object], argument: Input) -> None:
        """Call the method once, and report its error. For methods after which nothing can be retried."""
        error = self._attempt(method, call, argument, only_if_held=False)
        if error is None or isinstance(error, LeaseLostError):
            return
        self.report(method, error, 1, (), None)
        dead = isinstance(error, RestartShard) and method == "lease_lost"
        if dead and self._context.config.on_error == "raise":
            # As at any other call: its process is gone. After shutdown_requested the worker stops anyway.
            self._context.on_fatal(_failure(method, self._shard, error))

    def _attempt(
        self, method: str, call: Callable[[Input], object], argument: Input, *, only_if_held: bool
    ) -> BaseException | None:
        """Call the method and return its error. Raises LeaseLostError if the call needs a lease that is lost, and
        StopAsked instead of a wait for its turn while the worker stops, or if the call was
        broken off. Waits while the lease is in doubt."""
        while True:
            if only_if_held:
                self._check()
            try:
                return self._attempt_at_once(method, call, argument, only_if_held=only_if_held)
            except LeaseInDoubt:
                # Since a moment ago. Not waited for here: others wait for the turn, and no method is running.
                continue

    def _attempt_at_once(
        self, method: str, call: Callable[[Input], object], argument: Input, *, only_if_held: bool
    ) -> BaseException | None:
        """Do the same as `_attempt`, and raise LeaseInDoubt instead of waiting."""
        with self._taken_turn(method), self._running(method):
            if only_if_held:
                # The last step before the call, after every wait. 1) The lease is believed; 2) this thread waits for a
                # lock, if only that of `busy`; 3) a heartbeat is rejected, and another worker has the lease; 4) the
                # processor would be given a batch all the same.
                self._check(waits=False)
            began, raised = self._context.meter.clock(), None
            try:
                with self._own_process.alone_leaves(method, self._shard):
                    returned = call(argument)
                must_have_run(method, returned)
            except (EndsThread, StopAsked):
                raise
            except BaseException as error:  # noqa: BLE001 - user code may raise anything; it is reported
                # For example asyncio.CancelledError, which would end this thread: its lease would not be renewed until
                # it expires, and would be taken and left again endlessly, without an event and regardless of
                # `on_error`.
                raised = error
            if method != SENDING:
                self._measure(method, began, worked=raised is None)
        return raised

    def _measure(self, method: str, began: float, *, worked: bool) -> None:
        meter = self._context.meter
        if not meter.is_on:
            return
        took = meter.since(began)
        if method == "process_records":
            meter.summary(self._shard, ((catalog.PROCESS_RECORDS_TIME, took),))
            return
        call, task = (
            (catalog.INITIALIZE_TIME, catalog.INITIALIZE_TASK)
            if method == "initialize"
            else (catalog.SHUTDOWN_TIME, catalog.SHUTDOWN_TASK)
        )
        meter.measure("", (call, took), (task.success, float(worked)), (task.time, took))

    def _taken_turn(self, method: str) -> AbstractContextManager[None]:
        if self.turn is None or method != "process_records":
            return nullcontext()
        return self.turn.taken(self._context.runtime, self._pause_for_turn)

    def _pause_for_turn(self, seconds: float) -> bool:
        """Pause as `pause` does, without a wait in doubt: the turn would come meanwhile, and others wait for it."""
        self._check(waits=False)
        return self._pause(seconds)

    @contextmanager
    def _running(self, method: str) -> Iterator[None]:
        with self._lock:
            self._busy = (method, self._context.runtime.monotonic())
        try:
            yield
        finally:
            with self._lock:
                self._busy = None

    def report(
        self, method: str, error: BaseException, attempt: int, records: Sequence[Record], pause: float | None
    ) -> None:
        failure = ProcessorRaised(
            shard=self._shard,
            method=method,
            error=type(error).__name__,
            where=where_of(error),
            attempt=attempt,
            records=len(records),
            next_attempt_in=pause,
            **span_of(records),
        )
        self._context.events.emit(failure)
        if method in _BEFORE_A_CHECKPOINT:
            self._on_call(failure)
        what = type(error), where_of(error)
        if self._context.config.show_errors and (attempt == 1 or what != self._shown):
            self._shown = what
            trace = _from_user_code(error)
            log.error(
                "%s raised shard=%s method=%s",
                what[0].__name__,
                self._shard,
                method,
                exc_info=(what[0], error, trace),
            )


CALLS_THE_PROCESSOR = ProcessorCalls._attempt_at_once.__code__
"""Code of the frame below which the frames of a processor's method are."""


def _records_of(argument: object) -> Sequence[Record]:
    return argument if isinstance(argument, Batch) else ()


class _Restarts:
    """Number of consecutive restarts, and the time of the first: of instances that did not get past its position.

    A returned batch alone does not end the series, because batches before a record that ends every instance return
    each time. After a restart in an empty batch, the next batch that returns ends it. A restart without a record in
    hand, more than `retry_timeout` seconds after another such one, starts a new series.
    """

    def __init__(self, retry_timeout: float) -> None:
        self._retry_for = retry_timeout
        self._count = 0
        self._since = self._last = 0.0
        self._at_end = False
        self._beyond: Checkpoint | None = None

    def wanted(self, now: float, records: Sequence[Record], *, at_end: bool) -> tuple[int, float]:
        """Count a restart; return the number and the time of the first. records: of the batch.

        at_end: at the end of the shard, which no batch gets past.
        """
        were_idle = self._beyond is None and not self._at_end
        if not self._count or (were_idle and now - self._last > self._retry_for):
            self._count = 0
            self._since, self._at_end = now, at_end
            self._beyond = records[-1].position if records else None
        self._count += 1
        self._last = now
        return self._count, self._since

    def returned(self, records: Sequence[Record]) -> None:
        """Note a batch that returned; not `initialize` or `shard_ended`, which return each time."""
        if self._at_end:
            return
        if self._beyond is None:
            self._count = 0
        elif records:
            self.got_to(records[-1].position)

    def got_to(self, position: Checkpoint) -> None:
        """Note that everything up to there is settled."""
        if self._beyond is not None and position >= self._beyond:
            self._count = 0


def blames_records(error: BaseException) -> bool:
    """True if this error of process_records may be due to its records.

    Never for our own errors (a checkpoint that could not be written), sys.exit or Ctrl-C.
    """
    if isinstance(error, StoppedAt):
        error = error.error
    if isinstance(error, ProcessingError):
        return True
    return not isinstance(error, PyKclError | SystemExit | KeyboardInterrupt)


NOBODY = (0, 0)


def to_blame(error: BaseException, records: Sequence[Record]) -> tuple[int, int]:
    """Return start and stop of the records that an error of their call is about: the one that it names, else all.

    NOBODY: the error is about a record that the handler has checkpointed since. Those after it were not tried.
    """
    if isinstance(error, FailedAt | Reject):
        at = index_of(error.record, records)
        if at is not None:
            return at, at + 1
    return NOBODY if isinstance(error, StoppedAt) else (0, len(records))


def index_of(named: object, records: Sequence[Record]) -> int | None:
    """Return the index of the record with the position of that one; None if there is none."""
    if not isinstance(named, Record):
        return None
    position, shard = named.position, named.shard_id
    return next(
        (at for at, each in enumerate(records) if each.position == position and each.shard_id == shard), None
    )


def reported(error: BaseException) -> BaseException:
    """Return the error that a ProcessingError was raised from; any other as it is."""
    while isinstance(error, ProcessingError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def span_of(records: Sequence[Record]) -> dict[str, str]:
    if not records:
        return {"first": "-", "last": "-"}
    return {"first": str(records[0].position), "last": str(records[-1].position)}


def where_of(error: BaseException) -> str:
    """Return file and line of the innermost frame, never the exception's text, which may quote a payload.

    The innermost frame of the application is preferred: that json.loads rejected something, the error's type says.
    """
    if isinstance(error, NeverRan):
        return error.where
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not _is_library(frame[0])]
    if not frames or (not own and isinstance(error, RestartShard)):
        # What made it of no use, a child that died say, is at no line of pykcl.
        return "-"
    filename, line = (own or frames)[-1]
    return f"{Path(filename).name}:{line}"


def _from_user_code(error: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame of the application on; those before it are of pykcl."""
    trace = error.__traceback__
    while trace is not None and _is_library(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_library(filename: str) -> bool:
    """True if this file belongs to Python itself, to an installed package, or to pykcl."""
    path = Path(filename)
    if filename.startswith("<frozen ") or not _INSTALLED.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(home) for home in _LIBRARY_HOMES)


def _failure(
    method: str, shard: str, error: BaseException, records: Sequence[Record] = ()
) -> ProcessorFailed:
    where = where_of(error)
    at = "" if where == "-" else f" at {where}"
    what = str(error) if isinstance(error, NeverRan) else f"{method} raised {type(error).__name__}"
    failure = ProcessorFailed(
        f"{what}{at} for {shard}, and "
        "on_error='raise' stops the worker. The checkpoint was left before the failing batch."
    )
    failure.__cause__ = error
    hint = NeverRan.DO if isinstance(error, NeverRan) else None
    return failure.about("E12", hint, records=len(records)).naming(shard=shard)
