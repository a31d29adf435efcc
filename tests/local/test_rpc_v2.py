"""CloudWatch in the newer form of the SDKs: Smithy RPC v2, a path for the operation and CBOR for the members."""

from __future__ import annotations

import copy
import gzip
from datetime import UTC, datetime, timedelta

import boto3
import botocore.session
import cbor2
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import Loader

from pykcl.local.faults import FaultRule

NOW = datetime(2026, 11, 23, 8, 0, 0, 250_000, tzinfo=UTC)
HEADERS = {
    "smithy-protocol": "rpc-v2-cbor",
    "Content-Type": "application/cbor",
    "Accept": "application/cbor",
}
DATA = {
    "Namespace": "app",
    "MetricData": [
        {"MetricName": "Lag", "Value": value, "Timestamp": cbor2.CBORTag(1, NOW.timestamp()), "Unit": "Count"}
        for value in (1.0, 3.0)
    ],
}


def ask(aws, operation, members, *, encoding=None, body=None, **headers):
    content = cbor2.dumps(members) if body is None else body
    if encoding == "gzip":
        content, headers["Content-Encoding"] = gzip.compress(content), "gzip"
    url = f"{aws.url}/service/GraniteServiceVersion20100801/operation/{operation}"
    return requests.post(url, data=content, headers={**HEADERS, **headers}, timeout=60)


def statistics(aws):
    asked = {
        "Namespace": "app",
        "MetricName": "Lag",
        "StartTime": cbor2.CBORTag(1, int(NOW.timestamp()) - 300),
        "EndTime": cbor2.CBORTag(1, int(NOW.timestamp()) + 300),
        "Period": 3600,
        "Statistics": ["Sum"],
    }
    return ask(aws, "GetMetricStatistics", asked)


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_metrics_are_put_and_read(aws, encoding):
    put = ask(aws, "PutMetricData", DATA, encoding=encoding)
    assert (put.status_code, put.content) == (200, b"")
    assert put.headers["smithy-protocol"] == "rpc-v2-cbor"
    assert "Content-Type" not in put.headers
    found = statistics(aws)
    assert found.status_code == 200
    assert found.headers["smithy-protocol"] == "rpc-v2-cbor"
    assert found.headers["Content-Type"] == "application/cbor"
    (point,) = cbor2.loads(found.content)["Datapoints"]
    assert point["Sum"] == 4.0
    assert isinstance(point["Timestamp"], datetime), "a number of tag 1"
    assert [one.operation for one in aws.requests.of("cloudwatch")] == [
        "PutMetricData",
        "GetMetricStatistics",
    ]
    assert aws.requests.of("cloudwatch")[0].parameters["Namespace"] == "app"


def test_errors_have_their_type(aws):
    for answer, code in (
        (ask(aws, "GetDashboard", {"DashboardName": "none"}), "ResourceNotFound"),
        (ask(aws, "PutMetricData", {"Namespace": b"app"}), "SerializationException"),
        (ask(aws, "PutMetricData", {"Namespace": float("nan")}), "SerializationException"),
        (ask(aws, "PutMetricData", {"Namespace": cbor2.CBORTag(1, "x")}), "SerializationException"),
        (ask(aws, "Nonsense", {}), "UnknownOperationException"),
        (ask(aws, "PutMetricData", None, body=b"\xff{"), "SerializationException"),
        (ask(aws, "PutMetricData", None, body=b"\x81" * 100_000), "SerializationException"),
        (
            ask(aws, "PutMetricData", None, body=b"\xa1\x61x\x9a\x00\xf0\x00\x00" + b"\x80" * 0xF00000),
            "SerializationException",
        ),
        (ask(aws, "PutMetricData", None, body=b"\x80"), "SerializationException"),
    ):
        assert 400 <= answer.status_code < 600
        assert answer.headers["smithy-protocol"] == "rpc-v2-cbor"
        assert answer.headers["Content-Type"] == "application/cbor"
        assert cbor2.loads(answer.content)["__type"] == code


