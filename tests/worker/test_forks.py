"""What user code forks: it has a copy of the worker, which does nothing, and signals that do what they did before."""

import ast
import os
import signal
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import boto3
import pytest

from pykcl.config import Config
from pykcl.errors import LeaseLostError
from pykcl.metrics import catalog
from pykcl.model.checkpoint import TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.processor import RecordProcessor
from pykcl.runtime import SystemRuntime
from pykcl.worker import signals
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.signals import OwnProcess, stop_signals_go_to
from pykcl.worker.worker import Worker
from tests.program import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

NOT_ENDED = 99


class Orders(RecordProcessor):
    def process_records(self, batch):
        pass


def forked(act):
    """How a forked process ends that does this: its exit code, or minus the signal that ended it."""
    process = os.fork()
    if process == 0:
        try:
            act()
        finally:
            os._exit(NOT_ENDED)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def leaves_by(leave):
    own = OwnProcess()

    def act():
        with own.alone_leaves("process_records", "s1"):
            leave()

    return act


def raises(error):
    def leave():
        raise error

    return leave


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (sys.exit, 0),
        (lambda: sys.exit(7), 7),
        (lambda: sys.exit("done"), 1),
        (raises(ValueError("mine")), 1),
        (raises(KeyboardInterrupt()), 1),
        (lambda: None, 1),
    ],
    ids=["exit", "exit 7", "exit with text", "raises", "Ctrl-C", "returns"],
)
def test_a_forked_process_ends_where_it_would_come_back_to_the_worker(leave, code):
    assert forked(leaves_by(leave)) == code


def test_what_it_raised_is_told_as_python_tells_it(capfd):
    forked(leaves_by(raises(ValueError("mine"))))
    assert "ValueError: mine" in capfd.readouterr().err


