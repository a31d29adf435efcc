"""An operator deletes a lease row, or the whole table and makes it anew, while the fleet works."""

import logging

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.errors import TableGone
from pykcl.events import DataLost, LeaseCreated, LeaseLost, LeaseRestored, LossReason, ProcessorRaised
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import to_item
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, throttled
from pykcl.testing.runtime import EPOCH_MILLIS

SHARD = "shardId-000000000000"
OPTIONS = {"shard_sync_interval": 3600.0, "failover_time": 10.0}


def _recreate(fleet, rows=()):
    schema = fleet.dynamodb.tables[TABLE]
    fleet.dynamodb.delete_table(TableName=TABLE)
    fleet.dynamodb.create_table(
        TableName=TABLE,
        KeySchema=schema.schema,
        AttributeDefinitions=schema.attributes,
        BillingMode="PAY_PER_REQUEST",
    )
    for row in rows:
        fleet.dynamodb.put_raw(TABLE, row)


def _at_the_start(row):
    return {
        **{name: value for name, value in row.items() if name != "leaseOwner"},
        "leaseCounter": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
@pytest.mark.parametrize("is_filled", [False, True])
def test_a_table_made_anew_under_its_workers_stops_all_of_them(new_fleet, start, is_filled):
    """Nobody restarts from the start position in silence, whether the new table is empty or others have begun there."""
    fleet = new_fleet()
    simulation = fleet.simulation
    workers = [fleet.start(f"w{n}", initial_position=start, **OPTIONS) for n in (1, 2, 3)]
    fleet.wait(lambda: all(worker.wait_ready(0.0) for worker in workers))
    fleet.wait_delivered(fleet.put(20))
    simulation.sleep(15.0)
    rows = [_at_the_start(row) for row in fleet.items().values()] if is_filled else []
    _recreate(fleet, rows)
    delivered, requests = len(fleet.ledger.delivered), len(fleet.dynamodb.requests)
    fleet.wait(lambda: all(worker.failure is not None for worker in workers), 15.0, "the workers' failure")
    assert all(isinstance(worker.failure, TableGone) for worker in workers)
    described = [name for name, _ in fleet.dynamodb.requests[requests:] if name == "DescribeTable"]
    assert len(described) == 2 * len(workers), "once, and once more some seconds later"
    assert "another one" in str(workers[0].failure)
    for worker in workers:
        worker.stop()
    assert len(fleet.ledger.delivered) == delivered
    assert list(fleet.dynamodb.rows(TABLE).values()) == rows


def test_a_row_that_an_operator_deletes_comes_back_where_its_owner_was(new_fleet):
    fleet = new_fleet()
    simulation = fleet.simulation
    workers = [fleet.start(f"w{n}", **OPTIONS) for n in (1, 2)]
    fleet.wait(lambda: all(worker.wait_ready(0.0) for worker in workers))
    fleet.wait_delivered(fleet.put(20))
    simulation.sleep(15.0)
    checkpoint, counter = fleet.rows()[SHARD].checkpoint, fleet.rows()[SHARD].counter
    assert not checkpoint.is_sentinel
    before = fleet.ledger.payloads
    _delete(fleet, SHARD)
    fleet.wait(lambda: fleet.owners().get(SHARD) is not None, 15.0, "the lease")
    fleet.wait_delivered(fleet.put(20, "more"), 15.0)
    assert {payload: fleet.ledger.payloads[payload] for payload in before} == before
    (created,) = [event for event in fleet.happened(LeaseCreated) if "deleted" in event.reason]
    assert created.checkpoint == str(checkpoint)
    # A write from before, delayed in the network, must not find its counter there once more.
    assert fleet.rows()[SHARD].counter > counter + 100
    assert not any(worker.failure for worker in workers)
    for worker in workers:
        worker.stop()


@pytest.mark.parametrize("is_held", [True, False], ids=["by its owner", "by another"])
def test_who_deletes_a_row_to_replay_reads_that_this_is_no_replay_and_the_command_that_is_one(
    new_fleet, is_held
):
    """The row comes back at its last checkpoint, so that nothing is read again."""
    fleet = new_fleet(shards=1)
    workers = [fleet.start(f"w{n}", **OPTIONS) for n in (1, 2)]
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(15.0)
    owner = fleet.owners()[SHARD]
    if not is_held:
        fleet.simulation.kill(owner)
    _delete(fleet, SHARD)
    fleet.wait(lambda: fleet.happened(LeaseRestored), 60.0, "the row")
    told = [fleet.happened(LeaseRestored)[0]]
    if is_held:
        told += [event for event in fleet.happened(LeaseLost) if event.reason is LossReason.ROW_DELETED]
        assert len(told) == 2
    for event in told:
        assert (event.shard, event.code, event.LEVEL) == (SHARD, "E29", logging.WARNING)
        assert f"pykcl checkpoints reset --app {TABLE} --stream {STREAM} --shard {SHARD}" in event.hint
    assert "no replay" in told[0].TEXT
    for worker in workers:
        if is_held or worker.config.worker_id != owner:
            worker.stop()


def test_the_only_row_of_a_start_at_latest_comes_back_and_nothing_is_skipped(new_fleet):
    """Another worker that only saw it puts it back, too: its owner died with it."""
    fleet = new_fleet(shards=1)
    first = fleet.start("w1", initial_position="LATEST", **OPTIONS)
    fleet.wait(lambda: first.wait_ready(0.0))
    second = fleet.start("w2", initial_position="LATEST", **OPTIONS)
    fleet.simulation.sleep(3.0)
    owner = fleet.owners()[SHARD]
    fleet.simulation.kill(owner)
    _delete(fleet, SHARD)
    fleet.wait_delivered(fleet.put(20), 40.0)
    (second if owner == "w1" else first).stop()


@pytest.mark.parametrize("is_held", [True, False], ids=["by its owner", "by another"])
def test_a_listing_that_lacks_the_shard_does_not_make_its_row_forgotten(new_fleet, is_held):
    """Seed 135212718303: the next listing had it, and it was begun anew at LATEST."""
    fleet = new_fleet(shards=2)
    options = {**OPTIONS, "shard_sync_interval": 60.0, "initial_position": "LATEST"}
    workers = {name: fleet.start(name, **options) for name in ("w1", "w2")}
    fleet.wait(lambda: all(worker.wait_ready(0.0) for worker in workers.values()))
    fleet.simulation.sleep(10.0)
    truth, is_lacking = fleet.kinesis.list_shards, [True]

    def lacking(*args, **kwargs):
        shards = truth(*args, **kwargs)
        return [shard for shard in shards if shard.shard_id != SHARD] if is_lacking[0] else shards

    fleet.kinesis.list_shards = lacking
    if not is_held:
        owner = fleet.owners()[SHARD]
        fleet.simulation.kill(owner)
    _delete(fleet, SHARD)
    payloads = fleet.put(20)
    fleet.simulation.sleep(30.0)
    assert SHARD not in fleet.rows()
    is_lacking[0] = False
    fleet.wait(lambda: SHARD in fleet.rows(), 100.0, "the row")
    fleet.wait_delivered(payloads, 100.0)
    reasons = [event.reason for event in fleet.happened(LeaseCreated) if event.shard == SHARD]
    assert sorted(reasons) == ["its row was deleted by somebody else", "start of the application"]
    for name, worker in workers.items():
        if is_held or name != owner:
            worker.stop()


@pytest.mark.parametrize("is_held", [True, False], ids=["by its owner", "by another"])
def test_a_loss_is_reported_where_a_shard_expires_before_its_row_is_back(new_fleet, is_held):
    """1) An operator deletes the row of a closed shard; 2) retention takes the shard; 3) nothing is left to put back."""
    fleet = new_fleet(shards=2)
    options = {**OPTIONS, "shard_sync_interval": 60.0}
    workers = {name: fleet.start(name, **options) for name in ("w1", "w2")}
    fleet.wait(lambda: all(worker.wait_ready(0.0) for worker in workers.values()))
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(15.0)
    read = fleet.rows()[SHARD].checkpoint
    truth = fleet.kinesis.list_shards
    fleet.kinesis.list_shards = lambda *args, **kwargs: [
        shard for shard in truth(*args, **kwargs) if shard.shard_id != SHARD
    ]
    owner = fleet.owners()[SHARD]
    if not is_held:
        fleet.simulation.kill(owner)
    _delete(fleet, SHARD)
    fleet.simulation.sleep(600.0)
    assert fleet.happened(DataLost) == []
    fleet.simulation.sleep(1200.0)
    lost = fleet.happened(DataLost)
    assert {(event.shard, event.checkpoint, event.resumed_at) for event in lost} == {(SHARD, str(read), None)}
    assert len(lost) == (2 if is_held else 1), "each worker that knew of the lease tells once"
    assert SHARD not in fleet.rows()
    for name, worker in workers.items():
        if is_held or name != owner:
            worker.stop()


def test_a_loss_is_reported_where_the_children_of_a_deleted_row_are_the_oldest_shards_that_are_left(
    new_fleet,
):
    """Simulation 54876183001: their leases say that the parent was read, and the last trace of its rest is gone."""
    now = lambda: 0.0  # noqa: E731
    fleet = new_fleet(shards=2, clock=lambda: EPOCH_MILLIS + int(now() * 1000))
    now = lambda: fleet.simulation.now  # noqa: E731
    workers = {name: fleet.start(name, **{**OPTIONS, "shard_sync_interval": 60.0}) for name in ("w1", "w2")}
    fleet.wait(lambda: all(worker.wait_ready(0.0) for worker in workers.values()))
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(15.0)
    read, owner = fleet.rows()[SHARD].checkpoint, fleet.owners()[SHARD]
    fleet.simulation.kill(owner)
    fleet.kinesis.split(STREAM, SHARD)
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=throttled(operation)) if operation == "PutItem" else None
    )
    _delete(fleet, SHARD)
    fleet.simulation.sleep(30.0)
    now = lambda: fleet.simulation.now + 25 * 3600.0  # noqa: E731
    fleet.simulation.sleep(90.0)
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(300.0)
    assert {lease.owner for lease in fleet.rows().values()} == {"w1", "w2"} - {owner}
    lost = [(event.shard, event.checkpoint, event.resumed_at) for event in fleet.happened(DataLost)]
    assert lost == [(SHARD, str(read), None)]


