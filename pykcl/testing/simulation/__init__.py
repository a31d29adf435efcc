"""A Runtime under a seed, in which the unmodified worker runs: one thread at a time, and a clock that jumps."""

from pykcl.testing.simulation.clocks import EPOCH_MILLIS
from pykcl.testing.simulation.runtime import SimulatedRuntime
from pykcl.testing.simulation.scheduler import Simulation
from pykcl.testing.simulation.tasks import Deadlock, SimTask, ThreadStruck
from pykcl.testing.simulation.trace import Trace

__all__ = ["EPOCH_MILLIS", "Deadlock", "SimTask", "SimulatedRuntime", "Simulation", "ThreadStruck", "Trace"]
