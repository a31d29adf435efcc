"""Fixtures of the local AWS's tests: a clock that only moves when told, a stream model on it, a running server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from pykcl.local.server import LocalAws
from pykcl.local.stream import LocalKinesis, ReadSpan

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))


@dataclass
class Clock:
    """Epoch milliseconds; moves only by `advance`."""

    millis: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.millis

    def advance(self, *, seconds: float = 0, hours: float = 0) -> None:
        self.millis += round(seconds * 1000 + hours * 3_600_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kinesis(clock: Clock) -> LocalKinesis:
    """One stream "s" with one shard. One call reads all of it, and the clock stands still: nothing lags."""
    model = LocalKinesis(clock, read_span=ReadSpan(1e9, 1e9), listing_lag=0)
    model.create_stream("s", 1)
    return model


@pytest.fixture
def aws(clock: Clock) -> Iterator[LocalAws]:
    """A running local AWS whose Kinesis goes by `clock`."""
    with LocalAws(now_millis=clock, listing_lag=0) as running:
        yield running


@pytest.fixture
def client(aws: LocalAws) -> Iterator[Callable[..., Any]]:
    """Makes boto3 clients for the running local AWS: client("kinesis", region="eu-west-1")."""
    made = []

    def make(service: str, region: str = "us-east-1") -> Any:
        config = Config(retries={"total_max_attempts": 1}, max_pool_connections=32)
        session = boto3.session.Session(
            aws_access_key_id="local", aws_secret_access_key="local", region_name=region
        )
        made.append(session.client(service, endpoint_url=aws.url, config=config))
        return made[-1]

    yield make
    for one in made:
        one.close()
