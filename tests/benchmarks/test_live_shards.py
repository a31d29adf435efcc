import json
import re

import pytest

from benchmarks.canned import Shape
from benchmarks.live_shards import LiveShards, bodies_of, hash_range, iterator_of
from pykcl.aws.kinesis_decode import page_of_body, page_of_cbor
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.shard import HashRange

PLAIN, KPL = Shape("plain", 5, 30), Shape("kpl", 2, 30, 4)
SHARDS = 3


@pytest.fixture(scope="module")
def bodies():
    return bodies_of((PLAIN, KPL), SHARDS)


@pytest.fixture
def shards(bodies):
    return LiveShards(bodies, (PLAIN, KPL), SHARDS)


def asked(shards, operation, body, service="Kinesis_20131202", more=b""):
    head = f"POST / HTTP/1.1\r\nX-Amz-Target: {service}.{operation}\r\n".encode() + more
    answer = shards.answer(head, json.dumps(body).encode())
    head, _, content = answer.partition(b"\r\n\r\n")
    assert int(re.search(rb"Content-Length: (\d+)", head)[1]) == len(content)
    return content


def page(shards, iterator, *, cbor=False):
    kind = b"Content-Type: application/x-amz-cbor-1.1\r\n" if cbor else b""
    content = asked(shards, "GetRecords", {"ShardIterator": iterator}, more=kind)
    return (page_of_cbor if cbor else page_of_body)(content, "shard", "orders")


def test_an_iterator_gives_the_same_page_each_time_and_both_ways(shards):
    shards.serving = PLAIN.name
    iterator = iterator_of(1, "0000000007")

    first, again, cbor = page(shards, iterator), page(shards, iterator), page(shards, iterator, cbor=True)

    assert first.records == again.records == cbor.records
    assert len(first.records) == 5


def test_sequence_numbers_rise_from_page_to_page(shards):
    shards.serving = PLAIN.name
    first = page(shards, iterator_of(0, "0000000000"))
    second = page(shards, first.next_iterator)

    numbers = [int(record.sequence_number) for record in (*first.records, *second.records)]
    assert numbers == sorted(set(numbers))


def test_while_nothing_is_served_a_reader_has_caught_up_and_stays_where_it_is(shards):
    found = page(shards, iterator_of(0, "0000000004"))

    assert (found.records, found.millis_behind_latest) == ([], 0)
    assert found.next_iterator == iterator_of(0, "0000000004")


def test_a_shard_is_opened_at_the_page_of_a_sequence_number(shards):
    shards.serving = PLAIN.name
    number = page(shards, iterator_of(2, "0000000009")).records[-1].sequence_number

    content = asked(
        shards, "GetShardIterator", {"ShardId": "shardId-000000000002", "StartingSequenceNumber": number}
    )

    assert json.loads(content)["ShardIterator"] == iterator_of(2, "0000000009")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_user_records_of_aggregates_belong_to_their_shard(shards, shard):
    shards.serving = KPL.name
    low, high = hash_range(shard, SHARDS)

    found = page(shards, iterator_of(shard, "0000000000"))

    users = list(deaggregate_batch(found.records, HashRange(low, high)))
    assert [len(one.data) for one in users] == [30] * 8


def test_the_table_refuses_as_dynamodb_does(shards):
    table = "DynamoDB_20120810"
    described = asked(shards, "DescribeTable", {"TableName": "none"}, service=table)

    assert json.loads(described)["__type"].endswith("#ResourceNotFoundException")


def test_every_record_that_is_put_is_taken_and_counted(shards):
    records = [{"Data": "cGFydA==", "PartitionKey": "device-1"}, {"Data": "", "PartitionKey": "device-2"}]

    many = json.loads(asked(shards, "PutRecords", {"Records": records, "StreamName": "orders"}))
    one = json.loads(asked(shards, "PutRecord", {**records[0], "StreamName": "orders"}))

    assert many["FailedRecordCount"] == 0
    assert [record["ShardId"] for record in many["Records"]] == ["shardId-000000000000"] * 2
    assert one == many["Records"][0]
    assert shards.puts == 3
