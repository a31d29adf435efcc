"""Servers that load the program and then fork their processes, each of which starts the worker that was made before."""

import contextlib
import importlib.util
import os
import signal
from collections import Counter
from pathlib import Path

import boto3
import pytest

from tests.program import Program

pytestmark = pytest.mark.slow  # real servers, of which a process dies and its leases expire

ORDERS = """
import os
from pykcl import Record, Worker, handler

def say(*words):
    # In one piece: threads and processes write at once.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def show(record: Record):
    say("got", record.text())

worker = Worker(
    "orders-app", stream="orders", processor=handler(show), initial_position="TRIM_HORIZON", failover_time=4
)
say("made", os.getpid())
"""
GUNICORN = """
from orders import say, worker

bind, workers, preload_app, control_socket_disable = "127.0.0.1:0", 4, True, True

def post_fork(server, process):
    worker.start()

def worker_exit(server, process):
    worker.stop()
"""
WSGI = """
from orders import worker

def app(environment, start_response):
    start_response("200 OK", [])
    return [worker.worker_id.encode()]
"""
CELERY = """
from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown
from orders import say, worker

app = Celery("tasks", broker="memory://")

@worker_process_init.connect
def begin(**_):
    worker.start()

@worker_process_shutdown.connect
def end(**_):
    worker.stop()
"""
SERVERS = {
    "gunicorn": ("-m", "gunicorn", "--config", "settings.py", "wsgi:app"),
    "celery": ("-m", "celery", "-A", "tasks", "worker", "--pool", "prefork", "--concurrency", "2"),
}


def owners():
    """How many leases each process holds, by its number."""
    rows = boto3.client("dynamodb").scan(TableName="orders-app")["Items"]
    return Counter(int(row["leaseOwner"]["S"].split(":")[1]) for row in rows if "leaseOwner" in row)


def records(program):
    return {line.split()[1] for line in program.out.read_text().splitlines() if line.startswith("got ")}


def started(server, kinesis, folder):
    """The server on a stream of eight shards and 100 records, once it reads; and the records."""
    if importlib.util.find_spec(server) is None:
        pytest.skip(f"{server} is not installed: pip install -e '.[dev]'")
    kinesis.create_stream("orders", 8)
    put = {record.text() for record in kinesis.put("orders", *map(str, range(100)))}
    for name, text in {"orders": ORDERS, "settings": GUNICORN, "wsgi": WSGI, "tasks": CELERY}.items():
        (folder / f"{name}.py").write_text(text)
    path = os.pathsep.join(filter(None, map(os.path.abspath, [folder, Path(__file__).parents[2]])))
    program = Program(folder, *SERVERS[server], environment={**os.environ, "PYTHONPATH": path})
    try:
        program.wait_for("got", program.out)
    except BaseException:
        program.end()
        raise
    return program, put


@pytest.mark.parametrize(("server", "processes"), [("gunicorn", 4), ("celery", 2)])
def test_the_processes_of_a_prefork_server_share_the_leases_and_release_them_at_its_end(
    kinesis, tmp_path, server, processes
):
    program, put = started(server, kinesis, tmp_path)
    try:
        even = [8 // processes] * processes
        program.wait(lambda: list(owners().values()) == even, f"{even} leases", 120)
        program.wait(lambda: records(program) == put, "every record", 120)
        assert program.stop() == 0
    finally:
        program.end()
    said, errors = program.out.read_text(), program.err.read_text()
    assert said.count("made ") == 1, "the program is loaded once"
    assert not owners(), "the leases are released"
    assert "code=E08" not in errors
    assert "bug in pykcl" not in errors


@pytest.mark.parametrize(("server", "processes"), [("gunicorn", 4), ("celery", 2)])
def test_the_process_in_place_of_a_killed_one_takes_its_share(kinesis, tmp_path, server, processes):
    """No record is lost, and the new one releases its leases.

    Celery is killed at the end. Its processes wait for tasks behind one lock, which is held for ever if its holder was
    killed, so that a broker without an event loop, as the one in memory, does not stop then.
    """
    program, put = started(server, kinesis, tmp_path)
    try:
        even = [8 // processes] * processes
        program.wait(lambda: list(owners().values()) == even, f"{even} leases", 120)
        killed = next(iter(owners()))
        os.kill(killed, signal.SIGKILL)
        put |= {record.text() for record in kinesis.put("orders", *map(str, range(100, 200)))}
        program.wait(lambda: records(program) == put, "every record", 120)
        program.wait(
            lambda: list(owners().values()) == even and killed not in owners(), f"{even} leases again", 120
        )
        if server != "celery":
            assert program.stop() == 0
            assert not owners(), "the leases are released"
    finally:
        for process in owners():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        program.end()
    said, errors = program.out.read_text(), program.err.read_text()
    assert said.count("made ") == 1, "the program is loaded once"
    assert "code=E08" not in errors
    assert "bug in pykcl" not in errors
