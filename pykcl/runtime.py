"""The seam for time, threads and chance: the only module of the core that imports `time`, `threading`, `random`.

Everything that waits, waits through a Runtime, so that the unmodified worker also runs under a simulated clock.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import PurePath
from queue import Empty, SimpleQueue
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn, Protocol, TypeVar, cast

from pykcl.errors import TemporaryError

log = logging.getLogger("pykcl.runtime")

Key = TypeVar("Key")
Result = TypeVar("Result")

_one_at_a_time = threading.Lock()
_making = threading.RLock()
"""For the parts of a LazyFuture: the handler of a signal may wait for one, too."""

FORKS: list[None] = []
"""One for each fork between the first process and this one."""
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux: as CLOCK_MONOTONIC, but it goes on while the machine is suspended. None on other systems."""

_LONGEST_SLEEP = 0.2 if sys.platform == "win32" else 1.0
"""Seconds for which who waits for a SignalEvent may oversleep a signal; see there."""


class EndsThread(BaseException):
    """Base of what a runtime raises in a thread to end it; no error of user code. Only the runtime itself may catch it.

    In production nothing raises it; a simulation does.
    """


def outcome_of(code: Callable[[], Result]) -> tuple[Result | None, BaseException | None]:
    """Call code of others, and return its result, or whatever it raises.

    Also what is no Exception, such as sys.exit() in a listener: others wait for this thread, which goes on. What ends
    the thread itself is raised.
    """
    try:
        return code(), None
    except EndsThread:
        raise
    except BaseException as error:  # noqa: BLE001 - the caller says what becomes of it
        return None, error


def error_of(code: Callable[[], object]) -> BaseException | None:
    """Call code of others as `outcome_of`, and return whatever it raises; None if it returns."""
    return outcome_of(code)[1]


class Lock(Protocol):
    """A mutex, not reentrant."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class Event(Protocol):
    """A flag one can wait for."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None, /) -> bool:
        """Wait until set, or for `timeout` seconds; return whether it is set."""


class Task(Protocol):
    """A started thread."""

    @property
    def name(self) -> str: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None, /) -> None: ...


Thread = threading.Thread
Future = futures.Future


class LazyFuture(futures.Future[Result]):
    """A future that runs from the start, and has a lock and lists of its own once somebody waits, or adds a callback.

    Most futures of a producer are dropped unasked, and these parts are a kilobyte and a microsecond of each. They are
    made when a method of the standard library first uses one of them; until then the state below is all there is, under
    the lock of all such futures.
    """

    _state = futures._base.RUNNING
    _result: Result | None = None
    _exception: BaseException | None = None
    _is_whole = False
    __init__ = object.__init__

    def __getattr__(self, name: str) -> Any:
        if not self._is_whole:
            parts = {part: value for part, value in vars(futures.Future()).items() if part not in _OF_STATE}
            with _making:
                if not self._is_whole:
                    # In one step: 1) Ctrl-C comes between two parts; 2) who asks again waits with a lock that
                    # nobody notifies.
                    vars(self).update(parts, _is_whole=True)
        return object.__getattribute__(self, name)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle or copy a {type(self).__name__}: its copy would never be done")

    def done(self) -> bool:
        return self._state == futures._base.FINISHED

    def result(self, timeout: float | None = None) -> Result:
        # The state is set last.
        if self._state == futures._base.FINISHED and self._exception is None:
            return cast(Result, self._result)
        try:
            return super().result(timeout)
        finally:
            del self  # the traceback of an error holds this frame: no cycle


_OF_STATE = frozenset({"_state", "_result", "_exception"})


def resolve_unwatched(
    results: Iterable[tuple[LazyFuture[Result], Result]],
) -> list[tuple[LazyFuture[Result], Result]]:
    """Resolve the futures that nobody waits for or listens to; return the others, which `set_result` has to resolve."""
    watched: list[tuple[LazyFuture[Result], Result]] = []
    with _making:
        for future, result in results:
            if future._is_whole or future._state == futures._base.FINISHED:
                watched.append((future, result))
            else:
                future._result = result
                future._state = futures._base.FINISHED
    return watched


