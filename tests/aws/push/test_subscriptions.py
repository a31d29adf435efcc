"""Subscriptions against the local AWS: the same behaviour over each transport."""

import json
import os
import threading

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from cbor2 import dumps as to_cbor
from event_streams import event, exception, message

from pykcl.aws.push import subscription
from pykcl.aws.push.stream import FanOutStream
from pykcl.aws.push.subscription import MAX_UNREAD, PushedEvents, event_of
from pykcl.errors import (
    AnswerRefused,
    PositionRefused,
    SetupError,
    ShardGone,
    StreamMissing,
    SubscriptionOver,
    SubscriptionTaken,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import PushStream
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry
from pykcl.model.checkpoint import ReadFrom
from pykcl.runtime import SystemRuntime

FIRST = "shardId-000000000000"
LONG = 60
"""Seconds after which a test fails that waits for what does not come."""
TRIM_HORIZON, LATEST = ReadFrom("TRIM_HORIZON"), ReadFrom("LATEST")


class Clock(SystemRuntime):
    """A runtime whose wall clock the test moves, and with it that of the server."""

    def __init__(self):
        self.millis = 1_700_000_000_000

    def utcnow_millis(self):
        return self.millis

    def advance(self, seconds):
        self.millis += round(seconds * 1000)


class Raw:
    """The body of an answer that no server has sent."""

    def __init__(self, body):
        self.body = body

    def stream(self):
        return [self.body]


class Pushed:
    """A subscription, and the wait for what it brings."""

    def __init__(self, stream, start=TRIM_HORIZON, shard_id=FIRST):
        self.ready = threading.Event()
        self.subscription = stream.subscribe(shard_id, start, self.ready.set)

    def event(self):
        while True:
            self.ready.clear()
            found = self.subscription.poll()
            if found is not None:
                return found
            assert self.ready.wait(LONG), "nothing came"

    def with_records(self):
        while not (found := self.event()).records:
            pass
        return found


def payloads(event):
    return [record.data for record in event.records]


def after(event):
    return ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=event.next_iterator)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def aws(clock):
    with LocalAws(now_millis=clock.utcnow_millis, listing_lag=0) as running:
        running.kinesis.create_stream("s", 1)
        running.kinesis.register_consumer("s", "app")
        yield running


