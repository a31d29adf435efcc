"""The policy we document is what a worker needs: everything it calls in its whole life, and nothing more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pykcl import Producer, RecordProcessor, Worker
from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.operate.aws.iam import actions_of, producer_policy, worker_policy

ROOT = Path(__file__).parents[2]
POLICY = worker_policy(stream="orders", table="orders-app", region="us-east-1", account="123456789012")
PRODUCER = {"kinesis:PutRecord", "kinesis:PutRecords", "kinesis:SplitShard"}
"""What only tests and producers do. None of it is called over the wire here: the model is asked directly."""


def wait(condition, what, seconds=60.0):
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        pause.wait(0.02)


@pytest.fixture
def aws(monkeypatch):
    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        aws.kinesis.create_stream("orders", 2)
        yield aws


def called(aws: LocalAws) -> set[str]:
    return {f"{request.service}:{request.operation}" for request in aws.requests}


def resources(aws: LocalAws) -> set[str]:
    """The tables and streams that were named in any request."""
    found = set()
    for request in aws.requests:
        for name in ("TableName", "StreamName"):
            if name in request.parameters:
                found.add(str(request.parameters[name]))
        if "StreamARN" in request.parameters:
            found.add(str(request.parameters["StreamARN"]).rpartition("/")[2])
    return found


class Orders(RecordProcessor):
    seen: list[str] = []  # noqa: RUF012 - one list for all instances

    def process_records(self, batch):
        if not self.seen:
            prepared = batch.checkpointer.prepare_checkpoint(state=b"state")
            prepared.checkpoint()
        self.seen.extend(record.text() for record in batch)


def put(aws, prefix, count=20):
    for number in range(count):
        aws.kinesis.put_record("orders", f"{prefix}{number}".encode(), f"{prefix}{number}")


def has_seen(prefix, count=20):
    return lambda: {f"{prefix}{number}" for number in range(count)} <= set(Orders.seen)


def rows(aws):
    import boto3

    items = boto3.client("dynamodb", endpoint_url=aws.url).scan(TableName="orders-app")["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def whole_life(aws):
    """Create the table, read, checkpoint, reshard, end a shard, clean its lease up, lose a worker, release, stop."""
    Orders.seen.clear()
    options = {
        "stream": "orders",
        "processor": Orders,
        "failover_time": 10.0,
        "parent_shard_poll_interval": 0.1,
    }
    options |= {"cleanup_interval": 0.2, "shard_sync_interval": 1.0, "initial_position": "TRIM_HORIZON"}
    first = Worker("orders-app", worker_id="first", **options)
    with first:
        put(aws, "a")
        wait(has_seen("a"), "the first records")
        parent = sorted(shard.shard_id for shard in aws.kinesis.list_shards("orders", operation=None))[0]
        aws.kinesis.split("orders", parent)
        put(aws, "b")
        wait(has_seen("b"), "the records of the children")
        second = Worker("orders-app", worker_id="second", **options)
        with second:
            wait(lambda: second.leases, "a lease for the second worker")
        wait(
            lambda: any(one.operation == "DeleteItem" for one in aws.requests.of("dynamodb")),
            "the cleaning up",
        )
    found = called(aws)
    for row in rows(aws).values():
        assert "leaseOwner" not in row
    return found


def test_a_worker_calls_in_its_whole_life_exactly_what_the_policy_allows(aws):
    found = whole_life(aws)
    assert found == actions_of(POLICY)
    assert resources(aws) == {"orders", "orders-app", "orders-app-CoordinatorState"}


def test_pykcl_run_calls_nothing_else(aws, tmp_path):
    (tmp_path / "program.py").write_text(
        "import os\nfrom pykcl import RecordProcessor\n"
        "class Orders(RecordProcessor):\n"
        "    def process_records(self, batch):\n"
        "        for record in batch:\n"
        "            os.write(1, record.data + b'\\n')\n"
    )
    put(aws, "a")
    command = [
        "run",
        "program:Orders",
        "--app",
        "orders-app",
        "--stream",
        "orders",
        "--start",
        "TRIM_HORIZON",
    ]
    out = tmp_path / "out"
    with out.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pykcl.cli", *command],
            cwd=tmp_path,
            env={**os.environ, **local_environment(aws.url)},
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait(lambda: len(set(out.read_text().split())) == 20, "the records")
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = called(aws)
    assert found <= actions_of(POLICY)
    assert {"dynamodb:CreateTable", "dynamodb:UpdateItem", "kinesis:GetRecords"} <= found


def test_without_the_right_to_create_the_table_everything_else_is_enough(aws):
    """Every action that is not in the policy is denied, as IAM would do."""
    import boto3

    from pykcl.local.errors import AwsError

    boto3.client("dynamodb", endpoint_url=aws.url).create_table(
        TableName="orders-app",
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    allowed = actions_of(worker_policy(stream="orders", table="orders-app", create_table=False))
    denied = []

    def only_the_policy(service, operation, parameters):
        if f"{service}:{operation}" not in allowed:
            denied.append(f"{service}:{operation}")
            raise AwsError("AccessDeniedException", "not authorized")

    aws.fault = only_the_policy
    Orders.seen.clear()
    with Worker("orders-app", stream="orders", processor=Orders, initial_position="TRIM_HORIZON"):
        put(aws, "a")
        wait(has_seen("a"), "the records")
    assert denied == []


def test_without_the_right_to_read_the_state_of_java_everything_else_is_enough(aws):
    from pykcl.events import FailureStarted
    from pykcl.local.errors import AwsError

    denied, troubles = [], []

    def all_but_that_table(service, operation, parameters):
        if parameters.get("TableName") == "orders-app-CoordinatorState":
            denied.append(operation)
            raise AwsError("AccessDeniedException", "not authorized")

    def hear(event):
        if isinstance(event, FailureStarted) and event.what != "preparing the lease table":
            troubles.append(event)

    aws.fault = all_but_that_table
    Orders.seen.clear()
    with Worker(
        "orders-app", stream="orders", processor=Orders, initial_position="TRIM_HORIZON", on_event=hear
    ):
        put(aws, "a")
        wait(has_seen("a"), "the records")
    assert (denied, troubles) == (["GetItem"], [])


def test_a_producer_calls_exactly_what_its_policy_allows(aws):
    with Producer("orders") as producer:
        futures = [producer.put(f"note {number}", str(number)) for number in range(50)]
    assert all(future.result(0).shard_id for future in futures)
    assert called(aws) == actions_of(producer_policy(stream="orders"))
    assert resources(aws) == {"orders"}


def test_the_policy_on_the_page_is_the_one_of_the_code():
    text = (ROOT / "docs" / "about" / "security.md").read_text("utf-8")
    shown = [json.loads(part.split("```")[0]) for part in text.split("```json\n")[1:]]
    assert shown == [POLICY]


def test_the_policy_names_one_stream_and_one_table_and_no_star():
    text = json.dumps(POLICY)
    assert "*" not in text
    assert len(actions_of(POLICY)) == 11
    assert not actions_of(POLICY) & PRODUCER
    china = worker_policy(
        stream="s", table="t", region="cn-north-1", account="1", partition="aws-cn", create_table=False
    )
    assert china["Statement"][0]["Resource"] == "arn:aws-cn:kinesis:cn-north-1:1:stream/s"
    assert "dynamodb:CreateTable" not in actions_of(china)
