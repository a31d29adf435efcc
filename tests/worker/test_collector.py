"""The garbage collector: what `run` does to it, what `start` leaves alone, and what pages and heartbeats leave to it."""

import gc
import threading

import boto3
import pytest

from pykcl import RecordProcessor, Worker
from pykcl.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.worker import worker as module

START = {"initial_position": "TRIM_HORIZON"}


@pytest.fixture
def untouched(monkeypatch):
    """The collector as Python starts with it, during the test and after it."""
    monkeypatch.setattr(module, "_is_tuned", False)
    thresholds = gc.get_threshold()
    gc.unfreeze()
    yield thresholds
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture
def worker(monkeypatch):
    class Counting(RecordProcessor):
        records = 0
        came = threading.Event()

        def process_records(self, batch):
            for record in batch:
                Counting.records += len(record.data) > 0
            self.came.set()

    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        client = boto3.client("kinesis")
        client.create_stream(StreamName="orders", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
        found = Worker("collector", stream="orders", processor=Counting, failover_time=20.0, **START)
        found.client, found.counting = client, Counting
        yield found
        found.stop()


def test_run_excludes_what_exists_after_the_start_once_in_a_process(untouched):
    module.tune_collector()
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold() == (50_000, *untouched[1:])
    gc.unfreeze()
    gc.set_threshold(200_000)
    module.tune_collector()
    assert (gc.get_freeze_count(), gc.get_threshold()[0]) == (0, 200_000), "a second run changes nothing"


def test_a_threshold_that_is_higher_already_stays(untouched):
    gc.set_threshold(200_000)
    module.tune_collector()
    assert gc.get_threshold()[0] == 200_000


@pytest.mark.parametrize("tune_gc", [True, False])
def test_run_tunes_after_the_start_unless_told_not_to(worker, monkeypatch, tune_gc):
    states = []
    monkeypatch.setattr(module, "tune_collector", lambda: states.append(worker.status().state))
    thread = threading.Thread(target=lambda: worker.run(tune_gc=tune_gc))
    thread.start()
    put(worker, 1)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert states == ["running"] * tune_gc


def test_start_leaves_the_collector_alone(worker, untouched):
    worker.start()
    put(worker, 1)
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, untouched)


def test_pages_checkpoints_and_heartbeats_leave_no_cycles(worker):
    """Everything that they create is freed when its last reference goes, without a collection."""
    worker.start()
    put(worker, 2)
    for _ in range(10):
        left = cycles_left(worker)
        if not any(isinstance(each, Exception) for each in left):
            break  # No request failed meanwhile: what is tried again leaves tenacity's cycles, with the exception in them.
    names = {str(getattr(each, "__module__", "")) for each in left}
    assert not {name for name in names if name.startswith("pykcl.") and not name.startswith("pykcl.local")}


def cycles_left(worker):
    """What a collection finds after five pages, their checkpoints, and five heartbeats."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            put(worker, 1)
            for held in worker._held.all():
                assert held.renew_if_due(give=worker.config.failover_time)
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def put(worker, pages):
    """Put a record and wait until it is processed, so many times."""
    for _ in range(pages):
        worker.counting.came.clear()
        worker.client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        assert worker.counting.came.wait(60)
