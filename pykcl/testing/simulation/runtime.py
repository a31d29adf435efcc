"""The Runtime that a simulated worker is given instead of real threads and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING

from pykcl.runtime import Task, stack_of
from pykcl.testing.simulation.clocks import GroupClock
from pykcl.testing.simulation.tasks import SimEvent, SimLock, SimTask, SimulationOver, ThreadStruck

if TYPE_CHECKING:
    from pykcl.testing.simulation.scheduler import Simulation


class SimulatedRuntime:
    """A `runtime.Runtime` for one worker of a simulation."""

    ends_threads_by: tuple[type[BaseException], ...] = (SimulationOver, ThreadStruck)

    def __init__(self, simulation: Simulation, group: str, clock: GroupClock, seed: str) -> None:
        self._simulation = simulation
        self._group = group
        self._clock = clock
        # Of its own, so that what one worker draws does not change what another is dealt.
        self._random = random.Random(seed)  # noqa: S311 - reproducible

    def monotonic(self) -> float:
        return self._clock.monotonic(self._simulation.now)

    def utcnow_millis(self) -> int:
        return self._clock.wall_millis(self._simulation.now)

    def lock(self) -> SimLock:
        return SimLock(self._simulation)

    def event(self) -> SimEvent:
        return SimEvent(self._simulation)

    def signal_event(self) -> SimEvent:
        return self.event()

    def spawn(self, name: str, body: Callable[[], None]) -> SimTask:
        return self._simulation.spawn(name, self._group, body)

    def is_current(self, task: Task) -> bool:
        return self._simulation.is_current(task)

    def stack(self, task: Task, *, below: CodeType | None = None) -> tuple[str, ...]:
        return stack_of(task.thread if isinstance(task, SimTask) else None, below)

    def random(self) -> random.Random:
        return self._random

    def token(self) -> str:
        return f"{self._group}-{self._random.getrandbits(32):08x}"
