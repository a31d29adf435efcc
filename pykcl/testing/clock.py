"""The clock of a simulation for the code under test: work that takes time without waiting for it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from pykcl.errors import ConfigError
from pykcl.testing.runtime.scheduler import Simulation
from pykcl.testing.runtime.watchdog import UserCodeFailed


class SimulatedClock:
    """The clock of `run_processor` and `simulate`, for use in the methods of a processor.

    Simulated time jumps ahead by itself whenever all threads of the simulation wait. All seconds are those of the clock
    of the worker that makes the call. Raises UserCodeFailed in a thread that no simulation runs.
    """

    def now(self) -> datetime:
        """Return the simulated time of day, aware, in UTC."""
        simulation = _current("now")
        millis = simulation.clock(simulation.current_group).wall_millis(simulation.now)
        return datetime.fromtimestamp(millis / 1000, tz=UTC)

    def monotonic(self) -> float:
        """Return simulated seconds, for measuring how long something takes."""
        simulation = _current("monotonic")
        return simulation.clock(simulation.current_group).monotonic(simulation.now)

    def advance(self, seconds: float) -> None:
        """Let the call that runs now take so long: heartbeats, other shards and other workers go on meanwhile."""
        _refuse_no_seconds("advance", seconds)
        simulation = _current("advance")
        simulation.sleep(simulation.clock(simulation.current_group).real_seconds(seconds))

    def freeze(self, seconds: float) -> None:
        """Let the whole process stand still for so long, as a paused machine does: it sends no heartbeat."""
        _refuse_no_seconds("freeze", seconds)
        simulation = _current("freeze")
        simulation.freeze(simulation.current_group, seconds)
        simulation.switch()


def _current(method: str) -> Simulation:
    """Return the simulation that runs the calling thread."""
    if not Simulation.running or not Simulation.running[-1].runs_this_thread():
        raise UserCodeFailed(
            f"The simulated clock was asked for {method}() in a thread that no simulation runs. Do: call it in a "
            "method of a processor, during run_processor or simulate, not in a thread that the processor has started."
        )
    return Simulation.running[-1]


def _refuse_no_seconds(method: str, seconds: Any) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{method}({seconds!r:.80}) is not a number of seconds from 0. Do: give one.")
