"""A start at LATEST: where it begins is settled first, and only then is it looked up that nobody has begun before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pykcl.errors import ShardGone
from pykcl.model.checkpoint import LATEST, ReadFrom
from pykcl.model.lease import Lease, PrivateNote
from pykcl.planning.lease_creation import LeaseCreation
from pykcl.worker.context import Context
from pykcl.worker.lease_creation import create_lease


class LatestStart:
    """Used by the LeaseManager's thread only.

    A lease at LATEST skips whatever its shard held before. That is right only if the application had not begun yet, and
    a scan that may be a moment old does not show that. 1) A peer creates the first leases, and the application is
    called ready; 2) a shard is split, and records are put into its children; 3) our scan shows the table as it was
    before 1: the children look like shards to start with, and LATEST is behind those records. So where the start is
    LATEST, nothing is created before one more scan, a consistent one.

    Nor would that be enough alone: the peer, whose listing is older than the split, may create its leases between our
    scan and our creations. So reading begins where the shards stood *before* that scan: had the application been ready
    by then, its leases would have been there.

    since: Kinesis' clock at that place, epoch milliseconds. opened: iterators that wait for a reader, by shard.
    """

    def __init__(self, context: Context, stopping: Callable[[], bool]) -> None:
        self._context, self._stopping = context, stopping
        self._settled: dict[str, str] = {}
        self.since = 0
        self.opened: dict[str, str] = {}

    def settle(self, creations: Iterable[LeaseCreation]) -> None:
        """Fix where those of these leases begin that are at LATEST. Then scan consistently, and plan again.

        Whoever takes a lease can start at the server time in its row, which is rounded down to a second; the worker
        that put the row starts at the very place, however much later it comes to read. Raises TemporaryError,
        SetupError.
        """
        self._settled = {}
        self.since = self._context.stream.server_time_millis()
        for lease in (plan.lease for plan in creations if _begins_now(plan.lease)):
            if self._stopping():
                return
            try:
                self._settled[lease.key] = self._context.stream.open(lease.key, ReadFrom("LATEST"))
            except ShardGone:
                # It was listed a moment ago. Its reader finds out; until then the server time in the row will do.
                continue

    def create(self, plan: LeaseCreation) -> None:
        """Put the row, at LATEST or not; `settle` came before. Raises TemporaryError, SetupError."""
        lease = plan.lease
        if not _begins_now(lease):
            create_lease(self._context, plan)
            return
        noted = replace(plan, lease=lease.with_(note=PrivateNote(latest_from=self.since)))
        if create_lease(self._context, noted) and lease.key in self._settled:
            self.opened[lease.key] = self._settled[lease.key]

    def taken(self, keys: Iterable[str]) -> None:
        """Once anybody has taken the lease, reading goes on from the row."""
        for key in keys:
            self.opened.pop(key, None)


def _begins_now(lease: Lease) -> bool:
    """One with a note completes a start that was broken off, and begins when that start did: not "now"."""
    return lease.checkpoint.sequence_number == LATEST and lease.note is None
