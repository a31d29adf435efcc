"""Consumers of enhanced fan-out and SubscribeToShard, as the API reference has them; as boto3 and HTTP/2 clients see them."""

from __future__ import annotations

import json
import struct
import threading
import time
from zlib import crc32

import boto3
import pytest
from botocore.config import Config
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import ClientError, EventStreamError
from http2_client import LONG, Http2Client
from wire_forms import from_cbor, to_cbor

from pykcl.local.errors import AwsError
from pykcl.local.faults import FaultRefused, FaultRule
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry, LocalKinesis, ReadSpan

FIRST = "shardId-000000000000"
STREAM_ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"


def refusal(code: str):
    return pytest.raises(AwsError, match=f"^{code}: ")


def events(kinesis, subscription):
    """All events that are due."""
    found = []
    while (event := kinesis.next_event(subscription)) is not None:
        found.append(event)
    return found


def payloads(found):
    return [record.data for event in found for record in event.records]


@pytest.fixture
def consumer(kinesis):
    return kinesis.register_consumer("s", "app")


def subscribed(kinesis, consumer, kind="TRIM_HORIZON", shard=FIRST, **where):
    return kinesis.subscribe(consumer.arn, shard, kind, **where)


# Consumers


def test_a_consumer_is_registered_described_listed_and_deregistered(clock):
    kinesis = LocalKinesis(clock, state_seconds=2)
    kinesis.create_stream("s", 1)
    clock.advance(seconds=2)
    registered = kinesis.register_consumer("s", "app")
    assert registered.arn == f"{STREAM_ARN}/consumer/app:{clock.millis // 1000}"
    assert kinesis.describe_consumer("s", name="app")[0].status == "CREATING"
    with refusal("ResourceInUseException"):
        subscribed(kinesis, registered)
    clock.advance(seconds=2)
    assert kinesis.describe_consumer(STREAM_ARN, arn=registered.arn)[0].status == "ACTIVE"
    kinesis.deregister_consumer("s", name="app")
    assert [one.status for one in kinesis.list_consumers("s")] == ["DELETING"]
    clock.advance(seconds=2)
    assert kinesis.list_consumers("s") == []
    with refusal("ResourceNotFoundException"):
        kinesis.describe_consumer("s", name="app")


def test_a_consumer_of_the_same_name_has_another_arn_the_next_time(kinesis, consumer):
    with refusal("ResourceInUseException"):
        kinesis.register_consumer("s", "app")
    kinesis.deregister_consumer("s", arn=consumer.arn)
    assert kinesis.register_consumer("s", "app").arn != consumer.arn
    with refusal("ResourceNotFoundException"):
        subscribed(kinesis, consumer)


def test_a_stream_has_twenty_consumers_at_most_and_five_that_are_being_made(clock):
    kinesis = LocalKinesis(clock, state_seconds=1)
    kinesis.create_stream("s", 1)
    clock.advance(seconds=1)
    for group in range(4):
        for number in range(5):
            kinesis.register_consumer("s", f"app-{group}-{number}")
        with refusal("LimitExceededException"):
            kinesis.register_consumer("s", "one-more")
        clock.advance(seconds=1)
    with refusal("LimitExceededException"):
        kinesis.register_consumer("s", "one-more")


def test_a_stream_with_consumers_is_deleted_only_where_that_is_enforced(kinesis, consumer):
    with refusal("ResourceInUseException"):
        kinesis.delete_stream("s", with_consumers=False)
    kinesis.delete_stream("s")
    kinesis.create_stream("s", 1)
    assert kinesis.list_consumers("s") == []


# Subscriptions


