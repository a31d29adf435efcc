"""A program whose main thread ends while its worker runs: the worker stops as with SIGTERM, before Python ends the threads."""

import os
import sys

import boto3
import pytest

from pykcl.errors import TemporaryError
from pykcl.events import LeaseLost, WorkerStopped
from pykcl.runtime import SystemRuntime
from tests.program import Program

PROGRAM = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pykcl import Record, Worker, handler

pool = ThreadPoolExecutor(1)
# Python 3.12 starts no thread any more once the main thread has ended.
pool.submit(int).result()
has_begun = threading.Event()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def show(record: Record):
    say("got", record.text())
    has_begun.set()
    threading.Event().wait(float(sys.argv[2]))
    # While the worker stops the pool still works.
    pool.submit(say, "done", record.text()).result()

def make():
    return Worker(
        "orders-app", stream="orders", initial_position="TRIM_HORIZON", failover_time=2, metrics="cloudwatch",
        processor=handler(show, concurrency=2), on_event=lambda event: say("event", type(event).__name__),
    )

worker, other = make(), make()
how = sys.argv[1]
if how == "start":
    worker.start()
else:
    threading.Thread(target=worker.run, daemon=how == "daemon").start()
has_begun.wait()
if how == "raise":
    raise ValueError("of main")
if how == "late":
    late = threading.Event()
    def begin():
        late.wait(float(sys.argv[2]) + 2)
        try:
            other.start()
        except Exception as error:
            say("late", type(error).__name__, error)
    threading.Thread(target=begin).start()
sys.exit(3)
"""
TOLD = "the program ended and its worker runs: it stops as with SIGTERM; let the main thread call run() or join()"


@pytest.fixture
def program(kinesis, tmp_path):
    """program(how, seconds): one with a record in hand for so long when its main thread ends, once it has ended."""
    kinesis.create_stream("orders")
    kinesis.put("orders", "a")
    path = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
    (tmp_path / "ends.py").write_text(PROGRAM)
    started = []

    def run(how, seconds):
        environment = {**os.environ, "PYTHONPATH": path}
        started.append(Program(tmp_path, "ends.py", how, str(seconds), environment=environment))
        started[0].process.wait(120)
        return started[0]

    yield run
    for each in started:
        each.end()


def row():
    (found,) = boto3.client("dynamodb").scan(TableName="orders-app")["Items"]
    return found


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("start", 3),
        ("thread", 3),
        pytest.param("daemon", 3, marks=pytest.mark.slow),
        pytest.param("raise", 1, marks=pytest.mark.slow),
    ],
)
def test_the_worker_finishes_its_batch_and_releases_its_leases(program, how, code):
    ended = program(how, 0.5)
    said, errors = ended.out.read_text(), ended.err.read_text()
    assert ended.process.returncode == code
    assert errors.count(TOLD) == 1
    assert errors.count("Traceback") == (how == "raise")
    assert "done a" in said
    assert said.count("event WorkerStopped") == 1
    assert "leaseOwner" not in row()
    assert int(row()["checkpoint"]["S"]) > 0


@pytest.mark.slow  # the stop lasts longer than the lease
def test_heartbeats_are_sent_while_the_worker_finishes_its_batch(program):
    """There is no thread to be had any more for the first of them."""
    ended = program("start", 5)
    assert "Traceback" not in ended.err.read_text()
    assert LeaseLost.__name__ not in ended.out.read_text()
    assert "leaseOwner" not in row()
    assert int(row()["checkpoint"]["S"]) > 0
    assert int(row()["leaseCounter"]["N"]) > 4


def test_a_worker_that_is_started_after_the_end_is_refused(program):
    ended = program("late", 0)
    assert "late PyKclError The main thread of this program has ended" in ended.out.read_text()
    assert ended.out.read_text().count("event WorkerStarted") == 1
    assert "Traceback" not in ended.err.read_text()


# -- threads that cannot be had ----------------------------------------------------------------------------------


def refuse_threads(monkeypatch, simulation_runtime, names):
    spawn = type(simulation_runtime).spawn

    def refusing(self, name, body):
        if any(name.startswith(each) for each in names):
            raise TemporaryError(f"Thread {name} could not be started: can't start new thread.")
        return spawn(self, name, body)

    monkeypatch.setattr(type(simulation_runtime), "spawn", refusing)


def test_without_a_thread_for_them_heartbeats_are_sent_by_the_one_that_knows_when(new_fleet, monkeypatch):
    fleet = new_fleet(shards=4)
    refuse_threads(monkeypatch, fleet.simulation.runtime("w1"), ["pykcl-renewer-"])
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker.leases) == 4)
    began = fleet.simulation.now
    fleet.wait(lambda: fleet.simulation.now > began + 60)
    assert not fleet.happened(LeaseLost)
    worker.stop()
    assert fleet.happened(WorkerStopped)
    assert fleet.load() == {None: 4}


def test_a_lease_for_which_there_is_no_thread_is_taken_once_there_is_one(new_fleet, monkeypatch):
    fleet = new_fleet(shards=2)
    with monkeypatch.context() as patch:
        refuse_threads(patch, fleet.simulation.runtime("w1"), ["pykcl-shardId"])
        worker = fleet.start("w1")
        fleet.wait(lambda: any("could not be started" in each.cause for each in worker.status().troubles))
        assert not worker.leases
    fleet.wait(lambda: len(worker.leases) == 2)
    assert worker.failure is None
    worker.stop()


def test_a_thread_that_the_system_refuses_is_no_bug_of_pykcl(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(
        TemporaryError, match=r"pykcl-x could not be started: can't start new thread.*max_leases"
    ):
        SystemRuntime().spawn("pykcl-x", lambda: None)
