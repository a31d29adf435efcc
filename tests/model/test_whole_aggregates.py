"""Aggregated records that are delivered whole: their position, and what a reader of either kind leaves to the other."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.kpl import aggregate, batches_of
from pykcl.model.record import Record
from pykcl.model.shard import HashRange

NOWHERE = HashRange(0, 0)


def kinesis_record(number, in_it):
    """A Kinesis record: plain if `in_it` is None, else an aggregate of so many user records."""
    data = b"plain"
    if in_it:
        (blob,) = aggregate([("key", None, f"{number}.{each}".encode()) for each in range(in_it)])
        data = blob.data
    return Record(data, "a", str(number), 1.0, "shard", "stream")


pages = st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=6).map(
    lambda found: [kinesis_record(number, in_it) for number, in_it in enumerate(found, 1)]
)


def delivered(page, *, whole, after=None, size=3, hash_range=None):
    return list(chain.from_iterable(batches_of(page, size, hash_range, after=after, whole=whole)))


@given(page=pages, size=st.integers(1, 4))
def test_each_kinesis_record_is_one_record_with_its_own_data(page, size):
    found = delivered(page, whole=True, size=size)
    assert [(one.sequence_number, one.data, one.partition_key) for one in found] == [
        (one.sequence_number, one.data, one.partition_key) for one in page
    ]
    assert not any(one.aggregated for one in found)
    assert all(one.arrived_at_millis == 1.0 and one.shard_id == "shard" for one in found)


@given(page=pages)
def test_its_position_is_that_of_the_last_user_record_in_it(page):
    for one, whole in zip(page, delivered(page, whole=True), strict=True):
        assert whole.position == delivered([one], whole=False)[-1].position


@given(page=pages, first=st.booleans(), second=st.booleans(), data=st.data())
def test_what_a_reader_has_not_checkpointed_another_one_delivers(page, first, second, data):
    done = data.draw(st.sampled_from(delivered(page, whole=first)), "the last record before the change")
    left = delivered(page, whole=False, after=done.position)
    again = delivered(page, whole=second, after=done.position)
    assert {one.sequence_number for one in again} == {one.sequence_number for one in left}
    if not second:
        assert again == left


def test_a_damaged_aggregate_and_one_of_another_shard_are_delivered_without_a_report():
    damaged = Record(b"\xf3\x89\x9a\xc2 no aggregate", "a", "1", 1.0, "shard", "stream")
    assert delivered([damaged], whole=True) == [damaged]
    (foreign,) = delivered([kinesis_record(2, 3)], whole=True, hash_range=NOWHERE)
    assert foreign.position == Checkpoint("2", 2)


def test_a_plain_page_is_not_copied():
    page = [kinesis_record(number, None) for number in range(1, 4)]
    (batch,) = batches_of(page, 10, None, whole=True)
    assert batch == page
