"""Leases in doubt: no heartbeat was answered in time, and none refused, so nobody knows whether another worker has them."""

import random

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl import Consumer
from pykcl.config import Config
from pykcl.errors import TemporaryError
from pykcl.events import (
    Checkpointed,
    LeaseConfirmed,
    LeaseDoubted,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    LossReason,
    ShardEnded,
    ThreadsNotStopped,
)
from pykcl.health.probes import readiness
from pykcl.interfaces import Unknown
from pykcl.model.checkpoint import AT_SHARD_END
from pykcl.model.lease_writes import begin_hand_over, parse_row, to_item
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, throttled

FIRST = "shardId-000000000000"
CONFIG = Config(application=TABLE, stream=STREAM, failover_time=10.0)
WRITES = ("UpdateItem", "PutItem", "DeleteItem")


def _refused(*operations):
    return lambda operation, params: (
        Fault(before=throttled(operation)) if operation in (operations or WRITES) else None
    )


def _refused_until(fleet, when):
    refused = _refused()
    return lambda operation, params: refused(operation, params) if fleet.simulation.now < when else None


def _silent(*operations):
    return lambda operation, params: (
        Fault(before=ReadTimeoutError(endpoint_url="-"), delay=1.0) if operation in operations else None
    )


def _no_heartbeats(operation, params):
    """Whatever has a checkpoint would be written."""
    is_heartbeat = operation == "UpdateItem" and "checkpoint = " not in params["UpdateExpression"]
    return Fault(before=throttled(operation)) if is_heartbeat else None


def _cut_off(fleet, worker):
    """Let the table answer this worker no more, until what is returned is called."""
    table, answers = worker._adapters[0], []
    write, scan = table.write, table.scan

    def cut(call):
        def cut_call(*args, **options):
            if answers:
                return call(*args, **options)
            fleet.simulation.sleep(1.0)
            if call is write:
                return Unknown("cut off")
            raise TemporaryError("cut off")

        return cut_call

    table.write, table.scan = cut(write), cut(scan)
    return lambda: answers.append(True)


def _calls(fleet, method):
    return [call for call in fleet.ledger.calls if call[1] == method]


def _taken(fleet):
    """Return the row as another worker leaves it when it takes the lease."""
    row = fleet.items()[FIRST]
    return row | {"leaseOwner": {"S": "java"}, "leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 1)}}


@pytest.mark.parametrize("outage", ["throttled", "silent", "silent for reads, too"])
def test_an_outage_of_the_table_repeats_nothing_that_nobody_took(new_fleet, outage):
    fleet = new_fleet(shards=2)
    fleet.start("w1", failover_time=10.0, checkpoint_mode="interval", checkpoint_interval=60.0)
    fleet.wait_delivered(fleet.put(50))
    fleet.dynamodb.fault = {
        "throttled": _refused(),
        "silent": _silent(*WRITES),
        "silent for reads, too": _silent(*WRITES, "Scan", "GetItem", "Query"),
    }[outage]
    fleet.put(50)
    fleet.wait(lambda: len(fleet.happened(LeaseDoubted)) == 2, 30, "both leases to be in doubt")
    delivered = len(fleet.ledger.delivered)
    meanwhile = fleet.put(50)
    fleet.simulation.sleep(60.0)
    assert len(fleet.ledger.delivered) == delivered
    status = fleet.workers["w1"].status()
    assert all(lease.in_doubt and lease.lease_valid_for < 0 for lease in status.leases)
    assert any("2 of 2 leases have been in doubt for up to" in why for why in readiness(status).why)
    fleet.dynamodb.fault = None
    fleet.wait_delivered(meanwhile)
    assert fleet.ledger.duplicates == 0
    assert len(_calls(fleet, "initialize")) == 2
    assert not fleet.happened(LeaseLost)
    assert {event.shard for event in fleet.happened(LeaseConfirmed)} == set(fleet.open_shards())
    fleet.wait(lambda: readiness(fleet.workers["w1"].status()).is_good, 30, "the worker to be ready")


@pytest.mark.parametrize("failover_time", [10.0, 30.0])
def test_a_table_that_throttles_nine_requests_of_ten_for_a_minute_repeats_nothing(
    new_fleet, fleet_seed, failover_time
):
    """Row 2: 123, 108 (failover 10 s) and 18 (30 s) records came twice though there was no other worker."""
    fleet, chance = new_fleet(shards=8), random.Random(fleet_seed)
    fleet.start("w1", failover_time=failover_time)
    fleet.wait_delivered(fleet.put(40))
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=throttled(operation)) if chance.random() < 0.9 else None
    )
    put = []
    for _ in range(60):
        put += fleet.put(2)
        fleet.simulation.sleep(1.0)
    fleet.dynamodb.fault = None
    fleet.wait_delivered(put)
    assert fleet.happened(LeaseDoubted)
    assert fleet.ledger.duplicates == 0
    assert len(_calls(fleet, "initialize")) == 8


