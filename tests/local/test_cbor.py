"""The Java SDK's format: the same answers and the same refusals as in JSON, and nothing that fills the machine."""

from __future__ import annotations

import tracemalloc

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_forms import CBOR, JSON, WRITERS, Stamp, ask, exchange, to_cbor

from pykcl.local import wire_cbor
from pykcl.local.errors import AwsError
from pykcl.local.faults import FaultRule
from pykcl.local.request_log import RequestLog
from pykcl.local.server import MAX_BODY_BYTES, AwsApp
from pykcl.local.services import MotoServices
from pykcl.local.stream import LocalKinesis
from pykcl.local.wire_cbor import format_of

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
FIRST = "shardId-000000000000"
BOUND = str(2**126)
BOTH = pytest.mark.parametrize("content_type", [JSON, CBOR], ids=["json", "cbor"])


@pytest.fixture
def app(clock):
    """A new local AWS with the stream "s": its first shard is split and holds two records, the second is open."""
    return new_app(clock)


def new_app(clock):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", 2)
    kinesis.put_record("s", b"\x00\xff first", 'kéy "1"', 0)
    kinesis.put_record("s", b"", "second", 0)
    kinesis.put_record("s", b"x" * 300, "third", 1 << 127)
    kinesis.split("s", FIRST, 2**126)
    kinesis.set_tags("s", {"a": "1"})
    return AwsApp(kinesis, MotoServices(), RequestLog(), clock)


def iterator(app, shard_id=FIRST, kind="TRIM_HORIZON"):
    return app._kinesis.call(
        "GetShardIterator", {"StreamName": "s", "ShardId": shard_id, "ShardIteratorType": kind}
    )["ShardIterator"]


def on_demand(app):
    app._kinesis.call("CreateStream", {"StreamName": "o", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}})
    return ARN.replace("stream/s", "stream/o")


PUT = {"StreamName": "s", "Data": b"\x00\xff", "PartitionKey": "k", "ExplicitHashKey": "0"}
AT = Stamp(1_700_000_000_123)


def consumer(app):
    return app._kinesis._kinesis.register_consumer("s", "app").arn


OPERATIONS = [
    ("AddTagsToStream", {"StreamName": "s", "Tags": {"b": "2"}}),
    ("CreateStream", {"StreamName": "t", "ShardCount": 3, "Tags": {"b": "2"}}),
    ("CreateStream", {"StreamName": "t", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}),
    ("CreateStream", {"StreamName": "t", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO"}),
    ("DecreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 24}),
    ("DeleteStream", {"StreamName": "s", "EnforceConsumerDeletion": True}),
    ("DeregisterStreamConsumer", {"ConsumerARN": consumer}),
    ("DescribeLimits", {}),
    ("DescribeStream", {"StreamARN": ARN, "Limit": 1}),
    ("DescribeStreamConsumer", {"ConsumerARN": consumer}),
    ("DescribeStreamSummary", {"StreamName": "s"}),
    ("GetRecords", {"ShardIterator": iterator, "Limit": 1}),
    ("GetRecords", {"ShardIterator": iterator}),
    ("GetRecords", {"ShardIterator": lambda app: iterator(app, "shardId-000000000001")}),
    ("GetRecords", {"ShardIterator": lambda app: iterator(app, "shardId-000000000001", "LATEST")}),
    ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}),
    ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": AT}),
    ("IncreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 48}),
    ("ListShards", {"StreamName": "s", "MaxResults": 2}),
    ("ListShards", {"StreamName": "s", "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": AT}}),
    ("ListShards", {"StreamName": "s", "ShardFilter": {"Type": "AFTER_SHARD_ID", "ShardId": FIRST}}),
    ("ListStreamConsumers", {"StreamARN": ARN}),
    ("ListStreams", {"Limit": 10}),
    ("ListTagsForStream", {"StreamName": "s"}),
    ("MergeShards", {"StreamName": "s", "ShardToMerge": "shardId-000000000002", "AdjacentShardToMerge": "shardId-000000000003"}),
    ("PutRecord", PUT),
    ("PutRecords", {"StreamName": "s", "Records": [{"Data": b"", "PartitionKey": "k"}, {"Data": b"\xff" * 300, "PartitionKey": "ü" * 30}]}),
    ("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"}),
    ("RemoveTagsFromStream", {"StreamName": "s", "TagKeys": ["a"]}),
    ("SplitShard", {"StreamName": "s", "ShardToSplit": "shardId-000000000002", "NewStartingHashKey": str(2**125)}),
    ("UpdateMaxRecordSize", {"StreamARN": ARN, "MaxRecordSizeInKiB": 10_240}),
    ("UpdateShardCount", {"StreamName": "s", "TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"}),
    ("UpdateStreamRecordDistributionStrategy", {"StreamARN": on_demand, "RecordDistributionStrategy": "AUTO"}),
]  # fmt: skip


