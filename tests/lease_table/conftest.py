"""One lease table over the in-memory DynamoDB and over the local AWS, with faults put between table and client."""

import itertools
from collections import deque

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from pykcl.aws.clients import client_config
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.model.lease_row import to_item
from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.dynamodb import MemoryDynamoDB

TABLE_NUMBERS = itertools.count(1)


class SteppingRuntime(SystemRuntime):
    """Waiting takes no time: it moves the clock. Every look at the clock moves it a little too."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.on_wait = None

    def monotonic(self):
        self.now += 0.001
        return self.now

    def event(self):
        return SteppingEvent(self)


class SteppingEvent:
    def __init__(self, runtime):
        self._runtime = runtime
        self._set = False

    def is_set(self):
        return self._set

    def set(self):
        self._set = True

    def clear(self):
        self._set = False

    def wait(self, timeout=None, /):
        self._runtime.now += timeout or 0.0
        if self._runtime.on_wait:
            self._runtime.on_wait()
        return self._set


def timed_out():
    return ReadTimeoutError(endpoint_url="http://dynamodb.invalid")


def answered(code, status=400):
    return ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}, "X"
    )


class FaultyClient:
    """A DynamoDB client before whose calls the test may put faults, one per call, in order.

    "ok": nothing happens. "lose": applied, the answer is lost. "drop": never arrives. An exception: raised instead.
    A callable: run first (a concurrent writer), then the call goes through. `always` is used once `faults` is empty.
    """

    def __init__(self, client):
        self.inner = client
        self.faults = deque()
        self.always = "ok"
        self.calls = []

    def __getattr__(self, operation):
        method = getattr(self.inner, operation)
        if operation == "meta":
            return method

        def call(**params):
            self.calls.append((operation, params))
            fault = self.faults.popleft() if self.faults else self.always
            if isinstance(fault, Exception):
                raise fault
            if fault == "drop":
                raise timed_out()
            if callable(fault):
                fault()
            answer = method(**params)
            if fault == "lose":
                raise timed_out()
            return answer

        return call


class Bench:
    """A lease table, the faulty client it uses, and a look at the rows behind it."""

    def __init__(self, client, runtime, name):
        self.direct = client
        self.client = FaultyClient(client)
        self.runtime = runtime
        self.name = name
        self.table = DynamoDBLeaseTable(self.client, name, runtime)
        assert self.table.prepare(create=True)
        self.client.calls.clear()

    def put(self, lease):
        self.direct.put_item(TableName=self.name, Item=to_item(lease))

    def put_item(self, item):
        self.direct.put_item(TableName=self.name, Item=item)

    def delete(self, key):
        self.direct.delete_item(TableName=self.name, Key={"leaseKey": {"S": key}})

    def item(self, key):
        return self.direct.get_item(
            TableName=self.name, Key={"leaseKey": {"S": key}}, ConsistentRead=True
        ).get("Item")

    def items(self):
        return {item["leaseKey"]["S"]: item for item in self.direct.scan(TableName=self.name)["Items"]}

    def write(self, write, seconds=10.0):
        return self.table.write(write, until=self.runtime.monotonic() + seconds)

    @property
    def writes(self):
        return [
            operation
            for operation, _ in self.client.calls
            if operation.endswith("_item") and operation != "get_item"
        ]


@pytest.fixture(scope="session")
def local_aws():
    server = pytest.importorskip("pykcl.local.server")
    with server.LocalAws() as aws:
        yield aws


@pytest.fixture(scope="session")
def local_client(local_aws):
    boto3 = pytest.importorskip("boto3")
    return boto3.client(
        "dynamodb",
        endpoint_url=local_aws.url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=client_config(connect_timeout=2.0, read_timeout=20.0, connections=20),
    )


@pytest.fixture
def memory():
    return MemoryDynamoDB()


@pytest.fixture(params=["memory", "local"])
def bench(request):
    """The conformance suite's table: every test runs over both."""
    fixture = "memory" if request.param == "memory" else "local_client"
    return Bench(request.getfixturevalue(fixture), SteppingRuntime(), f"leases-{next(TABLE_NUMBERS)}")


@pytest.fixture
def memory_bench(memory):
    return Bench(memory, SteppingRuntime(), "leases")


@pytest.fixture
def errors():
    """timed_out() and answered(code, status): what a client raises."""
    return type("Errors", (), {"timed_out": staticmethod(timed_out), "answered": staticmethod(answered)})