def test_the_row_of_a_parent_that_is_still_read_comes_back_though_its_child_has_a_lease(new_fleet):
    """The other parent of the merge ended and left the child's row: without memory this one would count as read."""
    fleet = new_fleet()
    shards = fleet.open_shards()

    def slowly(batch):
        fleet.simulation.sleep(2.0 if batch.shard_id == SHARD else 0.0)

    worker = fleet.start(
        "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, slowly), max_records=1, **OPTIONS
    )
    fleet.wait(lambda: worker.wait_ready(0.0))
    payloads = fleet.put(40)
    fleet.kinesis.merge(STREAM, *shards)
    fleet.wait(lambda: any(lease.is_ended for lease in fleet.rows().values()), 400.0, "the end of a parent")
    assert not fleet.rows()[SHARD].is_ended
    _delete(fleet, SHARD)
    fleet.wait_delivered(payloads, 200.0)
    worker.stop()


def test_a_worker_that_stood_still_puts_no_row_back_that_others_read_to_its_end_and_deleted(new_fleet):
    """Else the shard is read once more from where the worker was, and all of its descendants with it."""
    fleet = new_fleet(shards=1)
    options = {**OPTIONS, "cleanup_interval": 5.0}
    worker = fleet.start("w1", **options)
    fleet.wait(lambda: worker.wait_ready(0.0))
    fleet.wait_delivered(fleet.put(20))
    fleet.start("w2", **options)
    fleet.simulation.sleep(10.0)
    assert fleet.owners() == {SHARD: "w1"}
    fleet.simulation.freeze("w1", 120.0)
    payloads = fleet.put(20)
    fleet.kinesis.split(STREAM, SHARD)
    payloads += fleet.put(20)
    fleet.wait(lambda: SHARD not in fleet.rows(), 110.0, "the row to be cleaned up")
    fleet.wait(lambda: fleet.happened(LeaseLost), 120.0, "w1 to wake up")
    fleet.simulation.sleep(60.0)
    lost = [event.reason for event in fleet.happened(LeaseLost) if event.shard == SHARD]
    assert (lost, fleet.happened(LeaseRestored)) == ([LossReason.ROW_DELETED], [])
    assert SHARD not in fleet.rows()
    fleet.wait_delivered(payloads)
    assert fleet.ledger.duplicates == 0


