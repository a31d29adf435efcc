"""How long a shard went unread between two owners: from the last sign of the one before until our first answer."""

from __future__ import annotations

from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.planning.lease_assignment import Acquisition


class HandOver:
    """Of one lease worker, used by its thread only.

    still_for: seconds for which the lease had not moved when it was chosen.
    """

    def __init__(self, meter: Meter, plan: Acquisition, still_for: float) -> None:
        self._meter = meter
        # Of a lease that nobody has had yet there is nothing to hand over; whom it is stolen from reads until it is.
        self._is_one = plan.seen.counter > 0
        self._began = meter.clock() - (0.0 if plan.is_steal else still_for)

    def interrupted(self) -> None:
        """Something else holds up the first read: a parent shard that is read still."""
        self._is_one = False

    def answered(self) -> None:
        """Kinesis has answered for the first time."""
        if self._is_one and self._meter.is_on:
            self._meter.measure("", (catalog.HAND_OVER_TIME, self._meter.since(self._began)))
