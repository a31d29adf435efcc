"""Records as a Lambda event and back: the documented form for plain records, that of aws-kinesis-agg for user records."""

import json
import re
from base64 import b64encode
from pathlib import Path

import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.kpl import aggregate, deaggregate
from pykcl.model.lambda_event import EventSource, event_of, records_of
from pykcl.model.record import Record

DOCUMENTED = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "lambda_kinesis_event.json").read_text("utf-8")
)
SOURCE = EventSource(
    "arn:aws:kinesis:us-east-2:123456789012:stream/lambda-stream",
    "arn:aws:iam::123456789012:role/lambda-role",
)
SHARD = "shardId-000000000006"


def record(data=b"Hello, this is a test.", **fields):
    values = {
        "partition_key": "1",
        "sequence_number": "49590338271490256608559692538361571095921575989136588898",
        "arrived_at_millis": 1545084650987.0,
        "shard_id": SHARD,
        "stream": "lambda-stream",
    }
    return Record(data, **{**values, **fields})


records = st.builds(
    record,
    data=st.binary(max_size=50),
    partition_key=st.text(max_size=256),
    sequence_number=st.integers(0, 2**186).map(str),
    arrived_at_millis=st.integers(0, 2**42).map(float),
)
user_records = st.builds(
    record,
    data=st.binary(max_size=50),
    partition_key=st.text(max_size=256),
    sub_sequence_number=st.integers(0, 2**31),
    explicit_hash_key=st.none() | st.integers(0, 2**128 - 1).map(str),
    aggregated=st.just(True),
)


def test_an_event_equals_the_one_that_lambda_documents():
    second = record(
        b"This is only a test.",
        sequence_number="49590338271490256608559692540925702759324208523137515618",
        arrived_at_millis=1545084711166.0,
    )
    assert event_of([record(), second], SOURCE) == DOCUMENTED
    assert records_of(DOCUMENTED) == (record(), second)


def test_user_records_of_an_aggregate_equal_the_output_of_aws_kinesis_agg():
    [blob] = aggregate([("a", "17", b"first"), ("b", "18", b"second")])
    kinesis_record = record(blob.data)
    theirs = deaggregate_records(event_of([kinesis_record], SOURCE)["Records"])
    ours = event_of(deaggregate(kinesis_record, None), SOURCE)["Records"]
    for user_record, expected in zip(ours, theirs, strict=True):
        # Theirs is bytes, which is no JSON, and gives each record the eventID of the aggregate.
        expected["kinesis"]["data"] = expected["kinesis"]["data"].decode()
        expected["eventID"] += f":{expected['kinesis']['subSequenceNumber']}"
        assert user_record == expected


@given(st.lists(records | user_records, max_size=5))
def test_the_same_records_come_back_out_of_json(batch):
    text = json.dumps(event_of(batch, SOURCE))
    assert records_of(json.loads(text)) == tuple(batch)


def test_an_event_is_new_each_time_so_that_a_handler_may_change_it():
    batch = [record()]
    event_of(batch, SOURCE)["Records"][0]["kinesis"].clear()
    assert event_of(batch, SOURCE)["Records"] == DOCUMENTED["Records"][:1]


def test_the_time_of_arrival_has_three_decimals_at_most():
    [entry] = event_of([record(arrived_at_millis=1545084650987.4321)], SOURCE)["Records"]
    assert entry["kinesis"]["approximateArrivalTimestamp"] == 1545084650.987


SECRET = "do-not-show"


def changed(**fields):
    entry = event_of([record(SECRET.encode(), partition_key=SECRET, aggregated=True)], SOURCE)["Records"][0]
    for name, value in fields.items():
        place = entry if name.startswith("event") else entry["kinesis"]
        place[name] = value
    return {"Records": [entry]}


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (None, "no list of Records"),
        ({"Records": {}}, "no list of Records"),
        ({"Records": [7]}, "record 0 of 1: it has no kinesis"),
        (changed(data=7), "data is missing or is no text"),
        (changed(data=SECRET), "data is not base64"),
        (changed(data="aß=="), "data is not base64"),
        (changed(partitionKey=None), "partitionKey is missing"),
        (changed(sequenceNumber="TRIM_HORIZON"), "no such number"),
        (changed(sequenceNumber="١٢"), "no such number"),
        (changed(sequenceNumber="9" * 10_000), "no such number"),
        (changed(subSequenceNumber=-1), "no such number"),
        (changed(subSequenceNumber=True), "subSequenceNumber is missing or is no number"),
        (changed(aggregated="yes"), "aggregated is neither true nor false"),
        (changed(explicitHashKey="0x11"), "explicitHashKey is neither a number nor null"),
        (changed(approximateArrivalTimestamp=float("nan")), "no time in seconds"),
        (changed(approximateArrivalTimestamp=10**400), "no time in seconds"),
        (changed(approximateArrivalTimestamp=True), "no time in seconds"),
        (changed(eventID="\x1b[2J:1"), "eventID names no shard"),
        (changed(eventSourceARN="arn:aws:sqs:us-east-2:123456789012:orders"), "no ARN of a stream"),
    ],
)
def test_what_is_no_event_is_refused_without_its_payload(event, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        records_of(event)
    assert SECRET not in str(caught.value)
    assert b64encode(SECRET.encode()).decode() not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
