"""The doctor about the destination of dead letters: there or not, and whose."""

import boto3
import pytest

from pykcl.config import Config
from pykcl.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.iam import Identity
from pykcl.operate.doctor.facts import AccountFacts, Facts, LetterFacts, ProcessFacts
from pykcl.operate.doctor.letters import check_letters, letter_facts


def config(text):
    return Config(application="orders-app", stream="orders", dead_letters=text)


def facts_of(text):
    return letter_facts(config(text), OperatorClients())


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
