"""The lease table as a whole, over every DynamoDB we have: preparing, scanning, many writers on one row."""

import random
import threading

import pytest
from lease_bench import answered, wait_for
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


def test_a_missing_table_is_created_pay_per_request_and_only_the_creator_is_told_so(bench):
    description = bench.direct.describe_table(TableName=bench.name)["Table"]
    assert description["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    second = DynamoDBLeaseTable(bench.direct, bench.name, bench.runtime)
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
def test_a_table_of_something_else_is_refused_with_its_key_schema_named(bench, schema, types, named):
    name = f"{bench.name}-other"
    bench.direct.create_table(
        TableName=name, KeySchema=schema, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST"
    )
    wait_for(lambda: bench.status(name) == "ACTIVE")
    with pytest.raises(WrongTable) as refusal:
        DynamoDBLeaseTable(bench.direct, name, bench.runtime).prepare(create=True)
    assert named in str(refusal.value)
    assert name in str(refusal.value)


def test_an_empty_table_scans_as_no_rows(bench):
    assert bench.table.scan().rows == ()


def test_a_deleted_table_is_named_by_every_operation(bench):
    bench.put(HELD)
    bench.direct.delete_table(TableName=bench.name)
    wait_for(lambda: bench.status(bench.name) is None)
    for use in (
        bench.table.scan,
        lambda: bench.table.read(KEY),
        lambda: bench.write(lease_writes.renew(HELD)),
        lambda: bench.write(lease_writes.create(Lease("new", AT_TRIM_HORIZON))),
    ):
        with pytest.raises(TableGone, match=bench.name):
            use()


def test_a_second_scan_sees_what_changed_what_came_and_what_went(bench):
    for key in ("same", "changed", "gone"):
        bench.put(HELD.with_(key=key))
    first = {row.key: row for row in bench.table.scan().rows}
    bench.put(first["changed"].with_(counter=2))
    bench.put(HELD.with_(key="new"))
    bench.delete("gone")
    second = {row.key: row for row in bench.table.scan().rows}
    assert second == {
        "same": first["same"],
        "changed": first["changed"].with_(counter=2),
        "new": HELD.with_(key="new"),
    }


def test_a_missing_table_that_may_not_be_created_is_a_setup_error_and_is_not_created(bench):
    with pytest.raises(SetupError, match="create_table"):
        DynamoDBLeaseTable(bench.direct, f"{bench.name}-none", bench.runtime).prepare(create=False)
    assert bench.status(f"{bench.name}-none") is None


def test_losing_the_race_to_create_is_fine(bench):
    name = f"{bench.name}-raced"
    bench.client.faults.extend(
        ["ok", lambda: DynamoDBLeaseTable(bench.direct, name, bench.runtime)._create()]
    )
    table = DynamoDBLeaseTable(bench.client, name, bench.runtime)
    assert bench.prepared(table) is False
    assert table.scan().rows == ()


def test_a_creation_whose_answer_is_lost_is_found_done_by_the_next_attempt(bench):
    name = f"{bench.name}-lost"
    bench.client.faults.extend(["ok", "lose"])
    table = DynamoDBLeaseTable(bench.client, name, bench.runtime)
    with pytest.raises(TemporaryError):
        table.prepare(create=True)
    assert bench.prepared(table) is False
    assert table.scan().rows == ()


def test_a_scan_of_more_than_a_mebibyte_walks_every_page(bench):
    pending = PendingCheckpoint(Checkpoint("11"), bytes(range(256)) * 800)
    keys = {f"shardId-{number:012d}" for number in range(12)}
    for key in keys:
        bench.put(HELD.with_(key=key, pending=pending))
    scan = bench.table.scan()
    pages = [params for operation, params in bench.client.calls if operation == "scan"]
    assert len(pages) > 2
    assert [params.get("ExclusiveStartKey") is None for params in pages[:2]] == [True, False]
    assert len(scan.rows) == 12
    assert {row.key for row in scan.rows} == keys
    assert all(row.pending == pending for row in scan.rows)


def test_a_read_sees_the_write_before_it(bench):
    bench.put(HELD)
    seen = HELD
    for _ in range(10):
        answer = bench.write(lease_writes.renew(seen))
        seen = bench.table.read(KEY)
        assert seen == answer.lease
    assert seen.counter == HELD.counter + 10


def test_a_refusal_shows_the_row_so_that_no_read_is_needed(bench):
    bench.put(taken_over(WRITES["renew"]))
    assert isinstance(bench.write(WRITES["renew"]), Rejected)
    assert [operation for operation, _ in bench.client.calls] == ["update_item"]


def test_a_refusal_that_shows_no_row_is_settled_by_a_consistent_read(bench):
    """The way that a DynamoDB which ignores ALL_OLD makes every refusal go; here the row is taken away."""
    bench.put(lease_writes.renew(HELD).after)
    bench.client.faults.append(answered("ConditionalCheckFailedException"))
    assert bench.write(WRITES["renew"]) == Applied(lease_writes.renew(HELD).after, confirmed_by_read=True)
    assert [operation for operation, _ in bench.client.calls] == ["update_item", "get_item"]
    assert bench.client.calls[-1][1]["ConsistentRead"] is True


# -- many writers on one row ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_racing_writers_never_both_keep_a_write_on_the_same_counter(bench, seed):
    bench.put(Lease(KEY, AT_TRIM_HORIZON))
    kept, lock = [], threading.Lock()
    tables = [DynamoDBLeaseTable(bench.direct, bench.name, SystemRuntime()) for _ in range(4)]

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
    assert bench.item(KEY)["leaseCounter"] == {"N": str(len(kept))}
