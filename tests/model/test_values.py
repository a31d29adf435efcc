"""The plain values: one total order of checkpoints, records that tell no secrets, shards and leases."""

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.checkpoint import (
    AT_LATEST,
    AT_SHARD_END,
    AT_START_TIMESTAMP,
    AT_TRIM_HORIZON,
    Checkpoint,
    are_sequence_numbers,
    is_sequence_number,
)
from pykcl.model.record import Record

ORDER = [
    AT_START_TIMESTAMP,
    AT_TRIM_HORIZON,
    AT_LATEST,
    Checkpoint("0"),
    Checkpoint("9"),
    Checkpoint("9", 3),
    Checkpoint("10"),
    Checkpoint("49680415608707149000133498873105939488817855938764472322"),
    AT_SHARD_END,
]


def test_checkpoints_have_javas_total_order():
    for (i, one), (j, other) in itertools.product(enumerate(ORDER), repeat=2):
        assert (one < other) == (i < j)
        assert (one >= other) == (i >= j)


numbers = st.integers(0, 2**128).map(str)
positions = st.builds(Checkpoint, numbers, st.integers(0, 1000)) | st.sampled_from(ORDER)


@given(positions, positions, positions)
def test_the_order_is_total_and_transitive(one, other, third):
    assert (one < other) + (one == other) + (one > other) == 1
    if one <= other <= third:
        assert one <= third


@pytest.mark.parametrize(
    "text", ["", "007", "-1", "1.0", "1e5", " 1", "1\n", "latest", "٣", "1" * 130, None, 7]
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises((ValueError, TypeError)):
        Checkpoint(text)


@given(
    st.lists(
        numbers | st.text("0123456789٣ -x", max_size=4) | st.text("19", min_size=125, max_size=140),
        max_size=5,
    )
)
def test_numbers_looked_at_together_are_those_looked_at_one_by_one(texts):
    # 0 is one, but never in a page: whoever asks for all together looks again.
    assert are_sequence_numbers(texts) == all(is_sequence_number(text) and text != "0" for text in texts)


@pytest.mark.parametrize("sub", [-1, 2**63])
def test_sub_sequence_numbers_are_bounded(sub):
    with pytest.raises(ValueError, match="sub-sequence"):
        Checkpoint("1", sub)


def test_shard_end_is_recognised_with_a_stale_sub_sequence_number_too():
    assert Checkpoint("SHARD_END", 7).is_shard_end
    assert Checkpoint("SHARD_END", 7) != AT_SHARD_END


def test_a_record_gives_bytes_text_json_and_an_aware_time():
    record = Record(b'{"id": 1}', "key", "42", 1_700_000_000_500.0, "shardId-0", "orders")
    assert record.json() == {"id": 1}
    assert record.text() == '{"id": 1}'
    assert record.arrived_at == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert record.position == Checkpoint("42", 0)


def test_the_repr_of_a_record_shows_neither_payload_nor_partition_key():
    text = repr(Record(b"CANARY", "CANARY-KEY", "42", 0.0, "shardId-0", "orders"))
    assert "CANARY" not in text
    assert "6 bytes" in text
