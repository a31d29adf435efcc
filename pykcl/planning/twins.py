"""Detects another living process with this worker's identifier.

A process that was started again under its old identifier finds rows of its predecessor, which is not a duplicate: they
do not move, or once more when a late request lands. A row of ours that another process keeps moving for longer than the
fail-over time is the work of one that lives. (The process token in the metadata says whose row it is; a Java
worker of that name leaves none, or that of the owner before.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pykcl.model.lease import Lease

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
