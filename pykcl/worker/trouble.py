"""Reports that something keeps failing when it begins and when it ends, not each time."""

from __future__ import annotations

from pykcl.config import Config
from pykcl.errors import PyKclError
from pykcl.events import TroubleBegan, TroubleEnded
from pykcl.ports import Events
from pykcl.runtime import Runtime
from pykcl.status import Activity, TroubleStatus
from pykcl.worker.naming import named


class Trouble:
    """Edge detector for failures, by what was tried and the shard it was tried for (None: the whole worker).

    config: whose names go into the hints of errors.
    """

    def __init__(self, events: Events, runtime: Runtime, config: Config | None = None) -> None:
        self._events, self._config = events, config
        self._runtime = runtime
        self._lock = runtime.lock()
        # Since when (monotonic seconds), and why at first.
        self._failing: dict[tuple[Activity, str | None], tuple[float, str]] = {}

    def failed(self, what: Activity, error: Exception, *, shard: str | None = None) -> None:
        with self._lock:
            begins = (what, shard) not in self._failing
            if begins:
                self._failing[what, shard] = (self._runtime.monotonic(), str(error))
        if begins:
            if isinstance(error, PyKclError) and self._config is not None:
                named(error.naming(shard=shard), self._config)
            code, hint = (error.code, error.hint) if isinstance(error, PyKclError) else (None, None)
            self._events.emit(
                TroubleBegan(what=what.value, shard=shard, cause=str(error), code=code, hint=hint)
            )

    def worked(self, what: Activity, *, shard: str | None = None) -> None:
        with self._lock:
            ends = self._failing.pop((what, shard), None) is not None
        if ends:
            self._events.emit(TroubleEnded(what=what.value, shard=shard))

    def shards(self) -> set[str]:
        """The shards something is failing for."""
        with self._lock:
            return {shard for _, shard in self._failing if shard is not None}

    def over(self, shard: str) -> None:
        """Whatever was wrong with this shard is somebody else's now: end all that was reported of it."""
        with self._lock:
            ends = sorted(what for what, about in self._failing if about == shard)
            for what in ends:
                del self._failing[what, shard]
        for what in ends:
            self._events.emit(TroubleEnded(what=what.value, shard=shard))

    def status(self, now: float) -> tuple[TroubleStatus, ...]:
        """What is failing now, the oldest first. now: monotonic seconds. Takes no lock: whoever asks is in no hurry."""
        failing = sorted(dict(self._failing).items(), key=lambda entry: entry[1][0])
        return tuple(
            TroubleStatus(what=what, shard=shard, cause=cause, seconds=max(0.0, now - since))
            for (what, shard), (since, cause) in failing
        )