@pytest.fixture
def client(aws):
    made = boto3.client(
        "kinesis",
        endpoint_url=aws.url,
        region_name="us-east-1",
        aws_access_key_id="-",
        aws_secret_access_key="-",
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield made
    made.close()


@pytest.fixture(params=["http1", "h2"])
def stream_of(request, client, clock):
    return lambda **more: FanOutStream(
        client, "s", clock, consumer="app", push_transport=request.param, **more
    )


@pytest.fixture
def stream(stream_of):
    return stream_of()


@pytest.fixture
def pushed(stream):
    """Subscribes; all that is open is closed in the end."""
    opened = []

    def subscribe(*args, **more):
        opened.append(Pushed(stream, *args, **more))
        return opened[-1]

    yield subscribe
    for one in opened:
        one.subscription.close()


def test_records_are_pushed_in_the_moment_they_are_put(aws, stream, pushed):
    assert isinstance(stream, PushStream)
    aws.kinesis.put_record("s", b"1", "k")
    subscription = pushed()
    first = subscription.event()
    (record,) = first.records
    assert (record.data, record.partition_key, record.shard_id, record.stream) == (b"1", "k", FIRST, "s")
    assert record.sequence_number == first.next_iterator
    assert record.arrived_at_millis == 1_700_000_000_000
    assert (first.children, first.millis_behind_latest) == ((), 0)
    aws.kinesis.put_records("s", [Entry(b"2", "k"), Entry(b"3", "k")])
    assert payloads(subscription.event()) == [b"2", b"3"]


def test_a_subscription_goes_on_after_the_last_event_that_was_taken(aws, clock, pushed):
    aws.kinesis.put_record("s", b"1", "k")
    first = pushed()
    event = first.event()
    aws.kinesis.put_record("s", b"2", "k")
    clock.advance(5)
    assert payloads(pushed(after(event)).event()) == [b"2"]


def test_an_event_without_records_is_a_place_to_go_on_from(aws, clock, pushed):
    event = pushed(LATEST).event()
    assert (event.records, event.next_iterator is None) == ([], False)
    aws.kinesis.put_record("s", b"1", "k")
    clock.advance(5)
    assert payloads(pushed(after(event)).event()) == [b"1"]


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AT_TIMESTAMP"])
def test_a_subscription_begins_at_a_record_or_a_time(aws, clock, pushed, kind):
    aws.kinesis.put_record("s", b"1", "k")
    clock.advance(1)
    number = aws.kinesis.put_record("s", b"2", "k").sequence_number
    start = ReadFrom(kind, number) if kind == "AT_SEQUENCE_NUMBER" else ReadFrom(kind, at_millis=clock.millis)
    assert payloads(pushed(start).event()) == [b"2"]


def test_the_end_of_a_shard_comes_with_its_children_and_ends_the_subscription(aws, pushed):
    subscription = pushed()
    subscription.event()
    aws.kinesis.put_record("s", b"1", "k")
    aws.kinesis.split("s", FIRST)
    events = [subscription.event()]
    while events[-1].next_iterator is not None:
        events.append(subscription.event())
    assert [data for one in events for data in payloads(one)] == [b"1"]
    assert [child.parents for child in events[-1].children] == [(FIRST,), (FIRST,)]
    with pytest.raises(SubscriptionOver):
        subscription.event()


def test_a_subscription_ends_in_good_order_after_five_minutes(aws, clock, pushed):
    subscription = pushed()
    subscription.event()
    clock.advance(300)
    for _ in range(2):
        with pytest.raises(SubscriptionOver):
            subscription.event()


def test_subscriptions_that_follow_one_another_miss_nothing_and_repeat_nothing(aws, clock, pushed):
    aws.kinesis.subscription_seconds, start, found = 3.0, TRIM_HORIZON, []
    for number in range(40):
        aws.kinesis.put_record("s", b"%d" % (2 * number), "k")
        subscription = pushed(start)
        while len(found) <= 2 * number:
            event = subscription.event()
            found += payloads(event)
        aws.kinesis.put_record("s", b"%d" % (2 * number + 1), "k")
        clock.advance(3)
        try:
            while True:
                event = subscription.event()
                found += payloads(event)
        except SubscriptionOver:
            start = after(event)
        clock.advance(2)
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) >= 79


def test_the_next_subscription_is_refused_for_five_seconds_and_takes_over_then(clock, pushed):
    first = pushed()
    first.event()
    with pytest.raises(Throttled):
        pushed()
    clock.advance(1)
    with pytest.raises(SubscriptionTaken, match="same consumer"):
        pushed()
    clock.advance(4)
    pushed()
    with pytest.raises(SubscriptionTaken):
        first.event()
    with pytest.raises(SubscriptionOver):
        first.event()


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("push-error", TemporaryError, "InternalFailureException"),
        ("push-garbage", AnswerRefused, "checksum"),
        ("push-cut", TemporaryError, "no usable answer|cut off"),
    ],
)
def test_what_goes_wrong_within_a_subscription_ends_it_and_loses_nothing(
    aws, clock, pushed, kind, error, words
):
    aws.faults.replace([FaultRule(kind, times=1)])
    subscription = pushed()
    before = subscription.event()
    aws.kinesis.put_record("s", b"x" * 10_000, "k")
    with pytest.raises(error, match=words):
        subscription.event()
    assert aws.faults.counts[kind] == 1
    clock.advance(5)
    assert payloads(pushed(after(before)).with_records()) == [b"x" * 10_000]


def test_a_subscription_that_says_nothing_has_nothing_to_give(aws, clock, pushed):
    aws.faults.replace([FaultRule("push-silent", times=1)])
    aws.kinesis.put_record("s", b"1", "k")
    silent = pushed()
    assert silent.subscription.poll() is None
    clock.advance(5)
    assert payloads(pushed().event()) == [b"1"]


def test_what_no_longer_exists_is_found_out_by_the_next_call(aws, clock, stream, pushed):
    subscription = pushed()
    subscription.event()
    aws.kinesis.deregister_consumer("s", name="app")
    with pytest.raises(TemporaryError, match="shows what is gone"):
        subscription.event()
    aws.kinesis.register_consumer("s", "app")
    stream.prepare_consumer()
    with pytest.raises(ShardGone):
        pushed(shard_id="shardId-000000000009")
    clock.advance(1)
    aws.kinesis.delete_stream("s")
    with pytest.raises(StreamMissing):
        pushed()


