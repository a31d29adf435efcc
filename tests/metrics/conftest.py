import sys
from pathlib import Path

import pytest

from pykcl.testing.fleet import Fleet
from pykcl.testing.runtime import Simulation

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def simulation():
    with Simulation(7) as made:
        yield made


@pytest.fixture
def fleet(simulation):
    return Fleet(simulation, shards=2)
