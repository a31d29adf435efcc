"""HTTP/2 with prior knowledge on the port of HTTP/1.1, as the Java SDK uses it: many requests on one connection."""

from __future__ import annotations

import http.client
import threading
import time

import cbor2
import h2.errors
import pytest
from http2_client import CBOR, LONG, Http2Client
from wire_forms import from_cbor, to_cbor

from pykcl.local.faults import FaultRule
from pykcl.local.server import MAX_CONCURRENT_STREAMS, LocalAws

JSON = "application/x-amz-json-1.1"
FIRST = "shardId-000000000000"


@pytest.fixture
def h2c(aws):
    aws.kinesis.create_stream("s", 1)
    with Http2Client(aws.port) as client:
        yield client


def members(reply):
    assert reply.status == 200
    assert reply.headers["content-type"] == CBOR
    return from_cbor(reply.body)


def opened(aws, kind="TRIM_HORIZON"):
    return aws.kinesis.get_shard_iterator("s", FIRST, kind)


def wait_until(condition):
    deadline, pause = time.monotonic() + LONG, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        pause.wait(0.01)


def test_json_and_cbor_are_answered_on_one_connection(h2c):
    body = b'{"StreamName":"s"}'
    in_json = h2c.ask("DescribeStreamSummary", body, JSON)
    in_cbor = h2c.ask("DescribeStreamSummary", to_cbor({"StreamName": "s"}))
    assert in_json.headers["content-type"] == JSON
    assert b'"StreamName":"s"' in in_json.body
    assert members(in_cbor)["StreamDescriptionSummary"]["StreamName"] == "s"
    refused = h2c.ask("DescribeStreamSummary", to_cbor({"StreamName": "none"}))
    assert (refused.status, refused.headers["x-amzn-errortype"]) == (400, "ResourceNotFoundException")
    assert cbor2.loads(refused.body)["__type"] == "ResourceNotFoundException"


def test_cbor_is_answered_over_http1_on_the_same_port(aws):
    aws.kinesis.create_stream("s", 1)
    wire = http.client.HTTPConnection("127.0.0.1", aws.port, timeout=LONG)
    headers = {"Content-Type": CBOR, "X-Amz-Target": "Kinesis_20131202.ListShards"}
    wire.request("POST", "/", to_cbor({"StreamName": "s"}), headers)
    answer = wire.getresponse()
    assert (answer.status, answer.headers["content-type"]) == (200, CBOR)
    assert from_cbor(answer.read())["Shards"][0]["ShardId"] == FIRST
    wire.close()


def test_two_hundred_requests_at_once_on_one_connection_get_each_its_own_answer(aws, h2c):
    h2c.ask("ListStreams", b"")
    assert h2c.h2.remote_settings.max_concurrent_streams == MAX_CONCURRENT_STREAMS >= 200
    bodies = {
        number: to_cbor({"StreamName": "s", "Data": b"%d" % number, "PartitionKey": "k"})
        for number in range(200)
    }
    streams = {number: h2c.open("PutRecord", len(body)) for number, body in bodies.items()}
    for number in reversed(range(200)):  # no request is complete before all have begun
        h2c.send_body(streams[number], bodies[number])
    places = {number: members(h2c.reply(stream))["SequenceNumber"] for number, stream in streams.items()}
    stored = aws.kinesis.get_records(opened(aws)).records
    assert {record.sequence_number: int(record.data) for record in stored} == {
        place: number for number, place in places.items()
    }
    assert len(places) == 200


def test_ten_megabytes_go_up_and_come_down_in_windows(aws, h2c):
    records = [{"Data": bytes([n]) * 1_048_000, "PartitionKey": "k"} for n in range(10)]
    put = members(h2c.ask("PutRecords", to_cbor({"StreamName": "s", "Records": records})))
    assert put["FailedRecordCount"] == 0
    page = members(h2c.ask("GetRecords", to_cbor({"ShardIterator": opened(aws)})))
    assert [record["Data"] for record in page["Records"]] == [record["Data"] for record in records]


def test_a_stream_that_nobody_reads_does_not_hold_up_the_others(aws, h2c):
    for number in range(3):
        aws.kinesis.put_record("s", bytes([number]) * 1_000_000, "k")
    taken = []

    def keep(event):
        # The connection's window goes on, that of the big answer's stream does not.
        if isinstance(event, h2.events.DataReceived) and event.stream_id == big:
            taken.append(event.flow_controlled_length)
            h2c.h2.increment_flow_control_window(event.flow_controlled_length)
            h2c.replies[big].body += event.data
            return
        take(event)

    take, h2c._take = h2c._take, keep
    big = h2c.send("GetRecords", to_cbor({"ShardIterator": opened(aws)}))
    while sum(taken) < 512 * 1024:
        h2c.hear()
    for _ in range(5):
        assert members(h2c.ask("ListStreams", b""))["StreamNames"] == ["s"]
    assert sum(taken) == 512 * 1024  # its window, and no byte more
    h2c._take = take
    h2c.h2.increment_flow_control_window(3_000_000, big)
    assert len(members(h2c.reply(big))["Records"]) == 3


def test_a_request_given_up_half_sent_is_not_done_and_harms_no_other(aws, h2c):
    body = to_cbor({"StreamName": "s", "Data": b"half", "PartitionKey": "k"})
    half = h2c.open("PutRecord", len(body))
    h2c.h2.send_data(half, body[:10])
    h2c.reset(half)
    assert members(h2c.ask("ListStreams", b""))["StreamNames"] == ["s"]
    assert aws.kinesis.get_records(opened(aws)).records == []
    assert aws.requests.of("kinesis", "PutRecord") == []


