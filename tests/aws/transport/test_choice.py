"""When the direct transport is used, and when CBOR is."""

import base64
import functools
import logging
from pathlib import Path

import boto3
import cbor2
import pytest
from aws_lambda_powertools.shared.user_agent import _create_feature_function
from botocore import UNSIGNED
from botocore.client import BaseClient
from botocore.config import Config
from botocore.stub import Stubber
from raw_server import (
    CBOR,
    EMPTY,
    HANG,
    JSON,
    RawServer,
    client_of,
    direct_stream,
    fetch,
    http,
    refusal,
    stream_of,
)

from pykcl.aws.instruments import untraced
from pykcl.aws.transport import get_records
from pykcl.aws.transport.get_records import MAX_COMPARED, MAX_COMPARED_BYTES, CborProbe, to_compare
from pykcl.aws.transport.request_template import TemplateError, capture_template
from pykcl.errors import AnswerRefused, SetupError, TemporaryError
from pykcl.model.record import Record
from pykcl.testing.memory.stream import MemoryStream

NUMBERS = [str(49546986683135544286507457936321625675700192471156785154 + index) for index in range(200)]


def page(count, *, data=b"hello", as_cbor=False):
    def record(index):
        millis = 1_700_000_000_123 + index
        return {
            "SequenceNumber": NUMBERS[index],
            "ApproximateArrivalTimestamp": cbor2.CBORTag(1, millis) if as_cbor else millis / 1000,
            "Data": data if as_cbor else base64.b64encode(data).decode(),
            "PartitionKey": "k",
        }

    told = {**EMPTY, "Records": [record(index) for index in range(count)]}
    return http(cbor2.dumps(told), content_type=CBOR) if as_cbor else http(told)


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "pykcl.kinesis"]


# -- direct or boto3 ---------------------------------------------------------------------------------------------


def test_only_the_first_page_comes_over_boto3(server):
    stream = stream_of(client_of(server.url))
    assert stream.transport == "boto3"
    for _ in range(3):
        fetch(stream)
    assert [request.by_boto3 for request in server.requests] == [True, False, False]
    assert stream.transport == "direct, JSON"


def test_an_endpoint_that_ends_in_slashes_is_no_reason_for_boto3(server):
    stream = stream_of(client_of(server.url + "//"), http_transport="direct")
    for _ in range(3):
        fetch(stream)
    assert [request.by_boto3 for request in server.requests] == [True, False, False]