def test_every_operation_is_among_the_cases(app):
    assert {operation for operation, _ in OPERATIONS} == set(app._kinesis._operations)


@pytest.mark.parametrize(("operation", "members"), OPERATIONS)
def test_an_answer_in_cbor_equals_that_in_json_field_by_field(clock, operation, members):
    answers, states, logged = [], [], []
    clock.advance(seconds=1)
    for content_type in (JSON, CBOR):
        app = new_app(clock)
        given_members = {key: value(app) if callable(value) else value for key, value in members.items()}
        clock.advance(seconds=1)
        answers.append(ask(app, operation, given_members, content_type))
        states.append(ask(app, "ListShards", {"StreamName": "s"}, JSON).members)
        logged.append([(r.operation, r.parameters, r.status, r.error_code) for r in app._requests])
        clock.advance(seconds=-1)
    in_json, in_cbor = answers
    assert (in_json.status, in_cbor.status) == (200, 200)
    assert (in_json.headers["content-type"], in_cbor.headers["content-type"]) == (JSON, CBOR)
    assert in_cbor.members == in_json.members
    assert list(in_cbor.members) == list(in_json.members)
    assert states[0] == states[1]
    assert logged[0] == logged[1]


def test_records_keep_their_bytes_keys_and_times_and_are_encoded_once(app, clock):
    for _ in range(2):
        answer = ask(app, "GetRecords", {"ShardIterator": iterator(app)}, CBOR).members
        assert [(r["Data"], r["PartitionKey"]) for r in answer["Records"]] == [
            (b"\x00\xff first", 'kéy "1"'),
            (b"", "second"),
        ]
        assert all(r["ApproximateArrivalTimestamp"] == Stamp(clock.millis) for r in answer["Records"])
    (first, _) = app._kinesis._kinesis.get_records(iterator(app)).records
    assert b"first" not in first.cbor  # kept without the data, which is in memory already
    kept = first.cbor
    ask(app, "GetRecords", {"ShardIterator": iterator(app)}, CBOR)
    assert first.cbor is kept


