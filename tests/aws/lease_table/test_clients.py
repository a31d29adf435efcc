"""Building the boto3 clients, sorting what they raise, and the fast scan over them."""

import functools
import gzip
import json
import queue
import threading
import traceback
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest.mock import patch

import boto3
import botocore.session
import pytest
from botocore import exceptions
from botocore.client import BaseClient
from botocore.credentials import Credentials
from botocore.endpoint import Endpoint
from moto import mock_aws

from pykcl.aws.clients import client_config, connect, create_client, new_session, open_clients
from pykcl.aws.errors import aws_errors, calling, error_code, http_status, sort_failure
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.config import Config
from pykcl.errors import ConfigError, LeaseLostError, SetupError, TemporaryError, Throttled
from pykcl.interfaces import Unknown
from pykcl.local.server import LocalAws
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, ReadFrom
from pykcl.model.lease import Lease
from pykcl.processor import Batch, RecordProcessor
from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.dynamodb import MemoryDynamoDB
from pykcl.worker.worker import Worker

CONFIG = Config(application="app", stream="orders", failover_time=5.0)
ARN = "arn:aws:kinesis:eu-west-3:123456789012:stream/orders"


@pytest.fixture
def no_aws(monkeypatch, tmp_path):
    """An environment in which boto3 finds nothing."""
    for name in (
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def credentials(no_aws, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


# -- clients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("AWS_ENDPOINT_URL", "http://me:secret-thing@a..b", "Invalid endpoint: http://a..b"),
        ("AWS_ENDPOINT_URL_KINESIS", "http://a..b", "Invalid endpoint: http://a..b"),
        ("AWS_REGION", "EU-west_1", "EU-west_1"),
        ("AWS_REGION", "eu\udcff", "doesn't match a supported format"),
    ],
)
def test_a_region_or_an_endpoint_that_cannot_be_is_told_of_by_name(
    credentials, monkeypatch, name, value, shown
):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL_KINESIS") as refused:
        open_clients(CONFIG)
    assert shown in str(refused.value)
    assert "secret-thing" not in str(refused.value)
    str(refused.value).encode()


def test_no_region_says_where_it_was_looked_for(credentials):
    with pytest.raises(ConfigError, match=r"AWS_DEFAULT_REGION.*profile.*AWS_REGION"):
        open_clients(CONFIG)


