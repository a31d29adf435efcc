"""Where reading starts and resumes: every start position, a crash before the first checkpoint, trimmed data."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pykcl.errors import ShardGone
from pykcl.events import DataLost, FailureStarted, LeaseCreated, StartingAtLatest
from pykcl.model.kpl import aggregate
from pykcl.model.shard import ShardListing
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation


def _now(fleet):
    return datetime.fromtimestamp((EPOCH_MILLIS + fleet.simulation.now * 1000) / 1000, tz=UTC)


def test_a_record_goes_from_put_record_through_the_processor_to_a_checkpoint_row():
    with Simulation(seed=1) as simulation:
        fleet = Fleet(simulation, shards=2)
        payloads = fleet.put(10)
        worker = fleet.start("w1")
        fleet.wait_delivered(payloads)
        fleet.wait(lambda: all(not lease.checkpoint.is_sentinel for lease in fleet.rows().values()))
        worker.stop()
        assert fleet.ledger.duplicates == 0
        assert set(fleet.owners().values()) == {None}


def test_trim_horizon_reads_what_was_there_before(new_fleet):
    fleet = new_fleet()
    put = fleet.put(10)
    fleet.start("w1", initial_position="TRIM_HORIZON")
    fleet.wait_delivered(put)


def test_latest_reads_what_is_put_once_the_worker_is_ready_and_nothing_older(new_fleet):
    fleet = new_fleet()
    old = fleet.put(10)
    fleet.simulation.sleep(3)
    worker = fleet.start("w1", initial_position="LATEST")
    assert worker.wait_ready(30)
    new = fleet.put(10)
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)
    assert len(fleet.happened(StartingAtLatest)) == 1


def test_a_time_reads_what_arrived_from_then_on(new_fleet):
    fleet = new_fleet()
    old = fleet.put(10)
    fleet.simulation.sleep(60)
    start = _now(fleet)
    fleet.simulation.sleep(1)
    new = fleet.put(10)
    fleet.start("w1", initial_position=start)
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)
    for item in fleet.items().values():
        assert item["checkpointSubSequenceNumber"]["N"] == "0"


def test_a_time_counts_for_children_of_shards_that_ended_before_it_too(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(5)
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    old = fleet.put(10, prefix="old")
    fleet.simulation.sleep(60)
    start = _now(fleet)
    fleet.simulation.sleep(1)
    new = fleet.put(10)
    fleet.start("w1", initial_position=start)
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)


def test_a_latest_start_that_crashed_before_its_first_checkpoint_loses_nothing_put_meanwhile(new_fleet):
    fleet = new_fleet()
    old = fleet.put(5)
    fleet.simulation.sleep(3)
    first = fleet.start("w1", initial_position="LATEST")
    assert first.wait_ready(30)
    fleet.simulation.kill("w1")
    fleet.simulation.sleep(2)
    meanwhile = fleet.put(10)
    fleet.simulation.sleep(60)
    fleet.start("w2", initial_position="LATEST")
    fleet.wait_delivered(meanwhile)
    assert not set(old) & set(fleet.ledger.payloads)


def test_a_start_at_latest_does_not_believe_a_scan_that_is_older_than_the_leases_of_a_peer(new_fleet):
    """1) w1 creates the leases at LATEST, and is ready; 2) its shard is split, and records are put into the children;
    3) w2's scan shows the table as it was before 1: to w2 nobody has begun. LATEST would be behind these records."""
    fleet = new_fleet(shards=1)
    assert fleet.start("w1", initial_position="LATEST").wait_ready(30)
    fleet.wait_delivered(fleet.put(5))
    fleet.workers["w1"].stop()
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    payloads = fleet.put(20)
    fleet.simulation.sleep(1.5)
    scan = fleet.dynamodb.scan

    def empty_at_first(**params):
        answer = scan(**params)
        is_old = fleet.simulation.now < scanned_at + 1.0 and not params.get("ConsistentRead")
        return {**answer, "Items": []} if is_old else answer

    scanned_at = fleet.simulation.now
    fleet.dynamodb.scan = empty_at_first
    fleet.start("w2", initial_position="LATEST")
    fleet.wait_delivered(payloads)
    assert {event.checkpoint for event in fleet.happened(LeaseCreated)[1:]} == {"TRIM_HORIZON"}
    assert len(fleet.happened(StartingAtLatest)) == 1


