"""What KCL 3.x sends beyond 2.x: its leader's assignments, hand-offs, worker metrics, the state of the migration.

Pure. None of these was recorded: they follow `leases/dynamodb/DynamoDBLeaseRefresher.java`,
`DynamoDBLeaseSerializer.java`, `leases/LeaseGracefulShutdownHandler.java`, `worker/metricstats/` and
`coordinator/migration/MigrationState.java` of v3.5.1, where everything lives in the lease table.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import ClientError

from pykcl.runtime import Runtime
from tests.java_compat.scenarios.java_by_hand import JavaByHand
from tests.java_peer.lease import JavaLease, RowUnreadable, is_lease_row, read_row

Params = dict[str, Any]

MIGRATION = "Migration3.0"
UPGRADING = "CLIENT_VERSION_UPGRADE_FROM_2X"
FLIPPED = "CLIENT_VERSION_3X_WITH_ROLLBACK"
NATIVE = "CLIENT_VERSION_3X"
OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"

_ONE: Params = {"Value": {"N": "1"}, "Action": "ADD"}
_GONE: Params = {"Action": "DELETE"}


def assign(table: str, seen: JavaLease, to: str) -> Params:
    """The leader gives a lease away: provided that both owners are as seen; the counter is not asked for."""
    updates: Params = {"leaseOwner": _put(to), "checkpointOwner": _GONE, "leaseCounter": _ONE}
    if seen.owner is not None and seen.owner != to:
        updates["ownerSwitchesSinceCheckpoint"] = _ONE
    return _update(table, seen, updates, **_owners_as_seen(seen))


def begin_hand_off(table: str, seen: JavaLease, to: str) -> Params:
    """The leader names the next owner, and the old one goes on as checkpoint owner. The counter stands still."""
    owner = str(seen.owner)
    return _update(
        table,
        seen,
        {"leaseOwner": _put(to), "checkpointOwner": _put(owner)},
        leaseOwner={"Value": {"S": owner}},
        checkpointOwner={"Exists": False},
    )


def finish_hand_off(table: str, seen: JavaLease) -> Params:
    """The old owner is done. seen: the row in hand-off; its `owner` is the next one."""
    updates: Params = {
        "checkpointOwner": _GONE,
        "leaseCounter": _ONE,
        "ownerSwitchesSinceCheckpoint": _ONE,
        "leaseOwner": _put(str(seen.owner)),
    }
    return _update(table, seen, updates, **_owners_as_seen(seen))


def worker_metrics(table: str, worker: str, epoch_seconds: int, cpu: Iterable[str] = ()) -> Params:
    """An upsert, every thirty seconds: "I am alive and ready for 3.x". Without any metric, as real ones sent it.

    cpu: averages as on EC2, ECS and EKS; of a form that was read, not recorded.
    """
    averages: Params = {"C": {"L": [{"N": value} for value in cpu]}} if cpu else {}
    values = {
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": str(epoch_seconds)},
        "slu": {"N": str(epoch_seconds)},
        "sup": {"N": "1"},
        "opr": {"M": {name: {"L": [{"N": "100"}]} for name in averages}},
        "sts": {"M": averages},
    }
    return {
        "TableName": table,
        "Key": {"leaseKey": {"S": worker}},
        "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in values),
        "ExpressionAttributeNames": {f"#{name}": name for name in values},
        "ExpressionAttributeValues": {f":{name}": value for name, value in values.items()},
    }


def leader_lock(owner: str, version: str, *, released: bool = False) -> Params:
    """The row of the lock, as the lock client puts it."""
    row: Params = {
        "leaseKey": {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": owner},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": version},
    }
    return {**row, "isReleased": {"S": "1"}} if released else row


def migration_row(state: str, by: str, epoch_millis: int) -> Params:
    """The row of the migration, as it stands after its first step."""
    return {
        "leaseKey": {"S": MIGRATION},
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": state},
        "mb": {"S": by},
        "mts": {"N": str(epoch_millis)},
        "h": {"L": []},
    }


def flip(table: str, by: str, epoch_millis: int) -> Params:
    """From the upgrade to 3.x, provided that nobody changed the state meanwhile."""
    return {
        "TableName": table,
        "Key": {"leaseKey": {"S": MIGRATION}},
        "UpdateExpression": "SET cv = :to, mb = :by, mts = :at",
        "ConditionExpression": "cv = :from",
        "ExpressionAttributeValues": {
            ":to": {"S": FLIPPED},
            ":from": {"S": UPGRADING},
            ":by": {"S": by},
            ":at": {"N": str(epoch_millis)},
        },
    }


def _put(text: str) -> Params:
    return {"Value": {"S": text}, "Action": "PUT"}


def _owners_as_seen(seen: JavaLease) -> Params:
    return {"leaseOwner": _as_seen(seen.owner), "checkpointOwner": _as_seen(seen.checkpoint_owner)}


def _as_seen(name: str | None) -> Params:
    return {"Exists": False} if name is None else {"Value": {"S": name}}


def _update(table: str, seen: JavaLease, updates: Params, **expected: Params) -> Params:
    exists = {"leaseKey": {"Value": {"S": seen.key}, "Exists": True}}
    return {
        "TableName": table,
        "Key": {"leaseKey": {"S": seen.key}},
        "AttributeUpdates": updates,
        "Expected": {**exists, **expected},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


METRICS_STALE_AFTER = 60
HAND_OFF_TIMEOUT = 30.0
READY_FOR = 600.0
BALANCES_EVERY = 3


class Java3xWorker(JavaByHand):
    """Takes nothing by itself: it looks for what was assigned to it, and gives up what is handed on."""

    def __init__(self, name: str, *, client: Any, table: str, runtime: Runtime) -> None:
        super().__init__(name, client=client, table=table, runtime=runtime, version="3.5.1")
        self._client, self._name_of_table = client, table
        self.cpu: list[str] = []

    def report_metrics(self, epoch: int) -> None:
        self._client.update_item(**worker_metrics(self._name_of_table, self.name, epoch, self.cpu))

    def discover(self) -> None:
        """Java asks the index of owners; the rows it answers with are these. Those in hand-off are not ours yet."""
        for key, lease in self.scan().items():
            if lease.owner == self.name and lease.checkpoint_owner is None and key not in self.held:
                self.held[key] = lease

    def renew_all(self) -> None:
        for key in list(self.held):
            if not self.renew(key) and not self.finish_hand_off(key):
                del self.held[key]

    def finish_hand_off(self, key: str) -> bool:
        """After the last checkpoint, which is up to the caller. False: no hand-off of ours, or no longer."""
        row = self.table.get(key)
        if row is None or row.checkpoint_owner != self.name:
            return False
        done = sent(self._client, finish_hand_off(self._name_of_table, row))
        if done:
            self.held.pop(key, None)
        return done


@dataclass(frozen=True, slots=True)
class Assignment:
    """One decision of the leader. seen: the row it was made by."""

    seen: JavaLease
    to: str
    how: Literal["assign", "hand-off"]


class LeaseAssignmentManager:
    """The leader's round, every twenty seconds, with the strategy LEASE_COUNT_BASED.

    A lease whose counter has not *grown* since the round before is as old as it was: after failover it is given away.
    Workers without metrics are no targets, and no sources of what they keep alive.
    """

    def __init__(self, *, client: Any, table: str, failover: float = 10.0) -> None:
        self._client, self._table, self._failover = client, table, failover
        self._grown: dict[str, tuple[int, float]] = {}
        self._in_hand_off: dict[str, tuple[str | None, float]] = {}
        self._rounds = 0

    def run(self, now: float, epoch: int) -> list[Assignment]:
        """One round; what was done of what it planned."""
        return [each for each in self.plan(now, epoch) if self.send(each)]

    def send(self, plan: Assignment) -> bool:
        """False: somebody changed an owner first."""
        build = assign if plan.how == "assign" else begin_hand_off
        return sent(self._client, build(self._table, plan.seen, plan.to))

    def plan(self, now: float, epoch: int) -> list[Assignment]:
        """Look, and decide; nothing is written."""
        items = _whole_table(self._client, self._table)
        leases = _leases_in(items)
        active = active_workers(items, epoch)
        ages = {lease.key: self._age(lease, now) for lease in leases}
        self._grown = {lease.key: (lease.counter, now - ages[lease.key]) for lease in leases}
        self._rounds += 1
        if not active:
            return []
        moving = [lease for lease in leases if self._is_moving(lease, now)]
        free = [
            lease
            for lease in leases
            if lease not in moving
            # What nobody has handed over in time is given away like any lease of a dead worker.
            and (lease.actual_owner is None or lease.checkpoint_owner or ages[lease.key] > self._failover)
        ]
        load = dict.fromkeys(active, 0)
        for lease in leases:
            if lease not in free and lease.actual_owner in load:
                load[lease.actual_owner] += 1
        plans = [Assignment(lease, _least(load), "assign") for lease in free]
        if self._rounds % BALANCES_EVERY == 0 and not plans:
            settled = [lease for lease in leases if lease not in moving]
            plans += _moves(settled, load)
        return plans

    def _age(self, lease: JavaLease, now: float) -> float:
        known = self._grown.get(lease.key)
        if known is None:
            return 0.0 if lease.owner is not None else float("inf")
        return 0.0 if lease.counter > known[0] else now - known[1]

    def _is_moving(self, lease: JavaLease, now: float) -> bool:
        if lease.checkpoint_owner is None:
            self._in_hand_off.pop(lease.key, None)
            return False
        to, since = self._in_hand_off.get(lease.key, (lease.owner, now))
        since = since if to == lease.owner else now
        self._in_hand_off[lease.key] = (lease.owner, since)
        return now - since <= HAND_OFF_TIMEOUT + self._failover


class MigrationReadyMonitor:
    """Watches, while an application is upgraded from 2.x, whether every owner is ready for 3.x; then it flips."""

    def __init__(self, name: str, *, client: Any, table: str) -> None:
        self._name, self._client, self._table = name, client, table
        self._ready_since: float | None = None

    def is_ready(self, epoch: int) -> bool:
        """Now: the index of owners is active, and every distinct owner (nobody, too) has fresh metrics."""
        items = _whole_table(self._client, self._table)
        owners = {read_row(item).owner for item in filter(is_lease_row, items)}
        return self._index_is_active() and owners <= set(active_workers(items, epoch))

    def check(self, now: float, epoch: int) -> bool:
        """Once a minute: whether it has now been ready for ten of them, and the fleet was flipped."""
        if not self.is_ready(epoch):
            self._ready_since = None
            return False
        self._ready_since = now if self._ready_since is None else self._ready_since
        if now - self._ready_since < READY_FOR:
            return False
        return sent(self._client, flip(self._table, self._name, epoch * 1000))

    def _index_is_active(self) -> bool:
        found = self._client.describe_table(TableName=self._table)["Table"].get("GlobalSecondaryIndexes", [])
        return any(
            index["IndexName"] == OWNER_INDEX and index.get("IndexStatus", "ACTIVE") == "ACTIVE"
            for index in found
        )


def active_workers(items: Iterable[Any], epoch: int) -> list[str]:
    """Workers whose metrics are younger than a minute, sorted."""
    return sorted(
        item["leaseKey"]["S"]
        for item in items
        if item.get("entityType") == {"S": "WORKER_METRIC_STATS"}
        and epoch - _epoch_in(item) < METRICS_STALE_AFTER
    )


def _epoch_in(item: Any) -> int:
    """The time of a report; of a row that is not of that form, long ago: as for the leader, it is of nobody."""
    text = item.get("lut", {}).get("N", "")
    is_whole = {"sts", "opr"} <= item.keys() and all("M" in item[name] for name in ("sts", "opr"))
    return int(text) if text.isdigit() and is_whole else 0


def sent(client: Any, params: dict[str, Any]) -> bool:
    """Whether the conditional update was made."""
    try:
        client.update_item(**params)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return False
    return True


def _leases_in(items: Iterable[Any]) -> list[JavaLease]:
    """The leases; 3.5 leaves out a row that it cannot read."""
    found = []
    for item in filter(is_lease_row, items):
        with suppress(RowUnreadable):
            found.append(read_row(item))
    return found


def _whole_table(client: Any, table: str) -> list[Any]:
    items: list[Any] = []
    start: dict[str, Any] = {}
    while True:
        page = client.scan(TableName=table, TotalSegments=1, Segment=0, **start)
        items += page["Items"]
        if not page.get("LastEvaluatedKey"):
            return items
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _least(load: dict[str, int]) -> str:
    """The worker with the fewest leases, which gets one more."""
    found = min(sorted(load), key=lambda worker: load[worker])
    load[found] += 1
    return found


def _moves(leases: list[JavaLease], load: dict[str, int]) -> list[Assignment]:
    """From workers above their share of what the active ones hold to those below."""
    share = -(-sum(load.values()) // len(load))
    plans = []
    for lease in sorted(leases, key=lambda lease: lease.key):
        owner = lease.actual_owner
        if owner not in load or load[owner] <= share or min(load.values()) >= share:
            continue
        load[owner] -= 1
        plans.append(Assignment(lease, _least(load), "assign" if lease.is_ended else "hand-off"))
    return plans
