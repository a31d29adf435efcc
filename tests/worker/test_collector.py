"""The garbage collector: what `run` does to it, what `start` leaves alone, and what pages and heartbeats leave to it."""

import gc
import os
import subprocess
import sys
import threading

import boto3
import pytest

from pykcl import RecordProcessor, Worker
from pykcl.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.worker import collector as module

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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's option")
def test_freed_pages_of_the_largest_size_return_to_the_system(monkeypatch):
    """Blocks of 10 MiB, freed and asked for again, as pages are: glibc keeps them by default."""
    program = """
from pykcl.worker.collector import return_large_blocks

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

applied = {apply}
before = resident()
for _ in range(2):
    # The last one lies above the others, so that what is freed below it is not at the end of the heap.
    pages = [bytearray(10 << 20) for _ in range(8)]
    last = bytearray(3 << 20)
    del pages
print(applied, (resident() - before) >> 10)
"""
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    kept = {}
    for apply in ("return_large_blocks()", "False"):
        command = [sys.executable, "-c", program.format(apply=apply)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        applied, megabytes = answer.stdout.split()
        kept[applied] = int(megabytes)
    if "True" not in kept:
        pytest.skip("THIS LIBC IS NOT GLIBC: it has no such option")
    assert kept["True"] <= 8
    assert kept["False"] > 40
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    assert not module.return_large_blocks()


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


PROGRAM = """
import collections, gc, threading
from pykcl import RecordProcessor, Worker

came = threading.Event()


class Reading(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            record.data
        came.set()


def batches():
    for _ in range(5):
        came.clear()
        assert came.wait(60)


def heartbeats():
    # No batch comes: each rise of the time that the lease is valid for is a heartbeat.
    for _ in range(3):
        before = valid_for()
        while (now := valid_for()) <= before:
            before = now
            threading.Event().wait(0.02)


def valid_for():
    (lease,) = worker.status().leases
    return lease.lease_valid_for


def left_by(what):
    for _ in range(10):
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        what()
        gc.collect()
        kinds = collections.Counter(str(type(each)) for each in gc.garbage)
        failed = any(isinstance(each, Exception) for each in gc.garbage)
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        # A request failed meanwhile: an exception holds the frames that it passed, and they hold it.
        if not failed:
            return kinds
    return "a request failed each time"


worker = Worker("collector", stream="orders", processor=Reading, initial_position="TRIM_HORIZON", failover_time=10.0)
worker.start()
batches()
print(left_by(batches), flush=True)
input()
print(left_by(heartbeats), flush=True)
worker.stop()
"""


def test_pages_polls_checkpoints_and_heartbeats_leave_no_cycles():
    """Everything that they create is freed when its last reference goes. The server and the producer are in another
    process than the worker, because theirs leave cycles."""
    with LocalAws() as aws:
        environment = {**os.environ, **local_environment(aws.url)}
        keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
        client = boto3.client("kinesis", endpoint_url=aws.url, **keys)
        client.create_stream(StreamName="orders", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, **pipes) as child:
            found = []
            reader = threading.Thread(target=lambda: found.append(child.stdout.readline()))
            reader.start()
            while reader.is_alive():
                client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
                reader.join(0.1)
            rest, _ = child.communicate("\n", timeout=60)
    assert [*found, *rest.splitlines(keepends=True)] == ["Counter()\n", "Counter()\n"]


def put(worker, pages):
    """Put a record and wait until it is processed, so many times."""
    for _ in range(pages):
        worker.counting.came.clear()
        worker.client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        assert worker.counting.came.wait(60)
