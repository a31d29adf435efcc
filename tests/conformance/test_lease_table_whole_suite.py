"""The lease table as a whole, over every DynamoDB we have: preparing, scanning, many writers on one row."""

import random
import threading

import pytest
from lease_backend import answered, wait_for
from lease_writes import HELD, KEY, WRITES, taken_over

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import SetupError, TableGone, TemporaryError, WrongTable
from pykcl.interfaces import Applied, Rejected
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.runtime import SystemRuntime

NEVER = float("inf")


# -- preparing and scanning ------------------------------------------------------------------------------------------


OWN_KEY = [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
OWN_TYPE = [{"AttributeName": "leaseKey", "AttributeType": "S"}]


def test_a_missing_table_is_created_pay_per_request_and_only_the_creator_is_told_so(service):
    description = service.direct.describe_table(TableName=service.name)["Table"]
    assert description["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    second = DynamoDBLeaseTable(service.direct, service.name, service.runtime)
    assert second.prepare(create=True) is False
    assert second.prepare(create=False) is False


@pytest.mark.parametrize(
    ("schema", "types", "named"),
    [
        (
            [{"AttributeName": "id", "KeyType": "HASH"}],
            [{"AttributeName": "id", "AttributeType": "S"}],
            "id ",
        ),
        (OWN_KEY, [{"AttributeName": "leaseKey", "AttributeType": "N"}], "leaseKey (HASH, N)"),
        (
            [*OWN_KEY, {"AttributeName": "shard", "KeyType": "RANGE"}],
            [*OWN_TYPE, {"AttributeName": "shard", "AttributeType": "S"}],
            "shard (RANGE, S)",
        ),
    ],
)
def test_a_table_of_something_else_is_refused_with_its_key_schema_named(service, schema, types, named):
    name = f"{service.name}-other"
    service.direct.create_table(
        TableName=name, KeySchema=schema, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST"
    )
    wait_for(lambda: service.status(name) == "ACTIVE")
    with pytest.raises(WrongTable) as refusal:
        DynamoDBLeaseTable(service.direct, name, service.runtime).prepare(create=True)
    assert named in str(refusal.value)
    assert name in str(refusal.value)


def test_an_empty_table_scans_as_no_rows(service):
    assert service.table.scan().rows == ()


def test_a_deleted_table_is_named_by_every_operation(service):
    service.put(HELD)
    service.direct.delete_table(TableName=service.name)
    wait_for(lambda: service.status(service.name) is None)
    table = DynamoDBLeaseTable(service.client, service.name, service.runtime, gone_after=0.0)
    until = service.runtime.monotonic() + 60
    for use in (
        table.scan,
        lambda: table.read(KEY),
        lambda: table.write(lease_writes.renew(HELD), until=until),
        lambda: table.write(lease_writes.create(Lease("new", AT_TRIM_HORIZON)), until=until),
    ):
        with pytest.raises(TableGone, match=service.name):
            use()


def test_a_second_scan_sees_what_changed_what_came_and_what_went(service):
    for key in ("same", "changed", "gone"):
        service.put(HELD.with_(key=key))
    first = {row.key: row for row in service.table.scan().rows}
    service.put(first["changed"].with_(counter=2))
    service.put(HELD.with_(key="new"))
    service.delete("gone")
    second = {row.key: row for row in service.table.scan().rows}
    assert second == {
        "same": first["same"],
        "changed": first["changed"].with_(counter=2),
        "new": HELD.with_(key="new"),
    }


def test_a_missing_table_that_may_not_be_created_is_a_setup_error_and_is_not_created(service):
    table = DynamoDBLeaseTable(service.direct, f"{service.name}-none", service.runtime, gone_after=0.0)
    with pytest.raises(SetupError, match="create_table"):
        table.prepare(create=False)
    assert service.status(f"{service.name}-none") is None


def test_losing_the_race_to_create_is_fine(service):
    name = f"{service.name}-raced"
    service.client.faults.extend(
        ["ok", lambda: DynamoDBLeaseTable(service.direct, name, service.runtime)._create()]
    )
    table = DynamoDBLeaseTable(service.client, name, service.runtime)
    assert service.prepared(table) is False
    assert table.scan().rows == ()


def test_a_creation_whose_answer_is_lost_is_found_done_by_the_next_attempt(service):
    name = f"{service.name}-lost"
    service.client.faults.extend(["ok", "lose"])
    table = DynamoDBLeaseTable(service.client, name, service.runtime)
    with pytest.raises(TemporaryError):
        table.prepare(create=True)
    assert service.prepared(table) is False
    assert table.scan().rows == ()


def test_a_scan_of_more_than_a_mebibyte_walks_every_page(service):
    pending = PendingCheckpoint(Checkpoint("11"), bytes(range(256)) * 800)
    keys = {f"shardId-{number:012d}" for number in range(12)}
    for key in keys:
        service.put(HELD.with_(key=key, pending=pending))
    scan = service.table.scan()
    pages = [params for operation, params in service.client.calls if operation == "scan"]
    assert len(pages) > 2
    assert [params.get("ExclusiveStartKey") is None for params in pages[:2]] == [True, False]
    assert len(scan.rows) == 12
    assert {row.key for row in scan.rows} == keys
    assert all(row.pending == pending for row in scan.rows)


def test_a_read_sees_the_write_before_it(service):
    service.put(HELD)
    seen = HELD
    for _ in range(10):
        answer = service.write(lease_writes.renew(seen))
        seen = service.table.read(KEY)
        assert seen == answer.lease
    assert seen.counter == HELD.counter + 10


def test_a_refusal_shows_the_row_so_that_no_read_is_needed(service):
    service.put(taken_over(WRITES["renew"]))
    assert isinstance(service.write(WRITES["renew"]), Rejected)
    assert [operation for operation, _ in service.client.calls] == ["update_item"]


def test_a_refusal_that_shows_no_row_is_settled_by_a_consistent_read(service):
    """The way that a DynamoDB which ignores ALL_OLD makes every refusal go; here the row is taken away."""
    service.put(lease_writes.renew(HELD).after)
    service.client.faults.append(answered("ConditionalCheckFailedException"))
    assert service.write(WRITES["renew"]) == Applied(lease_writes.renew(HELD).after, confirmed_by_read=True)
    assert [operation for operation, _ in service.client.calls] == ["update_item", "get_item"]
    assert service.client.calls[-1][1]["ConsistentRead"] is True


# -- many writers on one row ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_racing_writers_never_both_keep_a_write_on_the_same_counter(service, seed):
    service.put(Lease(KEY, AT_TRIM_HORIZON))
    kept, lock = [], threading.Lock()
    tables = [DynamoDBLeaseTable(service.direct, service.name, SystemRuntime()) for _ in range(4)]

    def race(number):
        chance, table, me = random.Random(f"{seed}-{number}"), tables[number], f"worker-{number}"
        for _ in range(8):
            seen = table.read(KEY)
            write = lease_writes.take(seen, me)
            if seen.owner == me:
                write = chance.choice([lease_writes.renew, lease_writes.release])(seen)
            if isinstance(table.write(write, until=NEVER), Applied):
                with lock:
                    kept.append(seen.counter)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert kept
    assert sorted(kept) == list(range(len(kept)))
    assert service.item(KEY)["leaseCounter"] == {"N": str(len(kept))}