class Coroutines:
    """The places of the one event loop of a process, which `pykcl.handlers.loop` alone fills, and of the one thread for
    calls in turn, which `pykcl.worker.turns` alone fills.

    new_loop: makes a loop that waits through the runtime; None: one of asyncio's own does.
    """

    def __init__(self, lock: Lock, new_loop: Callable[[], Any] | None = None) -> None:
        self.lock, self.new_loop = lock, new_loop
        self.loop: Any = None
        self.call_thread: Any = None


class Runtime(Protocol):
    """Threads, waits, clocks and randomness. In production they are real; a simulation derives them from one seed."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; only differences mean anything.

        It goes on while the machine is suspended, if the system has such a clock. A wait stands still meanwhile, so it
        may end later than this clock says, and never sooner.
        """

    def utcnow_millis(self) -> int:
        """Wall clock, epoch milliseconds. For people and for Kinesis; never for deciding who owns a lease."""

    def lock(self) -> Lock: ...
    def event(self) -> Event: ...
    def signal_event(self) -> Event:
        """Return an event that a signal handler may set, too."""

    def spawn(self, name: str, body: Callable[[], None]) -> Task:
        """Start `body` in a thread called `name`. A body that raises is logged with its name, never silent.

        Raises TemporaryError where there is no thread to be had.
        """

    def coroutines(self) -> Coroutines:
        """The place of the event loop that all workers of this process share."""

    def is_current(self, task: Task) -> bool:
        """Return True if the caller runs in that thread."""

    def stack(self, task: Task, *, below: CodeType | None = None) -> tuple[str, ...]:
        """Stack of that thread, innermost frame last, each as "file.py:12 in function"; empty once it has ended.

        below: without the innermost frame of this code, and those that lead to it; all frames if there is none.
        """

    def random(self) -> random.Random:
        """The source of chance, shared by all threads of a process. Each process has another one."""

    def token(self) -> str:
        """A short unguessable text, for names that must be unique per process start."""


class SystemRuntime:
    """Real threads and the real clock."""

    def monotonic(self) -> float:
        # 1) A machine is suspended with a page in hand; 2) its leases go to others; 3) it goes on. With a clock that
        # stood still, it would believe in them for as long as before, and begin further batches.
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    def utcnow_millis(self) -> int:
        return time.time_ns() // 1_000_000

    def lock(self) -> Lock:
        return threading.Lock()

    def event(self) -> Event:
        return threading.Event()

    def signal_event(self) -> Event:
        return SignalEvent()

    def spawn(self, name: str, body: Callable[[], None]) -> Task:
        # Daemon: a processor that never returns must not keep the interpreter alive after a forced stop.
        thread = threading.Thread(target=_guarded, args=(name, body), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            failure = TemporaryError(
                f"Thread {name} could not be started: {error}. Do: raise the limit of threads (ulimit -u, pids.max), "
                "or let fewer shards come here (max_leases)."
            )
        else:
            return thread
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def coroutines(self) -> Coroutines:
        return _COROUTINES

    def is_current(self, task: Task) -> bool:
        return task is threading.current_thread()

    def stack(self, task: Task, *, below: CodeType | None = None) -> tuple[str, ...]:
        return stack_of(task if isinstance(task, threading.Thread) else None, below)

    def random(self) -> random.Random:
        return _RANDOM

    def token(self) -> str:
        return f"{random.SystemRandom().getrandbits(48):012x}"


_COROUTINES = Coroutines(threading.Lock())
_RANDOM = random.Random()  # noqa: S311 - jitter and fair choice, not secrets


def _belong_to_the_fork() -> None:
    """Make anew, in a process that was forked, what a thread of the other one may have locked; and another chance."""
    global _one_at_a_time, _making  # noqa: PLW0603 - the process's
    _making = threading.RLock()
    _one_at_a_time = threading.Lock()
    _COROUTINES.lock = threading.Lock()
    _RANDOM.seed()
    FORKS.append(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_belong_to_the_fork)


class NoForks:
    """A lock of the process under which it does not fork, so that no child begins in the middle of what is done there.

    Reentrant, because the handler of a signal may fork in the thread that has it: there the child does begin within.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._renew
            )

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self) -> None:
        self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            yield


class SignalEvent:
    """An `Event` that the handler of a signal may set.

    With one of `threading` that can stop the process for good: 1) the main thread is about to wait, or wakes up, and
    has the event's lock; 2) the signal comes, and its handler, which runs in the main thread, wants that lock. A
    SimpleQueue promises that a handler may put into it while its own thread does anything with it.

    A wait in the main thread wakes up once a second by itself, because a handler runs only when that thread checks for
    signals: 1) it has checked for the last time before it sleeps; 2) the signal comes, and Python only notes it; 3) it
    sleeps, and nothing interrupts that. Or the system hands the signal to another thread, which interrupts only that.
    On Windows nothing ever interrupts it.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wakes.put(None)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None, /) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = _LONGEST_SLEEP if until is None else min(_LONGEST_SLEEP, until - time.monotonic())
            if left <= 0:
                break
            try:
                self._wakes.get(timeout=left)
            except Empty:
                continue
            if self.is_set():
                # One put wakes one thread: whoever else waits is woken by this one.
                self._wakes.put(None)
        return self._is_set


