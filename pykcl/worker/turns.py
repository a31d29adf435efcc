"""Turns: one call at a time of the handlers that are not thread-safe, and all of them in one thread of the process."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from weakref import WeakKeyDictionary

from pykcl.runtime import (
    Coroutines,
    EndsThread,
    Event,
    Runtime,
    SystemRuntime,
    Task,
    in_main_thread,
    interrupt_main_thread,
    this_thread,
)
from pykcl.worker.signals import OwnProcess

log = logging.getLogger("pykcl.worker")

_TURN_POLL = 0.1
"""Seconds between two checks of the lease, and for a stop, while a call waits for its turn."""
_BREAK_OFF_AGAIN = 1.0
"""Seconds after which a call that has swallowed that it is broken off is broken off again."""

Standing = tuple[str, tuple[str, ...]]
"""Where a call stands: the name of its thread, and its stack as in `Runtime.stack`."""


class StopAsked(Exception):
    """The lease worker is to stop, and its call of process_records has not begun, or was broken off."""


class CallBrokenOff(BaseException):
    """Raised in a handler in the main thread when a stop waits no longer for its call."""


class _Call:
    """One call. runtime: of the worker that waits for it. Not is_done: it has raised, or nobody knows what it did."""

    def __init__(self, body: Callable[[], object], context: Context, runtime: Runtime) -> None:
        self.body, self.context, self.runtime, self.ended = body, context, runtime, runtime.event()
        self.error: BaseException | None = None
        self.is_done = self.is_broken_off = False

    def wait(self) -> None:
        """Wait until it has ended. Raises what it raises, and StopAsked if it was broken off."""
        self.ended.wait()
        error, self.error = self.error, None
        try:
            if error is not None and not self.is_broken_off:
                raise error
            if not self.is_done or self.is_broken_off:
                # 1) A stop breaks off the call; 2) the handler swallows that; 3) it returns, and its work is not done.
                raise StopAsked
        finally:
            del error  # its traceback holds this frame: no cycle


class CallThread:
    """The thread that makes the calls, as the threads of the shards see it. Made by `Turns` alone.

    It belongs to the thread that calls `serve`, with all that libraries keep for a thread: context variables, the event
    loop, connections of sqlite3. task: that thread. is_own: it was started for the calls, and ends with the process.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # In the main thread the handlers of signals run only while it wakes up now and then.
        self._news = runtime.signal_event() if in_main_thread() else runtime.event()
        self._own_process = OwnProcess()
        self._handed: _Call | None = None
        self._running: _Call | None = None
        self._is_over = False
        # With each one itself, whose number another one would have once it is gone.
        self._contexts: dict[int, tuple[Context, Context]] = {}
        self.is_own, self.is_main = False, in_main_thread()
        self.task: Task = this_thread()

    @property
    def is_here(self) -> bool:
        """False in a process that was forked from the one that has the thread, and once that has ended."""
        return self._own_process.is_this and self.task.is_alive()

    def hand(self, call: _Call) -> None:
        """Let it make the call next. Who hands it over has the turn."""
        self._handed = call
        self._news.set()

    @property
    def is_free(self) -> bool:
        return self._handed is None and self._running is None

    def serve(self) -> None:
        """Make the calls until `end`, in the thread of the caller."""
        while not self._is_over or not self.is_free:
            call = None  # also since the records of the last one would be kept until the next one
            try:
                self._news.wait()
                self._news.clear()
                call, self._handed = self._handed, None
                if call is not None:
                    self._make(call)
            except EndsThread:
                raise
            except BaseException as error:  # noqa: BLE001 - the alarm of a call that has returned, say
                log.error(
                    "a signal handler raised between two calls of the handler error=%s", type(error).__name__
                )
                if call is not None and not call.ended.is_set():
                    # Just before the call, or behind it: whoever waits for it would do so for ever.
                    call.error = error
                    call.ended.set()

    def _make(self, call: _Call) -> None:
        try:
            self._running = call
            if self.is_own:
                self._context(call.context).run(call.body)
            else:
                call.body()
            call.is_done = True
        except EndsThread:
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; the caller raises it
            call.error = error
        finally:
            self._running = None
            call.ended.set()

    def is_called_by(self, worker: Runtime) -> bool:
        """Return True if the caller of this runs in a call for the worker with that runtime."""
        call = self._running
        return call is not None and call.runtime is worker and self._runtime.is_current(self.task)

    def _context(self, given: Context) -> Context:
        """Return the copy of this thread, which keeps what calls set. Another process of a simulation has its own."""
        return self._contexts.setdefault(id(given), (given, given.copy()))[1]

    def end(self, worker: Runtime | None = None) -> None:
        """Let `serve` return. A call for the worker with that runtime is broken off, if a signal can do that."""
        self._is_over = True
        self._news.set()
        while (call := self._running) is not None and call.runtime is worker:
            call.is_broken_off = True
            if self.is_main:
                interrupt_main_thread()
            call.ended.wait(_BREAK_OFF_AGAIN)

    def on_signal(self) -> None:
        """Raise CallBrokenOff in a call that is to end. Called first by the handler of a stop signal."""
        call = self._running
        if call is not None and call.is_broken_off:
            raise CallBrokenOff

    def standing(self) -> Standing:
        """Return where the call stands. Called by another thread."""
        return self.task.name, self._runtime.stack(self.task, below=CallThread._make.__code__)


