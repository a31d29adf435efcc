"""Several looks at one lease table: rows carry no time, so only a counter that moves tells that somebody is alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pykcl.model.lease import Lease
from pykcl.operate.table_view import TableView
from pykcl.planning.lease_view import LeaseView
from pykcl.runtime import Runtime

DEFAULT_FAILOVER = 60.0
"""Seconds, where nobody told the fleet's: long enough for every fleet met so far to renew in it."""
_BELIEVED_FAILOVER = range(1_000, 3_600_001)
"""Milliseconds: what else a row says is no fail-over time of pykcl's, and would have whoever reads it wait for days."""
_BLIND_PAUSE = 6.0
"""Seconds: workers renew twice per fail-over time (Java thrice), and Java's default one is 10 s."""
_LONGEST_SAMPLING = 20.0


def known_failover(told: float | None, leases: Iterable[Lease]) -> tuple[float, bool]:
    """The fleet's fail-over time in seconds, and whether it is known; else it is DEFAULT_FAILOVER.

    told: by flag or file, which counts. Else it is the longest one that workers of pykcl noted on their leases, if
    every owner did: who noted none, such as a worker of Java, may have a longer one.
    """
    if told is not None:
        return told, True
    longest = 0
    for lease in leases:
        note = lease.metadata
        millis = note.failover_millis if note is not None else None
        is_of_owner = note is not None and note.owner == lease.actual_owner
        if lease.actual_owner is not None and (millis is None or not is_of_owner):
            return DEFAULT_FAILOVER, False
        if millis is not None and millis not in _BELIEVED_FAILOVER:
            return DEFAULT_FAILOVER, False
        longest = max(longest, millis or 0)
    return (longest / 1000, True) if longest else (DEFAULT_FAILOVER, False)


@dataclass(frozen=True)
class Observation:
    """What all looks so far tell.

    view: the latest. moved: lease key -> how far its counter went since the look before, or since the first one of
    `look_twice`; absent for a lease that was not there then. alive: leases that were seen moving at all.
    renewed_after_end: leases that had ended, with an owner, and that this owner renewed once more.
    unmoved_for: seconds for which each lease was seen standing still, up to the last look. span: seconds from the first
    look to the last. samples: how many looks.
    """

    view: TableView
    moved: Mapping[str, int] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    renewed_after_end: frozenset[str] = frozenset()
    unmoved_for: Mapping[str, float] = field(default_factory=dict)
    span: float = 0.0
    samples: int = 1


class Sampler:
    """Folds look after look. Used by one thread."""

    def __init__(self, scan: Callable[[], TableView], runtime: Runtime) -> None:
        self._scan, self._runtime = scan, runtime
        self._fold = LeaseView()
        self._first_seen: dict[str, float] = {}
        self._renewed: frozenset[str] = frozenset()
        self._began: float | None = None
        self._samples = 0

    def look(self, since: Mapping[str, Lease] | None = None) -> Observation:
        """One more scan. since: what `moved` is measured from, by default the look before.

        Raises what the scan raises; then nothing is folded in.
        """
        view = self._scan()
        now = self._runtime.monotonic()
        before = self._fold.leases
        since = before if since is None else since
        fold = self._fold.observe(view.leases.values(), now)
        self._began = now if self._began is None else self._began
        self._samples += 1
        self._fold = fold
        self._renewed |= {
            key
            for key, lease in fold.leases.items()
            if key in before and _renewed_an_ended(before[key], lease)
        }
        self._first_seen = {key: self._first_seen.get(key, now) for key in fold.leases}
        return Observation(
            view=view,
            moved={
                key: lease.counter - since[key].counter for key, lease in fold.leases.items() if key in since
            },
            alive=frozenset(
                key for key, since in fold.unchanged_since.items() if since > self._first_seen[key]
            ),
            renewed_after_end=self._renewed,
            unmoved_for={key: fold.unchanged_for(key) for key in fold.leases},
            span=now - self._began,
            samples=self._samples,
        )

    def look_twice(
        self,
        failover: float | None,
        *,
        longest: float | None = None,
        until: Callable[[Observation], bool] | None = None,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> Observation:
        """Look until every owned lease has moved, or for as long as it takes to tell that some do not.

        failover: seconds, None where unknown. longest: seconds; by default the fail-over time, if it is known and
        short, else what a renewal or two take. until: what is waited for instead. on_wait: given the seconds of the
        first wait, before it. Returns the last observation.
        """
        enough = until or everybody_moved
        renewal = (failover or 10.0) / 2
        pause = max(0.2, renewal * 1.2)
        if longest is None:
            longest = _BLIND_PAUSE if failover is None else failover + 0.2
            if longest > _LONGEST_SAMPLING:
                longest = pause
        found = self.look()
        first = found.view.leases
        end = self._runtime.monotonic() + longest
        has_waited = False
        while not enough(found):
            left = end - self._runtime.monotonic()
            if left <= 0:
                break
            # The last look must lie behind the end: a lease is stale once it stood still for all of it.
            wait = left if left < 1.5 * pause else pause
            if not has_waited:
                on_wait(wait)
            has_waited = True
            self._runtime.event().wait(wait)
            found = self.look(since=first)
        return found


def _renewed_an_ended(before: Lease, lease: Lease) -> bool:
    """Both times ended, both times the same owner, and the counter has gone on."""
    same = before.owner is not None and before.owner == lease.owner
    return same and before.is_ended and lease.is_ended and lease.counter > before.counter


def everybody_moved(found: Observation) -> bool:
    """Whether nothing more can be learned: no lease with an owner is left that was not seen moving."""
    return all(
        key in found.alive or lease.actual_owner is None or lease.is_ended
        for key, lease in found.view.leases.items()
    )
