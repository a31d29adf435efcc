"""What goes wrong on the way: the same errors of ours over boto3 and over the direct transport, and nothing twice."""

import gzip
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import cbor2
import pytest
from botocore.credentials import RefreshableCredentials
from raw_server import (
    CBOR,
    CLOSE,
    EMPTY,
    HANG,
    Drip,
    RawServer,
    Then,
    client_of,
    direct_stream,
    fetch,
    http,
    refusal,
    stream_of,
    transport_of,
)

from pykcl.errors import (
    AnswerRefused,
    IteratorExpired,
    PyKclError,
    SetupError,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import PageStatus
from pykcl.runtime import SystemRuntime
from tests.cycles import types_in_cycles

RECORD = {
    "SequenceNumber": "49546986683135544286507457936321625675700192471156785154",
    "ApproximateArrivalTimestamp": 1_700_000_000.123,
    "Data": "aGVsbG8=",
    "PartitionKey": "k",
}
PAGE = {**EMPTY, "Records": [RECORD]}
AS_CBOR = {
    **EMPTY,
    "Records": [{**RECORD, "Data": b"hello", "ApproximateArrivalTimestamp": cbor2.CBORTag(1, 1_700_000_000_123)}],
}  # fmt: skip
HTML = b"<html><body>Bad gateway</body></html>"
WAYS = {"boto3": None, "direct, JSON": "json", "direct, CBOR": "cbor"}


@pytest.fixture(params=WAYS)
def stream(request, server):
    """Its first page has been read; the next one comes the way of the parameter."""
    # Only where the end of patience is what is tested, it is short; and even then long enough for a busy machine.
    patience = 1.5 if "slow" in request.node.name else 20
    if request.param == "boto3":
        found = stream_of(client_of(server.url, read_timeout=patience), http_transport="boto3")
        fetch(found)
    else:
        found = direct_stream(server, record_encoding=WAYS[request.param], read_timeout=patience)
    return found


FAILURES = {
    "no answer": (CLOSE, TemporaryError),
    "too slow": (HANG, TemporaryError),
    "slow in the middle": (Then(http(PAGE)[:-5], HANG), TemporaryError),
    "not HTTP": (Then(b"SSH-2.0\r\n\r\n", CLOSE), TemporaryError),
    "a gateway's page": (http(HTML, 502, content_type="text/html"), TemporaryError),
    "a failure without a word": (http(b"", 500), TemporaryError),
    "a failure of the service": (refusal("InternalFailure", 500), TemporaryError),
    "throttled": (refusal("ProvisionedThroughputExceededException"), Throttled),
    "throttled with a 500": (refusal("ThrottlingException", 503), Throttled),
    "the iterator's end": (refusal("ExpiredIteratorException"), IteratorExpired),
    "no iterator": (refusal("com.amazonaws#InvalidArgumentException"), IteratorExpired),
    "not permitted": (refusal("AccessDeniedException"), SetupError),
    "KMS": (refusal("KMSDisabledException"), SetupError),
    "expired credentials": (refusal("ExpiredTokenException"), TemporaryError),
    "wrong credentials": (refusal("UnrecognizedClientException"), SetupError),
    "an error code in a header": (http(b"", 400, x_amzn_errortype="ThrottlingException"), TemporaryError),
    "an error in a list": (http([1], 400), AnswerRefused),
    "moved": (http(b"", 301, Location="http://127.0.0.1:1/"), TemporaryError),
    "gzip": (http(gzip.compress(b"{}"), Content_Encoding="gzip"), AnswerRefused),
    "not JSON": (http(HTML, content_type="text/html"), AnswerRefused),
    "no page": (http({}), AnswerRefused),
    "nothing": (http(b""), AnswerRefused),
}


@pytest.mark.parametrize("name", FAILURES)
def test_an_answer_that_is_no_page_ends_in_the_same_error_over_each_way(server, stream, name):
    answer, expected = FAILURES[name]
    server.say(answer, http(PAGE))
    with pytest.raises(PyKclError) as caught:
        fetch(stream)
    assert type(caught.value) is expected, caught.value
    assert "AAAA" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert [record.data for record in fetch(stream).records] == [b"hello"]


def test_an_answer_that_is_cut_off_is_no_page_over_any_way(server, stream):
    server.say(Then(http(PAGE)[:-5], CLOSE), http(PAGE))
    with pytest.raises(TemporaryError):
        fetch(stream)
    assert len(fetch(stream).records) == 1


def test_an_answer_in_chunks_is_a_page_over_each_way(server, stream):
    body = json.dumps(PAGE).encode()
    server.say(
        http(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), Transfer_Encoding="chunked", Content_Length=None)
    )
    assert len(fetch(stream).records) == 1


