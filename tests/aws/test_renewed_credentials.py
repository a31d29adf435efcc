"""Credentials that are replaced while a worker runs: AWS refuses the old ones, and the new ones are found."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from urllib.parse import parse_qs

import boto3
import pytest
from botocore import credentials as credentials_of_botocore
from botocore.credentials import Credentials
from calls import call_all, waiting_for
from server_between import Answer

from pykcl.aws.clients import connect, open_clients
from pykcl.aws.errors import calling
from pykcl.aws.renewed_credentials import RenewedCredentials
from pykcl.config import Config
from pykcl.errors import SetupError, TemporaryError
from pykcl.events import FailureStarted
from pykcl.health.probes import readiness
from pykcl.model import lease_writes
from pykcl.model.checkpoint import ReadFrom
from pykcl.processor import RecordProcessor
from pykcl.runtime import SystemRuntime
from pykcl.worker.worker import Worker

REFUSALS = ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"]


class Guard:
    """Refuses all requests but those with one access key."""

    def __init__(self, between):
        self.key, self.code, self.refused = "AKIDOLD", REFUSALS[0], []
        between.instead = self._answer

    def _accepts(self, key):
        return key == self.key

    def _answer(self, operation, headers, body):
        if self._accepts(re.search(r"Credential=(\w+)/", headers["authorization"])[1]):
            return None
        self.refused.append(operation)
        answer = {"__type": self.code, "message": "The security token included in the request is expired"}
        return Answer(400, {"content-type": headers["content-type"]}, json.dumps(answer).encode())


@pytest.fixture
def guard(between):
    return Guard(between)


@pytest.fixture
def keys(tmp_path, monkeypatch, between):
    """Write a credentials file with this access key; it is the only source."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def write(key, more=""):
        path.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\n{more}")

    write("AKIDOLD", "aws_session_token=old\n")
    return write


def reading(got, events, **options):
    """A worker whose records come into `got`."""

    class Kept(RecordProcessor):
        def process_records(self, batch):
            got.extend(record.data for record in batch.records)

    return Worker(
        "orders-app",
        stream="orders",
        processor=Kept,
        initial_position="TRIM_HORIZON",
        on_event=events.append,
        **options,
    )


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("way", ["boto3", "auto"])
def test_keys_that_were_replaced_in_a_file_are_used_from_the_first_refusal_on(
    between, guard, keys, way, code
):
    table, stream = connect(
        Config(application="orders-app", stream="orders", http_transport=way), SystemRuntime()
    )
    call_all(table, stream)
    call_all(table, stream)
    guard.key, guard.code = "AKIDNEW", code
    keys("AKIDNEW")
    call_all(table, stream)
    assert len(guard.refused) <= 2, "once for each service at most"
    assert stream.transport == "boto3" if way == "boto3" else stream.transport.startswith("direct")


@pytest.mark.parametrize("way", ["boto3", "auto"])
def test_each_call_is_the_first_that_notices(between, guard, keys, way):
    """None of them must be one that gives up instead."""
    table, stream = connect(
        Config(application="orders-app", stream="orders", http_transport=way), SystemRuntime()
    )
    call_all(table, stream)
    call_all(table, stream)
    iterator = stream.open("shardId-000000000000", ReadFrom("TRIM_HORIZON"))
    lease = table.read("shardId-000000000000")
    calls = [
        stream.describe,
        stream.list_shards,
        lambda: stream.fetch("shardId-000000000000", iterator, 10),
        table.scan,
        lambda: table.read("shardId-000000000000"),
        lambda: table.write(lease_writes.renew(lease), until=SystemRuntime().monotonic() + 60),
    ]
    if way == "auto":
        calls.append(lambda: stream.request_page("shardId-000000000000", iterator, 10).page())
    for number, call in enumerate(calls):
        for client in (stream._client, table._client):
            client._request_signer._credentials._renewed_at = float("-inf")
        guard.key = f"AKID{number}"
        keys(guard.key)
        guard.refused.clear()
        assert call() is not None
        assert len(guard.refused) == 1


def test_a_worker_goes_on_with_its_leases_when_the_keys_are_replaced(between, guard, keys):
    got, events = [], []
    with reading(got, events) as worker:
        assert worker.wait_ready(60)
        keys("AKIDNEW")
        guard.key = "AKIDNEW"
        between.kinesis.put_record("orders", b"after", "k")
        waiting_for(lambda: got)
    names = [type(event).__name__ for event in events]
    assert "LeaseLost" not in names
    assert "FailureStarted" not in names


def test_a_worker_whose_keys_expired_for_good_is_not_ready_and_what_it_says_is_true(between, guard, keys):
    events = []
    with reading([], events, failover_time=3.0) as worker:
        assert worker.wait_ready(60)
        assert readiness(worker.status()).is_good
        guard.key = "AKIDNEW"
        waiting_for(lambda: not readiness(worker.status()).is_good)
        first = next(event for event in events if isinstance(event, FailureStarted) and event.code == "E04")
        assert "Files, profiles and services are read again within a minute" in first.cause
        keys("AKIDNEW")
        waiting_for(lambda: readiness(worker.status()).is_good)


