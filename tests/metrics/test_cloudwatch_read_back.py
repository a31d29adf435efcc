"""A real worker against the local AWS: what CloudWatch then has, under KCL's names, dimensions and namespace."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import boto3
import pytest

from pykcl import RecordProcessor, Worker
from pykcl.cli.local import local_environment
from pykcl.local.errors import AwsError
from pykcl.local.server import LocalAws
from pykcl.operate.aws.iam import actions_of, worker_policy


def wait(condition, what, seconds=300.0):
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


def run(aws, count=20, until=lambda: True, **options):
    """A worker that reads so many records and is stopped, not before `until`; its shards, and their records."""
    seen: dict[str, int] = {}

    class Orders(RecordProcessor):
        def process_records(self, batch):
            seen[batch.shard_id] = seen.get(batch.shard_id, 0) + len(batch)

    options = {
        "stream": "orders",
        "initial_position": "TRIM_HORIZON",
        "worker_id": "w1",
        "metrics": "cloudwatch",
        **options,
    }
    with Worker("orders-app", processor=Orders, **options):
        for number in range(count):
            aws.kinesis.put_record("orders", b"x" * 10, f"{number}")
        # On a busy machine a lease may be lost, and its records come again.
        wait(lambda: sum(seen.values()) >= count, "the records")
        wait(until, "what was waited for")
    return seen


class ReadBack:
    def __init__(self, aws, namespace="orders-app"):
        self._client = boto3.client("cloudwatch", endpoint_url=aws.url)
        self._namespace = namespace
        listed = self._client.get_paginator("list_metrics").paginate(Namespace=namespace)
        self.metrics = [metric for page in listed for metric in page["Metrics"]]
        self.names = {metric["MetricName"] for metric in self.metrics}

    def statistics(self, name, **dimensions):
        now = datetime.now(UTC)
        points = self._client.get_metric_statistics(
            Namespace=self._namespace, MetricName=name, Period=60, StartTime=now - timedelta(minutes=10),
            EndTime=now + timedelta(minutes=1), Statistics=["Sum", "Maximum", "SampleCount"],
            Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        )["Datapoints"]  # fmt: skip
        assert points, f"{name} {dimensions} has no data"
        return {
            "Sum": sum(point["Sum"] for point in points),
            "Maximum": max(point["Maximum"] for point in points),
            "Unit": points[0]["Unit"],
        }


def test_the_metrics_of_a_worker_are_read_back_under_the_names_of_kcl(aws):
    seen = run(
        aws, metrics_level="DETAILED", metrics_buffer_time=1, failover_time=3.0,
        until=lambda: "RenewLease.Time" in ReadBack(aws).names,
    )  # fmt: skip
    found = ReadBack(aws)
    assert {
        "RecordsProcessed", "DataBytesProcessed", "MillisBehindLatest", "RecordProcessor.processRecords.Time",
        "Success", "Time", "KinesisDataFetcher.getRecords.Success", "KinesisDataFetcher.getRecords.Time",
        "KinesisDataFetcher.getShardIterator.Time", "UpdateLease.Success", "CurrentLeases", "LostLeases",
        "RecordProcessor.initialize.Time", "RecordProcessor.shutdown.Time", "TakenLeases", "UntakenLeases",
        "ExpiredLeases", "LeaseSpillover", "LeasesToTake", "NeededLeases", "NumWorkers", "TotalLeases",
        "VeryOldLeases", "ListLeases.Success", "TakeLease.Time", "CreateLease.Success", "RenewLease.Time", "SyncShards.Success",
    } <= found.names  # fmt: skip
    for shard, count in seen.items():
        dimensions = {"Operation": "ProcessTask", "ShardId": shard}
        assert found.statistics("RecordsProcessed", **dimensions)["Sum"] == count
        assert found.statistics("DataBytesProcessed", **dimensions) == {
            "Sum": 10 * count, "Maximum": found.statistics("DataBytesProcessed", **dimensions)["Maximum"], "Unit": "Bytes",
        }  # fmt: skip
        assert found.statistics("MillisBehindLatest", **dimensions)["Unit"] == "Milliseconds"
    assert found.statistics("MillisBehindLatest", Operation="ApplicationTracker")["Maximum"] >= 0
    mine = {"WorkerIdentifier": "w1"}
    assert found.statistics("TakenLeases", Operation="TakeLeases", **mine)["Sum"] >= 2
    assert found.statistics("NumWorkers", Operation="TakeLeases", **mine)["Maximum"] == 1
    assert {"Operation"} == {
        one["Name"] for metric in found.metrics if metric["MetricName"] == "CreateLease.Success" for one in metric["Dimensions"]
    }  # fmt: skip


def test_namespace_level_and_dimensions_are_those_of_the_options(aws):
    seen = run(aws, metrics_namespace="Orders/KCL", metrics_dimensions="Operation,WorkerIdentifier")
    found = ReadBack(aws, "Orders/KCL")
    assert found.statistics("RecordsProcessed", Operation="ProcessTask")["Sum"] == sum(seen.values())
    assert "RenewLease.Time" not in found.names
    assert "KinesisDataFetcher.getRecords.Time" not in found.names
    assert not ReadBack(aws).metrics


def test_a_large_request_is_sent_gzipped(aws):
    """Its size is botocore's business; that PutMetricData is compressed is what we count on."""
    encodings = []
    client = boto3.client("cloudwatch", endpoint_url=aws.url)
    client.meta.events.register(
        "before-send.cloudwatch",
        lambda request, **_: encodings.append(request.headers.get("Content-Encoding")),
    )
    run(aws, metrics_level="DETAILED", clients={"cloudwatch": client})
    assert any("gzip" in str(one) for one in encodings)
    assert ReadBack(aws).statistics("TakenLeases", Operation="TakeLeases", WorkerIdentifier="w1")["Sum"] >= 2


