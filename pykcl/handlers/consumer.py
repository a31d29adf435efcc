"""`Consumer`: the records of a stream in a `for` loop. Asking for the next one acks the one before."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pykcl.config import Config
from pykcl.errors import ConfigError, PyKclError, StopTimedOut
from pykcl.handlers.decode import NoDecoder, decoder_of, refuse
from pykcl.handlers.record_queue import RecordQueue
from pykcl.model.record import Record
from pykcl.planning.read_schedule import backoff
from pykcl.processor import NotDecoded
from pykcl.runtime import Event, Runtime, SystemRuntime, Task, Thread, error_of, in_main_thread, this_thread
from pykcl.worker.options import AppOptions, WorkerSeams
from pykcl.worker.signals import REPEAT_SECONDS, OwnProcess, stop_signals_go_to
from pykcl.worker.worker import Worker

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Unpack

Asker = TypeVar("Asker")
Value = TypeVar("Value")

POLL_SECONDS = 0.05
"""Pause between two questions to the worker whether it is ready."""
_LONGEST_REST = 10.0
"""Seconds for which a shard rests whose record could not be rejected."""
_OF_BATCHES = {
    "batch_size": "a program that iterates has no batches",
    "batch_window": "a program that iterates has no batches",
    "bisect": "a program that iterates has no batches",
    "call_with_empty_batches": "a program that iterates has no batches",
    "checkpoint_interval": "checkpoints follow the acks",
    "dead_letters_in_a_row": "nothing counts failures",
    "max_attempts": "an exception leaves the loop",
    "max_record_age": "consumer.reject(record) gives up a record",
    "on_error": "an exception leaves the loop",
}
"""Options of a Worker that a consumer refuses, and why they have no meaning."""
END = object()
"""What is taken where there are no more records."""


class Ended(Enum):
    """The reason for the end of an iteration: `consumer.ended`."""

    STOPPED = "stop() was called"
    SIGNAL = "SIGTERM or SIGINT came"
    IDLE = "no record came within idle_timeout"
    FAILED = "an error stopped the worker"
    LEFT = "the program left the block, or closed the consumer"


class ConsumerBase(ABC, Generic[Asker]):
    """The common part of `Consumer` and `AsyncConsumer`: a worker in threads of its own, and a queue.

    Asker: what identifies the thread or task that asks for records.
    """

    _seams: ClassVar[WorkerSeams] = WorkerSeams()
    _MANY: ClassVar[str]
    """Subject of the message for those who ask together."""

    def __init__(
        self,
        application: str,
        *,
        stream: str,
        auto_ack: bool = True,
        idle_timeout: float | None = None,
        **options: Unpack[AppOptions],
    ) -> None:
        """auto_ack: asking for the next record acks the one before. idle_timeout: seconds without a record after which
        the iteration ends, counted once the worker is at work. options: arguments of Worker. Raises ConfigError."""
        given = _checked(type(self).__name__, options)
        _refuse_other_types(auto_ack, idle_timeout)
        self._auto_ack, self._idle_timeout = auto_ack, idle_timeout
        self._runtime: Runtime = self._seams.runtime or SystemRuntime()
        most = given.get("max_unacked", Config.__dataclass_fields__["max_unacked"].default)
        self._queue = RecordQueue(self._runtime, most if isinstance(most, int) else 1, self._wake)
        self._worker = Worker._with(
            self._seams,
            application,
            stream=stream,
            processor=self._queue.feed,
            **{**given, "checkpoint_mode": "ack"},
        )
        self._task: Task | None = None
        self._failure: Exception | None = None
        self._is_raised = False
        # Written by one thread each, and read by any: started, asked to end, stopped, left.
        self._has_started = self._is_ending = self._is_over = self._is_left = False
        self._ended: Ended | None = None
        # With who has it, and the number of the loop that was given it.
        self._at_hand: tuple[Record, Asker, int] | None = None
        # The record at hand, once it is not done whatever its loop does next.
        self._left_open: Record | None = None
        self._failed_rejects = 0
        self._loops = 0
        self._be_new()

    @abstractmethod
    def _be_new(self) -> None:
        """Set the attributes of the class."""

    @classmethod
    def _with(cls, seams: WorkerSeams, application: str, **arguments: Any) -> Self:
        """Create a consumer with these seams, for simulations and tests."""
        consumer = cls.__new__(cls)
        consumer._seams = seams  # type: ignore[misc]
        consumer.__init__(application, **arguments)  # type: ignore[misc]
        return consumer

    # -- for any thread ------------------------------------------------------------------------------------------

    @property
    def worker(self) -> Worker:
        """The worker that reads, for its `status()` and its metrics."""
        return self._worker

    @property
    def ended(self) -> Ended | None:
        """The first reason for which the iteration has ended; None while it goes on, or again, after Ended.IDLE.

        The error behind Ended.FAILED is `failure`.
        """
        return self._ended

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the worker: TableGone, StreamMissing, …; None if none did."""
        return self._failure

    def stop(self) -> None:
        """End the iteration as if there were no more records, from any thread or signal handler. Does not wait."""
        self._end(Ended.STOPPED)

    def _end(self, reason: Ended) -> None:
        self._note_end(reason)
        self._is_ending = True
        self._wake()

    def _note_end(self, reason: Ended) -> None:
        if self._ended in (None, Ended.IDLE):
            self._ended = reason

    def lost(self, record: Record) -> bool:
        """Return True once an ack of the record would have no effect: its shard has gone to another worker.

        It comes again there: stop to work on it. Also True for a record that is settled. Raises as `ack`.
        """
        self._refuse_unusable(record)
        return self._queue.is_lost(record)

    def ack(self, record: Record) -> bool:
        """Settle a record: it is done.

        False, without any effect: it was settled before, or its shard has gone to another worker. Raises PyKclError
        for what is not a record of a consumer that was entered.
        """
        self._refuse_unusable(record)
        return self._queue.ack(record)

    def _decoder(self, kind: Any) -> Callable[[Record], Any]:
        """Return a decoder of records, which raises NotDecoded. Raises ConfigError for a kind that has none."""
        try:
            decode = decoder_of(kind)
        except (NoDecoder, NameError) as error:
            do = getattr(error, "do", "define the class before the loop")
            raise ConfigError(f"{type(self).__name__}.decoded: {error}. Do: {do}.") from error

        def decoded(record: Record) -> Any:
            try:
                return decode(record.data)
            except Exception as error:  # noqa: BLE001 - a decoder may raise anything
                refuse(record, error)

        return decoded

    def _reason_of(self, error: NotDecoded) -> str:
        """Return the reason for a letter. Raises the error itself where there is no place for letters."""
        if self._worker.config.dead_letters is None:
            raise error
        cause = error.__cause__
        return f"does not decode: {type(cause).__name__}: {cause}"

    @abstractmethod
    def _wake(self) -> None:
        """Wake up those who wait for a record. Called by any thread and by signal handlers: no lock, no wait."""

    # -- the worker ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the worker in a thread, which stays until it has ended."""
        if self._task is not None:
            raise PyKclError(
                f"This {type(self).__name__} was entered before. Do: make a new one for each with block."
            )
        self._process = OwnProcess()
        self._task = self._runtime.spawn("pykcl-consumer", self._work)

    @property
    def _is_copy(self) -> bool:
        """True in a process that was forked from the one that reads: its threads are not here, and its locks may be
        in their hands for ever."""
        return self._task is not None and not self._process.is_this

    def _work(self) -> None:
        error = error_of(self._run_worker)
        if isinstance(error, Exception):
            self._failure = self._failure or error
        elif error is not None:
            # Raised in the program as well, which would wait for this thread for ever.
            why = f"{type(error).__name__}: {error} ended the thread of this {type(self).__name__}."
            self._failure = self._failure or PyKclError(
                f"{why} Do: find what raises that; it is code of the application, such as a client or a listener."
            )
        self._note_end(Ended.STOPPED if self._failure is None else Ended.FAILED)
        self._is_over = True
        self._wake()

    def _run_worker(self) -> None:
        self._worker.start()
        self._has_started = True
        self._wake()
        self._worker.join()

    def _stop_worker(self) -> None:
        """Stop the worker, and wait for its threads, at most `shutdown_grace`."""
        self._note_end(Ended.LEFT)
        self._queue.close()
        try:
            self._worker.stop()
        except StopTimedOut as error:
            self._failure = self._failure or error
        if self._task is not None:
            self._task.join(self._worker.config.shutdown_grace)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._is_raised = True
            raise self._failure

    # -- asking ----------------------------------------------------------------------------------------------------

    def _refuse_unusable(self, record: object = None) -> None:
        name = type(self).__name__
        way = "async with" if name.startswith("Async") else "with"
        if self._task is None:
            raise PyKclError(f"This {name} does not read yet. Do: {way} {name}(...) as consumer.")
        if self._is_copy:
            raise PyKclError(
                f"This process was forked from the one that entered the {name}, and its records are settled there. Do: "
                f"end this process by os._exit() once its work is done, or open another {name} here: {way} {name}(...)."
            )
        if record is not None and not isinstance(record, Record):
            raise PyKclError(
                f"{name} takes the records that it has given; it got {type(record).__name__}. Do: keep the Record "
                "beside what is made of it."
            )

    def _refuse_no_letters(self) -> None:
        if self._worker.config.dead_letters is None:
            raise ConfigError(
                "consumer.reject keeps a record as a dead letter, and dead_letters=None names no place for it. Do: "
                'dead_letters="file:letters" or another destination; dead_letters="discard" drops it.'
            ).about("E21")

    def _ask(self, asker: Asker, loop: int | None) -> None:
        """Settle the record before. Raises PyKclError if it is in other hands.

        loop: the number of the loop that asks; None: the one that goes on.
        """
        self._refuse_unusable()
        if self._is_left:
            raise PyKclError(
                f"This {type(self).__name__} has been left, or closed. Do: iterate inside of its with block; "
                "consumer.stop() ends a loop from elsewhere, behind the record at hand."
            )
        at_hand = self._at_hand
        if at_hand is None:
            return
        record, owner, its_loop = at_hand
        if self._has_failed(owner):
            self._give_back(record)
            return
        is_same = self._is_same(owner, asker)
        if (not is_same or loop not in (None, its_loop)) and self._queue.is_out(record):
            self._refuse_many(loops=is_same)
        if record is self._left_open:
            self._give_back(record)
            return
        self._at_hand = None
        self._queue.ack(record)

    def _give_back(self, record: Record) -> None:
        """Let the record at hand come again, if it is not settled."""
        pause = 0.0
        if record is self._left_open and self._failed_rejects:
            pause = backoff(self._failed_rejects, self._runtime.random(), first=0.5, longest=_LONGEST_REST)
        self._at_hand = self._left_open = None
        self._queue.put_back(record, pause)

    @contextmanager
    def _rejecting(self, rejected: object) -> Iterator[None]:
        """Leave the record at hand open if the block, which rejects it, fails.

        1) The destination is down; 2) the body logs that, and goes on; 3) to ask for the next record would ack this
        one: there would be no letter, and it would not come again.
        """
        try:
            yield
        except BaseException:
            self._failed_rejects += 1
            record = self._at_hand[0] if self._at_hand is not None else None
            # What is no record is made of the one at hand, perhaps.
            if not isinstance(rejected, Record) or rejected == record:
                self._left_open = record
            raise
        self._failed_rejects = 0

    def _refuse_many(self, *, loops: bool = False) -> None:
        name = type(self).__name__
        do = f"{name}(..., auto_ack=False), and consumer.ack(record)."
        if loops:
            do = f"consumer.ack(record) before an inner loop is left; where loops take turns, {do}"
        raise PyKclError(
            f"{'Two loops' if loops else self._MANY} ask this {name} for records, and asking for the next one acks "
            f"the one before: that of the other one, too. Do: {do}"
        )

    @abstractmethod
    def _is_same(self, owner: Asker, asker: Asker) -> bool:
        """Return True if it is the asker that has the record, or nobody has it any more."""

    @abstractmethod
    def _has_failed(self, owner: Asker) -> bool:
        """Return True if the owner of a record ended by an exception, so that the record is not done."""

    @abstractmethod
    def _has_ended(self, owner: Asker) -> bool:
        """Return True if the owner of a record has ended, in whatever way."""

    def _take(self, asker: Asker, loop: int | None) -> Record | object | None:
        """Return the next record, END, or None if there is none yet. Raises what has stopped the worker."""
        if self._is_left or self._is_ending:
            return END
        self._raise_failure()
        if self._at_hand is not None:
            # Two have waited, and the other one has got a record.
            self._refuse_many()
        record = self._queue.take()
        if record is None:
            return END if self._is_over else None
        if self._auto_ack:
            self._at_hand = record, asker, self._loops if loop is None else loop
        return record

    def _iterate(self, asker: Asker) -> int:
        """Begin a loop, and return its number: the record that the last one has left open comes again.

        Raises PyKclError if that is in the hands of another thread or task.
        """
        self._refuse_unusable()
        if self._at_hand is not None:
            record, owner, _ = self._at_hand
            is_free = self._is_same(owner, asker) or self._has_ended(owner)
            if not is_free and self._queue.is_out(record):
                self._refuse_many()
            self._give_back(record)
        if self._ended is Ended.IDLE:
            self._ended = None
        self._loops += 1
        return self._loops

    def _idle_until(self, until: float | None) -> float | None:
        """Return the end of the wait for a record; None: there is none, or none yet. until: as it was before."""
        if self._queue.rest() is not None:
            return None
        if self._idle_timeout is None or until is not None:
            return until
        return self._runtime.monotonic() + self._idle_timeout if self._worker.initialized else None

    def _step(self, until: float | None) -> float | None:
        """Return seconds to wait; None: until there is news."""
        if self._idle_timeout is None:
            return self._queue.rest()
        return POLL_SECONDS if until is None else max(0.0, until - self._runtime.monotonic())

    def _is_ready(self) -> bool | None:
        """Return the result of wait_ready; None: not yet. Raises what has stopped the worker."""
        self._refuse_unusable()
        self._raise_failure()
        if self._is_left or self._is_ending or self._is_over:
            return False
        return True if self._worker.wait_ready(0.0) else None

    def _left(self, error: BaseException | None) -> None:
        """Note the end of the block, which `error` ends. Raises what has stopped the worker unless it was raised."""
        self._is_left = True
        self._wake()
        if error is None and not self._is_raised:
            self._raise_failure()