def test_a_start_at_latest_begins_before_the_look_that_shows_no_leases(new_fleet):
    """1) w1 has listed the only shard and scanned; 2) it is split; 3) w2 lists the children, and finds no leases; 4) w1
    creates its lease, and is ready; 5) records are put into the children; 6) w2 creates theirs, at LATEST."""
    fleet = new_fleet(shards=1)
    w1_goes_on, w2_goes_on, both_are_late = (fleet.simulation.runtime("main").event() for _ in range(3))
    creating = []

    def hold_up(operation, params):
        if operation == "PutItem":
            key = params["Item"]["leaseKey"]["S"]
            # w1 creates the children too, when it has read their parent: not before w2.
            is_w1 = key in (first, *creating)
            creating.append(key)
            (w1_goes_on if key == first else both_are_late if is_w1 else w2_goes_on).wait()

    (first,) = fleet.open_shards()
    fleet.dynamodb.fault = hold_up
    worker = fleet.start("w1", initial_position="LATEST")
    fleet.wait(lambda: creating == [first], what="w1 about to create the lease")
    fleet.simulation.sleep(3)
    fleet.kinesis.split(STREAM, first)
    fleet.simulation.sleep(3)
    fleet.start("w2", initial_position="LATEST")
    fleet.wait(lambda: len(creating) == 2, what="w2 about to create the first lease of its own")
    fleet.simulation.sleep(3)
    w1_goes_on.set()
    assert worker.wait_ready(30)
    payloads = fleet.put(20)
    fleet.simulation.sleep(3)
    w2_goes_on.set()
    fleet.wait(lambda: len(fleet.rows()) == 3, what="the leases of both children")
    at_first = fleet.rows()
    both_are_late.set()
    fleet.wait_delivered(payloads)
    assert [lease.checkpoint.sequence_number for lease in at_first.values()] == ["LATEST"] * 3


def test_wait_ready_is_false_while_there_are_no_leases_and_while_some_are_unowned(new_fleet):
    fleet = new_fleet(shards=3)
    worker = fleet.start("w1", max_leases=2)
    assert not worker.wait_ready(60)
    fleet.start("w2")
    assert worker.wait_ready(60)


def test_wait_ready_before_start_is_false(new_fleet):
    assert new_fleet().worker("w1").wait_ready(0) is False


def test_a_restart_resumes_behind_the_checkpoint_without_repeating_anything(new_fleet):
    fleet = new_fleet()
    put = fleet.put(10)
    fleet.start("w1")
    fleet.wait_delivered(put)
    fleet.workers["w1"].stop()
    more = fleet.put(10)
    fleet.start("w2")
    fleet.wait_delivered(more)
    fleet.simulation.sleep(10)
    assert fleet.ledger.duplicates == 0
    assert not fleet.happened(DataLost)


def test_resuming_inside_an_aggregated_record_goes_on_with_its_next_sub_record(new_fleet):
    fleet = new_fleet(shards=1)
    payloads = [f"a{number}".encode() for number in range(10)]
    (blob,) = aggregate((f"key{number}", None, data) for number, data in enumerate(payloads))
    fleet.kinesis.put_record(STREAM, blob.data, blob.partition_key)

    fleet.start("w1", checkpoint_mode="manual", max_records=10)
    fleet.wait_delivered(payloads)
    held = next(iter(fleet.rows().values()))
    sequence = fleet.ledger.delivered[0][1].sequence_number
    # As a Java worker that checkpointed (N, 4) and died would have left it.
    fleet.workers["w1"].stop()
    counter = fleet.rows()[held.key].counter
    fleet.dynamodb.update_item(
        TableName="orders-app",
        Key={"leaseKey": {"S": held.key}},
        ConditionExpression="leaseCounter = :c",
        UpdateExpression="SET leaseCounter = :n, #c = :s, checkpointSubSequenceNumber = :four",
        ExpressionAttributeNames={"#c": "checkpoint"},
        ExpressionAttributeValues={
            ":c": {"N": str(counter)},
            ":n": {"N": str(counter + 1)},
            ":s": {"S": sequence},
            ":four": {"N": "4"},
        },
    )
    fleet.start("w2")
    fleet.wait(lambda: len(fleet.ledger.by("w2")) >= 5)
    fleet.simulation.sleep(5)
    assert fleet.ledger.by("w2") == payloads[5:]
    (row,) = fleet.rows().values()
    assert (row.checkpoint.sequence_number, row.checkpoint.sub_sequence_number) == (sequence, 9)
    assert [record.sub_sequence_number for _, record in fleet.ledger.delivered[-5:]] == [5, 6, 7, 8, 9]
    assert all(record.aggregated for _, record in fleet.ledger.delivered)