def parallel_map(
    call: Callable[[Key], Result], keys: Iterable[Key], runtime: Runtime, *, max_threads: int, name: str
) -> dict[Key, Result]:
    """Return `call(key)` by key, called and returned in their order, at most `max_threads` at a time.

    name: prefix of the threads. Raises the first exception of a call; no further call is made then.
    """
    ordered = list(keys)
    waiting = ordered[::-1]
    results: dict[Key, Result] = {}
    failures: list[Exception] = []
    lock = runtime.lock()

    def work() -> None:
        while True:
            with lock:
                if failures or not waiting:
                    return
                key = waiting.pop()
            try:
                result = call(key)
            except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                with lock:
                    failures.append(error)
                return
            with lock:
                results[key] = result

    tasks = [runtime.spawn(f"{name}-{number}", work) for number in range(min(max_threads, len(waiting)))]
    for task in tasks:
        task.join()
    if failures:
        raise failures[0]
    return {key: results[key] for key in ordered}


def before_threads_end(call: Callable[[], None]) -> None:
    """Call it once the main thread has ended, while all other threads still run. Python waits until it returns.

    No thread can be started any more then (Python 3.12 and later). Raises RuntimeError if the main thread has ended.
    """
    # `atexit` comes too late: before that, Python waits for all threads that are no daemons, which a worker in one of
    # them never ends; and the pools of concurrent.futures have closed, which a processor may use for its last batch.
    # They close by the same means, the last one first, so theirs has to be there before ours.
    import concurrent.futures.thread

    del concurrent
    getattr(threading, "_register_atexit", atexit.register)(call)


def in_main_thread() -> bool:
    """Return True if the caller may install signal handlers."""
    return threading.current_thread() is threading.main_thread()


def interrupt_main_thread() -> None:
    """Let the handler of SIGTERM, or of SIGINT on Windows, run in the main thread, whatever that waits in."""
    ident = threading.main_thread().ident
    if sys.platform == "win32" or ident is None:
        _thread.interrupt_main(signal.SIGINT)
    else:
        signal.pthread_kill(ident, signal.SIGTERM)


def this_thread() -> Thread:
    """Return the calling thread. Not its number, which the next thread gets once it has ended."""
    return threading.current_thread()


def stack_of(thread: threading.Thread | None, below: CodeType | None = None) -> tuple[str, ...]:
    """See `Runtime.stack`. Names of files without their folders, and no values: an argument may be a payload."""
    frame = _frames().get(thread.ident or 0) if thread is not None else None
    lines: list[str] = []
    while frame is not None and frame.f_code is not below:
        code = frame.f_code
        lines.append(f"{PurePath(code.co_filename).name}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return tuple(reversed(lines))


def _frames() -> dict[int, FrameType]:
    """Return the frame of each thread, without a collection of garbage meanwhile.

    Python 3.11 and older can stop for good there, with all their threads (python/cpython#106883): 1) the interpreter
    locks its list of threads; 2) making the frames is an allocation too many, and garbage is collected; 3) in it is a
    thread's local value, and to drop that the list is locked once more.
    """
    with _one_at_a_time:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


def _guarded(name: str, body: Callable[[], None]) -> None:
    try:
        body()
    except Exception as error:
        log.error("thread died thread=%r error=%s", name, type(error).__name__)
        raise
