"""PutRecords over the direct transport: what is sent, what comes back, and that a request is sent once."""

import json
import logging

import pytest
from raw_server import CLOSE, DATE, HANG, Then, client_of, http, refusal, stream_of

from pykcl.errors import AnswerRefused, SetupError, TemporaryError, Throttled
from pykcl.model.new_record import NewRecord, PutAnswer

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
RECORDS = [
    NewRecord(bytes(range(256)), 'a "key"\\\n'),
    NewRecord(b"", "Schlüssel-\U0001d11e"),
    NewRecord(b"x", "k", "340282366920938463463374607431768211455"),
]
ENTRIES = [{"SequenceNumber": f"{at}", "ShardId": "shardId-000000000000"} for at in range(3)]
PUT = http({"FailedRecordCount": 0, "Records": ENTRIES})
WHOLE = [PutAnswer("shardId-000000000000", None, f"{at}") for at in range(3)]


def stream_over(server, **how):
    """A stream whose next request is direct."""
    stream = stream_of(client_of(server.url, **how))
    server.say(PUT)
    assert stream.put(RECORDS) == WHOLE
    server.requests.clear()
    return stream


def test_only_the_first_request_comes_over_boto3_and_all_say_the_same(server):
    stream = stream_of(client_of(server.url))
    server.say(PUT)
    assert [stream.put(RECORDS) for _ in range(3)] == [WHOLE] * 3
    assert [request.by_boto3 for request in server.requests] == [True, False, False]
    assert [json.loads(request.body) for request in server.requests] == [
        json.loads(server.requests[0].body)
    ] * 3


def test_a_stream_by_its_arn_is_named_by_it(server):
    stream = stream_of(client_of(server.url))
    stream._arn = ARN
    server.say(PUT)
    for _ in range(2):
        stream.put(RECORDS)
    assert [json.loads(request.body)["StreamARN"] for request in server.requests] == [ARN, ARN]
    assert server.requests[0].by_boto3 != server.requests[1].by_boto3


def test_boto3_is_what_one_gets_who_asks_for_it(server):
    stream = stream_of(client_of(server.url), http_transport="boto3")
    server.say(PUT)
    assert [stream.put(RECORDS) for _ in range(2)] == [WHOLE] * 2
    assert all(request.by_boto3 for request in server.requests)


def test_a_handler_of_somebody_stands_against_it_and_is_no_failure_of_a_put(server, caplog):
    caplog.set_level(logging.INFO)
    client = client_of(server.url)
    seen = []
    client.meta.events.register("before-call.kinesis.PutRecords", lambda **_: seen.append(1))
    stream = stream_of(client, http_transport="direct")
    server.say(PUT)
    assert [stream.put(RECORDS) for _ in range(2)] == [WHOLE] * 2
    assert seen == [1, 1]
    assert "putting over boto3" in caplog.text


def test_refused_records_are_named_with_their_error(server):
    stream = stream_over(server)
    refused = {"ErrorCode": "InternalFailure", "ErrorMessage": "Internal service failure."}
    server.say(http({"FailedRecordCount": 2, "Records": [ENTRIES[0], refused, {"ShardId": 7}]}))
    assert stream.put(RECORDS) == [
        WHOLE[0], PutAnswer(None, "InternalFailure"), PutAnswer(None, "no shard named")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal("ProvisionedThroughputExceededException"), Throttled),
        (refusal("AccessDeniedException"), SetupError),
        (refusal("InternalFailure", 500), TemporaryError),
        (http(b"<html>busy</html>", 503), TemporaryError),
    ],
)
def test_errors_are_sorted_as_over_boto3(server, answer, error):
    stream = stream_over(server)
    server.say(answer)
    for one in (stream, stream_of(client_of(server.url), http_transport="boto3")):
        with pytest.raises(error):
            one.put(RECORDS)
    assert [request.by_boto3 for request in server.requests] == [False, True]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no JSON", b"[]", b"{}", b'{"Records": {}}', {"Records": ENTRIES[:2]}, {"Records": [*ENTRIES[:2], None]},
        {"Records": [*ENTRIES[:2], []]}, {"Records": [*ENTRIES, None]},
    ],
)  # fmt: skip
def test_an_answer_that_does_not_say_what_became_of_each_record_is_none(server, body):
    stream = stream_over(server)
    server.say(http(body))
    with pytest.raises((AnswerRefused, TemporaryError)) as found:
        stream.put(RECORDS)
    assert "no JSON" not in str(found.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [CLOSE, HANG, Then(PUT[:-5], CLOSE), Then(PUT[:-5], HANG)],
    ids=["closed", "no answer in time", "cut off", "slow in the middle"],
)
def test_a_request_without_a_whole_answer_is_sent_once(server, answer):
    """Its records may be in the stream: whoever sends them again has to say that they may be there twice."""
    stream = stream_over(server, read_timeout=2)
    server.say(answer, PUT)
    with pytest.raises(TemporaryError) as found:
        stream.put(RECORDS)
    assert not isinstance(found.value, Throttled)
    assert len(server.requests) == 1


def test_a_request_that_was_refused_for_its_time_is_signed_anew(server):
    stream = stream_over(server)
    server.say(refusal("InvalidSignatureException", Date=DATE), PUT)
    assert stream.put(RECORDS) == WHOLE
    first, second = server.requests
    assert first.body == second.body
    assert first.headers["x-amz-date"] > second.headers["x-amz-date"]
