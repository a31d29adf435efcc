"""The server itself: start, stop, HTTP/2, the request log, the fault hook."""

from __future__ import annotations

import json
import socket
import threading

import h2.config
import h2.connection
import h2.events
import pytest
from botocore.exceptions import ClientError
from http2_client import Http2Client

from pykcl.local.errors import AwsError
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws
from tests.descriptors import assert_connections_end_with_clients, connected

FIRST = "shardId-000000000000"
TABLE = {
    "TableName": "leases",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}


def test_stop_frees_the_port_and_ends_the_threads_with_clients_still_connected():
    before = set(threading.enumerate())
    aws = LocalAws().start()
    port = aws.port
    assert aws.url == f"http://127.0.0.1:{port}"
    with socket.create_connection(("127.0.0.1", port)) as idle:
        idle.sendall(request_text("ListStreams", {}))
        assert b"200" in idle.recv(4096)
        aws.stop()
    aws.stop()
    assert set(threading.enumerate()) <= before
    with LocalAws(port=port) as again:
        assert again.port == port


def request_text(operation: str, params: dict) -> bytes:
    body = json.dumps(params).encode()
    return (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.{operation}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def asked_over_http2(port: int) -> socket.socket:
    client = Http2Client(port)
    assert client.ask("ListStreams", b"{}", "application/x-amz-json-1.1").status == 200
    return client.wire


@pytest.mark.parametrize(
    "talk",
    [
        connected,
        lambda port: connected(port, request_text("ListStreams", {})),
        lambda port: connected(port, request_text("ListShards", {"StreamName": "s"}), is_answered=False),
        asked_over_http2,
    ],
    ids=["nothing asked", "idle", "never answered", "idle over HTTP/2"],
)
def test_connections_end_with_their_clients(aws, talk):
    aws.faults.replace([FaultRule("lost-answer", "kinesis", "ListShards")])
    assert_connections_end_with_clients(lambda: talk(aws.port))


def test_a_taken_port_is_an_error_of_start(aws):
    with pytest.raises(OSError, match="in use"):
        LocalAws(port=aws.port).start()


def test_the_url_is_unknown_before_start_and_a_second_start_is_refused(aws):
    with pytest.raises(RuntimeError, match="start"):
        _ = LocalAws().url
    with pytest.raises(RuntimeError, match="already"):
        aws.start()


def test_it_listens_on_loopback_only(aws):
    with socket.socket() as other:
        other.bind(("127.0.0.2", aws.port))  # would fail if the wildcard address were taken


def test_http2_with_prior_knowledge_is_answered(aws):
    aws.kinesis.create_stream("s", 1)
    connection = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
    )
    connection.initiate_connection()
    body = b'{"StreamName":"s"}'
    headers = [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "localhost")]
    headers += [
        ("x-amz-target", "Kinesis_20131202.DescribeStreamSummary"),
        ("content-length", str(len(body))),
    ]
    connection.send_headers(1, headers)
    connection.send_data(1, body, end_stream=True)
    status, answer, ended = "", b"", False
    with socket.create_connection(("127.0.0.1", aws.port), timeout=300) as wire:
        while not ended:
            wire.sendall(connection.data_to_send())
            for event in connection.receive_data(wire.recv(65536)):
                if isinstance(event, h2.events.ResponseReceived):
                    status = dict(event.headers)[":status"]
                elif isinstance(event, h2.events.DataReceived):
                    answer += event.data
                ended = ended or isinstance(event, h2.events.StreamEnded)
    assert status == "200"
    assert json.loads(answer)["StreamDescriptionSummary"]["StreamName"] == "s"


def test_the_request_log_has_parameters_and_results(aws, client):
    d = client("dynamodb")
    d.create_table(**TABLE)
    d.put_item(TableName="leases", Item={"leaseKey": {"S": "a"}, "n": {"N": "1"}})
    change = {"TableName": "leases", "Key": {"leaseKey": {"S": "a"}}, "UpdateExpression": "SET n = :n"}
    d.update_item(**change, ExpressionAttributeValues={":n": {"N": "2"}})
    with pytest.raises(ClientError):
        d.update_item(**change, ExpressionAttributeValues={":n": {"N": "3"}}, ConditionExpression="n = :n")
    first, refused = aws.requests.of("dynamodb", "UpdateItem")
    assert first.parameters["ExpressionAttributeValues"] == {":n": {"N": "2"}}
    client("kinesis").list_streams()
    assert [request.operation for request in aws.requests][-2:] == ["UpdateItem", "ListStreams"]
    assert (refused.status, refused.error_code) == (400, "ConditionalCheckFailedException")


