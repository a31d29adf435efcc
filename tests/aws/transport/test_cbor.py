"""CBOR: anything cbor2 writes is read the same, and a page of it is the page its JSON is."""

import base64
import json
import math
import tracemalloc

import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.aws.kinesis_decode import LAST_MILLIS, _quick, page_of_body, page_of_cbor
from pykcl.aws.transport import cbor
from pykcl.aws.transport.cbor import Allowance, Columns, decode, read_records, text_and_numbers
from pykcl.errors import AnswerRefused

SHARD = "shardId-000000000000"
NUMBER = "49546986683135544286507457936321625675700192471156785154"
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=30),
    st.binary(max_size=30),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# JSON has seconds with a fraction, which tell every millisecond exactly from 2017 to 2038 and most of the others.
TIMES = (st.integers(0, LAST_MILLIS) | st.integers(2**40, 2**41)).filter(lambda at: at / 1000 * 1000.0 == at)
RECORDS = st.fixed_dictionaries(
    {
        "SequenceNumber": st.integers(0, 2**128).map(str) | st.just(NUMBER),
        "ApproximateArrivalTimestamp": TIMES,
        "Data": st.binary(max_size=300) | st.integers(250, 70_000).map(bytes),
        "PartitionKey": st.text(min_size=1, max_size=40),
    },
    optional={"EncryptionType": st.sampled_from(["NONE", "KMS"])},
)
ORDERS = st.permutations(
    ["SequenceNumber", "ApproximateArrivalTimestamp", "Data", "PartitionKey", "EncryptionType"]
)
slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def as_cbor(record, order):
    """Its members in that order, the time as AWS tells it."""
    told = {**record, "ApproximateArrivalTimestamp": cbor2.CBORTag(1, record["ApproximateArrivalTimestamp"])}
    return {name: told[name] for name in order if name in told}


def as_json(record):
    return {
        **record,
        "ApproximateArrivalTimestamp": record["ApproximateArrivalTimestamp"] / 1000,
        "Data": base64.b64encode(record["Data"]).decode(),
    }


def endless(value):
    """CBOR as Jackson writes it: maps and lists without their sizes."""
    if isinstance(value, dict):
        parts = [cbor2.dumps(name) + endless(one) for name, one in value.items()]
        return b"\xbf" + b"".join(parts) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(map(endless, value)) + b"\xff"
    return cbor2.dumps(value)


def page(records, **members):
    return {"NextShardIterator": "AAAA", "MillisBehindLatest": 0, **members, "Records": records}


def everything(found):
    """Of a page, with the records as what they hold."""
    return [
        [[getattr(record, name) for name in record.__slots__] for record in found.records],
        found.next_iterator,
        found.millis_behind_latest,
        found.children,
    ]


@given(VALUES)
def test_what_cbor2_writes_is_read_the_same(value):
    for body in (cbor2.dumps(value), endless(value)):
        assert decode(body) == (value, len(body))
        assert repr(decode(body)[0]) == repr(value)  # True is not 1, 1 is not 1.0


@given(st.dictionaries(st.text(max_size=400), st.text(max_size=300) | st.integers(0, 2**64 - 1), max_size=30))
def test_what_is_asked_is_read_the_same_by_cbor2(members):
    assert cbor2.loads(text_and_numbers(members)) == members


@pytest.mark.parametrize("value", [0.0, 1.5, -2.0, math.inf, 65504.0, 1e300])
def test_numbers_of_every_width(value):
    for kind in (True, False):
        assert decode(cbor2.dumps(value, canonical=kind))[0] == value


def test_texts_and_bytes_in_parts():
    assert decode(b"\x7f\x62ab\x61c\xff") == ("abc", 7)
    assert decode(b"\x5f\x42ab\x40\xff") == (b"ab", 6)


