"""Fleets in simulation: each test runs the unmodified worker under a seed, in simulated time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pykcl.testing.fleet import Fleet
from pykcl.testing.simulation import Simulation


@pytest.fixture(params=range(3), ids=lambda seed: f"seed{seed}")
def new_fleet(request: pytest.FixtureRequest) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:

        def make(**options: object) -> Fleet:
            simulation = stack.enter_context(Simulation(seed=request.param))
            return Fleet(simulation, **options)

        yield make
