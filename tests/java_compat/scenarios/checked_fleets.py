"""Fleets for scenarios, checked when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from pykcl.testing.runtime import Simulation
from tests.java_compat.scenarios.scenario_fleet import ScenarioFleet


def fleets(backend: str, seed: int) -> Iterator[Callable[..., ScenarioFleet]]:
    """Makes fleets in simulations of this seed; they are checked for broken guarantees when the test ends."""
    made: list[ScenarioFleet] = []
    with ExitStack() as stack:

        def make(shards: int = 1) -> ScenarioFleet:
            simulation = stack.enter_context(Simulation(seed=seed))
            made.append(ScenarioFleet(simulation, backend, shards))
            return made[-1]

        yield make
        for fleet in made:
            fleet.check()
