"""The lease table through a boto3 client, as Java's DynamoDBLeaseRefresher and the AWS SDK under it behave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from pykcl.model.shard import HashRange
from pykcl.runtime import Runtime
from pykcl.testing.java.failures import DependencyFailed, RowUnreadable
from pykcl.testing.java.lease import JavaLease, is_lease_row, read_row
from pykcl.testing.java.options import JavaVersion
from pykcl.testing.java.requests import JavaRequests, Params

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
        """Up to 3.4 one row that cannot be read makes the whole scan fail; from 3.5 on it is left out."""
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
        return held.owner == (row.actual_owner if self._requests.is_3x else row.owner)

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