def test_the_policy_with_metrics_allows_exactly_one_action_more_and_only_into_the_namespace(aws):
    run(aws)
    called = {f"{request.service}:{request.operation}" for request in aws.requests}
    policy = worker_policy(stream="orders", table="orders-app", metrics_namespace="orders-app")
    assert "cloudwatch:PutMetricData" in called
    assert called <= actions_of(policy)
    assert actions_of(policy) - actions_of(worker_policy(stream="orders", table="orders-app")) == {
        "cloudwatch:PutMetricData"
    }
    (statement,) = [one for one in policy["Statement"] if one["Sid"] == "PublishMetrics"]
    assert statement["Condition"] == {"StringEquals": {"cloudwatch:namespace": "orders-app"}}


def test_without_the_permission_records_are_read_all_the_same_and_nothing_is_in_the_lease_table(aws):
    def no_metrics(service, operation, parameters):
        if operation == "PutMetricData":
            raise AwsError("AccessDeniedException", "not authorized to perform: cloudwatch:PutMetricData")

    aws.fault = no_metrics
    heard = []
    run(aws, on_event=heard.append, metrics_buffer_time=1)
    troubles = [event for event in heard if getattr(event, "what", "") == "publishing metrics"]
    assert len(troubles) == 1
    assert "cloudwatch:PutMetricData" in troubles[0].cause
    rows = boto3.client("dynamodb", endpoint_url=aws.url).scan(TableName="orders-app")["Items"]
    # A leader of KCL 3.x takes a worker with rows of its own metrics for one that plays by its rules.
    assert {row["entityType"]["S"] for row in rows} == {"LEASE"}
    assert len(rows) == 2


def test_a_properties_file_brings_the_metrics_of_java(aws, tmp_path):
    from pykcl.compat.properties import load

    path = tmp_path / "app.properties"
    path.write_text(
        "applicationName=orders-app\nstreamName=orders\nworkerId=w1\nregionName=us-east-1\nretrievalMode=POLLING\n"
    )
    config = load(path)

    class Orders(RecordProcessor):
        def process_records(self, batch): ...

    with Worker(processor=Orders, config=config) as worker:
        assert worker.wait_ready(30)
    found = ReadBack(aws)
    assert {"MillisBehindLatest", "KinesisDataFetcher.getRecords.Time"} <= found.names
