from __future__ import annotations

import base64
import json
import traceback

import pytest
from botocore.exceptions import (
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.aws.kinesis_decode import page_of_body
from pykcl.errors import (
    AnswerRefused,
    IteratorExpired,
    PyKclError,
    SetupError,
    ShardGone,
    StreamMissing,
    TemporaryError,
    Throttled,
)
from pykcl.model.absence import GONE_AFTER
from pykcl.model.record import Record
from pykcl.model.shard import HashRange, Shard

SHARD = "shardId-000000000000"
SECRET_DATA, SECRET_KEY, SECRET_ITERATOR = "CANARY-payload", "CANARY-key", "CANARY-iterator"
CHILD = {
    "ShardId": "shardId-000000000001",
    "ParentShards": [SHARD],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}


def raw(data: bytes = b"hello", **more):
    return {
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": "k",
        "SequenceNumber": "49600000000000000000000000000000000000000000000000000001",
        "ApproximateArrivalTimestamp": 1_700_000_000.123,
        **more,
    }


def page(*records, **more):
    return {"Records": list(records), "NextShardIterator": "next", "MillisBehindLatest": 7, **more}


def fetch(stream):
    return stream.fetch(SHARD, SECRET_ITERATOR, 100)


def test_a_page_becomes_records_with_shard_and_stream(either_wire):
    wire, stream = either_wire()
    body = json.dumps(page(raw(), raw(b"", EncryptionType="KMS", PartitionKey="ключ☃\ud83d"))).encode()
    wire.answer("GetRecords", body)
    found = fetch(stream)
    number = raw()["SequenceNumber"]
    assert found.records == [
        Record(b"hello", "k", number, 1_700_000_000_123.0, SHARD, "orders"),
        Record(b"", "ключ☃\ud83d", number, 1_700_000_000_123.0, SHARD, "orders"),
    ]
    assert (found.next_iterator, found.millis_behind_latest, found.children) == ("next", 7, ())
    assert found.body_bytes == len(body)
    assert wire.asked("GetRecords") == [{"ShardIterator": SECRET_ITERATOR, "Limit": 100}]


def test_the_arn_goes_with_every_read_once_known_and_the_limit_is_what_kinesis_allows(wire, summary):
    wire.answer("DescribeStreamSummary", summary())
    wire.answer("GetRecords", page())
    stream = wire.stream()
    stream.describe()
    stream.fetch(SHARD, "it", 50_000)
    assert wire.asked("GetRecords") == [
        {
            "ShardIterator": "it",
            "Limit": 10_000,
            "StreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
        }
    ]


def test_the_hook_really_keeps_the_body_from_botocore(wire, monkeypatch):
    wire.answer("GetRecords", page(raw()))
    stream = wire.stream()
    monkeypatch.setattr(
        "pykcl.aws.transport.get_records.page_of_answer", lambda *_: pytest.fail("botocore parsed the body")
    )
    assert len(fetch(stream).records) == 1


def test_somebody_else_using_the_same_client_gets_botocores_own_answer(wire):
    wire.answer("GetRecords", page(raw()))
    wire.stream()
    wire.stream()  # a second stream over one client registers nothing twice
    answer = wire.client.get_records(ShardIterator="theirs")
    assert answer["Records"][0]["Data"] == b"hello"
    assert "pykcl_body" not in answer


def test_what_kinesis_may_leave_out_may_be_missing(either_wire):
    wire, stream = either_wire()
    bare = {"Data": "aGk=", "SequenceNumber": "5"}
    nulls = {**bare, "PartitionKey": None, "ApproximateArrivalTimestamp": None}
    wire.answer("GetRecords", page(raw(), bare, nulls, MillisBehindLatest=None))
    found = fetch(stream)
    assert [one.arrived_at_millis for one in found.records] == [1_700_000_000_123.0, 0.0, 0.0]
    assert [one.partition_key for one in found.records] == ["k", "", ""]
    assert found.millis_behind_latest is None


def test_a_record_of_a_mebibyte_arrives_whole(either_wire):
    wire, stream = either_wire()
    data = bytes(range(256)) * 4096
    wire.answer("GetRecords", page(raw(data)))
    assert fetch(stream).records[0].data == data


def test_the_end_of_a_shard_is_no_iterator_and_children_with_parents(either_wire):
    wire, stream = either_wire()
    wire.answer(
        "GetRecords",
        {"Records": [raw()], "ChildShards": [CHILD], "MillisBehindLatest": 0},
        {"Records": [], "ChildShards": [CHILD], "NextShardIterator": None},
    )
    for count in (1, 0):
        found = fetch(stream)
        assert found.next_iterator is None
        assert found.children == (Shard("shardId-000000000001", (SHARD,), HashRange(0, 9)),)
        assert len(found.records) == count


UNTRUE = [
    {"Records": []},
    {"Records": [], "ChildShards": []},
    {"Records": [raw()], "NextShardIterator": None},
    {"Records": [], "NextShardIterator": "next", "ChildShards": [CHILD]},
    {"Records": [], "NextShardIterator": ""},
    {"Records": [], "ChildShards": [{**CHILD, "ParentShards": []}]},
    {"Records": [], "ChildShards": [{"ShardId": "shardId-000000000001"}]},
    {"Records": [], "ChildShards": [{**CHILD, "ShardId": ""}]},
    {"Records": [], "ChildShards": ["shardId-000000000001"]},
    {"Records": [], "ChildShards": "shardId-000000000001"},
    {"Records": [], "NextShardIterator": 5},
    {"Records": [], "NextShardIterator": ["next"]},
    {"NextShardIterator": "next"},
    {"Records": None, "NextShardIterator": "next"},
    {"Records": {"Data": ""}, "NextShardIterator": "next"},
    {"Records": "no", "NextShardIterator": "next"},
    page(MillisBehindLatest="7"),
    page(MillisBehindLatest=1.5),
    page(raw(SequenceNumber=None)),
    page(raw(SequenceNumber=5)),
    page(raw(SequenceNumber="5x")),
    page(raw(PartitionKey=5)),
    page(raw(PartitionKey=["a"])),
    page(raw(Data=None)),
    page(raw(Data=5)),
    page(raw(Data="abc")),
    page(raw(Data="снег")),
    page(raw(ApproximateArrivalTimestamp=[1])),
    page(raw(ApproximateArrivalTimestamp=10**400)),
    page("record"),
    page(None),
    [],
    "text",
    5,
    None,
    b"",
    b"{",
    b"<html></html>",
    json.dumps(page(raw(), raw())).encode()[:-40],
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"Records": [], "MillisBehindLatest": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("body", UNTRUE, ids=range(len(UNTRUE)))
def test_an_answer_that_cannot_be_true_is_refused_whole(either_wire, body):
    wire, stream = either_wire()
    wire.answer("GetRecords", body if isinstance(body, bytes) else json.dumps(body).encode())
    with pytest.raises(AnswerRefused) as caught:
        fetch(stream)
    assert SHARD in str(caught.value)


def listed(shard_id, *parents, first=0, last=9, closed=False):
    numbers = {"StartingSequenceNumber": "1", **({"EndingSequenceNumber": "9"} if closed else {})}
    return {
        "ShardId": shard_id,
        "HashKeyRange": {"StartingHashKey": str(first), "EndingHashKey": str(last)},
        "SequenceNumberRange": numbers,
        **dict(zip(("ParentShardId", "AdjacentParentShardId"), parents, strict=False)),
    }


CLOSED, OPEN = listed(SHARD, closed=True), listed(SHARD)
LEFT, RIGHT = listed("shardId-000000000001", SHARD, last=4), listed("shardId-000000000002", SHARD, first=5)
NO_FIELDS = {"Records": [], "MillisBehindLatest": 0}


def fetched_after(wire, seconds):
    """The answer to the second of two fetches, so far apart. The first one is refused."""
    stream = wire.stream()
    with pytest.raises(AnswerRefused, match="neither NextShardIterator nor ChildShards"):
        fetch(stream)
    wire.runtime.seconds += seconds
    return fetch(stream)


def test_an_end_without_child_shards_is_decided_by_list_shards_after_some_tries(wire):
    wire.answer("GetRecords", NO_FIELDS, NO_FIELDS, page())
    wire.answer("GetShardIterator", {"ShardIterator": "of-an-open-shard"})
    wire.answer("ListShards", {"Shards": [CLOSED, LEFT, RIGHT]})
    found = fetched_after(wire, GONE_AFTER)
    assert (found.next_iterator, len(found.records)) == (None, 0)
    assert [child.shard_id for child in found.children] == [LEFT["ShardId"], RIGHT["ShardId"]]
    # The field is not missing from every answer, as it is where something on the way leaves it out.
    assert wire.asked("GetShardIterator")[0]["ShardId"] == LEFT["ShardId"]
    assert wire.asked("GetRecords")[-1]["ShardIterator"] == "of-an-open-shard"


def test_records_of_a_page_without_child_shards_come_before_the_end(wire):
    wire.answer("GetRecords", {"Records": [raw()], "NextShardIterator": None})
    wire.answer("GetShardIterator", {"ShardIterator": "after-the-last"})
    wire.answer("ListShards", {"Shards": [CLOSED, LEFT, RIGHT]})
    found = fetched_after(wire, GONE_AFTER)
    assert (found.next_iterator, [record.data for record in found.records]) == ("after-the-last", [b"hello"])
    assert found.children == ()
    (opened,) = wire.asked("GetShardIterator")
    assert (opened["ShardIteratorType"], opened["StartingSequenceNumber"]) == (
        "AFTER_SEQUENCE_NUMBER",
        raw()["SequenceNumber"],
    )


@pytest.mark.parametrize(
    "shards",
    [
        [OPEN], [OPEN, LEFT, RIGHT], [CLOSED], [CLOSED, LEFT], [CLOSED, listed("shardId-000000000009")],
        [LEFT, RIGHT], [listed("shardId-000000000009", closed=True)],
    ],
    ids=["open", "open with children", "no children", "one child of two", "no child of it", "not listed", "another"],
)  # fmt: skip
def test_an_end_that_list_shards_does_not_show_is_refused_by_the_names_of_the_fields(wire, shards):
    wire.answer("GetRecords", NO_FIELDS)
    wire.answer("ListShards", {"Shards": shards})
    with pytest.raises(AnswerRefused, match=r"neither NextShardIterator nor ChildShards, and ListShards"):
        fetched_after(wire, GONE_AFTER)


def test_an_incomplete_listing_shows_no_end(wire):
    wire.answer("GetRecords", NO_FIELDS)
    whole = {"Shards": [CLOSED, LEFT, RIGHT], "NextToken": "more"}
    wire.answer("ListShards", whole, (400, {"__type": "LimitExceededException"}))
    with pytest.raises(AnswerRefused, match="and ListShards"):
        fetched_after(wire, GONE_AFTER)


def test_a_field_that_no_answer_has_ends_no_shard(wire):
    wire.answer("GetRecords", NO_FIELDS)
    wire.answer("GetShardIterator", {"ShardIterator": "of-an-open-shard"})
    wire.answer("ListShards", {"Shards": [CLOSED, LEFT, RIGHT]})
    with pytest.raises(AnswerRefused, match="neither NextShardIterator nor ChildShards"):
        fetched_after(wire, GONE_AFTER)


def test_a_good_page_in_between_makes_the_tries_begin_again(wire):
    wire.answer("GetRecords", NO_FIELDS, page(), NO_FIELDS)
    stream = wire.stream()
    for is_good in (False, True, False):
        wire.runtime.seconds += GONE_AFTER
        if is_good:
            assert fetch(stream).next_iterator == "next"
        else:
            with pytest.raises(AnswerRefused, match="nor ChildShards"):
                fetch(stream)
    assert wire.asked("ListShards") == []


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ExpiredIteratorException", 400, IteratorExpired),
        ("InvalidArgumentException", 400, IteratorExpired),
        ("ProvisionedThroughputExceededException", 400, Throttled),
        ("LimitExceededException", 400, Throttled),
        ("KMSThrottlingException", 400, Throttled),
        ("ThrottlingException", 400, Throttled),
        ("InternalFailureException", 500, TemporaryError),
        ("InternalFailure", 500, TemporaryError),
        ("ServiceUnavailable", 503, TemporaryError),
        ("SomethingNew", 400, TemporaryError),
        ("ExpiredTokenException", 400, TemporaryError),
        ("AccessDeniedException", 400, SetupError),
        ("UnrecognizedClientException", 400, SetupError),
        ("InvalidSignatureException", 400, SetupError),
        ("KMSAccessDeniedException", 400, SetupError),
        ("KMSDisabledException", 400, SetupError),
        ("KMSNotFoundException", 400, SetupError),
        ("KMSInvalidStateException", 400, SetupError),
        ("KMSOptInRequired", 400, SetupError),
    ],
)
def test_each_refusal_is_sorted_by_what_can_be_done(wire, code, status, expected):
    wire.fail("GetRecords", code, f"about {SECRET_ITERATOR}", status)
    with pytest.raises(expected) as caught:
        fetch(wire.stream())
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:9"), TemporaryError),
        (ConnectionClosedError(endpoint_url="http://127.0.0.1:9"), TemporaryError),
        (ReadTimeoutError(endpoint_url="http://127.0.0.1:9"), TemporaryError),
        (NoCredentialsError(), SetupError),
    ],
)
def test_trouble_without_an_answer_is_sorted_too(wire, trouble, expected):
    wire.answer("GetRecords", trouble)
    with pytest.raises(expected) as caught:
        fetch(wire.stream())
    assert type(caught.value) is expected


