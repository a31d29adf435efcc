"""Checkpoints: prepared ones, positions that are refused, the end of a shard, and skipped batches."""

import pytest

from pykcl.errors import (
    CheckpointRefused,
    TemporaryError,
)
from pykcl.events import (
    BatchSkipped,
    Checkpointed,
    FailureResolved,
    ShardEndNotCheckpointed,
)
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease_writes import MAX_PENDING_STATE
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


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


def test_a_record_of_another_shard_is_no_checkpoint(new_fleet):
    fleet = new_fleet(shards=2)
    batches = {}

    class Mixed(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            batches[batch.shard_id] = batch

    put = fleet.put(40)
    fleet.start("w1", checkpoint_mode="manual", processor=lambda: Mixed("w1", fleet.ledger))
    fleet.wait_delivered(put)
    one, other = batches.values()
    foreign = min(one.records[0], other.records[0], key=lambda record: record.position)
    mine = other if foreign in one.records else one
    with pytest.raises(CheckpointRefused, match=f"{mine.shard_id} at a record of {foreign.shard_id}"):
        mine.checkpointer.checkpoint(foreign)
    assert all(row.checkpoint.is_start for row in fleet.rows().values())


def test_by_hand_without_an_own_shard_ended_a_shard_ends_only_when_all_of_it_is_checkpointed(new_fleet):
    fleet = new_fleet(shards=1)
    batches = []

    class Asynchronous(RecordingProcessor):
        shard_ended = RecordingProcessor.__mro__[1].shard_ended

        def process_records(self, batch):
            super().process_records(batch)
            batches.append(batch)

    put = fleet.put(5)
    fleet.start("w1", checkpoint_mode="manual", processor=lambda: Asynchronous("w1", fleet.ledger))
    fleet.wait_delivered(put)
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait(lambda: fleet.happened(ShardEndNotCheckpointed), what="the report")
    assert not fleet.rows()[parent].is_ended
    batches[-1].checkpointer.checkpoint()
    fleet.wait(lambda: parent not in fleet.rows() or fleet.rows()[parent].is_ended, 60)


def test_the_end_of_a_shard_does_not_erase_a_prepared_checkpoint(new_fleet):
    fleet = new_fleet(shards=1)
    prepared = []

    class TwoPhase(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            prepared.append(batch.checkpointer.prepare_checkpoint(state=b"txn"))

    put = fleet.put(5)
    fleet.start("w1", processor=lambda: TwoPhase("w1", fleet.ledger))
    fleet.wait_delivered(put)
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait(lambda: fleet.happened(ShardEndNotCheckpointed), what="the report")
    assert fleet.rows()[parent].pending.state == b"txn"
    prepared[-1].checkpoint()
    fleet.wait(lambda: parent not in fleet.rows() or fleet.rows()[parent].is_ended, 60)


def test_skip_never_skips_for_a_checkpoint_that_could_not_be_written(new_fleet):
    fleet = new_fleet(shards=1)
    failures = []

    class Checkpointing(RecordingProcessor):
        def process_records(self, batch):
            if len(failures) < 2:
                failures.append(1)
                raise TemporaryError("as the checkpointer does when DynamoDB is away")
            super().process_records(batch)

    put = fleet.put(3)
    fleet.start("w1", on_error="skip", processor=lambda: Checkpointing("w1", fleet.ledger))
    fleet.wait_delivered(put)
    assert not fleet.happened(BatchSkipped)


def test_a_checkpoint_that_fails_is_tried_again_after_growing_pauses_however_often_pages_come(new_fleet):
    fleet = new_fleet(shards=1)
    tries = []

    def fault(operation, params):
        # Renewals go through.
        if operation == "UpdateItem" and "checkpoint" in params["UpdateExpression"]:
            tries.append(fleet.simulation.now)
            return Fault(before=aws_error("AccessDeniedException", "no", operation))
        return None

    fleet.start("w1", batch_window=2.0)
    fleet.wait_delivered(fleet.put(1))
    fleet.dynamodb.fault = fault
    for _ in range(200):
        fleet.put(1)
        fleet.simulation.sleep(0.2)
    # Each of twenty batches is tried once, and of the pages between them only a few.
    assert 18 <= len(tries) <= 26
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(12)
    assert fleet.happened(Checkpointed)[-1].checkpoint == str(fleet.rows()[FIRST].checkpoint)
    assert fleet.happened(FailureResolved)


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

    _in_first_batch(fleet, body, checkpoint_mode="manual")


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

    fleet.start("w1", checkpoint_mode="manual", processor=lambda: _Scripted(fleet.ledger, None, ended))
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
