"""The worker over real clients and real threads, against the embedded local AWS."""

import threading
import time

import boto3
import pytest

from pykcl import RecordProcessor, StreamMissing, Worker
from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws

ACCESS = {"region_name": "us-east-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}


@pytest.fixture
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 2)
        yield aws


@pytest.fixture
def seen():
    return []


@pytest.fixture
def processor(seen):
    class Orders(RecordProcessor):
        def process_records(self, batch):
            seen.extend(batch)

    return Orders


def _wait(condition, seconds=30.0):
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


def _deliver_ten(aws, worker, seen):
    before = set(threading.enumerate())
    with worker:
        assert worker.wait_ready(30)
        for number in range(10):
            aws.kinesis.put_record("orders", str(number).encode(), str(number))
        _wait(lambda: {record.text() for record in seen} == {str(number) for number in range(10)})
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in left if name.startswith("pykcl-") and "local" not in name]


def test_ready_made_clients_are_used_as_they_are(aws, processor, seen):
    clients = {
        service: boto3.client(service, endpoint_url=aws.url, **ACCESS) for service in ("kinesis", "dynamodb")
    }
    _deliver_ten(aws, Worker("clients-app", stream="orders", processor=processor, clients=clients), seen)


def test_a_session_of_the_users_is_used(aws, processor, seen, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    session = boto3.Session(**ACCESS)
    _deliver_ten(aws, Worker("session-app", stream="orders", processor=processor, session=session), seen)


def test_a_stream_is_found_by_its_arn_which_also_names_the_region(aws, processor, seen, monkeypatch):
    for name, value in local_environment(aws.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    arn = aws.kinesis.describe("orders").arn
    _deliver_ten(aws, Worker("arn-app", stream=arn, processor=processor), seen)


def test_a_missing_stream_is_named_with_its_region_and_how_to_look(aws, processor, monkeypatch):
    for name, value in local_environment(aws.url).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StreamMissing, match=r"no stream 'nowhere' in region us-east-1.*list-streams"):
        Worker("orders-app", stream="nowhere", processor=processor).start()


def test_a_batch_carries_how_far_it_is_behind(aws, processor, seen, monkeypatch):
    for name, value in local_environment(aws.url).items():
        monkeypatch.setenv(name, value)
    behind = []

    class Lag(RecordProcessor):
        def process_records(self, batch):
            behind.append(batch.millis_behind_latest)

    aws.kinesis.put_record("orders", b"one", "one")
    with Worker("lag-app", stream="orders", processor=Lag, initial_position="TRIM_HORIZON"):
        _wait(lambda: behind)
    assert behind[0] == 0
