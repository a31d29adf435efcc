"""An event loop of asyncio in simulated time: its waits let the other threads of a simulation go on."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from pykcl.testing.runtime.scheduler import SimEvent, SimulatedRuntime, Simulation

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Waits for the wake-ups of the loop alone: nothing of the outside world ends a simulated wait."""

    def __init__(self, news: SimEvent, simulation: Simulation) -> None:
        super().__init__()
        self._news, self._simulation = news, simulation

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            self._simulation.maybe_switch()
        else:
            self._news.wait(timeout)
        # What it announces stands in the loop's list by now, which is read after this.
        self._news.clear()
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Sleeps and timeouts take simulated time. Sockets, pipes and child processes never answer."""

    def __init__(self, simulation: Simulation, runtime: SimulatedRuntime) -> None:
        self._runtime, self._news = runtime, runtime.event()
        super().__init__(_Selector(self._news, simulation))

    def time(self) -> float:
        return self._runtime.monotonic()

    def _write_to_self(self) -> None:
        self._news.set()


def run_coroutine(
    simulation: Simulation, runtime: SimulatedRuntime, main: Coroutine[Any, Any, Result]
) -> Result:
    """Do what `asyncio.run` does, in simulated time."""
    loop = SimulatedLoop(simulation, runtime)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
