"""A checked fleet for scenarios: Java and pykcl workers, Java by hand, and steps put before or behind single requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.shard import Shard
from pykcl.processor import Batch, InitializationInput
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Change, Fault
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation
from tests.java_compat.mixed_fleet import Changes, CheckedProcessor, MixedFleet
from tests.java_compat.scenarios.java_3x import OWNER_INDEX
from tests.java_compat.scenarios.java_by_hand import JavaByHand
from tests.java_compat.scenarios.table_backends import BACKENDS, Senders, SigningClient
from tests.java_peer.options import JavaVersion

FAILOVER = 10.0
HEARTBEAT = FAILOVER / 3
NOTICED = HEARTBEAT + 2.0
"""Within this time an owner has sent its next heartbeat and has its answer."""
LEASE_ATTRIBUTES = (
    "leaseCounter",
    "ownerSwitchesSinceCheckpoint",
    "checkpoint",
    "checkpointSubSequenceNumber",
)


class ScenarioProcessor(CheckedProcessor):
    """Also watches the order within one reader's session."""

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        self.last = init.position
        self._mixed.checkpointers[init.shard_id] = init.checkpointer
        self._mixed.inits.append((self.worker, init))

    def process_records(self, batch: Batch) -> None:
        for record in batch.records:
            if not self.last.is_start and record.position <= self.last:
                self._mixed.broken.append(f"{batch.shard_id}: {record.position} came after {self.last}")
            self.last = record.position
        self._mixed.checkpointers[batch.shard_id] = batch.checkpointer
        super().process_records(batch)