def test_no_credentials_says_where_they_were_looked_for(no_aws, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(SetupError, match=r"AWS_ACCESS_KEY_ID.*profile"):
        open_clients(CONFIG)


def test_an_unknown_profile_is_a_setup_error(no_aws, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SetupError, match="ProfileNotFound"):
        open_clients(CONFIG)


def test_the_lease_client_makes_one_bounded_attempt_and_says_who_it_is(credentials):
    clients = open_clients(
        Config(application="app", stream="orders", region="us-west-2", failover_time=5.0),
        max_pool_connections=33,
    )
    dynamodb = clients["dynamodb"].meta.config
    assert clients["dynamodb"].meta.region_name == "us-west-2"
    assert (dynamodb.connect_timeout, dynamodb.read_timeout) == (0.6, 0.6)
    assert dynamodb.retries["total_max_attempts"] == 1
    assert dynamodb.max_pool_connections == clients["kinesis"].meta.config.max_pool_connections == 33
    assert dynamodb.user_agent_extra.startswith("pykcl/")
    assert clients["kinesis"].meta.config.retries["total_max_attempts"] == 1


def test_aws_region_counts_where_boto3_finds_none(credentials, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert open_clients(CONFIG)["dynamodb"].meta.region_name == "us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert open_clients(CONFIG)["dynamodb"].meta.region_name == "us-east-2"


def test_a_stream_arn_decides_the_region(credentials, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    clients = open_clients(Config(application="app", stream=ARN))
    assert {client.meta.region_name for client in clients.values()} == {"eu-west-3"}


def test_an_injected_session_is_used(no_aws):
    session = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="ap-south-1")
    table, stream = connect(CONFIG, SystemRuntime(), session=session)
    assert table.name == "app"
    assert stream.name == "orders"


def test_injected_clients_need_neither_region_nor_credentials(no_aws):
    session = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="ap-south-1")
    memory = MemoryDynamoDB()
    table, _ = connect(
        CONFIG, SystemRuntime(), clients={"dynamodb": memory, "kinesis": session.client("kinesis")}
    )
    assert table.prepare(create=True)
    assert "app" in memory.tables


def test_an_unknown_client_name_is_refused():
    with pytest.raises(ConfigError, match="dynamo-db"):
        connect(CONFIG, SystemRuntime(), clients={"dynamo-db": MemoryDynamoDB()})


def test_our_own_session_makes_utc_times(credentials):
    parser = new_session()._session.get_component("response_parser_factory").create_parser("json")
    assert parser._timestamp_parser(1_700_000_000.5).isoformat() == "2023-11-14T22:13:20.500000+00:00"
    assert parser._timestamp_parser("2026-11-20T09:00:00Z").isoformat() == "2026-11-20T09:00:00+00:00"
    other = botocore.session.get_session().get_component("response_parser_factory").create_parser("json")
    assert other._timestamp_parser is not parser._timestamp_parser


def web_identity(monkeypatch, path):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/worker")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(path))


class Processor(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        """Nothing is read here."""


def test_a_worker_whose_token_file_is_missing_does_not_start_and_says_that_it_is_about_credentials(
    no_aws, monkeypatch, tmp_path
):
    web_identity(monkeypatch, tmp_path / "token")
    worker = Worker("app", stream="orders", processor=Processor)
    with pytest.raises(
        SetupError, match=r"AWS credentials could not be obtained \(FileNotFoundError\)"
    ) as refused:
        worker.start()
    assert refused.value.code == "E04"
    assert f"Not readable: '{tmp_path / 'token'}' (AWS_WEB_IDENTITY_TOKEN_FILE)" in str(refused.value)
    assert refused.value.__context__ is None


PATCHES = """
class SegmentNotFoundException(Exception):
    pass

def patched(client, operation, parameters):
    raise SegmentNotFoundException("cannot find the current segment of " + str(parameters))
"""


@pytest.mark.parametrize(
    ("package", "do"),
    [("aws_xray_sdk", "AWS_XRAY_CONTEXT_MISSING=LOG_ERROR"), ("ddtrace", "DD_TRACE_BOTOCORE_ENABLED=false")],
)
def test_what_has_patched_botocore_is_named_where_it_raises_and_no_credentials_are_blamed(
    no_aws, monkeypatch, package, do
):
    module = {"__name__": f"{package}.core"}
    exec(PATCHES, module)
    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", module["patched"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a")
    worker = Worker("app", stream="orders", processor=Processor, region="us-east-1")
    with pytest.raises(SetupError, match=f"{package}, which has patched botocore.* Do: {do}") as refused:
        worker.start()
    assert "raised SegmentNotFoundException" in str(refused.value)
    assert refused.value.code is None
    assert refused.value.__context__ is None


class Wrapper:
    """Wraps a method as wrapt does for X-Ray, ddtrace and OpenTelemetry: it passes for the function in it."""

    def __init__(self, real, traced):
        self.__wrapped__, self._traced = real, traced

    __class__ = property(lambda self: type(self.__wrapped__))

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

    def __get__(self, instance, kind):
        def call(*arguments):
            self._traced.append(self.__wrapped__.__name__)
            return self.__wrapped__(instance, *arguments)

        return self if instance is None else call


@pytest.mark.parametrize("patched", ["before the clients are made", "after that"])
def test_calls_of_our_clients_are_outside_of_what_traces_the_program(credentials, monkeypatch, patched):
    traced = []

    def trace_all():
        for kind, name in ((BaseClient, "_make_api_call"), (Endpoint, "prepare_request")):
            monkeypatch.setattr(kind, name, Wrapper(getattr(kind, name), traced))

    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        if patched.startswith("before"):
            trace_all()
        ours = new_session().client("kinesis", region_name="us-east-1")
        with_their_session = create_client(boto3.Session(), "kinesis", region_name="us-east-1")
        theirs = boto3.client("kinesis", region_name="us-east-1")
        if patched.startswith("after"):
            trace_all()
        for client in (ours, with_their_session):
            assert client.list_streams()["StreamNames"] == ["orders"]
        assert traced == []
        theirs.list_streams()
        assert traced == ["_make_api_call", "prepare_request"]
        for client in (ours, with_their_session, theirs):
            client.close()


class SegmentNotFoundException(Exception):
    """As X-Ray's, with AWS_XRAY_CONTEXT_MISSING=RUNTIME_ERROR. A worker that meets it does not start."""

    __module__ = "aws_xray_sdk.core.exceptions.exceptions"


class Refusing(Wrapper):
    """Lets no call through, as X-Ray's where no segment is open."""

    def __get__(self, instance, kind):
        def call(*arguments):
            self._traced.append(self.__wrapped__.__name__)
            raise SegmentNotFoundException("cannot find the current segment")

        return self if instance is None else call


@contextmanager
def as_xray(traced):
    with ExitStack() as patches:
        for kind, name in ((BaseClient, "_make_api_call"), (Endpoint, "prepare_request")):
            patches.enter_context(patch.object(kind, name, Refusing(getattr(kind, name), traced)))
        yield


@contextmanager
def as_a_decorator(traced):
    """Of a program, by functools.wraps()."""

    @functools.wraps(BaseClient._make_api_call)
    def traced_call(client, operation, parameters):
        traced.append(operation)
        raise SegmentNotFoundException("cannot find the current segment")

    with patch.object(BaseClient, "_make_api_call", traced_call):
        yield


@contextmanager
def as_newrelic(traced):
    with patch.object(Endpoint, "make_request", Wrapper(Endpoint.make_request, traced)):
        yield


@contextmanager
def as_sentry(traced):
    """A handler of each client that is made from now on."""
    real = BaseClient.__init__

    def made(client, *arguments, **more):
        real(client, *arguments, **more)
        client.meta.events.register("request-created", lambda **event: traced.append("request-created"))

    with patch.object(BaseClient, "__init__", made):
        yield


@contextmanager
def as_moto(traced):
    """moto itself. It lets through what goes to no address of AWS."""
    mock = mock_aws()
    # The local AWS keeps its tables with moto, too.
    mock.start(reset=False)
    traced.append("mock_aws")
    try:
        yield
    finally:
        mock.stop()


@pytest.mark.parametrize("patched", [as_xray, as_a_decorator, as_newrelic, as_sentry, as_moto])
@pytest.mark.parametrize("when", ["before it starts", "while it works"])
def test_a_worker_works_beside_what_has_patched_botocore(credentials, monkeypatch, patched, when):
    got, traced = queue.Queue(), []

    class Orders(RecordProcessor):
        def process_records(self, batch: Batch) -> None:
            for record in batch:
                got.put(record.data)

    with ExitStack() as stack:
        aws = stack.enter_context(LocalAws())
        aws.kinesis.create_stream("orders", 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        if when == "before it starts":
            stack.enter_context(patched(traced))
        worker = Worker(
            "app", stream="orders", processor=Orders, region="us-east-1", initial_position="TRIM_HORIZON"
        )
        stack.enter_context(worker)
        for data in (b"before", b"after"):
            aws.kinesis.put_record("orders", data, "key")
            assert got.get(timeout=60) == data
            if when == "while it works" and data == b"before":
                stack.enter_context(patched(traced))
        assert not {"_make_api_call", "prepare_request", "GetRecords", "UpdateItem"} & set(traced)
        with suppress(SegmentNotFoundException), closing(boto3.client("kinesis", "us-east-1")) as theirs:
            theirs.list_streams()
        assert traced, "it is in force for the program"


class Provider(Credentials):
    """Credentials that are good, until `error` is raised instead."""

    error = None

    def __init__(self):
        super().__init__("a", "b")

    def get_frozen_credentials(self):
        if self.error is not None:
            raise self.error
        return super().get_frozen_credentials()


class NoBreadError(Exception):
    """Of somebody's own code."""


@pytest.mark.parametrize("way", ["boto3", "auto"])
@pytest.mark.parametrize(
    "error", [FileNotFoundError("x.token"), ConnectionError("x.token"), NoBreadError("x.token")]
)
def test_what_a_source_of_credentials_raises_is_temporary_and_told_without_its_text(no_aws, way, error):
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        session = new_session()
        provider = session._session._credentials = Provider()
        config = Config(application="app", stream="orders", region="us-east-1", http_transport=way)
        ends = {
            service: session.client(service, region_name="us-east-1", endpoint_url=aws.url)
            for service in ("kinesis", "dynamodb")
        }
        table, stream = connect(config, SystemRuntime(), clients=ends)
        table.prepare(create=True)
        first = stream.describe() and stream.list_shards().shards[0].shard_id
        lease = lease_writes.create(Lease(first, AT_TRIM_HORIZON))
        for _ in range(2):
            table.scan()
            table.read(first)
            iterator = stream.open(first, ReadFrom("TRIM_HORIZON"))
            stream.fetch(first, iterator, 10)
        provider.error = error
        for call in (
            stream.describe,
            stream.list_shards,
            lambda: stream.open(first, ReadFrom("TRIM_HORIZON")),
            lambda: stream.fetch(first, iterator, 10),
            table.scan,
            lambda: table.read(first),
            lambda: table.prepare(create=True),
        ):
            with pytest.raises(TemporaryError, match=type(error).__name__) as found:
                call()
            assert (type(found.value), found.value.code) == (TemporaryError, "E04")
            assert "x.token" not in "".join(traceback.format_exception(found.value))
        answer = table.write(lease, until=SystemRuntime().monotonic() + 0.2)
        assert isinstance(answer, Unknown)


# -- failures -----------------------------------------------------------------------------------------------------


def answered(code, status=400, message="", operation="Scan"):
    return exceptions.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},
        operation,
    )


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (answered("ProvisionedThroughputExceededException"), Throttled, "throttled"),
        (answered("ThrottlingException"), Throttled, "throttled"),
        (answered("InternalServerError", 500), TemporaryError, "500"),
        (answered("SomethingNew", 418), TemporaryError, "SomethingNew"),
        (answered("ExpiredTokenException"), TemporaryError, "expired"),
        (
            answered("AccessDeniedException", message="x is not authorized to perform: dynamodb:Scan on"),
            SetupError,
            "dynamodb:Scan",
        ),
        (answered("UnrecognizedClientException"), SetupError, "credentials"),
        (answered("ValidationException"), SetupError, "invalid"),
        (answered("ResourceNotFoundException"), SetupError, "does not exist"),
        (exceptions.NoCredentialsError(), SetupError, "credentials"),
        (exceptions.PartialCredentialsError(provider="env", cred_var="x"), SetupError, "credentials"),
        (exceptions.NoRegionError(), ConfigError, "region"),
        (exceptions.ParamValidationError(report="x"), SetupError, "defect"),
        (exceptions.ReadTimeoutError(endpoint_url="http://x"), TemporaryError, "ReadTimeoutError"),
        (exceptions.ConnectTimeoutError(endpoint_url="http://x"), TemporaryError, "ConnectTimeoutError"),
        (
            exceptions.EndpointConnectionError(endpoint_url="http://x"),
            TemporaryError,
            "EndpointConnectionError",
        ),
        (exceptions.ConnectionClosedError(endpoint_url="http://x"), TemporaryError, "ConnectionClosedError"),
    ],
)
def test_failures_are_sorted_by_what_can_be_done_and_say_what_was_tried(error, kind, word):
    assert isinstance(error, aws_errors())
    found = sort_failure(error, doing="scanning lease table 'a'")
    assert type(found) is kind
    assert str(found).startswith("scanning lease table 'a'")
    assert word in str(found)


