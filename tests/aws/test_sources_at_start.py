"""A source of credentials that fails or hangs when a worker starts is waited for, and named with what to do."""

import threading
from types import SimpleNamespace

import boto3
import pytest
from botocore.utils import ContainerMetadataFetcher
from calls import waiting_for
from credential_sources import ROLES, SOURCES, Agent, Command, Imds, Sts

from pykcl.aws.clients import connect, open_clients
from pykcl.aws.credentials import ClientSpec, CredentialsSource, open_specified_clients
from pykcl.config import Config
from pykcl.errors import PyKclError, SetupError, TemporaryError
from pykcl.events import FailureStarted
from pykcl.processor import RecordProcessor
from pykcl.runtime import SystemRuntime
from pykcl.worker.worker import Worker

CONFIG = Config(application="orders-app", stream="orders")
KINDS = {Sts: "web identity", Agent: "container", Imds: "instance", Command: "profile"}
REMEDIES = {
    Sts: "check that STS can be reached",
    Agent: "check that the agent runs",
    Imds: "set AWS_METADATA_SERVICE_TIMEOUT",
    Command: "run that command by hand",
}


@pytest.fixture(params=SOURCES)
def source(request, between, tmp_path, monkeypatch):
    found = request.param(tmp_path, monkeypatch)
    for service in ("KINESIS", "DYNAMODB"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", between.url)
    monkeypatch.setattr(ContainerMetadataFetcher, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr("pykcl.aws.renewed_credentials.FIRST_PATIENCE", 0.5)
    yield found
    found.close()


class Nothing(RecordProcessor):
    def process_records(self, batch):
        """None come."""


def started(clients=None, session=None, way="auto"):
    """A worker that starts in a thread. events: its own. raised: what ended its start."""
    events, raised = [], []
    worker = Worker(
        processor=Nothing,
        config=Config(application="orders-app", stream="orders", http_transport=way, show_errors=False),
        clients=clients,
        session=session,
        on_event=events.append,
    )

    def start():
        try:
            worker.start()
        except PyKclError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    return SimpleNamespace(worker=worker, events=events, raised=raised, thread=thread)


def causes(start):
    return [event.cause for event in start.events if isinstance(event, FailureStarted)]


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
@pytest.mark.parametrize("way", ["boto3", "auto"])
def test_a_worker_waits_for_a_source_that_fails_at_its_start_and_names_it(source, trouble, way):
    if trouble == "hangs":
        source.hang()
    start = started(way=way)
    waiting_for(lambda: start.raised or causes(start))
    assert not start.raised
    assert f"AWS credentials could not be obtained from {source.name} (" in causes(start)[0]
    assert REMEDIES[type(source)] in causes(start)[0]
    source.come("AKID")
    start.thread.join(60)
    start.worker.stop()
    assert not start.raised
    assert not start.thread.is_alive()


def named_by_a_file(source):
    """Clients of `credentials` in a configuration file."""
    specs = {
        service: ClientSpec(credentials=(CredentialsSource(kind=KINDS[type(source)]),))
        for service in ("kinesis", "dynamodb")
    }
    return {"clients": open_specified_clients(Config(application="orders-app", stream="orders"), specs)}


def of_a_session(source):
    return {"session": boto3.Session()}


@pytest.mark.parametrize("given", [named_by_a_file, of_a_session])
def test_a_source_that_a_file_or_a_session_names_is_waited_for_too(source, given):
    start = started(**given(source))
    waiting_for(lambda: start.raised or causes(start))
    assert source.name in causes(start)[0]
    source.come("AKID")
    start.thread.join(60)
    start.worker.stop()
    assert not start.raised


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        (lambda path: (404, "none"), False),
        (lambda path: (403, "switched off"), False),
        (lambda path: (404, "not yet") if path == f"{ROLES}orders" else (200, "orders"), True),
        (lambda path: (200, '{"Code": "AssumeRoleUnauthorizedAccess", "Message": "x"}'), True),
        (lambda path: (401, "") if path.startswith(ROLES) else (500, ""), True),
        (lambda path: (429, ""), True),
    ],
    ids=["no role", "switched off", "no credentials yet", "not assumed yet", "no token", "too many requests"],
)
def test_a_machine_without_a_role_is_not_waited_for_but_one_whose_role_comes_late_is(
    tmp_path, monkeypatch, answer, waits
):
    source = Imds(tmp_path, monkeypatch)
    source.key, source.answer = "AKID", answer
    try:
        if waits:
            _, stream = connect(CONFIG, SystemRuntime())
            with pytest.raises(TemporaryError, match=r"metadata service of the instance \(IMDS\)"):
                stream.describe()
        else:
            with pytest.raises(SetupError, match="No AWS credentials"):
                open_clients(CONFIG)
    finally:
        source.close()