def test_cbor_that_nobody_asked_for_is_refused_over_boto3_and_lean_json(server, stream):
    server.say(http(cbor2.dumps(AS_CBOR), content_type=CBOR))
    if stream.transport == "direct, CBOR":
        assert fetch(stream).records[0].data == b"hello"
    else:
        with pytest.raises(AnswerRefused):
            fetch(stream)


@pytest.mark.parametrize("way", WAYS)
def test_nobody_there_is_a_temporary_error(server, way):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stream = (
        stream_of(client_of(gone)) if way == "boto3" else direct_stream(server, record_encoding=WAYS[way])
    )
    server.stop()
    with pytest.raises(TemporaryError, match="EndpointConnectionError"):
        fetch(stream)


# -- connections -----------------------------------------------------------------------------------------------


def test_one_connection_is_used_again_and_again(server):
    stream = direct_stream(server)
    for _ in range(5):
        fetch(stream)
    assert len({request.connection for request in server.lean_requests}) == 1
    assert len(server.lean_requests) == 5


def test_a_connection_closed_while_nobody_used_it_costs_nothing(server):
    stream = direct_stream(server)
    server.say(Then(http(EMPTY), CLOSE), http(PAGE))
    fetch(stream)
    assert len(fetch(stream).records) == 1
    assert len(server.lean_requests) == 2


def test_a_kept_connection_closed_under_a_request_is_replaced_and_asked_once_more(server):
    stream = direct_stream(server)
    fetch(stream)
    server.say(CLOSE, http(PAGE))
    assert len(fetch(stream).records) == 1
    assert [request.body for request in server.lean_requests[1:]] == [server.lean_requests[1].body] * 2


def test_a_new_connection_that_is_closed_is_not_tried_again(server):
    stream = direct_stream(server)
    server.say(CLOSE, http(PAGE))
    with pytest.raises(TemporaryError, match="ConnectionClosedError"):
        fetch(stream)
    assert len(server.lean_requests) == 1


def test_nothing_is_asked_again_once_a_byte_of_an_answer_came(server):
    stream = direct_stream(server)
    fetch(stream)
    server.say(Then(b"H", CLOSE), http(PAGE))
    with pytest.raises(TemporaryError):
        fetch(stream)
    assert len(server.lean_requests) == 2


def test_what_comes_behind_an_answer_is_never_taken_for_the_next_one(server):
    stream = direct_stream(server)
    server.say(http(EMPTY) + http({**EMPTY, "MillisBehindLatest": 99}), http(PAGE))
    assert fetch(stream).millis_behind_latest == 0
    assert len(fetch(stream).records) == 1


class Later(SystemRuntime):
    def __init__(self):
        super().__init__()
        self.ahead = 0.0
        self.millis = 0

    def monotonic(self):
        return super().monotonic() + self.ahead

    def utcnow_millis(self):
        return super().utcnow_millis() + self.millis


def test_a_connection_that_was_idle_for_long_is_not_used_again(server):
    runtime = Later()
    stream = direct_stream(server, runtime=runtime)
    fetch(stream)
    runtime.ahead += 60
    fetch(stream)
    assert len({request.connection for request in server.lean_requests}) == 2


def test_connections_are_closed_with_the_stream(server):
    stream = direct_stream(server)
    fetch(stream)
    idle = transport_of(stream)._idle
    (connection,) = idle
    del stream
    assert not idle
    assert not connection.is_reusable


class Dead:
    """A kept connection that a gateway has forgotten: nobody says so, and no answer comes. meanwhile: what happens while
    it is waited for."""

    is_reusable = True

    def __init__(self, used_at, meanwhile=lambda: None):
        self.used_at, self.meanwhile = used_at, meanwhile
        self.tried = self.closed = False

    def is_quiet(self):
        return True

    def send(self, request):
        self.tried, self.is_reusable = True, False

    def answer(self, parts):
        self.meanwhile()
        raise TimeoutError

    def exchange(self, request):
        self.send(request)
        return self.answer([])

    def close(self):
        self.closed = True