@pytest.mark.parametrize("size", [0, 23, 24, 255, 256, 65_535, 65_536, 1_000_000])
def test_records_and_pages_of_any_size_are_well_formed(clock, size):
    app = new_app(clock)
    app._kinesis._kinesis.create_stream("big", 1)
    count = min(1000, 4_000_000 // (size + 1)) if size in (0, 23, 24, 255, 256) else 2
    for number in range(count):
        app._kinesis._kinesis.put_record("big", bytes([number % 256]) * size, f"k{number}")
    opened = app._kinesis.call(
        "GetShardIterator", {"StreamName": "big", "ShardId": FIRST, "ShardIteratorType": "TRIM_HORIZON"}
    )
    in_json, in_cbor = (ask(app, "GetRecords", opened, kind).members for kind in (JSON, CBOR))
    assert len(in_cbor["Records"]) == count
    assert in_cbor == in_json


def test_a_timestamp_is_tag_1_and_whole_milliseconds_in_both_directions(app, clock):
    # The very bytes a Java SDK client sends for 2023-11-14T22:13:20.123Z.
    sent = bytes.fromhex("a16954696d657374616d70c11b0000018bcfe5687b")
    assert wire_cbor.decode(sent)["Timestamp"].millis == 1_700_000_000_123
    body = ask(app, "DescribeStreamSummary", {"StreamName": "s"}, CBOR).body
    assert b"StreamCreationTimestamp\xc1\x1b" + clock.millis.to_bytes(8, "big") in body


def test_reading_begins_at_the_millisecond_that_was_asked_for(clock):
    for content_type in (JSON, CBOR):
        app = new_app(clock)
        where = {"StreamName": "s", "ShardId": "shardId-000000000001", "ShardIteratorType": "AT_TIMESTAMP"}
        clock.millis += 123
        app._kinesis._kinesis.put_record("s", b"late", "k", 1 << 127)
        for at, expected in ((clock.millis, [b"late"]), (clock.millis - 123, [b"x" * 300, b"late"])):
            opened = ask(app, "GetShardIterator", {**where, "Timestamp": Stamp(at)}, content_type).members
            page = ask(app, "GetRecords", opened, content_type).members
            assert [record["Data"] for record in page["Records"]] == expected


# -- refusals --------------------------------------------------------------------------------------------------

LIST = {"StreamName": "s", "ShardFilter": {"Type": "AT_TIMESTAMP"}}
REFUSED = [
    ("PutRecord", {**PUT, "StreamName": "none"}, "ResourceNotFoundException"),
    ("PutRecord", {**PUT, "StreamName": 5}, "SerializationException"),
    ("PutRecord", {**PUT, "StreamName": ["s"]}, "SerializationException"),
    ("PutRecord", {**PUT, "Data": 5}, "SerializationException"),
    ("PutRecord", {**PUT, "Data": ["x"]}, "SerializationException"),
    ("PutRecord", {**PUT, "Data": None}, "ValidationException"),
    ("PutRecord", {**PUT, "Data": b"x" * 10_485_761}, "ValidationException"),
    ("PutRecord", {**PUT, "PartitionKey": "k" * 257}, "ValidationException"),
    ("PutRecord", {**PUT, "PartitionKey": ""}, "ValidationException"),
    ("PutRecord", {**PUT, "ExplicitHashKey": "x"}, "ValidationException"),
    ("PutRecord", {"StreamName": "s", "PartitionKey": "k"}, "ValidationException"),
    ("PutRecords", {"StreamName": "s", "Records": []}, "ValidationException"),
    ("PutRecords", {"StreamName": "s", "Records": [{"Data": b"", "PartitionKey": "k"}] * 501}, "ValidationException"),
    ("PutRecords", {"StreamName": "s", "Records": [5]}, "SerializationException"),
    ("PutRecords", {"StreamName": "s", "Records": {"Data": b""}}, "SerializationException"),
    ("PutRecords", {"StreamName": "s", "Records": [{"Data": True, "PartitionKey": "k"}]}, "SerializationException"),
    ("PutRecords", {"StreamName": "s", "Records": [{"Data": b"x" * 1_048_570, "PartitionKey": "k"}] * 11}, "InvalidArgumentException"),
    ("PutRecords", {"StreamName": "s", "Records": [{"Data": b"x" * 1_100_000, "PartitionKey": "k"}]}, "InvalidArgumentException"),
    ("CreateStream", {"StreamName": "s", "ShardCount": 1}, "ResourceInUseException"),
    ("CreateStream", {"StreamName": "t"}, "ValidationException"),
    ("CreateStream", {"StreamName": "t", "ShardCount": 1.5}, "SerializationException"),
    ("CreateStream", {"StreamName": "t", "ShardCount": True}, "SerializationException"),
    ("GetRecords", {"ShardIterator": "nonsense"}, "InvalidArgumentException"),
    ("GetRecords", {"ShardIterator": "x", "Limit": 10_001}, "ValidationException"),
    ("GetRecords", {}, "ValidationException"),
    ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "OLDEST"}, "ValidationException"),
    ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "AT_TIMESTAMP"}, "InvalidArgumentException"),
    ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": "now"}, "SerializationException"),
    ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": Stamp(1 << 50)}, "InvalidArgumentException"),
    ("ListShards", {"StreamName": "s", "ShardFilter": {"Type": "OLDEST"}}, "ValidationException"),
    ("ListShards", {"StreamName": "s", "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": False}}, "SerializationException"),
    ("ListShards", {}, "InvalidArgumentException"),
    ("DisableEnhancedMonitoring", {"StreamName": "s", "ShardLevelMetrics": ["ALL"]}, "UnknownOperationException"),
    ("DescribeStreamConsumer", {"StreamARN": ARN, "ConsumerName": "none"}, "ResourceNotFoundException"),
    ("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "no name"}, "ValidationException"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "members", "code"), REFUSED)
def test_a_refusal_in_cbor_is_that_in_json_word_by_word(app, operation, members, code):
    in_json, in_cbor = (ask(app, operation, members, content_type) for content_type in (JSON, CBOR))
    assert in_json.members["__type"] == code
    assert in_cbor.members == in_json.members
    assert in_cbor.status == in_json.status == 400
    for answer, content_type in ((in_json, JSON), (in_cbor, CBOR)):
        assert answer.headers["content-type"] == content_type
        assert answer.headers["x-amzn-errortype"] == code
        assert answer.headers["x-amzn-requestid"]
        assert answer.members["message"]
    assert app._requests.of("kinesis")[0].error_code == code
    assert app._requests.of("kinesis")[0] == app._requests.of("kinesis")[1]


def test_a_time_without_its_tag_is_refused_rather_than_guessed_at(app):
    body = cbor2.dumps(
        {"StreamName": "s", "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": 1_700_000_000}}
    )
    answer = exchange(app, "ListShards", body, CBOR)
    assert (answer.status, answer.members["__type"]) == (400, "SerializationException")