def test_a_proxy_that_answers_for_the_metadata_service_is_named(tmp_path, monkeypatch):
    source = Imds(tmp_path, monkeypatch)
    source.key, source.answer = "AKID", lambda _: (502, "no such host")
    for name in ("http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", source.url)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://metadata.example")
    try:
        _, stream = connect(CONFIG, SystemRuntime())
        with pytest.raises(TemporaryError) as raised:
            stream.describe()
    finally:
        source.close()
    assert f"(IMDS) (HTTP 502; by way of the proxy {source.url} of HTTP_PROXY)" in str(raised.value)


def test_a_machine_without_a_metadata_service_hears_what_to_set(tmp_path, monkeypatch):
    source = Imds(tmp_path, monkeypatch)
    source.close()
    with pytest.raises(SetupError, match="AWS_METADATA_SERVICE_TIMEOUT"):
        open_clients(CONFIG)


def test_an_agent_at_an_address_that_boto3_does_not_ask_ends_the_start(tmp_path, monkeypatch):
    source = Agent(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/credentials")
    with pytest.raises(SetupError, match="AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        open_clients(CONFIG)
    source.close()


WEB = "AWS_WEB_IDENTITY_TOKEN_FILE of the environment names"


@pytest.mark.parametrize(
    ("token", "name", "said"),
    [
        ("", "orders", "it does not take what is in the file {}, which " + WEB),
        ("token", "x", "it does not take AWS_ROLE_SESSION_NAME of the environment"),
        ("token", "or/ders", "it does not take AWS_ROLE_SESSION_NAME of the environment"),
    ],
    ids=["an empty token", "a name of one letter", "a name that STS refuses"],
)
def test_a_value_that_sts_does_not_take_ends_the_start_and_names_its_setting(
    tmp_path, monkeypatch, token, name, said
):
    source = Sts(tmp_path, monkeypatch)
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", name)
    message = "1 validation error detected: Value at 'roleSessionName' failed to satisfy constraint"
    source.key, source.answer = "AKID", lambda _: (400, refusal_of_sts("ValidationError", message))
    try:
        with pytest.raises(SetupError) as raised:
            open_clients(CONFIG)
    finally:
        source.close()
    assert said.format(tmp_path / "token") in str(raised.value)
    assert raised.value.code == "E04"


def test_a_session_name_of_a_file_that_sts_does_not_take_is_named(tmp_path, monkeypatch):
    source = Sts(tmp_path, monkeypatch)
    source.close()
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    role = CredentialsSource(
        kind="assume role", role_arn="arn:aws:iam::123456789012:role/orders", session_name="x"
    )
    specs = {service: ClientSpec(credentials=(role,)) for service in ("kinesis", "dynamodb")}
    with pytest.raises(
        SetupError, match=r"STS \(it does not take role_session_name \(session_name\)"
    ) as raised:
        open_specified_clients(CONFIG, specs)
    assert "defect" not in str(raised.value)


@pytest.mark.parametrize("given", [False, True], ids=["own session", "clients of a user"])
def test_a_role_that_sts_refuses_is_no_permission_of_the_worker(tmp_path, monkeypatch, given):
    source = Sts(tmp_path, monkeypatch)
    source.key, source.answer = "AKID", lambda _: (403, refusal_of_sts("AccessDenied", "Not authorized"))
    # Not boto3.client, whose session is the first one that any test has made.
    session = boto3.Session(region_name="eu-west-1")
    clients = {service: session.client(service) for service in ("kinesis", "dynamodb")} if given else None
    try:
        with pytest.raises(SetupError, match=r"STS \(it refused the role, AccessDenied\)") as raised:
            connect(CONFIG, SystemRuntime(), clients=clients)[0].scan()
    finally:
        source.close()
    assert raised.value.code == "E04"
    assert "trust policy of the role" in str(raised.value)


def refusal_of_sts(code, message):
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"


# -- what a message advises, followed ------------------------------------------------------------------------------


def described():
    """What ends the first request; "" if it is answered."""
    try:
        connect(CONFIG, SystemRuntime())[1].describe()
    except PyKclError as error:
        return str(error)
    return ""


@pytest.fixture
def endpoints(between, monkeypatch):
    """To be called once the source has cleared the environment."""

    def lead():
        for service in ("KINESIS", "DYNAMODB"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", between.url)

    return lead


def slowly(source):
    """The service of the instance takes longer than boto3 waits without the variable."""
    answer = source.answer

    def answer_late(path):
        if path == ROLES:
            threading.Event().wait(1.3)
        return answer(path)

    source.answer = answer_late


def at_the_second_attempt(source):
    """Each search for credentials is answered at its second request for the role."""
    answer, asked = source.answer, []

    def answer_again(path):
        # A search begins with a request for a token.
        asked[:] = [*asked, path] if path == ROLES else []
        return (500, "") if asked == [ROLES] else answer(path)

    source.answer = answer_again


@pytest.mark.parametrize(
    ("trouble", "name", "value"),
    [
        (slowly, "AWS_METADATA_SERVICE_TIMEOUT", "20"),
        (at_the_second_attempt, "AWS_METADATA_SERVICE_NUM_ATTEMPTS", "2"),
    ],
)
def test_a_start_on_an_instance_succeeds_once_the_advised_variable_is_set(
    endpoints, tmp_path, monkeypatch, trouble, name, value
):
    monkeypatch.setattr("pykcl.aws.renewed_credentials.PATIENCE", 0.1)

    def described_with(**variables):
        # Another service each time: clients of the one before go on to ask theirs.
        source = Imds(tmp_path, monkeypatch)
        endpoints()
        source.come("AKID")
        trouble(source)
        for each, text in variables.items():
            monkeypatch.setenv(each, text)
        try:
            return described()
        finally:
            source.close()

    assert name in described_with().partition("if it does not, set ")[2]
    assert described_with(**{name: value}) == ""


KEYS = "[{}]\naws_access_key_id = AKID\naws_secret_access_key = s\n"


@pytest.mark.parametrize(
    "values",
    [
        {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s"},
        {"AWS_PROFILE": "orders"},
        {"AWS_SHARED_CREDENTIALS_FILE": "{}/others"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_start_without_credentials_succeeds_once_variables_name_some(
    endpoints, tmp_path, monkeypatch, values
):
    source = Command(tmp_path, monkeypatch)
    (tmp_path / "config").unlink()
    (tmp_path / "credentials").write_text(KEYS.format("orders"))
    (tmp_path / "others").write_text(KEYS.format("default"))
    endpoints()
    assert "No AWS credentials" in described()
    for name, value in values.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert described() == ""
    source.close()


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "right"),
    [
        (Sts, "AWS_WEB_IDENTITY_TOKEN_FILE", "{path}/missing", "{path}/token"),
        (Sts, "AWS_ROLE_SESSION_NAME", "x", "orders"),
        (Sts, "AWS_ROLE_ARN", "orders", "arn:aws:iam::123456789012:role/orders"),
        (Agent, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/credentials", "{url}/credentials"),
        (Agent, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "{path}/missing", "{path}/token"),
    ],
)
def test_a_start_succeeds_once_the_variable_that_the_message_names_is_corrected(
    endpoints, tmp_path, monkeypatch, kind, name, wrong, right
):
    source = kind(tmp_path, monkeypatch)
    (tmp_path / "token").write_text("token")
    endpoints()
    source.come("AKID")
    try:
        monkeypatch.setenv(name, wrong.format(path=tmp_path, url=source.url))
        assert name in described()
        monkeypatch.setenv(name, right.format(path=tmp_path, url=source.url))
        assert described() == ""
    finally:
        source.close()
