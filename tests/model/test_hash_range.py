"""Hash ranges: read from decimal digits, and the keys that some of them leave to nobody."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.shard import LAST_HASH_KEY, HashRange, gaps

small = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: HashRange(min(ends), max(ends)))


@given(ranges=st.lists(small, max_size=6), within=small)
def test_gaps_are_the_keys_within_a_range_that_are_in_none_of_the_others(ranges, within):
    taken = {key for keys in ranges for key in range(keys.first, keys.last + 1)}
    found = gaps(ranges, within)
    left = [key for gap in found for key in range(gap.first, gap.last + 1)]
    assert left == [key for key in range(within.first, within.last + 1) if key not in taken]
    assert not any(one.last + 1 >= other.first for one, other in itertools.pairwise(found)), "merged"


def test_without_ranges_every_key_is_a_gap():
    assert gaps([]) == [HashRange(0, LAST_HASH_KEY)]


@pytest.mark.parametrize(
    "text", ["", "-1", "01", "1 ", "1\n", "x", "٣", str(LAST_HASH_KEY + 1), "9" * 10_000]
)
def test_what_is_not_a_hash_key_of_128_bits_makes_no_range(text):
    assert HashRange.parse(text, "9") is None
    assert HashRange.parse("0", text) is None


def test_a_range_is_read_from_decimal_digits():
    assert HashRange.parse("0", str(LAST_HASH_KEY)) == HashRange(0, LAST_HASH_KEY)
