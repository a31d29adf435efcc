"""Moments of AWS that come seldom, with real workers and a real server, over both transports."""

import json
import os
import signal
from collections import Counter
from email.utils import formatdate

import pytest
from calls import waiting_for
from server_between import Answer

from pykcl import RecordProcessor, Worker
from pykcl.events import StartingAtLatest
from pykcl.local.iterators import ReadSpan
from pykcl.runtime import SystemRuntime
from tests.program import Program

WAYS = pytest.mark.parametrize("way", ["boto3", "auto"])
FIRST = "shardId-000000000000"


@pytest.fixture
def environment(between, monkeypatch, tmp_path):
    for name, value in {
        "AWS_ENDPOINT_URL": between.url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "s", "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return monkeypatch


class Run:
    """Workers on the stream. got: how often each record came. events, failures: of all workers."""

    def __init__(self):
        self.got, self.events, self.failures = Counter(), [], 0

    def worker(self, way, *, fails=False, **options):
        run = self

        class Counting(RecordProcessor):
            def process_records(self, batch):
                if fails:
                    run.failures += 1
                    raise ValueError
                run.got.update(record.data for record in batch)

        options = {
            "failover_time": 3.0,
            "shard_sync_interval": 1.0,
            "initial_position": "TRIM_HORIZON",
        } | options
        return Worker(
            "orders-app",
            stream="orders",
            processor=Counting,
            on_event=self.events.append,
            http_transport=way,
            **options,
        )

    def happened(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def run(environment):
    return Run()


def put(between, count, name="r"):
    put = {f"{name}{index}".encode() for index in range(count)}
    for data in put:
        between.kinesis.put_record("orders", data, data.decode())
    return put


@WAYS
def test_a_proxy_whose_clock_is_ahead_costs_no_record_of_a_start_at_latest(between, run, way):
    """1) The start is noted at the proxy's time; 2) its worker ends before a checkpoint; 3) the next one would begin there."""
    between.change = lambda operation, answer: answer.headers.update(
        date=formatdate(SystemRuntime().utcnow_millis() / 1000 + 20, usegmt=True)
    )
    with run.worker(way, fails=True, initial_position="LATEST") as worker:
        assert worker.wait_ready(60)
        records = put(between, 10)
        waiting_for(lambda: run.failures)
    assert run.happened(StartingAtLatest)
    with run.worker(way, initial_position="LATEST"):
        waiting_for(lambda: run.got.keys() >= records)


@WAYS
def test_records_of_children_of_a_shard_that_was_split_before_the_first_read_of_a_start_at_latest(
    between, run, way
):
    """Its lease is at LATEST, and everything that is put after that counts, in whatever shard."""
    records = set()

    def put_and_split(operation, headers, body):
        if operation == "GetRecords" and not records:
            records.update(put(between, 5, "before"))
            between.kinesis.split("orders", FIRST)
            records.update(put(between, 20, "after"))

    between.instead = put_and_split
    with run.worker(way, initial_position="LATEST"):
        waiting_for(lambda: records and run.got.keys() >= records)
    assert set(run.got.values()) == {1}


@WAYS
def test_a_shard_that_is_split_between_the_listing_and_the_leases_of_a_start_at_latest(between, run, way):
    """The leases are those of shards that are closed when they are written."""
    records = set()

    def put_and_split(operation, headers, body):
        if operation in ("PutItem", "UpdateItem") and b"shardId" in body and not records:
            between.kinesis.split("orders", FIRST)
            records.update(put(between, 20))

    between.instead = put_and_split
    with run.worker(way, initial_position="LATEST"):
        waiting_for(lambda: records and run.got.keys() >= records)


@WAYS
def test_two_changes_of_the_number_of_shards_in_a_row(between, run, way):
    with run.worker(way) as worker:
        assert worker.wait_ready(60)
        records = put(between, 10, "one")
        between.kinesis.update_shard_count("orders", 2)
        records |= put(between, 10, "two")
        between.kinesis.update_shard_count("orders", 4)
        records |= put(between, 20, "four")
        between.kinesis.update_shard_count("orders", 2)
        records |= put(between, 10, "again")
        waiting_for(lambda: run.got.keys() >= records)
        waiting_for(lambda: len(worker.status().leases) == 2)
    assert set(run.got.values()) == {1}


def _pages_of_one(between, then):
    """ListShards answers with one shard in a page. then: called with the number of the page before it is asked for."""
    asked = []

    def rewrite(operation, body):
        if operation != "ListShards":
            return body
        request = json.loads(body)
        if "NextToken" not in request:
            asked.clear()
            request["MaxResults"] = 1
        asked.append(1)
        then(len(asked))
        return json.dumps(request).encode()

    between.rewrite = rewrite


@WAYS
def test_a_token_of_a_listing_that_expires_costs_no_lease_and_no_record(between, run, way):
    """A listing that broke off is not taken for all shards: nothing is deleted, and what lacks comes with the next."""
    between.kinesis.update_shard_count("orders", 2)
    expire = [True] * 3
    refusal = json.dumps(
        {"__type": "ExpiredNextTokenException", "message": "The NextToken has expired"}
    ).encode()

    def expired(operation, headers, body):
        if operation == "ListShards" and b"NextToken" in body and expire:
            expire.pop()
            return Answer(400, {"content-type": headers["content-type"]}, refusal)
        return None

    _pages_of_one(between, lambda page: None)
    between.instead = expired
    records = put(between, 10)
    with run.worker(way) as worker:
        waiting_for(lambda: run.got.keys() >= records)
        waiting_for(lambda: not expire)
        waiting_for(lambda: len(worker.status().leases) == 2)
    assert set(run.got.values()) == {1}


@WAYS
def test_shards_that_are_trimmed_between_two_pages_of_a_listing(between, run, way):
    """The first page names a closed parent; before the second it is gone, with its records, as they are past retention."""
    between.kinesis.update_shard_count("orders", 2)
    between.kinesis.read_span = ReadSpan(1e9, 1e9)  # no empty pages up to the records a day later
    records = put(between, 10)
    ahead = between.ahead

    def trim(page):
        if page == 2:
            ahead[0] += 3_600_000 * 25 if not ahead[0] else 0

    _pages_of_one(between, trim)
    with run.worker(way) as worker:
        waiting_for(lambda: len(worker.status().leases) == 2)
        records = put(between, 10, "after")
        waiting_for(lambda: run.got.keys() >= records)


PROGRAM = """
import sys
from pykcl import RecordProcessor, Worker

class Printing(RecordProcessor):
    def process_records(self, batch):
        print(*[record.data.decode() for record in batch], sep="\\n", flush=True)

def say(event):
    print(type(event).__name__, flush=True)

Worker("orders-app", stream="orders", processor=Printing, on_event=say, failover_time=3.0, worker_id="stopped",
       shard_sync_interval=1.0, initial_position="TRIM_HORIZON", http_transport=sys.argv[1]).run()
"""


@pytest.mark.slow
@WAYS
def test_a_process_that_stands_still_loses_its_leases_and_goes_on_without_them(between, run, tmp_path, way):
    """Its connections, its iterators and its belief are as old as the pause when it goes on."""
    between.kinesis.update_shard_count("orders", 2)
    (tmp_path / "program.py").write_text(PROGRAM)
    program = Program(tmp_path, "program.py", way, environment=dict(os.environ))
    try:
        records = put(between, 10, "first")
        program.wait(lambda: records <= set(program.out.read_bytes().split()))
        program.process.send_signal(signal.SIGSTOP)
        with run.worker(way, worker_id="other") as other:
            waiting_for(lambda: len(other.status().leases) == 2)
            during = put(between, 10, "during")
            waiting_for(lambda: run.got.keys() >= during)
            before = Counter(program.out.read_bytes().split())
            program.process.send_signal(signal.SIGCONT)
            program.wait_for("LeaseLost", program.out)
            later = put(between, 10, "later")
            waiting_for(lambda: run.got.keys() | set(program.out.read_bytes().split()) >= later)
            late = Counter(program.out.read_bytes().split()) - before
            assert not during & late.keys(), "it was handed what another had done"
        assert program.stop() == 0
    finally:
        program.process.send_signal(signal.SIGCONT)
        program.end()
