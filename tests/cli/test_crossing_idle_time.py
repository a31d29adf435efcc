"""`pykcl run` against a local AWS whose stream is a day older than the test: one GetRecords call covers two hours of it."""

import time

import boto3
import pytest
from service_kit import Service

from pykcl.local.server import LocalAws
from pykcl.local.stream import ReadSpan

HOUR = 3600
PROGRAM = """
import os
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            os.write(1, record.data + b"\\n")
"""


class Clock:
    """The time on this machine, and what was skipped."""

    def __init__(self):
        self.skipped = 0

    def __call__(self):
        return time.time_ns() // 1_000_000 + self.skipped

    def skip(self, hours):
        self.skipped += int(hours * HOUR * 1000)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def aws(clock):
    with LocalAws(now_millis=clock, read_span=ReadSpan(2 * HOUR, 2 * HOUR)) as aws:
        aws.kinesis.create_stream("orders", 1)
        yield aws


@pytest.fixture
def run(tmp_path, aws):
    running = []

    def start(name):
        folder = tmp_path / name
        folder.mkdir()
        arguments = ("program:Orders", "--app", "orders-app", "--stream", "orders", "--start", "TRIM_HORIZON")
        running.append(Service(folder, aws, "run", *arguments, "--log-format", "json", program=PROGRAM))
        return running[-1]

    yield start
    for service in running:
        service.end()


def put(aws, *payloads):
    for payload in payloads:
        aws.kinesis.put_record("orders", payload.encode(), payload)


def until_read(service, *payloads):
    service.until(lambda: set(payloads) <= set(service.output.read_text().split()), payloads)


def reads(aws):
    return len(aws.requests.of("kinesis", "GetRecords"))


def test_a_sparse_shard_is_read_from_the_trim_horizon(aws, clock, run):
    clock.skip(72)
    put(aws, "a", "b", "c", "d", "e")
    clock.skip(1)
    worker = run("w1")
    until_read(worker, "a", "b", "c", "d", "e")
    assert reads(aws) < 12 + 20, "one call for two hours of the day that is kept, and some at the tip"
    assert not worker.events("DataLost")


def test_what_comes_after_a_day_without_records_and_a_deploy_is_read(aws, clock, run):
    put(aws, "old")
    first = run("w1")
    until_read(first, "old")
    first.process.terminate()
    assert first.process.wait(300) == 0
    clock.skip(25)
    worker = run("w2")
    put(aws, "new")
    until_read(worker, "new")
    assert reads(aws) < 12 + 40


def test_a_parent_that_was_split_a_day_ago_ends_and_its_children_are_read(aws, clock, run):
    put(aws, "old")
    first = run("w1")
    until_read(first, "old")
    first.process.terminate()
    assert first.process.wait(300) == 0
    aws.kinesis.split("orders", "shardId-000000000000")
    put(aws, "left", "right", "middle")
    clock.skip(22)
    worker = run("w2")
    until_read(worker, "left", "right", "middle")
    client = boto3.client(
        "dynamodb",
        endpoint_url=aws.url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    row = client.get_item(TableName="orders-app", Key={"leaseKey": {"S": "shardId-000000000000"}})["Item"]
    client.close()
    assert row["checkpoint"]["S"] == "SHARD_END"
    assert not worker.events("DataLost")
