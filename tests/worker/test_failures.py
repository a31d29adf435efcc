"""Set-up errors and failures of a lease: what stops the worker, what hands the lease back, what is reported and until when."""

import json

import pytest

from pykcl.errors import ProcessorFailed, SetupError
from pykcl.events import (
    FailureResolved,
    FailureStarted,
    LeaseReleased,
    LeaseTaken,
    ProcessorRaised,
    RetriesExhausted,
)
from pykcl.local.errors import AwsError
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, throttled

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def test_a_refused_permission_that_comes_back_stops_no_worker_that_has_worked(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(6))
    denied = []

    def fault(operation, params):
        if len(denied) < 6:
            denied.append(operation)
            return Fault(before=aws_error("AccessDeniedException", "no", operation))
        return None

    fleet.dynamodb.fault = fault
    fleet.wait_delivered(fleet.put(6))
    fleet.simulation.sleep(30)
    assert worker.failure is None
    assert len(denied) == 6
    assert fleet.happened(FailureStarted)


def test_a_processor_whose_lease_is_handed_back_hears_of_it(new_fleet):
    fleet = new_fleet(shards=1)

    def fail(batch):
        raise ValueError

    fleet.put(3)
    fleet.start("w1", retry_timeout=10.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, fail))
    fleet.wait(lambda: ("w1", "shutdown_requested", "shardId-000000000000") in fleet.ledger.calls)


def test_a_refused_permission_at_the_end_of_a_shard_is_waited_out_with_the_lease_held(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    parent = fleet.open_shards()[0]
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=aws_error("AccessDeniedException", "no", operation)) if operation == "PutItem" else None
    )
    fleet.kinesis.split(STREAM, parent)
    fleet.simulation.sleep(60)
    assert fleet.ledger.calls.count(("w1", "shard_ended", parent)) == 1
    assert fleet.owners()[parent] == "w1"
    fleet.dynamodb.fault = None
    fleet.wait_delivered(fleet.put(6))


def test_a_lease_whose_parents_may_not_be_read_is_handed_back_and_left_alone(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", retry_timeout=120.0, cleanup_interval=0.0)
    fleet.wait_delivered(fleet.put(3))
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=aws_error("AccessDeniedException", "no GetItem", operation))
        if operation == "GetItem" and params["Key"]["leaseKey"]["S"] == FIRST
        else None
    )
    fleet.kinesis.split(STREAM, FIRST)
    children = fleet.put(10)
    fleet.simulation.sleep(60)
    taken = [event.shard for event in fleet.happened(LeaseTaken)]
    assert sorted(taken) == sorted({FIRST, *fleet.open_shards()}), "each lease once"
    back = fleet.happened(RetriesExhausted)
    assert {event.shard for event in back} == set(fleet.open_shards())
    assert all("not permitted (AccessDeniedException)" in event.cause for event in back)
    assert not fleet.happened(FailureResolved), "no trouble is called over because its lease was let go"
    fleet.dynamodb.fault = None
    fleet.wait_delivered(children, 180)
    assert fleet.workers["w1"].failure is None


def test_a_shard_called_gone_while_shards_may_not_be_listed_is_handed_back_and_left_alone(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", shard_sync_interval=3600.0)
    fleet.wait_delivered(fleet.put(3))

    def fault(operation, stream, shard):
        if operation in ("GetRecords", "GetShardIterator"):
            raise AwsError("ResourceNotFoundException", "gone, it says")
        if operation == "ListShards":
            raise SetupError("ListShards is not allowed")

    fleet.kinesis.fault = fault
    put = fleet.put(3)
    fleet.simulation.sleep(60)
    assert len(fleet.happened(LeaseTaken)) == 1
    (back,) = fleet.happened(RetriesExhausted)
    assert back.cause == "ListShards is not allowed"
    assert back.left_alone_for == worker.config.retry_timeout
    fleet.kinesis.fault = None
    fleet.wait_delivered(put, 400)


def test_a_lease_handed_back_for_its_processor_says_so(new_fleet):
    fleet = new_fleet(shards=1)

    def fail(batch):
        raise ValueError

    fleet.put(3)
    fleet.start("w1", retry_timeout=5.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, fail))
    fleet.wait(lambda: fleet.happened(RetriesExhausted))
    assert "processor kept failing" in fleet.happened(RetriesExhausted)[0].cause


def test_troubles_name_their_shard_and_end_only_with_it(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(6))

    def fault(operation, stream, shard):
        if operation == "GetRecords" and shard == FIRST:
            raise AwsError("InternalFailure", "not now")
        if operation == "ListShards":
            raise AwsError("InternalFailure", "not now")

    fleet.kinesis.fault = fault
    fleet.wait(lambda: len(fleet.happened(FailureStarted)) == 2, 90, "both troubles")
    began = {event.shard: event.what for event in fleet.happened(FailureStarted)}
    assert began == {FIRST: "reading", None: "listing shards"}
    fleet.workers["w1"].stop()
    assert [(event.shard, event.what) for event in fleet.happened(FailureResolved)] == [(FIRST, "reading")]


def test_the_trouble_of_taking_a_lease_ends_when_somebody_else_has_taken_it(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w2")
    fleet.wait_delivered(fleet.put(3))
    fleet.start("w1")
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=throttled(operation))
        if operation == "UpdateItem" and fleet.simulation.current_group == "w1"
        else None
    )
    fleet.simulation.kill("w2")
    fleet.wait(lambda: fleet.happened(FailureStarted), 60, "trouble")
    assert [(event.what, event.shard) for event in fleet.happened(FailureStarted)] == [("taking", FIRST)]
    fleet.simulation.sleep(20)
    assert not fleet.happened(FailureResolved), "while nobody has it, it is still in trouble"
    fleet.start("w3")
    fleet.wait(lambda: fleet.happened(FailureResolved), 60, "the end of the trouble")
    assert fleet.owners() == {FIRST: "w3"}
    assert len(fleet.happened(FailureStarted)) == 1


def test_where_a_processor_raised_is_its_own_line_and_not_the_one_of_a_library(new_fleet):
    fleet = new_fleet(shards=1)

    def parse(batch):
        json.loads(b"{")

    fleet.put(3)
    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, parse))
    fleet.wait(lambda: fleet.happened(ProcessorRaised))
    line = parse.__code__.co_firstlineno + 1
    assert fleet.happened(ProcessorRaised)[0].where == f"test_failures.py:{line}"


def test_where_a_processor_raised_is_its_own_line_when_pykcl_refused_what_it_asked_for(new_fleet):
    fleet = new_fleet(shards=1)

    def refused(batch):
        batch.checkpointer.checkpoint("LATEST")

    fleet.put(3)
    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, refused))
    fleet.wait(lambda: fleet.happened(ProcessorRaised))
    line = refused.__code__.co_firstlineno + 1
    assert fleet.happened(ProcessorRaised)[0].where == f"test_failures.py:{line}"


@pytest.mark.parametrize("method", ["initialize", "process_records"])
def test_raise_releases_the_lease_and_says_nothing_of_handing_it_back(new_fleet, method):
    fleet = new_fleet(shards=1)

    class Failing(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            if method == "initialize":
                raise ValueError

        def process_records(self, batch):
            raise ValueError

    fleet.put(3)
    worker = fleet.worker("w1", on_error="raise", processor=lambda: Failing("w1", fleet.ledger))
    with pytest.raises(ProcessorFailed):
        worker.run()
    assert not fleet.happened(RetriesExhausted)
    assert len(fleet.happened(LeaseReleased)) == 1
    assert set(fleet.owners().values()) == {None}
