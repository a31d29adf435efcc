"""Redrive from SQS and S3 on a local AWS: letters of pykcl, and Lambda's own with and without payload (A3, 3)."""

import json
import os
import sys
import time

import boto3
import pytest
from click.testing import CliRunner

from pykcl.aws.dead_letters import aws_destination
from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.config import Config
from pykcl.local.server import LocalAws
from pykcl.model.dead_letter import Address
from pykcl.model.kpl import aggregate
from pykcl.model.lambda_event import EventSource, event_of
from pykcl.model.record import Record
from pykcl.runtime import SystemRuntime
from tests.letters import letter, record

SHARD = "shardId-000000000000"
HANDLER = """
from pathlib import Path
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        with Path("effects").open("ab") as file:
            for record in batch:
                if record.data == b"poison":
                    raise ValueError(record.text())
                file.write(record.data + b"\\n")
"""
BESIDE = """
class Orders(Orders):
    def process_records(self, batch):
        super().process_records(batch)
        from click.testing import CliRunner
        from pykcl.cli.main import main
        again = ["dead-letters", "redrive", "s3://letters/of/orders", "--to-handler", "queue_handler:Orders", "--execute"]
        done = CliRunner().invoke(main, again)
        Path("beside").write_text(f"{done.exit_code} {done.stderr}")
"""


@pytest.fixture(scope="module")
def server():
    with LocalAws(listing_lag=0) as aws:
        yield aws


@pytest.fixture
def aws(server, monkeypatch, tmp_path):
    server.reset()
    for name in list(os.environ):
        if name.startswith(("AWS_", "PYKCL_")):
            monkeypatch.delenv(name)
    for name, value in local_environment(server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue_handler.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "queue_handler", raising=False)
    boto3.setup_default_session()
    server.kinesis.create_stream("orders", 1)
    return server


def pykcl(*arguments):
    return CliRunner().invoke(main, ["dead-letters", *arguments])


def redrive(source, *more):
    return pykcl("redrive", source, "--to-handler", "queue_handler:Orders", "-o", "json", *more)


def rows(done):
    return json.loads(done.stdout)["rows"]


def queue(name="dlq"):
    """Make a queue; return its URL and its ARN."""
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return url, found["Attributes"]["QueueArn"]


def put(aws, *payloads):
    """Put records; return them as a reader gets them."""
    for data in payloads:
        aws.kinesis.put_record("orders", data, "key")
    page = aws.kinesis.get_records(aws.kinesis.get_shard_iterator("orders", SHARD, "TRIM_HORIZON"))
    while not page.records:
        page = aws.kinesis.get_records(page.next_iterator)
    return [
        Record(
            one.data, one.partition_key, one.sequence_number, float(one.arrived_at_millis), SHARD, "orders"
        )
        for one in page.records
    ]


def lambda_letter(records, **fields):
    """The letter that Lambda would send for them; with payload as in S3 if there is one in `fields`."""
    batch = {
        "shardId": SHARD,
        "startSequenceNumber": records[0].sequence_number,
        "endSequenceNumber": records[-1].sequence_number,
        "approximateArrivalOfFirstRecord": "2036-11-14T00:38:04.835Z",
        "approximateArrivalOfLastRecord": "2036-11-14T00:38:05.580Z",
        "batchSize": len(records),
        "streamArn": "arn:aws:kinesis:us-east-1:000000000000:stream/orders",
    }
    return json.dumps(
        {
            "requestContext": {
                "requestId": f"c9b8fa9f-{records[0].sequence_number[-8:]}",
                "functionArn": "arn:aws:lambda:us-east-1:000000000000:function:orders",
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": 1,
            },
            "responseContext": {
                "statusCode": 200,
                "executedVersion": "$LATEST",
                "functionError": "Unhandled",
            },
            "version": "1.0",
            "timestamp": "2036-11-14T00:38:06.021Z",
            "KinesisBatchInfo": batch | {name: value for name, value in fields.items() if name in batch},
            **{name: value for name, value in fields.items() if name not in batch},
        }
    )


def test_lambdas_letters_in_a_queue_find_their_records_in_the_stream(aws, tmp_path):
    [blob] = aggregate([("a", None, b"two"), ("b", None, b"three")])
    one, two, four, _ = put(aws, b"one", blob.data, b"four", b"not mine")
    url, arn = queue()
    sqs = boto3.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody=lambda_letter([one, two]))
    sqs.send_message(QueueUrl=url, MessageBody=lambda_letter([four]))
    assert sorted(row["records"] for row in rows(pykcl("list", arn, "-o", "json"))) == [1, 2]
    plan = redrive(arn)
    assert (plan.exit_code, {row["action"] for row in rows(plan)}) == (0, {"redrive"})
    done = redrive(arn, "--execute")
    assert (done.exit_code, {row["action"] for row in rows(done)}) == (0, {"redriven"})
    assert (tmp_path / "effects").read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert rows(pykcl("list", arn, "-o", "json")) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"startSequenceNumber": "49"}, "its first position is none of shardId-000000000000"),
        ({"endSequenceNumber": "9" * 56}, "older than the retention"),
        ({"batchSize": 7}, "older than the retention"),
        ({"shardId": "shardId-000000000009"}, "older than the retention"),
        ({"approximateArrivalOfLastRecord": "2001-11-14T00:38:05.580Z"}, "deleted and created again"),
        ({"streamArn": "arn:aws:kinesis:us-east-1:000000000000:stream/nothing"}, "There is no stream"),
    ],
)
def test_letters_whose_records_are_gone_are_reported_and_left(aws, tmp_path, fields, problem):
    records = put(aws, b"one", b"two")
    url, arn = queue()
    boto3.client("sqs").send_message(QueueUrl=url, MessageBody=lambda_letter(records, **fields))
    done = redrive(arn, "--execute")
    assert done.exit_code == 1
    [row] = rows(done)
    assert (row["action"], problem in row["why"]) == ("leave", True)
    assert not (tmp_path / "effects").exists()
    assert len(rows(pykcl("list", arn, "-o", "json"))) == 1