REFUSED = {
    "nothing": b"",
    "cut off head": b"\x19\x01",
    "cut off text": b"\x62a",
    "cut off list": b"\x82\x01",
    "cut off map": b"\xa1\x61a",
    "no break": b"\x9f\x01",
    "a break alone": b"\xff",
    "reserved": b"\x1c",
    "undefined": b"\xf7",
    "number without end": b"\x1f",
    "text in parts of bytes": b"\x7f\x41a\xff",
    "text in endless parts": b"\x7f\x7f\x61a\xff\xff",
    "no UTF-8": b"\x61\xff",
    "a number as key": b"\xa1\x01\x01",
    "a name twice": b"\xa2\x61a\x01\x61a\x02",
    "another tag": b"\xc2\x41\x01",
    "a time that is text": b"\xc1\x61a",
    "a time with a fraction": b"\xc1\xf9\x3c\x00",
    "a time that is true": b"\xc1\xf5",
    "too deep": b"\x81" * 100 + b"\x01",
    "too deep in tags": b"\xc1" * 5000 + b"\x01",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_is_no_cbor_of_aws_is_refused(body):
    with pytest.raises(ValueError, match=r"\w"):
        decode(body)


MANY = 100_000
FLOODS = {
    "of empty lists": b"\x9a" + MANY.to_bytes(4, "big") + b"\x80" * MANY,
    "of empty lists without an end": b"\x9f" + b"\x80" * MANY + b"\xff",
    "of names": b"\xbf" + b"".join(b"\x65%05x\x80" % name for name in range(MANY)) + b"\xff",
    "of empty parts of a text": b"\x7f" + b"\x60" * MANY + b"\xff",
}


@pytest.mark.parametrize("value", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("where", ["beside the records", "in a record"])
def test_an_answer_of_more_values_than_a_page_can_have_is_refused_before_they_are_made(
    monkeypatch, value, where
):
    monkeypatch.setattr(cbor, "MOST_VALUES", 2_000)
    head = b"\xa3\x67Records\x80\x72MillisBehindLatest\x00\x61x"
    if where == "in a record":
        head = b"\xa1\x67Records\x81" + b"\xa1\x61x"
    body = head + value
    tracemalloc.start()
    try:
        with pytest.raises(AnswerRefused):
            page_of_cbor(body, SHARD, "orders")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024


def test_the_values_of_all_records_are_counted_together():
    """Each of them is within the bound."""
    one = {"Data": b"", "PartitionKey": "k", "SequenceNumber": "1", "x": [0] * 1000}
    body = endless(page([{**one, f"x{number}": 1} for number in range(300)]))
    with pytest.raises(AnswerRefused, match="not CBOR that can be read"):
        page_of_cbor(body, SHARD, "orders")


def test_a_page_of_as_many_records_as_kinesis_gives_is_within_the_bound():
    record = {"Data": b"", "PartitionKey": "k", "SequenceNumber": "1"} | {
        f"x{number}": 0 for number in range(9)
    }
    # Its last one differs, so it is read value by value.
    body = endless(page([record] * 9_999 + [{**record, "ApproximateArrivalTimestamp": 0.5}]))
    assert len(page_of_cbor(body, SHARD, "orders").records) == 10_000


@slow
@given(records=st.lists(RECORDS, max_size=8), order=ORDERS, sized=st.booleans())
def test_a_page_is_the_one_its_json_is(records, order, sized):
    told = page([as_cbor(record, order) for record in records])
    body = cbor2.dumps(told) if sized else endless(told)
    expected = page_of_body(json.dumps(page(list(map(as_json, records)))).encode(), SHARD, "orders")
    assert everything(page_of_cbor(body, SHARD, "orders")) == everything(expected)


@slow
@given(
    records=st.lists(
        st.fixed_dictionaries(
            {
                "SequenceNumber": st.just(NUMBER),
                "ApproximateArrivalTimestamp": st.integers(2**40, 2**41),
                "Data": st.integers(0, 600).map(bytes),
                "PartitionKey": st.text("abc", min_size=1, max_size=40),
            }
        ),
        max_size=30,
    ),
    order=ORDERS,
    sized=st.booleans(),
)
def test_the_quick_way_takes_every_usual_page_and_the_careful_one_agrees(records, order, sized):
    told = page([as_cbor(record, order) for record in records])
    body = cbor2.dumps(told) if sized else endless(told)
    document, found = _quick(body, SHARD, "orders")
    assert found == page_of_cbor(body, SHARD, "orders").records
    assert [record.data for record in found] == [record["Data"] for record in records]
    assert "Records" not in document


@slow
@given(
    records=st.lists(RECORDS, min_size=1, max_size=3),
    order=ORDERS,
    at=st.integers(0, 2000),
    sized=st.booleans(),
)
def test_a_page_that_is_cut_off_is_refused_wherever_it_is_cut(records, order, at, sized):
    told = page([as_cbor(record, order) for record in records])
    body = cbor2.dumps(told) if sized else endless(told)
    with pytest.raises(AnswerRefused):
        page_of_cbor(body[: at % len(body)], SHARD, "orders")


@slow
@given(
    records=st.lists(RECORDS, min_size=1, max_size=3),
    order=ORDERS,
    at=st.integers(0, 100_000),
    bits=st.integers(1, 255),
)
def test_a_changed_byte_gives_a_page_or_a_refusal_and_both_ways_agree(records, order, at, bits):
    body = bytearray(cbor2.dumps(page([as_cbor(record, order) for record in records])))
    body[at % len(body)] ^= bits
    try:
        found = page_of_cbor(bytes(body), SHARD, "orders")
    except AnswerRefused:
        return
    careful = decode(bytes(body))[0]
    assert [record.data for record in found.records] == [item["Data"] for item in careful["Records"]]
    assert [record.sequence_number for record in found.records] == [
        item["SequenceNumber"] for item in careful["Records"]
    ]


@given(st.binary(max_size=300))
def test_no_bytes_give_anything_but_a_page_or_a_refusal(body):
    with pytest.raises(AnswerRefused):
        page_of_cbor(body, SHARD, "orders")


RECORD = {"SequenceNumber": NUMBER, "ApproximateArrivalTimestamp": cbor2.CBORTag(1, 1_700_000_000_123)}
RECORD |= {"Data": b"hello", "PartitionKey": "k"}
WRONG = {
    "no Records": {"NextShardIterator": "AAAA"},
    "Records of text": page("none"),
    "a record of text": page(["none"]),
    "no sequence number": page([{**RECORD, "SequenceNumber": None}]),
    "a number as sequence number": page([{**RECORD, "SequenceNumber": 5}]),
    "letters as sequence number": page([{**RECORD, "SequenceNumber": "x" * 56}]),
    "other digits as sequence number": page([{**RECORD, "SequenceNumber": "٣"}]),
    "no data": page([{**RECORD, "Data": None}]),
    "data in base64": page([{**RECORD, "Data": "aGVsbG8="}]),
    "a key of bytes": page([{**RECORD, "PartitionKey": b"k"}]),
    "a time of text": page([{**RECORD, "ApproximateArrivalTimestamp": "now"}]),
    "a time before 1970": page([{**RECORD, "ApproximateArrivalTimestamp": cbor2.CBORTag(1, -1)}]),
    "a time beyond the calendar": page([{**RECORD, "ApproximateArrivalTimestamp": cbor2.CBORTag(1, LAST_MILLIS + 1)}]),
    "neither iterator nor children": {"Records": []},
    "behind by a text": page([], MillisBehindLatest="0"),
    "a list": [page([])],
}  # fmt: skip


@pytest.mark.parametrize("document", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("after_good_ones", [0, 3])
def test_what_kinesis_cannot_have_meant_is_refused(document, after_good_ones):
    if after_good_ones and isinstance(document, dict) and isinstance(document.get("Records"), list):
        document = {**document, "Records": [RECORD] * after_good_ones + document["Records"]}
    with pytest.raises(AnswerRefused) as caught:
        page_of_cbor(cbor2.dumps(document), SHARD, "orders")
    assert "hello" not in str(caught.value)


def test_more_than_a_page_is_refused():
    with pytest.raises(AnswerRefused):
        page_of_cbor(cbor2.dumps(page([RECORD])) + b"\x00", SHARD, "orders")


def test_what_kinesis_may_leave_out_may_be_missing():
    bare = {"SequenceNumber": "5", "Data": b"hi"}
    found = page_of_cbor(cbor2.dumps(page([RECORD, bare, {**bare, "PartitionKey": None}])), SHARD, "orders")
    assert [record.partition_key for record in found.records] == ["k", "", ""]
    assert [record.arrived_at_millis for record in found.records] == [1_700_000_000_123.0, 0.0, 0.0]


def test_a_page_of_many_layouts_is_read_to_its_end_and_in_order():
    sizes = [10, 300, 20, 70_000, 5, 299, 70_001, 0] * 20
    records = [{**RECORD, "Data": bytes(size), "PartitionKey": "k" * (1 + size % 40)} for size in sizes]
    body = cbor2.dumps(records)
    columns = Columns(Allowance())
    assert read_records(body, 2, len(records), columns) == len(body)
    assert [len(data) for data in columns.data] == sizes
    assert len(columns.numbers) == len(columns.millis) == len(columns.keys) == len(sizes)


SPOILED = {
    "another name": (b"nSequenceNumber", b"nSequenceNumbes"),
    "a key in parts": (b"lPartitionKeyak", b"lPartitionKey\x7f"),
    "a time of another form": (b"\xc1\x1b", b"\xc2\x1b"),
    "bytes as sequence number": (b"nSequenceNumberx", b"nSequenceNumberX"),
    "bytes as key": (b"lPartitionKeya", b"lPartitionKeyA"),
    "data of another kind": (b"dDataE", b"dDatae"),
    "another number of members": (b"\xa4", b"\xa5"),
}


@pytest.mark.parametrize(("text", "instead"), SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("spoiled", range(3))
@pytest.mark.parametrize("order", [list(RECORD), sorted(RECORD), sorted(RECORD, reverse=True)])
def test_a_record_that_is_not_as_the_others_is_never_misread(text, instead, spoiled, order):
    body = cbor2.dumps(page([{name: RECORD[name] for name in order}] * 3))
    parts = body.split(text)
    assert len(parts) == 4
    body = text.join(parts[: spoiled + 1]) + instead + text.join(parts[spoiled + 1 :])
    with pytest.raises(AnswerRefused):
        page_of_cbor(body, SHARD, "orders")


TWICE = {
    "Records": [b"gRecords" + cbor2.dumps([RECORD] * 3), b"gRecords" + cbor2.dumps([RECORD])],
    "NextShardIterator": [b"qNextShardIterator" + cbor2.dumps(text) for text in ("AAAA", "BBBB")],
    "ChildShards": [b"kChildShards\x80"] * 2,
}


@pytest.mark.parametrize("name", TWICE)
def test_a_page_with_a_name_twice_is_refused_because_one_of_the_two_would_be_lost(name):
    told = page([RECORD], ChildShards=[])
    others = [cbor2.dumps(one) + cbor2.dumps(told[one]) for one in told if one != name]
    body = b"\xbf" + b"".join([*others, *TWICE[name]]) + b"\xff"
    with pytest.raises(AnswerRefused):
        page_of_cbor(body, SHARD, "orders")


def test_a_record_with_its_data_twice_is_refused():
    members = [cbor2.dumps(name) + cbor2.dumps(value) for name, value in RECORD.items()]
    record = b"\xbf" + b"".join(members) + cbor2.dumps("Data") + cbor2.dumps(b"other") + b"\xff"
    body = cbor2.dumps(page([])).replace(b"gRecords\x80", b"gRecords\x81" + record)
    with pytest.raises(AnswerRefused):
        page_of_cbor(body, SHARD, "orders")


def test_a_record_of_very_many_members_is_left_to_the_careful_way():
    body = cbor2.dumps(page([{**{f"x{number}": number for number in range(33)}, **RECORD}]))
    with pytest.raises(ValueError, match="too many members"):
        _quick(body, SHARD, "orders")
    assert page_of_cbor(body, SHARD, "orders").records[0].data == RECORD["Data"]


@pytest.mark.parametrize("different", [lambda number: number % 2, lambda number: number])
def test_records_that_are_not_alike_are_left_to_the_careful_way(different):
    records = [{**RECORD, "EncryptionType": "KMS" * different(number)} for number in range(1000)]
    body = cbor2.dumps(page(records))
    with pytest.raises(ValueError, match="not alike"):
        _quick(body, SHARD, "orders")
    assert len(page_of_cbor(body, SHARD, "orders").records) == 1000


def test_a_stream_that_is_encrypted_from_some_record_on_is_read_quickly():
    records = [{**RECORD, "EncryptionType": "NONE" if number < 500 else "KMS"} for number in range(1000)]
    assert len(_quick(cbor2.dumps(page(records)), SHARD, "orders")[1]) == 1000


def test_what_others_write_into_records_is_not_remembered():
    cbor._remembered.cache_clear()
    records = [{**RECORD, "Another": "x" * size} for size in (10, 2000)]
    for record in records:
        assert len(_quick(cbor2.dumps(page([record] * 3)), SHARD, "orders")[1]) == 3
    assert cbor._remembered.cache_info().currsize == 1


def test_a_list_that_cannot_be_that_long_is_refused():
    body = cbor2.dumps(page([])).replace(b"gRecords\x80", b"gRecords\x9b" + b"\xff" * 8)
    with pytest.raises(AnswerRefused):
        page_of_cbor(body, SHARD, "orders")


def test_a_key_of_any_length_is_read():
    keys = ["k" * size for size in (1, 23, 24, 255, 256, 1024, 1025, 5000, 2)]
    records = [{**RECORD, "PartitionKey": key} for key in keys]
    found = _quick(cbor2.dumps(page(records)), SHARD, "orders")[1]
    assert [record.partition_key for record in found] == keys


def test_the_children_of_a_shard_are_told_the_same():
    child = {"ShardId": "shardId-000000000001", "ParentShards": [SHARD]}
    child["HashKeyRange"] = {"StartingHashKey": "0", "EndingHashKey": "9"}
    document = {"Records": [], "ChildShards": [child], "MillisBehindLatest": 0}
    expected = page_of_body(json.dumps(document).encode(), SHARD, "orders")
    assert everything(page_of_cbor(cbor2.dumps(document), SHARD, "orders")) == everything(expected)
    assert expected.children
