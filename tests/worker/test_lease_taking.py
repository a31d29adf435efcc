"""Leases that are taken, left alone or left to others."""

from botocore.exceptions import ReadTimeoutError

from pykcl.events import (
    LeaseLost,
    LeaseTaken,
    RetriesExhausted,
)
from pykcl.processor import Batch
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, denied

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


PARENT = "shardId-000000000000"


def test_a_lease_given_up_is_left_alone_also_when_its_release_got_no_answer(new_fleet):
    fleet = new_fleet(shards=1)

    def answer_releases_too_late(operation, params):
        released = (
            operation == "UpdateItem" and "leaseOwner" in params["UpdateExpression"].partition(" REMOVE ")[2]
        )
        return Fault(after=ReadTimeoutError(endpoint_url="-"), delay=12.0) if released else None

    def always_raise(batch):
        raise ValueError

    fleet.dynamodb.fault = answer_releases_too_late
    fleet.put(1)
    fleet.start(
        "w1", retry_timeout=20.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, always_raise)
    )
    fleet.wait(lambda: fleet.happened(RetriesExhausted), 60, "the lease to be given up")
    given_up = fleet.simulation.now
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 2, 60, "the lease to be taken again")
    assert fleet.simulation.now - given_up >= 20


def test_a_lease_that_cannot_be_taken_is_not_asked_for_in_a_spin(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 2)
    asked = []

    def forbid(operation, params):
        if operation != "UpdateItem":
            return None
        asked.append(fleet.simulation.now)
        return Fault(before=denied(operation))

    fleet.dynamodb.fault = forbid
    for row in fleet.items().values():
        taken = str(int(row["leaseCounter"]["N"]) + 1)
        fleet.dynamodb.put_raw(TABLE, {**row, "leaseOwner": {"S": "dead"}, "leaseCounter": {"N": taken}})
    fleet.wait(lambda: len(fleet.happened(LeaseLost)) == 2, 30, "both leases to be another's")
    fleet.simulation.sleep(15.0)
    asked.clear()
    fleet.simulation.sleep(20.0)
    assert 20 <= len(asked) <= 50
    fleet.dynamodb.fault = None
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 4, 5, "both leases to be taken again")


def test_rows_that_a_worker_creates_and_takes_carry_every_key_of_the_private_map(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", initial_position="LATEST")
    fleet.wait(lambda: fleet.owners() == {FIRST: "w1"})
    created = next(change.after for change in fleet.dynamodb.changes if change.operation == "PutItem")
    for item in (created, fleet.items()[FIRST]):
        note = item["pykcl"]["M"]
        of_worker = {"owner", "version", "session", "failoverMillis"}
        assert note.keys() == {"streamArn", "streamCreatedAt", "latestFrom"} | of_worker
        assert note["owner"] == {"S": "w1"}
        assert note["session"] == created["pykcl"]["M"]["session"]
    assert worker.failure is None


def test_a_lease_its_worker_cannot_process_reaches_another_worker(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w2")
    poisoned: list[str] = []

    def fail(batch: Batch) -> None:
        if batch.shard_id in poisoned:
            raise ValueError("not on this machine")

    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, fail), retry_timeout=60.0)
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2] and None not in fleet.load(), what="balance")
    fleet.simulation.sleep(20)
    poisoned.append(next(key for key, owner in fleet.owners().items() if owner == "w1"))
    fleet.wait_delivered(fleet.put(40), 300)
    assert len(fleet.happened(RetriesExhausted)) >= 1


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