def test_the_trace_of_a_lambda_function_is_no_reason_for_boto3(server, monkeypatch):
    """botocore adds it to its requests where the environment is that of a function, as under `pykcl run --lambda`."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-00000000-000000000000000000000000;Sampled=0")
    stream = stream_of(client_of(server.url), http_transport="direct")
    for _ in range(3):
        fetch(stream)
    assert [request.by_boto3 for request in server.requests] == [True, False, False]


def test_a_bundle_below_the_home_directory_is_found_as_boto3_finds_it(certificate, monkeypatch, tmp_path):
    (tmp_path / "ca.pem").write_bytes(Path(certificate).read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    with RawServer(certificate) as server:
        stream = stream_of(client_of(server.url, verify="~/ca.pem"), http_transport="direct")
        for _ in range(3):
            fetch(stream)
        assert [request.by_boto3 for request in server.requests] == [True, False, False]


def test_a_first_page_that_was_refused_teaches_as_well(server):
    server.say(refusal("ExpiredIteratorException"), http(EMPTY))
    stream = learned_after_refusal(server)
    fetch(stream)
    assert [request.by_boto3 for request in server.requests] == [True, False]


def learned_after_refusal(server):
    stream = stream_of(client_of(server.url))
    with pytest.raises(Exception, match="iterator"):
        fetch(stream)
    return stream


def test_boto3_is_what_one_gets_who_asks_for_it(server):
    stream = stream_of(client_of(server.url), http_transport="boto3")
    for _ in range(3):
        fetch(stream)
    assert all(request.by_boto3 for request in server.requests)


def watched(event):
    def make(url):
        client = client_of(url)
        client.meta.events.register(f"{event}.kinesis.*", lambda **_: None)
        return client

    return make


def with_attribute(change):
    def make(url):
        client = client_of(url)
        change(client)
        return client

    return make


OBSTACLES = {
    "no signature": lambda url: client_of(url, signature_version=UNSIGNED),
    "a client certificate": with_attribute(
        lambda client: setattr(client._endpoint.http_session, "_cert_file", "client.pem")
    ),
    "a botocore without what we look at": with_attribute(
        lambda client: delattr(client._endpoint.http_session, "_socket_options")
    ),
    "another header": with_attribute(lambda client: client.meta.events.register("before-sign.*", add_header)),
    "a method in the place of get_records": with_attribute(
        lambda client: setattr(client, "get_records", client.get_records)
    ),
    **{
        f"somebody at {event}": watched(event)
        for event in ("before-call", "before-send", "before-parse", "after-call", "request-created")
    },
}


def add_header(request, **_):
    request.headers["X-Theirs"] = "1"


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_stands_against_it_is_told_once_and_boto3_reads_on(server, name, caplog):
    caplog.set_level(logging.INFO, "pykcl.kinesis")
    stream = stream_of(OBSTACLES[name](server.url))
    for _ in range(6):
        fetch(stream)
    assert all(request.by_boto3 for request in server.requests)
    assert len(server.requests) == 6
    assert len([line for line in told(caplog) if "reading over boto3" in line]) == 1


@pytest.mark.parametrize("name", OBSTACLES)
def test_who_insists_on_it_is_told_what_stands_against_it(server, name):
    stream = stream_of(OBSTACLES[name](server.url), http_transport="direct")
    with pytest.raises(SetupError, match="http_transport='direct' cannot be: "):
        fetch(stream)


def test_a_configured_proxy_stands_against_it(server, caplog):
    caplog.set_level(logging.INFO, "pykcl.kinesis")
    client = boto3.client(
        "kinesis",
        region_name="eu-west-1",
        endpoint_url="http://kinesis.invalid",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, proxies={"http": server.url}),
    )
    stream = stream_of(client)
    for _ in range(3):
        fetch(stream)
    assert told(caplog) == ["reading over boto3, which costs more CPU: a proxy is configured"]
    assert all(request.by_boto3 for request in server.requests)


def test_certificates_that_are_not_verified_stand_against_it(certificate, caplog):
    caplog.set_level(logging.INFO, "pykcl.kinesis")
    with RawServer(certificate) as server:
        stream = stream_of(client_of(server.url, verify=False))
        with pytest.warns(match="Unverified HTTPS request"):
            fetch(stream)
    assert told(caplog) == ["reading over boto3, which costs more CPU: certificates are not verified"]


def test_a_stubbed_client_is_answered_by_its_stub_for_ever(server):
    client = client_of(server.url)
    stream = stream_of(client)
    with Stubber(client) as stub:
        for _ in range(3):
            stub.add_response("get_records", {"Records": [], "NextShardIterator": "AAAA"})
        for _ in range(3):
            fetch(stream)
    assert not server.requests


def test_a_tracer_around_botocores_calls_sees_every_one(server, monkeypatch):
    seen = []
    real = BaseClient._make_api_call

    class Tracer:
        def __get__(self, client, _):
            return lambda *arguments: (seen.append(arguments), real(client, *arguments))[1]

    monkeypatch.setattr(BaseClient, "_make_api_call", Tracer())
    stream = stream_of(client_of(server.url))
    for _ in range(3):
        fetch(stream)
    assert len(seen) == 3


def test_what_traces_the_program_is_no_reason_for_boto3_with_a_client_of_our_own(server, monkeypatch):
    real = BaseClient._make_api_call

    @functools.wraps(real)
    def traced(client, *arguments):
        raise AssertionError("a call of a worker is in a trace of the program")

    monkeypatch.setattr(BaseClient, "_make_api_call", traced)
    stream = stream_of(untraced(client_of(server.url)), http_transport="direct")
    for _ in range(2):
        fetch(stream)
    assert stream.transport.startswith("direct")


def test_the_user_agent_of_powertools_does_not_stand_against_it(server):
    client = client_of(server.url)
    client.meta.events.register("request-created", _create_feature_function("no-op"))
    stream = stream_of(client, http_transport="direct")
    for _ in range(2):
        fetch(stream)
    assert stream.transport.startswith("direct")
    assert " PT/no-op/" in server.lean_requests[-1].headers["user-agent"]


def test_other_calls_of_the_client_teach_nothing(server):
    client = client_of(server.url)
    stream = stream_of(client)
    client.get_records(ShardIterator="theirs")
    assert stream.transport == "boto3"


def test_endpoints_that_botocore_resolves_are_asked_as_they_are():
    for options, host in (
        ({"use_fips_endpoint": True}, "kinesis-fips.us-east-1.amazonaws.com"),
        ({"use_dualstack_endpoint": True}, "kinesis.us-east-1.api.aws"),
        ({}, "kinesis.us-east-1.amazonaws.com"),
    ):
        client = boto3.client(
            "kinesis",
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
            config=Config(**options),
        )
        requests = []

        def stop(request, requests=requests, **_):
            requests.append(request)
            raise KeyboardInterrupt

        client.meta.events.register("before-send", stop)
        with pytest.raises(KeyboardInterrupt):
            client.get_records(ShardIterator="AAAA")
        found = capture_template(
            requests[0], client._request_signer._credentials.get_frozen_credentials(), "GetRecords"
        )
        assert (found.hostname, found.host, found.port, found.is_tls) == (host, host, 443, True)


def prepared(**changes):
    """A request of botocore's that can be captured, and the credentials it is signed with."""
    client = client_of("http://127.0.0.1:9")
    requests = []

    def stop(request, **_):
        requests.append(request)
        raise KeyboardInterrupt

    client.meta.events.register("before-send", stop)
    with pytest.raises(KeyboardInterrupt):
        client.get_records(ShardIterator="AAAA")
    for name, value in changes.items():
        header = name.replace("_", "-")
        if name in ("url", "body", "method"):
            setattr(requests[0], name, value)
            continue
        if header in requests[0].headers:
            del requests[0].headers[header]
        if value is not None:
            requests[0].headers[header] = value
    return requests[0], client._request_signer._credentials.get_frozen_credentials()


