"""Which form pages are asked for in: CBOR is a quarter smaller and much cheaper to read, JSON is documented.

Kinesis has spoken CBOR to the Java SDK since 2016, but says so nowhere. So "auto" trusts it only after it has read one
place of the stream both ways, in this process and at this endpoint, and found the same records; and whatever goes wrong
with CBOR leads back to JSON, for good.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from pykcl.config import Wire
from pykcl.model.record import Record

log = logging.getLogger("pykcl.kinesis")

MOST_COMPARED: Final = 100
MOST_COMPARED_BYTES: Final = 256 * 1024
"""A comparison reads a little of a page again, and only a little: it counts against the shard's limits."""
_MOST_TRIES: Final = 5

REFUSALS: Final = frozenset({"SerializationException", "UnknownOperationException", "UnsupportedMediaType"})


class Trust:
    """What is known about CBOR at one endpoint. May be used by any number of threads at once."""

    def __init__(self, choice: Wire) -> None:
        self.is_cbor = choice == "cbor"
        self.is_open = choice == "auto"
        """Whether a comparison is still to be made."""
        self._tries = 0

    def distrust(self, reason: str) -> None:
        """JSON from now on."""
        if self.is_cbor or self.is_open:
            log.warning("reading JSON, which costs more CPU, instead of CBOR: %s", reason)
        self.is_cbor = self.is_open = False

    def take_try(self) -> bool:
        """Whether one more comparison may be begun: a few threads may be at it at once, but not for ever."""
        self._tries += 1
        if self._tries > _MOST_TRIES:
            self.distrust(f"{_MOST_TRIES} comparisons of the two came to no end")
        return self.is_open

    def compare(self, json: Sequence[Record], cbor: Sequence[Record]) -> None:
        """json, cbor: records from the same iterator, of which there may be more in one than in the other."""
        common = min(len(json), len(cbor))
        if not common or not self.is_open:
            return
        if list(json[:common]) != list(cbor[:common]):
            self.distrust("the same place read both ways had other records")
            return
        self.is_cbor, self.is_open = True, False
        log.debug("reading CBOR")


def to_compare(records: Sequence[Record]) -> int:
    """How many of a page's records are read again."""
    total = 0
    for number, record in enumerate(records[:MOST_COMPARED]):
        total += len(record.data)
        if total > MOST_COMPARED_BYTES:
            return max(number, 1)
    return min(len(records), MOST_COMPARED)
