"""Two workers in processes of their own, one of them killed: the poison is kept, everything else has its effect."""

import json
import os
import sys

import boto3
import pytest
from click.testing import CliRunner

from pykcl.cli.main import main
from pykcl.local import local_environment
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry
from tests.program import Program

RECORDS, SHARDS = 10_000, 4
POISON = {7, 1_000, 1_001, 4_444, 6_000, 8_765, 9_999}
SEEN_DOWN = 10
"""Requests that the destination refuses before it is back."""
PROGRAM = f"""
import os
from pykcl import RecordProcessor

POISON = {POISON}
effects = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            if int(record.data) in POISON:
                raise ValueError("poison")
            os.write(effects, record.data + b"\\n")


class Mended(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            with open("mended", "ab") as file:
                file.write(record.data + b"\\n")
"""


@pytest.fixture
def aws(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("AWS_", "PYKCL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with LocalAws() as running:
        for name, value in local_environment(running.url).items():
            monkeypatch.setenv(name, value)
        boto3.setup_default_session()
        running.kinesis.create_stream("orders", SHARDS)
        yield running


def queue():
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="dlq")["QueueUrl"]
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def letters(text):
    answer = CliRunner().invoke(main, ["dead-letters", "list", text, "-o", "json"])
    return json.loads(answer.stdout)["rows"] if answer.stdout.startswith("{") else []


def effects(folder):
    path = folder / "effects"
    return [int(line) for line in path.read_bytes().split()] if path.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["file", "sqs", "sqs that is down"])
def test_with_two_workers_of_which_one_is_killed_exactly_the_poison_becomes_dead_letters(aws, tmp_path, kind):
    text = f"file:{tmp_path / 'letters'}" if kind == "file" else queue()
    step = (1 << 128) // SHARDS
    aws.kinesis.put_records(
        "orders", [Entry(b"%d" % number, "key", number % SHARDS * step) for number in range(RECORDS)]
    )
    (tmp_path / "shop.py").write_text(PROGRAM)
    if kind == "sqs that is down":
        aws.faults.replace([FaultRule("error", "sqs", "SendMessageBatch")])
    programs = []
    try:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "shop.py").write_text(PROGRAM.replace('"effects"', repr(str(tmp_path / "effects"))))
            options = (
                "max_attempts=2",
                "bisect=True",
                "batch_size=50",
                "failover_time=2.0",
                f"dead_letters={text}",
            )
            programs.append(
                Program(
                    folder, "-m", "pykcl.cli", "run", "shop:Orders", "--app", "shop", "--stream", "orders", "--start",
                    "TRIM_HORIZON", *(word for option in options for word in ("--option", option)),
                )
            )  # fmt: skip
        killed, left = programs
        left.wait(
            lambda: all(each.err.read_text().count("shard started") >= 1 for each in programs), "two readers"
        )
        killed.wait(lambda: len(effects(tmp_path)) >= 1_000, "a thousand records", 120)
        killed.end()
        if kind == "sqs that is down":
            left.wait(
                lambda: len(aws.requests.of("sqs", "SendMessageBatch")) >= SEEN_DOWN, "a refused letter", 120
            )
            assert not letters(text)
            aws.faults.replace([])
        left.wait(lambda: len({row["id"] for row in letters(text)}) >= len(POISON), "all letters", 200)
        left.wait(lambda: len(set(effects(tmp_path))) >= RECORDS - len(POISON), "all records", 200)
        assert left.stop() == 0
    finally:
        for program in programs:
            program.end()
    found = effects(tmp_path)
    assert set(found) == set(range(RECORDS)) - POISON, "lost"
    kept = letters(text)
    assert len({row["id"] for row in kept}) == len(POISON)
    print(f"{kind}: {len(kept)} letters, {len(found) - len(set(found))} repeats, lost 0")

    redrive = ["dead-letters", "redrive", text, "--to-handler", "shop:Mended", "--execute"]
    answer = CliRunner().invoke(main, redrive)
    assert answer.exit_code == 0, answer.output
    sys.modules.pop("shop", None)
    assert {int(line) for line in (tmp_path / "mended").read_bytes().split()} == POISON
    assert letters(text) == []
