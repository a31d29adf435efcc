"""The stream against a real wire: what no suite over several Kinesis can ask. The rest is in tests/conformance."""

from __future__ import annotations

import boto3
import pytest
from botocore.config import Config

from pykcl.aws.kinesis import KinesisStream
from pykcl.errors import TemporaryError, Throttled
from pykcl.local.errors import AwsError
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry
from pykcl.model.checkpoint import ReadFrom
from pykcl.runtime import SystemRuntime

FIRST = "shardId-000000000000"
HORIZON = ReadFrom("TRIM_HORIZON")


class Clock:
    def __init__(self) -> None:
        self.millis = 1_700_000_000_250

    def __call__(self) -> int:
        return self.millis


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def aws(clock):
    with LocalAws(now_millis=clock) as local:
        yield local


@pytest.fixture(scope="module")
def client(aws):
    found = boto3.client(
        "kinesis",
        endpoint_url=aws.url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield found
    found.close()


@pytest.fixture
def orders(aws, client, request):
    name = request.node.name[:100]
    aws.kinesis.create_stream(name, 1)
    stream = KinesisStream(client, name, SystemRuntime())
    stream.describe()
    yield stream
    aws.fault = None


def test_the_same_page_comes_through_botocores_parser(aws, client, orders):
    aws.kinesis.put_records(orders.name, [Entry(b"one", "a"), Entry(b"two", "b")])
    quick = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10)
    client.meta.events.unregister("before-parse.kinesis.GetRecords", unique_id="pykcl-set-body-aside")
    slow = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10)
    assert quick.records == slow.records
    assert len(slow.records) == 2
    KinesisStream(client, orders.name, SystemRuntime())  # registers the hook again


def test_throttling_and_failures_of_the_service_pass(aws, orders):
    iterator = orders.open(FIRST, HORIZON)
    for code, status, expected in (
        ("ProvisionedThroughputExceededException", 400, Throttled),
        ("InternalFailure", 500, TemporaryError),
    ):

        def fail(*_, code=code, status=status):
            raise AwsError(code, "not now", status)

        aws.fault = fail
        with pytest.raises(expected):
            orders.fetch(FIRST, iterator, 10)
    aws.fault = None
    assert orders.fetch(FIRST, iterator, 10).records == []