class ScenarioFleet(MixedFleet):
    """moments: (simulated time, change) of every applied write; a change's author is who sent it.

    unchecked: authors whose writes may break the rules; that pykcl lives with them is what is tested then.
    """

    def __init__(self, simulation: Simulation, backend: str, shards: int = 1) -> None:
        super().__init__(simulation, shards=shards)
        self.senders = Senders(simulation)
        self.dynamodb = BACKENDS[backend](simulation.runtime("dynamodb"), self.senders)
        self.moments: list[tuple[float, Change]] = []
        self.unchecked: set[str] = set()
        self.inits: list[tuple[str, InitializationInput]] = []
        self.checkpointers: dict[str, Any] = {}
        self.dynamodb.changes = Changes(self._noted)
        self.dynamodb.fault = self._before_request
        self._behind_next: list[Callable[[], object]] = []
        self._steps: list[tuple[Callable[[str, Any], bool], Callable[[], Fault | None], bool]] = []

    # -- workers -----------------------------------------------------------------------------------------------

    def pykcl_worker(self, name: str, **options: Any) -> Any:
        options = {"processor": lambda: ScenarioProcessor(name, self), **options}
        return super().pykcl_worker(name, **options)

    def start_pykcl(self, name: str, **options: Any) -> Any:
        """From a thread of its own group, so that all its requests are its own; returns when it runs."""
        worker = self.pykcl_worker(name, **options)
        task = self.simulation.spawn(f"{name}-start", name, worker.start)
        self.wait(lambda: not task.is_alive(), what=f"{name} to start")
        return worker

    def stop_pykcl(self, name: str) -> None:
        """An orderly stop, from a thread of its own group."""
        task = self.simulation.spawn(f"{name}-stop", name, self.workers[name].stop)
        self.wait(lambda: not task.is_alive(), what=f"{name} to stop")

    def client_of(self, name: str) -> SigningClient:
        return SigningClient(self.dynamodb, name, self.senders)

    def java_by_hand(self, name: str, version: JavaVersion = "2.7.2") -> JavaByHand:
        return JavaByHand(
            name,
            client=self.client_of(name),
            table=TABLE,
            runtime=self.simulation.runtime(name),
            version=version,
        )

    def java_with_leases(self, name: str, *keys: str, version: JavaVersion = "2.7.2") -> JavaByHand:
        """A Java worker by hand that made the table and all leases, and took these."""
        hand = self.java_by_hand(name, version)
        hand.create_table()
        for shard in self.shards().values():
            hand.create(shard)
        for key in keys:
            assert hand.take(key)
        return hand

    def keep_renewing(self, hand: JavaByHand, *keys: str) -> None:
        """Heartbeats every third of the failover time, until one fails or the group is killed or frozen."""

        def beat() -> None:
            held = list(keys)
            while held:
                self.simulation.sleep(HEARTBEAT)
                held = [key for key in held if hand.renew(key)]

        self.simulation.spawn(f"{hand.name}-beats", hand.name, beat)

    def java_read(self, key: str, count: int | None = None) -> Checkpoint:
        """A Java application has done the first `count` records of the shard, all by default; the last one's position."""
        done = self.positions[key][:count]
        self.done.setdefault(key, set()).update(done)
        return done[-1]

    # -- steps between requests --------------------------------------------------------------------------------

    def when(
        self,
        who: str,
        kind: str,
        then: Callable[[], Fault | None] | Fault,
        *,
        key: str | None = None,
        always: bool = False,
    ) -> None:
        """Before the next request of this kind by `who` is applied, `then` runs: see `kind_of`. Once, or always."""

        def matches(operation: str, params: Any) -> bool:
            return (
                self.senders.now() == who
                and kind_of(operation, params) == kind
                and key in (None, key_in(params))
            )

        # What a step raises must reach the test, not the worker in whose thread it runs.
        run = self.simulation.insist(then) if callable(then) else lambda: then
        self._steps.append((matches, run, always))

    def _before_request(self, operation: str, params: Any) -> Fault | None:
        for step in list(self._steps):
            matches, run, always = step
            if matches(operation, params):
                if not always:
                    self._steps.remove(step)
                return run()
        return None

    def after_this_write(self, then: Callable[[], object]) -> None:
        """For a step: `then` runs behind the write it was called for, before anybody else does anything."""
        self._behind_next.append(self.simulation.insist(then))

    def all_steps_ran(self) -> bool:
        return not self._steps

    def forget_steps(self) -> None:
        self._steps.clear()

    # -- looking -----------------------------------------------------------------------------------------------

    def changes_by(self, who: str, key: str | None = None) -> list[Change]:
        return [
            change for change in self.dynamodb.changes if change.author == who and key in (None, change.key)
        ]

    def changes_of(self, key: str) -> list[Change]:
        return [change for change in self.dynamodb.changes if change.key == key]

    def owner_changes(self, key: str) -> list[str | None]:
        """Every owner of the row, one after the other."""
        found: list[str | None] = []
        for change in self.changes_of(key):
            owner = owner_in(change.after)
            if not found or found[-1] != owner:
                found.append(owner)
        return found

    def position(self, key: str, number: int) -> Checkpoint:
        return self.positions[key][number]

    def first_shard(self) -> Shard:
        return self.neighbours()[0]

    def epoch(self) -> int:
        return EPOCH_MILLIS // 1000 + int(self.simulation.now)

    def wait_settled(self, *names: str) -> None:
        """Balanced, and whoever lost a lease on the way there knows it."""
        self.wait_balanced(*names)
        self.simulation.sleep(NOTICED)

    def wait_read(self, name: str, key: str, timeout: float = 60.0) -> None:
        """Until the worker's processor for this shard was initialized."""
        self.wait(
            lambda: any(who == name and shard == key for who, shard, _ in self.starts),
            timeout,
            f"{name} to read {key}",
        )

    def lost_by(self, name: str) -> list[str]:
        """Shards of which a pykcl worker said that it lost them."""
        return [shard for worker, call, shard in self.ledger.calls if (worker, call) == (name, "lease_lost")]

    # -- judging -----------------------------------------------------------------------------------------------

    def _noted(self, change: Change) -> None:
        self.moments.append((self.simulation.now, change))
        behind, self._behind_next = self._behind_next, []
        try:
            self._check(change)
        finally:
            for then in behind:
                then()

    def _check(self, change: Change) -> None:
        if change.author in self.unchecked or change.key not in self.shards():
            return
        self._row_changed(change)
        lacking = [name for name in LEASE_ATTRIBUTES if change.after and name not in change.after]
        if lacking:
            self.broken.append(f"{change.author} left {change.key} without {lacking}")

    def check(self) -> None:
        super().check()
        if hasattr(self.dynamodb, "check"):
            self.dynamodb.check()


def kind_of(operation: str, params: Any) -> str:
    """What a request of pykcl is for: create, take, renew, checkpoint, prepare, end, release, or its operation."""
    if operation == "PutItem":
        return "create"
    update = params.get("UpdateExpression", "")
    if operation != "UpdateItem" or not update:
        return operation
    values = params["ExpressionAttributeValues"]
    if values.get(":checkpoint") == {"S": "SHARD_END"}:
        return "end"
    if ":checkpoint" in values:
        return "checkpoint"
    if ":pendingCheckpoint" in values:
        return "prepare"
    if ":leaseOwner" in values:
        return "take"
    return "release" if "REMOVE" in update else "renew"


def key_in(params: Any) -> str | None:
    found = params.get("Key") or params.get("Item")
    return found["leaseKey"]["S"] if found else None


def owner_in(item: Any) -> str | None:
    return (item or {}).get("leaseOwner", {}).get("S")


def counter_in(item: Any) -> int:
    return int(item["leaseCounter"]["N"])


def create_indexed_table(fleet: ScenarioFleet) -> None:
    """The lease table as KCL 3.x makes it, with its index of owners."""
    keys = [("leaseOwner", "HASH"), ("leaseKey", "RANGE")]
    fleet.dynamodb.create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[
            {
                "IndexName": OWNER_INDEX,
                "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
