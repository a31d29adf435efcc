"""`pykcl fanout`: the consumers of a stream, what they cost, and when they may go."""

import json

import pytest
from click.testing import CliRunner
from service_kit import create_lease_table, lead_to

from pykcl.cli.main import main
from pykcl.runtime import SystemRuntime


@pytest.fixture
def pykcl(aws, dynamodb, monkeypatch):
    lead_to(monkeypatch, aws)

    def run(*arguments):
        done = CliRunner().invoke(main, ["fanout", *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done

    return run


def consumers(aws):
    return [one.name for one in aws.kinesis.list_consumers("orders")]


def lease(dynamodb, counter=7, owner="w1"):
    dynamodb.put_item(
        TableName="orders-app",
        Item={
            "leaseKey": {"S": "shardId-000000000000"},
            "leaseCounter": {"N": str(counter)},
            "leaseOwner": {"S": owner},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        },
    )


def test_a_consumer_is_registered_listed_with_what_is_billed_and_deregistered(aws, pykcl):
    done = pykcl("register", "orders", "--consumer", "app")
    assert done.exit_code == 0
    assert done.stdout.startswith("ACTIVE  arn:aws:kinesis:")
    assert "1 x 2 = 2 consumer-shard-hours an hour" in done.stderr
    assert pykcl("register", "orders", "--application", "app").exit_code == 0
    pykcl("register", "--stream", "orders", "--consumer", "other")
    listed = json.loads(pykcl("list", "orders", "-o", "json").stdout)
    found = [(one["consumer"], one["status"], one["shard_hours"]) for one in listed["rows"]]
    assert found == [("app", "ACTIVE", 2), ("other", "ACTIVE", 2)]
    shown = pykcl("list", "orders")
    assert "2 x 2 = 4 consumer-shard-hours an hour" in shown.output
    done = pykcl("deregister", "orders", "--consumer", "app", "--execute")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "DEREGISTERED")
    assert "no lease table app" in done.stderr
    assert consumers(aws) == ["other"]


def test_deregistering_is_a_dry_run_by_default(aws, pykcl):
    aws.kinesis.register_consumer("orders", "app")
    done = pykcl("deregister", "orders", "--consumer", "app")
    assert done.exit_code == 0
    assert done.stdout.startswith("PLAN (nothing changed)")
    assert "--execute" in done.stdout
    assert consumers(aws) == ["app"]


def test_a_consumer_that_is_not_there_is_refused(pykcl):
    done = pykcl("deregister", "orders", "--consumer", "app", "--execute")
    assert done.exit_code == 5
    assert "has no consumer 'app'" in done.stderr


@pytest.fixture
def skipping(monkeypatch, dynamodb):
    """Pauses take no time; what happens in each of them is to be set."""

    class Skipping(SystemRuntime):
        seconds, in_pause = 0.0, staticmethod(lambda: None)

        def monotonic(self):
            return Skipping.seconds

        def event(self):
            return self

        def wait(self, seconds):
            Skipping.seconds += seconds
            Skipping.in_pause()
            return False

    monkeypatch.setattr("pykcl.cli.fanout.SystemRuntime", Skipping)
    return Skipping


def test_a_consumer_whose_application_works_is_kept(aws, pykcl, dynamodb, skipping):
    aws.kinesis.register_consumer("orders", "orders-app")
    create_lease_table(dynamodb)
    lease(dynamodb)
    # The heartbeat comes after one failover time, and before the second one is over.
    skipping.in_pause = lambda: lease(dynamodb, 8) if 12 <= skipping.seconds < 14.1 else None
    arguments = ("deregister", "orders", "--application", "orders-app", "--failover", "10s", "--execute")
    done = pykcl(*arguments)
    assert done.exit_code == 5
    assert "The fleet has not stopped: 1 lease moved" in done.stderr
    assert "--wait-idle" not in done.stderr
    assert consumers(aws) == ["orders-app"]
    skipping.in_pause = lambda: None
    assert pykcl(*arguments).exit_code == 0
    assert consumers(aws) == []


def test_neither_stream_nor_consumer_is_guessed(pykcl):
    assert "No stream" in pykcl("list").stderr
    assert "No consumer" in pykcl("register", "orders").stderr
    assert pykcl("deregister", "orders").exit_code == 2
