"""A clock that moves only by waiting, a stream on it, and what is put into and read out of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from pykcl.local.stream import LocalKinesis
from pykcl.testing.memory.stream import MemoryStream

EPOCH = 1_700_000_000_000


class FakeEvent:
    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set and timeout:
            self._runtime.advance(timeout)
        return self._is_set


class FakeRuntime:
    """Waiting takes no time and moves the clock; at_waits: called at every wait, with how many there were."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits = 0
        self.at_wait: Callable[[int], None] = lambda _: None
        self._random = Random(3)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.waits += 1
        assert self.waits < 10_000, "this waits for ever"
        self.at_wait(self.waits)

    def monotonic(self) -> float:
        return self.seconds

    def utcnow_millis(self) -> int:
        return EPOCH + round(self.seconds * 1000)

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def random(self) -> Random:
        return self._random


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def new_runtime() -> type[FakeRuntime]:
    """For who needs more than one in a test."""
    return FakeRuntime


@pytest.fixture
def kinesis(runtime: FakeRuntime) -> LocalKinesis:
    """One stream "s" with two shards."""
    model = LocalKinesis(runtime.utcnow_millis)
    model.create_stream("s", 2)
    return model


@pytest.fixture
def stream(kinesis: LocalKinesis, runtime: FakeRuntime) -> MemoryStream:
    return MemoryStream(kinesis, "s", runtime)