def test_a_refused_permission_says_in_whose_policy_it_lacks():
    error = answered("AccessDeniedException", message="x is not authorized to perform: dynamodb:Scan on")
    assert str(sort_failure(error, doing="scanning")) == (
        "scanning is not permitted (AccessDeniedException): the AWS identity lacks the permission dynamodb:Scan. "
        "Grant it in the IAM policy of this worker."
    )
    assert str(sort_failure(error, doing="scanning", who="an operator")).endswith("policy of an operator.")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            answered("AccessDenied", 403, "x is not authorized to perform: sts:AssumeRole on", "AssumeRole"),
            SetupError,
            "from STS (it refused the role, AccessDenied). Do: let the trust policy of the role name the identity",
        ),
        (
            answered("AccessDenied", 403, operation="AssumeRoleWithWebIdentity"),
            SetupError,
            "from STS (it refused the role, AccessDenied). Do: let the trust policy of the role name issuer, subject",
        ),
        (
            answered("InvalidIdentityToken", operation="AssumeRoleWithWebIdentity"),
            TemporaryError,
            "from STS (Inv",
        ),
        (
            answered("IDPCommunicationError", operation="AssumeRoleWithWebIdentity"),
            TemporaryError,
            "from STS (IDP",
        ),
        (answered("503", 503, operation="AssumeRole"), TemporaryError, "from STS (503)"),
        (answered("Throttling", operation="AssumeRole"), TemporaryError, "from STS (Throttling)"),
        (
            answered("UnauthorizedException", 401, operation="GetRoleCredentials"),
            TemporaryError,
            "(SSO) (Unauth",
        ),
        (
            exceptions.CredentialRetrievalError(provider="custom-process", error_msg="secret"),
            TemporaryError,
            "CredentialRetrievalError",
        ),
    ],
)
def test_a_source_of_credentials_that_refuses_is_named_and_not_the_policy_of_the_worker(error, kind, said):
    found = sort_failure(error, doing="scanning lease table 'a'")
    assert (type(found), found.code) == (kind, "E04")
    assert said in str(found)
    assert "IAM policy of this worker" not in str(found)
    assert "secret" not in str(found)