def test_the_request_log_tells_which_client_asked(aws, client, monkeypatch):
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "w1")
    client("kinesis").list_streams()
    with pytest.raises(ClientError):
        client("dynamodb").describe_table(TableName="none")
    asked = [request.user_agent for request in aws.requests]
    assert len(asked) == 2
    assert all("Boto3/" in agent and "app/w1" in agent for agent in asked)


def test_the_request_log_holds_neither_payloads_nor_keys_nor_iterators(tmp_path):
    import boto3

    path = tmp_path / "requests.jsonl"
    with LocalAws(request_log=path) as aws:
        aws.kinesis.create_stream("s", 1)
        session = boto3.session.Session(
            aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
        )
        k = session.client("kinesis", endpoint_url=aws.url)
        k.put_record(StreamName="s", Data=b"secret", PartitionKey="secret-key", ExplicitHashKey="77777")
        k.put_records(StreamName="s", Records=[{"Data": b"secret", "PartitionKey": "secret-key"}])
        opened = k.get_shard_iterator(StreamName="s", ShardId=FIRST, ShardIteratorType="LATEST")[
            "ShardIterator"
        ]
        k.get_records(ShardIterator=opened, Limit=5)
        k.close()
        kept = [(request.operation, request.parameters) for request in aws.requests]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["operation"], line["parameters"]) for line in lines] == kept
    assert kept == [
        ("PutRecord", {"StreamName": "s"}),
        ("PutRecords", {"StreamName": "s", "RecordCount": 1}),
        ("GetShardIterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}),
        ("GetRecords", {"Limit": 5}),
    ]
    assert all(line["status"] == 200 and line["service"] == "kinesis" for line in lines)


def test_the_fault_hook_can_refuse_a_request_or_lose_its_answer(aws, client):
    d = client("dynamodb")
    d.create_table(**TABLE)

    def hook(service: str, operation: str, params: dict) -> str | None:
        if operation == "GetItem":
            raise AwsError("ProvisionedThroughputExceededException", "on purpose")
        return "lose-answer" if operation == "PutItem" else None

    aws.fault = hook
    with pytest.raises(d.exceptions.ProvisionedThroughputExceededException):
        d.get_item(TableName="leases", Key={"leaseKey": {"S": "a"}})
    with pytest.raises(ClientError) as refused:
        d.put_item(TableName="leases", Item={"leaseKey": {"S": "a"}})
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    aws.fault = None
    assert "Item" in d.get_item(TableName="leases", Key={"leaseKey": {"S": "a"}})


def test_a_waiting_fault_hook_delays_its_own_request_only(aws, client):
    let_go, waiting = threading.Event(), threading.Event()
    aws.kinesis.create_stream("slow")

    def hook(service: str, operation: str, params: dict) -> None:
        if params.get("StreamName") == "slow":
            waiting.set()
            assert let_go.wait(300)

    aws.fault = hook
    k = client("kinesis")
    answers: list[dict] = []
    slow = threading.Thread(target=lambda: answers.append(k.describe_stream_summary(StreamName="slow")))
    slow.start()
    assert waiting.wait(300)
    assert k.list_streams()["StreamNames"] == ["slow"]
    assert not answers
    let_go.set()
    slow.join(300)
    assert len(answers) == 1


def test_a_bug_in_a_hook_is_an_internal_failure_not_a_hang(aws, client, caplog):
    def hook(operation: str, stream: str, shard_id: str) -> None:
        raise ZeroDivisionError

    aws.kinesis.fault = hook
    with pytest.raises(ClientError) as failed:
        client("kinesis").list_streams()
    assert failed.value.response["Error"]["Code"] == "InternalFailure"
    assert "local AWS failed" in caplog.text
