"""Faults between client and local AWS, over the wire as boto3 sees them, and the control path that switches them."""

import http.client
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from pykcl.local.faults import CONTROL_PATH, KINDS, SERVICES, FaultRefused, FaultRule
from pykcl.local.server import LocalAws

LONG = 300
"""Seconds after which a test fails that waits for something."""


@pytest.fixture
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        yield aws


@pytest.fixture
def client(aws):
    made = []

    def make(service, read_timeout=LONG):
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=LONG,
            read_timeout=read_timeout,
            tcp_keepalive=True,
        )
        session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")
        made.append(session.client(service, endpoint_url=aws.url, config=config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def dynamodb(client):
    return with_table(client("dynamodb"))


def with_table(dynamodb):
    dynamodb.create_table(
        TableName="rows",
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return dynamodb


def control(aws, method="GET", body=None):
    """Status and answer of one call of the control path."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(aws.url + CONTROL_PATH, data=data, method=method)
    request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=LONG) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def post(aws, *rules, seed=None):
    status, answer = control(aws, "POST", {"rules": list(rules), "seed": seed})
    assert status == 200, answer


def put(dynamodb, key="a"):
    return dynamodb.put_item(TableName="rows", Item={"key": {"S": key}})


def keys(aws, dynamodb):
    """What is in the table; asked without faults."""
    post(aws)
    return {item["key"]["S"] for item in dynamodb.scan(TableName="rows")["Items"]}


def wait_until(condition):
    deadline, pause = time.monotonic() + LONG, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        pause.wait(0.01)


# -- the kinds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "code", "done"),
    [
        ("throttle", 400, "ProvisionedThroughputExceededException", False),
        ("error", 500, "InternalServerError", False),
        ("error-after", 500, "InternalServerError", True),
    ],
)
def test_an_error_answer_says_so_and_the_write_is_done_or_not(aws, dynamodb, kind, status, code, done):
    post(aws, {"kind": kind, "service": "dynamodb", "operation": "PutItem"})
    with pytest.raises(ClientError) as caught:
        put(dynamodb)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert caught.value.response["Error"]["Code"] == code
    assert keys(aws, dynamodb) == ({"a"} if done else set())


@pytest.mark.parametrize(("kind", "done"), [("reset-before", False), ("reset-after", True)])
def test_a_reset_breaks_the_connection_and_the_write_is_done_or_not(aws, dynamodb, kind, done):
    post(aws, {"kind": kind, "operation": "PutItem"})
    with pytest.raises(ConnectionClosedError) as caught:
        put(dynamodb)
    assert "reset" in str(caught.value.kwargs["error"]).lower()
    assert keys(aws, dynamodb) == ({"a"} if done else set())


def test_a_reset_is_a_tcp_reset_and_not_an_orderly_end(aws):
    post(aws, {"kind": "reset-before"})
    with socket.create_connection(("127.0.0.1", aws.port), timeout=LONG) as connection:
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.ListStreams\r\nContent-Length: 2\r\n\r\n{}"
        )
        with pytest.raises(ConnectionResetError):
            connection.recv(100)


def test_a_reset_hits_one_connection_and_not_its_neighbours(aws, client, dynamodb):
    neighbour = client("dynamodb")
    neighbour.scan(TableName="rows")
    opened = connections_of(neighbour)
    post(aws, {"kind": "reset-after", "operation": "PutItem", "times": 1})
    with pytest.raises(ConnectionClosedError):
        put(dynamodb)
    neighbour.scan(TableName="rows")
    assert connections_of(neighbour) == opened == 1


def connections_of(client):
    """How many connections the pools of a client have ever opened."""
    manager = client._endpoint.http_session._manager
    return sum(manager.pools[key].num_connections for key in manager.pools.keys())  # noqa: SIM118


def test_a_lost_answer_never_comes_though_the_write_is_done(aws, dynamodb, client):
    post(aws, {"kind": "lost-answer", "operation": "PutItem"})
    with pytest.raises(ReadTimeoutError):
        put(client("dynamodb", read_timeout=0.3))
    assert keys(aws, dynamodb) == {"a"}


def test_a_slow_answer_comes_late_and_complete(aws, dynamodb):
    post(aws, {"kind": "slow", "operation": "PutItem", "seconds": 0.3})
    begun = time.monotonic()
    put(dynamodb)
    assert time.monotonic() - begun >= 0.3
    assert keys(aws, dynamodb) == {"a"}


def test_a_late_request_is_done_when_its_client_has_given_up(aws, dynamodb):
    post(aws, {"kind": "late", "operation": "PutItem", "seconds": 0.5})
    wire = http.client.HTTPConnection("127.0.0.1", aws.port)
    members = {"TableName": "rows", "Item": {"key": {"S": "a"}}}
    headers = {"x-amz-target": "DynamoDB_20120810.PutItem", "content-type": "application/x-amz-json-1.0"}
    wire.request("POST", "/", json.dumps(members), headers)
    wait_until(lambda: aws.faults.counts["late"])
    wire.close()
    wait_until(lambda: keys(aws, dynamodb) == {"a"})


def test_throttling_has_the_name_that_each_service_gives_it(aws, client):
    post(aws, {"kind": "throttle"})
    kinesis, cloudwatch = client("kinesis"), client("cloudwatch")
    with pytest.raises(kinesis.exceptions.LimitExceededException):
        kinesis.list_shards(StreamName="orders")
    with pytest.raises(kinesis.exceptions.ProvisionedThroughputExceededException):
        kinesis.get_records(ShardIterator="any")
    with pytest.raises(ClientError) as caught:
        cloudwatch.put_metric_data(Namespace="n", MetricData=[{"MetricName": "m", "Value": 1}])
    assert caught.value.response["Error"]["Code"] == "Throttling"


def test_the_log_tells_what_was_done_whatever_the_client_was_told(aws, dynamodb, client):
    for kind in ("throttle", "reset-before", "reset-after", "lost-answer", "error-after"):
        post(aws, {"kind": kind, "operation": "PutItem"})
        with pytest.raises((ClientError, ConnectionClosedError, ReadTimeoutError)):
            put(client("dynamodb", read_timeout=0.3), key=kind)
    told = {
        r.parameters["Item"]["key"]["S"]: (r.status, r.error_code)
        for r in aws.requests.of("dynamodb", "PutItem")
    }
    assert told == {
        "throttle": (400, "ProvisionedThroughputExceededException"),
        "reset-before": (0, "ConnectionReset"),
        "reset-after": (200, None),
        "lost-answer": (200, None),
        "error-after": (200, None),
    }


def test_kinesis_faults_leave_no_payload_in_the_log(aws, client):
    post(aws, {"kind": "throttle"})
    with pytest.raises(ClientError):
        client("kinesis").put_record(StreamName="orders", Data=b"canary", PartitionKey="canary")
    assert [r.parameters for r in aws.requests.of("kinesis")] == [{"StreamName": "orders"}]


@pytest.mark.parametrize("kind", ["lost-answer", "slow", "late"])
def test_stopping_does_not_wait_for_an_answer_that_a_fault_holds_back(client, aws, kind):
    post(aws, {"kind": kind, **({} if kind == "lost-answer" else {"seconds": 500})})
    kinesis, failures = client("kinesis", read_timeout=600), []

    def ask():
        try:
            kinesis.list_streams()
        except (ConnectionClosedError, ClientError) as error:
            failures.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    wait_until(lambda: aws.faults.counts[kind])
    aws.stop()
    waiting.join(LONG)
    assert not waiting.is_alive()
    assert len(failures) == 1


# -- which requests --------------------------------------------------------------------------------------------


def test_only_requests_that_fit_fail_and_only_so_many_times(aws, dynamodb):
    post(aws, {"kind": "error", "service": "dynamodb", "operation": "PutItem", "times": 2})
    dynamodb.scan(TableName="rows")
    for _ in range(2):
        with pytest.raises(ClientError):
            put(dynamodb)
    put(dynamodb)
    assert control(aws)[1]["injected"] == {**dict.fromkeys(KINDS, 0), "error": 2}


def test_the_same_seed_draws_the_same_lots(aws, dynamodb):
    def outcomes(seed):
        post(aws, {"kind": "error", "operation": "Scan", "probability": 0.5}, seed=seed)
        found = []
        for _ in range(24):
            try:
                dynamodb.scan(TableName="rows")
                found.append(True)
            except ClientError:
                found.append(False)
        return found

    first = outcomes(1)
    assert first == outcomes(1)
    assert first != outcomes(2)
    assert 0 < sum(first) < 24


def test_rules_are_tried_in_order_and_counts_go_on_until_deleted(aws, dynamodb):
    post(aws, {"kind": "throttle", "times": 1}, {"kind": "error", "service": "dynamodb"})
    for status in (400, 500):
        with pytest.raises(ClientError) as caught:
            put(dynamodb)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    post(aws)
    put(dynamodb)
    _, shown = control(aws)
    assert (shown["rules"], shown["injected"]["throttle"], shown["injected"]["error"]) == ([], 1, 1)
    assert control(aws, "DELETE") == (200, {"rules": [], "injected": dict.fromkeys(KINDS, 0)})


def test_the_rules_in_force_are_shown_as_they_can_be_posted_again(aws):
    post(aws, {"kind": "slow", "service": "kinesis", "seconds": 2, "probability": 0.25})
    shown = control(aws)[1]["rules"]
    post(aws, *shown)
    assert control(aws)[1]["rules"] == shown
    assert shown[0]["seconds"] == 2
    assert (shown[0]["operation"], shown[0]["times"]) == ("*", None)


def test_the_control_path_works_whatever_else_fails_and_is_not_logged(aws):
    post(aws, {"kind": "reset-before"})
    assert control(aws)[0] == 200
    assert list(aws.requests) == []


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "The body is not"),
        ([], "The body is not"),
        ({"rule": []}, "The body is not"),
        ({"rules": [], "sed": 1}, "the body has no 'sed'. Did you mean 'seed'?"),
        ({"rules": [], "seed": "x"}, "seed='x' is not a whole number"),
        ({"rules": [7]}, "Rule 1: no kind is given. Give one of error, error-after, late"),
        ({"rules": [{"kind": "error"}, {}]}, "Rule 2: no kind is given"),
        (
            {"rules": [{"kind": "throtle"}]},
            "kind 'throtle' is unknown, so no request would match it. Did you mean",
        ),
        ({"rules": [{"kind": ["error"]}]}, "kind ['error'] is unknown"),
        ({"rules": [{"kind": "error", "service": "ec2"}]}, "service 'ec2' is unknown"),
        ({"rules": [{"kind": "error", "operation": "UpdateItems"}]}, "Did you mean 'UpdateItem'?"),
        (
            {"rules": [{"kind": "error", "service": "kinesis", "operation": "Scan"}]},
            "operation 'Scan' is unknown",
        ),
        ({"rules": [{"kind": "error", "chance": 1}]}, "a rule has no 'chance'. Known: kind, service"),
        ({"rules": [{"kind": "error", "probability": 20}]}, "probability=20 is not a number from 0 to 1"),
        ({"rules": [{"kind": "error", "probability": True}]}, "probability=True is not a number"),
        ({"rules": [{"kind": "slow"}]}, "seconds go with late and slow, and only there"),
        ({"rules": [{"kind": "error", "seconds": 1}]}, "seconds go with late and slow, and only there"),
        ({"rules": [{"kind": "slow", "seconds": 6000}]}, "seconds=6000 is not a number from 0 to 600"),
        ({"rules": [{"kind": "error", "times": 0}]}, "times=0 is not a number of faults"),
        ({"rules": [{"kind": "error", "times": 1.5}]}, "times=1.5 is not a number of faults"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_and_change_nothing(aws, body, says):
    post(aws, {"kind": "error"})
    before = control(aws)[1]
    status, answer = control(aws, "POST", body)
    assert status == 400
    assert says in answer["error"]
    assert answer["error"].endswith("Nothing was changed.")
    assert control(aws)[1] == before


def test_other_methods_are_refused(aws):
    assert control(aws, "PUT", b"{}")[0] == 405


def test_rules_made_in_python_are_checked_alike():
    assert FaultRule("error", service="kinesis").fits("kinesis", "GetRecords")
    with pytest.raises(FaultRefused, match="kind 'mood'"):
        FaultRule("mood")
    assert all(FaultRule("error", service=service) for service in SERVICES)


def test_http2_clients_are_reset_too(aws):
    """Over h2c by prior knowledge, as Java's SDK speaks; curl is the only such client at hand."""
    post(aws, {"kind": "reset-before", "operation": "ListStreams"})
    target = ["-H", "x-amz-target: Kinesis_20131202.ListStreams", "-d", "{}", aws.url]
    try:
        done = subprocess.run(
            ["curl", "-sS", "--noproxy", "*", "--http2-prior-knowledge", "-m", str(LONG), *target],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("curl is not installed")
    assert done.returncode not in (0, 28), done.stdout
