"""Weak places that lost nothing but time, or told the wrong thing; each was reproduced here before it was mended."""

import dataclasses
import json

import pytest

from pykcl.errors import CheckpointRefused, ProcessorFailed, SetupError, StopTimedOut
from pykcl.event_dispatch import log_event
from pykcl.events import (
    LeaseHandedBack,
    LeaseReleased,
    LeaseTaken,
    ProcessorRaised,
    RowRefused,
    ThreadsLeft,
    TroubleBegan,
    TroubleEnded,
)
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import MAX_PENDING_STATE
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.lease_view import LeaseView
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.faults import throttled
from pykcl.testing.memory.values import aws_error
from pykcl.worker.shard_sync import MAX_QUESTIONS, LeaseCleaner

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def _no_listing(fleet, group=None):
    """A fault: shards cannot be listed, by nobody or not by this worker."""

    def fault(operation, stream, shard):
        if operation == "ListShards" and group in (None, fleet.simulation.current_group):
            raise AwsError("LimitExceededException", "too many")

    return fault


# -- starting and readiness ------------------------------------------------------------------------------------


def test_a_worker_whose_start_was_broken_off_takes_over_though_it_cannot_list_the_shards(new_fleet):
    fleet = new_fleet(shards=2)

    def refuse(operation, params):
        mine = fleet.simulation.current_group == "w1"
        if mine and operation == "PutItem" and params["Item"]["leaseKey"]["S"] == SECOND:
            fleet.kinesis.fault = _no_listing(fleet, "w1")
            return Fault(before=throttled(operation))
        return None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait(lambda: fleet.kinesis.fault is not None, what="the broken start")
    fleet.start("w2")
    fleet.wait(lambda: set(fleet.owners()) == {FIRST, SECOND} and None not in fleet.owners().values())
    fleet.simulation.kill("w2")
    fleet.wait_delivered(fleet.put(10), 90)
    assert set(fleet.owners().values()) == {"w1"}