def test_letters_whose_records_were_trimmed_are_reported_and_left(aws, monkeypatch):
    ahead = [0]
    with LocalAws(listing_lag=0, now_millis=lambda: time.time_ns() // 10**6 + ahead[0]) as other:
        for name, value in local_environment(other.url).items():
            monkeypatch.setenv(name, value)
        boto3.setup_default_session()
        other.kinesis.create_stream("orders", 1)
        old = put(other, b"old")
        ahead[0] = 25 * 3_600_000
        new = put(other, b"new")
        url, arn = queue()
        for records in (old, [*old, *new], new):
            boto3.client("sqs").send_message(QueueUrl=url, MessageBody=lambda_letter(records))
        actions = {(row["records"], row["action"]): row["why"] for row in rows(redrive(arn, "--execute"))}
    assert [record.data for record in new] == [b"new"]
    assert actions.keys() == {(1, "leave"), (2, "leave"), (1, "redriven")}
    assert "older than the retention" in actions[1, "leave"]
    assert "older than the retention" in actions[2, "leave"]


def test_lambdas_objects_in_s3_are_redriven_with_their_payload_and_moved(aws, tmp_path):
    records = put(aws, b"one", b"two")
    event = event_of(records, EventSource("arn:aws:kinesis:us-east-1:000000000000:stream/orders"))
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="letters")
    key = f"aws/lambda/0f1b/{SHARD}/2026/11/23/2026-11-23T05.38.04-6e1f"
    s3.put_object(Bucket="letters", Key=key, Body=lambda_letter(records, payload=json.dumps(event)).encode())
    aws.kinesis.delete_stream("orders")
    assert redrive("s3://letters", "--execute").exit_code == 0
    assert (tmp_path / "effects").read_bytes() == b"one\ntwo\n"
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="letters")["Contents"]] == [f"redriven/{key}"]


def test_two_redrives_of_an_s3_prefix_at_once_send_no_letter_twice(aws, tmp_path):
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="letters")
    target = aws_destination(
        Address.parse("s3://letters/of/orders"),
        Config(application="orders-app", stream="orders"),
        SystemRuntime(),
    )
    target.send([letter(record(1, b"one"))])
    (tmp_path / "queue_handler.py").write_text(HANDLER + BESIDE)
    assert redrive("s3://letters/of/orders", "--execute").exit_code == 0
    refused = (tmp_path / "beside").read_text()
    assert refused.startswith(
        "5 pykcl: refused: s3://letters/of/orders/ is being redriven by another command. Do: wait until"
    )
    assert "aws s3 rm s3://letters/of/orders/redriven/.lock" in refused
    assert (tmp_path / "effects").read_bytes() == b"one\n"
    (left,) = s3.list_objects_v2(Bucket="letters")["Contents"]
    assert left["Key"].startswith("of/orders/redriven/pykcl/"), "and the lock is gone"


def test_poison_stays_in_the_queue_and_everything_else_leaves_it(aws, tmp_path):
    url, arn = queue()
    target = aws_destination(
        Address.parse(arn), Config(application="orders-app", stream="orders"), SystemRuntime()
    )
    target.send(
        [letter(record(number, b"poison" if number % 10 == 3 else b"%d" % number)) for number in range(30)]
    )
    target.send([letter(record(7, b"7"))])
    done = redrive(arn, "--execute")
    assert (done.exit_code, len(rows(done))) == (1, 30)
    assert sorted((tmp_path / "effects").read_text().split(), key=int) == [
        str(number) for number in range(30) if number % 10 != 3
    ]
    left = rows(pykcl("list", arn, "-o", "json"))
    assert sorted(row["first"] for row in left) == ["13:0", "23:0", "3:0"]
    (tmp_path / "queue_handler.py").write_text(HANDLER.replace("poison", "mended"))
    sys.modules.pop("queue_handler")
    assert redrive(arn, "--execute").exit_code == 0
    assert rows(pykcl("list", arn, "-o", "json")) == []
    counts = boto3.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"]) == (
        "0",
        "0",
    )


def test_a_stream_option_refuses_letters_of_another_stream_and_incarnation(aws):
    aws.kinesis.create_stream("other", 1)
    url, arn = queue()
    boto3.client("sqs").send_message(QueueUrl=url, MessageBody=lambda_letter(put(aws, b"one")))
    [row] = rows(redrive(arn, "--stream", "other"))
    assert row["why"] == "it is of stream orders, not of other"
    assert redrive(arn, "--stream", "orders").exit_code == 0
