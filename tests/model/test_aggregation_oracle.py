"""Aggregates against aws-kinesis-agg 1.2.3, an independent implementation of the format.

That library edits `sys.path` and registers `messages.proto` in protobuf's default pool, so it lives in a child
process: this very file, run as a script, answers one line of JSON per line of JSON.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.model.kpl import AggregatedBlob, Aggregator, aggregate, deaggregate
from pykcl.model.record import Record

Ask = Callable[[dict[str, Any]], Any]
UserRecordTuple = tuple[str, str | None, bytes]

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=24)
hash_keys = st.integers(0, 2**128 - 1).map(str)
payloads = st.binary(max_size=200)
few_keys = st.sampled_from(["a", "device-17", "schlüssel", "キー", "x" * 130])
plain_user_records = st.lists(st.tuples(keys | few_keys, st.none(), payloads), min_size=1, max_size=40)
explicit_user_records = st.lists(st.tuples(keys | few_keys, hash_keys, payloads), min_size=1, max_size=40)
mixed_user_records = st.lists(
    st.tuples(keys | few_keys, st.none() | hash_keys | st.sampled_from(["0", "7"]), payloads),
    min_size=1,
    max_size=40,
)
unhurried = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Put one question to the child process that has aws-kinesis-agg loaded."""
    child = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def put(question: dict[str, Any]) -> Any:
        child.stdin.write(json.dumps(question) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        assert line, "the oracle process ended"
        return json.loads(line)

    with child:
        yield put
        child.stdin.close()
    assert child.returncode == 0


def _theirs(ask: Ask, user_records: list[UserRecordTuple], max_bytes: int) -> list[AggregatedBlob]:
    listed = [[key, explicit, _text(data)] for key, explicit, data in user_records]
    blobs = ask({"aggregate": listed, "max_bytes": max_bytes})
    return [AggregatedBlob(key, explicit, base64.b64decode(data)) for key, explicit, data in blobs]


def _opened_by_them(ask: Ask, data: bytes) -> list[UserRecordTuple]:
    return [
        (key, explicit, base64.b64decode(data)) for key, explicit, data in ask({"deaggregate": _text(data)})
    ]


def _opened_by_us(data: bytes) -> list[UserRecordTuple]:
    found = list(
        deaggregate(Record(data, "outer", "49", arrived_at_millis=5.0, shard_id="shard-1", stream="s"), None)
    )
    assert [record.sub_sequence_number for record in found] == list(range(len(found)))
    return [(record.partition_key, record.explicit_hash_key, record.data) for record in found]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@unhurried
@given(user_records=plain_user_records | explicit_user_records | mixed_user_records)
def test_an_aggregate_is_byte_for_byte_what_aws_kinesis_agg_makes(
    ask: Ask, user_records: list[UserRecordTuple]
) -> None:
    assert list(aggregate(user_records)) == _theirs(ask, user_records, 1_048_576)


@unhurried
@given(user_records=mixed_user_records, max_bytes=st.integers(520, 3_000))
def test_a_full_aggregate_breaks_at_the_same_user_record(
    ask: Ask, user_records: list[UserRecordTuple], max_bytes: int
) -> None:
    assert list(aggregate(user_records, max_bytes)) == _theirs(ask, user_records, max_bytes)


def test_thousands_of_user_records_break_into_the_same_aggregates(ask: Ask) -> None:
    user_records: list[UserRecordTuple] = [
        (
            f"device-{number % 700}",
            str(number**8) if number % 3 else None,
            bytes([number % 256]) * (number % 900),
        )
        for number in range(3_000)
    ]
    ours = list(aggregate(user_records))
    assert len(ours) >= 2
    assert all(len(blob.data) <= 1_048_576 for blob in ours)
    assert ours == _theirs(ask, user_records, 1_048_576)


@unhurried
@given(user_records=plain_user_records | explicit_user_records)
def test_an_aggregate_opens_into_the_same_user_records(ask: Ask, user_records: list[UserRecordTuple]) -> None:
    for blob in _theirs(ask, user_records, 1_048_576):
        assert _opened_by_us(blob.data) == _opened_by_them(ask, blob.data) == user_records


@unhurried
@given(user_records=mixed_user_records)
def test_where_only_some_have_an_explicit_hash_key_the_others_have_none(
    ask: Ask, user_records: list[UserRecordTuple]
) -> None:
    """aws-kinesis-agg gives those the first entry of the table; Java KCL, and so pykcl, gives them none."""
    (blob,) = _theirs(ask, user_records, 1_048_576)
    assert _opened_by_us(blob.data) == user_records
    theirs = _opened_by_them(ask, blob.data)
    assert [(key, data) for key, _, data in theirs] == [(key, data) for key, _, data in user_records]


@unhurried
@given(data=st.binary(max_size=60), magic=st.booleans())
def test_what_is_no_aggregate_is_plain_to_both(ask: Ask, data: bytes, magic: bool) -> None:
    data = b"\xf3\x89\x9a\xc2" + data if magic else data
    record = Record(data, "k", "49")
    (found,) = deaggregate(record, None)
    assert found is record
    assert ask({"deaggregate": _text(data)}) == [["outer", None, _text(data)]]


def test_a_record_too_large_for_them_is_refused_by_us_too(ask: Ask) -> None:
    user_records: list[UserRecordTuple] = [("key", None, b"x" * 1_100)]
    assert "too big" in ask({"aggregate": [["key", None, _text(b"x" * 1_100)]], "max_bytes": 1_000})["error"]
    with pytest.raises(ValueError, match="max_bytes is 1000"):
        list(aggregate(user_records, 1_000))


def test_a_record_they_drop_without_a_word_is_refused_by_us(ask: Ask) -> None:
    """Their size test leaves out the twenty bytes around the message: such a record is neither kept nor refused."""
    data = b"x" * 985
    kept = ask({"aggregate": [["k", None, _text(data)]], "max_bytes": 1_000})
    opened = [found for _, _, blob in kept for found in _opened_by_them(ask, base64.b64decode(blob))]
    assert data not in [payload for _, _, payload in opened]
    aggregator = Aggregator(1_000)
    aggregator.add("k", None, b"small")
    with pytest.raises(ValueError, match="max_bytes is 1000"):
        aggregator.add("k", None, data)
    rest = aggregator.flush()
    assert rest is not None
    assert _opened_by_us(rest.data) == [("k", None, b"small")]


def main() -> None:
    """The child process: aws-kinesis-agg behind a line-by-line JSON interface."""
    import contextlib
    import warnings
    from datetime import datetime

    warnings.simplefilter("ignore")
    from aws_kinesis_agg import aggregator, deaggregator

    def aggregated(question: dict[str, Any]) -> list[list[Any]]:
        maker = aggregator.RecordAggregator(question["max_bytes"])
        closed = [
            maker.add_user_record(key, base64.b64decode(data), explicit)
            for key, explicit, data in question["aggregate"]
        ]
        contents = [blob.get_contents() for blob in [*closed, maker.clear_and_get()] if blob is not None]
        return [[key, explicit, _text(data)] for key, explicit, data in contents]

    def deaggregated(question: dict[str, Any]) -> list[list[Any]]:
        record = {
            "SequenceNumber": "49",
            "PartitionKey": "outer",
            "ApproximateArrivalTimestamp": datetime.now(UTC),
            "Data": base64.b64decode(question["deaggregate"]),
        }
        answer = []
        for found in deaggregator.iter_deaggregate_records([record], "Boto3"):
            user = found["kinesis"]
            # It hands out sub-records re-encoded, as Lambda does, and plain ones as they came.
            data = user["data"].decode() if user.get("aggregated") else _text(user["data"])
            answer.append([user["partitionKey"], user.get("explicitHashKey"), data])
        return answer

    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            question = json.loads(line)
            try:
                answer: Any = aggregated(question) if "aggregate" in question else deaggregated(question)
            except ValueError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
