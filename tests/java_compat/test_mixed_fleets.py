"""Java and pykcl workers on one table: they share, take over from each other, and lose nothing between them."""

import pytest

from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.testing.memory.dynamodb import Fault, timed_out
from tests.java_compat.mixed_fleet import CheckedProcessor, leave_out_of_updates

LIBRARIES = ["java", "pykcl"]
TAKE_OVER = 10 + 2 * 2 * 10.05 + 3
"""Java needs two of its scans, which come every 2 * failover, to see a counter stand still."""


def start(fleet, library, name, **options):
    return fleet.start_java(name, **options) if library == "java" else fleet.start_pykcl(name, **options)


def one_shard_owned_by(fleet, library, name, **options):
    start(fleet, library, name, **options)
    fleet.wait(lambda: name in fleet.owners().values(), what=f"{name} to own the shard")
    return fleet.open_shards()[0]


def test_a_mixed_fleet_consumes_a_stream_through_splits_and_merges(new_fleet):
    fleet = new_fleet(shards=3)
    fleet.start_java("j1")
    fleet.start_pykcl("p1")
    fleet.start_java("j2")
    fleet.start_pykcl("p2")
    fleet.put_everywhere(3, packed=2)
    for _ in range(3):
        fleet.split(fleet.open_shards()[0])
        fleet.put_everywhere(2)
        fleet.merge_first_two()
        fleet.put_everywhere(2, packed=3)
        fleet.simulation.sleep(8)
    fleet.wait_all_delivered()
    fleet.put_everywhere()
    fleet.wait_all_delivered()
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), what="deletion of the ended leases")
    fleet.wait_balanced("j1", "j2", "p1", "p2")


def test_a_settled_mixed_fleet_moves_nothing(new_fleet):
    fleet = new_fleet(shards=7)
    names = ["j1", "p1", "j2"]
    fleet.start_java("j1")
    fleet.start_pykcl("p1")
    fleet.start_java("j2")
    fleet.put_everywhere()
    fleet.wait_balanced(*names)
    fleet.simulation.sleep(45)
    owners = fleet.owners()
    fleet.simulation.sleep(180)
    assert fleet.owners() == owners
    assert sorted(fleet.load().values()) == [2, 2, 3]


@pytest.mark.parametrize("joins", LIBRARIES)
def test_a_newcomer_of_the_other_library_is_given_its_share(new_fleet, joins):
    fleet = new_fleet(shards=4)
    first = "pykcl" if joins == "java" else "java"
    start(fleet, first, "old")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    start(fleet, joins, "new")
    fleet.wait_balanced("old", "new")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    assert fleet.ledger.by("new")


@pytest.mark.parametrize("dies", LIBRARIES)
def test_when_one_library_dies_the_other_takes_over_everything(new_fleet, dies):
    fleet = new_fleet(shards=4)
    survives = "pykcl" if dies == "java" else "java"
    start(fleet, dies, "dead")
    start(fleet, survives, "alive")
    fleet.wait_balanced("dead", "alive")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.kill("dead")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered(TAKE_OVER)
    fleet.wait_balanced("alive")


