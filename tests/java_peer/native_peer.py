"""`NativePeer`: a scripted Java KCL 3.x worker in 3.x's own mode: leader or follower, by a lock that it competes for.

As long as the fleet is upgraded from 2.x it works by the protocol of 2.x, and reports metrics all the same. Java KCL
3.5.1 `leader/DynamoDBLockBasedLeaderDecider.java`, `coordinator/assignment/LeaseAssignmentManager.java`,
`leases/dynamodb/DynamoDBLeaseDiscoverer.java`, `leases/LeaseGracefulShutdownHandler.java` and
amazon-dynamodb-lock-client 1.4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from pykcl.runtime import Runtime
from tests.java_compat.scenarios.java_3x import (
    FLIPPED,
    HAND_OFF_TIMEOUT,
    MIGRATION,
    NATIVE,
    OWNER_INDEX,
    Assignment,
    LeaseAssignmentManager,
    finish_hand_off,
    leader_lock,
    sent,
    worker_metrics,
)
from tests.java_peer.lease import DependencyFailed, RowUnreadable
from tests.java_peer.peer import EPSILON, Duty, JavaPeer
from tests.java_peer.shard_consumer import Held, LeaseRenewer, ShardConsumer, State

LOCK_SECONDS = 120.0
LOCK_HEARTBEAT = 30.0
METRICS_INTERVAL = 30.0
_FIRST_METRICS = 2.0
_VERSION_INTERVAL = 60.0
_STALE_ROW_SECONDS = 86_400
_FAILED_RUNS = 3
_LOCK = "Leader"
_AGAIN = 0.5


class LeaderLock:
    """The lock as one worker competes for it. next_version: makes another version at each call."""

    def __init__(
        self, name: str, *, client: Any, table: str, runtime: Runtime, next_version: Callable[[], str]
    ) -> None:
        self._name, self._client, self._table, self._runtime = name, client, table, runtime
        self._next_version = next_version
        self._version: str | None = None
        self._beat_at = float("-inf")
        self._seen: tuple[Any, float] = (None, float("-inf"))

    @property
    def version(self) -> str | None:
        """The version of the lock that this worker put, while nobody has taken it as far as it knows."""
        return self._version

    @property
    def held_for(self) -> float:
        """Seconds since before it was put."""
        return self._runtime.monotonic() - self._beat_at

    @property
    def is_held(self) -> bool:
        """Return whether this worker believes that it leads."""
        return self._version is not None and self.held_for < LOCK_SECONDS

    def beat_or_try(self) -> None:
        """Heartbeat of the leader; of others, an attempt to get the lock."""
        if self.is_held:
            self._beat()
        else:
            self._version = None
            self._try()

    def _beat(self) -> None:
        now, version = self._runtime.monotonic(), self._next_version()
        kept = sent(
            self._client,
            {
                **self._key(),
                "UpdateExpression": "SET leaseDuration = :duration, recordVersionNumber = :new",
                "ConditionExpression": "recordVersionNumber = :old AND ownerName = :me",
                "ExpressionAttributeValues": {
                    ":duration": {"S": str(int(LOCK_SECONDS * 1000))},
                    ":new": {"S": version},
                    ":old": {"S": str(self._version)},
                    ":me": {"S": self._name},
                },
            },
        )
        self._version = version if kept else None
        self._beat_at = now

    def _try(self) -> None:
        now = self._runtime.monotonic()
        row = self._client.get_item(**self._key(), ConsistentRead=True).get("Item")
        if row is None:
            self._put("attribute_not_exists(leaseKey)", {})
        elif "isReleased" in row:
            self._put("isReleased = :seen", {":seen": row["isReleased"]})
        elif row.get("recordVersionNumber") != self._seen[0]:
            self._seen = (row.get("recordVersionNumber"), now)
        elif "recordVersionNumber" in row and now - self._seen[1] >= _seconds_of(row):
            self._put("recordVersionNumber = :seen", {":seen": row["recordVersionNumber"]})

    def _put(self, condition: str, values: Mapping[str, Any]) -> None:
        now, version = self._runtime.monotonic(), self._next_version()
        request = {
            "TableName": self._table,
            "Item": leader_lock(self._name, version),
            "ConditionExpression": condition,
            **({"ExpressionAttributeValues": values} if values else {}),
        }
        if _is_done(self._client.put_item, request):
            self._version, self._beat_at = version, now

    def release(self) -> None:
        """Give the lock up: the next worker that tries has it."""
        version, self._version = self._version, None
        if version is None:
            return
        sent(
            self._client,
            {
                **self._key(),
                "UpdateExpression": "SET isReleased = :yes",
                "ConditionExpression": "recordVersionNumber = :old AND ownerName = :me",
                "ExpressionAttributeValues": {
                    ":yes": {"S": "1"},
                    ":old": {"S": version},
                    ":me": {"S": self._name},
                },
            },
        )

    def _key(self) -> dict[str, Any]:
        return {"TableName": self._table, "Key": {"leaseKey": {"S": _LOCK}}}


class NativeRenewer(LeaseRenewer):
    """Goes on renewing a lease that the leader asks for, until its consumer has handed it over."""

    asked: Callable[[], None]

    def _send(self, held: Held, throughput: float | None) -> bool:
        lease = held.lease
        if self._table.renew(lease, throughput):
            return True
        row = self._table.get(lease.key)
        is_asked = row is not None and row.checkpoint_owner == lease.actual_owner
        if row is None or lease.checkpoint_owner is not None or not is_asked or row.counter != lease.counter:
            return False
        held.lease = lease.with_(owner=row.owner, checkpoint_owner=row.checkpoint_owner)
        self.asked()
        return self._table.renew(held.lease, None)


class NativePeer(JavaPeer):
    """A JavaPeer whose coordinator discovers what it was assigned, reports metrics, and leads while it has the lock.

    epoch: seconds by the clock of AWS. on_assigned: hears of every decision of this leader that was written.
    """

    epoch: Callable[[], int]
    on_assigned: Callable[[str, Assignment], None]
    lock: LeaderLock

    def lead_with(
        self,
        *,
        client: Any,
        table: str,
        epoch: Callable[[], int],
        next_version: Callable[[], str],
        on_assigned: Callable[[str, Assignment], None],
    ) -> NativePeer:
        """Give it what only this mode needs; called once, before the start."""
        self._client, self._table_name = client, table
        self.epoch, self.on_assigned = epoch, on_assigned
        self.lock = LeaderLock(
            self.name, client=client, table=table, runtime=self._runtime, next_version=next_version
        )
        self._manager: LeaseAssignmentManager | None = None
        self._version: str | None = None
        self._failed_runs = 0
        self._asked_since: dict[str, float] = {}
        return self

    @property
    def is_native(self) -> bool:
        """Return whether it works by 3.x's own protocol, as the state of the migration was when it read it last."""
        return self._version in (NATIVE, FLIPPED)

    def stop(self, timeout: float = 60.0) -> None:
        """JavaPeer's, which releases nothing but the lock."""
        super().stop(timeout)
        self._attempt(self.lock.release)

    def _new_renewer(self) -> LeaseRenewer:
        renewer = NativeRenewer(
            self._table, self._runtime, self.options.failover, lambda lease: self._report("lost", lease.key)
        )
        renewer.asked = self._wake
        return renewer

    def _wake(self) -> None:
        self._wake_consumers.set()

    def _duties(self) -> list[Duty]:
        options = self.options
        interval = 2 * (options.failover + EPSILON)
        return [
            (self._read_version, _VERSION_INTERVAL, 0.0),
            (self._keep_the_lock, LOCK_HEARTBEAT, 0.0),
            (self._discover, interval / 2, 0.0),
            (self._report_metrics, METRICS_INTERVAL, _FIRST_METRICS),
            (self._assign_or_take, interval, 1.0),
            (self._audit, options.auditor_interval, options.auditor_interval / 2),
            (self._cleanup.run, options.cleanup_interval, options.cleanup_interval),
        ]

    def _attempt(self, duty: Callable[[], None]) -> bool:
        try:
            return super()._attempt(duty)
        except ClientError as error:
            self._report("failed", "", detail=str(error))
            return False

    def _read_version(self) -> None:
        key = {"leaseKey": {"S": MIGRATION}}
        row = self._client.get_item(TableName=self._table_name, Key=key, ConsistentRead=True).get("Item", {})
        self._version = row.get("cv", {}).get("S")
        if not self.is_native:
            self._attempt(self.lock.release)

    def _keep_the_lock(self) -> None:
        led = self.lock.is_held
        if self.is_native:
            self.lock.beat_or_try()
        if not (led and self.lock.is_held):
            # The memory of a leader begins with its term.
            self._manager = None

    def _report_metrics(self) -> None:
        if self._version is not None and self._version != "CLIENT_VERSION_2X":
            self._client.update_item(**worker_metrics(self._table_name, self.name, self.epoch()))

    def _discover(self) -> None:
        if not self.is_native:
            return
        answer = self._client.query(
            TableName=self._table_name,
            IndexName=OWNER_INDEX,
            KeyConditionExpression="leaseOwner = :me",
            ExpressionAttributeValues={":me": {"S": self.name}},
        )
        known = {held.lease.key for held in self._renewer.current()}
        for key in sorted({item["leaseKey"]["S"] for item in answer["Items"]} - known):
            try:
                row = self._table.get(key)
            except RowUnreadable:
                continue
            if row is not None and row.owner == self.name and row.checkpoint_owner is None:
                self._renewer.add(row)
                self._report("taken", key, detail="assigned")
                self._wake_consumers.set()

    # -- the leader --------------------------------------------------------------------------------------------

    def _assign_or_take(self) -> None:
        if not self.is_native:
            self._take()
        elif self.lock.is_held:
            self._lead()

    def _lead(self) -> None:
        self._manager = self._manager or LeaseAssignmentManager(
            client=self._client, table=self._table_name, failover=self.options.failover
        )
        try:
            self._delete_stale_metrics()
            for assignment in self._manager.plan(self._runtime.monotonic(), self.epoch()):
                if self._manager.send(assignment):
                    self.on_assigned(self.name, assignment)
        except (ClientError, DependencyFailed):
            self._failed_runs += 1
            if self._failed_runs >= _FAILED_RUNS:
                self._attempt(self.lock.release)
            raise
        self._failed_runs = 0

    def _delete_stale_metrics(self) -> None:
        for item in self._client.scan(TableName=self._table_name)["Items"]:
            lut = item.get("lut", {}).get("N", "")
            is_metrics = item.get("entityType") == {"S": "WORKER_METRIC_STATS"}
            if is_metrics and lut.isdigit() and self.epoch() - int(lut) > _STALE_ROW_SECONDS:
                request = {
                    "TableName": self._table_name,
                    "Key": {"leaseKey": item["leaseKey"]},
                    "ConditionExpression": "lut = :seen",
                    "ExpressionAttributeValues": {":seen": item["lut"]},
                }
                _is_done(self._client.delete_item, request)

    def _audit(self) -> None:
        if self.is_native:
            # Elected by the lock.
            self._leads, self._elected_at = self.lock.is_held, self._runtime.monotonic()
        super()._audit()

    # -- hand-offs ---------------------------------------------------------------------------------------------

    def _advance(self, consumer: ShardConsumer) -> None:
        if consumer.held.lease.checkpoint_owner is None:
            self._asked_since.pop(consumer.key, None)
            super()._advance(consumer)
        elif consumer.state is not State.LOST:
            self._hand_over(consumer)

    def _hand_over(self, consumer: ShardConsumer) -> None:
        """Between two batches: what was delivered is checkpointed, unless the table did not answer; then for a while it
        is tried again."""
        now = self._runtime.monotonic()
        since = self._asked_since.setdefault(consumer.key, now)
        if consumer.owes_a_checkpoint and now - since < HAND_OFF_TIMEOUT:
            super()._advance(consumer)
            if consumer.owes_a_checkpoint:
                return
        held = consumer.held
        try:
            with held.lock:
                row = self._table.get(consumer.key)
                if row is not None and row.checkpoint_owner == self.name:
                    sent(self._client, finish_hand_off(self._table_name, row))
        except (ClientError, DependencyFailed):
            consumer.due = now + _AGAIN
            return
        self._asked_since.pop(consumer.key, None)
        self._renewer.drop(held)
        consumer.state = State.LOST


def _seconds_of(row: Mapping[str, Any]) -> float:
    """Return how long the lock is left alone, as its row says."""
    millis = row.get("leaseDuration", {}).get("S", "")
    return int(millis) / 1000 if millis.isdigit() else LOCK_SECONDS


def _is_done(operation: Callable[..., Any], request: Mapping[str, Any]) -> bool:
    """False: its condition did not hold."""
    try:
        operation(**request)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return False
    return True
