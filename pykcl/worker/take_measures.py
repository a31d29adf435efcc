"""KCL's figures of finding shards and taking leases, measured by the manager's thread."""

from __future__ import annotations

from collections.abc import Collection

from pykcl.metrics import catalog
from pykcl.planning.lease_assignment import fleet_figures
from pykcl.planning.lease_view import LeaseView
from pykcl.worker.context import Context


class TakeMeasures:
    """overdue_after: seconds after which a free lease counts as very old."""

    def __init__(self, context: Context, overdue_after: float) -> None:
        self._context = context
        self._overdue_after = overdue_after
        self._next = 0.0

    def chosen(self, view: LeaseView, busy: Collection[str], left_alone: Collection[str], plans: int) -> None:
        """A pass is over. plans: how many leases it chose.

        Told at most once in half the fail-over time: working it out takes as long as deciding did.
        """
        meter, config = self._context.meter, self._context.config
        now = meter.clock()
        if not meter.is_on or (now < self._next and not plans):
            return
        self._next = now + config.renew_interval
        found = fleet_figures(
            view,
            worker=self._context.worker_id,
            failover_time=config.failover_time,
            overdue_after=self._overdue_after,
            left_alone=left_alone,
            held=busy,
        )
        meter.measure(
            "",
            (catalog.EXPIRED_LEASES, float(found.available)),
            (catalog.LEASE_SPILLOVER, float(max(0, found.share - config.max_leases))),
            (catalog.LEASES_TO_TAKE, float(plans)),
            (catalog.NEEDED_LEASES, float(max(0, min(found.share, config.max_leases) - found.mine))),
            (catalog.NUM_WORKERS, float(found.workers)),
            (catalog.TOTAL_LEASES, float(found.leases)),
            (catalog.VERY_OLD_LEASES, float(found.long_available)),
            # Those that are taken are counted where that is told. These say: none, and the worker is alive.
            (catalog.TAKEN_LEASES, 0.0),
            (catalog.UNTAKEN_LEASES, 0.0),
        )

    def synced(self, began: float, worked: bool) -> bool:
        """The shards were listed, and what follows from that was done, or not. began: monotonic seconds. Returns
        `worked`."""
        meter = self._context.meter
        if meter.is_on:
            meter.measure(
                "",
                (catalog.SHARD_SYNC.success, float(worked)),
                (catalog.SHARD_SYNC.time, meter.since(began)),
                (catalog.SYNC_SHARDS, float(worked)),
            )
        return worked
