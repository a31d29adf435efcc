"""The position in a shard up to which it was read: a sequence number with its sub-sequence number, or a sentinel.

Protocol: Java KCL's `ExtendedSequenceNumber` (v3.5.1 `retrieval/kpl/ExtendedSequenceNumber.java`): the order is
AT_TIMESTAMP < TRIM_HORIZON < LATEST < every number < SHARD_END, and equal sequence numbers are ordered by their
sub-sequence number. Numbers are compared as integers, never as text: "9" comes before "10".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Literal

AT_TIMESTAMP = "AT_TIMESTAMP"
TRIM_HORIZON = "TRIM_HORIZON"
LATEST = "LATEST"
SHARD_END = "SHARD_END"

_BEFORE_NUMBERS = {AT_TIMESTAMP: -3, TRIM_HORIZON: -2, LATEST: -1}
# Longer digits than this never come from Kinesis (128 bits need 39), and int() of hostile text is quadratic.
_MAX_DIGITS = 129
is_sequence_number = re.compile(rf"(?:0|[1-9][0-9]{{0,{_MAX_DIGITS - 1}}})\Z").match
"""Whether a text (a str!) is a sequence number: a match, or None."""
_MAX_SUB_SEQUENCE_NUMBER = 2**63 - 1


def are_sequence_numbers(texts: Sequence[str]) -> bool:
    """Return whether all texts are, in a third of the time that matching each takes; so False where one is 0, too.

    Raises TypeError unless they are texts, and UnicodeEncodeError (a ValueError) for halves of characters.
    """
    if not texts:
        return True
    # No text is below "1" but the empty one, and those that begin with a 0 (or what is no digit, which is seen anyway).
    return "".join(texts).encode().isdigit() and min(texts) >= "1" and max(map(len, texts)) <= _MAX_DIGITS


@total_ordering
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position inside one shard.

    sequence_number: decimal digits without leading zeros, or one of the four sentinels.
    sub_sequence_number: index inside an aggregated record; 0 for plain records, and for every sentinel Java writes.
    Raises ValueError for anything else.
    """

    sequence_number: str
    sub_sequence_number: int = 0

    def __post_init__(self) -> None:
        if not _is_position(self.sequence_number):
            raise ValueError(
                f"{self.sequence_number[:140]!r} is neither a sequence number (decimal digits) nor one of "
                "TRIM_HORIZON, LATEST, AT_TIMESTAMP, SHARD_END"
            )
        if not 0 <= self.sub_sequence_number <= _MAX_SUB_SEQUENCE_NUMBER:
            raise ValueError(f"sub-sequence number {self.sub_sequence_number} is outside 0..2^63-1")

    @property
    def is_sentinel(self) -> bool:
        """True for the four words that stand where a sequence number could."""
        return not self.sequence_number[0].isdigit()

    @property
    def is_shard_end(self) -> bool:
        """True for (SHARD_END, any sub): rows written by foreign libraries may carry a stale sub-sequence number."""
        return self.sequence_number == SHARD_END

    @property
    def is_start(self) -> bool:
        """True while nothing of the shard has been checkpointed: a sentinel other than SHARD_END."""
        return self.sequence_number in _BEFORE_NUMBERS

    def _order(self) -> tuple[int, int, int]:
        text = self.sequence_number
        if text in _BEFORE_NUMBERS:
            return (_BEFORE_NUMBERS[text], 0, self.sub_sequence_number)
        if text == SHARD_END:
            return (1, 0, self.sub_sequence_number)
        return (0, int(text), self.sub_sequence_number)

    def __lt__(self, other: Checkpoint) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return self._order() < other._order()

    def __str__(self) -> str:
        if self.is_sentinel:
            return self.sequence_number
        return f"{self.sequence_number}:{self.sub_sequence_number}"


def _is_position(text: object) -> bool:
    if not isinstance(text, str):
        return False
    return text in _BEFORE_NUMBERS or text == SHARD_END or is_sequence_number(text) is not None


AT_SHARD_END = Checkpoint(SHARD_END)
AT_TRIM_HORIZON = Checkpoint(TRIM_HORIZON)
AT_LATEST = Checkpoint(LATEST)
AT_START_TIMESTAMP = Checkpoint(AT_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The initial position of an application without leases. at_millis: epoch milliseconds, for AT_TIMESTAMP only."""

    kind: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]
    at_millis: int | None = None


ReadKind = Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"]


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """The position at which to open a shard.

    sequence_number for the two *_SEQUENCE_NUMBER kinds; at_millis for AT_TIMESTAMP.
    """

    kind: ReadKind
    sequence_number: str | None = None
    at_millis: int | None = None
