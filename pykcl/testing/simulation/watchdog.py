"""Real time of user code inside a simulation: a call that hangs, sleeps or starts a thread fails the simulation.

Simulated time stands still while user code runs. Code that waits for real time would stop everything, and code in a
thread of its own would take another course each time.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import TypeVar

from pykcl.runtime import stack_of
from pykcl.testing.simulation import scheduler
from pykcl.testing.simulation.scheduler import Simulation, SimulationOver

HANG_SECONDS = 10.0
"""Real seconds after which a call counts as hung."""
WAIT_SECONDS = 1.0
"""Real seconds that one call may wait."""
MOST_WAIT_SECONDS = 5.0
"""Real seconds that all calls together may wait."""

_POLL_SECONDS = 0.25
_END_SECONDS = 5.0
# A call that computes gets a share of a core even on a busy machine; one that waits uses next to nothing.
_LARGEST_SHARE_OF_A_WAIT = 0.1
_WAITERS = ("threading.py:", "queue.py:", "selectors.py:", "seam.py:")
"""Files in which user code waits without having called them by name."""
_DO = "Do: give the processor a stand-in for it, or test in real time with the pytest fixture `worker`."

Answer = TypeVar("Answer")


class UserCodeFailed(AssertionError):
    """User code hangs, waits for real time or starts threads inside a simulation. The message names the call."""


class Watchdog:
    """Watches the calls of user code that `during` encloses, in any number of simulated threads."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, float]] = {}
        self._waited = 0.0

    @contextmanager
    def during(self, call: str) -> Iterator[None]:
        """Enclose one call of user code. Raises UserCodeFailed when it has waited for too long."""
        ident = threading.get_ident()
        began, cpu = time.monotonic(), time.thread_time()
        self._calls[ident] = (call, began)
        try:
            yield
        except Exception:
            self._measure(call, time.monotonic() - began, time.thread_time() - cpu)
            raise
        else:
            self._measure(call, time.monotonic() - began, time.thread_time() - cpu)
        finally:
            del self._calls[ident]

    def run(self, body: Callable[[], Answer]) -> Answer:
        """Run `body`, which enters simulations, in a thread of its own; return or raise what it does.

        Raises UserCodeFailed for a call that hangs. A thread that waits for something outside of Python cannot be
        ended: it is left behind, and ends when it returns.
        """
        answers: list[Answer] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run_body() -> None:
            try:
                answers.append(body())
            except BaseException as error:  # noqa: BLE001 - raised again for the caller
                errors.append(error)
            finally:
                done.set()

        with self._threads_refused():
            thread = threading.Thread(target=run_body, name="pykcl-simulation", daemon=True)
            thread.start()
            try:
                self._wait(done)
            except KeyboardInterrupt:
                # Left alone, the simulation would go on behind the tests that follow.
                _abandon(UserCodeFailed("The simulation was interrupted."), None)
                done.wait(_END_SECONDS)
                raise
            thread.join(_END_SECONDS)
        if errors:
            raise errors[0]
        return answers[0]

    def _measure(self, call: str, took: float, used: float) -> None:
        if used >= took * _LARGEST_SHARE_OF_A_WAIT:
            return
        self._waited += took
        if took > WAIT_SECONDS:
            _fail(f"{call} waited for {took:.1f} s of real time, which a simulation cannot shorten. {_DO}")
        if self._waited > MOST_WAIT_SECONDS:
            _fail(
                f"The processor waited for {self._waited:.1f} s of real time in several calls, the last of which is "
                f"{call}. A simulation cannot shorten that. {_DO}"
            )

    def _wait(self, done: threading.Event) -> None:
        while not done.wait(_POLL_SECONDS):
            stuck = self._stuck()
            if stuck is None:
                continue
            ident, message = stuck
            error = UserCodeFailed(message)
            _abandon(error, ident)
            if not done.wait(_END_SECONDS):
                raise error

    def _stuck(self) -> tuple[int, str] | None:
        """The thread of the call that hangs and the complaint, or None. Other calls may wait for that one."""
        now = time.monotonic()
        overdue = {
            ident: call for ident, (call, began) in self._calls.copy().items() if now - began > HANG_SECONDS
        }
        for thread in threading.enumerate() if overdue else ():
            stack = stack_of(thread)
            if thread.ident not in overdue or not stack or stack[-1].endswith(" in _pass_on"):
                continue
            outside = [line for line in stack if not line.startswith(_WAITERS)]
            return thread.ident, (
                f"{overdue[thread.ident]} has not returned for {HANG_SECONDS:g} s of real time. It stands at "
                f"{(outside or stack)[-1]}. {_DO}"
            )
        return None

    @contextmanager
    def _threads_refused(self) -> Iterator[None]:
        """Replace Thread.start while the simulation runs, for calls of user code alone."""
        original, calls = threading.Thread.start, self._calls

        def start(self: threading.Thread) -> None:
            call, _ = calls.get(threading.get_ident(), ("", 0.0))
            caller = sys._getframe(1)
            if call and caller.f_code.co_filename != scheduler.__file__:
                _fail(
                    f"{call} started the thread {self.name!r} at {PurePath(caller.f_code.co_filename).name}:"
                    f"{caller.f_lineno}. A simulation decides by its seed which thread runs, and cannot decide that "
                    f"for threads it does not know. {_DO}"
                )
            original(self)

        threading.Thread.start = start  # type: ignore[method-assign]
        try:
            yield
        finally:
            threading.Thread.start = original  # type: ignore[method-assign]


def _fail(message: str) -> None:
    error = UserCodeFailed(message)
    # Also where the processor, or the worker around it, goes on after any error.
    for simulation in Simulation.running:
        simulation.fail(error)
    raise error


def _abandon(error: UserCodeFailed, stuck: int | None) -> None:
    for simulation in Simulation.running.copy():
        simulation.abandon(error, stuck)
    if stuck is not None:
        # Ends a loop in Python, which would take a core from every test that follows.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(stuck), ctypes.py_object(SimulationOver))
