"""What simulated threads are and wait for: tasks, events and locks of which the scheduler knows every waiter."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pykcl.testing.simulation.scheduler import Simulation


class Deadlock(AssertionError):
    """Every thread waits for something that no thread and no timer will bring. The message names them."""


class SimulationOver(BaseException):
    """Raised inside leftover threads to end them."""


class ThreadStruck(BaseException):
    """What a thread dies of when the simulation strikes it: no `except Exception` stops it."""


class SimTask:
    """A thread of the simulation; a `runtime.Task`."""

    def __init__(self, simulation: Simulation, name: str, group: str) -> None:
        self._simulation = simulation
        self.name = name
        self.group = group
        self.label = f"{group}/{name}"
        self.thread: threading.Thread | None = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self.finished = False
        self.error: BaseException | None = None
        self.struck = False
        # Each wait has a number, so that a timer or a waker that comes too late knows its wait is over.
        self.wait_number = 0
        self.is_waiting = False
        self.joiners: list[tuple[SimTask, int]] = []

    def is_alive(self) -> bool:
        return not self.finished

    def join(self, timeout: float | None = None) -> None:
        if self.finished:
            self._simulation.switch()
        else:
            self._simulation.wait(self.joiners, timeout)


class SimEvent:
    """A `runtime.Event`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._set = False
        self._waiters: list[tuple[SimTask, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiters:
            self._simulation.wake(self._waiters)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            self._simulation.switch()
            return True
        # As threading.Event: who was woken by set() returns True even if the event is cleared before it runs.
        return self._simulation.wait(self._waiters, timeout) or self._set


class SimLock:
    """A `runtime.Lock`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._taken = False
        self._waiters: list[tuple[SimTask, int]] = []

    def __enter__(self) -> None:
        self._simulation.maybe_switch()
        while self._taken:
            self._simulation.wait(self._waiters, None)
        self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken = False
        if self._waiters:
            self._simulation.wake(self._waiters)
