"""Rows of every bad kind lie in the lease table: each is reported once and stays byte for byte, and nothing else notices."""

import threading
import time
from collections import Counter

import pytest

from pykcl import RecordProcessor, Worker
from pykcl.cli.local import local_environment
from pykcl.events import FleetJoined, InvalidLeaseRow
from pykcl.local.server import LocalAws
from pykcl.model.lease import UnreadableRow
from pykcl.model.lease_item import parse_row
from pykcl.testing.fleet import TABLE, Fleet
from pykcl.testing.runtime import Simulation
from tests.security.bad_rows import UNREADABLE, rows

CYCLES = 20
UNREAD_SHARD = "shardId-000000000002"


@pytest.mark.parametrize("kind", UNREADABLE)
def test_each_bad_row_is_one_that_cannot_be_read(kind):
    row = {"leaseKey": {"S": "shardId-000000000000"}, **UNREADABLE[kind]}
    assert isinstance(parse_row(row), UnreadableRow)


def put_on_other_shards(stream, count):
    """Records on each shard but the one whose row cannot be read; their payloads."""
    put = []
    for shard in stream.list_shards("orders", operation=None):
        if shard.shard_id != UNREAD_SHARD:
            for number in range(count):
                put.append(f"{shard.shard_id}/{number}".encode())
                stream.put_record("orders", put[-1], "k", shard.hash_range.first)
    return put


def judge(refused, found, unreadable, foreign):
    assert Counter(event.key for event in refused) == Counter(unreadable.keys())
    for key, row in {**unreadable, **foreign}.items():
        assert found[key] == row, key


@pytest.mark.parametrize("seed", range(2))
def test_bad_rows_are_reported_once_and_stay_as_they_are_in_memory(seed):
    unreadable, foreign = rows()
    with Simulation(seed=seed) as simulation:
        fleet = Fleet(simulation, shards=4)
        fleet.dynamodb.create_table(
            TableName=TABLE,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        fleet.put(1)
        fleet.start("before")
        fleet.wait(lambda: fleet.load().get("before") == 4)
        fleet.workers["before"].stop()
        for key, row in {**unreadable, **foreign}.items():
            fleet.dynamodb.put_raw(TABLE, {"leaseKey": {"S": key}, **row})
        before = len(fleet.dynamodb.changes)
        fleet.start("w1", cleanup_interval=2.0, shard_sync_interval=2.0)
        put = put_on_other_shards(fleet.kinesis, 10)
        fleet.wait_delivered(put)
        scans = sum(operation == "Scan" for operation, _ in fleet.dynamodb.requests)
        fleet.wait(
            lambda: sum(operation == "Scan" for operation, _ in fleet.dynamodb.requests) >= scans + CYCLES
        )
        refused = [
            event for name, event in fleet.events if name == "w1" and isinstance(event, InvalidLeaseRow)
        ]
        judge(refused, fleet.dynamodb.rows(TABLE), unreadable, foreign)
        touched = {change.key for change in fleet.dynamodb.changes[before:]}
        assert not touched & {*unreadable, *foreign}
        assert fleet.load()["w1"] == 3
        assert set(fleet.open_shards()) - {UNREAD_SHARD} <= set(fleet.workers["w1"].leases)
        (joined,) = [e for name, e in fleet.events if name == "w1" and isinstance(e, FleetJoined)]
        assert joined.evidence[0] == "CLIENT_VERSION_UPGRADE_FROM_2X in the lease table"
        assert fleet.workers["w1"].failure is None


def test_rows_that_are_odd_and_can_be_read_are_read_right():
    """An owner of type NULL, a hand-off left over, a stale sub-sequence number next to SHARD_END."""
    with Simulation(seed=1) as simulation:
        fleet = Fleet(simulation, shards=3)
        fleet.start("before")
        fleet.wait(lambda: fleet.load().get("before") == 3)
        null, handed, ended = fleet.open_shards()
        fleet.kinesis.split("orders", ended)
        fleet.wait(lambda: fleet.rows()[ended].is_ended and fleet.load().get("before") == 4)
        fleet.workers["before"].stop()
        odd = {
            null: {"leaseOwner": {"NULL": True}},
            handed: {"leaseOwner": {"S": "j1"}, "checkpointOwner": {"S": "j2"}},
            ended: {"checkpointSubSequenceNumber": {"N": "7"}},
        }
        rows_before = fleet.dynamodb.rows(TABLE)
        for key, changes in odd.items():
            fleet.dynamodb.put_raw(TABLE, {**rows_before[key], **changes})
        put = fleet.put(30)
        fleet.start("w1")
        fleet.wait_delivered(put)
        fleet.wait(lambda: fleet.load() == {"w1": 4})
        assert fleet.ledger.duplicates == 0
        assert not fleet.happened(InvalidLeaseRow)
        found = fleet.dynamodb.rows(TABLE)
        assert "checkpointOwner" not in found[handed]
        assert found[null]["leaseOwner"] == {"S": "w1"}


class Orders(RecordProcessor):
    seen: list[bytes] = []  # noqa: RUF012 - one list for all instances

    def process_records(self, batch):
        self.seen.extend(record.data for record in batch)


def wait(condition, what, seconds=60.0):
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        pause.wait(0.02)


def test_bad_rows_are_reported_once_and_stay_as_they_are_over_the_wire(monkeypatch):
    import boto3

    # A scan is paced by what it costs: rows as large as DynamoDB allows are the business of the test above.
    unreadable, foreign = rows(longest=20_000)
    Orders.seen.clear()
    refused = []

    def hear(event):
        if isinstance(event, InvalidLeaseRow):
            refused.append(event)

    options = {
        "stream": "orders",
        "processor": Orders,
        "failover_time": 1.0,
        "initial_position": "TRIM_HORIZON",
    }
    options |= {"cleanup_interval": 0.5, "shard_sync_interval": 1.0}
    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        aws.kinesis.create_stream("orders", 4)
        client = boto3.client("dynamodb", endpoint_url=aws.url)
        with Worker("orders-app", worker_id="before", **options) as before:
            wait(lambda: len(before.leases) == 4, "the leases")
        for row in {**unreadable, **foreign}.values():
            client.put_item(TableName="orders-app", Item=row)
        # As the endpoint gives them back: it writes sets and numbers in its own way.
        put_rows = {item["leaseKey"]["S"]: item for item in scan(client)}
        with Worker("orders-app", worker_id="w1", on_event=hear, **options) as worker:
            put = put_on_other_shards(aws.kinesis, 10)
            wait(lambda: set(put) <= set(Orders.seen), "the records")
            scans = count_scans(aws)
            wait(lambda: count_scans(aws) >= scans + CYCLES, "twenty cycles")
            wait(lambda: len(worker.leases) == 3, "its leases")
        found = {item["leaseKey"]["S"]: item for item in scan(client)}
    judge(refused, found, *({key: put_rows[key] for key in some} for some in (unreadable, foreign)))


def scan(client):
    """Every row; they come in one page."""
    answer = client.scan(TableName="orders-app")
    assert "LastEvaluatedKey" not in answer
    return answer["Items"]


def count_scans(aws):
    return sum(request.operation == "Scan" for request in aws.requests.of("dynamodb"))
