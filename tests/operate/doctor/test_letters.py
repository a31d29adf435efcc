"""The doctor about the destination of dead letters: there or not, and whose."""

import boto3
import pytest
from botocore.exceptions import ClientError

from pykcl.config import Config
from pykcl.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.iam import Identity
from pykcl.operate.doctor.facts import AccountFacts, Facts, LetterFacts, ProcessFacts
from pykcl.operate.doctor.letters import check_letters, letter_facts
from pykcl.operate.doctor.puts import _is_kinesis_of_aws
from pykcl.runtime import SystemRuntime


def config(text):
    return Config(application="orders-app", stream="orders", dead_letters=text)


def facts_of(text):
    return letter_facts(config(text), OperatorClients(), SystemRuntime())


def findings(letters, account="000000000000"):
    identity = Identity("env", account=account, arn=f"arn:aws:iam::{account}:user/a")
    facts = Facts(
        config=config(None),
        application="orders-app",
        process=ProcessFacts(python="3", pykcl="0"),
        account=AccountFacts(identity=identity),
        letters=letters,
    )
    return [(one.id, one.text) for one in check_letters(facts)]


@pytest.mark.parametrize("text", [None, "discard", "callable"])
def test_without_a_destination_there_is_nothing_to_find(text):
    assert facts_of(text) is None
    assert findings(None) == []


def test_a_directory_must_be_writable_or_its_parent(tmp_path):
    assert facts_of(f"file:{tmp_path}/letters").trouble == ""
    assert "is no directory" in facts_of(f"file:{tmp_path}/not-mounted/letters").trouble
    (tmp_path / "file").write_text("")
    assert "is no directory" in facts_of(f"file:{tmp_path}/file").trouble


def test_a_queue_must_be_there(monkeypatch):
    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        boto3.setup_default_session()
        boto3.client("sqs").create_queue(QueueName="dlq")
        there = facts_of("arn:aws:sqs:us-east-1:000000000000:dlq")
        missing = facts_of("arn:aws:sqs:us-east-1:000000000000:other")
    assert (there.is_tried, there.trouble) == (True, "")
    [(kind, text)] = findings(missing)
    assert (kind, "the queue does not exist" in text) == ("dead-letters-unreachable", True)
    assert [kind for kind, _ in findings(there)] == ["dead-letters-ok"]
    elsewhere = findings(there, account="123456789012")
    assert [kind for kind, _ in elsewhere] == ["dead-letters-elsewhere", "dead-letters-ok"]


def test_what_only_a_letter_would_show_is_said():
    letters = facts_of("s3://letters/team?owner=000000000000")
    assert letters == LetterFacts(text="s3://letters/team?owner=000000000000", account="000000000000")
    [(kind, text)] = findings(letters)
    assert (kind, "is not tried" in text) == ("dead-letters-ok", True)


STREAM = "arn:aws:kinesis:us-east-1:000000000000:stream/letters"


@pytest.fixture
def letters_stream(kinesis, monkeypatch):
    """A stream for letters, whose endpoint counts as one of AWS."""
    if "DryRun" not in boto3.client("kinesis").meta.service_model.shape_for("PutRecordsInput").members:
        pytest.skip("this botocore has no dry runs of Kinesis: they came in September 2026")
    monkeypatch.setattr("pykcl.operate.doctor.puts._is_kinesis_of_aws", lambda _: True)
    kinesis.create_stream("letters", 1)
    return kinesis


def test_a_stream_is_asked_for_a_dry_run_and_gets_no_record(letters_stream):
    there = facts_of(STREAM)
    assert (there.is_tried, there.trouble, there.proven) == (True, "", "kinesis:PutRecords")
    assert letters_stream.records("letters") == []
    assert "takes a record in a dry run" in findings(there)[0][1]
    [(kind, text)] = findings(facts_of(STREAM + "-of-nobody"))
    assert (kind, "The stream does not exist" in text) == ("dead-letters-unreachable", True)


def test_a_throttled_dry_run_says_nothing(letters_stream):
    """There is one a second for each stream, whoever asks."""
    letters_stream.throttle("PutRecords")
    facts = facts_of(STREAM)
    assert (facts.is_tried, facts.trouble, facts.proven) == (False, "", "")
    assert "a dry run was refused (ProvisionedThroughputExceededException)" in findings(facts)[0][1]


class _Answering:
    """A client of Kinesis whose puts end so."""

    def __init__(self, answer):
        self.meta, self._answer = boto3.client("kinesis").meta, answer

    def put_records(self, **_):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def answered(monkeypatch, answer):
    client = _Answering(answer)
    monkeypatch.setattr(OperatorClients, "client", lambda *_: client)
    [found] = findings(facts_of(STREAM))
    return found


def test_whoever_runs_the_doctor_may_have_fewer_permissions_than_the_worker(letters_stream, monkeypatch):
    denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "PutRecords")
    kind, text = answered(monkeypatch, denied)
    assert (kind, "not tried: a dry run was refused (AccessDeniedException)" in text) == (
        "dead-letters-ok",
        True,
    )


def test_a_dry_run_that_is_answered_as_a_put_proves_nothing(letters_stream, monkeypatch):
    kind, text = answered(monkeypatch, {"Records": [{"ShardId": "s", "SequenceNumber": "1"}]})
    assert (kind, "there may be a record" in text) == ("dead-letters-unreachable", True)


@pytest.mark.parametrize(
    ("endpoint", "is_asked"),
    [
        ("https://kinesis.eu-west-1.amazonaws.com", True),
        ("https://kinesis-fips.us-gov-west-1.amazonaws.com", True),
        ("https://kinesis.eu-west-1.api.aws", True),
        ("https://kinesis.cn-north-1.amazonaws.com.cn", True),
        ("http://kinesis.eu-west-1.amazonaws.com", False),
        ("http://ec2-3-4-5-6.compute-1.amazonaws.com:4566", False),
        ("https://stack.elb.us-east-1.amazonaws.com", False),
        ("http://127.0.0.1:4566", False),
    ],
)
def test_only_kinesis_of_aws_is_asked(endpoint, is_asked):
    assert _is_kinesis_of_aws(endpoint) is is_asked


def test_an_endpoint_that_is_not_of_aws_is_not_asked_for_a_dry_run(kinesis):
    """It may not know the member, and put the record."""
    facts = facts_of(STREAM)
    assert (facts.is_tried, facts.trouble) == (False, "")
