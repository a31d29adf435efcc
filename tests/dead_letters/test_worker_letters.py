"""A worker whose destination is a text: exactly the poison is kept, everything else has its effect, redrive mends it."""

import json
import os
import sys
import threading
import time

import boto3
import pytest
from click.testing import CliRunner

from pykcl import RecordProcessor, Worker
from pykcl.cli.main import main
from pykcl.local import local_environment
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws

POISON = {3, 4, 17, 29}
RECORDS = 40
DEADLINE = 60.0


@pytest.fixture
def aws(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("AWS_", "PYKCL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    with LocalAws() as running:
        for name, value in local_environment(running.url).items():
            monkeypatch.setenv(name, value)
        boto3.setup_default_session()
        running.kinesis.create_stream("orders", 1)
        yield running


def destination(kind, tmp_path):
    if kind == "file":
        return f"file:{tmp_path / 'letters'}"
    if kind == "s3":
        boto3.client("s3").create_bucket(Bucket="letters")
        return "s3://letters/team"
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="dlq")["QueueUrl"]
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


class Orders(RecordProcessor):
    effects: list = []  # noqa: RUF012 - of all instances

    def process_records(self, batch):
        for record in batch:
            if int(record.data) in POISON:
                raise ValueError(record.text())
            Orders.effects.append(int(record.data))


def work_until_done(dead_letters, count):
    """Run a worker until its checkpoint is at the last record."""
    worker = Worker(
        "orders-app", stream="orders", processor=Orders, dead_letters=dead_letters, max_attempts=2, bisect=True,
        initial_position="TRIM_HORIZON", failover_time=2.0, retry_timeout=30.0, metrics_level="NONE",
    )  # fmt: skip
    deadline = time.monotonic() + DEADLINE
    with worker:
        while len(set(Orders.effects)) < count or not is_checkpointed():
            assert time.monotonic() < deadline, sorted(set(Orders.effects))
            threading.Event().wait(0.05)


def is_checkpointed():
    items = boto3.client("dynamodb").scan(TableName="orders-app")["Items"]
    return any(item["checkpoint"]["S"] == LAST[0] for item in items)


LAST = [""]


@pytest.mark.parametrize("kind", ["file", "sqs", "s3"])
def test_exactly_the_poison_is_kept_and_redriven(aws, tmp_path, monkeypatch, kind):
    Orders.effects = []
    text = destination(kind, tmp_path)
    for number in range(RECORDS):
        LAST[0] = aws.kinesis.put_record("orders", b"%d" % number, "key").sequence_number
    if kind == "sqs":
        aws.faults.replace([FaultRule("error", "sqs", "SendMessageBatch", times=2)])
    work_until_done(text, RECORDS - len(POISON))
    assert set(Orders.effects) == set(range(RECORDS)) - POISON
    letters = json.loads(CliRunner().invoke(main, ["dead-letters", "list", text, "-o", "json"]).stdout)[
        "rows"
    ]
    assert [row["records"] for row in letters] == [1] * len(POISON)
    assert {row["error"] for row in letters} == {"ValueError"}

    (tmp_path / f"mended_{kind}.py").write_text(
        "from pathlib import Path\nfrom pykcl import RecordProcessor\n"
        "class Orders(RecordProcessor):\n"
        "    def process_records(self, batch):\n"
        "        for record in batch:\n"
        "            with Path('mended').open('a') as file:\n"
        "                print(record.text(), file=file)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    redrive = ["dead-letters", "redrive", text, "--to-handler", f"mended_{kind}:Orders", "--execute"]
    assert CliRunner().invoke(main, redrive).exit_code == 0
    sys.modules.pop(f"mended_{kind}")
    assert sorted(map(int, (tmp_path / "mended").read_text().split())) == sorted(POISON)
    left = CliRunner().invoke(main, ["dead-letters", "list", text, "-o", "json"])
    assert json.loads(left.stdout)["rows"] == []
