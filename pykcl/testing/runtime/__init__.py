"""A Runtime under a seed, in which the unmodified worker runs: one thread at a time, and a clock that jumps."""

from pykcl.testing.runtime.scheduler import (
    EPOCH_MILLIS,
    Deadlock,
    SimTask,
    SimulatedRuntime,
    Simulation,
    ThreadStruck,
    Trace,
)

__all__ = ["EPOCH_MILLIS", "Deadlock", "SimTask", "SimulatedRuntime", "Simulation", "ThreadStruck", "Trace"]
