"""What docs/operate/networks.md says of hosts and proxies is what boto3 does."""

import re
from pathlib import Path

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.utils import get_environ_proxies

PAGE = (Path(__file__).parents[2] / "docs/operate/networks.md").read_text("utf-8")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
CALLS = {
    "Kinesis, by name": ("kinesis", "describe_stream_summary", {"StreamName": "orders"}),
    "Kinesis, control": ("kinesis", "list_shards", {"StreamARN": ARN}),
    "Kinesis, data": ("kinesis", "get_records", {"StreamARN": ARN, "ShardIterator": "i"}),
    "DynamoDB": ("dynamodb", "scan", {"TableName": "orders-app"}),
    "DynamoDB, account known": ("dynamodb", "scan", {"TableName": "orders-app"}),
}
FIPS, DUAL = "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT"


def host_of(monkeypatch, row, *variables):
    """Where a request goes, which is caught before it is sent."""
    for name in (FIPS, DUAL, "AWS_ACCOUNT_ID", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, "true")
    if row.endswith("account known"):
        monkeypatch.setenv("AWS_ACCOUNT_ID", "123456789012")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    service, operation, request = CALLS[row]
    client, caught = boto3.Session(region_name="eu-west-1").client(service), []

    def catch(request, **_):
        caught.append(request.url)
        return AWSResponse(request.url, 200, {}, type("Raw", (), {"stream": lambda *_: [b"{}"]})())

    client.meta.events.register_first("before-send", catch)
    getattr(client, operation)(**request)
    return caught[0].removeprefix("https://").rstrip("/")


def cells(row):
    (line,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", PAGE, re.MULTILINE)
    names = re.findall(r"`([^`]+)`", line)
    return [name.replace("ACCOUNT", "123456789012").replace("REGION", "eu-west-1") for name in names]


@pytest.mark.parametrize("row", CALLS)
def test_the_hosts_of_fips_and_dual_stack_are_those_of_boto3(monkeypatch, row):
    found = [host_of(monkeypatch, row, *names) for names in ((FIPS,), (DUAL,), (FIPS, DUAL))]
    assert cells(row) == found


@pytest.mark.parametrize("row", CALLS)
def test_the_plain_hosts_are_those_of_boto3(monkeypatch, row):
    host = host_of(monkeypatch, row).replace("123456789012", "ACCOUNT").replace("eu-west-1", "REGION")
    assert f"`{host}`" in PAGE


@pytest.mark.parametrize(
    ("excepted", "is_past"),
    [
        ("amazonaws.com", True),
        (".amazonaws.com", True),
        ("*", True),
        ("*.amazonaws.com", False),
        ("10.0.0.0/8", False),
    ],
)
def test_no_proxy_is_read_as_the_page_says(monkeypatch, excepted, is_past):
    for name in ("https_proxy", "no_proxy", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    for url in ("https://kinesis.eu-west-1.amazonaws.com", "https://10.0.0.1"):
        if url.endswith("10.0.0.1") and is_past and excepted != "*":
            continue
        assert (get_environ_proxies(url) == {}) == is_past
    assert excepted.split("/")[0] in PAGE
