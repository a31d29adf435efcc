import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parents[1] / "java_peer"))
sys.path.insert(0, str(Path(__file__).parent))

from judged_fleets import fleets
from scenario_fleet import ScenarioFleet
from table_backends import BACKENDS


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def new_fleet(backend: str) -> Iterator[Callable[..., ScenarioFleet]]:
    yield from fleets(backend, seed=0)