@pytest.mark.parametrize("data", ["dGV4dA==", "text"])
def test_text_is_no_blob_in_cbor(app, data):
    assert ask(app, "PutRecord", {**PUT, "Data": data}, CBOR).members["__type"] == "SerializationException"


@pytest.mark.parametrize("kind", ["throttle", "error", "error-after"])
@BOTH
def test_faults_know_the_operation_and_answer_in_the_format_of_the_request(app, content_type, kind):
    app.faults.replace([FaultRule(kind, service="kinesis", operation="PutRecord")])
    assert ask(app, "ListShards", {"StreamName": "s"}, content_type).status == 200
    answer = ask(app, "PutRecord", PUT, content_type)
    assert answer.status == (400 if kind == "throttle" else 500)
    assert answer.headers["content-type"] == content_type
    assert answer.members["__type"] in ("ProvisionedThroughputExceededException", "InternalFailure")
    assert app._requests.of("kinesis", "PutRecord")[0].parameters == {"StreamName": "s"}


@BOTH
def test_a_bug_is_answered_in_the_format_of_the_request(app, content_type, caplog):
    def hook(*_: str) -> None:
        raise ZeroDivisionError

    app._kinesis._kinesis.fault = hook
    answer = ask(app, "ListStreams", {}, content_type)
    assert (answer.status, answer.members["__type"]) == (500, "InternalFailure")
    assert "local AWS failed" in caplog.text


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (CBOR, CBOR),
        ("Application/X-Amz-Cbor-1.1; charset=x", CBOR),
        ("application/cbor", CBOR),
        (JSON, JSON),
        ("application/json", JSON),
        ("application/x-amz-cbor-1.1x", JSON),
        ("", JSON),
    ],
)
def test_the_content_type_alone_decides_the_format(content_type, expected):
    assert expected == format_of({"content-type": content_type}).content_type
    assert format_of({}).content_type == JSON


# -- junk and harm ---------------------------------------------------------------------------------------------

HEAD = b"\xa1\x61a"
HOSTILE = {
    "not a map": b"\x80",
    "two maps": b"\xa0\xa0",
    "a map and junk": b"\xa0junk",
    "json": b'{"StreamName":"s"}',
    "half a map": b"\xa2\x61a\x01",
    "a reserved head": b"\x1c",
    "a lone break": b"\xff",
    "no UTF-8": HEAD + b"\x61\xff",
    "a key that is no text": b"\xa1\x01\x02",
    "a key that is bytes": b"\xa1\x41a\x02",
    "a key that is a list": b"\xa1\x80\x02",
    "eighteen quintillion bytes": HEAD + b"\x5b" + b"\xff" * 8,
    "eighteen quintillion letters": HEAD + b"\x7b" + b"\xff" * 8,
    "eighteen quintillion items": HEAD + b"\x9b" + b"\xff" * 8,
    "eighteen quintillion members": b"\xbb" + b"\xff" * 8,
    "four billion items": HEAD + b"\x9a" + b"\xff" * 4,
    "a gigabyte promised": HEAD + b"\x5a\x40\x00\x00\x00abc",
    "deep lists": HEAD + b"\x81" * 1_000_000,
    "deep endless lists": HEAD + b"\x9f" * 1_000_000,
    "deep maps": b"\xa1\x61a" * 300_000,
    "deep keys": b"\xa1" * 1_000_000,
    "deep tags": HEAD + b"\xc1" * 1_000_000,
    "millions of empty lists": HEAD + b"\x9a\x00\xa0\x00\x00" + b"\x80" * 0xA00000,
    "millions of empty maps": HEAD + b"\x9f" + b"\xa0" * 0xA00000 + b"\xff",
    "millions of numbers": HEAD + b"\x9a\x00\xa0\x00\x00" + b"\x01" * 0xA00000,
    "millions of empty pieces": HEAD + b"\x5f" + b"\x40" * 0xA00000 + b"\xff",
    "a number of a million digits": HEAD + b"\xc2\x5a\x00\x06\x00\x00" + b"\xff" * 0x60000,
    "a fraction with a huge exponent": HEAD + bytes.fromhex("c4821b7fffffffffffffff01"),
    "a pattern": HEAD + b"\xd8\x23\x6f(a+)+$$$$$$$$$$",
    "a list in itself": HEAD + bytes.fromhex("d81c81d81d00"),
    "a time that is no number": HEAD + b"\xc1\xf9\x7e\x00",
    "an endless time": HEAD + b"\xc1\xf9\x7c\x00",
    "a time beyond every clock": HEAD + b"\xc1\x1b" + b"\xff" * 8,
    "a time that is text": HEAD + b"\xc1\x61a",
    "a time that is a list": HEAD + b"\xc1\x80",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_junk_and_hostile_cbor_are_refused_without_harm(app, name):
    body = HOSTILE[name]
    tracemalloc.start()
    try:
        answer = exchange(app, "PutRecord", body, CBOR)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status, answer.members["__type"]) == (400, "SerializationException")
    assert peak < len(body) + 40_000_000  # and not sixty times the body