@pytest.mark.parametrize("seconds", [5, 20, 90, 600])
@pytest.mark.parametrize(
    "outage", [_refused(), _silent(*WRITES), _silent(*WRITES, "Scan", "GetItem", "Query")]
)
def test_an_outage_moves_no_lease_of_a_fleet_whose_workers_all_live(new_fleet, outage, seconds):
    fleet = new_fleet(shards=6)
    for name in ("w1", "w2", "w3"):
        fleet.start(name, failover_time=10.0, checkpoint_mode="interval", checkpoint_interval=600.0)
    fleet.wait(lambda: fleet.load() == dict.fromkeys(("w1", "w2", "w3"), 2), 120, "the balance")
    fleet.simulation.sleep(15.0)
    fleet.wait_delivered(fleet.put(60))
    owners, moves = fleet.owners(), len(fleet.happened(LeaseTaken) + fleet.happened(LeaseLost))
    fleet.dynamodb.fault = outage
    more = fleet.put(60)
    fleet.simulation.sleep(seconds)
    fleet.dynamodb.fault = None
    fleet.wait_delivered(more + fleet.put(60))
    fleet.simulation.sleep(30.0)
    assert fleet.owners() == owners
    assert len(fleet.happened(LeaseTaken) + fleet.happened(LeaseLost)) == moves
    assert fleet.ledger.duplicates == 0


def test_a_worker_that_is_cut_off_delivers_nothing_after_its_deadline_and_hears_of_the_loss(new_fleet):
    fleet = new_fleet(shards=1)
    cut_off = fleet.worker("w1", failover_time=10.0)
    cut_off.start()
    fleet.wait_delivered(fleet.put(20))
    deadline = fleet.simulation.now + CONFIG.belief_time
    answer_again = _cut_off(fleet, cut_off)
    fleet.start("w2", failover_time=10.0)
    more = fleet.put(20)
    fleet.wait(lambda: fleet.owners()[FIRST] == "w2", 60, "w2 to take the lease")
    fleet.wait_delivered(more)
    fleet.simulation.sleep(5.0)
    late = [record for name, record in fleet.ledger.delivered if name == "w1"]
    assert fleet.happened(LeaseDoubted)
    assert not [name for name, event in fleet.events if isinstance(event, LeaseLost)]
    assert fleet.simulation.now > deadline
    answer_again()
    fleet.wait(lambda: fleet.happened(LeaseLost), 30, "w1 to hear of it")
    (lost,) = fleet.happened(LeaseLost)
    assert (lost.reason, lost.new_owner) == (LossReason.TAKEN, "w2")
    assert late == [record for name, record in fleet.ledger.delivered if name == "w1"]
    assert _calls(fleet, "lease_lost") == [("w1", "lease_lost", FIRST)]
    take = next(change for change in fleet.dynamodb.changes if change.after.get("leaseOwner") == {"S": "w2"})
    written = parse_row(take.before).checkpoint
    since = {record.data for record in late if record.position > written}
    again = {record.data for record in late} & set(fleet.ledger.by("w2"))
    assert again
    assert again <= since
    assert fleet.ledger.duplicates == len(again)