def test_a_scan_that_fails_after_all_leases_of_a_start_were_created_does_not_wait_for_a_listing(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    began, created, failed = fleet.simulation.now, [], []

    def refuse(operation, params):
        if operation == "PutItem":
            created.append(operation)
        if operation == "Scan" and len(created) == 2 and fleet.simulation.now < began + 8:
            failed.append(operation)
            fleet.kinesis.fault = _no_listing(fleet)
            return Fault(before=throttled(operation))
        return None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait_delivered(put, 60)
    assert failed


def test_a_child_of_a_row_that_cannot_be_read_does_not_keep_a_worker_from_being_ready(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1", cleanup_interval=600.0)
    fleet.kinesis.split(STREAM, FIRST)
    fleet.wait_delivered(fleet.put(20))
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended)
    fleet.workers["w1"].stop()
    fleet.dynamodb.put_item(
        TableName=TABLE, Item={**fleet.items()[FIRST], "checkpoint": {"S": "not a number"}}
    )
    worker = fleet.start("w2", cleanup_interval=0.0)
    assert worker.wait_ready(60)
    assert fleet.happened(RowRefused)
    children = {
        shard.shard_id
        for shard in fleet.kinesis.list_shards(STREAM, operation=None)
        if FIRST in shard.parents
    }
    assert {fleet.owners()[child] for child in children} == {None}
    assert fleet.owners()[SECOND] == "w2"


# -- checkpoints -----------------------------------------------------------------------------------------------


class _Scripted(RecordingProcessor):
    """Does with the first batch, and at the end of a shard, what the test says."""

    def __init__(self, ledger, first=None, ended=None):
        super().__init__("w1", ledger)
        self._first, self._ended = first, ended

    def process_records(self, batch):
        super().process_records(batch)
        if self._first is not None:
            first, self._first = self._first, None
            first(batch)

    def shard_ended(self, end):
        super().shard_ended(end)
        if self._ended is not None:
            self._ended(end)


def _in_first_batch(fleet, body, **options):
    """Run `body(batch)` in process_records; AssertionErrors and others come out of here."""
    came = []

    def first(batch):
        try:
            came.append(body(batch))
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the test
            came.append(error)

    fleet.start("w1", processor=lambda: _Scripted(fleet.ledger, first), **options)
    fleet.put(5)
    fleet.wait(lambda: came, what="the first batch")
    if isinstance(came[0], Exception):
        raise came[0]


def test_a_prepared_state_that_fits_into_no_row_is_refused_with_both_sizes(new_fleet):
    fleet = new_fleet(shards=1)

    def body(batch):
        with pytest.raises(CheckpointRefused, match=rf"{MAX_PENDING_STATE + 1} bytes.*{MAX_PENDING_STATE}"):
            batch.checkpointer.prepare_checkpoint(state=bytes(MAX_PENDING_STATE + 1))
        batch.checkpointer.prepare_checkpoint(state=bytes(MAX_PENDING_STATE))

    _in_first_batch(fleet, body)


def test_a_checkpoint_may_be_given_as_the_value_initialize_came_with(new_fleet):
    fleet = new_fleet(shards=1)

    def body(batch):
        batch.checkpointer.prepare_checkpoint(batch.records[0].position)
        batch.checkpointer.checkpoint(batch.records[1].position)
        assert fleet.rows()[FIRST].checkpoint == batch.records[1].position
        with pytest.raises(CheckpointRefused, match="only positions of delivered"):
            batch.checkpointer.checkpoint(Checkpoint("SHARD_END"))
        with pytest.raises(CheckpointRefused, match="not int"):
            batch.checkpointer.checkpoint(17)

    _in_first_batch(fleet, body, checkpoint="manual")


@pytest.mark.parametrize("end", [(), ("SHARD_END",), (Checkpoint("SHARD_END"),)])
def test_a_prepared_end_of_a_shard_is_refused_with_what_to_do_instead(new_fleet, end):
    fleet = new_fleet(shards=1)
    told = []

    def ended(shard_end):
        try:
            shard_end.checkpointer.prepare_checkpoint()
        except CheckpointRefused as error:
            told.append(str(error))
        shard_end.checkpointer.checkpoint(*end)

    fleet.start("w1", checkpoint="manual", processor=lambda: _Scripted(fleet.ledger, None, ended))
    fleet.wait_delivered(fleet.put(3))
    fleet.kinesis.split(STREAM, FIRST)
    fleet.wait(lambda: told and (FIRST not in fleet.rows() or fleet.rows()[FIRST].is_ended), 30)
    assert "end of a shard" in told[0]
    assert "nothing has been delivered" not in told[0]
    assert "checkpoint()" in told[0]


def test_an_inherited_prepared_checkpoint_that_initialize_prepares_again_stays(new_fleet):
    fleet = new_fleet(shards=1)
    _in_first_batch(fleet, lambda batch: batch.checkpointer.prepare_checkpoint(state=b"txn-7"))
    fleet.simulation.kill("w1")

    class Keeping(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            init.checkpointer.prepare_checkpoint(init.pending.checkpoint, state=init.pending.state)

    fleet.start("w2", processor=lambda: Keeping("w2", fleet.ledger))
    fleet.wait(lambda: len(fleet.ledger.by("w2")) == 5)
    fleet.simulation.sleep(10)
    assert fleet.rows()[FIRST].pending.state == b"txn-7"
    assert fleet.rows()[FIRST].checkpoint.is_sentinel


def test_an_inherited_prepared_checkpoint_that_initialize_leaves_is_cleared_by_the_first_automatic_one(
    new_fleet,
):
    fleet = new_fleet(shards=1)
    _in_first_batch(fleet, lambda batch: batch.checkpointer.prepare_checkpoint(state=b"txn-7"))
    fleet.simulation.kill("w1")
    fleet.start("w2")
    fleet.wait(lambda: len(fleet.ledger.by("w2")) == 5)
    fleet.wait(lambda: not fleet.rows()[FIRST].checkpoint.is_sentinel, 5)
    assert fleet.rows()[FIRST].pending is None


# -- set-up errors and troubles --------------------------------------------------------------------------------


def test_a_lease_whose_parents_may_not_be_read_is_handed_back_and_left_alone(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", retry_for=120.0, cleanup_interval=0.0)
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
    back = fleet.happened(LeaseHandedBack)
    assert {event.shard for event in back} == set(fleet.open_shards())
    assert all("not permitted (AccessDeniedException)" in event.cause for event in back)
    assert not fleet.happened(TroubleEnded), "no trouble is called over because its lease was let go"
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
    (back,) = fleet.happened(LeaseHandedBack)
    assert back.cause == "ListShards is not allowed"
    assert back.left_alone_for == worker.config.retry_for
    fleet.kinesis.fault = None
    fleet.wait_delivered(put, 400)


def test_a_lease_handed_back_for_its_processor_says_so(new_fleet):
    fleet = new_fleet(shards=1)

    def fail(batch):
        raise ValueError

    fleet.put(3)
    fleet.start("w1", retry_for=5.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, fail))
    fleet.wait(lambda: fleet.happened(LeaseHandedBack))
    assert "processor kept failing" in fleet.happened(LeaseHandedBack)[0].cause


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
    fleet.wait(lambda: len(fleet.happened(TroubleBegan)) == 2, 90, "both troubles")
    began = {event.shard: event.what for event in fleet.happened(TroubleBegan)}
    assert began == {FIRST: "reading", None: "listing shards"}
    fleet.workers["w1"].stop()
    assert [(event.shard, event.what) for event in fleet.happened(TroubleEnded)] == [(FIRST, "reading")]


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
    fleet.wait(lambda: fleet.happened(TroubleBegan), 60, "trouble")
    assert [(event.what, event.shard) for event in fleet.happened(TroubleBegan)] == [("taking", FIRST)]
    fleet.simulation.sleep(20)
    assert not fleet.happened(TroubleEnded), "while nobody has it, it is still in trouble"
    fleet.start("w3")
    fleet.wait(lambda: fleet.happened(TroubleEnded), 60, "the end of the trouble")
    assert fleet.owners() == {FIRST: "w3"}
    assert len(fleet.happened(TroubleBegan)) == 1


# -- what is told of a processor -------------------------------------------------------------------------------


def test_where_a_processor_raised_is_its_own_line_and_not_the_one_of_a_library(new_fleet):
    fleet = new_fleet(shards=1)

    def parse(batch):
        json.loads(b"{")

    fleet.put(3)
    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, parse))
    fleet.wait(lambda: fleet.happened(ProcessorRaised))
    line = parse.__code__.co_firstlineno + 1
    assert fleet.happened(ProcessorRaised)[0].where == f"test_regressions_2.py:{line}"


