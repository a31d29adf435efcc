"""Real processes: `pykcl run` twice beside the embedded local AWS, killed, stopped, and stopped by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

import boto3
import pytest

from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.worker.signals import REPEAT_SECONDS

PROGRAM = """
import os
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def initialize(self, init):
        self.shard = init.shard_id
    def process_records(self, batch):
        for record in batch:
            os.write(1, record.data + b"\\n")  # one write: print() makes two, and threads get in between
"""


@pytest.fixture
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 4)
        yield aws


@pytest.fixture
def dynamodb(aws, monkeypatch):
    for name, value in local_environment(aws.url).items():
        monkeypatch.setenv(name, value)
    return boto3.client("dynamodb")


class Process:
    """One `pykcl run`, its output in a file."""

    def __init__(self, folder, aws, name):
        self.name = name
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        (folder / "program.py").write_text(PROGRAM)
        options = ["--option", "failover_time=2", "--start", "TRIM_HORIZON", "--worker-id", name]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pykcl.cli",
                    "run",
                    "program:Orders",
                    "--app",
                    "orders-app",
                    "--stream",
                    "orders",
                    *options,
                ],
                cwd=folder,
                env={**os.environ, **local_environment(aws.url)},
                stdout=out,
                stderr=err,
            )

    @property
    def seen(self):
        return set(self.out.read_text().split())

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path, aws):
    started = []

    def begin(name):
        started.append(Process(tmp_path, aws, name))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def _wait(condition, what, seconds=45.0):
    deadline = time.monotonic() + seconds
    pause = __import__("threading").Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        pause.wait(0.02)


def _owners(dynamodb):
    try:
        items = dynamodb.scan(TableName="orders-app")["Items"]
    except dynamodb.exceptions.ResourceNotFoundException:
        return {}
    return {item["leaseKey"]["S"]: item.get("leaseOwner", {}).get("S") for item in items}


def _shared(dynamodb):
    owners = list(_owners(dynamodb).values())
    return len(owners) == 4 and all(owners.count(name) == 2 for name in ("one", "two"))


def _put(aws, count, prefix):
    payloads = [f"{prefix}{number}" for number in range(count)]
    for payload in payloads:
        aws.kinesis.put_record("orders", payload.encode(), payload)
    return set(payloads)


def test_the_shards_of_a_killed_process_are_delivered_by_the_other(start, aws, dynamodb):
    one, two = start("one"), start("two")
    _wait(lambda: _shared(dynamodb), "an even share")
    first = _put(aws, 40, "first")
    _wait(lambda: one.seen | two.seen >= first, "delivery")
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    second = _put(aws, 40, "second")
    _wait(lambda: two.seen >= second, "delivery by the survivor")
    assert set(_owners(dynamodb).values()) == {"two"}


def test_sigterm_releases_at_counter_plus_one_and_the_other_takes_over(start, aws, dynamodb):
    one, two = start("one"), start("two")
    _wait(lambda: _shared(dynamodb), "an even share")
    first = _put(aws, 40, "first")
    _wait(lambda: one.seen | two.seen >= first, "delivery")
    mine = {key for key, owner in _owners(dynamodb).items() if owner == "one"}
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(30) == 0
    second = _put(aws, 40, "second")
    _wait(lambda: two.seen >= second, "delivery by the other")
    writes = [r for r in aws.requests if r.operation == "UpdateItem" and r.error_code is None]
    for key in mine:
        by_one = [
            r.parameters
            for r in writes
            if r.parameters["Key"]["leaseKey"]["S"] == key
            and r.parameters["ExpressionAttributeValues"].get(":seenOwner", {}).get("S") == "one"
        ]
        last = by_one[-1]
        values = last["ExpressionAttributeValues"]
        assert "leaseOwner" in last["UpdateExpression"].split("REMOVE")[1]
        assert int(values[":leaseCounter"]["N"]) == int(values[":seenCounter"]["N"]) + 1
    assert "Traceback" not in one.err.read_text()


def test_ctrl_c_ends_a_worker_cleanly_with_exit_code_zero(start, aws, dynamodb):
    one = start("one")
    put = _put(aws, 8, "r")
    _wait(lambda: one.seen >= put, "delivery")
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(30) == 0
    assert set(_owners(dynamodb).values()) == {None}
    assert "Traceback" not in one.err.read_text()


STUCK = """
import os, threading
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        os.write(1, b"stuck\\n")
        threading.Event().wait()
"""


def test_a_second_signal_forces_the_end_of_a_worker_whose_processor_hangs(start, aws, dynamodb, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", STUCK)
    _put(aws, 8, "r")
    one = start("one")
    _wait(lambda: "stuck" in one.seen, "the hanging batch")
    one.process.send_signal(signal.SIGTERM)
    _wait(lambda: "worker stops" in one.err.read_text(), "the drain")
    heard_at = time.monotonic()
    _wait(lambda: time.monotonic() - heard_at >= REPEAT_SECONDS, "the end of one request")
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(30) == 70
    assert "still busy when a second signal came" in one.err.read_text()
