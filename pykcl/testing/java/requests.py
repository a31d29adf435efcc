"""The DynamoDB requests of Java KCL 2.7.2 and 3.5.1, as recorded from real workers: dicts for a boto3 client.

Pure. Java's writes use DynamoDB's legacy parameters and are fenced by the counter alone
(`leases/dynamodb/DynamoDBLeaseRefresher.java` and `DynamoDBLeaseSerializer.java`, v2.7.3 and v3.5.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.shard import HashRange
from pykcl.testing.java.lease import JavaLease
from pykcl.testing.java.options import JavaVersion

Params = dict[str, Any]


class JavaRequests:
    """Each method returns the parameters of one request on this table."""

    def __init__(self, table: str, version: JavaVersion = "2.7.2") -> None:
        self.table = table
        self.is_3x = version == "3.5.1"

    def describe_table(self) -> Params:
        return {"TableName": self.table}

    def create_table(self) -> Params:
        return {
            "TableName": self.table,
            "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
            "DeletionProtectionEnabled": False,
        }

    def migration_state(self) -> Params:
        """(3.x) A GetItem, at start. In a table of an application of 2.x there is no such row."""
        return {**self._row("Migration3.0"), "ConsistentRead": True}

    def scan(self, start_key: dict[str, Any] | None = None) -> Params:
        """3.5 scans in segments; small tables in one."""
        segment: Params = {"TotalSegments": 1, "Segment": 0} if self.is_3x else {}
        return {"TableName": self.table, **segment, **_after(start_key)}

    def is_empty(self, start_key: dict[str, Any] | None = None) -> Params:
        """A Scan. For 3.5, whose own rows may be in the table, one row is not enough."""
        limit: Params = {} if self.is_3x else {"Limit": 1}
        return {"TableName": self.table, **limit, **_after(start_key)}

    def get(self, key: str) -> Params:
        return {**self._row(key), "ConsistentRead": False}

    def create(self, lease: JavaLease) -> Params:
        """A PutItem: only if there is no such row."""
        item: Params = {
            "leaseKey": {"S": lease.key},
            "leaseCounter": _number(lease.counter),
            "ownerSwitchesSinceCheckpoint": _number(lease.owner_switches),
            "checkpoint": {"S": lease.checkpoint.sequence_number},
            "checkpointSubSequenceNumber": _number(lease.checkpoint.sub_sequence_number),
        }
        if self.is_3x:
            item["entityType"] = {"S": "LEASE"}
        if lease.parents:
            item["parentShardId"] = {"SS": list(lease.parents)}
        if lease.hash_range is not None:
            item["startingHashKey"] = {"S": str(lease.hash_range.first)}
            item["endingHashKey"] = {"S": str(lease.hash_range.last)}
        return {"TableName": self.table, "Item": item, "Expected": {"leaseKey": {"Exists": False}}}

    def take(self, seen: JavaLease, worker: str) -> Params:
        """Take what is free or steal: the owner is not asked for, only the counter."""
        updates = {"leaseOwner": _put({"S": worker})}
        if seen.owner is not None and seen.owner != worker:
            updates["ownerSwitchesSinceCheckpoint"] = {"Value": {"N": "1"}, "Action": "ADD"}
        if self.is_3x:
            updates["checkpointOwner"] = {"Action": "DELETE"}
        return self._fenced(seen, updates)

    def renew(self, held: JavaLease, throughput: float | None = None) -> Params:
        """throughput: (3.x) KB/s, once there is anything to tell."""
        if not self.is_3x:
            return self._fenced(held, {})
        updates = {} if throughput is None else {"throughputKBps": _put({"N": f"{throughput:.6f}"})}
        request = self._fenced(held, updates)
        request["Expected"]["checkpointOwner"] = {"Exists": False}
        return {**request, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}

    def checkpoint(self, held: JavaLease, at: Checkpoint) -> Params:
        """`held`: the lease in memory, which is written back. The end of a shard is a checkpoint like any other."""
        return self.update(held.with_(checkpoint=at, owner_switches=0, pending=None, pending_state=None))

    def prepare_checkpoint(self, held: JavaLease, at: Checkpoint, state: bytes | None = None) -> Params:
        return self.update(held.with_(pending=at, pending_state=state))

    def update(self, lease: JavaLease) -> Params:
        """Java's updateLease: every changeable attribute of the lease in memory, fenced by its counter."""
        gone: Params = {"Action": "DELETE"}
        pending, state = lease.pending, lease.pending_state
        updates = {
            "checkpoint": _put({"S": lease.checkpoint.sequence_number}),
            "checkpointSubSequenceNumber": _put(_number(lease.checkpoint.sub_sequence_number)),
            "ownerSwitchesSinceCheckpoint": _put(_number(lease.owner_switches)),
            "pendingCheckpoint": _put({"S": pending.sequence_number}) if pending else gone,
            "pendingCheckpointSubSequenceNumber": (
                _put(_number(pending.sub_sequence_number)) if pending else gone
            ),
            "pendingCheckpointState": _put({"B": state}) if state is not None else gone,
        }
        if lease.children:
            updates["childShardIds"] = _put({"SS": list(lease.children)})
        if lease.hash_range is not None:
            updates |= _range_updates(lease.hash_range)
        return self._fenced(lease, updates)

    def child_shards(self, key: str, children: Iterable[str]) -> Params:
        """Not fenced: whoever it is that knows the children may write them."""
        return self._unfenced(key, {"childShardIds": _put({"SS": list(children)})})

    def hash_range(self, key: str, hash_range: HashRange) -> Params:
        """Back-fill for rows of old versions. Not fenced."""
        return self._unfenced(key, _range_updates(hash_range))

    def delete(self, key: str) -> Params:
        """Unconditional."""
        return self._row(key)

    def _row(self, key: str) -> Params:
        return {"TableName": self.table, "Key": {"leaseKey": {"S": key}}}

    def _fenced(self, lease: JavaLease, updates: Params) -> Params:
        return {
            **self._row(lease.key),
            "AttributeUpdates": {"leaseCounter": _put(_number(lease.counter + 1)), **updates},
            "Expected": {"leaseCounter": {"Value": _number(lease.counter)}},
        }

    def _unfenced(self, key: str, updates: Params) -> Params:
        exists = {"leaseKey": {"Value": {"S": key}, "Exists": True}}
        return {**self._row(key), "AttributeUpdates": updates, "Expected": exists}


def _after(start_key: dict[str, Any] | None) -> Params:
    return {"ExclusiveStartKey": start_key} if start_key else {}


def _put(value: Params) -> Params:
    return {"Value": value, "Action": "PUT"}


def _number(value: int) -> Params:
    return {"N": str(value)}


def _range_updates(hash_range: HashRange) -> Params:
    return {
        "startingHashKey": _put({"S": str(hash_range.first)}),
        "endingHashKey": _put({"S": str(hash_range.last)}),
    }