def test_a_lease_that_another_worker_had_meanwhile_goes_on_with_a_new_processor(new_fleet):
    fleet, made = new_fleet(shards=1), []

    class Lists(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            made.append([])

        def process_records(self, batch):
            super().process_records(batch)
            made[-1] += [record.data for record in batch]

        def lease_lost(self, loss):
            super().lease_lost(loss)
            made[-1].append("lost")

    cut_off = fleet.start("w1", failover_time=10.0, processor=lambda: Lists("w1", fleet.ledger))
    first = fleet.put(20)
    fleet.wait_delivered(first)
    answer_again = _cut_off(fleet, cut_off)
    other = fleet.start("w2", failover_time=10.0)
    fleet.wait(lambda: fleet.owners()[FIRST] == "w2", 60, "w2 to take the lease")
    fleet.wait_delivered(fleet.put(20))
    answer_again()
    fleet.wait(lambda: fleet.happened(LeaseLost), 30, "w1 to hear of it")
    other.stop()
    fleet.wait(lambda: fleet.owners()[FIRST] == "w1", 60, "w1 to take the lease again")
    last = fleet.put(20)
    fleet.wait_delivered(last)
    assert made == [[*first, "lost"], last]
    assert fleet.ledger.duplicates == 0


def test_a_lease_in_doubt_is_lost_by_a_scan_where_the_table_answers_reads_only(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", failover_time=10.0)
    fleet.wait_delivered(fleet.put(20))
    fleet.dynamodb.fault = _refused()
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the doubt")
    fleet.dynamodb.put_raw(TABLE, _taken(fleet))
    fleet.wait(lambda: fleet.happened(LeaseLost), 30, "the loss")
    (lost,) = fleet.happened(LeaseLost)
    assert (lost.reason, lost.new_owner) == (LossReason.TAKEN, "java")


def test_a_call_that_runs_across_the_deadline_counts_once_the_lease_is_confirmed(new_fleet):
    fleet = new_fleet(shards=1)

    def slow(batch):
        fleet.dynamodb.fault = _no_heartbeats
        fleet.simulation.sleep(20.0)

    fleet.start("w1", failover_time=10.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, slow))
    (payload,) = fleet.put(1)
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 60, "the doubt")
    fleet.wait_delivered([payload])
    fleet.simulation.sleep(20.0)
    assert not fleet.happened(Checkpointed)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(Checkpointed), 30, "the checkpoint")
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize(("mode", "is_taken"), [("ack", False), ("ack", True), ("auto", True)])
def test_acks_and_returns_in_doubt_count_once_it_is_confirmed_and_not_at_all_once_it_is_lost(
    new_fleet, mode, is_taken
):
    fleet, batches = new_fleet(shards=1), []

    def across_the_deadline(batch):
        batches.append(batch)
        if len(batches) == 1:
            fleet.dynamodb.fault = _no_heartbeats
            fleet.simulation.sleep(20.0)

    processor = lambda: RecordingProcessor("w1", fleet.ledger, across_the_deadline)  # noqa: E731
    put = fleet.put(6)
    fleet.start("w1", failover_time=10.0, checkpoint_mode=mode, processor=processor)
    fleet.wait_delivered(put)
    assert fleet.happened(LeaseDoubted)
    if mode == "ack":
        assert all(batch.ack(record) for batch in batches for record in batch)
    fleet.simulation.sleep(20.0)
    assert not fleet.happened(Checkpointed)
    if is_taken:
        fleet.dynamodb.put_raw(TABLE, _taken(fleet))
    fleet.dynamodb.fault = None
    if is_taken:
        fleet.wait(lambda: fleet.happened(LeaseLost), 30, "the loss")
        assert not fleet.happened(Checkpointed)
        assert fleet.rows()[FIRST].checkpoint.is_start
        fleet.wait(lambda: set(fleet.ledger.payloads.values()) == {2}, 60, "all of them once more")
    else:
        fleet.wait(lambda: fleet.happened(Checkpointed), 30, "the checkpoint")
        assert fleet.rows()[FIRST].checkpoint == fleet.ledger.delivered[-1][1].position
        assert fleet.ledger.payloads == dict.fromkeys(put, 1)


def test_a_checkpoint_of_the_application_waits_in_doubt_and_is_written(new_fleet):
    fleet = new_fleet(shards=1)
    seen = []

    def by_hand(batch):
        fleet.dynamodb.fault = _refused()
        fleet.simulation.sleep(15.0)
        seen.append(batch.checkpointer.is_lost)
        began = fleet.simulation.now
        batch.checkpointer.checkpoint()
        seen.append(fleet.simulation.now - began)

    fleet.start(
        "w1",
        failover_time=10.0,
        checkpoint_mode="manual",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, by_hand),
    )
    payloads = fleet.put(1)
    fleet.wait(lambda: seen, 60, "the call")
    fleet.simulation.sleep(30.0)
    assert seen == [False]
    fleet.dynamodb.fault = None
    fleet.wait_delivered(payloads)
    assert seen[1] > 20
    assert fleet.rows()[FIRST].checkpoint.sequence_number == fleet.ledger.delivered[0][1].sequence_number
    assert fleet.ledger.duplicates == 0


