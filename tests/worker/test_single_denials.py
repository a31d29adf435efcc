"""AWS says once that a table, a stream or a shard does not exist, though it is there: that proves nothing."""

from types import SimpleNamespace

import pytest

from pykcl.errors import SetupError, StreamMissing, TableGone, TemporaryError
from pykcl.events import DataLost, LeaseLost, LossReason
from pykcl.local.errors import AwsError
from pykcl.model.absence import GONE_AFTER, Absence
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard, ShardListing
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, absent
from pykcl.worker.shard_end import children_of_a_gone_shard


def _once(fleet, *operations, also=lambda operation, params: True):
    """DynamoDB denies its table to one request, of these operations; the list has those that were denied."""
    came = []

    def fault(operation, params):
        if came or operation not in operations or not also(operation, params):
            return None
        came.append(operation)
        return Fault(before=absent(operation))

    fleet.dynamodb.fault = fault
    return came


def _lost(fleet):
    """Leases that were lost, but for those that another worker took to balance the load."""
    return [event for event in fleet.happened(LeaseLost) if event.reason is not LossReason.TAKEN]


def test_the_first_scan_of_a_new_table_may_not_find_it(new_fleet):
    """DescribeTable shows it as ACTIVE, and for some seconds a host of DynamoDB has not heard of it."""
    fleet = new_fleet()
    put = fleet.put(20)
    came = _once(fleet, "Scan")
    worker = fleet.start("w1")
    fleet.wait_delivered(put)
    assert came == ["Scan"]
    assert worker.failure is None


@pytest.mark.parametrize("operation", ["Scan", "UpdateItem", "GetItem", "PutItem", "DescribeTable"])
def test_a_request_in_the_middle_may_not_find_the_table(new_fleet, operation):
    fleet = new_fleet()
    workers = [fleet.start(f"w{n}") for n in (1, 2)]
    fleet.wait_delivered(fleet.put(20))
    came = _once(fleet, operation)
    if operation in ("GetItem", "PutItem"):
        # A new worker reads what it takes from the others, and a split has children.
        workers.append(fleet.start("w3"))
        fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    if operation == "DescribeTable":
        workers.append(fleet.start("w3"))
    fleet.wait(lambda: came, 60.0, "the denial")
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(30.0)
    assert not any(worker.failure for worker in workers)
    assert not _lost(fleet)


def test_while_another_endpoint_answers_for_a_second_nobody_stops(new_fleet):
    """Every request is denied for two seconds, DescribeTable too, as by credentials of another account."""
    fleet = new_fleet()
    workers = [fleet.start(f"w{n}") for n in (1, 2)]
    fleet.wait_delivered(fleet.put(20))
    until = fleet.simulation.now + 2.0
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=absent(operation)) if fleet.simulation.now < until else None
    )
    fleet.simulation.sleep(5.0)
    fleet.wait_delivered(fleet.put(20))
    assert not any(worker.failure for worker in workers)
    assert not _lost(fleet)


def test_a_table_that_is_gone_is_so_after_some_seconds(new_fleet):
    fleet = new_fleet()
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(20))
    fleet.dynamodb.delete_table(TableName=TABLE)
    began = fleet.simulation.now
    fleet.wait(lambda: worker.failure is not None, 15.0, "the end")
    assert isinstance(worker.failure, TableGone)
    assert fleet.simulation.now - began >= 3.0


@pytest.mark.parametrize(
    ("remove", "options", "expected"),
    [
        (lambda fleet: None, {"create_table": False}, SetupError),
        (lambda fleet: fleet.kinesis.delete_stream(STREAM), {}, StreamMissing),
    ],
    ids=["no table", "no stream"],
)
def test_a_start_without_table_or_stream_ends_within_seconds(new_fleet, remove, options, expected):
    fleet = new_fleet()
    remove(fleet)
    began = fleet.simulation.now
    with pytest.raises(expected):
        fleet.start("w1", **options)
    # Believed after three seconds, and asked again after five at most.
    assert fleet.simulation.now - began < 8.0


