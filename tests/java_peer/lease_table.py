"""The lease table of Java KCL 2.7.2 and 3.5.1: its requests, as recorded from real workers, and how they are repeated.

Java's writes use DynamoDB's legacy parameters and are fenced by the counter alone
(`leases/dynamodb/DynamoDBLeaseRefresher.java` and `DynamoDBLeaseSerializer.java`, v2.7.3 and v3.5.1, and the AWS SDK).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.shard import HashRange
from pykcl.runtime import Runtime
from tests.java_peer.lease import DependencyFailed, JavaLease, RowUnreadable, is_lease_row, read_row
from tests.java_peer.options import JavaVersion

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
        """throughput: (3.x) KB/s, once it is known."""
        if not self.is_3x:
            return self._fenced(held, {})
        updates = {} if throughput is None else {"throughputKBps": _put({"N": f"{throughput:.6f}"})}
        request = self._fenced(held, updates)
        if held.checkpoint_owner is None:
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


_ANSWERS = ("ConditionalCheckFailedException", "ResourceNotFoundException", "ResourceInUseException")
_PAUSE = 0.05


class JavaTable:
    """Every method may raise DependencyFailed; those that read rows also its RowUnreadable."""

    def __init__(
        self, client: Any, table: str, runtime: Runtime, attempts: int, version: JavaVersion = "2.7.2"
    ) -> None:
        self._client = client
        self._requests = JavaRequests(table, version)
        self._runtime = runtime
        self._attempts = attempts

    def prepare(self) -> None:
        """Make the table unless it is there, and wait until it is active."""
        try:
            self._ask(self._client.describe_table, self._requests.describe_table())
        except ClientError:
            try:
                self._ask(self._client.create_table, self._requests.create_table())
            except ClientError as error:
                if _code(error) != "ResourceInUseException":
                    raise DependencyFailed(_code(error)) from None
        while self._read(self._client.describe_table, self._requests.describe_table())["Table"][
            "TableStatus"
        ] not in ("ACTIVE", "UPDATING"):
            self._wait(10.0)
        if self._requests.is_3x:
            self._read(self._client.get_item, self._requests.migration_state())

    def is_empty(self) -> bool:
        if self._requests.is_3x:
            return not any(map(is_lease_row, self._items(self._requests.is_empty)))
        return not self._read(self._client.scan, self._requests.is_empty())["Items"]

    def scan(self) -> list[JavaLease]:
        """Scan the table; a row that cannot be read fails the scan up to 3.4, and is left out from 3.5 on."""
        items = self._items(self._requests.scan)
        if not self._requests.is_3x:
            return [read_row(item) for item in items]
        found = []
        for item in filter(is_lease_row, items):
            try:
                found.append(read_row(item))
            except RowUnreadable:
                continue
        return found

    def _items(self, request: Callable[[Params | None], Params]) -> list[Any]:
        found: list[Any] = []
        start: Params | None = None
        while True:
            page = self._read(self._client.scan, request(start))
            found += page["Items"]
            start = page.get("LastEvaluatedKey")
            if not start:
                return found

    def get(self, key: str) -> JavaLease | None:
        item = self._read(self._client.get_item, self._requests.get(key)).get("Item")
        return None if item is None else read_row(item)

    def create(self, lease: JavaLease) -> bool:
        return self._write(self._client.put_item, self._requests.create(lease))

    def take(self, seen: JavaLease, worker: str) -> bool:
        return self._write(self._client.update_item, self._requests.take(seen, worker))

    def renew(self, held: JavaLease, throughput: float | None = None) -> bool:
        if self._write(self._client.update_item, self._requests.renew(held, throughput)):
            return True
        # The SDK may have sent it twice: then the row shows what the first one did.
        row = self.get(held.key)
        if row is None or row.counter != held.counter + 1:
            return False
        return held.actual_owner == (row.actual_owner if self._requests.is_3x else row.owner)

    def update(self, lease: JavaLease) -> bool:
        """No such recovery here: a checkpoint that was sent twice costs the lease."""
        return self._write(self._client.update_item, self._requests.update(lease))

    def set_children(self, key: str, children: tuple[str, ...]) -> None:
        self._write(self._client.update_item, self._requests.child_shards(key, children))

    def set_hash_range(self, key: str, hash_range: HashRange) -> None:
        self._write(self._client.update_item, self._requests.hash_range(key, hash_range))

    def delete(self, key: str) -> None:
        self._write(self._client.delete_item, self._requests.delete(key))

    def _write(self, operation: Callable[..., Any], params: Params) -> bool:
        try:
            self._ask(operation, params)
        except ClientError as error:
            if _code(error) == "ConditionalCheckFailedException":
                return False
            raise DependencyFailed(_code(error)) from None
        return True

    def _read(self, operation: Callable[..., Any], params: Params) -> Any:
        try:
            return self._ask(operation, params)
        except ClientError as error:
            raise DependencyFailed(_code(error)) from None

    def _ask(self, operation: Callable[..., Any], params: Params) -> Any:
        """Raises ClientError for what the service decided, DependencyFailed when it cannot be reached."""
        cause = ""
        for attempt in range(self._attempts):
            if attempt:
                self._wait(_PAUSE * 2**attempt)
            try:
                return operation(**params)
            except ClientError as error:
                if _code(error) in _ANSWERS:
                    raise
                cause = _code(error)
            except BotoCoreError as error:
                cause = type(error).__name__
        raise DependencyFailed(cause)

    def _wait(self, seconds: float) -> None:
        self._runtime.event().wait(seconds)


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])