@pytest.mark.parametrize("kind", [AssertionError, TemporaryError, exceptions.NoRegionError, KeyError])
def test_a_defect_of_ours_and_what_is_known_already_pass_through_a_call_of_boto3(kind):
    error = kind()

    def method():
        raise error

    with pytest.raises(kind) as raised:
        calling(method)()
    assert raised.value is error


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:9/", "EndpointConnectionError at http://127.0.0.1:9)"),
        ("https://kinesis.eu-west-7.amazonaws.com/", "at https://kinesis.eu-west-7.amazonaws.com)"),
        ("http://me:secret@[::1]:4567/secret?secret=1#secret", "at http://[::1]:4567)"),
        ("http://[secret", "(EndpointConnectionError)"),
        ("", "(EndpointConnectionError)"),
    ],
)
def test_what_does_not_answer_is_named_by_its_address_and_by_nothing_else_of_the_url(url, told):
    found = str(sort_failure(exceptions.EndpointConnectionError(endpoint_url=url), doing="x"))
    assert told in found
    assert "secret" not in found


def test_an_error_of_ours_passes_through_and_codes_are_read_from_answers_only():
    ours = LeaseLostError("x")
    assert sort_failure(ours, doing="x") is ours
    assert (error_code(answered("A", 503)), http_status(answered("A", 503))) == ("A", 503)
    assert error_code(exceptions.ReadTimeoutError(endpoint_url="x")) is None
    assert http_status(ValueError()) is None