@pytest.mark.parametrize("how", ["fetched", "asked for"])
def test_after_a_connection_that_nobody_answers_on_the_others_from_before_are_not_tried_one_by_one(
    how, server
):
    """Each would cost a time-out, and three of those all the time that a heartbeat has; boto3 opens a new one."""
    runtime = Later()
    stream = direct_stream(server, runtime=runtime)
    fetch(stream)
    idle = transport_of(stream)._idle
    (alive,) = idle

    def answered_meanwhile():
        alive.used_at = runtime.monotonic() + 1
        idle.insert(1, alive)

    dead = [Dead(runtime.monotonic(), answered_meanwhile) for _ in range(5)]
    idle[:] = dead
    with pytest.raises(TemporaryError, match="ReadTimeoutError"):
        fetch(stream) if how == "fetched" else stream.request_page("shardId-000000000000", "AAAA", 10).page()
    assert idle == [alive]
    assert [one.tried for one in dead] == [False] * 4 + [True]
    assert all(one.closed for one in dead)
    requests = len(server.requests)
    fetch(stream)
    assert len({request.connection for request in server.requests[requests - 1 :]}) == 1


def test_a_page_that_drips_is_given_up_in_the_end(server):
    stream = direct_stream(server, read_timeout=0.1)
    server.say(Drip(http(PAGE, x_padding="x" * 1500)))
    with pytest.raises(TemporaryError, match="ReadTimeoutError"):
        fetch(stream)


@pytest.mark.parametrize(
    "trouble", [CLOSE, http(b"", 500), http({"Records": []})], ids=["none", "500", "untrue"]
)
def test_a_page_that_fails_leaves_no_cycle_to_the_garbage_collector(server, trouble):
    stream = direct_stream(server)
    server.say(trouble)
    assert types_in_cycles(lambda: fetch(stream)) == []


def test_connections_of_a_burst_are_closed_when_nobody_has_used_them_for_long(server):
    runtime = Later()
    stream = direct_stream(server, runtime=runtime)
    fetch(stream)
    idle = transport_of(stream)._idle
    before = [Dead(runtime.monotonic() + later) for later in (0, 0, 30)]
    idle[:0] = before
    idle[-1].used_at = runtime.monotonic() + 40
    runtime.ahead += 60
    fetch(stream)
    assert [one.closed for one in before] == [True, True, False]
    assert idle[0] is before[2]
    assert not any(one.tried for one in before)


# -- who asks --------------------------------------------------------------------------------------------------


def test_what_is_sent_is_what_botocore_sends(server):
    client = client_of(server.url, token="TOKEN", user_agent_extra="pykcl/9")
    stream = direct_stream(server, client=client)
    fetch(stream)
    theirs, ours = server.requests[-2:]
    assert theirs.by_boto3
    assert not ours.by_boto3
    for name in (
        "user-agent",
        "x-amz-target",
        "content-type",
        "host",
        "accept-encoding",
        "x-amz-security-token",
    ):
        assert ours.headers[name] == theirs.headers[name], name
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    assert json.loads(ours.body) == json.loads(theirs.body)
    credential = ours.headers["authorization"].split("Signature=")[0]
    assert credential == theirs.headers["authorization"].split("Signature=")[0]


def test_the_name_of_the_stream_goes_along_once_it_is_known(server):
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    summary = {
        "StreamARN": arn,
        "StreamStatus": "ACTIVE",
        "StreamCreationTimestamp": 1.5,
        "RetentionPeriodHours": 24,
    }
    server.say(http({"StreamDescriptionSummary": summary}), http(EMPTY))
    stream = stream_of(client_of(server.url))
    stream.describe()
    for _ in range(2):
        fetch(stream)
    assert [json.loads(request.body).get("StreamARN") for request in server.requests] == [None, arn, arn]


def test_credentials_renewed_in_between_are_used_from_then_on(server):
    client = client_of(server.url)
    keys = iter("ABCDEF")
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    later = (datetime.now(UTC) + timedelta(hours=6)).isoformat()

    def refresh():
        key = next(keys)
        expires = soon if key == "A" else later
        return {"access_key": key, "secret_key": f"s{key}", "token": f"t{key}", "expiry_time": expires}

    client._request_signer._credentials = RefreshableCredentials.create_from_metadata(
        refresh(), refresh, "test"
    )
    stream = direct_stream(server, client=client)
    fetch(stream)
    assert server.lean_requests[-1].headers["x-amz-security-token"] == "tB"
    assert "Credential=B/" in server.lean_requests[-1].headers["authorization"]