def test_where_a_processor_raised_is_its_own_line_when_pykcl_refused_what_it_asked_for(new_fleet):
    fleet = new_fleet(shards=1)

    def refused(batch):
        batch.checkpointer.checkpoint("LATEST")

    fleet.put(3)
    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, refused))
    fleet.wait(lambda: fleet.happened(ProcessorRaised))
    line = refused.__code__.co_firstlineno + 1
    assert fleet.happened(ProcessorRaised)[0].where == f"test_regressions_2.py:{line}"


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
    assert not fleet.happened(LeaseHandedBack)
    assert len(fleet.happened(LeaseReleased)) == 1
    assert set(fleet.owners().values()) == {None}


# -- stopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signals", [0, 2])
def test_a_stop_that_came_too_late_names_the_busy_threads_why_and_what_to_do(new_fleet, caplog, signals):
    fleet = new_fleet(shards=1)
    hang = fleet.simulation.runtime("w1").event()
    worker = fleet.start(
        "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, lambda batch: hang.wait())
    )
    fleet.put(3)
    fleet.wait(lambda: ("w1", "process_records", FIRST) in fleet.ledger.calls)
    began = fleet.simulation.now
    worker.signals.ask(signals)
    with pytest.raises(StopTimedOut) as caught:
        worker.stop(grace=7.0)
    took = fleet.simulation.now - began
    assert took < 2 if signals else 7 <= took < 9
    thread = f"pykcl-{FIRST}"
    why = "a second signal came" if signals else "the grace period was over"
    assert caught.value.threads == (thread,)
    assert str(caught.value) == (
        f"These threads were still busy when {why}: {thread}. Their leases expire within 10 s. "
        "Do: raise shutdown_grace (shutdownGraceMillis), or make batches shorter (max_records, maxRecords); of a child "
        "that hangs timeoutInSeconds makes an end."
    )
    (left,) = fleet.happened(ThreadsLeft)
    assert left.threads == (thread,)
    caplog.clear()
    log_event(left)
    assert caplog.messages == [f"threads did not stop in time threads={thread}"]
    hang.set()


# -- housekeeping ----------------------------------------------------------------------------------------------


def test_the_cleaner_asks_about_every_candidate_in_turn(new_fleet):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1", cleanup_interval=1.0)._connect()
    keys = [f"shardId-{number:012}" for number in range(100, 112)]
    view = LeaseView().observe([Lease(key, Checkpoint("7")) for key in keys], 0.0)
    asked = []

    class Patient:
        """Knows every shard it is asked about, so that no lease is deleted."""

        def open(self, shard_id, start):
            asked.append(shard_id)
            return "iterator"

    cleaner = LeaseCleaner(dataclasses.replace(context, stream=Patient()), lambda: False)
    cleaner.listed(ShardListing((Shard(FIRST),)))
    for expected in (keys[:MAX_QUESTIONS], keys[MAX_QUESTIONS:] + keys[: 2 * MAX_QUESTIONS - len(keys)]):
        fleet.simulation.sleep(2)
        asked.clear()
        cleaner.clean(view)
        assert asked == expected


def test_the_open_iterator_of_a_lease_that_a_peer_took_is_let_go(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", start="LATEST", max_leases=1)
    fleet.wait(lambda: len(worker._manager._sync._latest.opened) == 1, what="the iterator of the other lease")
    fleet.start("w2", start="LATEST")
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1", "w2"})
    fleet.wait(lambda: not worker._manager._sync._latest.opened, 10, "letting it go")


def test_rows_that_a_worker_creates_and_takes_carry_every_key_of_the_private_map(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", start="LATEST")
    fleet.wait(lambda: fleet.owners() == {FIRST: "w1"})
    created = next(change.after for change in fleet.dynamodb.changes if change.operation == "PutItem")
    for item in (created, fleet.items()[FIRST]):
        note = item["pykcl"]["M"]
        of_worker = {"owner", "version", "session", "failoverMillis"}
        assert note.keys() == {"streamArn", "streamCreatedAt", "latestFrom"} | of_worker
        assert note["owner"] == {"S": "w1"}
        assert note["session"] == created["pykcl"]["M"]["session"]
    assert worker.failure is None
