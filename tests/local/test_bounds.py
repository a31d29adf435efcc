"""Requests that are small on the wire and large, deep or many in memory: refused, in bounded memory, without a traceback."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
import requests
from wire_forms import exchange

from pykcl.local.errors import AwsError
from pykcl.local.faults import CONTROL_PATH
from pykcl.local.request_log import LoggedRequest, RequestLog
from pykcl.local.server import MAX_BODY_BYTES, AwsApp
from pykcl.local.services import MotoServices
from pykcl.local.stream import LocalKinesis
from pykcl.local.wire import MAX_DEPTH, MAX_VALUES, read_json

SERVICES = {
    "kinesis": ("Kinesis_20131202.ListStreams", "application/x-amz-json-1.1"),
    "dynamodb": ("DynamoDB_20120810.GetItem", "application/x-amz-json-1.0"),
    "cloudwatch": ("GraniteServiceVersion20100801.ListMetrics", "application/x-amz-json-1.0"),
}
EVERY = pytest.mark.parametrize("service", SERVICES)
MIB = 1024 * 1024


def deep(levels):
    return b'{"x":' + b"[" * levels + b"]" * levels + b"}"


@pytest.fixture
def app(clock):
    kinesis = LocalKinesis(clock)
    kinesis.create_stream("s", 1)
    return AwsApp(kinesis, MotoServices(), RequestLog(), clock)


def ask(app, service, body, **headers):
    target, content_type = SERVICES[service]
    return exchange(app, "", body, content_type, **{"x-amz-target": target, **headers})


def peak_of(act):
    """What it returns, and the most memory Python had for it."""
    tracemalloc.start()
    try:
        found = act()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@EVERY
@pytest.mark.parametrize("levels", [500, 20_000, 1_000_000])
def test_deep_json_is_refused(app, service, levels, caplog):
    answer = ask(app, service, deep(levels))
    assert (answer.status, json.loads(answer.body)["__type"]) == (400, "SerializationException")
    assert "local AWS failed" not in caplog.text


@pytest.mark.parametrize("levels", [500, 20_000, 1_000_000])
def test_deep_fault_rules_are_refused(aws, levels, caplog):
    headers = {"Content-Type": "application/json"}
    for body in (deep(levels), b'{"rules":' + deep(levels) + b"}"):
        answer = requests.post(aws.url + CONTROL_PATH, data=body, headers=headers, timeout=300)
        assert answer.status_code == 400
        assert answer.json()["error"].endswith("Nothing was changed.")
    assert "Traceback" not in caplog.text


def test_a_huge_rule_is_refused_and_not_repeated(aws):
    body = json.dumps({"rules": [{"kind": "x" * 1_000_000}]})
    headers = {"Content-Type": "application/json"}
    answer = requests.post(aws.url + CONTROL_PATH, data=body, headers=headers, timeout=300)
    assert answer.status_code == 400
    assert len(answer.content) < 1_000


@EVERY
@pytest.mark.parametrize(
    "value",
    [b"[]", *(pytest.param(one, marks=pytest.mark.slow) for one in (b'""', b"{}", b"0"))],
    ids=["lists", "texts", "maps", "numbers"],
)
def test_millions_of_small_values_are_refused_before_they_are_made(app, service, value):
    count = (MAX_BODY_BYTES - 10) // (len(value) + 1)
    body = b'{"x":[' + b",".join([value] * count) + b"]}"
    answer, peak = peak_of(lambda: ask(app, service, body))
    assert (answer.status, json.loads(answer.body)["__type"]) == (400, "SerializationException")
    assert peak < 80 * MIB


def test_signs_within_text_are_no_values():
    texts = ['[{,"' * 1000, "\\", '\\"', '"', '\\\\",[', "é∢[\u2222"]
    body = {"texts": texts * (MAX_VALUES // 20)}
    for escaped in (True, False):
        assert read_json(json.dumps(body, ensure_ascii=escaped).encode()) == body


def test_the_bounds_are_exact():
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert len(read_json(b"[" + b"1," * (MAX_VALUES - 1) + b"1]")) == MAX_VALUES
    for body in (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), b"[" + b"1," * MAX_VALUES + b"1]"):
        with pytest.raises(AwsError, match="SerializationException"):
            read_json(body)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_json_is_utf_8(encoding):
    """In UTF-16 the sign U+2222 has two bytes that each look like a quotation mark."""
    with pytest.raises(AwsError, match="SerializationException"):
        read_json(json.dumps({"∢": ["x"]}, ensure_ascii=False).encode(encoding))


def test_the_largest_batch_of_kinesis_passes(app):
    records = [{"Data": "eA==", "PartitionKey": ',[{"\\' * 51, "ExplicitHashKey": "0"}] * 500
    body = json.dumps({"StreamName": "s", "Records": records}).encode()
    answer = exchange(app, "PutRecords", body, "application/x-amz-json-1.1")
    assert (answer.status, json.loads(answer.body)["FailedRecordCount"]) == (200, 0)


def test_an_item_as_deep_as_dynamodb_takes_passes(client):
    d = client("dynamodb")
    d.create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    value = {"S": "x"}
    for _ in range(31):
        value = {"M": {"a": value}}
    item = {"k": {"S": "1"}, "deep": value}
    d.batch_write_item(RequestItems={"t": [{"PutRequest": {"Item": item}}]})
    assert d.get_item(TableName="t", Key={"k": {"S": "1"}})["Item"] == item
    assert d.scan(TableName="t")["Items"] == [item]


def test_a_deep_expression_is_refused(client, caplog):
    d = client("dynamodb")
    d.create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    deep_test = "(" * 3_000 + "attribute_exists(k)" + ")" * 3_000
    with pytest.raises(d.exceptions.ClientError) as refused:
        d.delete_item(TableName="t", Key={"k": {"S": "1"}}, ConditionExpression=deep_test)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert "local AWS failed" not in caplog.text


# -- compressed bodies -----------------------------------------------------------------------------------------


@EVERY
def test_a_bomb_is_not_unpacked(app, service):
    body = gzip.compress(b" " * 100 * MIB)
    answer, peak = peak_of(lambda: ask(app, service, body, **{"content-encoding": "gzip"}))
    assert (answer.status, json.loads(answer.body)["__type"]) == (413, "RequestEntityTooLargeException")
    assert peak < 3 * MAX_BODY_BYTES


@EVERY
@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"{}", "gzip"), (gzip.compress(b"{}")[:-9], "gzip"), (gzip.compress(b"{}") * 2, "gzip"), (b"{}", "br")],
    ids=["plain", "cut off", "two", "unknown"],
)
def test_what_cannot_be_unpacked_is_refused(app, service, body, encoding, caplog):
    answer = ask(app, service, body, **{"content-encoding": encoding})
    assert (answer.status, json.loads(answer.body)["__type"]) == (400, "SerializationException")
    assert "local AWS failed" not in caplog.text


@EVERY
def test_a_compressed_body_is_answered_as_its_content(app, service):
    body = {"dynamodb": b'{"TableName":"t","Key":{}}'}.get(service, b"{}")
    plain = ask(app, service, body)
    packed = ask(app, service, gzip.compress(body), **{"content-encoding": "gzip"})
    assert plain.status == packed.status
    assert plain.body == packed.body


def test_a_form_of_millions_of_fields_is_refused(app):
    body = b"Action=PutMetricData&Version=2010-08-01" + b"&a=" * 5_000_000
    form = "application/x-www-form-urlencoded"
    answer, peak = peak_of(lambda: exchange(app, "", body, form, **{"x-amz-target": ""}))
    assert answer.status == 400
    assert peak < 80 * MIB


# -- the log of requests ---------------------------------------------------------------------------------------


def logged(parameters, operation="PutItem"):
    return LoggedRequest(0, "dynamodb", operation, parameters, 200, None, "agent")


def test_the_log_is_bounded_by_bytes():
    log = RequestLog(max_bytes=MIB)

    def fill():
        for number in range(200):
            log.add(logged({"TableName": str(number), "Item": {"x": {"S": "x" * 20_000}}}))

    _, peak = peak_of(fill)
    assert peak < 2 * MIB
    assert 30 < len(log.of("dynamodb")) < 60
    assert log.of("dynamodb")[-1].parameters["TableName"] == "199"


def test_small_values_weigh_what_they_take_in_memory():
    log = RequestLog(max_bytes=MIB)

    def fill():
        for _ in range(100):
            log.add(logged({"Item": [[] for _ in range(5_000)]}))

    _, peak = peak_of(fill)
    assert peak < 2 * MIB


def test_one_request_beyond_the_bound_is_not_kept_and_later_ones_are():
    log = RequestLog(max_bytes=MIB)
    log.add(logged({"Item": "x" * 2 * MIB}))
    log.add(logged({"Item": "x"}))
    assert [request.parameters for request in log] == [{"Item": "x"}]


def test_only_members_of_the_operation_are_logged(app):
    asked = {"StreamName": "s", "Unknown": "x", "TableName": "x", "StreamARN": None}
    exchange(app, "DescribeStreamSummary", json.dumps(asked).encode(), "application/x-amz-json-1.1")
    exchange(app, "Nonsense", json.dumps(asked).encode(), "application/x-amz-json-1.1")
    ask(app, "dynamodb", json.dumps({"TableName": "t", "Key": {}, "Unknown": [1]}).encode())
    assert [(one.operation, one.parameters) for one in app._requests] == [
        ("DescribeStreamSummary", {"StreamName": "s", "StreamARN": None}),
        ("Nonsense", {}),
        ("GetItem", {"TableName": "t", "Key": {}}),
    ]
