"""The shards of a stream by their hash keys: the shard that a record is for, and the records that its consumers see."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from pykcl.model.shard import HashRange, Shard


class ShardMap:
    """One listing of the shards, open and closed ones."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        listed = [(shard, shard.hash_range) for shard in shards if shard.hash_range is not None]
        self._ranges: dict[str, HashRange] = {shard.shard_id: keys for shard, keys in listed}
        self._open = sorted(
            (keys.first, keys.last, shard.shard_id) for shard, keys in listed if shard.is_open
        )
        self._starts: Sequence[int] = [first for first, _, _ in self._open]
        self.open_shards = frozenset(shard_id for _, _, shard_id in self._open)

    def knows(self, shard_id: str) -> bool:
        """Return True for a shard of the listing."""
        return shard_id in self._ranges

    def range_of(self, shard_id: str) -> HashRange | None:
        return self._ranges.get(shard_id)

    def shard_of(self, hash_key: int) -> str | None:
        """Return the open shard of a hash key; None where the listing has none."""
        at = bisect_right(self._starts, hash_key) - 1
        if at < 0 or hash_key > self._open[at][1]:
            return None
        return self._open[at][2]

    def holds(self, shard_id: str, hash_keys: Iterable[int]) -> bool:
        """Return True if the shard has all of these keys, so that its consumers open an aggregate of them."""
        keys = self._ranges.get(shard_id)
        return keys is not None and all(keys.first <= key <= keys.last for key in hash_keys)
