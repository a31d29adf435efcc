"""Java's credentials providers by name: which identity signs the requests of each service in the end."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from botocore.awsrequest import AWSResponse
from fake_sources import FakeSources
from properties_files import meaning

from pykcl.aws.credentials import ClientSpec, CredentialsSource, open_specified_clients
from pykcl.aws.errors import answer_of
from pykcl.compat.properties.credentials import KNOWN
from pykcl.config import Config
from pykcl.errors import ConfigError, SetupError, TemporaryError

ROLE = "arn:aws:iam::123456789012:role/reader"
OTHER_ROLE = "arn:aws:iam::123456789012:role/leaser"


def clients_of(**keys):
    found = meaning(**{"regionName": "eu-west-1", **keys})
    return open_specified_clients(found.config, found.clients)


def signer(client, operation):
    """The access key that signs a request of this client, which is caught before it is sent."""
    caught = []

    def catch(request, **_):
        caught.append(request.headers["Authorization"].decode())
        return AWSResponse(request.url, 200, {}, type("Raw", (), {"stream": lambda *_: [b"{}"]})())

    client.meta.events.register_first("before-send.*.*", catch)
    getattr(client, operation)()
    return re.search(r"Credential=(\w+)/", caught[0])[1]


def use(clients):
    answer_of("listing streams", clients["kinesis"].list_streams, {})


def signers(**keys):
    clients = clients_of(**keys)
    return signer(clients["kinesis"], "list_streams"), signer(clients["dynamodb"], "list_tables")


@pytest.fixture
def fakes():
    with FakeSources() as running:
        yield running


@pytest.fixture
def environment(no_aws, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    return monkeypatch


@pytest.fixture
def everywhere(environment, fakes, no_aws, tmp_path):
    """Every source has credentials, each of its own; the environment comes first in boto3's chain."""
    (no_aws / "credentials").write_text(
        "".join(
            f"[{name}]\naws_access_key_id=AKID{name.upper()}\naws_secret_access_key=s\n"
            for name in ("default", "reading", "writing")
        )
    )
    (no_aws / "config").write_text(
        f"[profile assuming]\nrole_arn={ROLE}\nsource_profile=writing\nregion=eu-west-1\n"
    )
    (tmp_path / "token").write_text("web-token")
    for name, value in {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{fakes.url}/container",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": fakes.url,
        "AWS_EC2_METADATA_DISABLED": "false",
        "AWS_ENDPOINT_URL_STS": fakes.url,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/web",
    }.items():
        environment.setenv(name, value)
    return fakes


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("DefaultCredentialsProvider", "AKIDENVIRONMENT"),
        ("software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider", "AKIDENVIRONMENT"),
        ("DefaultAWSCredentialsProviderChain", "AKIDENVIRONMENT"),
        ("com.amazonaws.auth.DefaultAWSCredentialsProviderChain", "AKIDENVIRONMENT"),
        ("EnvironmentVariableCredentialsProvider", "AKIDENVIRONMENT"),
        ("ProfileCredentialsProvider", "AKIDDEFAULT"),
        ("com.amazonaws.auth.profile.ProfileCredentialsProvider|reading", "AKIDREADING"),
        ("ProfileCredentialsProvider|writing", "AKIDWRITING"),
        ("ProfileCredentialsProvider|assuming", "ASIAREADER"),
        ("ContainerCredentialsProvider", "AKIDCONTAINER"),
        ("EC2ContainerCredentialsProviderWrapper", "AKIDCONTAINER"),
        ("InstanceProfileCredentialsProvider", "AKIDINSTANCE"),
        ("WebIdentityTokenFileCredentialsProvider", "ASIAWEB"),
        ("StsWebIdentityTokenFileCredentialsProvider", "ASIAWEB"),
        ("WebIdentityTokenCredentialsProvider", "ASIAWEB"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|orders", "ASIAREADER"),
        (f"KclStsAssumeRoleCredentialsProvider|{ROLE}|orders", "ASIAREADER"),
        (f"STSAssumeRoleSessionCredentialsProvider|{ROLE}|orders", "ASIAREADER"),
        (f"KclSTSAssumeRoleSessionCredentialsProvider|{ROLE}|orders", "ASIAREADER"),
    ],
)
def test_each_provider_signs_with_its_own_credentials_though_others_are_there(everywhere, value, key):
    assert signers(AwsCredentialsProvider=value) == (key, key)