def test_what_was_not_changed_is_learned():
    assert capture_template(*prepared(), "GetRecords").url == "http://127.0.0.1:9/"


@pytest.mark.parametrize(
    "changes",
    [
        {"authorization": b"Bearer abc"},
        {"authorization": None},
        {"url": "http://127.0.0.1:10/"},
        {"url": "http://127.0.0.1:9/?a=b"},
        {"url": "http://127.0.0.1:9/path"},
        {"url": "ftp://127.0.0.1:9/"},
        {"method": "GET"},
        {"body": b"{}"},
        {"body": "{}"},
        {"content_type": b"application/cbor"},
        {"x_amz_target": b"Kinesis_20131202.PutRecord"},
        {"x_amz_date": b"20200101T000000Z"},
        {"x_amz_security_token": b"theirs"},
    ],
    ids=str,
)
def test_a_request_that_says_anything_else_is_not_learned_from(changes):
    with pytest.raises(TemplateError):
        capture_template(*prepared(**changes), "GetRecords")


def test_other_credentials_are_not_learned_with():
    request, keys = prepared()
    for other in (
        keys._replace(secret_key="other"),
        keys._replace(access_key="other"),
        keys._replace(token="t"),
        None,
    ):
        with pytest.raises(TemplateError):
            capture_template(request, other, "GetRecords")


def test_the_stream_of_a_simulation_is_none_of_this():
    assert not hasattr(MemoryStream, "transport")


# -- CBOR or JSON ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def pages_of_any_size_are_compared(monkeypatch):
    monkeypatch.setattr(get_records, "MIN_COMPARED_PAGE", 0)


def asked_as(server):
    return [request.headers["content-type"] for request in server.lean_requests]


