"""Fixtures for pytest: `kinesis`, streams of a local AWS, `worker`, real workers on them, and `kcl_clock`.

pytest loads this module in every project that has pykcl installed. So it imports nothing but pytest until a fixture is
used, and adds no option, marker or hook. `-p no:pykcl` switches it off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pykcl.local.server import LocalAws
    from pykcl.processor import ProcessorFactory
    from pykcl.testing.clock import SimulatedClock
    from pykcl.testing.local_aws import LocalStreams, RunningWorker


@pytest.fixture(scope="session")
def pykcl_local_aws() -> Iterator[LocalAws]:
    """Give the one local AWS that all tests of this process share. Needs pykcl[local]."""
    try:
        from pykcl.testing import LocalAws
    except ImportError as error:
        pytest.fail(str(error), pytrace=False)
    with LocalAws() as aws:
        yield aws


@pytest.fixture
def kinesis(pykcl_local_aws: LocalAws) -> Iterator[LocalStreams]:
    """Give streams of a local AWS, empty at the start of each test: create_stream, put, split, merge, throttle.

    AWS clients that the test makes talk to it, whatever the environment says, and none can reach AWS.
    """
    from pykcl.testing.local_aws import LocalStreams, confined_to

    with confined_to(pykcl_local_aws.url):
        yield LocalStreams(pykcl_local_aws)
    pykcl_local_aws.reset()


class WorkerStarter:
    """Starts real workers on the streams of `kinesis`."""

    def __init__(self, kinesis: LocalStreams) -> None:
        self._kinesis = kinesis
        self._started: list[RunningWorker] = []

    def __call__(
        self,
        processor: ProcessorFactory | Callable[..., object],
        stream: str,
        *,
        application: str | None = None,
        **options: Any,
    ) -> RunningWorker:
        """Start a worker; it is stopped at the end of the test.

        options: fields of Config. By default the worker starts at TRIM_HORIZON and polls often. Workers with the same
        application, by default "<stream>-test", share the shards.
        """
        from pykcl.testing.local_aws import RunningWorker

        running = RunningWorker(self._kinesis, processor, stream, application or f"{stream}-test", **options)
        self._started.append(running)
        return running

    def stop_all(self) -> None:
        """Stop the workers, the last one first."""
        while self._started:
            self._started.pop().stop()


@pytest.fixture
def worker(kinesis: LocalStreams) -> Iterator[WorkerStarter]:
    """Give a function that starts a real Worker: worker(Orders, "orders").wait_delivered()."""
    starter = WorkerStarter(kinesis)
    yield starter
    starter.stop_all()


@pytest.fixture
def kcl_clock() -> SimulatedClock:
    """Give the clock of `run_processor` and `simulate`: kcl_clock.advance(30) in a processor is work of 30 seconds."""
    from pykcl.testing.clock import SimulatedClock

    return SimulatedClock()