# -- the fast scan ------------------------------------------------------------------------------------------------

ROW = {
    "leaseKey": {"S": "k"},
    "leaseCounter": {"N": "1"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "pendingCheckpoint": {"S": "5"},
    "pendingCheckpointState": {"B": "AP8="},
    "x": {"M": {"l": {"L": [{"BS": ["AP8="]}, {"B": ""}]}}},
}


@pytest.fixture
def canned():
    """serve(status, body) → a boto3 client whose endpoint answers every request so."""
    servers = []

    def serve(status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Quiet."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        servers.append((server, thread))
        return boto3.client(
            "dynamodb",
            endpoint_url=f"http://127.0.0.1:{server.server_port}",
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
            config=client_config(connect_timeout=2, read_timeout=10, connections=2),
        )

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join(300)
        server.server_close()


def scanned(client, hook):
    if hook:
        DynamoDBLeaseTable(client, "t", SystemRuntime())
    return client.scan(TableName="t")


@pytest.mark.parametrize(
    "answer",
    [
        {
            "Items": [ROW],
            "Count": 1,
            "ScannedCount": 1,
            "ConsumedCapacity": {"TableName": "t", "CapacityUnits": 2.5},
        },
        {"Items": [], "Count": 0, "ScannedCount": 5, "LastEvaluatedKey": {"leaseKey": {"S": "k"}}},
        {"Items": [{**ROW, "pendingCheckpointState": {"S": '"B"'}}], "Count": 1},
        {"Count": 0},
        {"Items": [], "Later": 1},
    ],
)
def test_the_fast_scan_answers_what_botocore_answers(canned, answer):
    body = json.dumps(answer).encode()
    slow, fast = scanned(canned(200, body), hook=False), scanned(canned(200, body), hook=True)
    for one in (slow, fast):
        one["ResponseMetadata"].pop("HTTPHeaders")
    assert fast == slow


def test_the_fast_scan_really_decodes_and_botocore_does_not(canned, monkeypatch):
    from botocore.parsers import BaseJSONParser

    client = canned(200, json.dumps({"Items": [ROW]}).encode())
    DynamoDBLeaseTable(client, "t", SystemRuntime())
    monkeypatch.setattr(BaseJSONParser, "_handle_list", lambda *_: pytest.fail("botocore parsed the items"))
    assert client.scan(TableName="t")["Items"][0]["pendingCheckpointState"] == {"B": b"\x00\xff"}


def test_an_error_answer_to_a_scan_stays_an_error(canned):
    body = json.dumps(
        {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "m"}
    ).encode()
    with pytest.raises(exceptions.ClientError, match="ThrottlingException"):
        scanned(canned(400, body), hook=True)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"Items": [{"a": 5}], "x": "B"}', gzip.compress(b"{}", mtime=0)]
)
def test_a_body_nobody_understands_is_left_to_botocore(canned, body):
    outcomes = []
    for hook in (False, True):
        try:
            outcomes.append(scanned(canned(200, body), hook)["ResponseMetadata"]["HTTPStatusCode"])
        except (*aws_errors(), ValueError, AttributeError) as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