class Consumer(ConsumerBase[Thread]):
    """The records of a stream, for a `for` loop inside of `with`.

        with Consumer("orders-app", stream="orders") as consumer:
            for record in consumer:
                save(record)

    Asking for the next record acks the one before. What leaves the loop otherwise, an exception, `break` or `return`,
    leaves the record at hand open: it comes again, in the next loop or from the next owner of its shard; those before
    it do not. In the main thread SIGTERM and SIGINT end the loop behind the record at hand, where the program has no
    handlers of its own for them; a second one, a second later or more, raises SystemExit or KeyboardInterrupt.

    auto_ack: False lets only `ack` settle a record, for several threads on one consumer. idle_timeout: seconds without
    a record after which the loop ends; None: it does not. max_unacked: most records of all shards that are fetched and
    not acked. Other options as of Worker, but those about batches. Raises ConfigError.
    """

    _MANY = "Two threads"

    def _be_new(self) -> None:
        self._waits: list[Event] = []
        self._signal_at: float | None = None
        self._signals = ExitStack()

    def __enter__(self) -> Consumer:
        """Start to read. Raises what the start raises: SetupError, WrongStream, …"""
        with ExitStack() as stack:
            self._take_signals(stack)
            self._begin()
            try:
                with self._news() as news:
                    while not (self._has_started or self._is_over or self._is_ending):
                        news.wait()
                        news.clear()
                self._raise_failure()
            except BaseException:
                self._stop_worker()
                raise
            self._signals = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop to read: checkpoint what is acked and release the shards, within `shutdown_grace`.

        In a process that was forked in the block nothing is done.
        """
        if self._is_copy:
            return
        try:
            if not self._is_left:
                self._stop_worker()
        finally:
            # Another thread that closes the consumer may not set handlers; the block that took them is left later.
            if in_main_thread():
                self._signals.close()
        self._left(error)

    def close(self) -> None:
        """Do what leaving the block does, and leave the record at hand open. Called again it does nothing.

        In another thread than the one that entered the block it leaves the signals to that one.
        """
        if not self._is_left:
            self.__exit__(None, None, None)

    def __iter__(self) -> Iterator[Record]:
        return _Loop(self, self._iterate(this_thread()))

    def __next__(self) -> Record:
        return self._next(None)

    def _next(self, loop: int | None) -> Record:
        me = this_thread()
        self._ask(me, loop)
        found = self._take(me, loop)
        if found is None:
            found = self._wait_for_record(me, loop)
        if isinstance(found, Record):
            return found
        raise StopIteration

    def decoded(self, kind: type[Value]) -> Iterator[tuple[Value, Record]]:
        """Return a loop over pairs of a decoded value and its record.

            for order, record in consumer.decoded(Order):
                save(order)

        kind: as the annotation of a function that `handler` takes: a dataclass, a pydantic model, dict, str, … A record
        that does not decode becomes a dead letter at once; without `dead_letters` NotDecoded leaves the loop, and the
        record stays open. Raises ConfigError for a kind that has no decoder.
        """
        return self._decoded(iter(self), self._decoder(kind))

    def _decoded(
        self, records: Iterator[Record], decode: Callable[[Record], Value]
    ) -> Iterator[tuple[Value, Record]]:
        for record in records:
            try:
                value = decode(record)
            except NotDecoded as error:
                self.reject(record, self._reason_of(error))
                continue
            yield value, record

    def reject(self, record: Record, reason: str = "") -> bool:
        """Send a record that can never be processed to the dead letters, then settle it.

        Returns as `ack`. Raises what the destination raises; then the record is not settled, and comes again after a
        pause, also if the loop goes on to the next one. Raises ConfigError without `dead_letters`.
        """
        with self._rejecting(record):
            self._refuse_unusable(record)
            self._refuse_no_letters()
            return self._queue.reject(record, reason)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every open shard has an owner and those of this consumer are being read.

        From then on nothing that is put is missed, even with initial_position="LATEST". False after `timeout` seconds,
        and once the consumer is asked to end. Raises what has stopped the worker.
        """
        until = None if timeout is None else self._runtime.monotonic() + timeout
        while (ready := self._is_ready()) is None:
            left = POLL_SECONDS if until is None else until - self._runtime.monotonic()
            if left <= 0:
                return False
            with self._news() as news:
                news.wait(min(left, POLL_SECONDS))
        return ready

    def _is_same(self, owner: Thread, asker: Thread) -> bool:
        return owner is asker

    def _has_failed(self, owner: Thread) -> bool:
        # Nobody knows of a thread how it ended.
        return False

    def _has_ended(self, owner: Thread) -> bool:
        return not owner.is_alive()

    def _wait_for_record(self, me: Thread, loop: int | None) -> Record | object:
        until = None
        while True:
            with self._news() as news:
                # Once the news cannot be missed any more.
                found = self._take(me, loop)
                if found is not None:
                    return found
                until = self._idle_until(until)
                step = self._step(until)
                if step is not None and step <= 0:
                    self._note_end(Ended.IDLE)
                    return END
                news.wait(step)

    @contextmanager
    def _news(self) -> Iterator[Event]:
        """Give an event that each wake-up sets while the block lasts."""
        news = self._runtime.signal_event()
        self._waits.append(news)
        try:
            yield news
        finally:
            self._waits.remove(news)

    def _wake(self) -> None:
        for news in tuple(self._waits):
            news.set()

    # -- signals -------------------------------------------------------------------------------------------------

    def _take_signals(self, stack: ExitStack) -> None:
        """Take SIGTERM and SIGINT until the block is left, where nobody else wants them."""
        if not in_main_thread():
            return
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        numbers = [number for number, default in defaults.items() if signal.getsignal(number) == default]
        _handlers.enter_context(stop_signals_go_to(_signal_came, numbers))
        _entered.append(self)
        stack.callback(_leave_signals, self)

    def _signal_came(self, number: int) -> None:
        now = self._runtime.monotonic()
        if self._signal_at is not None and now - self._signal_at >= REPEAT_SECONDS:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self._signal_at = now if self._signal_at is None else self._signal_at
        self._end(Ended.SIGNAL)


