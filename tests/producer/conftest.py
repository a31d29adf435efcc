"""A stream in memory, in trouble or not, and a clock that a test or a simulation moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykcl.local.stream import LocalKinesis
from pykcl.testing.runtime import Simulation
from tests.producer.stream_kit import Clock, Stage


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kinesis(clock: Clock) -> LocalKinesis:
    """One stream "s" with two shards."""
    model = LocalKinesis(clock.utcnow_millis)
    model.create_stream("s", 2)
    return model


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with Simulation(seed=1) as one:
        yield one


@pytest.fixture
def stage(simulation: Simulation) -> Stage:
    return Stage(simulation)
