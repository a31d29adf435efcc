"""Shards that are paused: their leases are kept, and nothing of them is read or delivered."""

from __future__ import annotations

from collections.abc import Iterable

from pykcl.errors import ConfigError

PAUSE_POLL = 1.0
"""Longest sleep of a shard that is paused: what pauses and resumes it, a signal handler say, wakes nobody."""


class Pauses:
    """The pauses of one worker. Any thread and any signal handler may call it: no method takes a lock or waits.

    The worker is paused or not, and each shard follows it unless something else was said of that shard. That is of the
    lease in hand: with the next lease of the shard it follows the worker again.
    """

    def __init__(self) -> None:
        self._is_all = False
        # By the shards whose leases are in hand; None: as the worker.
        self._shards: dict[str, bool | None] = {}

    def begins(self, shard: str) -> None:
        """Note that the worker is about to take a lease."""
        self._shards[shard] = None

    def ends(self, shard: str) -> None:
        """Note that the worker has done with a lease."""
        self._shards.pop(shard, None)

    def set(self, shards: Iterable[str] | None, is_paused: bool) -> None:
        """Pause or resume shards, or the worker (None). A shard whose lease is not in hand is left out.

        Raises ConfigError for what is no collection of texts.
        """
        if shards is None:
            self._is_all = is_paused
            for shard in list(self._shards):
                self._put(shard, None)
            return
        for shard in _checked(shards):
            self._put(shard, is_paused)

    def _put(self, shard: str, is_paused: bool | None) -> None:
        # 1) The lease is in hand; 2) it is lost; 3) this adds its shard again. The next lease of it begins anew, and
        # until then it is not among the shards of the worker.
        if shard in self._shards:
            self._shards[shard] = is_paused

    def has(self, shard: str) -> bool:
        """Return True if the shard is paused."""
        own = self._shards.get(shard)
        return self._is_all if own is None else own

    def among(self, shards: Iterable[str]) -> frozenset[str]:
        """Return those of the shards that are paused."""
        return frozenset(filter(self.has, shards))


def _checked(shards: Iterable[object]) -> frozenset[str]:
    if isinstance(shards, str):
        raise ConfigError(f"{shards[:80]!r} is one text, not a collection of shards. Do: [{shards[:80]!r}].")
    try:
        found = frozenset(shards)
    except TypeError:
        raise ConfigError(
            f"A {type(shards).__name__} is no collection of identifiers of shards. Do: a list of them, such as "
            "[batch.shard_id]; without an argument the whole worker is meant."
        ) from None
    texts = frozenset(shard for shard in found if isinstance(shard, str))
    if texts != found:
        wrong = next(type(shard).__name__ for shard in found if not isinstance(shard, str))
        raise ConfigError(
            f"An identifier of a shard is a text, not of type {wrong}. Do: [batch.shard_id], or some of worker.leases."
        )
    return texts
