"""When a worker, and when the whole fleet, reads what there is to read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pykcl.errors import SetupError
from pykcl.model.lease import Lease
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.lifecycle import State
from pykcl.status import Activity
from pykcl.worker.context import Context
from pykcl.worker.lease_worker import LeaseWorker

_OVERDUE_AFTER = 3
"""Fail-over times, as in the LeaseManager."""


class Readiness:
    """Judged by the LeaseManager's thread only, after each round that worked; anybody may look.

    everywhere: no shard lacks its lease, whatever can be read now is owned, and ours have answered GetRecords.
    has_joined: this worker has done its first round, and whatever it took in it has answered, or waits for parents.
    It stays: a lease that is taken later, or is nobody's for a moment, makes no worker unfit that was fit.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._me = context.worker_id
        self.everywhere = context.runtime.event()

    @property
    def has_joined(self) -> bool:
        return self._context.has_joined.is_set()

    def judge(self, view: LeaseView, workers: Sequence[LeaseWorker], *, start_is_unfinished: bool) -> None:
        """start_is_unfinished: as far as is known, not every lease that the application starts with was created."""
        leases = view.leases
        # The very leases that may be acquired: one below a row nobody can understand is awaited by nobody.
        open_leases = view.tree.readable(leases, view.unreadable)
        answered = {worker.key for worker in workers if worker.has_answered}
        are_read = all(lease.key in answered or lease.owner not in (None, self._me) for lease in open_leases)
        if open_leases and are_read and not start_is_unfinished:
            self.everywhere.set()
        else:
            self.everywhere.clear()
        if not start_is_unfinished and all(map(_is_at_work, workers)):
            self._context.has_joined.set()
        self._tell_of_unread(view, open_leases, {worker.key for worker in workers})

    def _tell_of_unread(self, view: LeaseView, open_leases: Sequence[Lease], busy: Collection[str]) -> None:
        """Of leases that nobody has taken for long, while this worker has all that it may have.

        For long: it would have taken them itself by then, beyond its share, had it room.
        """
        config = self._context.config
        patience = _OVERDUE_AFTER * config.failover_time
        is_full = len(busy) >= config.max_leases
        unread = [
            lease.key
            for lease in open_leases
            if is_full and lease.key not in busy and view.unchanged_for(lease.key) > patience
        ]
        if not unread:
            self._context.trouble.worked(Activity.READING_EVERY_SHARD)
            return
        why = SetupError(
            f"{len(unread)} of {len(open_leases)} open shards are read by nobody, and this worker holds all the leases "
            f"it may: max_leases={config.max_leases}."
        )
        self._context.trouble.failed(Activity.READING_EVERY_SHARD, why.about("E20"))


def _is_at_work(worker: LeaseWorker) -> bool:
    return worker.has_answered or worker.is_final or worker.state is State.WAITING_FOR_PARENTS
