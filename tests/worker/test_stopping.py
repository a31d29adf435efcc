"""Stops: what they wait for, what they name, and what they do not begin any more."""

from contextlib import suppress

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.errors import StopTimedOut, TableGone
from pykcl.event_dispatch import log_event
from pykcl.events import (
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    ThreadsNotStopped,
)
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime import Simulation
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.lease_renewer import LeaseRenewer

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def _silent(*operations):
    """A fault: DynamoDB takes these requests and does not answer. Its list tells which came."""
    came = []

    def fault(operation, params):
        if operation not in operations:
            return None
        came.append(params)
        return Fault(before=ReadTimeoutError(endpoint_url="-"), delay=2.0)

    return fault, came


class _Beating:
    """A lease that is held, as the renewer sees it; `beat` is set at its first heartbeat."""

    key, is_over, is_in_doubt, next_renewal = "A", False, False, 0.0

    def __init__(self, key, runtime, beat):
        self.key, self._runtime, self._beat = key, runtime, beat

    def next_heartbeat(self, again_at):
        return max(self.next_renewal, again_at)

    def renew_if_due(self, give):
        self.next_renewal = self._runtime.monotonic() + 100.0
        self._beat.set()


def test_a_stop_does_not_wait_for_all_the_leases_that_are_due_for_deletion(new_fleet):
    fleet = new_fleet(shards=6)
    worker = fleet.start("w1", cleanup_interval=60.0)
    parents = fleet.open_shards()
    fleet.wait_delivered(fleet.put(30))
    for shard in parents:
        fleet.kinesis.split(STREAM, shard)
    fleet.wait_delivered(fleet.put(60))
    fleet.dynamodb.fault, came = _silent("DeleteItem")
    fleet.wait(lambda: came, 120, "the first deletion")
    assert {key for key, row in fleet.rows().items() if row.is_ended} == set(parents)
    began = fleet.simulation.now
    worker.stop(grace=12.0)
    assert fleet.simulation.now - began < 12
    assert not fleet.happened(ThreadsNotStopped)
    assert not fleet.simulation.unfinished("w1")
    assert not fleet.happened(LeaseDeleted)


def test_a_stop_does_not_wait_for_all_the_leases_of_a_start(new_fleet):
    fleet = new_fleet(shards=6)
    worker = fleet.worker("w1")
    fleet.dynamodb.fault, came = _silent("PutItem")
    worker.start()
    fleet.wait(lambda: came, 30, "the first creation")
    fleet.dynamodb.fault = lambda operation, params: Fault(delay=4.0) if operation == "PutItem" else None
    worker.stop(grace=12.0)
    assert not fleet.happened(ThreadsNotStopped)
    assert not fleet.simulation.unfinished("w1")


def test_a_stop_does_not_wait_for_the_answers_about_all_expired_parents(new_fleet):
    fleet = new_fleet(shards=12)
    for shard in fleet.open_shards():
        fleet.kinesis.split(STREAM, shard)
    fleet.simulation.sleep(25 * 3600)
    asked = []

    def slow(operation, stream, shard):
        if operation == "GetShardIterator":
            asked.append(shard)
            fleet.simulation.sleep(2.0)

    fleet.kinesis.fault = slow
    worker = fleet.start("w1")
    fleet.wait(lambda: len(asked) == 2, 30, "the second question")
    began = fleet.simulation.now
    worker.stop(grace=8.0)
    assert fleet.simulation.now - began < 3
    assert len(asked) == 2
    assert not fleet.simulation.unfinished("w1")
    assert fleet.items() == {}