def test_a_missing_resource_is_the_shard_or_the_stream_as_describe_says(wire, summary):
    wire.fail("GetRecords", "ResourceNotFoundException")
    wire.answer("DescribeStreamSummary", summary())
    with pytest.raises(ShardGone):
        fetch(wire.stream())
    wire.fail("DescribeStreamSummary", "ResourceNotFoundException")
    with pytest.raises(StreamMissing):
        fetch(wire.stream())


def test_a_defect_of_this_program_is_not_taken_for_trouble_at_aws(wire, monkeypatch):
    wire.answer("GetRecords", page())
    monkeypatch.setattr("pykcl.aws.transport.get_records.page_of_answer", lambda *_: 1 / 0)
    monkeypatch.setattr("pykcl.aws.transport.get_records.page_of_body", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetch(wire.stream())


def leaking_answers():
    secret = raw(SECRET_DATA.encode(), PartitionKey=SECRET_KEY)
    body = json.dumps(page(secret, NextShardIterator=SECRET_ITERATOR)).encode()
    yield body[:-30]
    yield body + b"}"
    yield json.dumps(page(secret, raw(Data=5, PartitionKey=SECRET_KEY))).encode()
    yield json.dumps(page(secret, NextShardIterator=None)).encode()
    yield json.dumps(page(raw(PartitionKey=[SECRET_KEY], Data=SECRET_DATA))).encode()
    yield json.dumps(page(raw(SequenceNumber="x", PartitionKey=SECRET_KEY))).encode()
    for code in ("InvalidArgumentException", "ExpiredIteratorException", "AccessDeniedException", "Other"):
        told = {"__type": code, "message": f"{SECRET_ITERATOR} {SECRET_KEY} {SECRET_DATA}"}
        yield (400, json.dumps(told).encode())


@pytest.mark.parametrize("answer", list(leaking_answers()))
def test_no_error_or_traceback_carries_payload_partition_key_or_iterator(either_wire, answer):
    wire, stream = either_wire()
    wire.answer("GetRecords", answer)
    with pytest.raises(PyKclError) as caught:
        fetch(stream)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    encoded = base64.b64encode(SECRET_DATA.encode()).decode().rstrip("=")
    for secret in (SECRET_DATA, SECRET_KEY, SECRET_ITERATOR, encoded):
        assert secret not in shown
    assert caught.value.__context__ is None, "a chained error may hold the whole body"


def test_an_iterator_of_the_wrong_shape_is_not_quoted_either(wire):
    with pytest.raises(SetupError) as caught:
        wire.stream().fetch(SHARD, "", 10)
    assert "ShardIterator" not in "".join(traceback.format_exception(caught.value))


times = st.one_of(
    st.integers(1_000_000_000_000, 2_147_483_647_999).map(lambda millis: millis / 1000),
    st.integers(1_000_000_000, 2_147_483_647),
    st.none(),
)
raw_records = st.builds(
    lambda data, key, number, arrived, extra, drop: {
        name: value
        for name, value in {
            **extra,
            "Data": base64.b64encode(data).decode(),
            "PartitionKey": key,
            "SequenceNumber": str(number),
            "ApproximateArrivalTimestamp": arrived,
        }.items()
        if name not in drop
    },
    st.binary(max_size=300),
    st.text(max_size=20),
    st.integers(0, 10**57),
    times,
    st.dictionaries(st.sampled_from(["EncryptionType", "Later", "Z"]), st.text(max_size=5)),
    st.sets(st.sampled_from(["PartitionKey", "ApproximateArrivalTimestamp", "EncryptionType"])),
)
pages = st.builds(
    lambda records, behind, end, extra: {
        **extra,
        "Records": records,
        "MillisBehindLatest": behind,
        **({"ChildShards": [CHILD, {**CHILD, "ShardId": "b"}]} if end else {"NextShardIterator": "next"}),
    },
    st.lists(raw_records, max_size=8),
    st.none() | st.integers(0, 10**9),
    st.booleans(),
    st.dictionaries(st.sampled_from(["Unknown", "Another"]), st.lists(st.integers(), max_size=2)),
)


@pytest.fixture(scope="module")
def botocore_parse():
    """botocore's parser for one GetRecords body, as used when the hook does not fire."""
    import botocore.session
    from botocore.parsers import create_parser

    shape = (
        botocore.session.get_session().get_service_model("kinesis").operation_model("GetRecords").output_shape
    )
    parser = create_parser("json")
    return lambda body: parser.parse({"body": body, "headers": {}, "status_code": 200}, shape)


@given(answer=pages, ascii_only=st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_both_ways_of_decoding_give_equal_pages(botocore_parse, answer, ascii_only):
    from pykcl.aws.kinesis_decode import page_of_answer

    # A lone surrogate has no UTF-8 form; JSON's own escape for it is covered by the ASCII half.
    body = json.dumps(answer, ensure_ascii=ascii_only).encode("utf-8", "replace")
    quick = page_of_body(body, SHARD, "orders")
    slow = page_of_answer(botocore_parse(body), SHARD, "orders")
    assert quick.records == slow.records
    assert (quick.next_iterator, quick.millis_behind_latest, quick.children) == (
        slow.next_iterator,
        slow.millis_behind_latest,
        slow.children,
    )
    assert quick.body_bytes == len(body)
    assert len(quick.records) == len(answer["Records"])


def test_without_a_length_header_the_size_of_a_page_is_estimated_from_its_data():
    from pykcl.aws.kinesis_decode import page_of_answer

    found = page_of_answer(
        {"Records": [{"Data": b"x" * 3000, "SequenceNumber": "1"}], "NextShardIterator": "n"}, SHARD, "orders"
    )
    assert 4000 <= found.body_bytes <= 4400
