"""Detects anomalies of peers by the rows of their leases: another failover time, and a duplicate worker identifier.

**Failover time.** Java renews each lease every third of its failover time less 25 ms, at a fixed rate (v2.7.2
`leases/dynamodb/DynamoDBLeaseCoordinator.java`), and each renewal raises the counter by one. What else raises it writes
something that can be seen, a checkpoint or an owner: so only stretches count in which nothing of a row but its counter
changed. In such a stretch every increment is a renewal, and:

* **faster** than ours is proved by the number alone. Pauses, failures and slow scans only make a worker seem slower.
  After a pause a fixed rate catches up, but no lease survives a pause longer than its failover time: three renewals
  at most.
* **slower** than ours can also be a worker in trouble. It counts only if the increments come one by one and evenly,
  as a clock makes them and trouble does not.

Either way twice in a row, with no idle lease of that owner saying otherwise. A wrong alarm sends people to change
what is right; a peer that is always busy, or whose table is scanned rarely, goes unnoticed.

**Duplicate worker identifier.** A process that was started again under its old identifier finds rows of its
predecessor, which is not a duplicate: they do not move, or once more when a late request lands. A row of ours that
another process keeps moving for longer than the failover time is the work of one that lives. (The process token in the
metadata says whose row it is; a Java worker of that name leaves none, or that of the owner before.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pykcl.model.lease import Lease
from pykcl.planning.fleet_protocol import is_of_pykcl

Verdict = Literal["faster", "slower", "same", "unclear"]

CLEARLY_FASTER, CLEARLY_SLOWER = 1.3, 1.5
"""Two clocks that run 10 % fast and slow differ by 1.22; slowness is the weaker evidence."""
WINDOW = 6
"""Length of a stretch, in failover times of ours."""
_LONGEST_WINDOW = 30
_FEWEST = 6
_EPSILON = 0.025
_CAUGHT_UP = 3
_STALE = 2.0
"""Seconds by which an eventually consistent answer may lag."""
_EVEN = 0.3


@dataclass(frozen=True, slots=True)
class PeerFailoverTime:
    """A peer's estimated failover time, in seconds. is_faster: than ours."""

    owner: str
    failover_time: float
    is_faster: bool


@dataclass(slots=True)
class _Stretch:
    """A stretch of one lease, in which only its counter moved.

    began: monotonic seconds of the scan before the first one, seen: of the first one. moves: of each that showed an
    increment. gap: the longest time between two scans. jumped: it moved by more than one between two scans.
    """

    lease: Lease
    first: int
    began: float
    seen: float
    scanned: float
    moves: list[float] = field(default_factory=list)
    gap: float = 0.0
    jumped: bool = False


@dataclass(slots=True)
class _Opinion:
    """The equal verdicts of the last windows of an owner's leases. since: when the first of them began."""

    verdict: Verdict
    since: float
    intervals: list[float]


