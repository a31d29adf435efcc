"""The stream against a real wire: boto3, sockets, the embedded local AWS."""

from __future__ import annotations

import boto3
import pytest
from botocore.config import Config

from pykcl.aws.kinesis import KinesisStream
from pykcl.errors import IteratorExpired, ShardGone, StreamMissing, TemporaryError, Throttled, WrongStream
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


def test_records_arrive_as_they_were_put(aws, clock, orders):
    payloads = [b"", b"plain", "ünïcode".encode(), bytes(range(256)) * 40]
    for data in payloads:
        clock.millis += 1
        aws.kinesis.put_records(orders.name, [Entry(data, "clé-1")])
    found = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10)
    assert [record.data for record in found.records] == payloads
    assert {record.partition_key for record in found.records} == {"clé-1"}
    assert {(record.shard_id, record.stream) for record in found.records} == {(FIRST, orders.name)}
    assert found.records[-1].arrived_at_millis == clock.millis
    numbers = [int(record.sequence_number) for record in found.records]
    assert numbers == sorted(set(numbers))
    assert found.next_iterator is not None
    assert found.millis_behind_latest == 0
    assert found.body_bytes > sum(map(len, payloads))


def test_the_same_page_comes_through_botocores_parser(aws, client, orders):
    aws.kinesis.put_records(orders.name, [Entry(b"one", "a"), Entry(b"two", "b")])
    quick = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10)
    client.meta.events.unregister("before-parse.kinesis.GetRecords", unique_id="pykcl-set-body-aside")
    slow = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10)
    assert quick.records == slow.records
    assert len(slow.records) == 2
    KinesisStream(client, orders.name, SystemRuntime())  # registers the hook again


def test_every_start_finds_its_place(aws, clock, orders):
    clock.millis = clock.millis // 1000 * 1000 + 1000
    aws.kinesis.put_records(orders.name, [Entry(b"1", "k")])
    clock.millis += 5000
    aws.kinesis.put_records(orders.name, [Entry(b"2", "k")])
    first, second = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10).records

    def read(start):
        return [record.data for record in orders.fetch(FIRST, orders.open(FIRST, start), 10).records]

    assert read(ReadFrom("LATEST")) == []
    assert read(ReadFrom("AT_TIMESTAMP", at_millis=int(second.arrived_at_millis))) == [b"2"]
    assert read(ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=first.sequence_number)) == [b"1", b"2"]
    assert read(ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=first.sequence_number)) == [b"2"]


def test_a_split_ends_the_shard_with_its_children_and_lists_all_three(aws, orders):
    aws.kinesis.put_records(orders.name, [Entry(b"last", "k")])
    iterator = orders.open(FIRST, HORIZON)
    aws.kinesis.split(orders.name, FIRST)
    found = orders.fetch(FIRST, iterator, 10)
    while found.next_iterator is not None:
        found = orders.fetch(FIRST, found.next_iterator, 10)
    assert len(found.children) == 2
    assert all(child.parents == (FIRST,) and child.hash_range is not None for child in found.children)
    listing = orders.list_shards()
    assert listing.complete
    assert {shard.shard_id for shard in listing.shards} == {
        FIRST,
        *(child.shard_id for child in found.children),
    }
    assert not listing.by_id[FIRST].is_open
    assert all(listing.by_id[child.shard_id].parents == (FIRST,) for child in found.children)


def test_a_listing_of_several_pages_is_whole(aws, client):
    aws.kinesis.create_stream("wide", 1001)
    listing = KinesisStream(client, "wide", SystemRuntime()).list_shards()
    assert listing.complete
    assert len(listing.by_id) == 1001


def test_an_old_iterator_expires(clock, orders):
    iterator = orders.open(FIRST, HORIZON)
    clock.millis += 301_000
    with pytest.raises(IteratorExpired):
        orders.fetch(FIRST, iterator, 10)


def test_nonsense_for_an_iterator_asks_for_a_new_one(orders):
    with pytest.raises(IteratorExpired):
        orders.fetch(FIRST, "nonsense", 10)


def test_an_unknown_shard_is_gone_and_an_unknown_stream_is_missing(client, orders):
    with pytest.raises(ShardGone):
        orders.open("shardId-000000000099", HORIZON)
    nowhere = KinesisStream(client, "nowhere", SystemRuntime())
    for ask in (nowhere.describe, nowhere.list_shards, lambda: nowhere.open(FIRST, HORIZON)):
        with pytest.raises(StreamMissing, match="nowhere"):
            ask()


def test_a_stream_made_again_under_its_name_is_not_read_on(aws, clock, orders):
    aws.kinesis.put_records(orders.name, [Entry(b"old", "k")])
    position = orders.fetch(FIRST, orders.open(FIRST, HORIZON), 10).records[0].sequence_number
    aws.kinesis.delete_stream(orders.name)
    clock.millis += 60_000
    aws.kinesis.create_stream(orders.name, 1)
    with pytest.raises(WrongStream):
        orders.open("shardId-000000000099", HORIZON)
    with pytest.raises(WrongStream):
        orders.open(FIRST, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=position))


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
