"""Ways in which a fleet once lost records or left leases unowned, each as a test of the unmodified worker."""

import dataclasses
from itertools import pairwise
from types import SimpleNamespace

import pytest

from pykcl.errors import ShardGone
from pykcl.events import DataLost, LeaseDeleted, LeaseHandedBack
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.lease_view import LeaseView
from pykcl.processor import Batch
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.faults import denied, throttled, timed_out
from pykcl.worker.shard_sync import LeaseCleaner

PARENT = "shardId-000000000000"
OLDEST = "shardId-000000000001"
"""In a deep merge: split into 2 and 3, 2 into 4 and 5, and 4 merged with 0 into 6."""


def _deep_merge(fleet):
    put = fleet.put(10)
    for shard in ("1", "2"):
        fleet.kinesis.split(STREAM, f"shardId-{shard:0>12}")
        put += fleet.put(10)
    fleet.kinesis.merge(STREAM, PARENT, "shardId-000000000004")
    return put + fleet.put(10)


def _check_order(fleet):
    """Every delivery of a shard comes after the last one of each of its parents."""
    first, last = {}, {}
    for number, (_, record) in enumerate(fleet.ledger.delivered):
        first.setdefault(record.shard_id, number)
        last[record.shard_id] = number
    for shard in fleet.kinesis.list_shards(STREAM, operation=None):
        for parent in shard.parents:
            if shard.shard_id in first and parent in last:
                assert last[parent] < first[shard.shard_id], f"{shard.shard_id} before the end of {parent}"


def test_a_merge_waits_for_the_ancestors_of_its_other_parent(new_fleet):
    fleet = new_fleet(shards=2)
    put = _deep_merge(fleet)

    def slowly(batch: Batch) -> None:
        if batch.shard_id == OLDEST:
            fleet.simulation.sleep(60)

    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, slowly))
    fleet.wait_delivered(put, 600)
    _check_order(fleet)


def test_ancestors_whose_lease_could_not_be_created_yet_are_read_all_the_same(new_fleet):
    fleet = new_fleet(shards=2)
    put = _deep_merge(fleet)
    began = fleet.simulation.now

    def refuse(operation, params):
        late = operation == "PutItem" and params["Item"]["leaseKey"]["S"] == OLDEST
        return Fault(before=throttled(operation)) if late and fleet.simulation.now < began + 20 else None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.simulation.sleep(15)
    assert fleet.ledger.delivered == [], "nobody reads before all leases of the start exist"
    fleet.wait_delivered(put, 300)
    _check_order(fleet)


def test_a_lease_its_worker_cannot_process_reaches_another_worker(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w2")
    poisoned: list[str] = []

    def fail(batch: Batch) -> None:
        if batch.shard_id in poisoned:
            raise ValueError("not on this machine")

    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, fail), retry_for=60.0)
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2] and None not in fleet.load(), what="balance")
    fleet.simulation.sleep(20)
    poisoned.append(next(key for key, owner in fleet.owners().items() if owner == "w1"))
    fleet.wait_delivered(fleet.put(40), 300)
    assert len(fleet.happened(LeaseHandedBack)) >= 1


