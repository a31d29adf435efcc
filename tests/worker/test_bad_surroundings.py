"""Bad surroundings: each is a clear error or event that says what, why and what to do; nothing is lost or harmed."""

import json
from pathlib import Path

import pytest

from pykcl.errors import StreamMissing, TableGone, WrongStream, WrongTable
from pykcl.events import (
    AggregateOutsideShard,
    AggregateRefused,
    FailureLasted,
    FailureResolved,
    FailureStarted,
    InvalidLeaseRow,
)
from pykcl.local.errors import AwsError
from pykcl.model.kpl import aggregate
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault

FIXTURES = Path(__file__).parent.parent / "fixtures"


def _put_row(fleet, item):
    fleet.dynamodb.put_item(TableName=TABLE, Item=item)


def test_a_missing_stream_is_named_with_its_place(new_fleet):
    fleet = new_fleet()
    fleet.kinesis.delete_stream(STREAM)
    with pytest.raises(StreamMissing, match=STREAM):
        fleet.start("w1")


def test_a_worker_waits_for_a_stream_that_is_being_created_and_not_for_one_that_is_resharded(new_fleet):
    fleet = new_fleet(state_seconds=30.0)
    fleet.start("w1")
    fleet.wait(lambda: fleet.load().get("w1") == 2, what="the leases")
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    assert fleet.kinesis.describe(STREAM).status == "UPDATING"
    fleet.workers["w1"].stop()
    before = fleet.simulation.now
    worker = fleet.start("w2")
    fleet.wait(lambda: worker.leases, 20, "a start during the reshard")
    assert fleet.simulation.now - before < 20


def test_a_worker_waits_for_its_table_to_become_active(new_fleet):
    fleet = new_fleet()
    fleet.dynamodb.describes_until_active = 5
    put = fleet.put(5)
    fleet.start("w1")
    fleet.wait_delivered(put)
    assert len(fleet.happened(FailureStarted)) == 1
    # Each application waits once for its table: no trouble.
    assert not fleet.happened(FailureLasted)