def test_a_row_is_not_put_back_that_was_deleted_in_order_while_the_answer_to_its_end_was_awaited(new_fleet):
    """1) The end lands, and its answer is lost; 2) the children start, and the row is cleaned up; 3) it is sent again."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", **OPTIONS, cleanup_interval=1.0)
    fleet.wait(lambda: worker.wait_ready(0.0))
    fleet.wait_delivered(fleet.put(20))

    def lose_answers(operation, params):
        if operation != "UpdateItem" or params["Key"]["leaseKey"]["S"] != SHARD:
            return None
        lost = ReadTimeoutError(endpoint_url="-")
        rows = fleet.dynamodb.rows(TABLE).values()
        has_ended = any(row["checkpoint"]["S"] == "SHARD_END" for row in rows)
        return Fault(before=lost, delay=0.5) if has_ended else Fault(after=lost, delay=0.5)

    fleet.kinesis.split(STREAM, SHARD)
    payloads = fleet.put(20)
    fleet.dynamodb.fault = lose_answers
    fleet.wait(lambda: SHARD not in fleet.rows(), 60.0, "the row to be cleaned up")
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(60.0)
    assert (SHARD in fleet.rows(), fleet.happened(LeaseRestored)) == (False, [])
    fleet.wait_delivered(payloads)
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("on_error", ["retry", "skip", "raise"])
def test_a_checkpoint_that_finds_no_table_stops_the_worker_with_that_error(new_fleet, on_error):
    """Not with ProcessorFailed, nor after having tried the same batch again and again: the processor did not fail."""
    fleet = new_fleet(shards=1)

    def by_hand(batch):
        fleet.dynamodb.tables.pop(TABLE, None)
        batch.checkpointer.checkpoint()

    worker = fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, by_hand),
        on_error=on_error,
        checkpoint_mode="manual",
    )
    fleet.put(3)
    fleet.wait(lambda: worker.failure is not None, 30.0, "the failure")
    assert isinstance(worker.failure, TableGone)
    worker.stop()
    assert not fleet.happened(ProcessorRaised)
    assert [method for _, method, _ in fleet.ledger.calls].count("process_records") == 1


def _delete(fleet, key):
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": key}})


def test_a_row_of_java_at_latest_comes_back_with_the_time_of_that_in_whatever_application(new_fleet):
    """Its row never said since when; a worker that starts elsewhere must not make it the beginning of time."""
    fleet = new_fleet(shards=1)
    fleet.worker("w1", **OPTIONS)._connect()
    row = to_item(Lease(SHARD, Checkpoint("LATEST"), owner="java", counter=7))
    fleet.dynamodb.put_raw(TABLE, row)
    fleet.start("w1", initial_position="TRIM_HORIZON", **OPTIONS)
    fleet.simulation.sleep(3.0)
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": SHARD}})
    deleted_at = EPOCH_MILLIS + int(fleet.simulation.now * 1000)
    fleet.wait(lambda: SHARD in fleet.rows(), what="the row")
    restored = fleet.rows()[SHARD]
    assert restored.checkpoint.sequence_number == "LATEST"
    assert restored.latest_from >= deleted_at


def test_a_row_without_a_counter_is_not_taken_for_one_that_is_gone_and_is_read_again_once_it_is_mended(
    new_fleet,
):
    fleet = new_fleet(shards=1)
    fleet.start("w1", **OPTIONS)
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5.0)
    row = fleet.items()[SHARD]
    fleet.dynamodb.put_raw(TABLE, {name: value for name, value in row.items() if name != "leaseCounter"})
    fleet.wait(lambda: fleet.happened(LeaseLost), 15.0, "the loss")
    (lost,) = fleet.happened(LeaseLost)
    assert lost.reason is LossReason.ROW_UNREADABLE
    assert "its row is there and cannot be read: leaseCounter is missing" in lost.cause
    put = fleet.put(5, "later")
    fleet.simulation.sleep(60.0)
    assert not set(put) & fleet.ledger.payloads.keys()
    fleet.dynamodb.put_raw(TABLE, {**fleet.items()[SHARD], "leaseCounter": {"N": "900"}})
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0
