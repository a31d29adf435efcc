"""What KCL 3.x sends beyond 2.x: its leader's assignments, hand-offs, worker metrics, the state of the migration.

Pure. None of these was recorded: they follow `leases/dynamodb/DynamoDBLeaseRefresher.java`,
`DynamoDBLeaseSerializer.java`, `leases/LeaseGracefulShutdownHandler.java`, `worker/metricstats/` and
`coordinator/migration/MigrationState.java` of v3.5.1, where everything lives in the lease table.
"""

from __future__ import annotations

from typing import Any

from pykcl.testing.java.lease import JavaLease

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


def worker_metrics(table: str, worker: str, epoch_seconds: int) -> Params:
    """An upsert, every thirty seconds: "I am alive and ready for 3.x". Without any metric, as real ones sent it."""
    values = {
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": str(epoch_seconds)},
        "slu": {"N": str(epoch_seconds)},
        "sup": {"N": "1"},
        "opr": {"M": {}},
        "sts": {"M": {}},
    }
    return {
        "TableName": table,
        "Key": {"leaseKey": {"S": worker}},
        "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in values),
        "ExpressionAttributeNames": {f"#{name}": name for name in values},
        "ExpressionAttributeValues": {f":{name}": value for name, value in values.items()},
    }


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
