"""Records that are created when they are asked for: they behave as a tuple of the same records, and cost a few objects."""

import gc
import pickle
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.kpl import aggregate, batches_of, deaggregate_batch
from pykcl.model.record import JoinedRecords, PlainRecords, Record, SubRecords, data_bytes, joined

SHARD, STREAM = "shardId-000000000000", "orders"


def plain(count, first=0):
    numbers = range(first, first + count)
    return PlainRecords(
        [b"%d" % number for number in numbers],
        [f"key-{number}" for number in numbers],
        [str(100 + number) for number in numbers],
        [1000.0 + number for number in numbers],
        SHARD,
        STREAM,
    )


def sub_records(count, explicit=False, first=0):
    blob = Record(b"", "key", "500", 7.0, SHARD, STREAM)
    keys = [f"key-{number}" for number in range(count)]
    hash_keys = [str(number) if number % 2 else None for number in range(count)] if explicit else []
    return SubRecords([b"%d" % number for number in range(count)], keys, hash_keys, blob, first)


SEQUENCES = st.one_of(
    st.builds(plain, st.integers(0, 6)),
    st.builds(sub_records, st.integers(0, 6), st.booleans(), st.integers(0, 3)),
    st.builds(
        lambda *parts: JoinedRecords(parts),
        st.builds(plain, st.integers(0, 4)),
        st.builds(sub_records, st.integers(0, 4)),
    ),
    st.builds(lambda count: joined([tuple(plain(count)), sub_records(count)]), st.integers(0, 4)),
)


@given(SEQUENCES, st.slices(8), st.integers(-9, 9))
def test_they_behave_as_a_tuple_of_the_same_records(records, chosen, index):
    expected = tuple(records)
    assert len(records) == len(expected)
    assert records == expected
    assert expected == records
    assert list(records) == list(expected)
    assert list(reversed(records)) == list(reversed(expected))
    assert list(records[chosen]) == list(expected[chosen])
    assert data_bytes(records) == sum(len(record.data) for record in expected)
    assert bool(records) == bool(expected)
    if -len(expected) <= index < len(expected):
        assert records[index] == expected[index]
        assert records[index] in records
    else:
        with pytest.raises(IndexError):
            records[index]


@given(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 4), st.integers(0, 12))
def test_batches_are_those_of_the_records_one_by_one(page, size, after):
    """page: for each Kinesis record how many user records are in it, 0 for a plain one."""
    records = []
    for number, count in enumerate(page, start=1):
        data = b"plain"
        if count:
            (blob,) = aggregate([(f"key-{each}", None, b"%d" % each) for each in range(count)])
            data = blob.data
        records.append(Record(data, "key", str(number), 1.0, SHARD, STREAM))
    columns = PlainRecords(
        [each.data for each in records],
        [each.partition_key for each in records],
        [each.sequence_number for each in records],
        [each.arrived_at_millis for each in records],
        SHARD,
        STREAM,
    )
    position = Checkpoint(str(after // 3), after % 3) if after else None
    one_by_one = deaggregate_batch(records, None, after=position)
    expected = list(iter(lambda: tuple(islice(one_by_one, size)), ()))
    for given_as in (records, columns):
        assert [tuple(batch) for batch in batches_of(given_as, size, None, after=position)] == expected


@pytest.mark.parametrize("in_each", [1, 100])
def test_a_page_of_ten_thousand_records_is_a_few_objects_for_the_collector(in_each):
    count = 10_000 // in_each
    data = [b"x"] * count
    if in_each > 1:
        (blob,) = aggregate([("key", None, b"x")] * in_each)
        data = [blob.data] * count
    page = PlainRecords(data, ["key"] * count, [str(n) for n in range(count)], [1.0] * count, SHARD, STREAM)
    next(batches_of(page[:1], 1, None))  # loads protobuf
    gc.collect()
    before = len(gc.get_objects())
    (batch,) = batches_of(page, 10_000, None)
    for number, _ in enumerate(batch):
        if number == 5_000:
            alive = len(gc.get_objects()) - before
    assert len(batch) == 10_000
    # An aggregate is opened as a whole: its columns, and the record it came in.
    assert alive < (30 if in_each == 1 else 30 + 6 * count)


def test_a_record_of_them_can_be_pickled():
    record = sub_records(3, explicit=True)[1]
    assert pickle.loads(pickle.dumps(record)) == record


def test_other_objects_are_not_equal_and_no_text_quotes_a_record():
    assert plain(1) != 5
    assert plain(1) != "x"
    assert repr(plain(2)) == "<2 records>"