def test_data_trimmed_past_the_checkpoint_is_reported_once_and_reading_goes_on(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    fleet.workers["w1"].stop()
    lost = fleet.put(5, prefix="lost")
    fleet.simulation.sleep(25 * 3600)
    kept = fleet.put(5, prefix="kept")
    fleet.start("w2")
    fleet.wait_delivered(kept)
    fleet.simulation.sleep(30)
    assert not set(lost) & set(fleet.ledger.payloads)
    (event,) = fleet.happened(DataLost)
    assert event.shard == "shardId-000000000000"
    assert event.resumed_at is not None


def test_a_shard_that_is_gone_with_its_records_is_reported_and_its_children_are_read(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    fleet.workers["w1"].stop()
    parent = fleet.open_shards()[0]
    fleet.put(3, prefix="lost")
    fleet.kinesis.split(STREAM, parent)
    fleet.simulation.sleep(25 * 3600)
    assert parent not in {shard.shard_id for shard in fleet.kinesis.list_shards(STREAM)}
    fresh = fleet.put(10, prefix="fresh")
    fleet.start("w2")
    fleet.wait_delivered(fresh)
    assert {event.shard for event in fleet.happened(DataLost)} == {parent}


def _knows_nothing_younger_than(fleet, worker, youngest, until):
    """One Kinesis host that lags: to this worker's GetShardIterator and ListShards, younger shards are unknown."""
    _, stream = worker._adapters
    opens, lists = stream.open, stream.list_shards

    def open_(shard_id, start):
        if shard_id > youngest and fleet.simulation.now < until:
            raise ShardGone(f"no shard {shard_id}")
        return opens(shard_id, start)

    def list_shards():
        listing = lists()
        if fleet.simulation.now >= until:
            return listing
        return ShardListing(
            tuple(
                replace(shard, ending_sequence_number=None)
                for shard in listing.shards
                if shard.shard_id <= youngest
            )
        )

    stream.open, stream.list_shards = open_, list_shards


def test_a_new_shard_that_a_lagging_kinesis_does_not_know_yet_is_not_taken_for_one_that_is_gone(new_fleet):
    """1) GetRecords names the children of a shard; 2) GetShardIterator and ListShards do not know them for a while;
    3) ended now, everything that is put into them would be lost."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    (parent,) = fleet.open_shards()
    _knows_nothing_younger_than(fleet, worker, parent, until=fleet.simulation.now + 60)
    fleet.kinesis.split(STREAM, parent)
    put = fleet.put(10, "child")
    fleet.simulation.sleep(50)
    assert not fleet.happened(DataLost)
    assert {event.what for event in fleet.happened(FailureStarted)} == {"reading"}
    fleet.wait_delivered(put, 40)
    assert fleet.ledger.duplicates == 0


def test_a_new_shard_that_was_read_is_not_taken_for_gone_by_a_worker_whose_kinesis_does_not_know_it_yet(
    new_fleet,
):
    """1) One worker reads the children of a shard, and checkpoints; 2) it stops, and another one takes their leases;
    3) that one's requests are answered by a host that has not heard of them yet."""
    fleet = new_fleet(shards=1)
    first = fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    (parent,) = fleet.open_shards()
    fleet.kinesis.split(STREAM, parent)
    fleet.wait_delivered(fleet.put(10, "read"))
    fleet.wait(lambda: not any(lease.checkpoint.is_start for lease in fleet.rows().values()))
    first.stop()
    second = fleet.worker("w2")
    _knows_nothing_younger_than(fleet, second, parent, until=fleet.simulation.now + 60)
    second.start()
    put = fleet.put(10, "unread")
    fleet.simulation.sleep(50)
    assert not fleet.happened(DataLost)
    fleet.wait_delivered(put, 40)
    assert fleet.ledger.duplicates == 0


def test_a_row_of_a_stream_that_was_made_anew_is_ended_after_a_time_of_doubt(new_fleet):
    """No word of pykcl's in it says of which stream it is, and its shard has a higher number than all that there are."""
    fleet = new_fleet(shards=1)
    foreign = "shardId-000000000007"
    fleet.start("w0").stop()
    fleet.dynamodb.put_raw(TABLE, {
        "leaseKey": {"S": foreign}, "leaseCounter": {"N": "5"}, "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"},
    })  # fmt: skip
    began = fleet.simulation.now
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.wait(lambda: fleet.happened(DataLost), 900)
    assert fleet.simulation.now - began > 600
    assert [event.shard for event in fleet.happened(DataLost)] == [foreign]
    fleet.wait(lambda: foreign not in fleet.rows() or fleet.rows()[foreign].is_ended)


def test_an_expired_iterator_is_renewed_at_the_last_delivered_record(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    fleet.simulation.freeze("w1", 8)  # shorter than the lease, long enough to be noticed

    expired = []

    def expire(operation, stream, shard):
        from pykcl.local.errors import AwsError

        if operation == "GetRecords" and not expired:
            expired.append(shard)
            raise AwsError("ExpiredIteratorException", "Iterator expired.")

    fleet.kinesis.fault = expire
    more = fleet.put(5)
    fleet.wait_delivered(more)
    assert expired
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "InternalFailure"])
def test_throttling_and_failing_reads_are_tried_again_with_back_off(new_fleet, code):
    fleet = new_fleet(shards=1)
    calls = []

    def fail(operation, stream, shard):
        from pykcl.local.errors import AwsError

        if operation == "GetRecords":
            calls.append(fleet.simulation.now)
            if len(calls) <= 6:
                raise AwsError(code, "not now")

    fleet.kinesis.fault = fail
    put = fleet.put(5)
    fleet.start("w1")
    fleet.wait_delivered(put)
    assert calls[6] - calls[0] > 5, "six failures in a row slow it down"
    assert fleet.ledger.duplicates == 0
