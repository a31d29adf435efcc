"""Failures: when each started and ended, which of them last, the last error of each shard, and names in hints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from pykcl.config import Config
from pykcl.errors import PyKclError, TableNotActive
from pykcl.event_dispatch import line_of
from pykcl.events import Event, FailureLasted, FailurePassed, FailureResolved, FailureStarted
from pykcl.interfaces import Events
from pykcl.planning.failure_reports import FailureKind, FailureReport
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


_AT_ONCE = frozenset({
    Activity.FINDING_STREAM, Activity.PREPARING_TABLE, Activity.READING_TABLE,
    Activity.READING_EVERY_SHARD, Activity.HAVING_ITS_OWN_NAME, Activity.SENDING_HEARTBEATS,
})  # fmt: skip
"""Failures that are reported as they begin: those of a start, which somebody waits for, and those that are found only
once they have lasted."""
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failure that goes on. since: monotonic seconds. cause, code, hint: of its first error with this code."""

    what: Activity
    since: float
    cause: str
    code: str | None
    hint: str | None

    @classmethod
    def of(cls, what: Activity, error: Exception, since: float) -> _Failure:
        code, hint = (error.code, error.hint) if isinstance(error, PyKclError) else (None, None)
        return cls(what, since, str(error), code, hint)


@dataclass(slots=True)
class _Kind:
    """Failures that are reported together: of the same activity, and with the same code. last: the one that began last.

    of_shards: each is of one shard. checked_at: when it was last considered whether they are to be reported.
    """

    state: FailureKind
    last: _Failure
    of_shards: bool
    checked_at: float


