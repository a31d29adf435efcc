"""Real time of user code inside a simulation: a call that hangs or sleeps fails the simulation.

Simulated time stands still while user code runs, and code that waits for real time stops everything. Threads that a
call starts and waits for are a part of it. One of them that called pykcl would run beside the simulated threads, in
another order each time, and is refused.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pykcl.runtime import stack_of
from pykcl.testing.runtime.scheduler import Simulation, SimulationOver

HANG_SECONDS = 10.0
"""Real seconds after which a call counts as hung."""
WAIT_SECONDS = 1.0
"""Real seconds that one call may wait."""

_POLL_SECONDS = 0.25
_END_SECONDS = 5.0
# A call that computes, in threads of its own too, gets a share of a core. On a busy machine it also waits for one,
# which is no wait of its own.
_LARGEST_SHARE_OF_A_WAIT = 0.1
_LEAST_SHARE_OF_ITS_OWN = 0.1
_WAITERS = ("threading.py:", "queue.py:", "selectors.py:", "_base.py:", "determinism.py:")
"""Files in which user code waits without having called them by name."""
_REAL_TIME = "test in real time with the pytest fixture `worker`."
_DO = f"Do: give the processor a stand-in for it, or {_REAL_TIME}"

Answer = TypeVar("Answer")


class UserCodeFailed(AssertionError):
    """User code inside a simulation hangs, waits for real time or uses pykcl in a thread of its own."""


@dataclass(slots=True)
class _Call:
    """delays: seconds for which all threads had got no core when the poll first saw the call, and when it last did."""

    name: str
    since: float
    delays: tuple[float, float] | None = None

    def took(self, now: float) -> float:
        """Return the seconds since its begin, without those in which a thread was ready to run, and got no core.

        A tenth of them at least: on a busy machine several threads wait for a core at once, and the sum of their times
        grows faster than time.
        """
        passed = now - self.since
        delayed = self.delays[1] - self.delays[0] if self.delays else 0.0
        return max(passed - delayed, passed * _LEAST_SHARE_OF_ITS_OWN)


class Watchdog:
    """Watches the calls of user code that `during` encloses, in any number of simulated threads."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._delays: dict[int, float] = {}

    @contextmanager
    def during(self, call: str) -> Iterator[None]:
        """Enclose one call of user code. Raises UserCodeFailed when it has waited for too long."""
        ident = threading.get_ident()
        running, cpu = _Call(call, time.monotonic()), time.process_time()
        self._calls[ident] = running
        try:
            yield
        except Exception:
            self._measure(running, time.process_time() - cpu)
            raise
        else:
            self._measure(running, time.process_time() - cpu)
        finally:
            del self._calls[ident]

    def refuse_other_threads(self, call: str, does: str = "uses its checkpointer") -> None:
        """Raise UserCodeFailed in a thread that pykcl has not called, and end the simulation."""
        if threading.get_ident() not in self._calls:
            _fail(
                f"{call} {does} in the thread {threading.current_thread().name!r}. A simulation does "
                f"not decide when that thread runs, and would take another course each time. "
                f"Do: checkpoint and ack in the thread that pykcl calls, or {_REAL_TIME}"
            )

    def run(self, body: Callable[[], Answer]) -> Answer:
        """Run `body`, which enters simulations, in a thread of its own; return or raise what it does.

        Raises UserCodeFailed for a call that hangs. A thread that waits for something outside of Python cannot be
        ended: it is left over, and ends when it returns.
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

        thread = threading.Thread(target=run_body, name="pykcl-simulation", daemon=True)
        thread.start()
        try:
            self._wait(done)
        except KeyboardInterrupt:
            # Left alone, the simulation would run on during the tests that follow.
            _abandon(UserCodeFailed("The simulation was interrupted."), None)
            done.wait(_END_SECONDS)
            raise
        thread.join(_END_SECONDS)
        if errors:
            raise errors[0]
        return answers[0]

    def _measure(self, call: _Call, used: float) -> None:
        took = call.took(time.monotonic())
        if took > WAIT_SECONDS and used < took * _LARGEST_SHARE_OF_A_WAIT:
            _fail(
                f"{call.name} waited for {took:.1f} s of real time, which a simulation cannot shorten. {_DO}"
            )

    def _wait(self, done: threading.Event) -> None:
        while not done.wait(_POLL_SECONDS):
            self._note_delays()
            stuck = self._stuck()
            if stuck is None:
                continue
            ident, message = stuck
            error = UserCodeFailed(message)
            _abandon(error, ident)
            if not done.wait(_END_SECONDS):
                raise error

    def _note_delays(self) -> None:
        if not self._calls:
            return
        self._delays.update(run_delays())
        now = sum(self._delays.values())
        for call in tuple(self._calls.values()):
            call.delays = (call.delays[0] if call.delays else now, now)

    def _stuck(self) -> tuple[int, str] | None:
        """Return the thread of the call that hangs and the complaint, or None. Other calls may wait for that one."""
        now = time.monotonic()
        overdue = {
            ident: call.name for ident, call in self._calls.copy().items() if call.took(now) > HANG_SECONDS
        }
        # Calls of a handler that is not thread-safe wait for one simulated thread that makes them all.
        callee = Simulation.running[-1].running_thread if overdue and Simulation.running else None
        for thread in threading.enumerate() if overdue else ():
            stack = stack_of(thread)
            is_one = thread.ident in overdue or thread is callee
            if not is_one or not stack or stack[-1].endswith(" in _pass_on"):
                continue
            outside = [line for line in stack if not line.startswith(_WAITERS)]
            name = overdue.get(thread.ident or 0) or next(iter(overdue.values()))
            return thread.ident or 0, (
                f"{name} has not returned for {HANG_SECONDS:g} s of real time. It stands at "
                f"{(outside or stack)[-1]}. {_DO}"
            )
        return None


def run_delays() -> dict[int, float]:
    """Return for each thread of this process the seconds for which it was ready to run and got no core; Linux only."""
    delays: dict[int, float] = {}
    for thread in threading.enumerate():
        native = thread.native_id or 0
        with suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/self/task/{native}/schedstat").read_text("ascii")
            delays[native] = int(text.split()[1]) / 1e9
    return delays


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
