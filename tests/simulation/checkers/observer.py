"""Passes everything that happens to the hosts of a simulation to the checkers it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykcl.events import (
    BatchSkipped,
    DataLost,
    Event,
    FleetJoined,
    LeaseConfirmed,
    LeaseDoubted,
    ProcessorRaised,
)
from pykcl.stores.expressions import Item
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation.delivery import DeliveryChecker, Ownership, RecordLog
from pykcl.testing.simulation.faults import Freezes, Marks
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.checkers.duplicates import DuplicateChecker
from tests.simulation.checkers.events import EventChecker
from tests.simulation.checkers.lifecycle import LifecycleChecker
from tests.simulation.checkers.losses import LossChecker
from tests.simulation.checkers.ownership import OwnershipChecker
from tests.simulation.checkers.request_budget import RequestBudgetChecker, rules_for
from tests.simulation.checkers.validity import ValidityChecker

_DENIED = ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException")
_MISSING = ("ResourceNotFoundException",)


class Observer:
    """The checkers that need to know what a host asked and was answered, and what was done to it.

    frozen, struck: what was done to hosts, and when. denied: to whom a service refused a permission. without_table: to
    whom DynamoDB said that there is no lease table, or that it is another one. raised: whose processor raised. read,
    took, joined: who had its first page, its first lease, a first view of the lease table, and when.
    """

    ownership_checker: type[OwnershipChecker] = OwnershipChecker
    event_checker: type[EventChecker] = EventChecker
    rules = staticmethod(rules_for)

    read: dict[str, float]
    took: dict[str, float]
    joined: dict[str, float]

    def __init__(
        self,
        simulation: Simulation,
        record_log: RecordLog,
        violations: Violations,
        delivery: DeliveryChecker,
        beliefs: ValidityChecker,
        *,
        options: Mapping[str, Any],
        failover: float,
        settling: float,
        row: Callable[[str], Item | None],
        rows: Callable[[], Mapping[str, Item]],
        worker_ids: dict[str, str],
        is_gone: Callable[[str], bool],
        by_user: bool,
    ) -> None:
        self._simulation = simulation
        self._delivery, self._beliefs = delivery, beliefs
        now = self._now
        self.frozen, self.struck, self.denied = Freezes(now), Marks(now), Marks(now)
        self.without_table, self.raised = Marks(now), Marks(now)
        self.read, self.took, self.joined = {}, {}, {}
        self._failed_writes: dict[tuple[str, str], float] = {}
        self._by_user = by_user
        self._rows, self._worker_ids = rows, worker_ids
        rules = self.rules(options, failover)
        if by_user:
            # A processor of a user may checkpoint after each record.
            del rules["checkpoint"]
        self.budgets = RequestBudgetChecker(violations, rules, now)
        self.ownership = self.ownership_checker(
            violations,
            now=now,
            row=row,
            worker_ids=worker_ids,
            failover=failover,
            settling=settling,
            left_alone=options["retry_timeout"],
            on_clock=self.on_clock,
        )
        self.fleet = self.event_checker(
            violations, now=now, rows=rows, worker_ids=worker_ids, frozen=self.frozen
        )
        self.losses = LossChecker(record_log, violations, is_gone=is_gone)
        self.debts = DuplicateChecker(
            violations,
            interval=_interval(options),
            now=now,
            durable=self.ownership.durable,
            failed=lambda host, key, since: self._failed_writes.get((host, key), 0.0) >= since,
            on_clock=self.on_clock,
        )
        self.lives = LifecycleChecker(
            violations,
            now=now,
            believes=beliefs.believes,
            doubts=beliefs.doubts,
            threads=lambda host: [task.name for task in simulation.unfinished(host)],
            cannot_report=lambda host, since: self.frozen.seconds_since(host, since) > 0,
            struck=self.struck.since,
        )
        self._connect()

    def _connect(self) -> None:
        delivery = self._delivery
        self.ownership.on_stolen = self._stolen
        self.ownership.on_hidden = self._beliefs.stolen
        self.ownership.on_released = lambda host, key: delivery.released.add((host, key))
        self.ownership.is_excused = self.could_not_report
        delivery.owns = self.ownership.owns
        delivery.is_made_by_pykcl = self.ownership.is_made_by_pykcl
        delivery.on_starts = self._starts
        delivery.on_batch = self._batch
        delivery.on_returned = self._returned
        delivery.on_skipped = self.losses.batch_is_over
        delivery.on_repeated = self.debts.comes_again

    def _now(self) -> float:
        return self._simulation.now

    def on_clock(self, host: str, seconds: float) -> float:
        """Virtual seconds while the clock of this host counts so many."""
        return self._simulation.clock(host).real_seconds(seconds)

    # -- what hosts ask and are answered -----------------------------------------------------------------------

    def asked_dynamodb(self, host: str, kind: str, key: str, code: str, *, failed: bool) -> None:
        """kind: of a write as `kind_of_write` says, of other requests the operation. code: of the error, or ""."""
        self.budgets.spent(host, kind, key, failed=failed)
        if kind == "renew" and self._beliefs.doubts(host, key):
            self.budgets.spent(host, "doubt", key, failed=failed)
        if failed:
            self._failed_writes[host, key] = self._now()
            if code in _DENIED:
                self.denied.add(host)
            if code in _MISSING:
                self.without_table.add(host)
        elif kind in ("take", "adopt") and not code:
            self.took.setdefault(host, self._now())
            self.ownership.answered(host, key)

    def asked_kinesis(
        self, host: str, kind: str, shard_id: str, *, failed: bool = False, denied: bool = False
    ) -> None:
        self.budgets.spent(host, kind, shard_id, failed=failed)
        if denied:
            self.denied.add(host)

    def was_given_a_page(self, host: str) -> None:
        """A refused iterator is an answer too, and does not show that the host may read."""
        self.read.setdefault(host, self._now())

    # -- what happens ------------------------------------------------------------------------------------------

    def row_changed(self, change: Change) -> None:
        self.fleet.row_changed(change)
        self.ownership.row_changed(change)
        if change.after and change.after.get("checkpoint", {}).get("S") == "SHARD_END":
            self.lives.ended_in_row(change.author, change.key)
        if change.after is None and change.author not in self._worker_ids:
            self.losses.deleted_by_java(change.key, self._rows())

    def heard(self, host: str, event: Event) -> None:
        self.fleet.heard(host, event)
        self.ownership.heard(host, event)
        self.debts.heard(host, event)
        if isinstance(event, ProcessorRaised):
            self.raised.add(host)
        if isinstance(event, BatchSkipped):
            self.budgets.spent(host, "skipped", event.shard)
        if isinstance(event, LeaseDoubted | LeaseConfirmed):
            # From the one to the other nothing was sent but heartbeats. Seed 920000041.
            self._failed_writes[host, event.shard] = self._now()
        if isinstance(event, FleetJoined):
            self.joined.setdefault(host, self._now())
        if isinstance(event, DataLost):
            self.losses.heard(host, event)

    def killed(self, host: str) -> None:
        self._beliefs.forget(host)
        self.ownership.forget(host)
        self.lives.forget(host)

    def poll(self) -> None:
        """Check what only shows in time."""
        self.ownership.poll()
        self.lives.poll()

    def _stolen(self, key: str, is_steal: bool) -> None:
        if is_steal:
            self._beliefs.stolen(key)
            self._delivery.stolen.add(key)
        else:
            self._delivery.stolen.discard(key)

    def could_not_report(self, host: str, since: float) -> bool:
        """Return whether the host stood still since then, or a thread of it died."""
        return self.frozen.seconds_since(host, since) > 0 or self.struck.since(host, since)

    def _starts(self, owning: Ownership) -> None:
        owning.started = self._now()
        if not self._by_user:
            # A processor of a user may commit in `initialize` what an earlier one prepared.
            self.ownership.starts(owning.host, owning.shard_id, owning.after)
        self.lives.starts(owning)
        self.losses.starts(owning)

    def _batch(self, owning: Ownership, lacks: bool) -> None:
        self.budgets.spent(owning.host, "batch", owning.shard_id)
        self.losses.reads_on(owning, lacks)
        self.debts.batch_starts(owning)

    def _returned(self, owning: Ownership) -> None:
        owning.returned.append((self._now(), owning.after))
        self.losses.batch_is_over(owning)


def _interval(options: Mapping[str, Any]) -> float | None:
    """Return the seconds that records may stay done without a checkpoint; None: as long as the processor likes."""
    if options["checkpoint_mode"] in ("manual", "ack"):
        return None
    return float(options["checkpoint_interval"]) if options["checkpoint_mode"] == "interval" else 0.0
