"""KCL's figures of a round of heartbeats. Here each lease has its own rhythm, so a round is a stretch of time."""

from __future__ import annotations

from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.runtime import Runtime


class RenewalRounds:
    """Used by all threads of the renewer. seconds: how long a round is; Java renews all leases once in it, as we do."""

    def __init__(self, meter: Meter, runtime: Runtime, seconds: float) -> None:
        self.meter = meter
        self._lock = runtime.lock()
        self._runtime = runtime
        self.seconds = seconds
        self._ends = runtime.monotonic() + seconds
        self._slowest = 0.0
        self._worked = True

    def beat(self, began: float, *, worked: bool) -> None:
        """A heartbeat was answered, or not. began: of `meter.clock`."""
        if not self.meter.is_on:
            return
        took = self.meter.since(began)
        self.meter.measure("", (catalog.RENEW_LEASE.success, float(worked)), (catalog.RENEW_LEASE.time, took))
        with self._lock:
            self._slowest = max(self._slowest, took)
            self._worked = self._worked and worked

    def tell(self, held: int) -> None:
        """Measure the round, if it is over. held: how many leases there are."""
        now = self._runtime.monotonic() if self.meter.is_on else 0.0
        if now < self._ends:
            return
        with self._lock:
            worked, slowest = self._worked, self._slowest
            self._worked, self._slowest, self._ends = True, 0.0, now + self.seconds
        self.meter.measure(
            "",
            (catalog.CURRENT_LEASES, float(held)),
            # Those that were lost are counted where that is told. This one says: none, and the worker is alive.
            (catalog.LOST_LEASES, 0.0),
            (catalog.RENEW_ALL_LEASES.success, float(worked)),
            (catalog.RENEW_ALL_LEASES.time, slowest),
        )
