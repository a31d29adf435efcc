"""A lease table over any DynamoDB client, with faults put between the two, and time that only waiting moves."""

import threading
import time
from collections import deque
from contextlib import suppress

from botocore.exceptions import ClientError, ReadTimeoutError

from pykcl.aws.clients import client_config
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.aws.transport.table_requests import TableRequests
from pykcl.errors import TemporaryError
from pykcl.model.lease_writes import to_item
from pykcl.runtime import SystemRuntime

DEADLINE = 300


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


class LeanClient:
    """A boto3 client whose scans, reads and updates all go over the direct transport."""

    def __init__(self, client):
        self._client = client
        self._tables = {}

    def __getattr__(self, name):
        return getattr(self._client, name)

    def scan(self, **request):
        return self._of(request.pop("TableName")).scan(**request)

    def get_item(self, **request):
        return self._of(request.pop("TableName")).get_item(**request)

    def update_item(self, **request):
        return self._of(request.pop("TableName")).write("update_item", request)

    def _of(self, table):
        if table not in self._tables:
            requests = TableRequests(self._client, table, SystemRuntime(), "direct")
            key = {"leaseKey": {"S": "nothing"}}
            # The first call of each method goes over boto3. These change nothing, and teach even if they are refused.
            for teach in (
                requests.scan,
                lambda: requests.get_item(Key=key),
                lambda: requests.write(
                    "update_item", {"Key": key, "ConditionExpression": "attribute_exists(leaseKey)"}
                ),
            ):
                with suppress(ClientError):
                    teach()
            assert requests._selector._transports.keys() == {"scan", "get_item", "update_item"}
            self._tables[table] = requests
        return self._tables[table]


class Backend:
    """A lease table, the faulty client it uses, and a look at the rows behind it.

    way: makes of the client the one whose calls the faulty one passes on.
    """

    def __init__(self, client, runtime, name, way=lambda client: client):
        self.direct = client
        self.client = FaultyClient(way(client))
        self.runtime = runtime
        self.name = name
        self.table = DynamoDBLeaseTable(self.client, name, runtime)
        assert self.prepared(self.table)
        self.client.calls.clear()

    def prepared(self, table):
        """prepare(create=True), again and again while the table is CREATING: whether this one created it."""
        found = []

        def usable():
            try:
                found.append(table.prepare(create=True))
            except TemporaryError:
                return False
            return True

        wait_for(usable)
        return found[-1]

    def status(self, table):
        """TableStatus; None where there is no such table."""
        try:
            return self.direct.describe_table(TableName=table)["Table"]["TableStatus"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
            return None

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


def wait_for(condition):
    """Until it holds. Fails at the deadline."""
    deadline, pause = time.monotonic() + DEADLINE, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true within {DEADLINE:g} s"
        pause.wait(0.002)
    return found


def local_client(name, url):
    """A boto3 client as pykcl makes them, for an endpoint on this machine."""
    import boto3

    return boto3.client(
        name,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=client_config(connect_timeout=2.0, read_timeout=20.0, connections=20),
    )