def test_records_come_as_they_are_put_and_the_next_subscription_goes_on_behind_them(kinesis, consumer, clock):
    kinesis.put_record("s", b"1", "k")
    subscription, woken = subscribed(kinesis, consumer), []
    subscription.on_change = lambda: woken.append(None)
    (event,) = events(kinesis, subscription)
    assert (payloads([event]), event.children, event.millis_behind_latest) == ([b"1"], (), 0)
    assert event.continuation == event.records[0].sequence_number
    kinesis.put_records("s", [Entry(b"2", "k"), Entry(b"3", "k")])
    assert len(woken) == 1, "once for both"
    (event,) = events(kinesis, subscription)
    assert payloads([event]) == [b"2", b"3"]
    clock.advance(seconds=5)
    again = subscribed(
        kinesis, consumer, "AFTER_SEQUENCE_NUMBER", sequence_number=event.records[0].sequence_number
    )
    assert payloads(events(kinesis, again)) == [b"3"]


def test_an_idle_shard_reports_its_progress_every_five_seconds(kinesis, consumer, clock):
    subscription = subscribed(kinesis, consumer, "LATEST")
    (first,) = events(kinesis, subscription)
    assert events(kinesis, subscription) == []
    clock.advance(seconds=4.9)
    assert events(kinesis, subscription) == []
    clock.advance(seconds=0.1)
    (second,) = events(kinesis, subscription)
    assert (second.records, second.millis_behind_latest) == ([], 0)
    assert first.continuation < second.continuation
    kinesis.put_record("s", b"1", "k")
    again = subscribed(kinesis, consumer, "AFTER_SEQUENCE_NUMBER", sequence_number=second.continuation)
    assert payloads(events(kinesis, again)) == [b"1"]


def test_an_event_has_a_megabyte_or_five_hundred_records_at_most_and_says_how_far_it_is_behind(
    kinesis, consumer, clock
):
    for size in (700_000, 400_000, 10):
        kinesis.put_record("s", b"x" * size, "k")
        clock.advance(seconds=1)
    kinesis.put_records("s", [Entry(b"y", "k")] * 500)
    kinesis.put_records("s", [Entry(b"z", "k")] * 3)
    found = events(kinesis, subscribed(kinesis, consumer))
    assert [len(event.records) for event in found] == [1, 500, 5]
    assert [event.millis_behind_latest for event in found] == [2000, 0, 0]


@pytest.mark.parametrize("end_alone", [0.0, 1.0])
def test_the_end_of_a_shard_has_children_and_no_continuation_and_ends_the_subscription(clock, end_alone):
    kinesis = LocalKinesis(clock, read_span=ReadSpan(end_alone=end_alone))
    kinesis.create_stream("s", 1)
    consumer = kinesis.register_consumer("s", "app")
    subscription = subscribed(kinesis, consumer)
    assert len(events(kinesis, subscription)) == 1
    kinesis.put_record("s", b"1", "k")
    kinesis.split("s", FIRST)
    *before, last = events(kinesis, subscription)
    assert len(before) == end_alone
    assert payloads([*before, last]) == [b"1"]
    assert last.continuation is None
    assert [child.parents for child in last.children] == [(FIRST,), (FIRST,)]
    assert subscription.ended


def test_a_subscription_ends_after_five_minutes(kinesis, consumer, clock):
    subscription = subscribed(kinesis, consumer)
    clock.advance(seconds=299)
    assert len(events(kinesis, subscription)) == 1
    clock.advance(seconds=1)
    kinesis.put_record("s", b"1", "k")
    assert events(kinesis, subscription) == []
    assert subscription.ended


def test_the_next_call_waits_a_second_and_takes_over_after_five(kinesis, consumer, clock):
    former = subscribed(kinesis, consumer)
    with refusal("LimitExceededException"):
        subscribed(kinesis, consumer)
    clock.advance(seconds=1)
    with refusal("ResourceInUseException"):
        subscribed(kinesis, consumer)
    clock.advance(seconds=4)
    subscribed(kinesis, consumer)
    with refusal("ResourceInUseException"):
        kinesis.next_event(former)
    assert former.ended
    assert kinesis.next_event(former) is None