_entered: list[Consumer] = []
"""Consumers whose block was entered in the main thread of this process: a signal is for each of them."""
_handlers = ExitStack()
"""Gives the signals back to the program once the last of them has left, in whatever order they do."""


def _signal_came(number: int, frame: FrameType | None) -> None:
    try:
        for consumer in tuple(_entered):
            consumer._signal_came(number)
    except BaseException:
        # It breaks off the bodies that this thread is in, which may swallow it and go on.
        for consumer in _entered:
            if consumer._at_hand is not None and consumer._at_hand[1] is this_thread():
                consumer._left_open = consumer._at_hand[0]
        raise


def _leave_signals(consumer: Consumer) -> None:
    # Not there in a process that was forked within the block, whose signals do what they did before it.
    if consumer in _entered:
        _entered.remove(consumer)
    if not _entered:
        _handlers.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_entered.clear)


class _Loop(Iterator[Record]):
    """One loop over a Consumer. A record that it was given is acked for no other one.

    1) An inner loop is left by an exception, with a record at hand; 2) the outer one catches that, and asks for its
    next record: to ack the one before would lose it.
    """

    __slots__ = ("_consumer", "_number")

    def __init__(self, consumer: Consumer, number: int) -> None:
        self._consumer, self._number = consumer, number

    def __iter__(self) -> Iterator[Record]:
        # Also `for` over an iterator that was kept is a loop of its own.
        return iter(self._consumer)

    def __next__(self) -> Record:
        return self._consumer._next(self._number)