def test_a_manager_that_is_still_busy_at_the_end_of_the_grace_is_named(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", shard_sync_interval=5.0)
    fleet.wait_delivered(fleet.put(3))
    answers, hanging = fleet.simulation.runtime("w1").event(), []

    def hang(operation, stream, shard):
        if operation == "ListShards":
            hanging.append(operation)
            answers.wait()

    fleet.kinesis.fault = hang
    fleet.wait(lambda: hanging, 30, "a listing without an answer")
    with pytest.raises(StopTimedOut, match="pykcl-manager") as caught:
        worker.stop(grace=3.0)
    assert caught.value.threads == ("pykcl-manager",)
    assert [event.threads for event in fleet.happened(ThreadsNotStopped)] == [("pykcl-manager",)]
    answers.set()
    fleet.wait(lambda: not fleet.simulation.unfinished("w1"), 10, "the end of the manager")
    assert set(fleet.owners().values()) == {None}


@pytest.mark.parametrize("seed", range(30))
def test_heartbeats_that_are_told_to_stop_do_not_sleep_first(seed):
    """1) A helper sees no stop; 2) the stop wakes all helpers; 3) the helper clears what wakes them, and sleeps."""
    with Simulation(seed=seed) as simulation:
        runtime = simulation.runtime("w1")
        held, beat = HeldLeases(runtime), runtime.event()
        for key in "ABCD":
            held.add(_Beating(key, runtime, beat))
        trouble = FailureTracker(lambda event: None, runtime)
        renewer = LeaseRenewer(held, runtime, trouble, name="w1", on_fatal=pytest.fail)
        renewer.start()
        beat.wait()
        renewer.stop()
        asked = simulation.now
        simulation.run_until(lambda: not any(task.is_alive() for task in renewer.tasks), 10.0)
        assert simulation.now < asked + 0.2


@pytest.mark.parametrize("seed", range(30))
def test_no_thread_for_heartbeats_begins_once_they_are_told_to_stop(seed):
    """1) The renewer sees no stop; 2) the stop waits for the threads that there are; 3) a helper is started."""
    with Simulation(seed=seed) as simulation:
        runtime = simulation.runtime("w1")
        held, beat = HeldLeases(runtime), runtime.event()
        renewer = LeaseRenewer(
            held, runtime, FailureTracker(lambda event: None, runtime), name="w1", on_fatal=pytest.fail
        )
        renewer.start()
        for key in "ABCD":
            held.add(_Beating(key, runtime, beat))
        renewer.stop()
        there = renewer.tasks
        simulation.run_until(lambda: not any(task.is_alive() for task in renewer.tasks), 10.0)
        assert renewer.tasks == there


def test_of_two_stops_neither_returns_before_the_heartbeats_have_ended(new_fleet):
    fleet = new_fleet(shards=2)
    hang = fleet.simulation.runtime("w1").event()
    worker = fleet.start(
        "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, lambda batch: hang.wait())
    )
    fleet.put(9)
    fleet.wait(lambda: any(call[1] == "process_records" for call in fleet.ledger.calls))
    left = []

    def stop():
        with suppress(StopTimedOut):
            worker.stop(grace=7.0)
        left.append({task.name for task in fleet.simulation.unfinished("w1") if "renewer" in task.name})

    for name in ("one", "other"):
        fleet.simulation.runtime("main").spawn(name, stop)
    fleet.wait(lambda: len(left) == 2, 30)
    assert left == [set(), set()]


def test_a_stop_that_comes_while_the_worker_starts_is_kept(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    started = []
    fleet.simulation.spawn("starter", "main", lambda: (worker.start(), started.append(1)))
    worker.stop()
    fleet.wait(lambda: started)
    put = fleet.put(4)
    fleet.simulation.sleep(30)
    assert worker.leases == ()
    assert not set(put) & set(fleet.ledger.payloads)


def test_a_processor_may_ask_its_own_worker_to_stop(new_fleet):
    fleet = new_fleet(shards=2)
    workers = []

    class LastOne(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            workers[0].stop()

    put = fleet.put(4)
    workers.append(fleet.worker("w1", processor=lambda: LastOne("w1", fleet.ledger)))
    began = fleet.simulation.now
    workers[0].run()
    assert fleet.simulation.now - began < 10
    assert set(fleet.owners().values()) == {None}
    assert set(fleet.ledger.payloads) <= set(put)


def test_a_with_block_raises_what_stopped_its_worker_and_readiness_ends_with_it(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.worker("w1")

    def body():
        with worker:
            assert worker.wait_ready(30)
            fleet.dynamodb.delete_table(TableName=TABLE)
            fleet.wait(lambda: worker.failure is not None, 30)
            began = fleet.simulation.now
            assert not worker.wait_ready(600)
            assert fleet.simulation.now - began < 5

    with pytest.raises(TableGone):
        body()
    assert not worker.wait_ready(1)


def _stopped_as_a_thief(fleet, grace):
    """Let w2 steal a shard from w1, which reads it, and stop right then. Return the shard, and how long the stop took."""
    fleet.start("w1", failover_time=10.0)
    fleet.wait_delivered(fleet.put(20))
    thief = fleet.start("w2", failover_time=10.0)
    fleet.wait(
        lambda: any(event.reason == "rebalance" for event in fleet.happened(LeaseTaken)), 60, "a steal"
    )
    (stolen,) = thief.leases
    began = fleet.simulation.now
    thief.stop(grace)
    assert fleet.owners()[stolen] is None
    assert not fleet.happened(ThreadsNotStopped)
    return stolen, fleet.simulation.now - began


def test_a_thief_that_stops_keeps_the_lease_until_the_robbed_worker_has_noticed(new_fleet):
    """1) w2 takes a lease from w1; 2) w2 is stopped; 3) w3 sees a lease that nobody owns, and begins at once, while w1
    still reads: seed 130020006275."""
    fleet = new_fleet(shards=2)
    stolen, took = _stopped_as_a_thief(fleet, 25.0)
    assert took < 7
    about = [(name, type(event)) for name, event in fleet.events if getattr(event, "shard", "") == stolen]
    assert ("w1", LeaseLost) in about[: about.index(("w2", LeaseReleased))]


def test_a_thief_that_stops_waits_for_no_longer_than_its_grace(new_fleet):
    _, took = _stopped_as_a_thief(new_fleet(shards=2), 2.0)
    assert took < 2


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
    worker._signals.ask(signals)
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
    (left,) = fleet.happened(ThreadsNotStopped)
    assert left.threads == (thread,)
    caplog.clear()
    log_event(left)
    assert caplog.messages == [f"threads did not stop in time threads={thread}"]
    hang.set()