def test_a_worker_that_may_hold_only_one_lease_leaves_none_unowned(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1", max_leases=1)
    fleet.start("w2", max_leases=3)
    fleet.wait_delivered(fleet.put(40), 300)
    assert fleet.load() == {"w1": 1, "w2": 3}


def test_leases_that_wait_for_a_parent_leave_room_for_the_parent(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", cleanup_interval=5.0)
    fleet.wait_delivered(fleet.put(5))
    late = dict(fleet.items()[PARENT])
    fleet.kinesis.split(STREAM, PARENT)
    fleet.wait_delivered(fleet.put(10))
    fleet.wait(lambda: PARENT not in fleet.rows())
    late.pop("leaseOwner", None)
    late |= {"leaseCounter": {"N": "0"}, "checkpoint": {"S": "TRIM_HORIZON"}}
    fleet.dynamodb.put_raw(TABLE, late)
    fleet.wait(lambda: PARENT not in fleet.rows() or fleet.rows()[PARENT].is_ended, 20, "the parent's end")


def test_a_latest_application_that_was_away_for_longer_than_retention_reads_what_is_retained(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", start="LATEST").wait_ready(30)
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    fleet.workers["w1"].stop()
    fleet.kinesis.split(STREAM, PARENT)
    fleet.simulation.sleep(10)
    for shard in fleet.open_shards():
        fleet.kinesis.split(STREAM, shard)
    fleet.simulation.sleep(25 * 3600)
    retained = fleet.put(20)
    closed = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, closed)
    retained += fleet.put(20)
    fleet.simulation.sleep(60)
    fleet.start("w2", start="LATEST")
    fleet.wait_delivered(retained)


def test_the_lease_of_an_expired_shard_is_not_deleted_before_its_children_have_theirs(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", start="LATEST").wait_ready(30)
    fleet.wait_delivered(fleet.put(3))
    fleet.simulation.sleep(5)
    fleet.workers["w1"].stop()
    fleet.kinesis.split(STREAM, PARENT)
    fleet.simulation.sleep(25 * 3600)
    retained = fleet.put(10)

    class NotForTheParent(RecordingProcessor):
        def initialize(self, init):
            if init.shard_id == PARENT:
                raise ValueError
            super().initialize(init)

    # Its reader never gets as far as asking Kinesis for the shard: only the cleaner could act.
    def make():
        return NotForTheParent("w2", fleet.ledger)

    fleet.start("w2", start="LATEST", processor=make, retry_for=3600.0, cleanup_interval=5.0)
    fleet.simulation.sleep(120)
    assert PARENT in fleet.rows()
    fleet.simulation.kill("w2")
    fleet.start("w3", start="LATEST", cleanup_interval=5.0)
    fleet.wait_delivered(retained)


@pytest.mark.parametrize("operation", ["Scan", "PutItem"])
def test_a_failure_after_a_listing_delays_the_start_only_as_long_as_it_lasts(new_fleet, operation):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    began, failed = fleet.simulation.now, []

    def refuse(called, params):
        # The first scan is the one that looks for leases of another stream.
        if called != operation or fleet.simulation.now > began + 8:
            return None
        failed.append(called)
        return Fault(before=throttled(called)) if called != "Scan" or len(failed) > 1 else None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait_delivered(put, 30)
    assert len(failed) > 1


def test_a_listing_that_fails_is_repeated_ever_more_slowly(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    asked = []

    def refuse(operation, stream, shard):
        if operation == "ListShards":
            asked.append(fleet.simulation.now)
            raise AwsError("LimitExceededException", "too many")

    fleet.kinesis.fault = refuse
    fleet.simulation.sleep(400)
    assert 5 <= len(asked) <= 40
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert len({round(gap, 3) for gap in gaps[-5:]}) > 1, "with jitter"
    fleet.kinesis.fault = None
    fleet.kinesis.split(STREAM, PARENT)
    fleet.wait_delivered(fleet.put(10), 60)


GONE = "shardId-000000000099"


def _put_gone(fleet, counter=5, **more):
    fleet.dynamodb.put_raw(TABLE, {
        "leaseKey": {"S": GONE}, "leaseCounter": {"N": str(counter)}, "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "7"}, "checkpointSubSequenceNumber": {"N": "0"}, **more,
    })  # fmt: skip


def _work_beside_a_lease_of_a_shard_that_is_gone(fleet):
    """w1 has all the leases it may have, so that only its cleaner comes to the one of which a record was read once."""
    fleet.start("w1", max_leases=1, cleanup_interval=5.0).wait_ready(30)
    _put_gone(fleet)


def _told_lost(fleet):
    return [(event.shard, event.checkpoint, event.resumed_at) for event in fleet.happened(DataLost)]


def test_a_loss_is_told_of_when_nobody_learns_that_the_last_sign_of_it_was_deleted(new_fleet):
    """1) The row of a gone shard is deleted; 2) the answer is lost, and so is every other for as long as a write is
    tried, or the process stood still for so long; 3) no worker finds the row again, and nobody spoke of the loss.
    """
    fleet, asked = new_fleet(shards=1), []

    def lose(operation, params):
        if operation != "DeleteItem":
            return None
        asked.append(fleet.simulation.now)
        return Fault(after=timed_out()) if len(asked) == 1 else Fault(before=timed_out(), delay=2.0)

    fleet.dynamodb.fault = lose
    _work_beside_a_lease_of_a_shard_that_is_gone(fleet)
    fleet.wait(lambda: asked and GONE not in fleet.items(), 60)
    fleet.simulation.sleep(60)
    assert not fleet.happened(LeaseDeleted)
    assert _told_lost(fleet) == [(GONE, "7:0", None)]


def test_a_loss_is_told_of_by_a_worker_that_dies_while_it_deletes_the_last_sign_of_it(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.dynamodb.fault = lambda called, params: Fault(late_answer=2.0) if called == "DeleteItem" else None
    _work_beside_a_lease_of_a_shard_that_is_gone(fleet)
    fleet.wait(lambda: GONE not in fleet.items(), 60)
    fleet.simulation.kill("w1")
    assert _told_lost(fleet) == [(GONE, "7:0", None)]


def test_a_loss_is_told_of_once_by_a_worker_that_may_not_delete_the_lease(new_fleet):
    fleet, refused = new_fleet(shards=1), []

    def refuse(operation, params):
        if operation != "DeleteItem":
            return None
        refused.append(fleet.simulation.now)
        return Fault(before=denied(operation))

    fleet.dynamodb.fault = refuse
    _work_beside_a_lease_of_a_shard_that_is_gone(fleet)
    fleet.wait(lambda: len(refused) > 2, 120)
    assert _told_lost(fleet) == [(GONE, "7:0", None)]


@pytest.mark.parametrize("change", [
    {}, {"counter": 6}, {"leaseOwner": {"S": "w2"}}, {"checkpoint": {"S": "SHARD_END"}}, {"checkpoint": {"S": "8"}}, None,
])  # fmt: skip
def test_a_loss_is_not_told_of_by_a_row_that_has_changed_since_it_was_seen(new_fleet, change):
    """Its reader tells by itself, or ended the shard without a loss."""

    def forgets(shard_id, start):
        raise ShardGone("no such shard")

    fleet = new_fleet(shards=1)
    fleet.start("w1", max_leases=1, cleanup_interval=0.0).wait_ready(30)
    context = fleet.worker("w2", cleanup_interval=1.0)._connect()
    cleaner = LeaseCleaner(
        dataclasses.replace(context, stream=SimpleNamespace(open=forgets)), stopping=lambda: False
    )
    cleaner.listed(ShardListing((Shard(PARENT),)))
    if change is not None:
        _put_gone(fleet, **change)
    fleet.simulation.sleep(2)
    seen = [Lease(GONE, Checkpoint("7"), counter=5), Lease(PARENT, Checkpoint("1"))]
    cleaner.clean(LeaseView().observe(seen, 0.0))
    assert _told_lost(fleet) == ([(GONE, "7:0", None)] if change == {} else [])
    assert (GONE in fleet.items()) is bool(change)
