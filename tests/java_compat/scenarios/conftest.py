from collections.abc import Callable, Iterator

import pytest

from tests.java_compat.scenarios.checked_fleets import fleets
from tests.java_compat.scenarios.scenario_fleet import ScenarioFleet
from tests.java_compat.scenarios.table_backends import BACKENDS


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def new_fleet(backend: str) -> Iterator[Callable[..., ScenarioFleet]]:
    yield from fleets(backend, seed=0)