def test_a_heartbeat_of_unknown_outcome_is_no_proof_until_one_is_applied(new_fleet):
    """1) A heartbeat lands, and its answer is lost; 2) the next one, after the deadline, is refused, as the row is one
    further already; 3) only the one after that proves that the lease is this worker's now."""
    fleet = new_fleet(shards=1)
    fleet.start("w1", failover_time=10.0)
    fleet.wait_delivered(fleet.put(5))
    landed = []

    def lose_answers(operation, params):
        if operation != "UpdateItem":
            return None
        lost = ReadTimeoutError(endpoint_url="-")
        if not landed:
            landed.append(fleet.simulation.now)
            return Fault(after=lost, delay=1.0)
        return Fault(before=lost, delay=1.0)

    fleet.dynamodb.fault = lose_answers
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the doubt")
    fleet.simulation.sleep(CONFIG.belief_time)
    counter = fleet.rows()[FIRST].counter
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(LeaseConfirmed), 30, "the end of the doubt")
    assert fleet.rows()[FIRST].counter >= counter + 1
    assert not fleet.happened(LeaseLost)
    fleet.wait_delivered(fleet.put(5))
    assert fleet.ledger.duplicates == 0


def test_a_worker_that_stood_still_goes_on_where_nobody_took_its_leases(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1", failover_time=10.0, checkpoint_mode="interval", checkpoint_interval=60.0)
    fleet.wait_delivered(fleet.put(50))
    fleet.simulation.freeze("w1", 60.0)
    more = fleet.put(50)
    fleet.wait_delivered(more)
    assert fleet.ledger.duplicates == 0
    assert len(_calls(fleet, "initialize")) == 2
    assert not fleet.happened(LeaseLost)


def test_a_stop_ends_the_doubt_within_its_grace(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", failover_time=10.0, shutdown_grace=20.0)
    fleet.wait_delivered(fleet.put(20))
    fleet.dynamodb.fault = _refused()
    fleet.wait(lambda: len(fleet.happened(LeaseDoubted)) == 2, 30, "the doubt")
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began <= 20.0
    assert not fleet.happened(ThreadsNotStopped)
    assert [event.reason for event in fleet.happened(LeaseLost)] == [LossReason.EXPIRED] * 2
    assert len(_calls(fleet, "lease_lost")) == 2


def test_a_stop_in_doubt_releases_the_lease_if_that_is_confirmed_in_time(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", failover_time=10.0, shutdown_grace=30.0)
    fleet.wait_delivered(fleet.put(20))
    fleet.dynamodb.fault = _refused()
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the doubt")
    fleet.dynamodb.fault = _refused_until(fleet, fleet.simulation.now + 8.0)
    worker.stop()
    assert fleet.owners() == {FIRST: None}
    assert not fleet.happened(LeaseLost)
    assert len(_calls(fleet, "shutdown_requested")) == 1


def test_the_end_of_a_shard_waits_in_doubt(new_fleet):
    fleet = new_fleet(shards=1)

    class Ending(RecordingProcessor):
        def shard_ended(self, end):
            super().shard_ended(end)
            fleet.dynamodb.fault = _refused()

    fleet.start("w1", failover_time=10.0, processor=lambda: Ending("w1", fleet.ledger))
    fleet.wait_delivered(fleet.put(5))
    fleet.kinesis.split(STREAM, FIRST)
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 60, "the doubt")
    fleet.simulation.sleep(20.0)
    assert not fleet.happened(ShardEnded)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(ShardEnded), 60, "the end")
    assert len(_calls(fleet, "shard_ended")) == 1


def test_a_lease_that_stays_in_doubt_delegates_no_read(new_fleet):
    """Nothing is read ahead: neither by its own thread nor by the one that idle shards share."""
    fleet = new_fleet(shards=2)
    fleet.start("w1", failover_time=10.0)
    fleet.wait_delivered(fleet.put(10))
    fleet.dynamodb.fault = _refused()
    fleet.wait(lambda: len(fleet.happened(LeaseDoubted)) == 2, 30, "the doubt")
    fleet.simulation.sleep(2.0)
    reads = []
    get_records = fleet.kinesis.get_records

    def counted(*args, **options):
        reads.append(fleet.simulation.now)
        return get_records(*args, **options)

    fleet.kinesis.get_records = counted
    fleet.simulation.sleep(20.0)
    assert not reads


def test_a_program_is_handed_no_queued_record_in_doubt_and_goes_on_behind_it(new_fleet):
    fleet = new_fleet(shards=1)
    put, seen = fleet.put(6), []
    with fleet.consumer(Consumer, "w1", failover_time=10.0, idle_timeout=30) as consumer:
        for record in consumer:
            seen.append(
                (record.data, bool(fleet.happened(LeaseDoubted)), bool(fleet.happened(LeaseConfirmed)))
            )
            if len(seen) == 3:
                fleet.dynamodb.fault = _refused()
                fleet.simulation.sleep(15.0)
                fleet.dynamodb.fault = _refused_until(fleet, fleet.simulation.now + 20.0)
    assert [data for data, *_ in seen] == put
    assert [when for _, *when in seen] == [[False, False]] * 3 + [[True, True]] * 3
    assert not fleet.happened(LeaseLost)


@pytest.mark.parametrize("lives_on", [True, False])
def test_a_lease_in_doubt_is_lost_to_another_process_of_the_same_worker_id(new_fleet, lives_on):
    """Its take leaves the row as a heartbeat without an answer would have, but for the token of the process."""
    fleet = new_fleet(shards=1)
    options = {"worker_id": "w", "failover_time": 10.0}
    fleet.start("w1", **options)
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(3.0)
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=throttled(operation)) if fleet.simulation.current_group == "w1" else None
    )
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the doubt")
    delivered, counter = fleet.ledger.by("w1"), fleet.rows()[FIRST].counter
    fleet.start("w2", **options)
    fleet.wait(lambda: fleet.rows()[FIRST].counter > counter, 60, "the other process to take the lease")
    if not lives_on:
        fleet.simulation.kill("w2")
        assert fleet.rows()[FIRST].counter == counter + 1
    more = fleet.put(20)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(LeaseLost), 30, "the loss")
    assert [event.reason for event in fleet.happened(LeaseLost)] == [LossReason.IDENTIFIER_IN_USE]
    assert not fleet.happened(LeaseConfirmed)
    assert fleet.ledger.by("w1") == delivered
    fleet.wait_delivered(more)
    assert fleet.ledger.duplicates == 0


