"""Whatever stands where Kinesis should be may answer anything: the adapter gives good values or errors of ours."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Literal

import cbor2
import pytest
from hostile_json import Long, anything, bodies, cut, disjointed
from hostile_wire import Answer, HostileWire, ImpatientRuntime, NoSockets, assert_ours
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.aws.kinesis import KinesisStream
from pykcl.errors import PyKclError
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.shard import Shard
from pykcl.planning.lease_creation import create_new_leases
from pykcl.planning.read_schedule import ReadSchedule, after_page

CORPUS = sorted((Path(__file__).parent / "corpus" / "kinesis").glob("*.json"))
SHARD = "shardId-000000000000"
HASHES = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
RECORD = {
    "SequenceNumber": "49546986683135544286507457936321625675700192471156785154",
    "ApproximateArrivalTimestamp": 1_700_000_000.123,
    "Data": base64.b64encode(b"payload").decode(),
    "PartitionKey": "k",
}
CHILD = {"ShardId": "shardId-000000000001", "ParentShards": [SHARD], "HashKeyRange": HASHES}
GOOD = {
    "GetRecords": [
        {"Records": [RECORD, RECORD], "NextShardIterator": "AAAA", "MillisBehindLatest": 0},
        {"Records": [RECORD], "MillisBehindLatest": 0, "ChildShards": [CHILD]},
    ],
    "ListShards": [
        {
            "Shards": [
                {
                    "ShardId": SHARD,
                    "ParentShardId": "shardId-000000000009",
                    "AdjacentParentShardId": "shardId-000000000008",
                    "HashKeyRange": HASHES,
                    "SequenceNumberRange": {"StartingSequenceNumber": "495", "EndingSequenceNumber": "496"},
                }
            ],
            "NextToken": "more",
        }
    ],
    "DescribeStreamSummary": [
        {
            "StreamDescriptionSummary": {
                "StreamName": "orders",
                "StreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
                "StreamStatus": "ACTIVE",
                "StreamCreationTimestamp": 1_600_000_000.5,
                "RetentionPeriodHours": 24,
                "EnhancedMonitoring": [],
                "OpenShardCount": 1,
            }
        }
    ],
    "GetShardIterator": [{"ShardIterator": "AAAA"}],
}
CODES = ["ResourceNotFoundException", "InvalidArgumentException", "ValidationException", "X\nforged", "", "7"]
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "date": st.text(max_size=40)
        | st.sampled_from(["Tue, 99 Foo 99999 99:99:99 GMT", "Mon, 01 Jan 0001 00:00 -9999"]),
        "content-length": st.sampled_from(["", "-1", Long("9" * 5000), "٣", "1e9"]),
        "content-type": st.sampled_from(["text/html", "application/cbor", ""]),
        "x-amzn-errortype": st.text(max_size=20),
    },
)


def answers(operation: str) -> st.SearchStrategy[Answer]:
    good = st.sampled_from(GOOD[operation])
    body = st.one_of(
        good.flatmap(disjointed).map(lambda document: json.dumps(document).encode()),
        good.flatmap(disjointed).map(lambda document: json.dumps(document).encode()),
        st.builds(cut, good, st.integers(0, 2000)),
        bodies,
    )
    error = st.fixed_dictionaries(
        {}, optional={"__type": st.sampled_from(CODES) | anything, "message": anything, "Item": anything}
    ).map(lambda document: json.dumps(document).encode())
    return st.one_of(
        st.builds(Answer, body, st.just(200), HEADERS),
        st.builds(Answer, body | error, st.sampled_from([204, 301, 400, 403, 413, 500, 503]), HEADERS),
    )


hostile = settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def stream_on(wire: HostileWire) -> KinesisStream:
    return KinesisStream(wire.kinesis, "orders", ImpatientRuntime())


def use_page(stream: KinesisStream) -> None:
    """Fetch, and do with the page whatever the worker and a processor do with it."""
    page = stream.fetch(SHARD, "iterator", 1000)
    for record in page.records:
        assert record.position > Checkpoint("TRIM_HORIZON")
        assert record.arrived_at.year >= 1970
        assert isinstance(record.data, bytes)
        assert isinstance(record.partition_key, str)
    list(deaggregate_batch(page.records, None, after=Checkpoint("5")))
    use_shards(page.children)
    assert (page.next_iterator is None) == bool(page.children)
    pace = after_page(
        ReadSchedule(),
        0.0,
        records=len(page.records),
        size=page.body_bytes,
        millis_behind=page.millis_behind_latest,
        idle_time_between_reads=None,
    )
    assert 0.2 <= pace.pause < 60
    assert (page.millis_behind_latest or 0) * 0 == 0
    assert page.body_bytes >= 0


def use_shards(shards: tuple[Shard, ...]) -> None:
    """Plan with them, and open aggregates by their hash ranges."""
    for kind in ("TRIM_HORIZON", "LATEST"):
        create_new_leases(StartPosition(kind), shards, {})
    for shard in shards:
        assert shard.shard_id.isprintable()
        assert len(shard.shard_id) <= 256
        assert isinstance(shard.is_open, bool)
        list(deaggregate_batch([], shard.hash_range))


def use_description(stream: KinesisStream) -> None:
    found = stream.describe()
    assert found.arn.isprintable()
    assert found.status.isprintable()
    assert 0 < found.retention_hours * 3_600_000 * 0.9 < float("inf")


USES = {
    "GetRecords": use_page,
    "ListShards": lambda stream: use_shards(stream.list_shards().shards),
    "DescribeStreamSummary": use_description,
    "GetShardIterator": lambda stream: stream.open(SHARD, ReadFrom("TRIM_HORIZON")),
}


def judge(wire: HostileWire, operation: str, *told: Answer) -> None:
    wire.say(*told)
    stream = stream_on(wire)
    try:
        USES[operation](stream)
    except PyKclError as error:
        assert_ours(error)
    assert stream.server_time_millis() % 1000 == 0
    assert len(wire.asked) < 10, "asked again and again"


@pytest.mark.parametrize("operation", USES)
@hostile
@given(data=st.data())
def test_any_answer_is_a_good_value_or_an_error_of_ours(hostile_wire, operation, data):
    told = data.draw(st.lists(answers(operation), min_size=1, max_size=3))
    judge(hostile_wire, operation, *told)


@hostile
@given(told=answers("GetRecords"))
def test_the_same_holds_for_what_botocores_own_parser_makes_of_a_page(hostile_wire, told):
    hostile_wire.say(told)
    stream = stream_on(hostile_wire)
    hostile_wire.kinesis.meta.events.unregister(
        "before-parse.kinesis.GetRecords", unique_id="pykcl-set-body-aside"
    )
    try:
        use_page(stream)
    except PyKclError as error:
        assert_ours(error)


def lean_stream(wire: HostileWire, form: Literal["auto", "cbor", "json"]) -> KinesisStream:
    stream = KinesisStream(wire.kinesis, "orders", ImpatientRuntime(), record_encoding=form)
    stream._reads._selector._transports["get_records"] = (None, NoSockets(wire, "1.1"))
    return stream


def cbor_answers(told: Answer, cut_at: int) -> Answer:
    """The same in CBOR, perhaps cut off."""
    try:
        body = cbor2.dumps(json.loads(told.raw))
    except (ValueError, TypeError, RecursionError, OverflowError, cbor2.CBOREncodeError):
        return told
    return Answer(body[: cut_at or None], told.status, told.headers)


@pytest.mark.parametrize("form", ["auto", "cbor", "json"])
@hostile
@given(told=st.lists(answers("GetRecords"), min_size=1, max_size=3), cut_at=st.integers(-40, 0))
def test_the_same_holds_for_the_lean_transport(hostile_wire, form, told, cut_at):
    if form != "json":
        told = [cbor_answers(one, cut_at) for one in told]
    hostile_wire.say(*told)
    stream = lean_stream(hostile_wire, form)
    for _ in told:
        try:
            use_page(stream)
        except PyKclError as error:
            assert_ours(error)


@pytest.mark.parametrize("operation", USES)
def test_the_good_answers_are_good(hostile_wire, operation):
    for good in GOOD[operation]:
        hostile_wire.say(Answer({name: value for name, value in good.items() if name != "NextToken"}))
        USES[operation](stream_on(hostile_wire))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_broke_it_does_not_any_more(hostile_wire, path):
    """Each file: the operation, and the answers it got, as status, headers and body."""
    case: dict[str, Any] = json.loads(path.read_text("utf-8"))
    told = [
        Answer(
            one["body"].encode() if isinstance(one["body"], str) else one["body"],
            one.get("status", 200),
            one.get("headers", {}),
        )
        for one in case["answers"]
    ]
    judge(hostile_wire, case["operation"], *told)