def test_cbor_is_trusted_after_the_same_records_came_both_ways(server):
    stream = direct_stream(server, record_encoding="auto")
    server.say(http(EMPTY), page(3), page(3, as_cbor=True), page(2, as_cbor=True))
    assert len(fetch(stream).records) == 0
    assert stream.transport == "direct, JSON"
    json_page = fetch(stream, "AAAA-3").records
    assert stream.transport == "direct, CBOR"
    assert asked_as(server) == [JSON, JSON, CBOR]
    assert cbor2.loads(server.requests[-1].body) == {"ShardIterator": "AAAA-3", "Limit": 3}
    assert fetch(stream).records == json_page[:2]
    assert asked_as(server)[-1] == CBOR


@pytest.mark.parametrize("count", [1, 5])
def test_more_or_fewer_of_the_same_records_are_the_same(server, count):
    stream = direct_stream(server, record_encoding="auto")
    server.say(page(3), page(count, as_cbor=True))
    fetch(stream)
    assert stream.transport == "direct, CBOR"


OTHER = {
    "another payload": page(3, data=b"other", as_cbor=True),
    "JSON all the same": page(3),
    "nothing readable": http(b"\xbf\x61", content_type=CBOR),
    "a refusal": refusal("SerializationException"),
    "a refusal in CBOR": http(cbor2.dumps({"__type": "SerializationException"}), 400, content_type=CBOR),
    "an unknown type": http(b"", 415),
}


@pytest.mark.parametrize("answer", OTHER.values(), ids=OTHER)
def test_anything_else_means_json_for_good(server, answer, caplog):
    stream = direct_stream(server, record_encoding="auto")
    server.say(page(3), answer, page(3))
    assert len(fetch(stream).records) == 3
    for _ in range(4):
        fetch(stream)
    assert asked_as(server) == [JSON, CBOR, JSON, JSON, JSON, JSON]
    assert len([line for line in told(caplog) if "instead of CBOR" in line]) == 1


INCONCLUSIVE = {
    "throttled": refusal("ProvisionedThroughputExceededException"),
    "failed": http(b"<html>", 502),
    "expired": refusal("ExpiredIteratorException"),
    "no records": http(cbor2.dumps(EMPTY), content_type=CBOR),
    "too slow": HANG,
}


@pytest.mark.parametrize("answer", INCONCLUSIVE.values(), ids=INCONCLUSIVE)
def test_a_comparison_that_came_to_nothing_harms_no_page_and_is_made_again(server, answer):
    stream = direct_stream(server, record_encoding="auto", read_timeout=2 if answer is HANG else 60)
    server.say(page(3), answer, page(2), page(2, as_cbor=True))
    assert len(fetch(stream).records) == 3
    assert stream.transport == "direct, JSON"
    assert len(fetch(stream).records) == 2
    assert stream.transport == "direct, CBOR"


def test_comparisons_that_come_to_nothing_are_made_ever_more_rarely(server):
    stream = direct_stream(server, record_encoding="auto")
    compared = []
    for number in range(40):
        before = asked_as(server).count(CBOR)
        server.say(page(3), refusal("ProvisionedThroughputExceededException"))
        assert len(fetch(stream).records) == 3
        if asked_as(server).count(CBOR) > before:
            compared.append(number)
    assert compared == [0, 1, 4, 11, 26]
    while stream.transport != "direct, CBOR":
        server.say(page(3), page(3, as_cbor=True))
        fetch(stream)
        number += 1
    assert number == 57


def test_of_many_shards_that_are_behind_one_compares_and_the_others_read_on(caplog):
    """Eight threads have a page at the same moment, and the comparison of the first is not answered yet."""
    probe = CborProbe("auto")
    assert [probe.is_due() and probe.begin() for _ in range(8)] == [True] + [False] * 7
    records = [Record(b"1", "k", "1")]
    probe.compare(records, records)
    probe.end()
    assert probe.is_cbor
    assert not probe.is_open
    assert not told(caplog)
    assert not probe.begin()


def test_what_one_stream_has_proved_holds_for_all_streams_of_the_endpoint(server):
    first, second = (direct_stream(server, record_encoding="auto") for _ in range(2))
    server.say(page(3), page(3, as_cbor=True), page(3, as_cbor=True))
    fetch(first)
    assert len(fetch(second).records) == 3
    assert asked_as(server)[-2:] == [CBOR, CBOR]
    with RawServer() as other:
        assert direct_stream(other, record_encoding="auto").transport == "direct, JSON"
    server.say(http(EMPTY))
    assert direct_stream(server, record_encoding="json").transport == "direct, JSON"