def test_a_body_beyond_all_limits_is_refused_while_others_are_answered(h2c):
    huge = h2c.open("PutRecords", 17 * 1024 * 1024)
    assert members(h2c.ask("ListStreams", b""))["StreamNames"] == ["s"]
    h2c.send_body(huge, b" " * (17 * 1024 * 1024))
    assert h2c.reply(huge).status == 413
    assert members(h2c.ask("ListStreams", b""))["StreamNames"] == ["s"]


def test_the_client_may_say_goodbye_and_come_again(aws, h2c):
    h2c.ask("ListStreams", b"")
    h2c.h2.close_connection()
    while not h2c.closed:
        h2c.hear()
    with Http2Client(aws.port) as again:
        assert again.ask("ListStreams", b"").status == 200


def test_what_is_no_http2_is_answered_with_goaway_and_the_end(aws, h2c):
    h2c.ask("ListStreams", b"")
    with Http2Client(aws.port) as other:
        other.ask("ListStreams", b"")  # what were left to send afterwards would turn the end into a reset
        other.wire.sendall(b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00")  # a window update of zero
        while not other.closed:
            other.hear()
        assert other.goaway == h2.errors.ErrorCodes.PROTOCOL_ERROR
    assert h2c.ask("ListStreams", b"").status == 200


def test_more_streams_than_allowed_end_that_connection_only(aws, h2c):
    h2c.ask("ListStreams", b"")
    with Http2Client(aws.port) as greedy:
        greedy.ask("ListStreams", b"")
        greedy.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1 << 30
        greedy.h2.remote_settings.acknowledge()
        with pytest.raises(ConnectionError):
            for _ in range(MAX_CONCURRENT_STREAMS + 1):
                greedy.open("ListStreams", 2)
            while not greedy.closed:
                greedy.hear()
            raise ConnectionError
    assert h2c.ask("ListStreams", b"").status == 200


def test_the_stop_ends_connections_with_requests_under_way():
    with LocalAws() as aws:
        aws.kinesis.create_stream("s", 1)
        aws.faults.replace([FaultRule("lost-answer", operation="GetRecords")])
        with Http2Client(aws.port) as client:
            client.send("GetRecords", to_cbor({"ShardIterator": opened(aws)}))
            assert client.ask("ListStreams", b"").status == 200
            aws.stop()
            while not client.closed:
                client.hear()


# -- faults ----------------------------------------------------------------------------------------------------


def put_body(data):
    return to_cbor({"StreamName": "s", "Data": data, "PartitionKey": "k"})


@pytest.mark.parametrize(("kind", "done"), [("reset-before", []), ("reset-after", [b"x"])])
def test_a_reset_ends_the_connection_and_what_is_under_way_on_it_but_no_other(aws, h2c, kind, done):
    aws.faults.replace(
        [FaultRule(kind, operation="PutRecord", times=1), FaultRule("lost-answer", operation="GetRecords")]
    )
    with Http2Client(aws.port) as other:
        waiting = h2c.send("GetRecords", to_cbor({"ShardIterator": opened(aws)}))
        wait_until(lambda: aws.faults.counts["lost-answer"])
        stream = h2c.send("PutRecord", put_body(b"x"))
        for broken in (stream, waiting):
            with pytest.raises(ConnectionError):
                h2c.reply(broken)
        assert h2c.goaway is None  # a reset, no farewell
        assert other.ask("ListStreams", b"").status == 200
    assert [record.data for record in aws.kinesis.get_records(opened(aws)).records] == done
    with Http2Client(aws.port) as again:
        assert again.ask("PutRecord", put_body(b"y")).status == 200


def test_a_lost_answer_holds_its_own_stream_only_and_is_let_go_with_it(aws, h2c):
    aws.faults.replace([FaultRule("lost-answer", operation="PutRecord", times=2)])
    lost = [h2c.send("PutRecord", put_body(b"x")) for _ in range(2)]
    for _ in range(20):
        assert h2c.ask("ListStreams", b"").status == 200
    assert not any(h2c.replies[stream].headers for stream in lost)
    held = aws._app.connections._held
    assert len(held) == 2
    h2c.reset(lost[0])
    wait_until(lambda: len(held) == 1)
    h2c.wire.close()
    wait_until(lambda: not held)
    assert len(aws.kinesis.get_records(opened(aws)).records) == 2


@pytest.mark.parametrize("kind", ["slow", "late"])
def test_a_delayed_answer_is_overtaken_on_its_connection(aws, h2c, kind):
    aws.faults.replace([FaultRule(kind, operation="PutRecord", seconds=0.3)])
    delayed = h2c.send("PutRecord", put_body(b"x"))
    wait_until(lambda: aws.faults.counts[kind])
    assert h2c.ask("ListStreams", b"").status == 200
    assert not h2c.replies[delayed].headers
    assert members(h2c.reply(delayed))["ShardId"] == FIRST


def test_a_throttled_request_is_told_so_on_its_stream(aws, h2c):
    aws.faults.replace([FaultRule("throttle", operation="GetRecords", times=1)])
    ask = to_cbor({"ShardIterator": opened(aws)})
    refused = h2c.ask("GetRecords", ask)
    assert cbor2.loads(refused.body)["__type"] == "ProvisionedThroughputExceededException"
    assert (refused.status, refused.headers["content-type"]) == (400, CBOR)
    assert h2c.ask("GetRecords", ask).status == 200
    assert [r.error_code for r in aws.requests.of("kinesis", "GetRecords")] == [
        "ProvisionedThroughputExceededException",
        None,
    ]
