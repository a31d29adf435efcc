"""Rows of scans that are as they were are taken from before, and whatever is odd about an answer is left to botocore."""

import base64
import json
import random
import re

import pytest

from pykcl.aws.transport import table_requests as known_rows
from pykcl.aws.transport.table_requests import ParsedPage, RowCache, ScannedRows, decoded
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint, PykclMetadata
from pykcl.model.lease_item import parse_row, to_item

LAYOUTS = {
    "as DynamoDB": {"separators": (",", ":")},
    "as json.dumps": {},
    "indented": {"indent": 2},
}


def row(number, counter=1, **more):
    return Lease(
        f"shardId-{number:012d}",
        Checkpoint(str(100 + number)),
        counter=counter,
        owner="w1",
        metadata=PykclMetadata(stream_arn="arn:aws:kinesis:eu-west-1:1:stream/orders", owner="w1"),
        **more,
    )


def body_of(items, layout="as DynamoDB", *, head=None, tail=None):
    answer = {**(head or {"Count": len(items)}), "Items": items, **(tail or {"ScannedCount": len(items)})}
    how = LAYOUTS[layout]
    return json.dumps(answer, default=lambda value: base64.b64encode(value).decode(), **how).encode()


def plainly(body):
    """As it would be without anything known: the answer without rows, and these."""
    answer = decoded(body, "scan")
    if answer is None or not all(isinstance(item, dict) for item in answer["Items"]):
        return None
    return {**answer, "Items": []}, [parse_row(item) for item in answer["Items"]]


def read(known, body, index=0):
    answer = known.answer_of(body, index)
    return None if answer is None else ({**answer, "Items": []}, answer["Items"].rows)


def known_of(*bodies, known=None):
    seen = ScannedRows(known or RowCache())
    for body in bodies:
        seen.add(seen.row_cache.answer_of(body, seen.next_index))
    return seen.to_cache()


@pytest.fixture
def parsed(monkeypatch):
    """The keys of rows that were parsed."""
    keys = []

    def counted(item):
        keys.append(item["leaseKey"]["S"])
        return parse_row(item)

    monkeypatch.setattr(known_rows, "parse_row", counted)
    return keys


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_rows_that_changed_are_parsed_again(parsed, layout):
    rows = [row(number) for number in range(6)]
    known = known_of(body_of([to_item(one) for one in rows], layout))
    assert len(parsed) == 6
    parsed.clear()
    rows[1], rows[4] = row(1, counter=2), row(4, counter=9)
    again = known_of(body_of([to_item(one) for one in rows], layout), known=known)
    assert parsed == ["shardId-000000000001", "shardId-000000000004"]
    assert again.rows == rows
    assert [one is other for one, other in zip(again.rows, known.rows, strict=True)] == [
        True, False, True, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("now", "parses"),
    [
        ([0, 1, 9, 2, 3, 4, 5], [9]),
        ([1, 2, 3, 4, 5], []),
        ([0, 1, 4, 5], []),
        ([5, 4, 3, 2, 1, 0], []),
        ([8, 9, 0, 1, 2, 3, 4, 5, 7], [8, 9, 7]),
        ([], []),
    ],
)
def test_rows_that_came_went_and_moved_cost_no_parsing_of_the_others(parsed, now, parses):
    known = known_of(body_of([to_item(row(number)) for number in range(6)]))
    parsed.clear()
    again = known_of(body_of([to_item(row(number)) for number in now]), known=known)
    assert again.rows == [row(number) for number in now]
    assert parsed == [f"shardId-{number:012d}" for number in parses]


@pytest.fixture
def decodings(monkeypatch):
    """Where rows were decoded."""
    index_by_text = []
    decode = known_rows._decode
    monkeypatch.setattr(known_rows, "_decode", lambda text, at: index_by_text.append(at) or decode(text, at))
    return index_by_text