def test_what_it_has_written_is_not_lost(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert forked(leaves_by(lambda: (out.write("kept"), sys.exit(0)))) == 0
    assert (tmp_path / "out").read_text() == "kept"


class Broken:
    def write(self, text):
        raise BrokenPipeError

    flush = write


class Hanging:
    """Its lock is with a thread that is not there."""

    def write(self, text):
        threading.Event().wait()

    def flush(self):
        self.write("")


def interrupting(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("leave", [lambda: sys.exit("done"), raises(ValueError("mine")), lambda: None])
@pytest.mark.parametrize("stream", [None, Broken(), Hanging()], ids=["none", "broken", "hanging"])
def test_it_ends_whatever_stands_in_the_way_of_its_last_words(stream, leave, monkeypatch):
    monkeypatch.setattr(signals, "_LAST_WORDS", 0.2)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(signals.log, "error", interrupting)
    assert forked(leaves_by(leave)) == 1


def test_it_ends_whatever_the_program_does_with_exceptions(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *_: sys.exit(4))
    assert forked(leaves_by(raises(ValueError("mine")))) == 1


def test_in_the_process_of_the_worker_nothing_of_this_happens():
    own = OwnProcess()
    with own.alone_leaves("process_records", "s1"):
        pass
    with pytest.raises(SystemExit), own.alone_leaves("process_records", "s1"):
        sys.exit(3)


def test_a_forked_process_can_write_nothing_for_a_lease():
    runtime = SystemRuntime()
    table = SimpleNamespace(write=lambda write, until: pytest.fail("it was written"))
    lease = Lease(key="s1", checkpoint=Checkpoint(TRIM_HORIZON, 0), owner="w", counter=1)
    held = HeldLease(
        lease, runtime.monotonic(), table=table, runtime=runtime,
        config=Config(application="app", stream="s"), wake=runtime.event(), events=None,
    )  # fmt: skip

    def act():
        for lock in (held._one_write, held._state):
            lock.acquire()  # as the thread of the heartbeats may have had it, which is not there
        try:
            held.write(lambda lease: pytest.fail("it was built"))
        except LeaseLostError as refused:
            os._exit(0 if "was forked from the worker" in str(refused) else 1)

    assert forked(act) == 0
    held.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_forked_process_can_be_terminated(number):
    """multiprocessing does so with its own, and waits for them when the process ends."""
    ready, tell = os.pipe()
    former = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_signals_go_to(lambda *_: None), stop_signals_go_to(lambda *_: None):
            process = os.fork()
            if process == 0:
                os.write(tell, b"x")
                signal.alarm(20)
                while True:
                    signal.pause()
            assert os.read(ready, 1) == b"x"
            os.kill(process, number)
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -number
            assert signal.getsignal(number) is not signal.SIG_DFL
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, former)
        os.close(ready)
        os.close(tell)


def test_a_forked_process_may_leave_the_block_itself():
    def act():
        with stop_signals_go_to(lambda *_: None):
            inner = os.fork()
            if inner:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        os._exit(0)

    assert forked(act) == 0


# -- a worker that was made before the fork ---------------------------------------------------------------------


def test_each_process_that_is_forked_has_a_name_and_a_chance_of_its_own():
    """A server that loads the program before it forks starts the same worker in each of its processes."""
    worker = Worker("orders-app", stream="orders", processor=Orders)
    mine = worker.worker_id, SystemRuntime().random().getstate()
    answers, tell = os.pipe()

    def act():
        chance = worker._runtime.random().random()
        said = worker.worker_id, worker.status().worker_id, worker._metering.prometheus, chance
        os.write(tell, f"{said}\n".encode())
        os._exit(0)

    for _ in range(2):
        assert forked(act) == 0
    os.close(tell)
    with open(answers) as said:
        first, second = map(ast.literal_eval, said)
    assert mine == (worker.worker_id, SystemRuntime().random().getstate())
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert len({mine[0], first[0], second[0]}) == 3
    assert first[3] != second[3]


def test_a_name_that_was_given_stays_in_each_process():
    worker = Worker("orders-app", stream="orders", processor=Orders, worker_id="w1")
    assert forked(lambda: os._exit(0 if worker.worker_id == "w1" else 1)) == 0


def test_the_collector_that_was_registered_before_the_fork_names_the_worker_of_its_process():
    worker = Worker("orders-app", stream="orders", processor=Orders, metrics="prometheus")
    collector = worker.prometheus_collector()

    def act():
        worker._metering.meter.measure("", (catalog.TAKEN_LEASES, 1.0))
        is_same = worker.prometheus_collector() is collector
        os._exit(0 if is_same and worker.worker_id in collector.exposition()[0].decode() else 1)

    assert forked(act) == 0


def test_a_client_that_was_used_before_the_fork_does_not_share_its_connection(kinesis):
    """Two processes on one connection may each get the answer to the other."""
    clients = {service: boto3.client(service) for service in ("kinesis", "dynamodb")}
    used = clients["kinesis"]
    used.list_streams()
    worker = Worker("orders-app", stream="orders", processor=Orders, clients=clients)

    def connections():
        return sum(
            connection is not None
            for pool in used._endpoint.http_session._manager.pools._container.values()
            for connection in pool.pool.queue
        )

    def act():
        worker._aws_adapters()
        is_apart = connections() == 0
        used.list_streams()
        os._exit(0 if is_apart else 1)

    assert connections() == 1
    assert forked(act) == 0
    assert connections() == 1
    used.list_streams()
    worker._aws_adapters()
    assert connections() == 1


def test_a_forked_process_that_stops_the_worker_of_the_other_one_stops_nothing(kinesis):
    """As it does where it leaves the `with` block in which it was forked."""
    kinesis.create_stream("orders")
    with Worker("orders-app", stream="orders", processor=Orders, failover_time=5) as worker:
        assert worker.wait_ready(60)

        def act():
            worker.stop()
            os._exit(0 if worker.status().state in ("new", "stopped") and not worker.leases else 1)

        with worker._lock:
            assert forked(act) == 0
        assert worker.leases
        assert worker.status().state == "running"


PREFORK = """
import os, signal, sys
from pykcl import Record, Worker, handler

def say(*words):
    # In one piece: threads and processes write at once.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def show(record: Record):
    say("got", record.text())

options = dict(initial_position="TRIM_HORIZON", failover_time=3, on_event=lambda event: say("event", event))
made = Worker("orders-app", stream="orders", processor=handler(show), **options)
if "parent" in sys.argv:
    made.start()
children = {}
def fork():
    child = os.fork()
    if child == 0:
        made.run()
        os._exit(0)
    children[child] = None

def end(*_):
    for child in children:
        os.kill(child, signal.SIGTERM)
for _ in range(2):
    fork()
signal.signal(signal.SIGTERM, end)
while children:
    child, status = os.wait()
    del children[child]
    say("ended", child, os.waitstatus_to_exitcode(status))
made.stop()
"""


def owners():
    rows = boto3.client("dynamodb").scan(TableName="orders-app")["Items"]
    return Counter(row["leaseOwner"]["S"] for row in rows if "leaseOwner" in row)


@pytest.mark.slow  # two workers share the leases, and one of them dies, in real time
@pytest.mark.parametrize("who", ["children", "parent"])
def test_processes_that_start_the_worker_made_before_the_fork_share_the_leases(kinesis, tmp_path, who):
    """parent: it runs the worker, too, and has done so before it forked."""
    kinesis.create_stream("orders", 6)
    kinesis.put("orders", *map(str, range(30)))
    path = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
    (tmp_path / "prefork.py").write_text(PREFORK)
    program = Program(tmp_path, "prefork.py", who, environment={**os.environ, "PYTHONPATH": path})
    try:
        even = [2, 2, 2] if who == "parent" else [3, 3]
        program.wait_for("got", program.out)
        program.wait(lambda: list(owners().values()) == even, f"{even} leases")
        killed = next(int(owner.split(":")[1]) for owner in owners() if str(program.process.pid) not in owner)
        os.kill(killed, signal.SIGKILL)
        kinesis.put("orders", *map(str, range(30, 60)))
        program.wait(lambda: set(program.out.read_text().split()) >= set(map(str, range(60))), "every record")
        # Its shards may have got none of those.
        program.wait(
            lambda: all(int(owner.split(":")[1]) != killed for owner in owners()), "its leases to be taken"
        )
        assert program.stop() == 0
    finally:
        program.end()
    said = program.out.read_text()
    assert said.count("WorkerStarted") == len(even)
    assert not owners()
    assert "Traceback" not in program.err.read_text()