def test_every_known_class_was_tried():
    (mark,) = [
        mark
        for mark in test_each_provider_signs_with_its_own_credentials_though_others_are_there.pytestmark
        if mark.name == "parametrize"
    ]
    assert {value.partition("|")[0].rpartition(".")[2] for value, _ in mark.args[1]} == set(KNOWN)


@pytest.mark.parametrize(
    "value",
    [
        "ProfileCredentialsProvider|nobody",
        "ContainerCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
    ],
)
def test_a_provider_without_credentials_does_not_fall_back_to_those_of_another(environment, value):
    with pytest.raises(
        SetupError, match=r"No AWS credentials\. Asked in this order: .*(has none|failed|needs)"
    ):
        clients_of(AwsCredentialsProvider=value)


def test_the_environment_alone_is_asked_where_only_it_is_named(no_aws):
    (no_aws / "credentials").write_text("[default]\naws_access_key_id=AKIDDEFAULT\naws_secret_access_key=s\n")
    with pytest.raises(SetupError, match="the environment: has none"):
        clients_of(AwsCredentialsProvider="EnvironmentVariableCredentialsProvider")
    assert signers(AwsCredentialsProvider="DefaultCredentialsProvider") == ("AKIDDEFAULT", "AKIDDEFAULT")


def test_the_profile_of_the_environment_is_the_one_without_a_name(everywhere, environment):
    environment.setenv("AWS_PROFILE", "reading")
    assert signers(AwsCredentialsProvider="ProfileCredentialsProvider")[0] == "AKIDREADING"


def test_of_a_list_the_first_that_has_credentials_is_used(environment, no_aws):
    listed = "ContainerCredentialsProvider, ProfileCredentialsProvider|reading , EnvironmentVariableCredentialsProvider"
    assert signers(AwsCredentialsProvider=listed)[0] == "AKIDENVIRONMENT"
    (no_aws / "credentials").write_text("[reading]\naws_access_key_id=AKIDREADING\naws_secret_access_key=s\n")
    assert signers(AwsCredentialsProvider=listed)[0] == "AKIDREADING"


def test_a_role_that_sts_refuses_leaves_the_turn_to_the_next_of_the_list(everywhere):
    everywhere.refuse_roles = "AccessDenied"
    value = f"StsAssumeRoleCredentialsProvider|{ROLE}|orders,ProfileCredentialsProvider|writing"
    assert signers(AwsCredentialsProvider=value)[0] == "AKIDWRITING"


def test_where_no_source_has_any_all_are_named_with_their_troubles_and_nothing_sts_said(everywhere):
    everywhere.refuse_roles = "AccessDenied"
    value = (
        f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|externalId=CANARY,ProfileCredentialsProvider|nobody"
    )
    with pytest.raises(SetupError, match=rf"role {ROLE}: .*AccessDenied.*; profile nobody: ") as error:
        clients_of(AwsCredentialsProvider=value)
    told = error.value
    while told is not None:
        assert "CANARY" not in str(told)
        told = told.__cause__ or told.__context__