def _checked(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ConfigError for options that a consumer decides, or that are about batches."""
    given = dict(options)
    if "processor" in given:
        raise ConfigError(
            f"{kind} takes no processor: the loop over it is one. Do: drop processor=, or use Worker."
        )
    mode = given.pop("checkpoint_mode", "ack")
    if mode != "ack":
        raise ConfigError(
            f"checkpoint_mode={mode!r} contradicts {kind}, whose records are acked one by one. Do: drop it."
        )
    for name, why in _OF_BATCHES.items():
        if name in given and given[name] != Config.__dataclass_fields__[name].default:
            raise ConfigError(f"{name}={given[name]!r} has no meaning with {kind}: {why}. Do: drop it.")
    if unknown := [name for name in given if name not in AppOptions.__optional_keys__]:
        Config.from_options(dict.fromkeys(unknown))
    return given


def _refuse_other_types(auto_ack: object, idle_timeout: object) -> None:
    if not isinstance(auto_ack, bool):
        raise ConfigError(f"auto_ack={auto_ack!r:.80} is neither True nor False.")
    if idle_timeout is None:
        return
    if isinstance(idle_timeout, bool) or not isinstance(idle_timeout, int | float) or not idle_timeout > 0:
        raise ConfigError(
            f"idle_timeout={idle_timeout!r:.80} is no number of seconds above 0. Do: idle_timeout=30, or None: the "
            "iteration does not end."
        )