def test_a_consumer_that_is_deleted_ends_its_subscriptions(kinesis, consumer):
    subscription = subscribed(kinesis, consumer)
    kinesis.deregister_consumer("s", arn=consumer.arn)
    with refusal("ResourceNotFoundException"):
        kinesis.next_event(subscription)


def test_a_shard_that_is_trimmed_under_its_subscription_ends_it(kinesis, consumer, clock):
    subscription = subscribed(kinesis, consumer)
    kinesis.subscription_seconds = 1e6
    kinesis.split("s", FIRST)
    clock.advance(hours=25)
    ends = subscribed(kinesis, kinesis.register_consumer("s", "other"), shard="shardId-000000000001")
    assert not ends.ended
    subscription._until = 1 << 60
    with refusal("ResourceNotFoundException"):
        kinesis.next_event(subscription)


# Over the wire


@pytest.fixture
def k(client):
    """A Kinesis client, and a stream "s" with one shard and a consumer "app"."""
    made = client("kinesis")
    made.create_stream(StreamName="s", ShardCount=1)
    made.register_stream_consumer(StreamARN=STREAM_ARN, ConsumerName="app")
    return made


def arn_of(k, name="app"):
    described = k.describe_stream_consumer(StreamARN=STREAM_ARN, ConsumerName=name)["ConsumerDescription"]
    return described["ConsumerARN"]


@pytest.fixture
def stream_of(k):
    """Subscribes to the shard, from its beginning or a position on; returns the EventStream."""
    opened = []

    def subscribe(**position):
        position = position or {"Type": "TRIM_HORIZON"}
        answer = k.subscribe_to_shard(ConsumerARN=arn_of(k), ShardId=FIRST, StartingPosition=position)
        opened.append(answer["EventStream"])
        return opened[-1]

    yield subscribe
    for stream in opened:
        stream.close()


def test_boto3_sees_consumers(k, clock):
    registered = k.register_stream_consumer(StreamARN=STREAM_ARN, ConsumerName="other")["Consumer"]
    assert registered["ConsumerStatus"] == "CREATING"
    described = k.describe_stream_consumer(ConsumerARN=registered["ConsumerARN"])["ConsumerDescription"]
    assert described["ConsumerStatus"] == "ACTIVE"
    assert described["StreamARN"] == STREAM_ARN
    assert described["ConsumerCreationTimestamp"].timestamp() * 1000 == clock.millis
    page = k.list_stream_consumers(StreamARN=STREAM_ARN, MaxResults=1)
    assert [one["ConsumerName"] for one in page["Consumers"]] == ["app"]
    page = k.list_stream_consumers(StreamARN=STREAM_ARN, NextToken=page["NextToken"])
    assert [one["ConsumerName"] for one in page["Consumers"]] == ["other"]
    assert k.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["ConsumerCount"] == 2
    with pytest.raises(ClientError, match="ResourceInUseException"):
        k.delete_stream(StreamName="s")
    k.deregister_stream_consumer(StreamARN=STREAM_ARN, ConsumerName="other")
    k.deregister_stream_consumer(ConsumerARN=arn_of(k))
    k.delete_stream(StreamName="s")


@pytest.mark.parametrize("named", [{}, {"ConsumerName": "app"}, {"ConsumerARN": "x", "ConsumerName": "app"}])
def test_a_consumer_has_to_be_named_in_one_way(k, named):
    if "ConsumerARN" in named:
        named = {**named, "ConsumerARN": arn_of(k)}
    with pytest.raises(ClientError, match="InvalidArgumentException"):
        k.describe_stream_consumer(**named)