def test_no_credentials_any_more_is_the_error_it_is_over_boto3(server, monkeypatch):
    stream = direct_stream(server)
    monkeypatch.setattr(type(transport_of(stream)._settings), "frozen_credentials", lambda _: None)
    with pytest.raises(SetupError, match="NoCredentialsError"):
        fetch(stream)


@pytest.mark.parametrize("token", ["t\r\nX-Evil: 1", "t\n", "t t", "t\u00e9"])
def test_a_token_that_is_no_word_is_left_to_botocore(token, server, monkeypatch):
    stream = direct_stream(server)
    settings = transport_of(stream)._settings
    odd = settings.frozen_credentials()._replace(token=token)
    monkeypatch.setattr(type(settings), "frozen_credentials", lambda _: odd)
    fetch(stream)
    assert not server.lean_requests


def test_requests_under_way_when_a_wrong_clock_is_noticed_are_sent_again_too(server):
    """1) Four are signed with the wrong time; 2) the first refusal corrects it; 3) the other three are of before."""
    runtime = Later()
    stream = direct_stream(server, runtime=runtime)
    fetch(stream)
    transport = transport_of(stream)
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    runtime.millis = -3_600_000
    server.say(refusal("InvalidSignatureException", 403, "Signature expired", Date=date))
    first = stream.request_page("shardId-000000000000", "AAAA", 10)
    transport._clock.ahead_millis = 3_600_000  # as another thread's refusal has found
    while first.poll() is PageStatus.PENDING:
        stream.wait_for_any([first], 5.0)
    server.say(http(PAGE))
    assert len(first.page().records) == 1


def test_a_clock_that_is_wrong_is_put_right_for_signing(server):
    runtime = Later()
    stream = direct_stream(server, runtime=runtime)
    true = datetime.now(UTC)
    date = true.strftime("%a, %d %b %Y %H:%M:%S GMT")
    runtime.millis = -3_600_000
    server.say(refusal("InvalidSignatureException", 403, "Signature expired", Date=date), http(PAGE))
    assert len(fetch(stream).records) == 1
    assert len(fetch(stream).records) == 1
    signed = [
        datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%S%z")
        for request in server.lean_requests
    ]
    assert [round((true - one).total_seconds() / 60) for one in signed] == [60, 0, 0]


def test_a_signature_refused_at_the_right_time_is_not_sent_again(server):
    stream = direct_stream(server)
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    server.say(refusal("InvalidSignatureException", 403, Date=date))
    with pytest.raises(SetupError):
        fetch(stream)
    assert len(server.lean_requests) == 1
    server.say(refusal("InvalidSignatureException", 403, Date="nonsense"))
    with pytest.raises(SetupError):
        fetch(stream)
    assert len(server.lean_requests) == 2


def test_the_servers_clock_is_read_from_lean_answers_too(server):
    stream = direct_stream(server)
    server.say(http(EMPTY, Date="Tue, 14 Nov 2023 23:13:20 GMT", x_amzn_RequestId="c9b8fa9f"))
    fetch(stream)
    assert stream.server_time_millis() // 60_000 == 1_700_003_600 // 60


# -- TLS -------------------------------------------------------------------------------------------------------


def test_pages_come_over_tls_from_whom_the_client_trusts(certificate):
    with RawServer(certificate) as server:
        server.say(http(PAGE))
        stream = direct_stream(server, verify=certificate)
        for _ in range(3):
            assert len(fetch(stream).records) == 1
        assert len({request.connection for request in server.lean_requests}) == 1


@pytest.mark.parametrize("way", ["boto3", "direct"])
def test_a_certificate_of_somebody_else_is_a_temporary_error_and_nothing_is_sent(certificate, way):
    with RawServer(certificate) as server:
        stream = stream_of(client_of(server.url), http_transport="boto3")
        if way == "direct":
            stream = direct_stream(server, verify=certificate)
            strict = ssl.create_default_context()
            object.__setattr__(transport_of(stream)._settings, "context", strict)
            object.__setattr__(transport_of(stream)._settings, "trusted", "")
        before = len(server.requests)
        with pytest.raises(TemporaryError, match="SSLError"):
            fetch(stream)
        assert len(server.requests) == before


def test_a_certificate_for_another_name_is_refused(certificate):
    with RawServer(certificate) as server:
        stream = direct_stream(server, verify=certificate)
        transport = transport_of(stream)
        transport._template = SimpleNamespace(
            **{name: getattr(transport._template, name) for name in transport._template.__slots__}
            | {"hostname": "localhost"}
        )
        with pytest.raises(TemporaryError, match="SSLError"):
            fetch(stream)
