from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pykcl.testing.runtime import Simulation
from tests.java_compat.mixed_fleet import MixedFleet


@pytest.fixture
def new_fleet(fleet_seed: int) -> Iterator[Callable[..., MixedFleet]]:
    """Fleets that are checked for broken guarantees when the test ends."""
    made: list[MixedFleet] = []
    with ExitStack() as stack:

        def make(**options: int) -> MixedFleet:
            simulation = stack.enter_context(Simulation(seed=fleet_seed))
            made.append(MixedFleet(simulation, **options))
            return made[-1]

        yield make
        for fleet in made:
            fleet.check()