def half_of_an_aggregate(library, fleet):
    """Options of a worker that checkpoints in the middle of what it was given, and then does nothing more."""
    if library == "java":
        return {"application": lambda _, __, records: records[1].position}

    class Halfway(CheckedProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            batch.checkpointer.checkpoint(batch.records[1])

    return {"processor": lambda: Halfway("dead", fleet), "checkpoint_mode": "manual"}


@pytest.mark.parametrize("dies", LIBRARIES)
def test_the_other_library_goes_on_in_the_middle_of_an_aggregated_record(new_fleet, dies):
    fleet = new_fleet(shards=1)
    shard = one_shard_owned_by(fleet, dies, "dead", **half_of_an_aggregate(dies, fleet))
    fleet.put_everywhere(packed=4)
    number = fleet.positions[shard][0].sequence_number
    fleet.wait(lambda: fleet.last_checkpoint_at(shard, Checkpoint(number, 1)), what="the checkpoint")
    fleet.simulation.kill("dead")
    start(fleet, "pykcl" if dies == "java" else "java", "alive")
    fleet.wait(lambda: len(fleet.ledger.by("alive")) >= 2, what="the rest")
    assert fleet.ledger.by("alive") == [b"p1.2", b"p1.3"]
    assert fleet.starts[-1] == ("alive", shard, Checkpoint(number, 1))


@pytest.mark.parametrize("old", LIBRARIES)
def test_a_fleet_is_moved_from_one_library_to_the_other_worker_by_worker(new_fleet, old):
    fleet = new_fleet(shards=4)
    new = "pykcl" if old == "java" else "java"
    workers = {f"{old}{number}": start(fleet, old, f"{old}{number}") for number in (1, 2)}
    fleet.put_everywhere(2, packed=2)
    fleet.wait_all_delivered()
    for number, worker in enumerate(list(workers.values()), start=1):
        workers[f"{new}{number}"] = start(fleet, new, f"{new}{number}")
        fleet.simulation.sleep(20)
        fleet.put_everywhere(2, packed=2)
        fleet.split(fleet.open_shards()[0])
        fleet.put_everywhere(2, packed=2)
        worker.stop()
        fleet.put_everywhere(2, packed=2)
        fleet.wait_all_delivered()
    fleet.put_everywhere()
    fleet.wait_all_delivered()
    fleet.wait_balanced(f"{new}1", f"{new}2")
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), what="deletion of the ended leases")


@pytest.mark.parametrize("of_first", LIBRARIES)
def test_a_merge_whose_parents_are_read_by_different_libraries_ends_both_before_the_child(
    new_fleet, of_first
):
    fleet = new_fleet(shards=2)
    of_second = "pykcl" if of_first == "java" else "java"
    start(fleet, of_first, of_first)
    start(fleet, of_second, of_second)
    fleet.wait_balanced("java", "pykcl")
    parents = fleet.open_shards()
    fleet.put_everywhere(3)
    fleet.merge_first_two()
    fleet.put_everywhere(3)
    (child,) = fleet.open_shards()
    fleet.wait_all_delivered()
    fleet.wait(lambda: set(fleet.rows()) == {child}, what="deletion of both parents' leases")
    assert {shard for _, shard, _ in fleet.starts} == {*parents, child}