def test_maps_and_lists_are_read_eight_deep_and_no_deeper():
    assert wire_cbor.decode(b"\xa1\x61a" * 8 + b"\x01")
    with pytest.raises(AwsError, match="SerializationException"):
        wire_cbor.decode(b"\xa1\x61a" * 9 + b"\x01")


def test_no_tag_but_that_of_a_time_is_accepted():
    def accepted(tag):
        try:
            wire_cbor.decode(HEAD + b"\xda" + tag.to_bytes(4, "big") + b"\x01")
        except AwsError:
            return False
        return True

    # 55799 says "this is CBOR" and changes nothing.
    assert [tag for tag in (*range(60_000), 1 << 31) if accepted(tag)] == [1, 55799]


def request_or_refused(body):
    try:
        return all(isinstance(key, str) for key in wire_cbor.decode(body))
    except AwsError as refused:
        return refused.code == "SerializationException"


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda junk: HEAD + junk))
def test_any_bytes_are_a_request_or_refused(body):
    assert request_or_refused(body)


@given(st.data())
def test_a_cut_or_changed_request_is_a_request_or_refused(data):
    body = bytearray(
        to_cbor({"StreamName": "s", "Records": [{"Data": b"x" * 30, "PartitionKey": "k"}], "Timestamp": AT})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    assert request_or_refused(bytes(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"StreamName":"s","PartitionKey":"\\ud800","Data":""}',
        b'{"StreamName":"s","PartitionKey":"\xff","Data":""}',
        b'{"StreamName":"s","Timestamp":NaN}',
        b'{"StreamName":"s","Timestamp":Infinity}',
        b'{"StreamName":"s","Timestamp":1e308}',
        b'{"StreamName":"s","Timestamp":' + b"9" * 400 + b"}",
        b'{"StreamName":"s","Timestamp":' + b"9" * 5000 + b"}",
    ],
    ids=range(9),
)
def test_hostile_json_is_refused_too(app, body):
    answer = exchange(app, "PutRecord", body, JSON)
    assert (answer.status, answer.members["__type"]) == (400, "SerializationException")


@BOTH
def test_a_body_beyond_all_limits_is_refused_in_its_format(app, content_type):
    answer = exchange(app, "PutRecords", b" " * (MAX_BODY_BYTES + 1), content_type)
    assert (answer.status, answer.members["__type"]) == (413, "RequestEntityTooLargeException")
    assert app._requests.of("kinesis", "PutRecords")[0].status == 413


def test_the_wire_takes_the_largest_batch_there_is_in_both_formats(clock):
    # 10 MB in all, each key of the greatest length.
    records = [{"Data": b"\xff" * 20_452, "PartitionKey": "k" * 256, "ExplicitHashKey": "9" * 38}] * 500
    for content_type in (JSON, CBOR):
        body = WRITERS[content_type]({"StreamName": "s", "Records": records})
        answer = exchange(new_app(clock), "PutRecords", body, content_type)
        assert answer.members["FailedRecordCount"] == 0
