import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pykcl.testing.simulation import Simulation

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

from mixed_fleet import MixedFleet


@pytest.fixture
def new_fleet(fleet_seed: int) -> Iterator[Callable[..., MixedFleet]]:
    """Fleets that are checked for broken promises when the test ends."""
    made: list[MixedFleet] = []
    with ExitStack() as stack:

        def make(**options: int) -> MixedFleet:
            simulation = stack.enter_context(Simulation(seed=fleet_seed))
            made.append(MixedFleet(simulation, **options))
            return made[-1]

        yield make
        for fleet in made:
            fleet.check()