def test_a_shard_that_is_listed_is_not_gone_whatever_a_call_says(aws, client, clock):
    def refuse(request, **_):
        body = json.dumps({"__type": "ResourceNotFoundException"}).encode()
        return AWSResponse(request.url, 400, {}, Raw(body))

    client.meta.events.register("before-send.kinesis.SubscribeToShard", refuse)
    with pytest.raises(TemporaryError, match="ListShards shows the shard"):
        Pushed(FanOutStream(client, "s", clock, consumer="app"))


def test_a_place_that_is_none_is_refused(pushed):
    with pytest.raises(PositionRefused):
        pushed(ReadFrom("AT_SEQUENCE_NUMBER", "7"))


def content_types(client):
    """The content types of the calls that follow."""
    sent = []

    def note(request, **_):
        found = request.headers["Content-Type"]
        sent.append(found.decode() if isinstance(found, bytes) else found)

    client.meta.events.register_first("before-send.kinesis.SubscribeToShard", note)
    return sent


@pytest.mark.parametrize("encoding", ["json", "cbor"])
def test_events_come_in_the_encoding_that_is_chosen(aws, stream_of, monkeypatch, encoding):
    monkeypatch.setattr(subscription, "page_of_body" if encoding == "cbor" else "page_of_cbor", None)
    number = aws.kinesis.put_record("s", bytes(range(256)), "k").sequence_number
    pushed = Pushed(stream_of(record_encoding=encoding), ReadFrom("AT_SEQUENCE_NUMBER", number))
    (record,) = pushed.event().records
    pushed.subscription.close()
    assert (record.data, record.sequence_number) == (bytes(range(256)), number)


def test_an_endpoint_that_refuses_cbor_is_asked_in_json(aws, clock, client):
    sent = content_types(client)

    def refuse(request, **_):
        if "cbor" in sent[-1]:
            body = to_cbor({"__type": "SerializationException"})
            return AWSResponse(request.url, 400, {}, Raw(body))
        return None

    client.meta.events.register("before-send.kinesis.SubscribeToShard", refuse)
    aws.kinesis.put_record("s", b"1", "k")
    pushed = Pushed(FanOutStream(client, "s", clock, consumer="app", record_encoding="cbor"))
    assert payloads(pushed.event()) == [b"1"]
    pushed.subscription.close()
    assert sent == ["application/x-amz-cbor-1.1", "application/x-amz-json-1.1"]


def test_a_reader_that_stops_stops_the_service(aws, pushed):
    for _ in range(80):
        aws.kinesis.put_record("s", b"x" * 250_000, "k")
        aws.kinesis.put_record("s", b"x" * 250_000, "k")
    subscription = pushed()
    assert subscription.ready.wait(LONG)
    (shard,) = aws.kinesis._streams["s"].shards.values()
    events = subscription.subscription
    other = boto3.client(
        "kinesis",
        endpoint_url=aws.url,
        region_name="us-east-1",
        aws_access_key_id="-",
        aws_secret_access_key="-",
    )
    for _ in range(50):
        other.list_shards(StreamName="s")
    assert events._received - events._taken < 4 * MAX_UNREAD
    found = 0
    while found < 160:
        found += len(subscription.event().records)
    assert found == len(shard.records)
    other.close()


def test_a_subscription_that_is_closed_ends_at_the_service_at_once(aws, clock, pushed):
    subscription = pushed()
    subscription.event()
    (shard,) = aws.kinesis._streams["s"].shards.values()
    assert shard.listeners
    subscription.subscription.close()
    until = threading.Event()
    deadline = clock.monotonic() + LONG
    while shard.listeners:
        assert clock.monotonic() < deadline
        until.wait(0.01)
    with pytest.raises(SubscriptionOver):
        subscription.subscription.poll()
    subscription.subscription.close()


