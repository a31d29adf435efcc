"""What was put, what was delivered, what retention took: the storm's own books, independent of the lease table."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

from pykcl.model.shard import HashRange
from pykcl.testing.storm.places import Place


class ShardLedger:
    """One shard's records in order of their positions. before: put before the storm's start, and owed to nobody."""

    def __init__(self) -> None:
        self.put: list[Place] = []
        self.before: set[Place] = set()
        self.places: set[Place] = set()
        self.delivered: set[Place] = set()
        self.trimmed: set[Place] = set()
        self._arrivals: list[int] = []
        self._dropped: dict[int, int] = {}
        self.is_trimmed = False
        self._settled = 0

    def add(self, position: Place, arrived_at: int) -> None:
        self.put.append(position)
        self.places.add(position)
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

    def first_owed(self) -> Place | None:
        """The first record that was neither delivered nor trimmed."""
        while self._settled < len(self.put) and self._is_settled(self.put[self._settled]):
            self._settled += 1
        return self.put[self._settled] if self._settled < len(self.put) else None

    def owed(self) -> int:
        self.first_owed()
        return sum(not self._is_settled(position) for position in self.put[self._settled :])

    def after(self, position: Place) -> list[Place]:
        return self.put[bisect_right(self.put, position) :]

    def never_delivered(self) -> list[Place]:
        """What retention took before anybody had it."""
        return sorted(self.trimmed - self.delivered)

    def _is_settled(self, position: Place) -> bool:
        return position in self.delivered or position in self.trimmed


class Ledger:
    """All shards, with their parents, also those that Kinesis has forgotten.

    horizon: tells what retention has taken by now: everything that arrived before it, epoch milliseconds. ranges: the
    hash keys of each shard.
    """

    def __init__(self, horizon: Callable[[], int]) -> None:
        self._horizon = horizon
        self.shards: dict[str, ShardLedger] = defaultdict(ShardLedger)
        self.parents: dict[str, tuple[str, ...]] = {}
        self.ranges: dict[str, HashRange] = {}
        self.deliveries = 0

    def shard(self, shard_id: str) -> ShardLedger:
        """As it is now: without what retention has taken."""
        shard = self.shards[shard_id]
        shard.trim(self._horizon())
        return shard

    def delivered(self, shard_id: str, positions: list[Place]) -> None:
        self.deliveries += len(positions)
        self.shards[shard_id].delivered.update(positions)

    def owed(self) -> dict[str, int]:
        """How many records each shard still owes."""
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
