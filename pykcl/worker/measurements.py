"""Metrics of the worker's own work: of a page, of a pass over the leases, of a take-over, of a round of heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter, Value
from pykcl.model.record import Record, data_bytes
from pykcl.planning.lease_assignment import Acquisition, Fleet
from pykcl.runtime import Runtime
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease


class PageMeasures:
    """Measures of one shard, used by one thread at a time, the one that reads: `began`, then for each batch
    `delivering` and, if it returned, `delivered`, then `ended`.

    A page that is broken off is not ended: neither stopping nor losing a lease is a failure of the work.
    filtered: returns the number of records that the processor's own filter has refused since the start. lane_share:
    returns the part of the last batch that was in its largest lane, None without lanes.
    """

    def __init__(
        self, meter: Meter, shard: str, filtered: Callable[[], int], lane_share: Callable[[], float | None]
    ) -> None:
        self._meter = meter
        self._filtered, self._known_filtered = filtered, 0
        self._lane_share = lane_share
        self._shard = shard
        self._began = 0.0
        self._is_empty = True
        self._lag: list[Value] = []

    def began(self, millis_behind: int | None) -> None:
        if not self._meter.is_on:
            return
        self._began, self._is_empty = self._meter.clock(), True
        if millis_behind is not None:
            lag = float(millis_behind)
            self._lag = [(catalog.MILLIS_BEHIND_LATEST, lag), (catalog.APPLICATION_BEHIND_LATEST, lag)]

    def delivering(self) -> None:
        # Measured before the call: a processor may take its time, and the lag is what then matters.
        if self._lag:
            self._meter.summary(self._shard, self._lag)
            self._lag = []

    def delivered(self, records: Sequence[Record]) -> None:
        if not self._meter.is_on:
            return
        self._is_empty = False
        self._meter.summary(
            self._shard,
            (
                (catalog.RECORDS_PROCESSED, float(len(records))),
                (catalog.DATA_BYTES_PROCESSED, float(data_bytes(records))),
            ),
        )
        filtered = self._filtered()
        if filtered > self._known_filtered:
            new, self._known_filtered = filtered - self._known_filtered, filtered
            self._meter.summary(self._shard, ((catalog.RECORDS_FILTERED, float(new)),))
        share = self._lane_share()
        if share is not None:
            self._meter.summary(self._shard, ((catalog.LANE_SHARE, 100.0 * share),))

    def ended(self, *, worked: bool = True) -> None:
        if not self._meter.is_on:
            return
        values = [
            *self._lag,
            (catalog.PROCESS_TASK.success, float(worked)),
            (catalog.PROCESS_TASK.time, self._meter.since(self._began)),
        ]
        if self._is_empty:
            # A shard on which nothing happens has data, too: else an alarm would take it for a dead worker.
            values += [(catalog.RECORDS_PROCESSED, 0.0), (catalog.DATA_BYTES_PROCESSED, 0.0)]
        self._lag = []
        self._meter.summary(self._shard, values)


class TakeMeasures:
    """overdue_after: seconds after which a free lease counts as very old."""

    def __init__(self, context: Context, overdue_after: float) -> None:
        self._context = context
        self._overdue_after = overdue_after
        self._next = 0.0

    def chosen(self, fleet: Fleet, plans: int) -> None:
        """Measure the end of a planning pass. plans: the number of leases it chose.

        Measured at most once in half the failover time: it takes as long as the assignment did.
        """
        meter, config = self._context.meter, self._context.config
        now = meter.clock()
        if not meter.is_on or (now < self._next and not plans):
            return
        self._next = now + config.renew_interval
        found = fleet.figures(self._overdue_after)
        meter.measure(
            "",
            (catalog.EXPIRED_LEASES, float(found.available)),
            (catalog.LEASE_SPILLOVER, float(max(0, found.share - config.max_leases))),
            (catalog.LEASES_TO_TAKE, float(plans)),
            (catalog.NEEDED_LEASES, float(max(0, min(found.share, config.max_leases) - found.mine))),
            (catalog.NUM_WORKERS, float(found.workers)),
            (catalog.TOTAL_LEASES, float(found.leases)),
            (catalog.VERY_OLD_LEASES, float(found.long_available)),
            # Takes are counted from the events. Emit 0 so that the series exists while the worker is alive.
            (catalog.TAKEN_LEASES, 0.0),
            (catalog.UNTAKEN_LEASES, 0.0),
        )


class TakeoverTimer:
    """Timer of one lease worker, used by its thread only.

    still_for: seconds for which the lease had not moved when it was chosen.
    """

    def __init__(self, meter: Meter, plan: Acquisition, still_for: float) -> None:
        self._meter = meter
        # A new lease has no previous owner; a stolen one is read by its owner until it is taken.
        self._is_one = plan.seen.counter > 0
        self._began = meter.clock() - (0.0 if plan.is_steal else still_for)

    def interrupted(self) -> None:
        """Something else holds up the first read: a parent shard that is still being read."""
        self._is_one = False

    def answered(self) -> None:
        """Kinesis has answered for the first time."""
        if self._is_one and self._meter.is_on:
            self._meter.measure("", (catalog.HAND_OVER_TIME, self._meter.since(self._began)))


class RenewalRounds:
    """Used by all threads of the renewer. seconds: how long a round is; Java renews all leases once in it, as we do.

    is_pushed: records are read by enhanced fan-out.
    """

    def __init__(self, meter: Meter, runtime: Runtime, seconds: float, *, is_pushed: bool = False) -> None:
        self.meter = meter
        self._is_pushed = is_pushed
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

    def measure_if_over(self, held: Collection[HeldLease]) -> None:
        """Measure the round, if it is over. held: all leases."""
        now = self._runtime.monotonic() if self.meter.is_on else 0.0
        if now < self._ends:
            return
        with self._lock:
            worked, slowest = self._worked, self._slowest
            self._worked, self._slowest, self._ends = True, 0.0, now + self.seconds
        self.meter.measure(
            "",
            (catalog.CURRENT_LEASES, float(len(held))),
            (catalog.LEASES_IN_DOUBT, float(sum(one.is_in_doubt for one in held))),
            # Losses are counted from the events. Emit 0 so that the series exists while the worker is alive.
            (catalog.LOST_LEASES, 0.0),
            (catalog.RENEW_ALL_LEASES.success, float(worked)),
            (catalog.RENEW_ALL_LEASES.time, slowest),
        )
        if self._is_pushed:
            subscribed = sum(one.subscribed_at is not None for one in held)
            self.meter.measure("", (catalog.SUBSCRIPTIONS, float(subscribed)))
