"""What last went wrong, by shard: for whoever asks how a worker stands."""

from __future__ import annotations

import logging

from pykcl.events import Event
from pykcl.listeners import line_of
from pykcl.runtime import Runtime
from pykcl.status import ErrorStatus

MOST_SHARDS = 2000
_OF_THE_WORKER = ""


class LastErrors:
    """A listener. Any thread may call it or ask; no lock: entries are put in place of one another."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._last: dict[str, tuple[str, str, float]] = {}

    def hear(self, event: Event) -> None:
        if event.LEVEL < logging.WARNING:
            return
        about = getattr(event, "shard", None) or _OF_THE_WORKER
        self._last[about] = (type(event).__name__, line_of(event), self._runtime.monotonic())
        if len(self._last) > MOST_SHARDS:
            # A stream that is resharded for years must not fill the memory. Replaced as a whole: another thread may
            # be reading, or putting in an entry, which at worst is lost.
            self._last = dict(list(self._last.items())[MOST_SHARDS // 2 :])

    def of(self, shard: str | None, now: float) -> ErrorStatus | None:
        """shard: None for what is about no shard."""
        found = self._last.get(shard or _OF_THE_WORKER)
        if found is None:
            return None
        event, text, at = found
        return ErrorStatus(event=event, text=text, ago=max(0.0, now - at))