def test_a_lease_in_doubt_that_a_leader_asks_for_is_handed_over_once_it_is_confirmed(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", failover_time=10.0, checkpoint_mode="interval", checkpoint_interval=600.0)
    fleet.wait_delivered(fleet.put(20))
    fleet.dynamodb.fault = _refused()
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the doubt")
    row = fleet.rows()[FIRST]
    fleet.dynamodb.put_raw(TABLE, to_item(begin_hand_over(row, "java").after))
    fleet.simulation.sleep(20.0)
    assert not fleet.happened(LeaseLost)
    assert not _calls(fleet, "shutdown_requested")
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(LeaseReleased), 30, "the hand-over")
    assert not fleet.happened(LeaseLost)
    assert len(fleet.happened(LeaseConfirmed)) == 1
    assert len(_calls(fleet, "shutdown_requested")) == 1
    after = fleet.rows()[FIRST]
    assert (after.owner, after.checkpoint_owner) == ("java", None)
    assert row.checkpoint.is_start
    assert after.checkpoint == fleet.ledger.delivered[-1][1].position
    assert fleet.ledger.duplicates == 0


def _ended(fleet, backup):
    fleet.dynamodb.put_raw(TABLE, _taken(fleet) | {"checkpoint": {"S": AT_SHARD_END.sequence_number}})


def _deleted(fleet, backup):
    del fleet.dynamodb.tables[TABLE].rows[FIRST]


def _restored(fleet, backup):
    fleet.dynamodb.put_raw(TABLE, backup)


def _restored_as_it_was_a_heartbeat_ago(fleet, backup):
    row = fleet.items()[FIRST]
    counter = str(int(row["leaseCounter"]["N"]) - 1)
    fleet.dynamodb.put_raw(TABLE, row | {"leaseCounter": {"N": counter}})


@pytest.mark.parametrize(
    ("change", "reason", "again"),
    [
        (_ended, LossReason.TAKEN, 0),
        (_deleted, LossReason.ROW_DELETED, 0),
        (_restored, LossReason.ROW_WENT_BACK, 10),
        (_restored_as_it_was_a_heartbeat_ago, LossReason.ROW_WENT_BACK, 0),
    ],
)
def test_a_lease_in_doubt_is_lost_where_its_row_was_ended_deleted_or_restored(
    new_fleet, change, reason, again
):
    """Then the row is what counts: nothing is read of a shard that has ended, and a backup is gone on from."""
    fleet = new_fleet(shards=1)
    fleet.start("w1", failover_time=10.0)
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(6.0)
    backup = fleet.items()[FIRST]
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(6.0)
    fleet.dynamodb.fault = _refused()
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the doubt")
    more, delivered = fleet.put(10), len(fleet.ledger.delivered)
    change(fleet, backup)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(LeaseLost), 30, "the loss")
    assert fleet.happened(LeaseLost)[0].reason is reason
    assert not fleet.happened(LeaseConfirmed)
    assert len(fleet.ledger.delivered) == delivered
    if change is _ended:
        fleet.simulation.sleep(60.0)
        assert len(fleet.ledger.delivered) == delivered
    else:
        fleet.wait_delivered(more)
    assert fleet.ledger.duplicates == again
