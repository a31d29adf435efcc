"""Producer over boto3 and sockets, on the local AWS; and at the end of a program that forgot it."""

import asyncio
import os
import subprocess
import sys
import threading
from base64 import b64decode
from collections import Counter
from contextlib import closing

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber

from pykcl import AsyncProducer, NewRecord, Producer, PutFailed, RecordRefused, SetupError, StreamMissing
from pykcl.aws.kinesis import KinesisStream
from pykcl.local import local_environment
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws
from pykcl.runtime import SystemRuntime
from tests.producer.stream_kit import seen_by_consumers


@pytest.fixture(scope="module")
def aws():
    with LocalAws(listing_lag=0) as running:
        yield running


@pytest.fixture
def orders(aws):
    """A new stream of two shards."""
    aws.kinesis.create_stream("orders", 2)
    yield "orders"
    aws.faults.reset()
    aws.kinesis.delete_stream("orders")


@pytest.fixture
def client(aws):
    with closing(
        boto3.client(
            "kinesis",
            region_name="eu-west-1",
            endpoint_url=aws.url,
            aws_access_key_id="local",
            aws_secret_access_key="local",
            config=Config(retries={"total_max_attempts": 1}, read_timeout=2),
        )
    ) as one:
        yield one


def test_what_was_put_is_read_by_aws_kinesis_agg(aws, orders, client):
    deaggregator = pytest.importorskip("aws_kinesis_agg.deaggregator")
    with Producer(orders, clients={"kinesis": client}) as producer:
        futures = [producer.put(b"%d" % at, f"key-{at % 7}", at * 2**118) for at in range(1000)]
    read = Counter()
    for shard in client.list_shards(StreamName=orders)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=orders, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = client.get_records(ShardIterator=iterator)["Records"]
        assert len(records) < 20
        for user in deaggregator.iter_deaggregate_records(records, "Boto3"):
            read[int(b64decode(user["kinesis"]["data"]))] += 1
    assert read == dict.fromkeys(range(1000), 1)
    assert {future.result(0).attempts for future in futures} == {1}
    assert seen_by_consumers(aws.kinesis, orders).total() == 1000


@pytest.mark.parametrize("kind", ["throttle", "error", "error-after", "reset-before", "reset-after"])
def test_each_fault_of_the_wire_is_sent_again_and_doubt_is_said(aws, orders, client, kind):
    with Producer(orders, clients={"kinesis": client}, linger=0.0) as producer:
        aws.faults.replace([FaultRule(kind, "kinesis", "PutRecords", times=1)])
        result = producer.put(b"a").result(30)
    assert result.attempts == 2
    assert result.perhaps_twice == (kind != "throttle")
    assert result.perhaps_twice or seen_by_consumers(aws.kinesis, orders)[b"a"] == 1
    assert (seen_by_consumers(aws.kinesis, orders)[b"a"] == 2) == kind.endswith("after")


def test_many_tasks_put_and_await_over_a_wire_that_fails(aws, orders, client):
    perhaps_twice = set()

    async def program(producer, name):
        futures = {data: await producer.put(data) for data in (b"%s %d" % (name, at) for at in range(250))}
        for data, future in futures.items():
            # On a busy machine an answer may come after the client's patience.
            if (await future).perhaps_twice:
                perhaps_twice.add(data)

    async def main():
        async with AsyncProducer(orders, clients={"kinesis": client}, max_pending_bytes=2**16) as producer:
            kinds = ("throttle", "error", "reset-before")
            aws.faults.replace([FaultRule(kind, "kinesis", "PutRecords", times=1) for kind in kinds])
            await asyncio.gather(*(program(producer, name) for name in (b"a", b"b", b"c", b"d")))
            await producer.flush()
            assert producer.pending == 0

    before = threading.enumerate()
    asyncio.run(main(), debug=True)
    assert set(threading.enumerate()) <= set(before), "no thread is left"
    seen = seen_by_consumers(aws.kinesis, orders)
    assert seen.keys() == {b"%s %d" % (name, at) for name in (b"a", b"b", b"c", b"d") for at in range(250)}
    assert {data for data, times in seen.items() if times > 1} <= perhaps_twice


def test_a_server_that_has_gone_ends_in_a_report_of_every_record(orders):
    with LocalAws() as other:
        other.kinesis.create_stream("orders", 1)
        options = {"region_name": "eu-west-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = boto3.client("kinesis", endpoint_url=other.url, **options)
        producer = Producer("orders", clients={"kinesis": client})
        producer.start()
        producer.put(b"in").result(30)
    futures = [producer.put(b"%d" % at) for at in range(100)]
    with pytest.raises(PutFailed) as left:
        producer.close(timeout=0.5)
    assert left.value.count == 100
    assert all(future.exception(0) is not None for future in futures)
    client.close()


def test_a_stream_that_is_not_there_and_a_record_that_is_too_large_are_named(orders, client):
    with pytest.raises(StreamMissing, match="no stream 'none'"):
        Producer("none", clients={"kinesis": client}).start()
    with (
        Producer(orders, clients={"kinesis": client}) as producer,
        pytest.raises(RecordRefused, match="at most 1048576"),
    ):
        producer.put(b"x" * 2**20, "k")


def test_a_stream_that_has_gone_and_a_missing_permission_are_named_by_the_put(orders, client):
    record = NewRecord(b"hunter2", "hunter2")
    with pytest.raises(StreamMissing, match="no stream 'none'"):
        KinesisStream(client, "none", SystemRuntime()).put([record])
    stubber = Stubber(client)
    stubber.add_client_error(
        "put_records", "AccessDeniedException", "not authorized to perform: kinesis:PutRecords"
    )
    with stubber, pytest.raises(SetupError, match=r"kinesis:PutRecords.*policy of this producer") as denied:
        KinesisStream(client, orders, SystemRuntime(), who="this producer").put([record])
    assert "hunter2" not in str(denied.value)


PROGRAM = """
from pykcl import Producer
producer = Producer("orders", linger=60.0)
producer.start()
producer.put(b"forgotten", "k")
"""
ASYNC_PROGRAM = """
import asyncio
from pykcl import AsyncProducer
async def main():
    producer = AsyncProducer("orders", linger=60.0)
    await producer.start()
    await producer.put(b"forgotten", "k")
asyncio.run(main())
"""


@pytest.mark.parametrize("source", [PROGRAM, ASYNC_PROGRAM], ids=["threads", "tasks"])
def test_a_program_that_ends_without_close_still_puts_what_it_has(aws, orders, source):
    environment = {**os.environ, **local_environment(aws.url)}
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, seen_by_consumers(aws.kinesis, orders)) == (0, {b"forgotten": 1})
    assert "is not closed" in done.stderr
