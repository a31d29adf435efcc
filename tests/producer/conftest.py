"""A stream in memory, and a clock that a test moves."""

from __future__ import annotations

import pytest

from pykcl.local.stream import LocalKinesis
from tests.producer.stream_kit import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kinesis(clock: Clock) -> LocalKinesis:
    """One stream "s" with two shards."""
    model = LocalKinesis(clock.utcnow_millis)
    model.create_stream("s", 2)
    return model
