"""Checkpoints as Java's users know them: what they mean, and what they are called when they are refused."""

import pytest

from pykcl.compat.multilang.protocol import JavaCheckpointError, JavaCheckpoints
from pykcl.errors import (
    CheckpointRefused,
    LeaseLostError,
    SetupError,
    TableGone,
    TemporaryError,
    Throttled,
)
from pykcl.testing.fleet import RecordingProcessor


class Refusing:
    def __init__(self, error):
        self.error = error

    def checkpoint(self, at=None, sub_sequence_number=0):
        raise self.error


@pytest.mark.parametrize(
    ("error", "value"),
    [
        (LeaseLostError("gone"), "ShutdownException"),
        (CheckpointRefused("behind"), "IllegalArgumentException"),
        (Throttled("slow down"), "ThrottlingException"),
        (TemporaryError("no answer"), "KinesisClientLibDependencyException"),
        (SetupError("no permission"), "KinesisClientLibDependencyException"),
        (TableGone("no table"), "InvalidStateException"),
    ],
)
def test_each_refusal_has_javas_name(error, value):
    with pytest.raises(JavaCheckpointError) as raised:
        JavaCheckpoints(Refusing(error)).checkpoint("1")
    assert raised.value.value == value
    assert str(raised.value) == str(error)


def test_there_is_nothing_to_checkpoint_before_the_first_record_and_after_the_loss():
    with pytest.raises(JavaCheckpointError) as raised:
        JavaCheckpoints(None).checkpoint()
    assert raised.value.value == "InvalidStateException"


def test_every_argument_form_against_a_worker(new_fleet):
    fleet, seen = new_fleet(shards=1), []

    class Careful(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            if seen:
                return
            java = JavaCheckpoints(batch.checkpointer)
            first, last = batch.records[0], batch.records[-1]
            for wrong in (str(int(last.sequence_number) + 1), "nonsense", "LATEST", "", 17):
                with pytest.raises(JavaCheckpointError) as raised:
                    java.checkpoint(wrong)
                assert raised.value.value == "IllegalArgumentException"
            java.checkpoint(first.sequence_number)
            assert self.row() == (first.sequence_number, 0)
            java.checkpoint(last.sequence_number, 0)
            java.checkpoint(None, 3)  # says nothing without a sequence number
            assert self.row() == (last.sequence_number, 0)
            java.checkpoint()
            seen.append(batch)

        def row(self):
            checkpoint = fleet.rows()["shardId-000000000000"].checkpoint
            return checkpoint.sequence_number, checkpoint.sub_sequence_number

    fleet.put(6)
    fleet.start("w1", checkpoint_mode="manual", processor=lambda: Careful("w1", fleet.ledger))
    fleet.wait(lambda: seen, what="the checkpoints")
