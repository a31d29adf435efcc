"""Folds successive scans of the lease table into what one worker may believe: the leases, and who has gone
silent.

Nobody's clock is in the table. A lease is silent when *this* worker, by its own monotonic clock, has seen the
same counter and owner at two scans further apart than the failover time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pykcl.model.lease import Lease, Row, UnreadableRow
from pykcl.planning.shard_graph import FamilyTree


@dataclass(frozen=True)
class LeaseView:
    """The lease table as of the last scan.

    leases: every readable lease row by key.
    unchanged_since: monotonic seconds since when this worker has seen nobody work on the lease: the counter, the owner,
        its session, the number of owner switches and the checkpoint are the same.
    unreadable: rows that look like leases but cannot be understood; their children are left alone.
    observed_at: monotonic seconds of the last scan. A lease counts by what was *seen* up to then: time
        that passed since is no evidence of silence, because its owner may have written unobserved.
    seen_at: the same for rows that were seen once more since, in a scan of a segment.
    untouched: keys of leases that changed hands, and on which nobody was seen to work since.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    unchanged_since: Mapping[str, float] = field(default_factory=dict)
    unreadable: Mapping[str, UnreadableRow] = field(default_factory=dict)
    observed_at: float = 0.0
    seen_at: Mapping[str, float] = field(default_factory=dict)
    untouched: frozenset[str] = frozenset()

    def observe(self, rows: Iterable[Row], now: float) -> LeaseView:
        """The view after one more complete scan.

        now: monotonic seconds, read *after* the scan has answered. What it shows was written before that, so
        a take that is fenced by the counter and sent more than the failover time later proves at least that
        much silence, however slow or stale the scans were. Rows missing from the scan are forgotten; foreign
        rows are invisible.
        """
        leases: dict[str, Lease] = {}
        since: dict[str, float] = {}
        unreadable: dict[str, UnreadableRow] = {}
        untouched: set[str] = set()
        for row in rows:
            if not isinstance(row, Lease):
                if isinstance(row, UnreadableRow):
                    unreadable[row.key] = row
                continue
            key = row.key
            leases[key] = row
            since[key], is_untouched = self._progress(row, now)
            if is_untouched:
                untouched.add(key)
        return LeaseView(leases, since, unreadable, now, untouched=frozenset(untouched))

    def observe_part(self, rows: Iterable[Row], now: float) -> LeaseView:
        """Return the view after a scan of some of the rows. What is not among them stays as it was seen last, also a
        row that was deleted meanwhile. now: as in `observe`."""
        seen = [row for row in rows if isinstance(row, Lease)]
        leases, since, untouched = dict(self.leases), dict(self.unchanged_since), set(self.untouched)
        for row in seen:
            key = row.key
            leases[key] = row
            since[key], is_untouched = self._progress(row, now)
            (untouched.add if is_untouched else untouched.discard)(key)
        seen_at = {**self.seen_at, **dict.fromkeys((row.key for row in seen), now)}
        return LeaseView(leases, since, self.unreadable, self.observed_at, seen_at, frozenset(untouched))

    def _progress(self, row: Lease, now: float) -> tuple[float, bool]:
        """Return since when a row that was just scanned stands still, and whether it is untouched."""
        old = self.leases.get(row.key)
        if old is None:
            return now, False
        still = _stands_still(old, row)
        changed_hands = old.actual_owner != row.actual_owner
        is_untouched = row.actual_owner is not None and (
            changed_hands or (still and row.key in self.untouched)
        )
        return (self.unchanged_since.get(row.key, now) if still else now), is_untouched

    def unwritten(self, longest: float) -> LeaseView:
        """Return the view with no lease unchanged for longer than so many seconds, as nobody could write for a while.

        1) The table answers nobody for a minute; 2) it does again, and a scan shows every lease as it was before that;
        3) taken for expired, those of all living workers would change hands before their next heartbeats.
        """
        since = {
            key: max(at, self.seen_at.get(key, self.observed_at) - longest)
            for key, at in self.unchanged_since.items()
        }
        return replace(self, unchanged_since=since)

    @cached_property
    def tree(self) -> FamilyTree:
        """The family tree by the rows alone. Used several times between two scans."""
        return FamilyTree.of(leases=self.leases)

    def unchanged_for(self, key: str) -> float:
        """Return the seconds between the first and the last scan that showed the present counter and owner."""
        seen = self.seen_at.get(key, self.observed_at)
        return seen - self.unchanged_since.get(key, seen)

    def is_expired(self, key: str, failover_time: float) -> bool:
        """Return whether an owned lease was seen unchanged for longer than `failover_time` seconds.

        Owned is, too, what a worker was to hand over whose successor an operator has removed from the row.
        """
        lease = self.leases.get(key)
        return (
            lease is not None and lease.actual_owner is not None and self.unchanged_for(key) > failover_time
        )


@dataclass(frozen=True)
class Namesakes:
    """Evidence that another process works under this worker's identifier.

    moves: by key of a lease that names this worker and that it does not hold: its counter, and in how many scans it
    had moved. Once is no proof: 1) a worker is killed, and started again; 2) its first scan is a moment old; 3) the
    second one shows the last heartbeat of before. So a consistent scan that shows the lease counts as one move, unless
    this process wrote the row: a take of its own that got no answer may still land.
    is_in_doubt: the next scans decide. needs_consistent_scan: the next one should be one, for it counts as a move.
    """

    moves: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_in_doubt: bool = False
    needs_consistent_scan: bool = False

    def observe(
        self,
        view: LeaseView,
        worker: str,
        *,
        process_token: str,
        in_hand: Collection[str],
        failover_time: float,
        is_consistent: bool,
    ) -> Namesakes:
        """Return the evidence after one more complete scan. in_hand: leases that this worker holds or is taking."""
        moves: dict[str, tuple[int, int]] = {}
        of_others: list[int] = []
        for key, lease in view.leases.items():
            if (
                lease.actual_owner == worker
                and key not in in_hand
                and not view.is_expired(key, failover_time)
            ):
                counter, times = self.moves.get(key, (lease.counter, 0))
                times += lease.counter > counter
                if _session(lease) != process_token:
                    times = max(times, 1) if is_consistent else times
                    of_others.append(times)
                moves[key] = lease.counter, times
        fewest = min(of_others, default=2)
        return Namesakes(moves, is_in_doubt=fewest < 2, needs_consistent_scan=fewest < 1)

    @property
    def leases(self) -> list[str]:
        """Keys of the leases that another process certainly renews, sorted."""
        return sorted(key for key, (_, times) in self.moves.items() if times > 1)


def _stands_still(old: Lease, row: Lease) -> bool:
    """Return whether nobody has worked on the lease between two scans, as far as they show.

    The counter alone says so among workers that only let it grow. Where another library puts it back: 1) this worker
    sees owner w1 at 4; 2) the counter is put back to 0; 3) others take the lease, the last of them w1 or another
    process of that name, and it is at 4 again; 4) to the next scan of this worker the lease has not moved since 1.
    An owner that has read meanwhile has moved the checkpoint.
    """
    return (
        old.counter == row.counter
        and old.owner == row.owner
        and old.owner_switches == row.owner_switches
        and _session(old) == _session(row)
        and (old.checkpoint, old.pending) == (row.checkpoint, row.pending)
    )


def _session(lease: Lease) -> str | None:
    return lease.metadata.process_token if lease.metadata is not None else None
