"""The lease table of a scenario: in memory, or the local AWS's DynamoDB, with the same handles on both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse

from pykcl.aws.clients import client_config
from pykcl.local.services import MotoServices
from pykcl.stores.expressions import copy_item
from pykcl.testing.memory.dynamodb import Change, Fault, MemoryDynamoDB

OPERATIONS = {
    "create_table": "CreateTable",
    "describe_table": "DescribeTable",
    "scan": "Scan",
    "get_item": "GetItem",
    "put_item": "PutItem",
    "update_item": "UpdateItem",
    "delete_item": "DeleteItem",
}
WRITES = ("PutItem", "UpdateItem", "DeleteItem")


class Senders:
    """Who sends the request of this thread: what a client signs with, else the simulated group that runs."""

    def __init__(self, simulation: Any) -> None:
        self._simulation = simulation
        self._signing = threading.local()

    def now(self) -> str:
        return getattr(self._signing, "name", "") or self._simulation.current_group

    @contextmanager
    def signing(self, name: str):
        before = getattr(self._signing, "name", "")
        self._signing.name = name
        try:
            yield
        finally:
            self._signing.name = before


class SigningClient:
    """A DynamoDB client whose requests count as `name`'s, whoever's thread sends them."""

    def __init__(self, client: Any, name: str, senders: Senders) -> None:
        self._client, self._name, self._senders = client, name, senders

    def __getattr__(self, operation: str) -> Any:
        method = getattr(self._client, operation)

        def call(**params: Any) -> Any:
            with self._senders.signing(self._name):
                return method(**params)

        return call


class Uninterrupted:
    """A Runtime whose locks are no switch points: a request is one moment, so what a test sends by hand cannot be
    overtaken."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def lock(self) -> Any:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


def memory_table(runtime: Any, senders: Senders) -> MemoryDynamoDB:
    return MemoryDynamoDB(runtime=Uninterrupted(runtime), author=senders.now)


class LocalDynamoDB:
    """The local AWS's DynamoDB (moto behind its lock, with Java's old parameters translated) behind a real boto3 client.

    It has the handles of MemoryDynamoDB that tests use. Rows are remembered as they were after each write, so that
    looking at them is no request; `check` compares them with the table at the end.
    """

    def __init__(self, runtime: Any, senders: Senders) -> None:
        self._runtime, self._senders = runtime, senders
        self._parts = MotoServices()
        self.fault: Callable[[str, Any], Fault | None] | None = None
        self.changes: list[Change] = []
        self.requests: list[tuple[str, Any]] = []
        self.tables: dict[str, _Table] = {}
        self._postponed: list[tuple[str, Any, str]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            raise AttributeError(name)
        return lambda **params: self._call(name, params)

    @property
    def _client(self) -> Any:
        client, serving = _shared_client()
        serving["parts"] = self._parts
        return client

    def rows(self, table: str) -> dict[str, Any]:
        return {key: copy_item(row) for key, row in self.tables[table].rows.items()}

    def put_raw(self, table: str, item: Any) -> None:
        self._client.put_item(TableName=table, Item=item)
        self.tables[table].rows[item["leaseKey"]["S"]] = copy_item(item)

    def deliver_postponed(self) -> None:
        waiting, self._postponed = self._postponed, []
        for name, params, author in waiting:
            with self._senders.signing(author):
                try:
                    self._apply(name, params)
                except self._client.exceptions.ConditionalCheckFailedException:
                    continue

    def check(self) -> None:
        """What is remembered is what is there."""
        for table in self.tables:
            rows = self.tables[table].rows
            found = self._client.scan(TableName=table)["Items"]
            assert {item["leaseKey"]["S"]: _plain(item) for item in found} == {
                key: _plain(row) for key, row in rows.items()
            }

    def _call(self, name: str, params: Any) -> Any:
        operation = OPERATIONS[name]
        self.requests.append((operation, params))
        fault = (self.fault and self.fault(operation, params)) or Fault()
        if fault.delay > 0:
            self._runtime.event().wait(fault.delay)
        if fault.before is not None:
            raise fault.before
        if fault.postponed is not None:
            self._postponed.append((name, params, self._senders.now()))
            raise fault.postponed
        answer = self._apply(name, params)
        if fault.after is not None:
            raise fault.after
        return answer

    def _apply(self, name: str, params: Any) -> Any:
        answer = getattr(self._client, name)(**params)
        operation, table = OPERATIONS[name], params.get("TableName")
        if operation == "CreateTable":
            self.tables[table] = _Table()
        if operation in WRITES:
            key = (params.get("Key") or params["Item"])["leaseKey"]["S"]
            rows = self.tables[table].rows
            before = rows.pop(key, None)
            after = self._client.get_item(
                TableName=table, Key={"leaseKey": {"S": key}}, ConsistentRead=True
            ).get("Item")
            if after is not None:
                rows[key] = copy_item(after)
            self.changes.append(Change(operation, table, key, before, after, self._senders.now(), params))
        return answer


class _Table:
    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}


@lru_cache(maxsize=1)
def _shared_client() -> tuple[Any, dict[str, MotoServices]]:
    """A boto3 client as pykcl makes them, whose requests go no further than to moto's handlers; and whose they are.

    One for all tests: making a client takes longer than most of them.
    """
    serving: dict[str, MotoServices] = {}
    client = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=client_config(connect_timeout=2.0, read_timeout=20.0, connections=20),
    )

    def answer(request: Any, **_: Any) -> AWSResponse:
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        found = serving["parts"].serve("dynamodb", "/", headers, request.body)
        return AWSResponse(request.url, found.status, found.headers, _Body(found.body))

    client.meta.events.register("before-send.dynamodb", answer)
    return client, serving


class _Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: Any) -> Any:
        yield self._content

    def read(self, *_: Any, **__: Any) -> bytes:
        return self._content


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _plain(item: Any) -> Any:
    """DynamoDB's sets have no order."""
    return {
        name: {kind: sorted(inner) if kind == "SS" else inner for kind, inner in value.items()}
        for name, value in item.items()
    }


BACKENDS = {"memory": memory_table, "local": LocalDynamoDB}