def test_a_lease_that_pykcl_ended_is_taken_and_cleaned_up_by_java(new_fleet):
    fleet = new_fleet(shards=1)
    parent = one_shard_owned_by(fleet, "pykcl", "p1", cleanup_interval=0.0)
    fleet.put_everywhere(1)
    fleet.split(parent)
    fleet.wait(lambda: fleet.rows()[parent].checkpoint == AT_SHARD_END, what="the end of the parent")
    fleet.start_java("j1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.wait(lambda: parent not in fleet.rows(), what="deletion of the parent's lease")
    assert [event.shard for event in fleet.java_did("deleted")] == [parent]


def let_java_read_the_children_of_what_pykcl_ended(fleet):
    parent = one_shard_owned_by(fleet, "pykcl", "p1")
    fleet.put_everywhere(packed=3)
    fleet.split(parent)
    fleet.wait(lambda: fleet.rows()[parent].is_ended, what="the end of the parent")
    fleet.simulation.kill("p1")
    fleet.start_java("j1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered(TAKE_OVER)
    assert {shard for worker, shard, _ in fleet.starts if worker == "j1"} == set(fleet.open_shards())


def test_java_reads_the_children_of_a_shard_that_pykcl_ended(new_fleet):
    let_java_read_the_children_of_what_pykcl_ended(new_fleet(shards=1))


def test_a_sub_sequence_number_left_at_shard_end_would_block_java_for_ever(new_fleet, monkeypatch):
    leave_out_of_updates(monkeypatch, "checkpointSubSequenceNumber", {"end"})
    with pytest.raises(AssertionError, match="delivery of everything did not come"):
        let_java_read_the_children_of_what_pykcl_ended(new_fleet(shards=1))


def let_pykcl_go_on_after_java_in_small_batches(fleet):
    shard = one_shard_owned_by(fleet, "java", "j1")
    fleet.put_everywhere(packed=5)
    fleet.wait(lambda: fleet.rows()[shard].checkpoint.sub_sequence_number == 4, what="the checkpoint")
    fleet.simulation.kill("j1")
    fleet.put_everywhere(2, packed=5)
    fleet.start_pykcl("p1", max_records=2)
    fleet.wait_all_delivered()


def test_pykcl_goes_on_after_java_in_small_batches(new_fleet):
    let_pykcl_go_on_after_java_in_small_batches(new_fleet(shards=1))


def test_a_sub_sequence_number_left_over_from_java_would_pass_undelivered_records(new_fleet, monkeypatch):
    leave_out_of_updates(monkeypatch, "checkpointSubSequenceNumber", {"checkpoint"})
    fleet = new_fleet(shards=1)
    with pytest.raises(AssertionError, match="passes undelivered"):
        let_pykcl_go_on_after_java_in_small_batches(fleet)
    fleet.broken.clear()


def test_a_lease_that_java_ended_is_cleaned_up_by_pykcl(new_fleet):
    fleet = new_fleet(shards=1)
    parent = one_shard_owned_by(fleet, "java", "j1", cleanup_interval=1e6)
    fleet.put_everywhere(1)
    fleet.split(parent)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.start_pykcl("p1")
    fleet.wait(lambda: parent not in fleet.rows(), what="deletion of the parent's lease")
    assert not fleet.java_did("deleted")


def test_what_java_prepared_reaches_the_processor_that_takes_over(new_fleet):
    fleet = new_fleet(shards=1)
    shard = one_shard_owned_by(fleet, "java", "j1", two_phase=True)
    fleet.put_everywhere(1)
    # The first write of a checkpoint comes after that of its preparation; no checkpoint is ever written.
    fleet.dynamodb.fault = lambda _, params: (
        Fault(before=timed_out())
        if "checkpoint" in params.get("AttributeUpdates", {})
        and params["AttributeUpdates"]["pendingCheckpoint"]["Action"] == "DELETE"
        else None
    )
    fleet.wait(lambda: fleet.rows()[shard].pending is not None, what="a prepared checkpoint")
    fleet.simulation.kill("j1")
    fleet.start_pykcl("p1")
    fleet.wait(lambda: fleet.pendings, what="the take-over")
    assert fleet.pendings[0].checkpoint == fleet.positions[shard][0]


def test_what_pykcl_noted_in_a_row_survives_every_write_of_java(new_fleet):
    fleet = new_fleet(shards=1)
    shard = one_shard_owned_by(fleet, "pykcl", "p1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.workers["p1"].stop()
    noted = fleet.items()[shard]["pykcl"]
    one_shard_owned_by(fleet, "java", "j1")
    fleet.put_everywhere(3)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.java_did("checkpointed"), what="a checkpoint")
    assert fleet.items()[shard]["pykcl"] == noted


@pytest.mark.parametrize("sleeper", ["p1", "j1"])
def test_a_frozen_worker_of_either_library_writes_nothing_after_it_was_taken_over(new_fleet, sleeper):
    fleet = new_fleet(shards=1)
    library, other = ("pykcl", "java") if sleeper == "p1" else ("java", "pykcl")
    shard = one_shard_owned_by(fleet, library, sleeper)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    start(fleet, other, "heir")
    fleet.simulation.sleep(1)
    awake_at = fleet.simulation.now + 60
    fleet.simulation.freeze(sleeper, 60)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait_owner("heir", shard)
    before = len(fleet.dynamodb.changes)
    fleet.simulation.sleep(awake_at + 10 - fleet.simulation.now)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    writers = {change.after["leaseOwner"]["S"] for change in fleet.dynamodb.changes[before:] if change.after}
    assert writers == {"heir"}