def test_no_second_read_is_made_while_only_small_pages_come(server, monkeypatch):
    monkeypatch.undo()
    stream = direct_stream(server, record_encoding="auto")
    size = get_records.MIN_COMPARED_PAGE // 100
    server.say(page(3), page(3), page(100, data=bytes(size)), page(100, data=bytes(size), as_cbor=True))
    for _ in range(3):
        fetch(stream)
    assert asked_as(server) == [JSON, JSON, JSON, CBOR]
    assert stream.transport == "direct, CBOR"


def test_only_a_little_of_a_page_is_read_again():
    small = [Record(b"x", "k", number) for number in NUMBERS]
    assert to_compare(small) == MAX_COMPARED
    assert to_compare(small[:7]) == 7
    assert to_compare([Record(bytes(MAX_COMPARED_BYTES + 1), "k", "1")] * 3) == 1
    assert to_compare([Record(bytes(MAX_COMPARED_BYTES // 4), "k", "1")] * 9) == 4


@pytest.mark.parametrize(
    "answer", [refusal("SerializationException"), http(b"", 415)], ids=["code", "status"]
)
def test_cbor_refused_later_is_asked_again_as_json_at_once(server, answer):
    stream = direct_stream(server, record_encoding="cbor")
    server.say(page(1, as_cbor=True), answer, page(3))
    fetch(stream)
    assert len(fetch(stream).records) == 3
    assert asked_as(server) == [CBOR, CBOR, JSON]
    assert stream.transport == "direct, JSON"


def test_an_endpoint_that_answers_cbor_with_failures_and_json_with_pages_is_read_in_json(server, caplog):
    stream = direct_stream(server, record_encoding="cbor")
    failure = http(b"", 500)
    server.say(failure, failure, failure, page(3), page(2))
    for _ in range(2):
        with pytest.raises(TemporaryError, match="HTTP 500"):
            fetch(stream)
    assert len(fetch(stream).records) == 3
    assert len(fetch(stream).records) == 2
    assert asked_as(server) == [CBOR, CBOR, CBOR, JSON, JSON]
    assert "instead of CBOR: it is answered with HTTP 500, and JSON with records" in caplog.text


def test_failures_of_the_service_are_none_of_cbor(server):
    """Neither where JSON fails, too, nor once a page of CBOR has come."""
    stream = direct_stream(server, record_encoding="cbor")
    failure = http(b"", 503)
    server.say(*[failure] * 4, page(1, as_cbor=True), *[failure] * 3, page(1, as_cbor=True))
    for _ in range(3):
        with pytest.raises(TemporaryError):
            fetch(stream)
    fetch(stream)
    for _ in range(3):
        with pytest.raises(TemporaryError):
            fetch(stream)
    fetch(stream)
    assert asked_as(server) == [CBOR, CBOR, CBOR, JSON, *[CBOR] * 5]


def test_a_page_of_cbor_that_cannot_be_read_is_asked_for_again_as_json(server):
    stream = direct_stream(server, record_encoding="cbor")
    server.say(http(b"\xbf\x61", content_type=CBOR), page(3))
    with pytest.raises(AnswerRefused):
        fetch(stream)
    assert len(fetch(stream).records) == 3
    assert asked_as(server) == [CBOR, JSON]


def test_errors_in_cbor_are_sorted_as_those_in_json(server):
    stream = direct_stream(server, record_encoding="cbor")
    body = cbor2.dumps({"__type": "ExpiredIteratorException", "message": "old", "more": [1]})
    server.say(http(body, 400, content_type=CBOR))
    with pytest.raises(Exception, match="older than five minutes"):
        fetch(stream)


def test_json_is_what_one_gets_who_asks_for_it(server):
    stream = direct_stream(server, record_encoding="json")
    server.say(page(3))
    for _ in range(3):
        fetch(stream)
    assert asked_as(server) == [JSON] * 3
