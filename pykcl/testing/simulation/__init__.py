"""Fleets of unmodified workers in simulated time, through faults, under checkers of what a processor is guaranteed.

`run_simulation(seed)` is one fleet from its first worker through chaos to the delivery of every record. Other hosts,
faults and checkers come with a subclass of `course.Course`.
"""

from pykcl.testing.simulation.course import run_simulation
from pykcl.testing.simulation.guarantees import Guarantee, GuaranteeBroken, Outcome

__all__ = ["Guarantee", "GuaranteeBroken", "Outcome", "run_simulation"]
