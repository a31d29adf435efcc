"""Reports that something keeps failing when it begins and when it ends, not each time."""

from __future__ import annotations

from pykcl.events import TroubleBegan, TroubleEnded
from pykcl.ports import Events
from pykcl.runtime import Runtime


class Trouble:
    """Edge detector for failures, by the name of what was tried."""

    def __init__(self, events: Events, runtime: Runtime) -> None:
        self._events = events
        self._lock = runtime.lock()
        self._failing: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        with self._lock:
            begins = what not in self._failing
            self._failing.add(what)
        if begins:
            self._events.emit(TroubleBegan(what=what, cause=str(error)))

    def over(self, about: str) -> None:
        """Whatever was wrong with this shard is somebody else's now: end all that was reported of it."""
        with self._lock:
            ends = sorted(what for what in self._failing if what.endswith(f" {about}"))
            self._failing.difference_update(ends)
        for what in ends:
            self._events.emit(TroubleEnded(what=what))

    def worked(self, what: str) -> None:
        with self._lock:
            ends = what in self._failing
            self._failing.discard(what)
        if ends:
            self._events.emit(TroubleEnded(what=what))