def test_the_end_of_one_subscription_leaves_the_others_alone(aws, clock, stream, pushed):
    aws.kinesis.register_consumer("s", "other")
    first = pushed()
    first.event()
    first.ready.clear()
    clock.advance(300)
    assert first.ready.wait(LONG)
    # Whatever carried the first one may carry the next one.
    second = pushed()
    second.event()
    with pytest.raises(SubscriptionOver):
        first.event()
    aws.kinesis.put_record("s", b"1", "k")
    assert payloads(second.with_records()) == [b"1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_leaves_the_subscription_to_the_other(aws, pushed):
    subscription = pushed()
    subscription.event()
    child = os.fork()
    if child == 0:
        subscription.subscription.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    aws.kinesis.put_record("s", b"1", "k")
    assert payloads(subscription.with_records()) == [b"1"]


# Messages that no local AWS sends


NUMBER = "49590338271490256608559692538361571095921575989136588898"
RECORD = {"SequenceNumber": NUMBER, "Data": "MQ==", "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.5}
CHILD = {
    "ShardId": "shardId-000000000001",
    "ParentShards": [FIRST],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}


def decoded(*messages):
    events = PushedEvents(lambda one: event_of(one, FIRST, "s"), lambda: None)
    events.receive(b"".join(messages))
    events.end()
    return events


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"Records": []}, "neither ContinuationSequenceNumber nor ChildShards"),
        ({"Records": [], "ContinuationSequenceNumber": NUMBER, "ChildShards": [CHILD]}, "both"),
        ({"Records": [], "ContinuationSequenceNumber": "x"}, "no sequence number"),
        ({"Records": [], "ContinuationSequenceNumber": 7}, "not a text"),
        ({"Records": [], "ChildShards": [{**CHILD, "ParentShards": []}]}, "no ParentShards"),
        ({"ContinuationSequenceNumber": NUMBER}, "no Records"),
        ({"Records": [{}], "ContinuationSequenceNumber": NUMBER}, "record 0"),
    ],
)
def test_an_event_that_cannot_be_true_is_refused_and_ends_the_subscription(members, words):
    events = decoded(event(members), event({"Records": [RECORD], "ContinuationSequenceNumber": NUMBER}))
    with pytest.raises(AnswerRefused, match=words):
        events.poll()
    with pytest.raises(SubscriptionOver):
        events.poll()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("ResourceInUseException", SubscriptionTaken, "another subscription"),
        ("ResourceNotFoundException", TemporaryError, "shows what is gone"),
        ("InternalFailureException", TemporaryError, "InternalFailureException"),
        ("KMSThrottlingException", Throttled, "KMSThrottlingException"),
        ("KMSAccessDeniedException", SetupError, "not permitted"),
        ("KMSDisabledException", SetupError, "is disabled: enable it"),
        ("KMSInvalidStateException", SetupError, "usable state"),
        ("KMSNotFoundException", SetupError, "does not exist"),
        ("KMSOptInRequired", SetupError, "signed up"),
        ("Unheard.Of", TemporaryError, "Unheard.Of"),
    ],
)
def test_an_error_in_the_place_of_an_event_is_sorted_as_one_of_get_records(code, error, words):
    with pytest.raises(error, match=words) as raised:
        decoded(exception(code, "secret words")).poll()
    assert type(raised.value) is error
    assert "secret" not in str(raised.value)


def test_an_error_without_a_type_is_temporary():
    with pytest.raises(TemporaryError, match="InternalError"):
        decoded(message({":message-type": "error", ":error-code": "InternalError"}, b"")).poll()


def test_messages_of_unknown_events_are_passed_over():
    events = decoded(
        event({}, "initial-response"),
        event({"Records": 1}, "SomethingNew"),
        event({"Records": [RECORD], "ContinuationSequenceNumber": NUMBER}),
    )
    assert payloads(events.poll()) == [b"1"]


def test_a_subscription_that_ends_within_a_message_was_cut_off():
    whole = event({"Records": [RECORD], "ContinuationSequenceNumber": NUMBER})
    for at in range(1, len(whole), 7):
        with pytest.raises(TemporaryError, match="cut off within an event"):
            decoded(whole[:at]).poll()


def test_what_has_come_before_the_end_is_delivered_before_it():
    events = decoded(event({"Records": [RECORD], "ContinuationSequenceNumber": NUMBER}))
    assert payloads(events.poll()) == [b"1"]
    with pytest.raises(SubscriptionOver):
        events.poll()


def test_a_subscription_that_ends_before_its_first_event_has_failed():
    with pytest.raises(TemporaryError, match="before its first event"):
        decoded(event({}, "initial-response")).poll()