def test_boto3_gets_records_in_the_moment_they_are_put(k, stream_of):
    k.put_record(StreamName="s", Data=b"1", PartitionKey="k")
    stream = stream_of()
    found = iter(stream)
    first = next(found)["SubscribeToShardEvent"]
    assert [record["Data"] for record in first["Records"]] == [b"1"]
    assert first["MillisBehindLatest"] == 0
    k.put_record(StreamName="s", Data=b"2", PartitionKey="k")
    second = next(found)["SubscribeToShardEvent"]
    assert [record["Data"] for record in second["Records"]] == [b"2"]
    assert second["ContinuationSequenceNumber"] == second["Records"][0]["SequenceNumber"]
    k.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey=str(1 << 127))
    (last,) = found
    assert [child["ParentShards"] for child in last["SubscribeToShardEvent"]["ChildShards"]] == [
        [FIRST],
        [FIRST],
    ]
    assert "ContinuationSequenceNumber" not in last["SubscribeToShardEvent"]


def test_a_record_that_another_thread_puts_is_pushed(k, stream_of, aws):
    found = iter(stream_of(Type="LATEST"))
    next(found)
    aws.kinesis.put_record("s", b"1", "k")
    assert [record["Data"] for record in next(found)["SubscribeToShardEvent"]["Records"]] == [b"1"]


@pytest.mark.parametrize(
    ("position", "code"),
    [
        ({"Type": "AT_TIMESTAMP"}, "InvalidArgumentException"),
        ({"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": "7"}, "InvalidArgumentException"),
        ({"Type": "ANYWHERE"}, "ValidationException"),
    ],
)
def test_a_position_that_is_none_is_refused(k, stream_of, position, code):
    with pytest.raises(ClientError, match=code):
        stream_of(**position)


def test_boto3_hears_of_an_end_that_is_an_error(k, stream_of, clock):
    found = iter(stream_of())
    next(found)
    k.deregister_stream_consumer(ConsumerARN=arn_of(k))
    with pytest.raises(EventStreamError, match="ResourceNotFoundException"):
        next(found)


def test_a_client_that_leaves_ends_its_subscription(k, stream_of, aws):
    stream = stream_of()
    next(iter(stream))
    (shard,) = aws.kinesis._streams["s"].shards.values()
    assert len(shard.listeners) == 1
    stream.close()
    deadline, pause = time.monotonic() + LONG, threading.Event()
    while shard.listeners:
        assert time.monotonic() < deadline
        pause.wait(0.01)


def test_a_server_that_stops_resets_its_subscriptions(clock):
    with LocalAws(now_millis=clock) as aws:
        aws.kinesis.create_stream("s", 1)
        consumer = aws.kinesis.register_consumer("s", "app")
        client = boto3.client(
            "kinesis",
            endpoint_url=aws.url,
            region_name="us-east-1",
            aws_access_key_id="-",
            aws_secret_access_key="-",
            config=Config(retries={"total_max_attempts": 1}),
        )
        answer = client.subscribe_to_shard(
            ConsumerARN=consumer.arn, ShardId=FIRST, StartingPosition={"Type": "LATEST"}
        )
        found = iter(answer["EventStream"])
        next(found)
    with pytest.raises(Exception, match=r"(?i)reset|broken|incomplete"):
        next(found)
    answer["EventStream"].close()
    client.close()


# Faults


@pytest.mark.parametrize(
    ("kind", "error"), [("push-error", EventStreamError), ("push-garbage", ChecksumMismatch)]
)
def test_a_fault_takes_the_place_of_the_first_event_with_records(k, stream_of, aws, kind, error):
    aws.faults.replace([FaultRule(kind, times=1)])
    found = iter(stream_of())
    assert next(found)["SubscribeToShardEvent"]["Records"] == []
    k.put_record(StreamName="s", Data=b"1", PartitionKey="k")
    with pytest.raises(error):
        next(found)
    assert aws.faults.counts[kind] == 1


def test_a_subscription_that_is_cut_off_has_half_a_message(k, stream_of, aws):
    aws.faults.replace([FaultRule("push-cut", times=1)])
    k.put_record(StreamName="s", Data=b"x" * 10_000, PartitionKey="k")
    found = iter(stream_of())
    with pytest.raises(Exception, match=r"(?i)reset|broken|incomplete"):
        next(found)


