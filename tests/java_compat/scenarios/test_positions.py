"""Scenarios 15 to 18: where the other one left off, to the record, inside of aggregated records too."""

import hashlib

import pytest

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.kpl import aggregate
from pykcl.testing.fleet import STREAM
from tests.java_compat.scenarios.scenario_fleet import ScenarioProcessor

PENDING = ("pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState")


class OnlyUpTo(ScenarioProcessor):
    """Checkpoints the record of this index of its first batch, then nothing more."""

    def __init__(self, name, fleet, index):
        super().__init__(name, fleet)
        self.index = index

    def process_records(self, batch):
        super().process_records(batch)
        if self.index is not None:
            batch.checkpointer.checkpoint(batch.records[self.index])
        self.index = None


def put_raw(fleet, key, data):
    """A Kinesis record as it is; its position is not expected to be delivered."""
    at = fleet.shards()[key].hash_range.first
    return Checkpoint(fleet.kinesis.put_record(STREAM, data, "k", at).sequence_number)


def test_scenario_15_a_record_that_pykcl_checkpointed_is_not_given_to_java(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    fleet.put_everywhere(5)
    fleet.start_pykcl("p1", processor=lambda: OnlyUpTo("p1", fleet, 2), checkpoint_mode="manual")
    fleet.wait(lambda: fleet.rows()[key].checkpoint == fleet.position(key, 2), what="the checkpoint")
    fleet.stop_pykcl("p1")
    fleet.start_java("j1")
    fleet.wait(lambda: len(fleet.ledger.by("j1")) == 2, what="Java to read the rest")
    assert fleet.ledger.by("j1") == [b"p4.0", b"p5.0"]
    assert fleet.starts[-1] == ("j1", key, fleet.position(key, 2))


def test_scenario_16_pykcl_checkpoints_inside_an_aggregate_after_java_s_greater_sub_sequence_number(
    new_fleet,
):
    fleet = new_fleet()
    (key,) = fleet.shards()
    java = fleet.java_with_leases("j0", key)
    fleet.put_everywhere(packed=100)
    assert java.checkpoint(key, fleet.java_read(key))
    assert fleet.rows()[key].checkpoint.sub_sequence_number == 99
    fleet.put_everywhere(packed=10)
    fleet.start_pykcl("p1", processor=lambda: OnlyUpTo("p1", fleet, 2), checkpoint_mode="manual")
    here = fleet.position(key, 102)
    fleet.wait(lambda: fleet.rows()[key].checkpoint == here, what="the checkpoint")
    assert here.sub_sequence_number == 2
    fleet.stop_pykcl("p1")
    fleet.start_java("j1")
    fleet.wait(lambda: len(fleet.ledger.by("j1")) == 7, what="Java to read the rest")
    assert fleet.ledger.by("j1") == [f"p2.{number}".encode() for number in range(3, 10)]


def test_scenario_17_java_checkpoints_inside_an_aggregate_and_pykcl_goes_on_behind_it(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    java = fleet.java_with_leases("j1", key)
    fleet.put_everywhere(packed=10)
    assert java.checkpoint(key, fleet.java_read(key, 5))
    assert fleet.rows()[key].checkpoint.sub_sequence_number == 4
    fleet.start_pykcl("p1")
    fleet.wait_all_delivered()
    assert fleet.ledger.by("p1") == [f"p1.{number}".encode() for number in range(5, 10)]


@pytest.mark.parametrize("reader", ["pykcl", "java"])
def test_scenario_17_broken_and_misplaced_aggregates_are_handled_as_java_does(new_fleet, reader):
    fleet = new_fleet(shards=2)
    low, high = fleet.neighbours()
    first_of_high = str(high.hash_range.first)
    (sound,) = aggregate([("k", "0", b"in"), ("k", "0", b"side")])
    (misplaced,) = aggregate([("k", "0", b"inside"), ("k", first_of_high, b"outside")])
    broken = sound.data[:-1] + bytes([sound.data[-1] ^ 1])
    assert hashlib.md5(broken[4:-16]).digest() != broken[-16:]
    for data in (broken, misplaced.data, sound.data):
        last = put_raw(fleet, low.shard_id, data)
    if reader == "java":
        fleet.start_java("it")
    else:
        fleet.start_pykcl("it")
    wanted = Checkpoint(last.sequence_number, 1)
    fleet.wait(
        lambda: fleet.rows().get(low.shard_id) and fleet.rows()[low.shard_id].checkpoint == wanted,
        what="the end",
    )
    # What fails its checksum is the plain record it also is; of what belongs elsewhere, nothing.
    assert fleet.ledger.by("it") == [broken, b"in", b"side"]
    assert [record.sub_sequence_number for _, record in fleet.ledger.delivered] == [0, 0, 1]


def test_scenario_18_what_java_prepared_reaches_pykcl_and_goes_with_its_next_checkpoint(new_fleet):
    fleet = new_fleet()
    (key,) = fleet.shards()
    java = fleet.java_with_leases("j1", key)
    fleet.put_everywhere(3)
    assert java.checkpoint(key, fleet.java_read(key, 1))
    prepared = fleet.position(key, 1)
    assert java.prepare_checkpoint(key, prepared, b"half-way")
    triple = {name: fleet.items()[key][name] for name in PENDING}
    fleet.start_pykcl("p1", processor=lambda: OnlyUpTo("p1", fleet, -1), checkpoint_mode="manual")
    fleet.when("p1", "take", lambda: fleet.after_this_write(lambda: taken.append(fleet.items()[key])))
    taken = []
    fleet.wait(lambda: bool(fleet.inits), what="initialize")
    assert {name: taken[0][name] for name in PENDING} == triple
    ((_, init),) = fleet.inits
    assert (init.pending.checkpoint, init.pending.state) == (prepared, b"half-way")
    assert init.position == fleet.position(key, 0)
    fleet.wait(lambda: fleet.rows()[key].checkpoint == fleet.position(key, 2), what="the next checkpoint")
    assert not set(PENDING) & set(fleet.items()[key])
    assert fleet.ledger.by("p1") == [b"p2.0", b"p3.0"]
