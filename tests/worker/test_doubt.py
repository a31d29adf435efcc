"""Leases in doubt: no heartbeat was answered in time, and none refused, so nobody knows whether another worker has them."""

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
    LeaseTaken,
    LossReason,
    ShardEnded,
    ThreadsNotStopped,
)
from pykcl.health.probes import readiness
from pykcl.interfaces import Unknown
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
    row = dict(fleet.items()[FIRST])
    row["leaseOwner"], row["leaseCounter"] = {"S": "java"}, {"N": str(int(row["leaseCounter"]["N"]) + 1)}
    fleet.dynamodb.put_raw(TABLE, row)
    fleet.wait(lambda: fleet.happened(LeaseLost), 30, "the loss")
    (lost,) = fleet.happened(LeaseLost)
    assert (lost.reason, lost.new_owner) == (LossReason.TAKEN, "java")


def test_a_call_that_runs_across_the_deadline_counts_once_the_lease_is_confirmed(new_fleet):
    fleet = new_fleet(shards=1)

    def no_heartbeats(operation, params):
        # Whatever has a checkpoint would be written.
        is_heartbeat = operation == "UpdateItem" and "checkpoint = " not in params["UpdateExpression"]
        return Fault(before=throttled(operation)) if is_heartbeat else None

    def slow(batch):
        fleet.dynamodb.fault = no_heartbeats
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