def test_a_silent_subscription_says_nothing_until_it_ends(k, stream_of, aws, clock):
    aws.faults.replace([FaultRule("push-silent", times=1)])
    stream = stream_of()
    k.put_record(StreamName="s", Data=b"1", PartitionKey="k")
    clock.advance(seconds=300)
    assert list(stream) == []


def test_a_rule_about_events_that_no_request_has_is_refused():
    with pytest.raises(FaultRefused, match="only SubscribeToShard of kinesis has"):
        FaultRule("push-cut", operation="GetRecords")


# HTTP/2


def messages(body):
    """Headers and payload of each message, read without botocore."""
    while body:
        length, headers_length = struct.unpack(">II", body[:8])
        if len(body) < length:
            return
        assert crc32(body[: length - 4]) == struct.unpack(">I", body[length - 4 : length])[0]
        headers, at = {}, 12
        while at < 12 + headers_length:
            name_end = at + 1 + body[at]
            (size,) = struct.unpack(">H", body[name_end + 1 : name_end + 3])
            headers[body[at + 1 : name_end].decode()] = body[name_end + 3 : name_end + 3 + size].decode()
            at = name_end + 3 + size
        yield headers, body[at : length - 4]
        body = body[length:]


def hear_until(client, condition):
    while not condition():
        assert not client.closed
        client.hear()


@pytest.mark.parametrize(("form", "content_type"), [(json.loads, "json"), (from_cbor, "cbor")])
def test_one_http2_connection_carries_subscriptions_and_requests_in_json_and_cbor(aws, form, content_type):
    aws.kinesis.create_stream("s", 2)
    consumer = aws.kinesis.register_consumer("s", "app")
    with Http2Client(aws.port) as client:
        asked = []
        for number in range(2):
            members = {
                "ConsumerARN": consumer.arn,
                "ShardId": f"shardId-00000000000{number}",
                "StartingPosition": {"Type": "TRIM_HORIZON"},
            }
            body = json.dumps(members).encode() if content_type == "json" else to_cbor(members)
            asked.append(client.send("SubscribeToShard", body, f"application/x-amz-{content_type}-1.1"))
        hear_until(client, lambda: all(len(list(messages(client.replies[one].body))) == 2 for one in asked))
        for number in range(2):
            aws.kinesis.put_record("s", b"%d" % number, "k", number << 127)
        hear_until(client, lambda: all(len(list(messages(client.replies[one].body))) == 3 for one in asked))
        for stream in asked:
            reply = client.replies[stream]
            assert reply.headers["content-type"] == "application/vnd.amazon.eventstream"
            (first, empty), *others = messages(reply.body)
            assert (first[":event-type"], form(empty)) == ("initial-response", {})
            assert {headers[":content-type"] for headers, _ in others} == {f"application/{content_type}"}
            assert [len(form(payload)["Records"]) for _, payload in others] == [0, 1]
            assert not reply.ended
        assert client.ask("ListShards", to_cbor({"StreamName": "s"})).status == 200


def test_events_wait_for_a_client_that_does_not_take_them(aws):
    aws.kinesis.create_stream("s", 1)
    consumer = aws.kinesis.register_consumer("s", "app")
    for _ in range(12):
        aws.kinesis.put_record("s", b"x" * 500_000, "k")
    (shard,) = aws.kinesis._streams["s"].shards.values()
    members = {"ConsumerARN": consumer.arn, "ShardId": FIRST, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    with Http2Client(aws.port, window=100_000) as client, Http2Client(aws.port) as other:
        stream = client.send("SubscribeToShard", to_cbor(members))
        for _ in range(50):
            other.ask("ListShards", to_cbor({"StreamName": "s"}))
        subscription = consumer.subscriptions[FIRST][1]
        assert shard.at_or_after(subscription._position) <= 6
        reply = client.replies[stream]
        hear_until(client, lambda: len(reply.body) > 12 * 500_000)
        assert shard.at_or_after(subscription._position) == 12
