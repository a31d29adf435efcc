"""What the tests of commands share: a local AWS, and an environment that leads to it."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from service_kit import lead_to

from pykcl.local.server import LocalAws


@pytest.fixture
def aws():
    """A local AWS with the stream "orders" of two shards. A reshard is listed at once, however soon a command asks."""
    with LocalAws(listing_lag=0) as running:
        running.kinesis.create_stream("orders", 2)
        yield running


@pytest.fixture
def dynamodb(aws, monkeypatch):
    """A client of that AWS; the environment leads there, too."""
    import boto3

    lead_to(monkeypatch, aws)
    with closing(boto3.client("dynamodb")) as client:
        yield client
