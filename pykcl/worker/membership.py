"""Follow a leader of KCL 3.x: find the leases that it assigns, report metrics, and rescue what nobody leads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from pykcl.errors import SetupError, TemporaryError
from pykcl.events import ReportedLoadChanged, ReportsEnded, ReportsStarted
from pykcl.metrics.host_cpu import Averages
from pykcl.model import lease_writes
from pykcl.model.fleet_rows import CPU, SINGLE_TABLE_SUPPORT, WorkerMetrics, report, withdraw
from pykcl.model.lease import Lease, Row
from pykcl.planning.assignment_decider import ACTIVE_PERIODS
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.membership import (
    discovery_pause,
    is_assigned,
    reports_in,
    rescue,
    wants_cpu,
)
from pykcl.planning.read_schedule import jittered
from pykcl.status import Activity
from pykcl.worker.context import Context
from pykcl.worker.write_gate import Rank

_CPU_LIMIT = 100.0
"""Percent: how far the leader may load a worker that reports its CPU; Java's default."""


class Membership:
    """Used by the LeaseManager's thread, in a fleet that `FleetMonitor.follows`; `leave` by any thread.

    Leaving: 1) the report is deleted, so that nothing more is assigned; 2) lease workers checkpoint and release, and
    the leader finds unowned leases at its next run; 3) what it has assigned meanwhile is released, too.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_query = self._next_report = 0.0
        self._changed_at = float("-inf")
        self._reporting = context.runtime.lock()
        self._reported: WorkerMetrics | None = None
        self._load = ""
        self._wants_cpu = context.config.worker_metrics == "cpu"
        self._was_member = self._leaves = False
        self._still_since: dict[str, tuple[int, float]] = {}

    @property
    def is_member(self) -> bool:
        """True if the leader may assign leases to this worker."""
        return self._reported is not None

    @property
    def next_at(self) -> float:
        """Monotonic seconds at which there is something to do."""
        return min(self._next_query, self._next_report)

    def scanned(self, reports: Iterable[WorkerMetrics]) -> None:
        """Watch the reports that a scan of the whole table has shown."""
        if not self._context.fleet.has_own_tables:
            self._compare_reports(reports)

    def assigned(self, now: float, busy: Collection[str]) -> list[Acquisition]:
        """Return the leases that the leader has assigned to this worker and nobody here works on, if a query is due.

        busy: leases that lease workers hold or are taking. Raises TemporaryError, SetupError.
        """
        if now < self._next_query:
            return []
        context = self._context
        self._drop_lost(busy)
        found = context.table.owned_by(context.worker_id)
        news = found - set(busy) - {held.key for held in context.held.all()}
        if news:
            self._changed_at = now
        # Also where a read fails: the query has been answered.
        self._next_query = now + jittered(discovery_pause(now - self._changed_at), context.runtime.random())
        plans = []
        for key in sorted(news):
            row = context.table.read(key)
            if not is_assigned(
                row,
                context.worker_id,
                context.process_token,
                self._still_for(row),
                context.config.failover_time,
            ):
                continue
            if row.is_ended:
                self._keep_ended(row)
            else:
                plans.append(Acquisition(row, "assigned"))
        self._still_since = {key: seen for key, seen in self._still_since.items() if key in found}
        return plans

    def query_at_once(self) -> None:
        """Query with the next step what was assigned to this worker."""
        self._changed_at = self._context.runtime.monotonic()
        self._next_query = 0.0

    def _still_for(self, row: Row | None) -> float:
        """Return the seconds for which reads, of which this is the last, have shown the row with the same counter."""
        if not isinstance(row, Lease):
            return 0.0
        # The time after the answer, for the query and the read may have taken long: 1) they begin; 2) the other process
        # renews; 3) forty seconds later the answer comes; 4) the next read shows the same row, of a moment ago.
        now = self._context.runtime.monotonic()
        counter, since = self._still_since.get(row.key, (row.counter, now))
        since = since if counter == row.counter else now
        self._still_since[row.key] = (row.counter, since)
        return now - since

    def _keep_ended(self, seen: Lease) -> None:
        """Renew an ended lease without reading: the leader would assign it again and again."""
        context = self._context
        write = lease_writes.adopt(seen, context.metadata_for(seen))
        held = context.held.acquire(
            write,
            table=context.table,
            config=context.config,
            meter=context.meter,
            wake=context.runtime.event(),
            events=context.events,
            rank=Rank.HEARTBEAT,
        )
        if held is not None:
            context.held.add(held)

    def _drop_lost(self, busy: Collection[str]) -> None:
        """Forget ended leases whose rows were deleted or assigned to others."""
        for held in self._context.held.all():
            if held.is_over and held.key not in busy:
                self._context.held.remove(held)

    def rescue(self, view: LeaseView, in_hand: Collection[str]) -> list[Acquisition]:
        """Return the leases to take in a fleet without a leader, as they have stood still for long."""
        context, config = self._context, self._context.config
        if not config.rescue:
            return []
        return rescue(
            context.worker_id,
            view,
            context.runtime.random(),
            failover_time=config.failover_time,
            max_leases=config.max_leases,
            in_hand=in_hand,
        )

    # -- reports -----------------------------------------------------------------------------------------------

    def report_if_due(self, now: float) -> None:
        """Report this worker's metrics: from then on the leader assigns leases to it. Raises SetupError."""
        if now < self._next_report or self._leaves:
            return
        # Before the lock, for which a stop waits: the endpoint of an ECS task may take its time.
        # As others see the time: a leader compares it with its own clock.
        seconds = self._context.stream.server_time_millis(as_seen=True) // 1000
        averages, why_no_cpu = None, ""
        self._compare_old_reports()
        if self._wants_cpu:
            why_no_cpu = self._context.cpu.begin()
            wait = self._context.cpu.wait
            if not why_no_cpu and wait > 0:
                self._next_report = now + wait
                return
            averages = self._context.cpu.measure() if not why_no_cpu else None
        # Under the lock: 1) this thread sees that nobody leaves; 2) another one deletes the report; 3) it would be put
        # again, and leases would be assigned to a worker that has gone.
        with self._reporting:
            if not self._leaves:
                self._report(now, seconds, averages, why_no_cpu)

    def _report(self, now: float, seconds: int, averages: Averages | None, why_no_cpu: str) -> None:
        context = self._context
        supports = None if context.fleet.has_own_tables else SINGLE_TABLE_SUPPORT
        values = {CPU: averages.values} if averages is not None else {}
        limits = dict.fromkeys(values, (_CPU_LIMIT,))
        metrics = WorkerMetrics(context.worker_id, seconds, values, limits, supports)
        self._was_member = True
        # Before it is sent: 1) the report is put, and its answer lost; 2) the next attempt is forbidden, or the thread
        # dies; 3) the worker stops. It would leave the report behind, and leases would be assigned to it.
        before, self._reported = self._reported, metrics
        try:
            until = context.runtime.monotonic() + context.config.write_timeout
            is_kept = context.table.write_fleet_row(report(metrics), until=until)
        except TemporaryError as error:
            # Missed twice, the leader takes this worker for dead.
            self._next_report = now + context.config.worker_metrics_interval / 6
            context.failures.failed(Activity.REPORTING, error)
            return
        if not is_kept:
            self._reported = None
            raise SetupError(
                f"The worker identifier {context.worker_id!r} is the key of a row of lease table "
                f"{context.config.table!r} that holds no metrics. Nothing was changed in it. Do: use another worker_id."
            )
        context.failures.worked(Activity.REPORTING)
        if before is None:
            self._changed_at = now
            self._next_query = min(self._next_query, now + discovery_pause(0.0))
        if averages is not None:
            context.cpu.keep(averages)
        else:
            context.cpu.end()
        self._note_load(context.cpu.name if averages is not None else _throughput(why_no_cpu))
        self._next_report = now + jittered(context.config.worker_metrics_interval, context.runtime.random())

    def _compare_old_reports(self) -> None:
        """Read the reports of others where KCL 3.0-3.4 keeps them, if they decide on this worker's."""
        context = self._context
        if (
            context.fleet.has_own_tables
            and context.config.worker_metrics == "auto"
            and context.cpu.is_possible
        ):
            # What is wrong with that table the report shows; until then what is known of the fleet holds.
            with suppress(TemporaryError, SetupError):
                self._compare_reports(reports_in(context.table.old_metrics()))

    def _compare_reports(self, reports: Iterable[WorkerMetrics]) -> None:
        """Decide on the metric to report, by reports that were just read: their ages are of this moment."""
        context = self._context
        interval = context.config.worker_metrics_interval
        since = context.stream.server_time_millis() / 1000 - ACTIVE_PERIODS * interval
        self._wants_cpu = wants_cpu(context.config.worker_metrics, reports, context.worker_id, since=since)

    def _note_load(self, load: str) -> None:
        before, self._load = self._load, load
        worker = self._context.worker_id
        if not before:
            self._context.events.emit(ReportsStarted(worker_id=worker, load=load))
        elif before != load:
            self._context.events.emit(ReportedLoadChanged(worker_id=worker, load=load))

    def leave(self) -> None:
        """Withdraw the metrics and report none any more."""
        self._leaves = True
        if self._was_member:
            self.withdraw()

    def withdraw(self) -> None:
        """Delete the report, if there is one: the leader assigns nothing to this worker any more."""
        with self._reporting:
            metrics, self._reported, self._load = self._reported, None, ""
            self._context.cpu.end()
            self._next_report = 0.0
            if metrics is None:
                return
            try:
                # Once: a stop must not wait for it, and a report is no sign of life any more after a minute.
                self._context.table.write_fleet_row(withdraw(metrics), until=0.0)
            except (TemporaryError, SetupError) as error:
                self._context.failures.failed(Activity.REPORTING, error)
        self._context.events.emit(ReportsEnded(worker_id=self._context.worker_id))

    def release_assigned(self) -> None:
        """Release what was assigned to this worker while it was leaving; ended leases expire.

        Raises TemporaryError, SetupError.
        """
        if not self._was_member:
            return
        context = self._context
        ended = context.held.all()
        for held in ended:
            context.held.remove(held)
        found = context.table.owned_by(context.worker_id)
        for key in sorted(found - {held.key for held in ended}):
            row = context.table.read(key)
            if is_assigned(row, context.worker_id, context.process_token, 0.0, 0.0):
                until = context.runtime.monotonic() + context.config.write_timeout
                context.table.write(lease_writes.release(row), until=until)


def _throughput(why_no_cpu: str) -> str:
    return "throughput" if not why_no_cpu else f"throughput, for there is no CPU metric: {why_no_cpu}"