@pytest.mark.parametrize(
    ("now", "decoded_again"), [([0, 1, 9, 3, 4], 1), ([0, 9, 1, 2, 3, 4], 2), ([0, 3, 4], 1)]
)
def test_behind_a_row_that_is_new_or_gone_the_others_are_found_again(decodings, now, decoded_again):
    known = known_of(body_of([to_item(row(number)) for number in range(5)]))
    decodings.clear()
    assert known_of(body_of([to_item(row(number)) for number in now]), known=known).rows == list(
        map(row, now)
    )
    assert len(decodings) == decoded_again


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_any_encoding_that_json_knows_is_read(encoding):
    body = body_of([to_item(row(1))])
    assert read(RowCache(), body.decode().encode(encoding)) == plainly(body)


def test_half_a_character_in_one_row_costs_no_other():
    body = body_of([{**to_item(row(1)), "other": {"S": "HALF"}}, to_item(row(2))]).replace(
        b"HALF", b"\xed\xa0\x80"
    )
    answer, (one, other) = read(RowCache(), body)
    assert (one.extra, other) == ({"other": {"S": "\ud800"}}, row(2))
    assert plainly(body) == (answer, [one, other])


def test_what_is_binary_in_a_row_comes_as_bytes():
    more = {"one": {"B": b"a"}, "some": {"BS": [b"b", b"c"]}, "deep": {"M": {"x": {"L": [{"BS": [b"d"]}]}}}}
    for name, value in more.items():
        _, (found,) = read(RowCache(), body_of([{**to_item(row(1)), name: value}]))
        assert found.extra == {name: value}


def test_a_row_that_is_no_lease_hides_none():
    lease = row(1, 50).with_(key="k" * 256)
    foreign = {"leaseKey": {"S": "k" * 256 + "x"}, "entityType": {"S": "STREAM"}}
    for items in ([to_item(lease), foreign], [foreign, to_item(lease)]):
        assert known_of(body_of(items)).by_key == {lease.key: lease}


