"""What the wire formats and the operations of the local Kinesis say to each other.

Requests and answers are dicts of Python values: a blob is `bytes`, a timestamp an `Instant`, everything else what JSON
has. An answer's "Records" may be `StoredRecord`s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pykcl.local.errors import AwsError

Params = dict[str, Any]
Answer = Mapping[str, Any]

MOST_MILLIS = (1 << 63) - 1
"""What the clients' clocks can hold."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, milliseconds since the epoch."""

    millis: int


class WireFormat(Protocol):
    """One format of request and answer bodies; the modules `wire_json` and `wire_cbor` are such."""

    @property
    def CONTENT_TYPE(self) -> str:  # noqa: N802 - a constant of a module
        """What its answers are labelled with."""

    def decode(self, body: bytes) -> Params:
        """A request body. Raises AwsError SerializationException."""

    def encode(self, answer: Answer) -> bytes:
        """An answer body."""


def not_serialized(problem: str) -> AwsError:
    """The error for a body that is not in the format it claims. Say nothing of its content: it may be a payload."""
    return AwsError("SerializationException", problem)


def instant(millis: float) -> Instant | None:
    """The instant so many milliseconds after the epoch; None for what is no number of them."""
    try:
        whole = round(millis)
    except (ValueError, OverflowError):  # not a number, infinite
        return None
    return Instant(whole) if abs(whole) <= MOST_MILLIS else None
