"""Kinesis as boto3 sees it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

FIRST = "shardId-000000000000"
SHARDS = (FIRST, "shardId-000000000001")


@pytest.fixture
def k(client):
    """A Kinesis client, and a stream "s" with two shards."""
    made = client("kinesis")
    made.create_stream(StreamName="s", ShardCount=2)
    return made


def code_of(call) -> str:
    with pytest.raises(ClientError) as refused:
        call()
    assert refused.value.response["Error"]["Message"]
    assert refused.value.response["ResponseMetadata"]["RequestId"]
    return refused.value.response["Error"]["Code"]


def iterator(k, shard_id=FIRST, kind="TRIM_HORIZON", **where) -> str:
    return k.get_shard_iterator(StreamName="s", ShardId=shard_id, ShardIteratorType=kind, **where)[
        "ShardIterator"
    ]


def test_a_record_comes_back_as_it_was_put(k, clock):
    put = k.put_record(StreamName="s", Data=b"\x00\xff data", PartitionKey='kéy "1"', ExplicitHashKey="0")
    answer = k.get_records(ShardIterator=iterator(k))
    (record,) = answer["Records"]
    assert record["Data"] == b"\x00\xff data"
    assert record["PartitionKey"] == 'kéy "1"'
    assert record["SequenceNumber"] == put["SequenceNumber"]
    assert record["ApproximateArrivalTimestamp"].timestamp() * 1000 == clock.millis
    assert answer["MillisBehindLatest"] == 0
    assert answer["NextShardIterator"]
    assert "ChildShards" not in answer
    assert k.get_records(ShardIterator=answer["NextShardIterator"])["Records"] == []
    assert (
        answer["ResponseMetadata"]["HTTPHeaders"]["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    )  # the stream's clock


def test_a_batch_goes_to_both_shards_and_is_read_in_pages(k):
    entries = [
        {"Data": b"%d" % n, "PartitionKey": "k", "ExplicitHashKey": str((n % 2) << 127)} for n in range(500)
    ]
    answer = k.put_records(StreamName="s", Records=entries)
    assert answer["FailedRecordCount"] == 0
    assert {one["ShardId"] for one in answer["Records"]} == {FIRST, "shardId-000000000001"}
    onward, seen = iterator(k), []
    for _ in range(3):
        page = k.get_records(ShardIterator=onward, Limit=100)
        seen += [int(record["Data"]) for record in page["Records"]]
        onward = page["NextShardIterator"]
    assert seen == list(range(0, 500, 2))


def test_the_reader_of_a_split_shard_is_told_its_children(k):
    k.put_record(StreamName="s", Data=b"x", PartitionKey="k", ExplicitHashKey="0")
    k.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey=str(2**126))
    last = k.get_records(ShardIterator=iterator(k))
    assert len(last["Records"]) == 1
    assert "ChildShards" not in last
    answer = k.get_records(ShardIterator=last["NextShardIterator"])
    assert answer["Records"] == []
    assert "NextShardIterator" not in answer
    assert answer["ChildShards"][0] == {
        "ShardId": "shardId-000000000002",
        "ParentShards": [FIRST],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**126 - 1)},
    }
    k.merge_shards(
        StreamName="s", ShardToMerge="shardId-000000000002", AdjacentShardToMerge="shardId-000000000003"
    )
    merged = k.list_shards(StreamName="s")["Shards"][-1]
    assert (merged["ParentShardId"], merged["AdjacentParentShardId"]) == (
        "shardId-000000000002",
        "shardId-000000000003",
    )
    (child,) = k.get_records(ShardIterator=iterator(k, "shardId-000000000003", "LATEST"))["ChildShards"]
    assert child["ParentShards"] == ["shardId-000000000002", "shardId-000000000003"]


def test_describing_tells_what_aws_tells(k, clock):
    summary = k.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
    assert summary["StreamARN"] == "arn:aws:kinesis:us-east-1:000000000000:stream/s"
    assert summary["StreamCreationTimestamp"].timestamp() * 1000 == clock.millis
    assert (summary["OpenShardCount"], summary["StreamStatus"], summary["RetentionPeriodHours"]) == (
        2,
        "ACTIVE",
        24,
    )
    first = k.describe_stream(StreamARN=summary["StreamARN"], Limit=1)["StreamDescription"]
    assert first["HasMoreShards"] is True
    second = k.describe_stream(StreamName="s", ExclusiveStartShardId=FIRST)["StreamDescription"]
    assert second["HasMoreShards"] is False
    assert [shard["ShardId"] for shard in first["Shards"] + second["Shards"]] == [
        FIRST,
        "shardId-000000000001",
    ]
    k.get_waiter("stream_exists").wait(StreamName="s")


def test_streams_are_listed_in_pages(k):
    for name in ("a", "b", "t"):
        k.create_stream(StreamName=name, ShardCount=1)
    pages = list(k.get_paginator("list_streams").paginate(Limit=3))
    assert [page["StreamNames"] for page in pages] == [["a", "b", "s"], ["t"]]
    k.delete_stream(StreamName="a")
    assert k.list_streams(ExclusiveStartStreamName="b")["StreamNames"] == ["s", "t"]


def test_shards_are_listed_in_pages_and_a_token_must_come_alone(k, clock):
    k.update_shard_count(StreamName="s", TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    latest = {"Type": "AT_LATEST"}
    page = k.list_shards(StreamName="s", MaxResults=3, ShardFilter=latest)
    assert len(page["Shards"]) == 3
    token = page["NextToken"]
    assert code_of(lambda: k.list_shards(StreamName="s", NextToken=token)) == "InvalidArgumentException"
    assert code_of(lambda: k.list_shards(NextToken="nonsense")) == "InvalidArgumentException"
    rest = k.list_shards(NextToken=token, MaxResults=3)
    assert "NextToken" not in rest
    assert [s["ShardId"][-1] for s in page["Shards"] + rest["Shards"]] == ["2", "3", "4", "5"]
    assert len(k.list_shards(StreamName="s", ExclusiveStartShardId="shardId-000000000003")["Shards"]) == 2
    clock.advance(seconds=301)
    assert code_of(lambda: k.list_shards(NextToken=token)) == "ExpiredNextTokenException"


def test_the_timestamp_filters_take_a_timestamp(k, clock):
    created = datetime.fromtimestamp(clock.millis / 1000, tz=UTC)
    clock.advance(seconds=10)
    k.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey=str(2**126))
    clock.advance(seconds=10)
    at = k.list_shards(StreamName="s", ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": created})["Shards"]
    assert [shard["ShardId"][-1] for shard in at] == ["0", "1"]
    after = k.list_shards(StreamName="s", ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": FIRST})["Shards"]
    assert [shard["ShardId"][-1] for shard in after] == ["1", "2", "3"]
    k.put_record(StreamName="s", Data=b"x", PartitionKey="k", ExplicitHashKey="0")
    opened = iterator(k, "shardId-000000000002", "AT_TIMESTAMP", Timestamp=created)
    assert len(k.get_records(ShardIterator=opened)["Records"]) == 1


def test_an_expired_iterator_has_its_own_error(k, clock):
    opened = iterator(k)
    clock.advance(seconds=301)
    assert code_of(lambda: k.get_records(ShardIterator=opened)) == "ExpiredIteratorException"


def test_retention_goes_up_and_down(k):
    k.increase_stream_retention_period(StreamName="s", RetentionPeriodHours=48)
    assert k.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["RetentionPeriodHours"] == 48
    k.decrease_stream_retention_period(StreamName="s", RetentionPeriodHours=24)
    for call in (k.increase_stream_retention_period, k.decrease_stream_retention_period):
        hours = 23 if call == k.increase_stream_retention_period else 48
        assert code_of(lambda: call(StreamName="s", RetentionPeriodHours=hours)) == "InvalidArgumentException"  # noqa: B023


def test_tags_are_kept(k):
    k.add_tags_to_stream(StreamName="s", Tags={"a": "1", "b": "2"})
    k.remove_tags_from_stream(StreamName="s", TagKeys=["a"])
    assert k.list_tags_for_stream(StreamName="s")["Tags"] == [{"Key": "b", "Value": "2"}]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("put_record", {"StreamName": "none", "Data": b"", "PartitionKey": "k"}, "ResourceNotFoundException"),
        ("create_stream", {"StreamName": "s", "ShardCount": 1}, "ResourceInUseException"),
        ("create_stream", {"StreamName": "a b", "ShardCount": 1}, "ValidationException"),
        ("create_stream", {"StreamName": "t"}, "ValidationException"),
        ("list_shards", {}, "InvalidArgumentException"),
        ("get_records", {"ShardIterator": "nonsense"}, "InvalidArgumentException"),
        ("get_records", {"ShardIterator": "x", "Limit": 10_001}, "ValidationException"),
        ("get_records", {"ShardIterator": "x", "Limit": 0}, "ValidationException"),
        ("put_record", {"StreamName": "s", "Data": b"", "PartitionKey": "k" * 257}, "ValidationException"),
        ("put_record", {"StreamName": "s", "Data": b"", "PartitionKey": "k", "ExplicitHashKey": "x"}, "ValidationException"),
        ("put_records", {"StreamName": "s", "Records": [{"Data": b"", "PartitionKey": "k"}] * 501}, "ValidationException"),
        ("get_shard_iterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "OLDEST"}, "ValidationException"),
        ("list_shards", {"StreamName": "s", "ShardFilter": {"Type": "OLDEST"}}, "ValidationException"),
        ("disable_enhanced_monitoring", {"StreamName": "s", "ShardLevelMetrics": ["ALL"]}, "UnknownOperationException"),
    ],
)  # fmt: skip
def test_bad_arguments_get_the_error_code_of_aws(aws, k, method, params, code):
    # boto3 checks some of these itself; here the server shall.
    config = Config(parameter_validation=False, retries={"total_max_attempts": 1})
    session = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
    unchecked = session.client("kinesis", endpoint_url=aws.url, config=config)
    assert code_of(lambda: getattr(unchecked, method)(**params)) == code
    unchecked.close()


def post(aws, target: str, body: bytes) -> tuple[int, dict]:
    request = urllib.request.Request(
        aws.url, data=body, headers={"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"not json", "SerializationException"),
        (b"[]", "SerializationException"),
        (b'{"StreamName": 5, "Data": "", "PartitionKey": "k"}', "SerializationException"),
        (b'{"StreamName": "s", "Data": "***", "PartitionKey": "k"}', "SerializationException"),
        (b'{"StreamName": "s", "PartitionKey": "k"}', "ValidationException"),
        (b'{"StreamName": "s", "Data": null, "PartitionKey": "k"}', "ValidationException"),
    ],
)
def test_damaged_requests_are_refused_with_the_error_shape_of_aws(aws, body, code):
    aws.kinesis.create_stream("s")
    status, answer = post(aws, "Kinesis_20131202.PutRecord", body)
    assert (status, answer["__type"]) == (400, code)
    assert answer["message"]


def test_an_unknown_service_is_refused(aws):
    status, answer = post(aws, "Other_20200101.Do", b"{}")
    assert (status, answer["__type"]) == (400, "UnknownOperationException")


def test_a_stream_in_creation_cannot_be_listed(clock):
    from pykcl.local.errors import AwsError
    from pykcl.local.kinesis_api import KinesisApi
    from pykcl.local.stream import LocalKinesis

    kinesis = LocalKinesis(clock, state_seconds=5)
    api = KinesisApi(kinesis, clock)
    api.call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    described = api.call("DescribeStream", {"StreamName": "s"})["StreamDescription"]
    assert (described["StreamStatus"], described["Shards"]) == ("CREATING", [])
    with pytest.raises(AwsError, match="ResourceInUseException"):
        api.call("ListShards", {"StreamName": "s"})
    clock.advance(seconds=5)
    assert len(api.call("ListShards", {"StreamName": "s"})["Shards"]) == 1


def test_a_dry_run_is_refused_as_one_and_does_nothing(k):
    if "DryRun" not in k.meta.service_model.shape_for("PutRecordsInput").members:
        pytest.skip("this botocore has no dry runs of Kinesis: they came in September 2026")
    one = {"Data": b"x", "PartitionKey": "k"}
    refused = "DryRunOperationException"
    assert code_of(lambda: k.put_records(StreamName="s", Records=[one], DryRun=True)) == refused
    assert code_of(lambda: k.put_record(StreamName="s", **one, DryRun=True)) == refused
    assert code_of(lambda: iterator(k, DryRun=True)) == refused
    assert code_of(lambda: k.get_records(ShardIterator=iterator(k), DryRun=True)) == refused
    missing = {"StreamName": "nothing", "Records": [one], "DryRun": True}
    assert code_of(lambda: k.put_records(**missing)) == "ResourceNotFoundException"
    assert all(k.get_records(ShardIterator=iterator(k, shard))["Records"] == [] for shard in SHARDS)
    k.put_records(StreamName="s", Records=[one], DryRun=False)
    assert sum(len(k.get_records(ShardIterator=iterator(k, shard))["Records"]) for shard in SHARDS) == 1