def test_pages_of_one_scan_go_on_where_the_last_one_ended_and_a_part_finds_its_place(decodings, parsed):
    items = [to_item(row(number)) for number in range(9)]
    pages = [body_of(items[:4]), body_of(items[4:7]), body_of(items[7:])]
    known = known_of(*pages)
    parsed.clear()
    decodings.clear()
    assert known_of(*pages, known=known).rows == known.rows
    assert (parsed, decodings) == ([], [])
    # A segment of the table begins anywhere: one row is decoded until its index is known.
    assert known_of(body_of(items[5:]), known=known).rows == known.rows[5:]
    assert (parsed, len(decodings)) == ([], 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_table_does_the_rows_are_those_of_the_answer(seed, layout):
    rng = random.Random(seed)
    table = [row(number) for number in range(rng.randrange(12))]
    known = RowCache()
    for _ in range(12):
        for _ in range(rng.randrange(6)):
            kind, at = rng.choice(["put", "gone", "beat", "state", "text"]), rng.randrange(len(table) + 1)
            if kind == "put":
                table.insert(at, row(rng.randrange(100, 10**6)))
            elif at == len(table):
                continue
            elif kind == "gone":
                del table[at]
            elif kind == "beat":
                table[at] = table[at].with_(counter=table[at].counter + 1)
            elif kind == "state":
                table[at] = table[at].with_(pending=PendingCheckpoint(Checkpoint("7"), rng.randbytes(5)))
            else:
                table[at] = table[at].with_(
                    owner=rng.choice(['"Items":[{}]', "ä\u2028\U0001f600", '\\"', "},{", "]"])
                )
        body = body_of([to_item(one) for one in table], layout)
        known = known_of(body, known=known)
        assert known.rows == table
        assert read(known, body) == plainly(body)


ODD = {
    "no list": b'{"Count":0,"ScannedCount":0}',
    "rows that are none": b'{"Items":[1,"x",null]}',
    "no list but a row": b'{"Items":{"leaseKey":{"S":"a"}}}',
    "something else beside": b'{"Items":[],"Message":"x"}',
    "the list inside of something": b'{"ConsumedCapacity":{"Items":[]}}',
    "the list inside, and another one": b'{"ConsumedCapacity":{"Items":[]},"Items":[{"leaseKey":{"S":"a"}}]}',
    "two lists": b'{"Items":[{"leaseKey":{"S":"a"}}],"Items":[{"leaseKey":{"S":"b"}}]}',
    "two lists, one empty": b'{"Items":[{"leaseKey":{"S":"a"}}],"Items":[]}',
    "two lists, one written otherwise": b'{"Items":[{"leaseKey":{"S":"a"}}],"\\u0049tems":[]}',
    "a name that ends so": b'{"x\\"Items":[{"leaseKey":{"S":"a"}}]}',
    "more behind it": b'{"Items":[]}]',
    "nothing": b"",
    "no JSON": b"<html>",
    "a comma too many": b'{"Items":[{"leaseKey":{"S":"a"}},]}',
    "a comma too few": b'{"Items":[{"leaseKey":{"S":"a"}}{"leaseKey":{"S":"b"}}]}',
    "no end": b'{"Items":[{"leaseKey":{"S":"a"}}',
    "no text": b'{"Items":[{"leaseKey":{"S":"\xff"}}]}',
    "a word in the place of the list": b'{"ConsumedCapacity":{"Items":[{"leaseKey":{"S":"a"}}]},"Items":"here"}',
    "bytes that are none": b'{"Items":[{"leaseKey":{"S":"a"},"x":{"B":"a"}}]}',
    "too deep": b'{"Items":[' + b'{"a":' * 100_000 + b"}" * 100_000 + b"]}",
    "a list": b'[{"Items":[]}]',
}


@pytest.mark.parametrize("name", ODD)
def test_odd_answers_are_left_to_botocore(name):
    assert RowCache().answer_of(ODD[name], 0) is None


def test_every_answer_that_is_cut_short_is_left_to_botocore():
    items = [to_item(row(number)) for number in range(2)]
    body = body_of(items, tail={"LastEvaluatedKey": {"leaseKey": {"S": "Items"}}})
    known = known_of(body_of(items))
    for size in range(len(body)):
        assert known.answer_of(body[:size], 0) is None
    assert read(known, body) == plainly(body)


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_byte_is_never_overlooked(seed):
    rng = random.Random(seed)
    items = [to_item(row(number)) for number in range(3)]
    body = body_of(items)
    known = known_of(body)
    read_well = 0
    for _ in range(300):
        changed = bytearray(body)
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.randrange(len(changed))
            kind = rng.randrange(3)
            if kind == 0:
                changed[at] = rng.choice(b'{}[]",:\\ 0aIS')
            elif kind == 1:
                del changed[at]
            else:
                changed.insert(at, rng.choice(b'{}[]",:\\ 0aIS'))
        found = read(known, bytes(changed))
        if found is not None:
            read_well += 1
            assert found == plainly(bytes(changed))
    assert read_well > 20


def test_a_scan_whose_pages_came_in_both_ways_leaves_nothing_to_compare_with():
    items = [to_item(row(number)) for number in range(3)]
    seen = ScannedRows(RowCache())
    seen.add(seen.row_cache.answer_of(body_of(items[:2]), 0))
    seen.add({"Items": items[2:]})
    known = seen.to_cache()
    assert known.rows == [row(number) for number in range(3)]
    assert (known.texts, known.items) == ((), {})
    assert list(known.by_key) == [f"shardId-{number:012d}" for number in range(3)]


def test_a_page_that_is_asked_for_twice_counts_once():
    items = [to_item(row(number)) for number in range(3)]
    seen = ScannedRows(RowCache())
    for _ in range(2):
        answer = seen.row_cache.answer_of(body_of(items), seen.next_index)
        assert isinstance(answer["Items"], ParsedPage)
    seen.add(answer)
    assert len(seen.rows) == 3


def test_texts_are_cut_out_to_the_last_brace():
    body = body_of([to_item(row(number)) for number in range(3)], "indented")
    for text in known_of(body).texts:
        assert re.fullmatch(r"\{.*\}", text, re.DOTALL)
        assert json.loads(text)
