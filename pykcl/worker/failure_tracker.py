"""Failures that last: when each started and ended, the last error of each shard, and names in the hints of errors."""

from __future__ import annotations

import logging
from typing import TypeVar

from pykcl.config import Config
from pykcl.errors import PyKclError
from pykcl.event_dispatch import line_of
from pykcl.events import Event, FailureResolved, FailureStarted
from pykcl.interfaces import Events
from pykcl.runtime import Runtime
from pykcl.status import Activity, ErrorStatus, FailureStatus

Error = TypeVar("Error", bound=Exception)


def names_of(config: Config) -> dict[str, str]:
    """Names of this worker by the words that stand for them in a hint."""
    return {"APPLICATION": config.application, "STREAM": config.stream, "TABLE": config.table}


def named(error: Error, config: Config) -> Error:
    """The error itself, its hint with the names of `config`."""
    if isinstance(error, PyKclError):
        error.naming(application=config.application, stream=config.stream, table=config.table)
    return error


class FailureTracker:
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
                FailureStarted(what=what.value, shard=shard, cause=str(error), code=code, hint=hint)
            )

    def worked(self, what: Activity, *, shard: str | None = None) -> None:
        with self._lock:
            ends = self._failing.pop((what, shard), None) is not None
        if ends:
            self._events.emit(FailureResolved(what=what.value, shard=shard))

    def shards(self) -> set[str]:
        """The shards something is failing for."""
        with self._lock:
            return {shard for _, shard in self._failing if shard is not None}

    def over(self, shard: str) -> None:
        """End all failures that were reported for this shard: another worker has it now."""
        with self._lock:
            ends = sorted(what for what, about in self._failing if about == shard)
            for what in ends:
                del self._failing[what, shard]
        for what in ends:
            self._events.emit(FailureResolved(what=what.value, shard=shard))

    def status(self, now: float) -> tuple[FailureStatus, ...]:
        """Failures of this moment, the oldest first. now: monotonic seconds. Takes no lock."""
        failing = sorted(dict(self._failing).items(), key=lambda entry: entry[1][0])
        return tuple(
            FailureStatus(what=what, shard=shard, cause=cause, seconds=max(0.0, now - since))
            for (what, shard), (since, cause) in failing
        )


MAX_SHARDS = 2000
_OF_THE_WORKER = ""


class LastErrors:
    """A listener. Any thread may call it or ask; no lock: entries are put in place of one another."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._last: dict[str, tuple[str, str, float]] = {}

    def on_event(self, event: Event) -> None:
        if event.LEVEL < logging.WARNING:
            return
        about = getattr(event, "shard", None) or _OF_THE_WORKER
        self._last[about] = (type(event).__name__, line_of(event), self._runtime.monotonic())
        if len(self._last) > MAX_SHARDS:
            # A stream that is resharded for years must not fill the memory. Replaced as a whole: another thread may
            # be reading, or putting in an entry, which at worst is lost.
            self._last = dict(list(self._last.items())[MAX_SHARDS // 2 :])

    def of(self, shard: str | None, now: float) -> ErrorStatus | None:
        """shard: None for what is about no shard."""
        found = self._last.get(shard or _OF_THE_WORKER)
        if found is None:
            return None
        event, text, at = found
        return ErrorStatus(event=event, text=text, ago=max(0.0, now - at))