def test_a_table_that_is_not_a_lease_table_is_refused_with_its_key_named(new_fleet):
    fleet = new_fleet()
    fleet.dynamodb.create_table(
        TableName=TABLE,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(WrongTable, match="id"):
        fleet.start("w1")


def test_the_leases_of_another_stream_are_refused_at_the_start(new_fleet):
    fleet = new_fleet()
    fleet.start("w1")
    fleet.wait(lambda: fleet.load().get("w1") == 2)
    fleet.workers["w1"].stop()
    for key in fleet.rows():
        fleet.dynamodb.update_item(
            TableName=TABLE,
            Key={"leaseKey": {"S": key}},
            UpdateExpression="SET pykcl.streamArn = :a",
            ConditionExpression="attribute_exists(pykcl)",
            ExpressionAttributeValues={":a": {"S": "arn:aws:kinesis:us-east-1:000000000000:stream/payments"}},
        )
    before = fleet.items()
    with pytest.raises(WrongStream, match="payments"):
        fleet.start("w2")
    assert fleet.items() == before


def test_a_stream_made_again_under_its_name_is_refused_at_the_start(new_fleet):
    fleet = new_fleet()
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.workers["w1"].stop()
    fleet.simulation.sleep(5)
    fleet.kinesis.delete_stream(STREAM)
    fleet.kinesis.create_stream(STREAM, 2)
    before = fleet.items()
    with pytest.raises(WrongStream, match="created again"):
        fleet.start("w2")
    assert fleet.items() == before


def test_a_stream_made_again_while_the_worker_runs_stops_it_before_it_reads_or_deletes(new_fleet):
    fleet = new_fleet()
    worker = fleet.start("w1", cleanup_interval=5.0, shard_sync_interval=20.0)
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    rows = fleet.rows()
    fleet.kinesis.delete_stream(STREAM)
    fleet.kinesis.create_stream(STREAM, 2)
    new = fleet.put(10, prefix="new")
    fleet.wait(lambda: worker.failure is not None, what="the refusal")
    assert isinstance(worker.failure, WrongStream | StreamMissing)
    worker.stop()
    assert not set(new) & set(fleet.ledger.payloads)
    assert fleet.rows().keys() == rows.keys()
    assert all(fleet.rows()[key].checkpoint == rows[key].checkpoint for key in rows)


def test_a_table_deleted_while_the_worker_runs_stops_all_delivery_with_an_error(new_fleet):
    fleet = new_fleet()
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    fleet.dynamodb.delete_table(TableName=TABLE)
    fleet.wait(lambda: worker.failure is not None, 30, "the error")
    assert isinstance(worker.failure, TableGone)
    worker.stop()
    put = fleet.put(10)
    fleet.simulation.sleep(60)
    assert not set(put) & set(fleet.ledger.payloads), "it never starts again from its start position"


def test_rows_that_are_no_leases_are_never_counted_changed_or_deleted(new_fleet):
    fleet = new_fleet(shards=2)
    lines = (FIXTURES / "java-3.5.1-compatible-with-2x.jsonl").read_text().splitlines()
    foreign = {}
    for line in lines:
        item = json.loads(line)["item"]
        if item.get("entityType", {}).get("S") not in (None, "LEASE"):
            foreign[item["leaseKey"]["S"]] = item
    assert foreign
    fleet.start("w1", cleanup_interval=2.0)
    fleet.wait(lambda: fleet.load().get("w1") == 2)
    for item in foreign.values():
        _put_row(fleet, item)
    fleet.start("w2", cleanup_interval=2.0)
    fleet.wait(lambda: sorted(fleet.load().values()) == [1, 1], what="balance")
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(120)
    assert {key: fleet.items()[key] for key in foreign} == foreign
    assert not fleet.happened(InvalidLeaseRow)


@pytest.mark.parametrize(
    "damage",
    [
        {"leaseCounter": None},
        {"leaseCounter": {"S": "7"}},
        {"checkpoint": {"S": "not a number"}},
        {"startingHashKey": {"S": "junk"}},
        {"ownerSwitchesSinceCheckpoint": None},
    ],
)
def test_a_corrupted_row_is_reported_once_left_alone_and_stops_no_other_shard(new_fleet, damage):
    fleet = new_fleet(shards=3)
    fleet.start("w1")
    fleet.wait(lambda: fleet.load().get("w1") == 3)
    fleet.workers["w1"].stop()
    key = fleet.open_shards()[0]
    item = {k: v for k, v in {**fleet.items()[key], **damage}.items() if v is not None}
    _put_row(fleet, item)
    fleet.start("w2", cleanup_interval=5.0)
    healthy = fleet.put(30)
    fleet.wait(lambda: {r.shard_id for _, r in fleet.ledger.delivered} >= set(fleet.open_shards()[1:]))
    fleet.simulation.sleep(90)
    assert fleet.items()[key] == item
    assert [event.key for event in fleet.happened(InvalidLeaseRow)] == [key]
    assert len(fleet.ledger.payloads) < len(healthy)


def test_a_damaged_aggregate_is_delivered_as_it_came_and_reported(new_fleet):
    fleet = new_fleet(shards=1)
    (blob,) = aggregate([("k", None, b"one"), ("k", None, b"two")])
    broken = blob.data[:-1] + bytes([blob.data[-1] ^ 1])
    fleet.kinesis.put_record(STREAM, broken, "k")
    after = fleet.put(3)
    fleet.start("w1")
    fleet.wait_delivered([broken, *after])
    (event,) = fleet.happened(AggregateRefused)
    assert event.size == len(broken)


def _make_rows_without_ranges(fleet):
    """As a version of KCL before 2.3 leaves them."""
    worker = fleet.start("w0")
    fleet.wait(lambda: fleet.dynamodb.tables and len(fleet.items()) == 2, what="the leases")
    worker.stop()
    names = ("startingHashKey", "endingHashKey")
    for item in fleet.items().values():
        fleet.dynamodb.put_raw(TABLE, {name: value for name, value in item.items() if name not in names})


@pytest.mark.parametrize("knows", ["the row", "the list of shards"])
def test_an_aggregate_of_another_shard_is_dropped_as_in_java_and_reported(new_fleet, knows):
    fleet = new_fleet(shards=2)
    (blob,) = aggregate([("k", "0", b"low"), ("k", str(2**128 - 1), b"high")])
    if knows != "the row":
        _make_rows_without_ranges(fleet)
    fleet.kinesis.put_record(STREAM, blob.data, "k")
    after = fleet.put(10)
    fleet.start("w1")
    fleet.wait_delivered(after)
    fleet.simulation.sleep(5)
    assert not {b"low", b"high"} & set(fleet.ledger.payloads)
    assert len(fleet.happened(AggregateOutsideShard)) == 1


def test_a_wrong_hash_range_in_a_row_drops_no_aggregate_of_the_shard(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w0")
    fleet.wait(lambda: fleet.dynamodb.tables and len(fleet.items()) == 1, what="the lease")
    worker.stop()
    (item,) = fleet.items().values()
    # As in a row of an earlier stream of that name, or one that was imported by hand.
    fleet.dynamodb.put_raw(TABLE, {**item, "startingHashKey": {"S": "0"}, "endingHashKey": {"S": "1"}})
    (blob,) = aggregate([("k", None, b"one"), ("k", None, b"two")])
    fleet.kinesis.put_record(STREAM, blob.data, "k")
    after = fleet.put(3)
    fleet.start("w1")
    fleet.wait_delivered(after)
    assert {b"one", b"two"} <= set(fleet.ledger.payloads)
    assert not fleet.happened(AggregateOutsideShard)


def test_an_outage_of_kinesis_is_reported_when_it_begins_and_ends_and_loses_nothing(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))

    def down(operation, stream, shard):
        raise AwsError("ServiceUnavailable", "down", 503)

    fleet.kinesis.fault = down
    fleet.simulation.sleep(120)
    fleet.kinesis.fault = None
    put = fleet.put(10)
    fleet.wait_delivered(put)
    fleet.simulation.sleep(30)
    began = [(event.what, event.shard or "") for event in fleet.happened(FailureStarted)]
    ended = [(event.what, event.shard or "") for event in fleet.happened(FailureResolved)]
    assert sorted(began) == sorted(ended)
    assert len(began) == len(set(began)), "each trouble is told once"
    assert fleet.ledger.duplicates == 0


class _VaultError(Exception):
    """As a client of somebody's own secret store may raise."""


@pytest.mark.parametrize("operation", ["Scan", "UpdateItem"])
@pytest.mark.parametrize("kind", [FileNotFoundError, ConnectionError, _VaultError])
def test_a_source_of_credentials_that_fails_for_a_while_stops_no_worker(new_fleet, operation, kind):
    fleet = new_fleet()
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    until = fleet.simulation.now + 8
    hit = []

    def fault(called, params):
        if called != operation or fleet.simulation.now > until:
            return None
        hit.append(called)
        return Fault(before=kind("/var/run/secrets/token"))

    fleet.dynamodb.fault = fault
    fleet.simulation.sleep(40)
    assert hit
    assert worker.failure is None
    fleet.wait_delivered(fleet.put(5, "later"))
    assert not any("secrets" in str(event) for _, event in fleet.events)
    assert (
        any(kind.__name__ in event.cause for event in fleet.happened(FailureStarted)) or operation != "Scan"
    )
