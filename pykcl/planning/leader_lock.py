"""The lock of the leader of a KCL 3.x fleet: who holds it, for how long it is believed, and when it may be taken.

The protocol is that of the lock client which Java uses (amazon-dynamodb-lock-client 1.4.0). The row holds no time. Its
owner gives it another version with each heartbeat. Others take it once *they* have seen the same version for the
duration that the row names, and only on condition that the version is still the same. So the owner may count on it for
that duration, from before its last heartbeat was sent; here it does so for three quarters of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Literal

from pykcl.model.fleet_rows import LeaderLock, lock_of
from pykcl.model.lease import ForeignRow, Row

Eligibility = Literal["never", "fallback", "equal"]
"""The option `leader`, as in `pykcl.config`, which lies below."""

BESIDE_JAVA: Final = 120.0
"""Seconds: the duration that Java gives its lock."""
AMONG_PYKCL: Final = 30.0
"""Seconds: the duration of a lock that only pykcl workers wait for."""
_SHORTEST: Final = 20.0
"""Seconds for which a lock is left alone at the least, whatever its row says."""
_PATIENCE: Final = 30.0
"""Seconds that a worker of "fallback" waits beyond what Java needs."""
_JAVA_INTERVAL: Final = 30.0
"""Seconds between two reads of a Java worker that does not lead; it takes an expired lock at the second one."""
_LEADERLESS_AFTER: Final = 30.0
"""Seconds for which there is no lock, or a released one, before the fleet counts as without a leader."""
_READ_PAUSE: Final = 5.0
_BUSY_READ_PAUSE: Final = 2.0
_LONGEST_GAP: Final = 20.0
"""Seconds between two reads without a lock, in which nobody can have led."""


def heartbeat_interval(lock: LeaderLock) -> float:
    """Return the seconds between two heartbeats of its owner: a quarter of its duration, as Java's 30 s of 120 s."""
    # A row may hold any number.
    return min(max(lock.lease_seconds, _SHORTEST), BESIDE_JAVA) / 4


@dataclass(frozen=True, slots=True)
class LeaderWatch:
    """The lock as this worker has seen it. since: monotonic seconds of the first read that showed it as it is.

    seen_at: of the last read; what happened since is no evidence of silence.
    """

    lock: LeaderLock | None
    since: float
    seen_at: float

    @classmethod
    def first(cls, rows: Iterable[Row], now: float) -> LeaderWatch:
        return cls(_lock_in(rows), now, now)

    def observe(self, rows: Iterable[Row], now: float) -> LeaderWatch:
        """Return the watch after a read. now: read after the answer came.

        A version comes once, but no lock is like another one: between two reads without any, far apart as after an
        outage, a worker may have led and deleted its lock, as Java does at its stop.
        """
        lock = _lock_in(rows)
        is_same = lock == self.lock and (lock is not None or now - self.seen_at <= _LONGEST_GAP)
        return replace(self, seen_at=now) if is_same else LeaderWatch(lock, now, now)

    @property
    def unchanged_for(self) -> float:
        """Seconds between the first and the last read that showed the lock as it is."""
        return self.seen_at - self.since

    @property
    def is_free(self) -> bool:
        return self.lock is None or self.lock.is_released

    @property
    def is_absent(self) -> bool:
        """True if nobody leads: the lock is missing or released for long, or its owner has missed two heartbeats."""
        if self.lock is None or self.lock.is_released:
            return self.unchanged_for > _LEADERLESS_AFTER
        return self.unchanged_for > 2 * heartbeat_interval(self.lock)

    def may_be_taken(self, eligibility: Eligibility) -> bool:
        """Return whether a worker may try to take the lock, by what it has seen."""
        if eligibility == "never":
            return False
        if self.lock is None or self.lock.is_released:
            wait, java_needs = 0.0, _JAVA_INTERVAL
        else:
            wait = max(self.lock.lease_seconds, _SHORTEST)
            java_needs = wait + 2 * _JAVA_INTERVAL
        return self.unchanged_for >= (wait if eligibility == "equal" else java_needs + _PATIENCE)

    def read_pause(self, eligibility: Eligibility) -> float:
        """Return the seconds until a worker that does not lead reads the lock again."""
        is_busy = eligibility == "equal" and (self.is_free or self.is_absent or self._is_brief)
        return _BUSY_READ_PAUSE if is_busy else _READ_PAUSE

    @property
    def _is_brief(self) -> bool:
        return self.lock is not None and self.lock.lease_seconds <= AMONG_PYKCL


def _lock_in(rows: Iterable[Row]) -> LeaderLock | None:
    for row in rows:
        if isinstance(row, ForeignRow) and (lock := lock_of(row)) is not None:
            return lock
    return None


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock of this worker. sent_at: monotonic seconds, before the write that gave it this version was sent.

    until: monotonic seconds after which it is not believed, however long it lasts.
    """

    lock: LeaderLock
    sent_at: float
    until: float = inf

    def is_believed(self, now: float) -> bool:
        """Return whether nobody else can have taken it, with a quarter of its duration to spare."""
        return now < self.believed_until

    @property
    def believed_until(self) -> float:
        """Monotonic seconds until which an assignment may be sent."""
        return min(self.sent_at + 0.75 * self.lock.lease_seconds, self.until)

    def may_become(self, other: HeldLock) -> HeldLock:
        """Return the lock while a write is under way that puts the other one in its place.

        1) A heartbeat shortens the lock, and its answer is lost; 2) others wait no longer than the row says.
        """
        return replace(self, until=min(self.until, other.believed_until))

    @property
    def next_heartbeat(self) -> float:
        """Monotonic seconds of the next heartbeat."""
        return self.sent_at + heartbeat_interval(self.lock)


def lease_seconds(members: Iterable[str], pykcl: Iterable[str]) -> float:
    """Return the duration of a lock. members: whoever reports metrics. pykcl: those of them who are known as pykcl."""
    return BESIDE_JAVA if set(members) - set(pykcl) else AMONG_PYKCL