class FailureTracker:
    """Edge detector for failures, by what was tried and the shard it was tried for (None: the whole worker).

    Each edge is an event, for programs: FailureStarted and FailureResolved. What lasts is an event for people, once for
    all shards: FailureLasted and FailurePassed, by the rules of `planning.failure_reports`.
    config: whose names go into the hints of errors. shards: the number of leases held; called in a lock.
    """

    def __init__(
        self,
        events: Events,
        runtime: Runtime,
        config: Config | None = None,
        shards: Callable[[], int] = lambda: 1,
    ) -> None:
        self._events, self._config, self._shards = events, config, shards
        self._runtime = runtime
        self._lock = runtime.lock()
        self._failing: dict[tuple[Activity, str | None], _Failure] = {}
        self._kinds: dict[tuple[Activity, str | None], _Kind] = {}
        # When another worker took a lease from this one.
        self._moved: dict[str, float] = {}

    def failed(self, what: Activity, error: Exception, *, shard: str | None = None) -> None:
        now = self._runtime.monotonic()
        code = error.code if isinstance(error, PyKclError) else None
        events: list[Event] = []
        with self._lock:
            known = self._failing.get((what, shard))
            if known is None or known.code != code:
                failure = self._begin(what, error, shard, now)
                if known is None:
                    events.append(
                        FailureStarted(
                            what=what.value, shard=shard, cause=failure.cause, code=code, hint=failure.hint
                        )
                    )
            kind = self._kinds[what, code]
            if now - kind.checked_at >= _CHECK_SECONDS:
                events += self._reports((kind,), now)
        for event in events:
            self._events.emit(event)

    def worked(self, what: Activity, *, shard: str | None = None) -> None:
        with self._lock:
            ends = self._end(what, shard) is not None
        if ends:
            self._events.emit(FailureResolved(what=what.value, shard=shard))

    def shards(self) -> set[str]:
        """The shards something is failing for."""
        with self._lock:
            return {shard for _, shard in self._failing if shard is not None}

    def has_moved_again(self, shard: str, within: float) -> bool:
        """Note that another worker took the lease; return True if one did so within so many seconds before."""
        now = self._runtime.monotonic()
        with self._lock:
            before = self._moved.get(shard)
            # Made anew without what is too old to matter: shards come and go for years.
            self._moved = {each: at for each, at in self._moved.items() if now - at < within} | {shard: now}
        return before is not None and now - before < within

    def over(self, shard: str) -> None:
        """End all failures that were reported for this shard: another worker has it now."""
        with self._lock:
            ends = sorted(what for what, about in self._failing if about == shard)
            for what in ends:
                self._end(what, shard)
        for what in ends:
            self._events.emit(FailureResolved(what=what.value, shard=shard))

    def report(self) -> None:
        """Report what has lasted or passed meanwhile. Called about once a second."""
        if not self._kinds:
            return
        now = self._runtime.monotonic()
        with self._lock:
            events = self._reports(self._kinds.values(), now)
            self._kinds = {key: kind for key, kind in self._kinds.items() if not kind.state.is_quiet}
        for event in events:
            self._events.emit(event)

    def status(self, now: float) -> tuple[FailureStatus, ...]:
        """Failures of this moment, the oldest first. now: monotonic seconds. Takes no lock."""
        failing = sorted(dict(self._failing).items(), key=lambda entry: entry[1].since)
        return tuple(
            FailureStatus(what=what, shard=shard, cause=failure.cause, seconds=max(0.0, now - failure.since))
            for (what, shard), failure in failing
        )

    def _begin(self, what: Activity, error: Exception, shard: str | None, now: float) -> _Failure:
        """Note a failure that begins, or that has another code from now on. Called in the lock, as the next two are."""
        if isinstance(error, PyKclError) and self._config is not None:
            named(error.naming(shard=shard), self._config)
        before = self._end(what, shard)
        failure = _Failure.of(what, error, now if before is None else before.since)
        self._failing[what, shard] = failure
        kind = self._kinds.get((what, failure.code))
        if kind is None:
            # To wait for a table that is being made belongs to the first start.
            at_once = what in _AT_ONCE and not isinstance(error, TableNotActive)
            state = FailureKind(at_once=at_once)
            kind = self._kinds[what, failure.code] = _Kind(state, failure, shard is not None, now)
        kind.state.began(shard, now)
        kind.last, kind.checked_at = failure, now - _CHECK_SECONDS
        return failure

    def _end(self, what: Activity, shard: str | None) -> _Failure | None:
        """Note the end of a failure, if it failed; return it."""
        failure = self._failing.pop((what, shard), None)
        if failure is not None:
            self._kinds[what, failure.code].state.ended(shard)
        return failure

    def _reports(self, kinds: Collection[_Kind], now: float) -> list[Event]:
        found: list[Event] = []
        for kind in kinds:
            kind.checked_at = now
            # Heartbeats are of one lease each, though what fails is the worker's.
            is_of_leases = kind.of_shards or kind.last.what is Activity.RENEWING_LEASES
            shards = max(self._shards(), len(kind.state.failing), 1) if is_of_leases else 1
            report = kind.state.report(now, shards)
            if report is not None:
                found.append(self._event(kind, report, shards if kind.of_shards else 1))
        return found

    def _event(self, kind: _Kind, report: FailureReport, shards: int) -> Event:
        last = kind.last
        if report.has_passed:
            return FailurePassed(
                what=last.what.value, seconds=report.seconds, failures=report.failures, code=last.code
            )
        longest = self._failing.get((last.what, report.shard), last)
        return FailureLasted(
            what=last.what.value,
            shard=report.shard,
            failing=report.failing,
            of=shards,
            seconds=report.seconds,
            failures=report.failures,
            cause=longest.cause,
            code=longest.code,
            hint=longest.hint,
        )


MAX_SHARDS = 2000
_OF_THE_WORKER = ""


class LastErrors:
    """A listener. Any thread may call it or ask; no lock: entries are put in place of one another."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._last: dict[str, tuple[str, str, float]] = {}

    def on_event(self, event: Event) -> None:
        # Failures are noted as they begin: the status of a shard names its own.
        if event.level < logging.WARNING and not isinstance(event, FailureStarted):
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
