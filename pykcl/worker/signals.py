"""Events of the process that its workers must know of: signals of the system, forks, and the end of the program."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from pykcl.errors import PyKclError
from pykcl.runtime import FORKS, SystemRuntime, before_threads_end, in_main_thread

_LAST_WORDS = 2.0
"""Seconds."""

log = logging.getLogger("pykcl.worker")


class OwnProcess:
    """The process in which this was made."""

    __slots__ = ("_made_after",)

    def __init__(self) -> None:
        self._made_after = len(FORKS)

    @property
    def is_this(self) -> bool:
        # Asked for each record, which is too often for a call of the system.
        return self._made_after == len(FORKS)

    @contextmanager
    def alone_leaves(self, method: str, shard: str) -> Iterator[None]:
        """End a process that is forked within the block, a call of user code, where it would leave the block.

        It ends as without a worker: sys.exit() with its code, an exception with its traceback.
        """
        try:
            yield
        except BaseException as error:
            if not self.is_this:
                _end_the_fork(_code_of(error), partial(_print_error, error))
            raise
        if not self.is_this:
            _end_the_fork(
                1,
                lambda: log.error(
                    "a process that was forked by the processor returned, and is ended; end it with os._exit() "
                    "method=%s shard=%s",
                    method,
                    shard,
                ),
            )


def _code_of(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return (code or 0) & 0xFF if code is None or isinstance(code, int) else 1


def _print_error(error: BaseException) -> None:
    """Print an error as Python does."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif error.code is not None and not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")


def _end_the_fork(code: int, report: Callable[[], object]) -> NoReturn:
    """End the process at once: its threads and sockets belong to the process of the worker.

    What is reported or flushed may run into anything: a stream that is closed, or whose lock another thread had when
    the process was forked, and that thread is not there to give it back. So it has a moment for that, and no more.
    """

    def last_words() -> None:
        with suppress(BaseException):
            report()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()

    try:
        SystemRuntime().spawn("pykcl-fork", last_words).join(_LAST_WORDS)
    finally:
        os._exit(code)


REPEAT_SECONDS = 1.0
"""Signals that come closer together than this are one request. GNU timeout, for one, sends SIGTERM to its child and
then to the group of the child."""

_formers: list[dict[int, Any]] = []
"""What the signals did before each block that lasts."""


@contextmanager
def stop_signals_go_to(
    handler: Callable[[int, FrameType | None], object],
    numbers: Iterable[int] = (signal.SIGTERM, signal.SIGINT),
) -> Iterator[None]:
    """SIGTERM and SIGINT while the block lasts; afterwards, and in processes forked meanwhile, they do what they did
    before. For the main thread only."""
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers}
    _formers.append(before)
    try:
        yield
    finally:
        # Not there in a process that was forked meanwhile and comes by here.
        with suppress(ValueError):
            _formers.remove(before)
        _do(before)


def _do(before: dict[int, Any]) -> None:
    for number, former in before.items():
        if former is not None:  # set by somebody else than Python, who alone could set it again
            signal.signal(number, former)


def _leave_to_the_fork() -> None:
    """Restore the former handlers in a process that was forked from this one.

    A handler would only ask the parent's worker to stop, of which there is nothing there but memory. So whoever forks,
    multiprocessing for one, could not terminate it, and would wait for it for ever when this process ends.
    """
    while _formers:
        _do(_formers.pop())


class LivesWithTheProcess(Protocol):
    """A worker, as the process knows it."""

    @property
    def _is_left(self) -> bool:
        """True for one that runs."""

    def _belong_to_this_process(self) -> None:
        """Make all anew that one process alone may have. Called right after a fork: no lock, no wait."""

    def _end_with_program(self, signals: StopSignals) -> None:
        """Begin to stop, as the program has ended. signals: further requests to stop."""

    def stop(self) -> None:
        """Stop, and wait for that. Raises StopTimedOut."""


_living: WeakSet[LivesWithTheProcess] = WeakSet()
_ends: list[bool] = []
"""Empty until the end of the program is waited for; True once it has come."""


def live_with_the_process(one: LivesWithTheProcess) -> None:
    """Let a worker know of forks, and of the end of the program."""
    _living.add(one)


def end_with_the_program() -> None:
    """Let the workers that still run when the main thread has ended stop as with SIGTERM.

    Daemon threads are cut off when Python ends, and before that no thread can be started any more. Raises PyKclError
    where the main thread has ended.
    """
    if not _ends:
        try:
            before_threads_end(_stop_all)
            _ends.append(False)
        except RuntimeError:
            _ends.append(True)
    if _ends[-1]:
        raise PyKclError(
            "The main thread of this program has ended, and Python starts no threads any more. Do: let the main thread "
            "call run(), or join() after start()."
        )


def _stop_all() -> None:
    _ends.append(True)
    left = [one for one in tuple(_living) if one._is_left]
    if not left:
        return
    signals = StopSignals()
    # The end of the program is the first request; a signal that comes with it is the same one.
    signals.ask(1)
    with signals.heard():
        # All at once, as each may take its whole grace.
        for one in left:
            one._end_with_program(signals)
        for one in left:
            try:
                one.stop()
            except PyKclError as error:
                log.error("%s", error)


def _belong_to_the_fork() -> None:
    _ends[:] = _ends[:1]
    for one in tuple(_living):
        one._belong_to_this_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_fork)
    os.register_at_fork(after_in_child=_belong_to_the_fork)


@contextmanager
def woken_by_signals() -> Iterator[socket.socket]:
    """A socket that gets a byte with each signal, for `select`; for a process that is all ours, which has one such.

    Python writes it as the signal comes, whichever thread the system gave it to, so nobody can oversleep one.
    """
    woken, waking = socket.socketpair()
    with woken, waking:
        woken.setblocking(False)
        waking.setblocking(False)
        if not in_main_thread():
            yield woken
            return
        before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(before)


class StopSignals:
    """Counts. wake: called with each one, by a handler, too: it must not wait for anything, nor take a lock.

    now: a monotonic clock, in seconds. A signal does not count within REPEAT_SECONDS of the last one that did.
    """

    def __init__(
        self, wake: Callable[[], object] = lambda: None, now: Callable[[], float] | None = None
    ) -> None:
        self._wake, self._now = wake, now or SystemRuntime().monotonic
        self._came = 0
        self._counted_at = 0.0
        self._asked = 0

    @property
    def count(self) -> int:
        """Number of requests to stop.

        The larger number, not the sum: Ctrl-C goes to all processes of a terminal, so the same one may both come and be
        passed on, in either order. 1) SIGINT comes here and to the parent; 2) the parent reports it; a sum would be
        two, and break off the batch that the first one lets end.
        """
        return max(self._came, self._asked)

    def ask(self, times: int) -> None:
        """Act as if that many signals had come in all. Called by one thread only; it may be any."""
        self._asked = max(self._asked, times)
        if self._asked:
            self._wake()

    @contextmanager
    def heard(self, first: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Take SIGTERM and SIGINT while the block lasts; not outside of the main thread, where nobody may.

        first: called in the handler with each one, which does not count if it raises; else as `wake`.
        """
        if not in_main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            first()
            self._count()

        with stop_signals_go_to(handle):
            yield

    def _count(self) -> None:
        now = self._now()
        if self._came == 0 or now - self._counted_at >= REPEAT_SECONDS:
            self._came += 1
            self._counted_at = now
        self._wake()
