"""A Runtime under a seed: real threads of which exactly one runs at a time, and a clock that jumps when all wait.

Every wait, lock, spawn and every call to a simulated service is a switch point at which the seed decides who goes on.
The unmodified worker runs in it: what takes ten seconds of its time takes a millisecond of ours, and the same seed
takes the same course.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType

from pykcl.runtime import Task

EPOCH_MILLIS = 1_790_000_000_000
_LOOK_SECONDS = 0.05


class Deadlock(AssertionError):
    """Every thread waits for something that no thread and no timer will bring. The message names them."""


class SimulationOver(BaseException):
    """Raised inside leftover threads to end them."""


class SimTask:
    """A thread of the simulation; a `runtime.Task`."""

    def __init__(self, simulation: Simulation, name: str, group: str) -> None:
        self._simulation = simulation
        self.name = name
        self.group = group
        self.baton = threading.Semaphore(0)
        self.finished = False
        self.error: BaseException | None = None
        # What it waits for: a predicate that says it may go on, and a time after which it goes on anyway.
        self.until: Callable[[], bool] | None = None
        self.wake_at: float | None = None

    def is_alive(self) -> bool:
        return not self.finished

    def join(self, timeout: float | None = None) -> None:
        self._simulation.block(lambda: self.finished, timeout)


class SimEvent:
    """A `runtime.Event`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._simulation.block(lambda: self._set, timeout)
        return self._set


class SimLock:
    """A `runtime.Lock`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._taken = False

    def __enter__(self) -> None:
        self._simulation.block(lambda: not self._taken, None)
        self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken = False


class Simulation:
    """The scheduler. The thread that makes it is its first task; `runtime(group)` gives a Runtime to one worker.

    Use as a context manager: leaving it ends every leftover thread and raises what a thread died of.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now = 1000.0
        self.rng = random.Random(seed)  # noqa: S311 - reproducible choice
        self.switches = 0
        self._dying = False
        self._dead_groups: set[str] = set()
        self._frozen: dict[str, float] = {}
        self._main = SimTask(self, "main", "main")
        self._current = self._main
        self._tasks: list[SimTask] = [self._main]

    def runtime(self, group: str) -> SimulatedRuntime:
        """A Runtime whose threads belong to `group`, so that they can be killed together."""
        return SimulatedRuntime(self, group)

    def kill(self, group: str) -> None:
        """The threads of this group never run again, as after kill -9."""
        self._dead_groups.add(group)

    def freeze(self, group: str, seconds: float) -> None:
        """The threads of this group stand still for so long, as after kill -STOP; their clock goes on."""
        self._frozen[group] = self.now + seconds

    def is_current(self, task: Task) -> bool:
        return task is self._current

    def sleep(self, seconds: float) -> None:
        """Let the others run for `seconds` of simulated time."""
        self.block(lambda: False, seconds)

    def run_until(self, condition: Callable[[], bool], timeout: float, what: str = "the condition") -> None:
        """Let the others run until `condition()`; AssertionError when `timeout` simulated seconds did not bring it."""
        deadline = self.now + timeout
        while not condition():
            if self.now >= deadline:
                raise AssertionError(f"{what} did not come within {timeout:g} simulated seconds")
            # Looked at by this thread alone, between steps: a condition may itself call what switches threads.
            self.sleep(min(_LOOK_SECONDS, deadline - self.now))

    def switch(self) -> None:
        """A point where another thread may go on first."""
        self.block(lambda: True, None)

    def block(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `until()` or for `timeout` simulated seconds."""
        me = self._current
        me.until = until
        me.wake_at = None if timeout is None else self.now + max(0.0, timeout)
        self._pass_on(me)

    def spawn(self, name: str, group: str, body: Callable[[], None]) -> SimTask:
        task = SimTask(self, name, group)
        self._tasks.append(task)
        threading.Thread(target=self._live, args=(task, body), name=name, daemon=True).start()
        self.switch()
        return task

    def _live(self, task: SimTask, body: Callable[[], None]) -> None:
        task.baton.acquire()
        try:
            if not self._dying:
                body()
        except SimulationOver:
            task.error = None
        except BaseException as error:  # noqa: BLE001 - handed to the test when the simulation ends
            task.error = error
        task.finished = True
        if not self._dying:
            self._choose(task).baton.release()

    def _pass_on(self, me: SimTask) -> None:
        chosen = self._choose(me)
        if chosen is not me:
            chosen.baton.release()
            me.baton.acquire()
        if self._dying and me is not self._main:
            raise SimulationOver
        me.until, me.wake_at = None, None

    def _choose(self, giving_up: SimTask) -> SimTask:
        self.switches += 1
        while True:
            alive = [t for t in self._tasks if not t.finished and t.group not in self._dead_groups]
            ready = [t for t in alive if self._is_ready(t)]
            if ready:
                chosen = ready[self.rng.randrange(len(ready))]
                self._current = chosen
                return chosen
            times = [t.wake_at for t in alive if t.wake_at is not None and t.group not in self._frozen]
            times += self._frozen.values()
            if not times:
                waiting = ", ".join(t.name for t in alive)
                self._current = self._main
                self._main.until = lambda: True
                raise Deadlock(f"nobody can go on: {waiting}")
            self.now = max(self.now, min(times))
            self._frozen = {group: until for group, until in self._frozen.items() if until > self.now}

    def _is_ready(self, task: SimTask) -> bool:
        if task.group in self._frozen:
            return False
        if task.until is None or task.until():
            return True
        return task.wake_at is not None and task.wake_at <= self.now

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dying = True
        for task in self._tasks:
            if task is not self._main and not task.finished:
                task.baton.release()
        errors = [task.error for task in self._tasks if task.error is not None]
        self._tasks = [self._main]
        if errors and error is None:
            raise errors[0]


class SimulatedRuntime:
    """A `runtime.Runtime` for one worker of a simulation."""

    def __init__(self, simulation: Simulation, group: str) -> None:
        self._simulation = simulation
        self._group = group

    def monotonic(self) -> float:
        return self._simulation.now

    def utcnow_millis(self) -> int:
        return EPOCH_MILLIS + int(self._simulation.now * 1000)

    def lock(self) -> SimLock:
        return SimLock(self._simulation)

    def event(self) -> SimEvent:
        return SimEvent(self._simulation)

    def spawn(self, name: str, body: Callable[[], None]) -> SimTask:
        return self._simulation.spawn(name, self._group, body)

    def is_current(self, task: Task) -> bool:
        return self._simulation.is_current(task)

    def random(self) -> random.Random:
        return self._simulation.rng

    def token(self) -> str:
        return f"{self._group}-{self._simulation.rng.getrandbits(32):08x}"
