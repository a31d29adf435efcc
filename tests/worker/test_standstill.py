"""The note in the lease row of a shard that does not get on: written late, for the operator, and gone with its cause."""

import pytest

from pykcl.events import LeaseReleased, ProcessorTimedOut, RetriesExhausted
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import EPOCH_MILLIS, STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault

FIRST = "shardId-000000000000"


class Poison(Exception):
    pass


def _failing(fleet, name, while_=lambda: True, method="process_records"):
    class Failing(RecordingProcessor):
        pass

    def fail(self, given):
        getattr(RecordingProcessor, method)(self, given)
        if while_():
            raise Poison("CANARY")

    setattr(Failing, method, fail)
    return lambda: Failing(name, fleet.ledger)


def _note(fleet):
    row = fleet.rows().get(FIRST)
    return row.metadata.standstill if row is not None else None


def test_a_failure_that_lasts_for_the_failover_time_is_noted_by_a_heartbeat(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    began = fleet.simulation.now
    worker = fleet.start("w1", retry_timeout=600.0, processor=_failing(fleet, "w1"))
    fleet.simulation.sleep(worker.config.failover_time / 2)
    assert _note(fleet) is None, "it may be over in a second"
    fleet.wait(lambda: _note(fleet) is not None, 90, "the note")
    note = _note(fleet)
    assert not fleet.happened(RetriesExhausted)
    assert (note.at, note.handed_back, note.records, note.code) == (AT_TRIM_HORIZON, 0, 3, "E12")
    assert note.cause.startswith("process_records raised Poison at test_standstill.py:")
    assert "CANARY" not in str(fleet.items())
    assert began <= (note.since - EPOCH_MILLIS) / 1000 < began + 10


def test_each_hand_back_is_counted_whoever_hands_back(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    for name in ("w1", "w2"):
        fleet.start(name, retry_timeout=20.0, processor=_failing(fleet, name))
    fleet.wait(lambda: len(fleet.happened(RetriesExhausted)) >= 3, 600, "three hand-backs")
    fleet.simulation.sleep(2)
    note = fleet.rows()[FIRST].standstill
    assert note.handed_back == len(fleet.happened(RetriesExhausted))
    first = note.since
    fleet.simulation.sleep(60)
    assert fleet.rows()[FIRST].standstill.since == first


def test_the_note_is_gone_once_the_batch_returned(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(3)
    fails = [True]
    fleet.start("w1", retry_timeout=600.0, processor=_failing(fleet, "w1", lambda: fails[0]))
    fleet.wait(lambda: _note(fleet) is not None, 90, "the note")
    fails[0] = False
    fleet.wait_delivered(put)
    fleet.wait(lambda: _note(fleet) is None, 30, "the end of the note")


def test_the_note_is_gone_although_nobody_checkpoints(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(3)
    fails = [True]
    processor = _failing(fleet, "w1", lambda: fails[0])
    fleet.start("w1", retry_timeout=600.0, checkpoint_mode="manual", processor=processor)
    fleet.wait(lambda: _note(fleet) is not None, 90, "the note")
    fails[0] = False
    fleet.wait_delivered(put)
    fleet.wait(lambda: _note(fleet) is None, 30, "the end of the note")
    assert fleet.rows()[FIRST].checkpoint == AT_TRIM_HORIZON


def test_a_note_is_gone_where_no_record_is_left_to_fail(new_fleet):
    fleet = new_fleet(shards=1)
    fails = [True]
    processor = _failing(fleet, "w1", lambda: fails[0], method="initialize")
    fleet.start("w1", retry_timeout=20.0, processor=processor)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    fleet.wait(lambda: _note(fleet) is not None, 10, "the note")
    assert _note(fleet).records == 0
    assert _note(fleet).cause.startswith("initialize raised Poison")
    fails[0] = False
    fleet.wait(lambda: _note(fleet) is None, 120, "the end of the note")


def test_a_worker_that_stops_for_the_failure_leaves_the_note(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(1)
    fleet.start("w1", on_error="raise", processor=_failing(fleet, "w1"))
    fleet.wait(lambda: fleet.happened(LeaseReleased), 60, "its end")
    assert _note(fleet).handed_back == 1
    assert _note(fleet).records == 1


@pytest.mark.parametrize("options", [{"on_error": "skip"}, {"max_attempts": 2, "dead_letters": "discard"}])
def test_records_that_are_given_up_leave_no_note(new_fleet, options):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    fleet.start("w1", checkpoint_mode="manual", processor=_failing(fleet, "w1"), **options)
    fleet.simulation.sleep(60)
    assert _note(fleet) is None


def test_who_moves_the_checkpoint_need_not_know_of_the_note(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    fleet.start("w1", retry_timeout=10.0, processor=_failing(fleet, "w1"))
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    row = fleet.rows()[FIRST]
    assert row.standstill is not None
    assert row.with_(checkpoint=Checkpoint("5")).standstill is None
    assert row.with_(checkpoint=Checkpoint("SHARD_END")).standstill is None


def _at_the_end(fleet, method, **options):
    class Ending(RecordingProcessor):
        def shard_ended(self, end):
            method(end)

    put = fleet.put(3)
    worker = fleet.start("w1", processor=lambda: Ending("w1", fleet.ledger), retry_timeout=600.0, **options)
    fleet.wait_delivered(put)
    fleet.kinesis.split(STREAM, FIRST)
    return worker


def test_the_end_of_a_shard_that_hangs_is_noted_by_a_heartbeat(new_fleet):
    """Its children have no lease, and its own row would look like one that is read."""
    fleet = new_fleet(shards=1)
    goes_on = fleet.simulation.runtime("w1").event()
    worker = _at_the_end(fleet, lambda _: goes_on.wait())
    fleet.wait(lambda: _note(fleet) is not None, 60, "the note")
    note = fleet.rows()[FIRST].standstill
    assert (note.cause, note.records, note.handed_back) == ("shard_ended has not returned", 0, 0)
    (lease,) = worker.status().leases
    assert lease.millis_behind_latest >= worker.config.failover_time * 1000
    assert lease.lag_age == 0
    goes_on.set()
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended, 30, "the end")
    assert fleet.rows()[FIRST].standstill is None


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        (lambda _: None, "shard_ended returned without checkpoint()"),
        (lambda _: 1 / 0, "shard_ended raised ZeroDivisionError at "),
    ],
)
def test_the_end_of_a_shard_that_fails_is_noted_with_its_cause(new_fleet, method, cause):
    fleet = new_fleet(shards=1)
    _at_the_end(fleet, method, checkpoint_mode="manual")
    fleet.wait(lambda: _note(fleet) is not None, 60, "the note")
    assert _note(fleet).cause.startswith(cause)


def test_the_end_of_a_shard_that_cannot_be_written_is_noted(new_fleet):
    fleet = new_fleet(shards=1)

    def deny(_):
        fleet.dynamodb.fault = lambda operation, params: (
            Fault(before=aws_error("AccessDeniedException", "no", operation))
            if operation == "PutItem"
            else None
        )

    _at_the_end(fleet, deny)
    fleet.wait(lambda: _note(fleet) is not None, 90, "the note")
    assert _note(fleet).cause.startswith("its end cannot be written (")


def test_an_end_that_is_written_at_once_leaves_no_note(new_fleet):
    fleet = new_fleet(shards=1)
    _at_the_end(fleet, lambda end: end.checkpointer.checkpoint())
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended, 60, "the end")
    metadata = fleet.rows()[FIRST].metadata
    assert metadata is None or metadata.standstill is None


def test_a_worker_that_lost_the_lease_at_the_end_of_a_shard_is_behind_no_more(new_fleet):
    """Another one may have written the end; the call that hangs here would be an alarm for ever."""
    fleet = new_fleet(shards=1)
    goes_on = fleet.simulation.runtime("w1").event()
    worker = _at_the_end(fleet, lambda _: goes_on.wait(), processor_timeout=60.0)
    fleet.wait(lambda: fleet.happened(ProcessorTimedOut), 120, "the loss")
    (lease,) = worker.status().leases
    assert lease.lag_age > 30
    goes_on.set()