# -- sources of keys that are good for three hours -------------------------------------------------------------


class Hours:
    """The clock of botocore's credentials, and how far it is ahead of the real one."""

    ahead = timedelta()

    def now(self):
        return datetime.now(UTC) + self.ahead

    def expiry(self):
        return (self.now() + timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Issuer(Guard):
    """Refuses keys whose time is over. token: the only web identity token for which STS gives some."""

    def __init__(self, between, hours):
        super().__init__(between)
        self._hours, self.expiries, self.token = hours, {}, ""
        self.code_of_sts = "ExpiredTokenException"

    def keys(self):
        key = f"AKID{len(self.expiries)}"
        self.expiries[key] = self._hours.now() + timedelta(hours=3)
        return key

    def _answer(self, operation, headers, body):
        if operation == "AssumeRoleWithWebIdentity":
            return self._of_sts(parse_qs(body.decode())["WebIdentityToken"][0])
        return super()._answer(operation, headers, body)

    def _accepts(self, key):
        return self.expiries[key] > self._hours.now()

    def _of_sts(self, token):
        if token != self.token:
            error = f"<ErrorResponse><Error><Code>{self.code_of_sts}</Code></Error></ErrorResponse>"
            return Answer(400, {"content-type": "text/xml"}, error.encode())
        text = (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{self.keys()}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            f"<SessionToken>t</SessionToken><Expiration>{self._hours.expiry()}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        return Answer(200, {"content-type": "text/xml"}, text.encode())


@pytest.fixture
def hours(monkeypatch):
    hours = Hours()
    monkeypatch.setattr(credentials_of_botocore, "_local_now", hours.now)
    monkeypatch.setattr(
        credentials_of_botocore.RefreshableCredentials,
        "_seconds_remaining",
        lambda self: (self._expiry_time - hours.now()).total_seconds(),
    )
    return hours


class WebIdentity:
    """As in a pod: a token file that the kubelet writes anew, and STS."""

    def __init__(self, issuer, hours, path, monkeypatch):
        self._issuer, self._file, self._count = issuer, path / "token", 0
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(self._file))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")
        monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "orders")
        self.write()

    def write(self):
        self._count += 1
        self._issuer.token = f"token-{self._count}"
        self._file.write_text(self._issuer.token)

    def break_off(self):
        """The token that lies there is not good any more."""
        self._issuer.token = "of which nobody knows"


class Process:
    """A command that prints what something else has written."""

    def __init__(self, issuer, hours, path, monkeypatch):
        self._issuer, self._hours, self._file = issuer, hours, path / "keys.json"
        (path / "config").write_text(f"[default]\ncredential_process = cat {self._file}\n")
        self.write()

    def write(self):
        said = {"Version": 1, "AccessKeyId": self._issuer.keys(), "SecretAccessKey": "s", "SessionToken": "t"}
        self._file.write_text(json.dumps({**said, "Expiration": self._hours.expiry()}))

    def break_off(self):
        self._file.unlink(missing_ok=True)


@pytest.fixture
def issuer(between, hours):
    return Issuer(between, hours)


@pytest.fixture(params=[WebIdentity, Process])
def origin(request, issuer, hours, keys, tmp_path, monkeypatch):
    (tmp_path / "credentials").unlink()
    return request.param(issuer, hours, tmp_path, monkeypatch)


@pytest.mark.parametrize("way", ["boto3", "auto"])
def test_clients_outlive_their_credentials(issuer, hours, origin, way):
    """What lies in the file at the end counts, and not what lay there at the start."""
    table, stream = connect(
        Config(application="orders-app", stream="orders", http_transport=way), SystemRuntime()
    )
    for _ in range(3):
        call_all(table, stream)
        call_all(table, stream)
        hours.ahead += timedelta(hours=4)
        origin.write()
    call_all(table, stream)
    assert issuer.refused == [], "nothing is sent with keys whose time is over"
    assert stream.transport == "boto3" if way == "boto3" else stream.transport.startswith("direct")


def test_a_worker_outlives_its_credentials(between, issuer, hours, origin):
    got, events = [], []
    with reading(got, events, failover_time=60.0) as worker:
        assert worker.wait_ready(60)
        for number in range(3):
            # There before the old ones end: no moment without any.
            origin.write()
            hours.ahead += timedelta(hours=2)
            between.kinesis.put_record("orders", b"%d" % number, "k")
            waiting_for(lambda count=number: len(got) > count)
    # A busy machine has heartbeats late, and says so.
    assert "LeaseLost" not in [type(event).__name__ for event in events]
    assert "E04" not in {event.code for event in events if isinstance(event, FailureStarted)}