def test_an_sts_that_is_out_of_order_is_trouble_that_may_pass(everywhere, environment):
    everywhere.refuse_roles = "ServiceUnavailable"
    environment.setenv("AWS_MAX_ATTEMPTS", "1")
    clients = clients_of(AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders")
    with pytest.raises(TemporaryError, match=rf"role {ROLE}: .*from STS \(ServiceUnavailable\)"):
        use(clients)
    everywhere.refuse_roles = ""
    assert signer(clients["kinesis"], "list_streams") == "ASIAREADER"


@pytest.mark.parametrize("body", ["<html>CANARY<p>", '{"CANARY": 1}', "", "<AssumeRoleResponse/>"])
def test_an_answer_that_is_not_of_sts_is_told_without_it(everywhere, environment, caplog, body):
    """Of a proxy, or of a wrong endpoint."""
    environment.setenv("AWS_MAX_ATTEMPTS", "1")
    everywhere.answer = lambda path, form: (200, "text/html", body)
    with pytest.raises(TemporaryError, match=rf"role {ROLE}: getting AWS credentials") as error:
        use(clients_of(AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders"))
    assert "CANARY" not in str(error.value)
    assert "CANARY" not in caplog.text


def test_what_sts_said_at_the_start_is_not_logged_either(everywhere, caplog):
    everywhere.refuse_roles = "AccessDenied"
    with pytest.raises(SetupError):
        clients_of(AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders")
    assert "Traceback" not in caplog.text
    assert "CANARY" not in caplog.text


def test_credentials_that_have_ended_already_are_told_with_what_to_look_at(everywhere, monkeypatch):
    monkeypatch.setattr("fake_sources.EXPIRES", "2020-01-01T00:00:00Z")
    with pytest.raises(TemporaryError, match=r"have ended already.*clock"):
        use(clients_of(AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders"))


def test_a_role_is_asked_for_with_session_external_id_endpoint_and_region(environment, fakes):
    environment.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    value = f"KclStsAssumeRoleCredentialsProvider|{ROLE}|orders|externalId=x=y|endpoint={fakes.url}^sa-east-1"
    assert signers(AwsCredentialsProvider=value)[0] == "ASIAREADER"
    ((headers, form),) = fakes.of_sts()
    assert (form["RoleArn"], form["RoleSessionName"], form["ExternalId"]) == (ROLE, "orders", "x=y")
    assert "Credential=AKIDENVIRONMENT/" in headers["Authorization"]
    assert "/sa-east-1/sts/" in headers["Authorization"]


def test_the_region_of_sts_can_be_given_alone(environment, fakes):
    environment.setenv("AWS_ENDPOINT_URL_STS", fakes.url)
    clients_of(
        AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|endpointRegion=ap-south-1"
    )
    ((headers, form),) = fakes.of_sts()
    assert "/ap-south-1/sts/" in headers["Authorization"]
    assert "ExternalId" not in form


def test_credentials_of_a_role_are_renewed_before_they_end(environment, fakes, monkeypatch):
    environment.setenv("AWS_ENDPOINT_URL_STS", fakes.url)
    fakes.answer = _ends_once(fakes, monkeypatch)
    clients = clients_of(AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders")
    until = time.monotonic() + 60
    while len(fakes.of_sts()) < 2:
        assert signer(clients["kinesis"], "list_streams") == "ASIAREADER"
        assert time.monotonic() < until


def _ends_once(fakes, monkeypatch):
    """STS whose first credentials end in two minutes, and whose later ones live."""
    plain = fakes.answer
    soon = (datetime.now(UTC) + timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def answer(path, form):
        monkeypatch.setattr(
            "fake_sources.EXPIRES", soon if len(fakes.of_sts()) == 1 else "2099-01-01T00:00:00Z"
        )
        return plain(path, form)

    return answer


def test_services_have_credentials_of_their_own_where_the_file_says_so(everywhere):
    assert signers(
        AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders",
        AwsCredentialsProviderDynamoDB=f"StsAssumeRoleCredentialsProvider|{OTHER_ROLE}|orders",
    ) == ("ASIAREADER", "ASIALEASER")
    assert signers(
        AwsCredentialsProvider="ProfileCredentialsProvider|reading",
        kinesisClient__credentialsProvider="ProfileCredentialsProvider|writing",
    ) == ("AKIDWRITING", "AKIDREADING")
    assert signers(
        AwsCredentialsProviderDynamoDB="ProfileCredentialsProvider|reading",
        dynamoDbClient__credentialsProvider="ProfileCredentialsProvider|writing",
    ) == ("AKIDENVIRONMENT", "AKIDWRITING")


def test_equal_credentials_are_asked_for_once(everywhere):
    clients_of(AwsCredentialsProvider=f"StsAssumeRoleCredentialsProvider|{ROLE}|orders")
    assert len(everywhere.of_sts()) == 1


def test_without_any_provider_boto3_finds_them(environment):
    assert signers() == ("AKIDENVIRONMENT", "AKIDENVIRONMENT")


def test_nothing_at_all_is_told_with_what_was_asked(no_aws):
    with pytest.raises(SetupError, match="boto3's default chain: has none"):
        clients_of()


def test_no_region_at_all_is_told_with_the_key_to_write(environment):
    with pytest.raises(ConfigError, match="regionName"):
        clients_of(regionName=None)


def test_a_credentials_file_that_is_none_is_told_without_its_content(no_aws):
    (no_aws / "credentials").write_text("CANARY\n[default\n")
    with pytest.raises(SetupError) as error:
        clients_of(AwsCredentialsProvider="ProfileCredentialsProvider|default")
    told = error.value
    while told is not None:
        assert "CANARY" not in str(told)
        told = told.__cause__ or told.__context__


def test_only_the_services_there_are_can_be_specified(environment):
    config = Config(application="orders-app", stream="orders", region="eu-west-1")
    with pytest.raises(ConfigError, match="sqs"):
        open_specified_clients(config, {"sqs": ClientSpec()})
    assert "hush" not in repr(CredentialsSource(kind="assume role", external_id="hush"))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("DefaultCredentialProvider", "Did you mean DefaultCredentialsProvider?"),
        ("org.example.MyCredentialsProvider", "names org.example.MyCredentialsProvider that is no"),
        ("org.example.DefaultCredentialsProvider", "names org.example.DefaultCredentialsProvider that is no"),
        ("DefaultCredentialsProvider, MyCredentialsProvider", "names MyCredentialsProvider"),
        ("AKIACANARY", "names something"),
        ("wJalr/CANARY+Key", "names something"),
        (" , ", "names no credentials provider"),
        ("DefaultCredentialsProvider|CANARY", "which takes none"),
        ("StsAssumeRoleCredentialsProvider", r"|ROLE_ARN|SESSION_NAME"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}", r"|ROLE_ARN|SESSION_NAME"),
        ("StsAssumeRoleCredentialsProvider|CANARY|orders", "something other than a role ARN"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|CANARY CANARY", "no valid session name"),
        (
            f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|CANARY",
            "none of endpoint=…, endpointRegion=…, externalId=…",
        ),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|secret=CANARY", "none of endpoint=…"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|externalId=", "none of endpoint=…"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|endpoint=https://sts.CANARY", "without URL^REGION"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|orders|endpointRegion=a CANARY", "not an AWS region"),
    ],
)
def test_a_provider_that_cannot_be_meant_is_refused_by_its_key_without_its_arguments(value, told):
    for key in (
        "AwsCredentialsProvider",
        "awscredentialsproviderDynamoDB",
        "kinesisClient.credentialsProvider",
    ):
        with pytest.raises(ConfigError) as error:
            meaning(**{key.replace(".", "__"): value})
        assert str(error.value).startswith(f"the properties: {key} ")
        assert told in str(error.value)
        assert "CANARY" not in str(error.value)


def test_an_unknown_class_is_refused_with_all_that_are_known():
    with pytest.raises(ConfigError) as error:
        meaning(AwsCredentialsProvider="MyCredentialsProvider")
    assert all(name in str(error.value) for name in KNOWN)
    assert "credential_process" in str(error.value)


def test_credentials_for_metrics_are_not_checked_where_nothing_is_published():
    keys = {"AwsCredentialsProviderCloudWatch": "org.example.MyProvider|CANARY"}
    found = meaning(metricsLevel="NONE", **keys)
    told = found.verdicts[-1]
    assert (told.verdict, told.value) == ("ignored, as Java does", "***|***")
    assert "cloudwatch" not in found.clients
    with pytest.raises(ConfigError, match="not a credentials provider pykcl knows"):
        meaning(**keys)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("STSAssumeRoleWithWebIdentitySessionCredentialsProvider", "web identity"),
        ("StsAssumeRoleWithWebIdentityCredentialsProvider|role|session", "web identity"),
        ("StsAssumeRoleWithSamlCredentialsProvider", "profile"),
        ("StsGetSessionTokenCredentialsProvider", "profile"),
        ("ProcessCredentialsProvider", "profile"),
        ("SsoCredentialsProvider", "profile"),
        ("AWSStaticCredentialsProvider", "environment"),
        ("SystemPropertyCredentialsProvider", "environment"),
        ("ClasspathPropertiesFileCredentialsProvider", "environment"),
        ("WebIdentityTokenFileCredentialProvider", "web identity"),
        ("InstanceProfileCredentialProvider", "instance"),
    ],
)
def test_what_is_advised_in_place_of_another_class_is_accepted(name, kind):
    with pytest.raises(ConfigError) as error:
        meaning(AwsCredentialsProvider=name)
    advised = re.search(r"(?:Write|Did you mean) ([\w|]+)", str(error.value))[1]
    (source,) = meaning(AwsCredentialsProvider=advised).clients["kinesis"].credentials
    assert source.kind == kind
