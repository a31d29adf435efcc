"""Fleets of unmodified workers in simulated time, with every fault we know, under checkers of the guarantees.

`run_simulation(seed)` is one fleet from its first worker through chaos to rest; `python -m pykcl.testing.simulation
--seeds 100` runs many, with a processor of yours, too.
"""

from pykcl.testing.simulation.course import run_simulation
from pykcl.testing.simulation.guarantees import Guarantee, GuaranteeBroken, Outcome

__all__ = ["Guarantee", "GuaranteeBroken", "Outcome", "run_simulation"]
