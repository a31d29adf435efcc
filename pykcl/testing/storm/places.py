"""Positions in a shard as plain pairs of integers, compared by Python: the judges' own order, not the worker's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Place = tuple[int, int]
"""(sequence number, sub-sequence number). Sentinels lie before every number, SHARD_END behind."""

END: Place = (10**200, 0)
LIBRARY = "other-library"
"""How the names begin of those who write rows by hand, without a look at the counter."""
AT_LATEST: Place = (-1, 0)
AT_TRIM_HORIZON: Place = (-2, 0)
_SENTINELS = {
    "AT_TIMESTAMP": (-3, 0), "TRIM_HORIZON": AT_TRIM_HORIZON, "LATEST": AT_LATEST, "SHARD_END": END,
}  # fmt: skip
FIRST: Place = (0, 0)


def place_of(sequence_number: str, sub_sequence_number: int) -> Place:
    """Raises ValueError for what is neither digits nor a sentinel."""
    sentinel = _SENTINELS.get(sequence_number)
    return sentinel if sentinel is not None else (int(sequence_number), sub_sequence_number)


def place_in(text: str) -> Place:
    """Of a position as events write it: "5:2", or a sentinel. Raises ValueError."""
    number, _, sub = text.partition(":")
    return place_of(number, int(sub or 0))


def checkpoint_place(item: Mapping[str, Any]) -> Place:
    """The checkpoint of a row in wire form. Raises ValueError, KeyError."""
    return place_of(item["checkpoint"]["S"], int(item["checkpointSubSequenceNumber"]["N"]))
