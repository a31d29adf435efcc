"""The consumer of a stream: found, registered, waited for, and what stands in the way of that."""

import json

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from pykcl.aws.push.consumer import MAX_CONSUMERS
from pykcl.aws.push.stream import FanOutStream
from pykcl.errors import ConsumerGone, SetupError, StreamMissing, TemporaryError, Throttled
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import ReadFrom
from pykcl.runtime import SystemRuntime

FIRST = "shardId-000000000000"
START = ReadFrom("TRIM_HORIZON")


class Clock(SystemRuntime):
    """A runtime whose wall clock only waits move on."""

    def __init__(self):
        self.millis = 1_700_000_000_000

    def utcnow_millis(self):
        return self.millis


class Stop:
    """The stop of a worker. A wait for it takes no time, and moves the clock."""

    def __init__(self, clock):
        self.clock, self.waits, self.is_set = clock, 0, False

    def wait(self, seconds):
        self.waits += 1
        self.clock.millis += round(seconds * 1000)
        return self.is_set


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stop(clock):
    return Stop(clock)


@pytest.fixture
def state_seconds(request):
    return getattr(request, "param", 0.0)


@pytest.fixture
def aws(clock, state_seconds):
    with LocalAws(now_millis=clock.utcnow_millis, listing_lag=0, state_seconds=state_seconds) as running:
        running.kinesis.create_stream("s", 1)
        clock.millis += round(state_seconds * 1000)
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


@pytest.fixture
def stream_of(client, clock, stop):
    return lambda consumer="app", stream="s", **more: FanOutStream(
        client, stream, clock, consumer=consumer, stop=stop, **more
    )


class Raw:
    def __init__(self, body):
        self.body = body

    def stream(self):
        return [self.body]


def refuse(client, operation, code, times=100):
    """Let so many requests be answered with an error."""
    left = [None] * times

    def answer(request, **_):
        if left:
            left.pop()
            body = json.dumps({"__type": code, "message": ""}).encode()
            return AWSResponse(request.url, 400, {}, Raw(body))
        return None

    client.meta.events.register(f"before-send.kinesis.{operation}", answer)


def names(aws):
    return [one.name for one in aws.kinesis.list_consumers("s")]


def test_a_consumer_that_is_there_is_used(aws, stream_of, stop):
    arn = aws.kinesis.register_consumer("s", "app").arn
    for consumer in ("app", arn):
        stream = stream_of(consumer, register=False)
        stream.prepare_consumer()
        stream.subscribe(FIRST, START, print).close()
        stop.clock.millis += 5000
    assert names(aws) == ["app"]
    assert stop.waits == 0


@pytest.mark.parametrize("state_seconds", [3.0], indirect=True)
def test_a_consumer_that_is_missing_is_registered_and_waited_for(aws, stream_of, stop):
    stream_of().prepare_consumer()
    assert names(aws) == ["app"]
    assert 1 <= stop.waits <= 4


@pytest.mark.parametrize("state_seconds", [25.0], indirect=True)
def test_a_consumer_that_takes_longer_is_asked_for_again(aws, stream_of, stop):
    stream = stream_of()
    with pytest.raises(TemporaryError, match="not ACTIVE yet"):
        stream.prepare_consumer()
    assert stop.waits == 9
    with pytest.raises(TemporaryError, match="CREATING"):
        stream.prepare_consumer()
    stream.prepare_consumer()


@pytest.mark.parametrize("state_seconds", [30.0], indirect=True)
def test_a_worker_that_stops_does_not_wait_for_it(aws, stream_of, stop):
    stop.is_set = True
    with pytest.raises(TemporaryError):
        stream_of().prepare_consumer()
    assert stop.waits == 1


def test_a_consumer_that_may_not_be_registered_is_missing(aws, stream_of):
    with pytest.raises(SetupError, match="pykcl fanout register s --consumer app"):
        stream_of(register=False).prepare_consumer()
    arn = aws.kinesis.register_consumer("s", "app").arn
    aws.kinesis.deregister_consumer("s", name="app")
    with pytest.raises(SetupError, match="given by ARN is not registered"):
        stream_of(arn).prepare_consumer()
    assert names(aws) == []


@pytest.mark.parametrize(
    "consumer",
    ["arn:aws:kinesis:us-east-1:000000000000:stream/other/consumer/app:1", "arn:aws:kinesis:::stream/s"],
)
def test_a_consumer_of_another_stream_is_refused(stream_of, consumer):
    with pytest.raises(SetupError, match="is not the ARN of a consumer of stream"):
        stream_of(consumer).prepare_consumer()


def test_a_stream_that_is_missing_is_named_instead_of_its_consumer(stream_of):
    with pytest.raises(StreamMissing):
        stream_of(stream="other").prepare_consumer()


def test_a_stream_with_as_many_consumers_as_it_may_have_needs_a_person(aws, stream_of, stop):
    for number in range(MAX_CONSUMERS):
        aws.kinesis.register_consumer("s", f"c{number}")
        stop.clock.millis += 1000
    with pytest.raises(SetupError, match=r"has 20 consumers.*pykcl fanout list s"):
        stream_of().prepare_consumer()


def test_a_registration_that_is_throttled_is_tried_again(aws, client, stream_of):
    refuse(client, "RegisterStreamConsumer", "LimitExceededException", 2)
    stream_of().prepare_consumer()
    assert names(aws) == ["app"]
    refuse(client, "RegisterStreamConsumer", "LimitExceededException")
    with pytest.raises(Throttled):
        stream_of("another").prepare_consumer()


def test_a_consumer_that_another_worker_registers_at_the_same_time_is_used(aws, client, stream_of):
    refuse(client, "RegisterStreamConsumer", "ResourceInUseException", 1)
    stream_of().prepare_consumer()
    assert names(aws) == ["app"]


@pytest.mark.parametrize("operation", ["DescribeStreamConsumer", "RegisterStreamConsumer"])
def test_a_permission_that_is_missing_is_named(client, stream_of, operation):
    refuse(client, operation, "AccessDeniedException")
    with pytest.raises(SetupError, match="not permitted") as raised:
        stream_of().prepare_consumer()
    assert raised.value.code == "E02"


def test_a_consumer_that_was_deregistered_is_registered_again(aws, stream_of):
    stream = stream_of()
    stream.prepare_consumer()
    aws.kinesis.deregister_consumer("s", name="app")
    for _ in range(2):
        with pytest.raises(ConsumerGone, match=r"deregistered.*pykcl fanout register s --consumer app"):
            stream.subscribe(FIRST, START, print)
    assert names(aws) == [], "a call about a shard registers nothing"
    stream.prepare_consumer()
    stream.subscribe(FIRST, START, print).close()
    assert names(aws) == ["app"]
