"""Records that were put, delivered and taken by retention: the expected state, independent of the lease table.

Positions are plain pairs of integers, compared by Python: an order of the checkers' own, not the worker's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pykcl.model.shard import HashRange

Position = tuple[int, int]
"""(sequence number, sub-sequence number). Sentinels lie before every number, SHARD_END behind."""

END: Position = (10**200, 0)
LIBRARY = "other-library"
"""Prefix of the names of those who write rows without reading the counter."""
AT_LATEST: Position = (-1, 0)
AT_TRIM_HORIZON: Position = (-2, 0)
_SENTINELS = {
    "AT_TIMESTAMP": (-3, 0), "TRIM_HORIZON": AT_TRIM_HORIZON, "LATEST": AT_LATEST, "SHARD_END": END,
}  # fmt: skip
FIRST: Position = (0, 0)


def position_of(sequence_number: str, sub_sequence_number: int) -> Position:
    """Raises ValueError for what is neither digits nor a sentinel."""
    sentinel = _SENTINELS.get(sequence_number)
    return sentinel if sentinel is not None else (int(sequence_number), sub_sequence_number)


def position_in(text: str) -> Position:
    """Parse a position of an event: "5:2", or a sentinel. Raises ValueError."""
    number, _, sub = text.partition(":")
    return position_of(number, int(sub or 0))


def checkpoint_position(item: Mapping[str, Any]) -> Position:
    """The checkpoint of a row in wire form. Raises ValueError, KeyError."""
    return position_of(item["checkpoint"]["S"], int(item["checkpointSubSequenceNumber"]["N"]))


class ShardRecords:
    """Records of one shard in order of their positions. before: put before the start, and owed to nobody."""

    def __init__(self) -> None:
        self.put: list[Position] = []
        self.before: set[Position] = set()
        self.positions: set[Position] = set()
        self.delivered: set[Position] = set()
        self.trimmed: set[Position] = set()
        self._arrivals: list[int] = []
        self._dropped: dict[int, int] = {}
        self.is_trimmed = False
        self._settled = 0

    def add(self, position: Position, arrived_at: int) -> None:
        self.put.append(position)
        self.positions.add(position)
        self._arrivals.append(arrived_at)

    def drop(self, sequence_number: int, arrived_at: int) -> None:
        """A record was put that nobody is to be given: an aggregate of another shard."""
        self._dropped[sequence_number] = arrived_at

    def is_dropped(self, sequence_number: int) -> bool:
        return sequence_number in self._dropped

    def trim(self, horizon: int) -> None:
        """Retention took what arrived before `horizon`, epoch milliseconds."""
        count = len(self.trimmed)
        while count < len(self.put) and self._arrivals[count] < horizon:
            self.trimmed.add(self.put[count])
            count += 1
        self.is_trimmed = count > 0 or any(arrived_at < horizon for arrived_at in self._dropped.values())

    def first_owed(self) -> Position | None:
        """The first record that was neither delivered nor trimmed."""
        while self._settled < len(self.put) and self._is_settled(self.put[self._settled]):
            self._settled += 1
        return self.put[self._settled] if self._settled < len(self.put) else None

    def owed(self) -> int:
        self.first_owed()
        return sum(not self._is_settled(position) for position in self.put[self._settled :])

    def after(self, position: Position) -> list[Position]:
        return self.put[bisect_right(self.put, position) :]

    def never_delivered(self) -> list[Position]:
        """Return the records that retention took before anybody had them."""
        return sorted(self.trimmed - self.delivered)

    def _is_settled(self, position: Position) -> bool:
        return position in self.delivered or position in self.trimmed


class RecordLog:
    """All shards, with their parents, also those that Kinesis has forgotten.

    horizon: retention has taken everything that arrived before it, epoch milliseconds. ranges: the
    hash keys of each shard.
    """

    def __init__(self, horizon: Callable[[], int]) -> None:
        self._horizon = horizon
        self.shards: dict[str, ShardRecords] = defaultdict(ShardRecords)
        self.parents: dict[str, tuple[str, ...]] = {}
        self.ranges: dict[str, HashRange] = {}
        self.deliveries = 0

    def shard(self, shard_id: str) -> ShardRecords:
        """Return the shard as it is now, without the records that retention has removed."""
        shard = self.shards[shard_id]
        shard.trim(self._horizon())
        return shard

    def delivered(self, shard_id: str, positions: list[Position]) -> None:
        self.deliveries += len(positions)
        self.shards[shard_id].delivered.update(positions)

    def owed(self) -> dict[str, int]:
        """Return the number of records that each shard still owes."""
        return {name: owed for name in sorted(self.shards) if (owed := self.shard(name).owed())}

    def records(self) -> int:
        return sum(len(shard.put) for shard in self.shards.values())

    def ancestors(self, shard_id: str) -> set[str]:
        found: set[str] = set()
        ahead = list(self.parents.get(shard_id, ()))
        while ahead:
            parent = ahead.pop()
            if parent not in found:
                found.add(parent)
                ahead += self.parents.get(parent, ())
        return found

    def children(self, shard_id: str) -> list[str]:
        return [child for child, parents in self.parents.items() if shard_id in parents]