class FailoverTimeDetector:
    """Folds scans; no clock of its own. failover_time: ours, seconds. Workers of pykcl are not listened to: after a
    lost answer they write again, which raises the counter as well.
    """

    def __init__(self, failover_time: float) -> None:
        self._failover = failover_time
        self._interval = failover_time / 3 - _EPSILON
        self._stretches: dict[str, _Stretch] = {}
        self._opinions: dict[str, _Opinion] = {}
        self._reported: set[str] = set()
        self._scanned = 0.0

    def observe(self, leases: Iterable[Lease], now: float, *, worker: str) -> list[PeerFailoverTime]:
        """Return what one more complete scan shows, answered at `now`, monotonic seconds.

        Each owner is reported once. worker: one's own identifier.
        """
        before, self._scanned = self._scanned or now, now
        stretches: dict[str, _Stretch] = {}
        closed: list[tuple[str, Verdict, float, _Stretch]] = []
        for lease in leases:
            if lease.owner in (None, worker) or is_of_pykcl(lease):
                continue
            stretch = self._stretches.get(lease.key)
            if stretch is None or not _goes_on(stretch.lease, lease):
                stretches[lease.key] = _Stretch(lease, lease.counter, before, now, now)
                continue
            _extend(stretch, lease, now)
            stretches[lease.key] = stretch
            if self._is_long_enough(stretch, now):
                verdict, interval = self._verdict_on(stretch, now)
                closed.append((stretch.lease.owner or "", verdict, interval, stretch))
                stretches[lease.key] = _Stretch(lease, lease.counter, before, now, now)
        self._stretches = stretches
        self._forget_the_gone(stretches)
        return [found for each in closed if (found := self._add(*each, now)) is not None]

    def _is_long_enough(self, stretch: _Stretch, now: float) -> bool:
        length = now - stretch.began
        enough = stretch.lease.counter - stretch.first >= _FEWEST
        return length >= _LONGEST_WINDOW * self._failover or (enough and length >= WINDOW * self._failover)

    def _verdict_on(self, stretch: _Stretch, now: float) -> tuple[Verdict, float]:
        """Return the verdict, and the approximate seconds between two renewals."""
        count = stretch.lease.counter - stretch.first
        if count < _FEWEST:
            return "unclear", 0.0
        sure = count - 1 - _CAUGHT_UP
        if sure > 0 and (now - stretch.began + _STALE) / sure * CLEARLY_FASTER <= self._interval:
            return "faster", (now - stretch.seen) / count
        if stretch.jumped:
            return "same", 0.0
        gaps = [later - earlier for earlier, later in zip(stretch.moves, stretch.moves[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        if mean < CLEARLY_SLOWER * self._interval:
            return "same", mean
        # Each move may have come anywhere between two scans.
        is_even = max(abs(gap - mean) for gap in gaps) <= _EVEN * mean and stretch.gap <= mean / 2
        return ("slower", mean) if is_even else ("unclear", 0.0)

    def _add(
        self, owner: str, verdict: Verdict, interval: float, stretch: _Stretch, now: float
    ) -> PeerFailoverTime | None:
        if verdict in ("same", "unclear"):
            self._opinions.pop(owner, None)
            return None
        opinion = self._opinions.get(owner)
        if opinion is None or opinion.verdict != verdict:
            self._opinions[owner] = _Opinion(verdict, stretch.began, [interval])
            return None
        opinion.intervals.append(interval)
        if owner in self._reported or stretch.began < opinion.since + WINDOW * self._failover:
            return None
        self._reported.add(owner)
        mean = sum(opinion.intervals) / len(opinion.intervals)
        return PeerFailoverTime(owner, 3 * (mean + _EPSILON), verdict == "faster")

    def _forget_the_gone(self, stretches: dict[str, _Stretch]) -> None:
        owners = {stretch.lease.owner for stretch in stretches.values()}
        self._opinions = {owner: each for owner, each in self._opinions.items() if owner in owners}


def _extend(stretch: _Stretch, lease: Lease, now: float) -> None:
    step = lease.counter - stretch.lease.counter
    if step:
        stretch.moves.append(now)
        stretch.jumped = stretch.jumped or step > 1
    stretch.gap = max(stretch.gap, now - stretch.scanned)
    stretch.lease, stretch.scanned = lease, now


def _goes_on(old: Lease, row: Lease) -> bool:
    """Return whether nothing but the counter has moved. One that fell is a stale answer, or nothing that Java does."""
    return row.counter >= old.counter and _written(old) == _written(row)


def _written(lease: Lease) -> tuple[object, ...]:
    return (
        lease.owner,
        lease.checkpoint,
        lease.pending,
        lease.owner_switches,
        lease.checkpoint_owner,
        lease.children,
        lease.metadata,
    )


_FEWEST_MOVES = 3


@dataclass(frozen=True, slots=True)
class _Seen:
    session: str | None
    counter: int
    moves: int = 0
    since: float = 0.0
    last: float = 0.0


class DuplicateWorkerIdDetector:
    """Folds scans. worker, session: of this process. failover_time: seconds."""

    def __init__(self, worker: str, session: str, failover_time: float) -> None:
        self._worker, self._session, self._failover = worker, session, failover_time
        self._seen: dict[str, _Seen] = {}
        self._reported: set[str | None] = set()

    def observe(self, leases: Iterable[Lease], now: float) -> str | None:
        """Return a lease that shows a duplicate, after a scan that was answered at `now`; once per duplicate."""
        seen: dict[str, _Seen] = {}
        found: str | None = None
        for lease in leases:
            session = self._session_of(lease)
            if lease.owner != self._worker or session == self._session:
                continue
            one = seen[lease.key] = _after(self._seen.get(lease.key), lease.counter, session, now)
            lives = one.moves >= _FEWEST_MOVES and one.last - one.since > self._failover
            if lives and session not in self._reported:
                self._reported.add(session)
                found = lease.key
        self._seen = seen
        return found

    def _session_of(self, lease: Lease) -> str | None:
        metadata = lease.metadata
        return metadata.process_token if metadata is not None and metadata.owner == self._worker else None


def _after(before: _Seen | None, counter: int, session: str | None, now: float) -> _Seen:
    if before is None or before.session != session or counter < before.counter:
        return _Seen(session, counter)
    if counter == before.counter:
        return before
    return _Seen(session, counter, before.moves + 1, before.since if before.moves else now, now)
