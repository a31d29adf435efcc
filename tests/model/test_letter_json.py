"""Dead letters as JSON: Lambda's form, ours beside it, and what is refused."""

import gzip
import json
import re
import tracemalloc
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.errors import ConfigError
from pykcl.model import letter_json
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.dead_letter import Address
from pykcl.model.letter_json import (
    MAX_LETTER_BYTES,
    LetterTooLarge,
    NotALetter,
    letter_text,
    letters_within,
    read_letter,
)
from tests import letters

FIXTURES = Path(__file__).parents[1] / "fixtures"
DOCUMENTED = json.loads((FIXTURES / "lambda_dead_letter.json").read_text("utf-8"))
SHARD, STREAM = "shardId-000000000001", "orders"
ARN = f"arn:aws:kinesis:eu-west-1:123456789012:stream/{STREAM}"
SECRET = "do-not-show"


def record(number, data=b"{}", **fields):
    return letters.record(number, data, **{"partition_key": "key", **fields})


def letter(*records, **fields):
    values = {"stream_arn": ARN, "message": "'id'", "reason": ""}
    return letters.letter(*(records or (record(100),)), **{**values, **fields})


def form_of(value):
    """Names and types, without values."""
    if isinstance(value, dict):
        return {name: form_of(one) for name, one in value.items()}
    return (
        re.sub(r"[0-9]+", "0", value) if isinstance(value, str) and re.match(r"20..-", value) else type(value)
    )


def test_a_letter_without_payload_and_pykcl_has_the_form_that_lambda_documents():
    ours = json.loads(letter_text(letter()))
    del ours["payload"], ours["pykcl"]
    assert form_of(ours) == form_of(DOCUMENTED)
    assert list(ours) == list(DOCUMENTED)
    assert [list(ours[name]) for name in ours if isinstance(ours[name], dict)] == [
        list(DOCUMENTED[name]) for name in DOCUMENTED if isinstance(DOCUMENTED[name], dict)
    ]
    assert ours["responseContext"] == DOCUMENTED["responseContext"]


def test_a_letter_says_what_was_given_up_and_why():
    given = letter(record(100), record(100, sub_sequence_number=17, aggregated=True), reason="no id")
    found = json.loads(letter_text(given))
    assert found["requestContext"] == {
        "requestId": given.id,
        "functionArn": "pykcl:orders-app:shop.orders:Orders",
        "condition": "RetryAttemptsExhausted",
        "approximateInvokeCount": 3,
    }
    assert found["pykcl"] == {
        "id": given.id,
        "application": "orders-app",
        "processor": "shop.orders:Orders",
        "worker": "ip-10-0-1-7:412:k3",
        "first": "100:0",
        "last": "100:17",
        "error": "KeyError",
        "where": "orders.py:12",
        "message": "'id'",
        "reason": "no id",
        "first_failed_at": "2025-11-23T05:39:58.101Z",
        "stream_created_at": 1763800000000,
    }
    assert found["timestamp"] == "2025-11-23T05:40:12.345Z"
    read = read_letter(json.dumps(found))
    assert (read.id, read.application, read.first, read.last, read.count) == (
        given.id, "orders-app", Checkpoint("100"), Checkpoint("100", 17), 2,
    )  # fmt: skip
    assert (read.error, read.where, read.message, read.reason) == (
        "KeyError",
        "orders.py:12",
        "'id'",
        "no id",
    )
    assert read.records() == given.records


def test_lambdas_own_letters_are_read_with_and_without_payload():
    read = read_letter(json.dumps(DOCUMENTED))
    batch = DOCUMENTED["KinesisBatchInfo"]
    assert (read.id, read.condition) == (DOCUMENTED["requestContext"]["requestId"], "RetryAttemptsExhausted")
    assert (str(read.first), str(read.last)) == (
        batch["startSequenceNumber"] + ":0", batch["endSequenceNumber"] + ":0",
    )  # fmt: skip
    assert (read.count, read.payload, read.application) == (500, None, "")
    event = json.loads((FIXTURES / "lambda_kinesis_event.json").read_text("utf-8"))
    first, last = (one["kinesis"]["sequenceNumber"] for one in event["Records"])
    in_s3 = {
        **DOCUMENTED,
        "payload": json.dumps(event),
        "KinesisBatchInfo": {
            **batch,
            "batchSize": 2,
            "shardId": "shardId-000000000006",
            "startSequenceNumber": first,
            "endSequenceNumber": last,
            "streamArn": event["Records"][0]["eventSourceARN"],
        },
    }
    assert [one.data for one in read_letter(json.dumps(in_s3)).records()] == [
        b"Hello, this is a test.", b"This is only a test.",
    ]  # fmt: skip


