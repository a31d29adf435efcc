"""Reports that something keeps failing when it begins and when it ends, not each time."""

from __future__ import annotations

from pykcl.events import TroubleBegan, TroubleEnded
from pykcl.ports import Events
from pykcl.runtime import Runtime


class Trouble:
    """Edge detector for failures, by what was tried and the shard it was tried for (None: the whole worker)."""

    def __init__(self, events: Events, runtime: Runtime) -> None:
        self._events = events
        self._lock = runtime.lock()
        self._failing: set[tuple[str, str | None]] = set()

    def failed(self, what: str, error: Exception, *, shard: str | None = None) -> None:
        with self._lock:
            begins = (what, shard) not in self._failing
            self._failing.add((what, shard))
        if begins:
            self._events.emit(TroubleBegan(what=what, shard=shard, cause=str(error)))

    def worked(self, what: str, *, shard: str | None = None) -> None:
        with self._lock:
            ends = (what, shard) in self._failing
            self._failing.discard((what, shard))
        if ends:
            self._events.emit(TroubleEnded(what=what, shard=shard))

    def shards(self) -> set[str]:
        """The shards something is failing for."""
        with self._lock:
            return {shard for _, shard in self._failing if shard is not None}

    def over(self, shard: str) -> None:
        """Whatever was wrong with this shard is somebody else's now: end all that was reported of it."""
        with self._lock:
            ends = sorted(what for what, about in self._failing if about == shard)
            self._failing.difference_update([(what, shard) for what in ends])
        for what in ends:
            self._events.emit(TroubleEnded(what=what, shard=shard))