@pytest.mark.slow
def test_a_worker_whose_source_has_nothing_new_says_so_and_goes_on_once_it_has(issuer, hours, origin):
    events = []
    with reading([], events, failover_time=3.0) as worker:
        assert worker.wait_ready(60)
        origin.break_off()
        hours.ahead += timedelta(hours=4)
        # Among others: a busy machine has heartbeats late, and leases expire.
        waiting_for(lambda: any(isinstance(e, FailureStarted) and e.code == "E04" for e in events))
        waiting_for(lambda: not readiness(worker.status()).is_good)
        causes = [e.cause for e in events if isinstance(e, FailureStarted) and e.code == "E04"]
        assert all("credentials" in cause for cause in causes)
        origin.write()
        waiting_for(lambda: readiness(worker.status()).is_good)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: (path / "keys.json").unlink(),
        lambda path: (path / "keys.json").write_text("{}"),
        lambda path: (path / "keys.json").write_text("Traceback (most recent call last):"),
        lambda path: None,
    ],
    ids=["fails", "prints no keys", "prints no JSON", "prints the old ones"],
)
def test_a_process_that_has_no_keys_for_a_moment_is_no_fault_of_aws(
    between, issuer, hours, keys, tmp_path, monkeypatch, spoil
):
    (tmp_path / "credentials").unlink()
    origin = Process(issuer, hours, tmp_path, monkeypatch)
    table, stream = connect(Config(application="orders-app", stream="orders"), SystemRuntime())
    call_all(table, stream)
    hours.ahead += timedelta(hours=4)
    spoil(tmp_path)
    for call in (stream.describe, stream.list_shards, table.scan, lambda: table.read("shardId-000000000000")):
        with pytest.raises(TemporaryError, match="AWS credentials could not be obtained") as raised:
            call()
        assert raised.value.code == "E04"
    origin.write()
    call_all(table, stream)


def test_a_token_that_sts_does_not_know_is_trouble_with_credentials(
    issuer, hours, keys, tmp_path, monkeypatch
):
    """Such as after the certificate of the cluster was replaced."""
    (tmp_path / "credentials").unlink()
    origin = WebIdentity(issuer, hours, tmp_path, monkeypatch)
    table, stream = connect(Config(application="orders-app", stream="orders"), SystemRuntime())
    origin.break_off()
    hours.ahead += timedelta(hours=4)
    issuer.code_of_sts = "InvalidIdentityToken"
    with pytest.raises(TemporaryError, match="AWS credentials could not be obtained") as raised:
        stream.describe()
    assert raised.value.code == "E04"
    origin.write()
    call_all(table, stream)


# -- without a server ------------------------------------------------------------------------------------------


class Clock(SystemRuntime):
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def source():
    """What a search finds, how often was searched, and the clock."""
    return SimpleNamespace(keys=Credentials("A", "s", "t"), searches=0, clock=Clock())


@pytest.fixture
def credentials(source):
    def search(_):
        source.searches += 1
        if isinstance(source.keys, Exception):
            raise source.keys
        return source.keys

    found = RenewedCredentials(lambda _: Credentials("A", "s", "t"), search, source.clock)
    found.get_frozen_credentials()
    return found


def test_a_search_in_vain_is_repeated_with_growing_pauses_of_a_minute_at_most(credentials, source):
    at = []
    for _ in range(6000):
        searches = source.searches
        assert not credentials.renew()
        if source.searches > searches:
            at.append(source.clock.now)
        source.clock.now += 0.1
    pauses = [round(later - earlier) for earlier, later in pairwise(at)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert set(pauses[6:]) == {60}


@pytest.mark.parametrize("trouble", [None, OSError("no such file"), RuntimeError("expired")])
def test_a_source_that_has_none_for_a_moment_takes_nothing_away(credentials, source, trouble):
    source.keys = trouble
    assert not credentials.renew()
    assert credentials.get_frozen_credentials().access_key == "A"
    source.keys, source.clock.now = Credentials("B", "s2"), source.clock.now + 2
    assert credentials.renew()
    keys = credentials.get_frozen_credentials()
    assert (keys.access_key, keys.secret_key, keys.token) == ("B", "s2", None)
    assert credentials.method == "explicit"
    assert credentials.get_deferred_property("access_key")() == "B"


def test_a_request_that_was_signed_before_the_keys_were_replaced_is_sent_again_without_a_search(
    credentials, source
):
    source.keys = Credentials("B", "s")
    assert credentials.renew()
    assert credentials.renew()
    assert source.searches == 1


def test_the_keys_of_a_client_that_was_passed_stay_as_they_are(between, guard, keys):
    """They may be of another account than those that boto3 finds by itself."""
    given = {
        service: boto3.client(service, "eu-west-1", aws_access_key_id="AKIDOLD", aws_secret_access_key="s")
        for service in ("kinesis", "dynamodb")
    }
    table, stream = connect(Config(application="orders-app", stream="orders"), SystemRuntime(), clients=given)
    call_all(table, stream)
    keys("AKIDNEW")
    guard.key = "AKIDNEW"
    with pytest.raises(TemporaryError, match="need a restart"):
        stream.describe()
    guard.code = "UnrecognizedClientException"
    with pytest.raises(SetupError, match="need a restart"):
        table.scan()


def test_other_clients_of_ours_are_renewed_too(between, guard, keys):
    clients = open_clients(Config(application="orders-app", stream="orders"))
    keys("AKIDNEW")
    guard.key = "AKIDNEW"
    assert calling(clients["kinesis"].list_streams)()["StreamNames"] == ["orders"]
