"""Stops in phases that last only moments."""

import pytest

from pykcl.errors import StopTimedOut
from pykcl.events import LeaseReleased, ThreadsNotStopped, WorkerStarted
from pykcl.testing.fleet import RecordingProcessor


def test_a_stop_out_of_initialize_returns_even_if_the_thread_was_only_just_started(new_fleet):
    """Its starter had not entered it among the worker's threads: it waited for itself until the grace was over."""
    fleet = new_fleet(shards=1)
    took = []

    class StopsAtOnce(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            began = fleet.simulation.now
            fleet.workers["w1"].stop()
            took.append(fleet.simulation.now - began)

    worker = fleet.worker("w1", processor=lambda: StopsAtOnce("w1", fleet.ledger))
    spawn = worker._runtime.spawn

    def spawn_slowly(name, body):
        task = spawn(name, body)
        if "shardId" in name:
            fleet.simulation.sleep(1.0)
        return task

    worker._runtime.spawn = spawn_slowly
    worker.start()
    fleet.wait(lambda: took, 60.0, "initialize")
    worker.stop()
    assert took[0] < 2.0
    assert fleet.owners() == {"shardId-000000000000": None}


def test_a_signal_that_comes_while_a_worker_connects_lets_nothing_start(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.worker("w1")
    connect = worker._connect

    def interrupted():
        context = connect()
        worker._signals.ask(1)
        return context

    worker._connect = interrupted
    worker.run()
    assert not fleet.happened(WorkerStarted)
    assert worker.status().state == "stopped"
    assert fleet.owners() == {}


def test_a_second_signal_does_not_force_a_worker_whose_processor_does_not_run(new_fleet):
    """The leases were left to expire although nothing of the application's was running."""
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker._held) == 2, 60.0, "both leases")
    worker._signals.ask(2)
    worker.stop()
    assert not fleet.happened(ThreadsNotStopped)
    assert len(fleet.happened(LeaseReleased)) == 2
    assert set(fleet.owners().values()) == {None}


def test_a_second_signal_forces_the_busy_processor_and_releases_the_other_leases(new_fleet):
    fleet = new_fleet(shards=2)
    hang = fleet.simulation.runtime("w1").event()
    worker = fleet.start(
        "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, lambda batch: hang.wait())
    )
    fleet.put(1)
    fleet.wait(
        lambda: len(worker._held) == 2 and "process_records" in worker.activities.values(), 60.0, "a batch"
    )
    (busy,) = [key for key, doing in worker.activities.items() if doing == "process_records"]
    worker._signals.ask(2)
    with pytest.raises(StopTimedOut) as caught:
        worker.stop(grace=60.0)
    assert caught.value.threads == (f"pykcl-{busy}",)
    assert {key for key, owner in fleet.owners().items() if owner} == {busy}
    hang.set()
