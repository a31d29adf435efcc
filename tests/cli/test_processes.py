"""Real processes: `pykcl run` twice beside the embedded local AWS, killed, stopped, and stopped by Ctrl-C."""

import signal
import time

import pytest
from service_kit import GUARD, Service

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


class Worker(Service):
    @property
    def seen(self):
        return set(self.output.read_text().split())


@pytest.fixture
def start(tmp_path, aws):
    started = []

    def begin(name, program=PROGRAM, worker_id=None):
        (folder := tmp_path / name).mkdir()
        words = ("--app", "orders-app", "--stream", "orders", "--start", "TRIM_HORIZON")
        words += ("--worker-id", worker_id or name)
        # Long enough that no lease is lost while the machine is busy.
        quick = ("--option", "failover_time=5")
        started.append(Worker(folder, aws, "run", "program:Orders", *words, *quick, program=program))
        return started[-1]

    yield begin
    for process in started:
        process.end()


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
    two.until(lambda: _shared(dynamodb), "an even share")
    first = _put(aws, 40, "first")
    two.until(lambda: one.seen | two.seen >= first, "delivery")
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    second = _put(aws, 40, "second")
    two.until(lambda: two.seen >= second, "delivery by the survivor")
    assert set(_owners(dynamodb).values()) == {"two"}


def test_sigterm_releases_at_counter_plus_one_and_the_other_takes_over(start, aws, dynamodb):
    one, two = start("one"), start("two")
    two.until(lambda: _shared(dynamodb), "an even share")
    first = _put(aws, 40, "first")
    two.until(lambda: one.seen | two.seen >= first, "delivery")
    mine = {key for key, owner in _owners(dynamodb).items() if owner == "one"}
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(GUARD) == 0
    second = _put(aws, 40, "second")
    two.until(lambda: two.seen >= second, "delivery by the other")
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
    assert "Traceback" not in one.text


def test_two_processes_with_one_worker_identifier_say_so_and_lose_nothing(start, aws, dynamodb):
    """The second leaves the leases of the first alone, reports E08, and works on them once the first is gone."""
    one = start("one", worker_id="same")
    first = _put(aws, 40, "first")
    one.until(lambda: one.seen >= first, "delivery")
    two = start("two", worker_id="same")
    two.until(lambda: "code=E08" in two.text, "the report")
    second = _put(aws, 40, "second")
    two.until(lambda: one.seen | two.seen >= second, "delivery by either")
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    third = _put(aws, 40, "third")
    two.until(lambda: two.seen >= third, "delivery by the other")
    two.process.send_signal(signal.SIGTERM)
    assert two.process.wait(GUARD) == 0
    assert set(_owners(dynamodb).values()) == {None}
    assert "Traceback" not in two.text


def test_ctrl_c_ends_a_worker_cleanly_with_exit_code_zero(start, aws, dynamodb):
    one = start("one")
    put = _put(aws, 8, "r")
    one.until(lambda: one.seen >= put, "delivery")
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(GUARD) == 0
    assert set(_owners(dynamodb).values()) == {None}
    assert "Traceback" not in one.text


STUCK = """
import os, threading
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        os.write(1, b"stuck\\n")
        threading.Event().wait()
"""


def test_a_second_signal_forces_the_end_of_a_worker_whose_processor_hangs(start, aws):
    _put(aws, 8, "r")
    one = start("one", STUCK)
    one.until(lambda: "stuck" in one.seen, "the hanging batch")
    one.process.send_signal(signal.SIGTERM)
    one.until(lambda: "worker stops" in one.text, "the drain")
    heard_at = time.monotonic()
    one.until(lambda: time.monotonic() - heard_at >= REPEAT_SECONDS, "the end of one request")
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(GUARD) == 70
    assert "still busy when a second signal came" in one.text
