"""What a record processor is handed, and what its misbehaviour costs: never a record, never another shard."""

import pytest

from pykcl.errors import CheckpointRefused, ConfigError, LeaseLostError, ProcessorFailed
from pykcl.events import (
    BatchSkipped,
    LossReason,
    ProcessorRaised,
    ProcessorSlow,
    ProcessorTimedOut,
    RetriesExhausted,
    ShardEndNotCheckpointed,
)
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.worker.held_leases import Loss


class Boom(Exception):
    pass


def _processor(fleet, name="w1", behaviour=None, cls=RecordingProcessor):
    return lambda: cls(name, fleet.ledger, behaviour)


def _raise_times(count, marker=b""):
    left = [count]

    def behaviour(batch):
        if left[0] and any(marker in record.data for record in batch):
            left[0] -= 1
            raise Boom("CANARY in an exception's text")

    return behaviour


def test_a_batch_that_raises_is_tried_again_until_it_returns(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(10)
    fleet.start("w1", processor=_processor(fleet, behaviour=_raise_times(4)))
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0
    raised = fleet.happened(ProcessorRaised)
    assert [event.attempt for event in raised] == [1, 2, 3, 4]
    assert raised[0].error == "Boom"
    assert raised[0].records == 10
    assert raised[0].where.startswith("test_processing.py:")


def test_a_batch_that_keeps_raising_hands_its_lease_back_untouched_and_another_worker_succeeds(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(10)
    fleet.start("w1", retry_timeout=20.0, processor=_processor(fleet, behaviour=_raise_times(10**6)))
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    (row,) = fleet.rows().values()
    assert row.checkpoint.sequence_number == "TRIM_HORIZON"
    handed_back_at = fleet.simulation.now
    fleet.simulation.sleep(15)
    assert set(fleet.owners().values()) == {None}, "it is left alone for retry_timeout"
    fleet.start("w2")
    fleet.wait_delivered(put)
    assert fleet.simulation.now - handed_back_at < 60
    assert set(fleet.ledger.by("w2")) == set(put)


def test_the_shards_of_a_healthy_processor_go_on_beside_a_failing_one(new_fleet):
    fleet = new_fleet(shards=2)
    first = fleet.put(20)
    failing = fleet.open_shards()[0]

    def behaviour(batch):
        if batch.shard_id == failing:
            raise Boom

    fleet.start("w1", processor=_processor(fleet, behaviour=behaviour))
    healthy = {r.data for s in fleet.open_shards()[1:] for r in _stored(fleet, s)}
    assert healthy < set(first)
    fleet.wait_delivered(sorted(healthy))
    more = fleet.put(20)
    wanted = {r.data for r in _stored(fleet, fleet.open_shards()[1])} & set(more)
    fleet.wait_delivered(sorted(wanted))


def _stored(fleet, shard):
    iterator = fleet.kinesis.get_shard_iterator(STREAM, shard, "TRIM_HORIZON")
    return fleet.kinesis.get_records(iterator).records


def test_skip_is_javas_behaviour_by_name_and_is_counted(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(10)
    fleet.start("w1", on_error="skip", processor=_processor(fleet, behaviour=_raise_times(1)))
    fleet.wait(lambda: fleet.happened(BatchSkipped), what="the skipped batch")
    (skipped,) = fleet.happened(BatchSkipped)
    assert skipped.records == len(put)
    more = fleet.put(5)
    fleet.wait_delivered(more)
    assert not set(put) & set(fleet.ledger.payloads)


def test_raise_stops_the_worker_and_run_raises_with_the_checkpoint_untouched(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(10)
    worker = fleet.worker("w1", on_error="raise", processor=_processor(fleet, behaviour=_raise_times(1)))
    with pytest.raises(ProcessorFailed, match="Boom") as caught:
        worker.run()
    assert isinstance(caught.value.__cause__, Boom)
    assert "CANARY" not in str(caught.value)
    (row,) = fleet.rows().values()
    assert row.owner is None
    assert row.checkpoint.sequence_number == "TRIM_HORIZON"


def test_auto_checkpoints_after_each_batch(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    last = fleet.ledger.delivered[-1][1]
    fleet.wait(lambda: next(iter(fleet.rows().values())).checkpoint == last.position, 2, "the checkpoint")


def test_interval_checkpoints_rarely_and_before_the_lease_is_released(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", checkpoint_mode="interval", checkpoint_interval=3600.0)
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(20)
    (row,) = fleet.rows().values()
    assert row.checkpoint.is_sentinel
    worker.stop()
    (row,) = fleet.rows().values()
    assert row.checkpoint == fleet.ledger.delivered[-1][1].position
    assert row.owner is None


def test_interval_checkpoints_when_the_interval_is_over_even_if_nothing_more_arrives(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", checkpoint_mode="interval", checkpoint_interval=15.0)
    fleet.wait_delivered(fleet.put(5))
    fleet.wait(lambda: not next(iter(fleet.rows().values())).checkpoint.is_sentinel, 20, "the checkpoint")


def test_manual_never_checkpoints_by_itself_not_even_when_it_stops(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", checkpoint_mode="manual")
    fleet.wait_delivered(fleet.put(5))
    worker.stop()
    (row,) = fleet.rows().values()
    assert row.checkpoint.is_sentinel
    assert row.owner is None


def test_checkpoint_means_the_last_record_of_its_own_batch_and_nothing_beyond_or_behind(new_fleet):
    fleet = new_fleet(shards=1)
    seen = []

    class Careful(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            seen.append(batch)
            first, last = batch.records[0], batch.records[-1]
            if len(seen) > 1:
                return
            batch.checkpointer.checkpoint(first)
            with pytest.raises(CheckpointRefused, match="delivered"):
                batch.checkpointer.checkpoint(str(int(last.sequence_number) + 1))
            batch.checkpointer.checkpoint()
            with pytest.raises(CheckpointRefused, match="backwards"):
                batch.checkpointer.checkpoint(first)
            with pytest.raises(CheckpointRefused):
                batch.checkpointer.checkpoint("LATEST")
            with pytest.raises(CheckpointRefused):
                batch.checkpointer.checkpoint("nonsense")
            batch.checkpointer.checkpoint(last.sequence_number, last.sub_sequence_number)

    put = fleet.put(6)
    fleet.start("w1", checkpoint_mode="manual", processor=_processor(fleet, cls=Careful))
    fleet.wait_delivered(put)
    fleet.wait(lambda: fleet.rows()["shardId-000000000000"].checkpoint == seen[0].records[-1].position, 5)
    fleet.wait_delivered(fleet.put(3))
    # An older batch's checkpointer still means its own batch, and never moves the checkpoint back.
    seen[1].checkpointer.checkpoint()
    with pytest.raises(CheckpointRefused):
        seen[0].checkpointer.checkpoint()
    (row,) = fleet.rows().values()
    assert row.checkpoint == seen[1].records[-1].position


def test_a_checkpoint_after_the_lease_was_lost_is_refused_and_changes_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    batches = []

    class Keeping(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            batches.append(batch)

    put = fleet.put(5)
    fleet.start("w1", checkpoint_mode="manual", processor=_processor(fleet, cls=Keeping))
    fleet.wait_delivered(put)
    fleet.simulation.freeze("w1", 60)
    fleet.start("w2")
    fleet.wait(lambda: set(fleet.owners().values()) == {"w2"} and len(fleet.ledger.by("w2")) == 5)
    fleet.simulation.sleep(5)
    (before,) = fleet.items().values()
    with pytest.raises(LeaseLostError, match="no longer held"):
        batches[0].checkpointer.checkpoint()
    (after,) = fleet.items().values()
    assert after["checkpoint"] == before["checkpoint"]
    assert after["leaseOwner"] == {"S": "w2"}


def test_a_prepared_checkpoint_suspends_automatic_ones_and_reaches_the_next_owner(new_fleet):
    fleet = new_fleet(shards=1)
    inits = []

    class TwoPhase(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            inits.append(init)

        def process_records(self, batch):
            super().process_records(batch)
            if self.worker == "w1" and len(self.ledger.delivered) == len(batch):
                batch.checkpointer.prepare_checkpoint(batch.records[1], state=b"txn-7")

    put = fleet.put(4)
    fleet.start("w1", processor=_processor(fleet, cls=TwoPhase))
    fleet.wait_delivered(put)
    more = fleet.put(2)
    fleet.wait_delivered(more)
    (row,) = fleet.rows().values()
    assert row.checkpoint.is_sentinel, "automatic checkpoints rest while one is prepared"
    assert row.pending.state == b"txn-7"
    fleet.simulation.kill("w1")

    class Committing(TwoPhase):
        def initialize(self, init):
            super().initialize(init)
            init.checkpointer.checkpoint(init.pending.checkpoint.sequence_number)

    fleet.start("w2", checkpoint_mode="manual", processor=_processor(fleet, "w2", cls=Committing))
    fleet.wait(lambda: len(fleet.ledger.by("w2")) == 4, what="delivery behind the committed position")
    assert inits[-1].pending.state == b"txn-7"
    assert fleet.ledger.by("w2") == [*put, *more][2:]
    (row,) = fleet.rows().values()
    assert row.pending is None
    assert inits[-1].fencing_token > inits[0].fencing_token


def test_a_manual_shard_ended_that_does_not_checkpoint_is_called_again_and_children_wait(new_fleet):
    fleet = new_fleet(shards=1)

    class Forgetful(RecordingProcessor):
        def shard_ended(self, end):
            super().shard_ended(end)
            if self.ledger.calls.count((self.worker, "shard_ended", end.shard_id)) >= 3:
                end.checkpointer.checkpoint()

    fleet.start("w1", checkpoint_mode="manual", processor=_processor(fleet, cls=Forgetful))
    fleet.wait_delivered(fleet.put(3))
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    children = fleet.put(10)
    fleet.wait(lambda: fleet.happened(ShardEndNotCheckpointed), what="the report")
    assert not set(children) & set(fleet.ledger.payloads)
    assert not fleet.rows()[parent].is_ended
    fleet.wait_delivered(children)
    assert len(fleet.happened(ShardEndNotCheckpointed)) == 2
    assert fleet.rows().get(parent) is None or fleet.rows()[parent].is_ended


def test_a_slow_processor_keeps_its_lease_and_is_reported_once(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", processor=_processor(fleet, behaviour=lambda batch: fleet.simulation.sleep(100)))
    fleet.wait(lambda: fleet.load()["w1"] == 1)
    put = fleet.put(3)
    fleet.start("w2")
    fleet.wait_delivered(put, 200)
    assert fleet.ledger.by("w1") == put
    assert fleet.ledger.duplicates == 0
    assert len(fleet.happened(ProcessorSlow)) == 1


def _start_hanging(fleet):
    """A worker with the one lease, whose processor does not return until the event that is returned is set."""
    hang = fleet.simulation.runtime("w1").event()
    fleet.start(
        "w1",
        processor=_processor(fleet, behaviour=lambda batch: hang.wait()),
        processor_warn_after=20.0,
        processor_timeout=40.0,
    )
    fleet.wait(lambda: fleet.load()["w1"] == 1)
    return hang


def test_a_hung_processor_can_be_made_to_give_its_lease_up_and_that_is_told_once(new_fleet, caplog):
    fleet = new_fleet(shards=1)
    hang = _start_hanging(fleet)
    put = fleet.put(3)
    fleet.start("w2")
    fleet.wait_delivered(put, 120)
    assert fleet.ledger.by("w2") == put
    fleet.simulation.sleep(60)
    (given_up,) = fleet.happened(ProcessorTimedOut)
    assert (given_up.shard, given_up.method) == ("shardId-000000000000", "process_records")
    assert given_up.seconds == pytest.approx(40, abs=2)
    assert given_up.cause == "process_records did not return within processor_timeout=40 s"
    (line,) = [record for record in caplog.records if "lease given up" in record.getMessage()]
    assert line.levelname == "ERROR"
    assert "another worker goes on with the shard" in line.getMessage()
    hang.set()


def test_a_lease_that_is_lost_already_is_not_given_up(new_fleet):
    fleet = new_fleet(shards=1)
    hang = _start_hanging(fleet)
    fleet.put(3)
    fleet.wait(lambda: fleet.happened(ProcessorSlow), 60, "the warning")
    (lease_worker,) = [found for found, _ in fleet.workers["w1"]._manager.workers()]
    assert lease_worker.revoke(Loss.of(LossReason.OTHER))
    fleet.simulation.sleep(60)
    assert fleet.happened(ProcessorTimedOut) == []
    hang.set()


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        (RecordingProcessor("w1", None), "got an instance of RecordingProcessor"),
        (dict, "not a RecordProcessor"),
        (17, "neither a class nor"),
        ("orders:Orders", "is text. Do: import the class and pass it, processor=Orders"),
    ],
)
def test_what_is_no_processor_is_refused_with_what_to_write_instead(new_fleet, processor, told):
    with pytest.raises(ConfigError, match=told):
        new_fleet().worker("w1", processor=processor)


def test_user_exceptions_and_payloads_never_reach_the_log(new_fleet, caplog):
    fleet = new_fleet(shards=1)
    caplog.set_level(0)
    put = fleet.put(5, prefix="CANARY-payload-")
    fleet.start("w1", processor=_processor(fleet, behaviour=_raise_times(2)))
    fleet.wait_delivered(put)
    fleet.workers["w1"].stop()
    assert caplog.text
    assert "CANARY" not in caplog.text
    assert "CANARY" not in repr(fleet.events)


@pytest.mark.parametrize("last", [True, False])
def test_the_position_of_the_last_record_ends_a_shard_and_an_earlier_one_does_not(new_fleet, last):
    fleet, asked, key = new_fleet(shards=1), [], "shardId-000000000000"

    class ByPosition(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            self.records = batch.records

        def shard_ended(self, end):
            asked.append(end.shard_id)
            end.checkpointer.checkpoint(self.records[-1 if last else -2])

    fleet.put(6)
    fleet.kinesis.split(STREAM, key)
    fleet.start("w1", checkpoint_mode="manual", processor=_processor(fleet, cls=ByPosition))
    if last:
        fleet.wait(lambda: key in fleet.rows() and fleet.rows()[key].is_ended, what="the end of the shard")
        assert asked.count(key) == 1
    else:
        fleet.wait(lambda: fleet.happened(ShardEndNotCheckpointed), what="the refusal")
        assert not fleet.rows()[key].is_ended