def test_faults_hit_it_as_any_request(aws):
    aws.faults.replace([FaultRule("throttle", service="cloudwatch", operation="PutMetricData", times=1)])
    answer = ask(aws, "PutMetricData", DATA)
    assert (answer.status_code, cbor2.loads(answer.content)["__type"]) == (400, "Throttling")
    assert answer.headers["smithy-protocol"] == "rpc-v2-cbor"
    assert ask(aws, "PutMetricData", DATA).status_code == 200


def test_an_empty_body_is_no_members(aws):
    ask(aws, "PutMetricData", DATA)
    found = cbor2.loads(ask(aws, "ListMetrics", None, body=b"").content)
    assert {metric["MetricName"] for metric in found["Metrics"]} == {"Lag"}


@pytest.mark.parametrize("header", ["none", "rpc-v2-json"])
def test_the_path_without_its_protocol_is_unknown(aws, header):
    """A link to it is not enough: a web page can send no such header without asking first."""
    answer = ask(aws, "PutMetricData", DATA, **{"smithy-protocol": header})
    assert answer.status_code == 400
    assert not aws.requests.of("cloudwatch")


@pytest.fixture
def cloudwatch(aws):
    """boto3 that speaks nothing else."""
    session = botocore.session.get_session()
    # One of its own: the models of the others stay as they are.
    loader = Loader()
    session.register_component("data_loader", loader)
    load = loader.load_service_model

    def load_with_one_protocol(service, kind, api_version=None):
        model = load(service, kind, api_version)
        if kind == "service-2":
            model = copy.deepcopy(model)
            assert "smithy-rpc-v2-cbor" in model["metadata"]["protocols"]
            model["metadata"]["protocols"] = ["smithy-rpc-v2-cbor"]
        return model

    loader.load_service_model = load_with_one_protocol
    made = boto3.Session(
        aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1", botocore_session=session
    ).client("cloudwatch", endpoint_url=aws.url, config=Config(retries={"total_max_attempts": 1}))
    yield made
    made.close()


@pytest.fixture
def sent(cloudwatch):
    """The requests that boto3 sends."""
    found = []
    cloudwatch.meta.events.register("before-send", lambda request, **_: found.append(request))
    return found


def test_boto3_puts_and_reads(cloudwatch, sent):
    now = datetime.now(tz=UTC)
    data = [{"MetricName": "Lag", "Value": value, "Timestamp": now} for value in (1.0, 3.0)]
    cloudwatch.put_metric_data(Namespace="app", MetricData=data)
    assert sent[0].url.endswith("/service/GraniteServiceVersion20100801/operation/PutMetricData")
    assert {metric["MetricName"] for metric in cloudwatch.list_metrics()["Metrics"]} == {"Lag"}
    span = {"StartTime": now - timedelta(minutes=5), "EndTime": now + timedelta(minutes=5)}
    stat = {"Metric": {"Namespace": "app", "MetricName": "Lag"}, "Period": 3600, "Stat": "Sum"}
    (result,) = cloudwatch.get_metric_data(MetricDataQueries=[{"Id": "a", "MetricStat": stat}], **span)[
        "MetricDataResults"
    ]
    assert result["Values"] == [4.0]
    assert abs(result["Timestamps"][0] - now) < timedelta(hours=2)
    (point,) = cloudwatch.get_metric_statistics(
        Namespace="app", MetricName="Lag", Period=3600, Statistics=["Sum"], **span
    )["Datapoints"]
    assert point["Sum"] == 4.0


def test_boto3_compresses_a_big_request(cloudwatch, sent, aws):
    data = [{"MetricName": f"metric-{n}", "Values": [1.0, 2.0], "Counts": [3.0, 4.0]} for n in range(1000)]
    cloudwatch.put_metric_data(Namespace="app", MetricData=data)
    assert sent[0].headers["Content-Encoding"] in (b"gzip", "gzip")
    pages = cloudwatch.get_paginator("list_metrics").paginate()
    assert len({metric["MetricName"] for page in pages for metric in page["Metrics"]}) == 1000


def test_boto3_reads_the_code_of_an_error(cloudwatch):
    with pytest.raises(ClientError) as refused:
        cloudwatch.get_dashboard(DashboardName="none")
    assert refused.value.response["Error"]["Code"] == "ResourceNotFound"
    assert refused.value.response["Error"]["Message"]