def test_a_letter_that_came_through_sns_into_a_queue_is_read():
    text = json.dumps({"Type": "Notification", "MessageId": "1", "Message": letter_text(letter())})
    assert read_letter(text).id == letter().id


@given(
    st.lists(
        st.tuples(st.binary(max_size=30), st.text(min_size=1, max_size=256), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_any_bytes_and_any_key_come_back(rows):
    records = tuple(
        record(number, data, partition_key=key, aggregated=aggregated)
        for number, (data, key, aggregated) in enumerate(rows)
    )
    for compressed in (False, True):
        assert read_letter(letter_text(letter(*records), compressed=compressed)).records() == records


def test_the_largest_record_comes_back():
    large = record(1, bytes(range(256)) * 40 * 1024, partition_key="\U0001f600" * 256)
    [(_, text)] = letters_within(letter(large), MAX_LETTER_BYTES // 2)
    assert read_letter(text).records() == (large,)


def test_a_letter_is_divided_into_what_the_destination_takes():
    records = tuple(record(number, b"%05d" % number * 20) for number in range(50))
    parts = list(letters_within(letter(*records), 5000))
    assert all(len(text) <= 5000 for _, text in parts)
    assert tuple(one for _, text in parts for one in read_letter(text).records()) == records
    ids = [read_letter(text).id for _, text in parts]
    assert ids == [part.id for part, _ in parts]
    assert len(set(ids)) == len(parts) > 5
    # A worker that sends them again sends the same ones.
    again = letters_within(letter(*records, worker_id="another"), 5000)
    assert [part.id for part, _ in again] == ids


def test_a_record_that_is_too_large_is_compressed_and_one_that_still_is_refused():
    [(_, text)] = letters_within(letter(record(1, b"a" * 10_000)), 5000)
    found = json.loads(text)
    assert found["payloadEncoding"] == "gzip"
    assert json.loads(gzip.decompress(b64decode(found["payload"])))["Records"]
    assert read_letter(text).records()[0].data == b"a" * 10_000
    noise = Random(7).randbytes(10_000)
    with pytest.raises(LetterTooLarge):
        list(letters_within(letter(record(1, noise)), 2000))


def test_a_hundred_kilobytes_of_gzip_cost_no_gigabyte():
    """A letter of 90 KB from a queue took 1.7 GB of memory and 5 s, also when it was only listed."""
    for event in (
        "[" + "[]," * 5_000_000 + "0]",
        '{"Records":[' + "{}," * 5_000_000 + "{}]}",
        "[" * 20_000_000,
    ):
        packed = b64encode(gzip.compress(event.encode())).decode()
        found = read_letter(changed(payload=packed, payloadEncoding="gzip"))
        tracemalloc.start()
        try:
            with pytest.raises(NotALetter, match=r"more than 250,000 values|200 levels|too large"):
                found.records()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 64 * 1024 * 1024


def test_a_batch_of_more_records_than_lambda_has_makes_several_letters(monkeypatch):
    monkeypatch.setattr(letter_json, "MAX_LETTER_RECORDS", 3)
    records = tuple(record(number) for number in range(10))
    parts = [read_letter(text) for _, text in letters_within(letter(*records), MAX_LETTER_BYTES)]
    assert [part.count for part in parts] == [2, 3, 2, 3]
    assert tuple(one for part in parts for one in part.records()) == records


def test_the_largest_batch_is_read_again():
    records = tuple(record(100, sub_sequence_number=number, aggregated=True) for number in range(10_000))
    [(_, text)] = letters_within(letter(*records), MAX_LETTER_BYTES // 2)
    assert read_letter(text).records() == records


def test_ids_are_the_same_on_every_worker_and_differ_for_other_records():
    assert letter(worker_id="a", attempts=1).id == letter(worker_id="b", attempts=2).id
    others = [
        letter(),
        letter(application="other"),
        letter(stream_created_at=1),
        letter(shard_id="shardId-000000000002"),
        letter(record(100), record(101)),
        letter(record(100, sub_sequence_number=1)),
    ]
    assert len({one.id for one in others}) == len(others)


def changed(**fields):
    found = json.loads(letter_text(letter(record(100, SECRET.encode(), partition_key=SECRET))))
    found |= {name: value for name, value in fields.items() if name == "payloadEncoding"}
    for place in (found, *(found[name] for name in ("requestContext", "KinesisBatchInfo", "pykcl"))):
        for name in place:
            if name in fields:
                place[name] = fields[name]
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        ("[]", "it has no KinesisBatchInfo"),
        ("[" * 100_000, "it is nested more than 200 levels deep"),
        (" " * (MAX_LETTER_BYTES + 1), "more than"),
        (changed(shardId="\x1b[2J"), "its shardId or its streamArn"),
        (changed(streamArn="arn:aws:sqs:eu-west-1:123456789012:q"), "its shardId or its streamArn"),
        (changed(first="LATEST"), "its first or last position"),
        (changed(first="9" * 5000), "its first or last position"),
        (changed(last="99:0"), "it ends before it begins"),
        (changed(batchSize=0), "its batchSize"),
        (changed(batchSize=10**400), "its batchSize"),
        (changed(requestId="../../x"), "its requestId"),
        (changed(condition="x" * 5000), "its condition"),
        (changed(payload=[]), "its payload is no text"),
        (changed(stream_created_at=-1), "its stream_created_at"),
        (changed(KinesisBatchInfo=None), "it has no KinesisBatchInfo"),
    ],
)
def test_what_is_no_letter_is_refused_without_its_content(text, problem):
    with pytest.raises(NotALetter, match=problem) as caught:
        read_letter(text)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (changed(payload="{"), "its payload is no Lambda event: it is not JSON"),
        (changed(payload='{"Records": [7]}'), "record 0 of 1"),
        (changed(batchSize=2), "its payload has 1 records, and it says 2"),
        (changed(shardId="shardId-000000000009"), "another shard or stream"),
        (changed(streamArn=ARN + "2"), "another shard or stream"),
        (changed(first="1:0"), "begin or end elsewhere"),
        (changed(last="100:7"), "begin or end elsewhere"),
    ],
)
def test_a_letter_whose_records_contradict_it_is_refused(text, problem):
    with pytest.raises(NotALetter, match=problem) as caught:
        read_letter(text).records()
    assert SECRET not in str(caught.value)


def test_a_payload_that_decompresses_without_end_is_refused():
    bomb = replace(read_letter(letter_text(letter(), compressed=True)), encoding="gzip")
    large = b64encode(gzip.compress(b" " * (MAX_LETTER_BYTES + 1))).decode()
    with pytest.raises(NotALetter, match="too large"):
        replace(bomb, payload=large).records()
    with pytest.raises(NotALetter, match="payloadEncoding is not gzip"):
        replace(bomb, encoding="br").records()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("discard", ("discard", "", None, None, "")),
        ("file:/var/letters", ("file", "/var/letters", None, None, "")),
        ("file:letters", ("file", "letters", None, None, "")),
        ("file:///var/letters", ("file", "/var/letters", None, None, "")),
        ("s3://bucket", ("s3", "bucket", None, None, "")),
        ("s3://bucket/a/b", ("s3", "bucket", None, None, "a/b/")),
        ("s3://bucket/a/?owner=123456789012", ("s3", "bucket", None, "123456789012", "a/")),
        ("arn:aws:s3:::bucket", ("s3", "bucket", None, None, "")),
        ("arn:aws:sqs:eu-west-1:123456789012:dlq.fifo", ("sqs", "dlq.fifo", "eu-west-1", "123456789012", "")),
        ("arn:aws-cn:sns:cn-north-1:123456789012:t", ("sns", "t", "cn-north-1", "123456789012", "")),
        (
            "arn:aws:kinesis:eu-west-1:123456789012:stream/x",
            ("kinesis", "x", "eu-west-1", "123456789012", ""),
        ),
    ],
)
def test_an_address_is_read(text, expected):
    found = Address.parse(text)
    assert (found.kind, found.name, found.region, found.account, found.prefix) == expected
    assert found.is_fifo == text.endswith(".fifo")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (None, "is no text"),
        ("", "names no destination"),
        ("Discard", "names no destination"),
        ("/var/letters", "file:/var/letters"),
        ("file:", "names no directory"),
        ("file://host/x", "another machine"),
        ("s3://B_/x", "names no S3 bucket"),
        ("s3://bucket/x?owner=me", "names no S3 bucket"),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/dlq", "name its ARN"),
        ("arn:aws:lambda:eu-west-1:123456789012:function:f", "calls no Lambda function"),
        ("arn:aws:kinesis:eu-west-1:123456789012:orders", "names no destination"),
        ("arn:aws:sqs:eu-west-1:12:dlq", "names no destination"),
    ],
)
def test_a_text_that_names_no_destination_is_refused_with_what_to_write(text, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)) as caught:
        Address.parse(text)
    assert "Do: " in str(caught.value)