def _kinesis_denies(fleet, *operations, times=1):
    came = []

    def fault(operation, stream, shard):
        if operation in operations and len(came) < times:
            came.append(operation)
            raise AwsError("ResourceNotFoundException", "not found")

    fleet.kinesis.fault = fault
    return came


@pytest.mark.parametrize(
    "operations",
    [("GetRecords",), ("DescribeStreamSummary",), ("ListShards",), ("GetRecords", "DescribeStreamSummary")],
)
def test_one_answer_of_kinesis_ends_no_worker_and_no_shard(new_fleet, operations):
    fleet = new_fleet()
    worker = fleet.start("w1", shard_sync_interval=5.0)
    fleet.wait_delivered(fleet.put(20))
    came = _kinesis_denies(fleet, *operations, times=len(operations))
    fleet.wait(lambda: len(came) == len(operations), 60.0, "the denial")
    fleet.wait_delivered(fleet.put(20))
    assert worker.failure is None
    assert not fleet.happened(DataLost)
    assert fleet.ledger.duplicates == 0


def test_a_shard_that_is_denied_once_and_not_listed_is_not_ended(new_fleet):
    """1) A host denies the shard to GetRecords; 2) a listing of a moment later lacks it."""
    fleet = new_fleet(shards=3)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(20))
    first = fleet.open_shards()[0]
    came = _kinesis_denies(fleet, "GetRecords")
    truth = fleet.kinesis.list_shards

    def without_the_first(stream, shard_filter=None, operation="ListShards"):
        listed = truth(stream, shard_filter, operation)
        return [each for each in listed if operation is None or each.shard_id != first]

    fleet.wait(lambda: came, 30.0)
    fleet.kinesis.list_shards = without_the_first
    fleet.simulation.sleep(1.0)
    fleet.kinesis.list_shards = truth
    fleet.wait_delivered(fleet.put(20))
    assert worker.failure is None
    assert not fleet.happened(DataLost)


def test_a_shard_that_gives_iterators_is_not_gone_though_pages_are_denied_for_seconds(new_fleet):
    """1) A host denies the shard to GetRecords, and another one gives an iterator; 2) that again; 3) it is not listed."""
    fleet = new_fleet(shards=3)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(20))
    first = fleet.open_shards()[0]
    denied = []

    def fault(operation, stream, shard):
        if operation == "GetRecords" and shard == first:
            denied.append(fleet.simulation.now)
            raise AwsError("ResourceNotFoundException", "not found")

    truth = fleet.kinesis.list_shards

    def without_the_first(stream, shard_filter=None, operation="ListShards"):
        listed = truth(stream, shard_filter, operation)
        return [each for each in listed if operation is None or each.shard_id != first]

    fleet.kinesis.fault, fleet.kinesis.list_shards = fault, without_the_first
    fleet.wait(lambda: denied and fleet.simulation.now - denied[0] > 3 * GONE_AFTER, 60.0)
    assert len(denied) > 2
    fleet.kinesis.fault, fleet.kinesis.list_shards = None, truth
    fleet.wait_delivered(fleet.put(20))
    assert worker.failure is None
    assert not fleet.happened(DataLost)


def test_two_denials_of_a_shard_that_are_far_apart_prove_nothing():
    """Between them every read of it failed, so that no page showed it, and both times a listing lacks it."""
    now, lost, absence = [100.0], [], Absence()
    context = SimpleNamespace(
        runtime=SimpleNamespace(monotonic=lambda: now[0]),
        identity=SimpleNamespace(confirm=lambda: None),
        stream=SimpleNamespace(list_shards=lambda: ShardListing((Shard("shardId-000000000002"),))),
        events=SimpleNamespace(emit=lost.append),
    )
    held = SimpleNamespace(key="shardId-000000000001", lease=Lease("shardId-000000000001", Checkpoint("7")))
    for now[0] in (100.0, 1300.0):
        with pytest.raises(TemporaryError, match="one answer proves nothing"):
            children_of_a_gone_shard(context, held, absence)
    assert not lost
    now[0] += 4.0
    assert children_of_a_gone_shard(context, held, absence) == ()
    assert [event.shard for event in lost] == [held.key]
