"""Everything that happens to the hosts of a storm, sent on to the judges it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykcl.events import DataLost, Event, FleetJoined, ProcessorRaised
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.memory.values import Item
from pykcl.testing.simulation import Simulation
from pykcl.testing.storm.belief_judge import BeliefJudge
from pykcl.testing.storm.budget_judge import BudgetJudge, rules_for
from pykcl.testing.storm.debt_judge import DebtJudge
from pykcl.testing.storm.delivery_judge import DeliveryJudge
from pykcl.testing.storm.excuses import Freezes, Marks
from pykcl.testing.storm.fleet_judge import FleetJudge
from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ledger import Ledger
from pykcl.testing.storm.life_judge import LifeJudge
from pykcl.testing.storm.loss_judge import LossJudge
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.ownership_judge import OwnershipJudge

_DENIED = ("AccessDeniedException",)
_MISSING = ("ResourceNotFoundException",)


class Observer:
    """The judges that need to know what a host asked and was answered, and what was done to it.

    frozen, struck: what was done to hosts, and when. denied: to whom a service refused a permission. without_table: to
    whom DynamoDB said that there is no lease table, or that it is another one. raised: whose processor raised. read,
    took, joined: who had its first page, its first lease, a first view of the lease table, and when.
    """

    read: dict[str, float]
    took: dict[str, float]
    joined: dict[str, float]

    def __init__(
        self,
        simulation: Simulation,
        ledger: Ledger,
        verdict: Verdict,
        delivery: DeliveryJudge,
        beliefs: BeliefJudge,
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
        rules = rules_for(options, failover)
        if by_user:
            # A processor of a user may checkpoint after each record.
            del rules["checkpoint"]
        self.budgets = BudgetJudge(verdict, rules, now)
        self.ownership = OwnershipJudge(
            verdict,
            now=now,
            row=row,
            worker_ids=worker_ids,
            failover=failover,
            settling=settling,
            left_alone=options["retry_for"],
            on_clock=self.on_clock,
        )
        self.fleet = FleetJudge(verdict, now=now, rows=rows, worker_ids=worker_ids, frozen=self.frozen)
        self.losses = LossJudge(ledger, verdict, is_gone=is_gone)
        self.debts = DebtJudge(
            verdict,
            interval=_interval(options),
            now=now,
            durable=self.ownership.durable,
            failed=lambda host, key, since: self._failed_writes.get((host, key), 0.0) >= since,
            on_clock=self.on_clock,
        )
        self.lives = LifeJudge(
            verdict,
            now=now,
            believes=beliefs.believes,
            threads=lambda host: [task.name for task in simulation.unfinished(host)],
            cannot_tell=lambda host, since: self.frozen.seconds_since(host, since) > 0,
            struck=self.struck.since,
        )
        self._appoint()

    def _appoint(self) -> None:
        delivery = self._delivery
        self.ownership.on_stolen = self._stolen
        self.ownership.on_hidden = self._beliefs.stolen
        self.ownership.on_released = lambda host, key: delivery.released.add((host, key))
        self.ownership.excused = self._could_not_tell
        delivery.owns = self.ownership.owns
        delivery.is_made_by_pykcl = self.ownership.is_made_by_pykcl
        delivery.on_begins = self._begins
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
        if failed:
            self._failed_writes[host, key] = self._now()
            if code in _DENIED:
                self.denied.add(host)
            if code in _MISSING:
                self.without_table.add(host)
        elif kind == "take" and not code:
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

    def heard(self, host: str, event: Event) -> None:
        self.fleet.heard(host, event)
        self.ownership.heard(host, event)
        if isinstance(event, ProcessorRaised):
            self.raised.add(host)
        if isinstance(event, FleetJoined):
            self.joined.setdefault(host, self._now())
        if isinstance(event, DataLost):
            self.losses.heard(host, event)

    def killed(self, host: str) -> None:
        self._beliefs.forget(host)
        self.ownership.forget(host)
        self.lives.forget(host)

    def look(self) -> None:
        """Judge what only shows in time."""
        self.ownership.look()
        self.lives.look()

    def _stolen(self, key: str, is_steal: bool) -> None:
        if is_steal:
            self._beliefs.stolen(key)
            self._delivery.stolen.add(key)
        else:
            self._delivery.stolen.discard(key)

    def _could_not_tell(self, host: str, since: float) -> bool:
        return self.frozen.seconds_since(host, since) > 0 or self.struck.since(host, since)

    def _begins(self, owning: Ownership) -> None:
        owning.began = self._now()
        if not self._by_user:
            # A processor of a user may commit in `initialize` what an earlier one prepared.
            self.ownership.begins(owning.host, owning.shard_id, owning.after)
        self.lives.begins(owning)
        self.losses.begins(owning)

    def _batch(self, owning: Ownership, lacks: bool) -> None:
        self.budgets.spent(owning.host, "batch", owning.shard_id)
        self.losses.reads_on(owning, lacks)
        self.debts.batch_begins(owning)

    def _returned(self, owning: Ownership) -> None:
        owning.returned.append((self._now(), owning.after))
        self.losses.batch_is_over(owning)


def _interval(options: Mapping[str, Any]) -> float | None:
    """How long what was done may stay without a checkpoint; None: as long as the processor likes."""
    if options["checkpoint"] == "manual":
        return None
    return float(options["checkpoint_interval"]) if options["checkpoint"] == "interval" else 0.0