class Turns:
    """One call of process_records at a time in a process, among all processors with a `Turn` of it; first come, first
    served.

    A lock would not do: the thread that lets it go takes it again before one that waits for it has woken up.
    """

    def __init__(self) -> None:
        self._lock = SystemRuntime().lock()
        # By the process, which its place of the event loop stands for. A simulation has several, and those that have
        # died in a call of theirs.
        self._queues: WeakKeyDictionary[Coroutines, deque[Event]] = WeakKeyDictionary()

    @contextmanager
    def taken(self, runtime: Runtime, pause: Callable[[float], bool]) -> Iterator[None]:
        """Wait for the turn, and have it in the block. pause: polled meanwhile; as that of ProcessorCalls.

        Raises StopAsked, and LeaseLostError as `pause` does.
        """
        mine = runtime.event()
        with self._lock:
            queue = self._queues.setdefault(runtime.coroutines(), deque())
            queue.append(mine)
            if queue[0] is mine:
                mine.set()
        try:
            while not mine.wait(_TURN_POLL):
                if pause(0.0):
                    raise StopAsked
            yield
        finally:
            with self._lock:
                queue.remove(mine)
                if queue:
                    queue[0].set()

    def count(self, runtime: Runtime) -> int:
        """Return how many have the turn, or wait for it, in the process of this runtime."""
        with self._lock:
            return len(self._queues.get(runtime.coroutines(), ()))

    @contextmanager
    def served(self, runtime: Runtime) -> Iterator[CallThread | None]:
        """Let this thread make the calls of the process, by `CallThread.serve` in the block; None: another one does.

        It takes precedence over a thread that was started for the calls, which has them again after the block.
        """
        place, thread = runtime.coroutines(), CallThread(runtime)
        with place.lock:
            former: CallThread | None = place.call_thread
            if former is None or not former.is_here or (former.is_own and former.is_free):
                place.call_thread = thread
        if place.call_thread is not thread:
            yield None
            return
        try:
            yield thread
        finally:
            thread.end()
            while place.call_thread is thread:
                # Of another worker: what it has handed over is still to be done here.
                thread.serve()
                with place.lock:
                    if thread.is_free:
                        place.call_thread = former

    @staticmethod
    def thread(runtime: Runtime, call: _Call, *, starts: bool) -> CallThread | None:
        """Hand the call to the thread of the process, and return that; None if there is none. starts: start one."""
        place = runtime.coroutines()
        with place.lock:
            found: CallThread | None = place.call_thread
            if found is None or not found.is_here:
                if not starts:
                    return None
                found = CallThread(runtime)
                found.is_own, found.is_main = True, False
                found.task = runtime.spawn("pykcl-calls", found.serve)
                place.call_thread = found
            # Under the lock: 1) a thread is found that serves; 2) it leaves; 3) nobody makes the call.
            found.hand(call)
            return found


class Turn:
    """The turn of one processor, as its attribute `turn`: the worker takes it before each call of process_records."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._worker: Runtime | None = None
        self._is_taken = False
        self._thread: CallThread | None = None

    @contextmanager
    def taken(self, runtime: Runtime, pause: Callable[[float], bool] | None = None) -> Iterator[None]:
        """Take a turn as `Turns.taken` does; at once if the same call has it already. pause: given by a worker."""
        if self._is_taken:
            yield
            return
        with self._turns.taken(runtime, pause or (lambda _: False)):
            self._is_taken, self._worker = True, None if pause is None else runtime
            try:
                yield
            finally:
                self._is_taken = False

    def call(self, body: Callable[[], object], context: Context) -> None:
        """Make a call in the thread of the process, and wait for it. Raises what it raises, and StopAsked.

        context: for a thread that was started for the calls. Without a worker, and without a thread that serves, the
        call is made here: a redrive does that.
        """
        runtime = self._worker or SystemRuntime()
        call = _Call(body, context, runtime)
        thread = self._turns.thread(runtime, call, starts=self._worker is not None)
        if thread is None:
            body()
            return
        self._thread = thread
        try:
            call.wait()
        finally:
            self._thread = None

    def standing(self) -> Standing | None:
        """Return where the call stands that runs; None: in the thread of its shard. Called by another thread."""
        thread = self._thread
        return None if thread is None else thread.standing()


def turn_of(processor: object) -> Turn | None:
    """Return what calls of a processor wait for; None for nothing, and for an attribute that is something else."""
    found = getattr(processor, "turn", None)
    return found if isinstance(found, Turn) else None


def is_called_by(worker: Runtime) -> bool:
    """Return True in a handler that is called in turn for the worker with that runtime."""
    thread: CallThread | None = worker.coroutines().call_thread
    return thread is not None and thread.is_called_by(worker)


def turns_of(factory: object) -> Turns | None:
    """Return the turns that all processors of a factory take; None for another factory."""
    found = getattr(factory, "turns", None)
    return found if isinstance(found, Turns) else None
