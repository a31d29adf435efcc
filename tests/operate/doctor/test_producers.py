"""The doctor about a program that puts records: what it finds, what it asks, and what it does not try."""

from __future__ import annotations

import boto3
import pytest
from doctor_world import STREAM, check_command

from pykcl import Producer
from pykcl.errors import ConfigError
from pykcl.local.faults import FaultRule
from pykcl.operate.aws.iam import actions_of, producer_policy
from pykcl.operate.doctor.checks import diagnose
from pykcl.operate.doctor.findings import CATALOGUE

HEALTHY = {
    "process-ok", "credentials-ok", "region-ok", "clock-ok", "hosts-asked", "stream-ok", "puts-ok", "permissions-ok",
}  # fmt: skip


@pytest.fixture
def world(world, monkeypatch):
    """A stream that a program puts into, in an account that has no lease table."""
    if "DryRun" not in boto3.client("kinesis").meta.service_model.shape_for("PutRecordsInput").members:
        pytest.skip("this botocore has no dry runs of Kinesis: they came in September 2026")
    monkeypatch.setattr("pykcl.operate.doctor.puts._is_kinesis_of_aws", lambda _: True)
    world.drop_table()
    world.asked = {"stream": STREAM, "application": None, "table": None, "program": "producer"}
    return world


def called(world):
    before = len(list(world.aws.requests))
    world.findings()
    return {f"{one.service}:{one.operation}" for one in list(world.aws.requests)[before:]}


def test_a_stream_that_can_be_put_into_has_nothing_to_complain_about(world):
    found = world.findings()
    assert found.keys() == HEALTHY
    assert found["puts-ok"].text == (
        "2 open shards for 2 MiB and 2,000 Kinesis records a second. A record has at most 1 MiB with its partition key"
    )
    permitted = found["permissions-ok"].text
    assert all(action in permitted for action in actions_of(producer_policy(stream=STREAM)))
    assert world.records() == []


def test_it_asks_for_what_a_producer_may_call_and_for_what_was_throttled(world):
    assert called(world) == {
        "sts:GetCallerIdentity", "cloudwatch:GetMetricData", *actions_of(producer_policy(stream=STREAM)),
    }  # fmt: skip


def test_a_put_that_is_denied_is_found_with_the_policy_of_a_producer(world):
    world.refuse("AccessDeniedException", "PutRecords")
    found = world.findings()["permission-denied"]
    assert "kinesis:PutRecords" in found.text
    assert found.fix == f"pykcl iam --for producer --stream {STREAM}"
    check_command(found.fix)


@pytest.mark.parametrize("reason", ["not AWS", "throttled"])
def test_a_put_that_was_not_tried_is_not_proven(world, reason, monkeypatch):
    if reason == "throttled":
        world.aws.faults.replace([FaultRule("throttle", "kinesis", "PutRecords")])
    else:
        monkeypatch.setattr("pykcl.operate.doctor.puts._is_kinesis_of_aws", lambda _: False)
    found = world.findings()
    assert "are not proven: kinesis:PutRecords." in found["permissions-unproven"].text
    assert (
        found["permissions-unproven"].fix == f"pykcl doctor --for producer --stream {STREAM} --simulate-iam"
    )
    check_command(found["permissions-unproven"].fix)
    assert world.records() == []


def test_iam_is_asked_for_the_policy_of_a_producer(world, iam):
    world.monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", iam.url)
    world.asked["simulate_iam"] = True
    found = world.findings()["permissions-simulated"]
    assert found.text == "IAM permits all 3 actions that a producer needs"
    iam.denied = frozenset({"kinesis:PutRecords"})
    found = world.findings()["permission-would-be-denied"]
    assert f"kinesis:PutRecords on stream/{STREAM}" in found.text
    assert found.fix == f"pykcl iam --for producer --stream {STREAM}"


def test_what_a_producer_does_on_a_stream_that_ignores_keys_is_said_and_so(world):
    world.aws.kinesis.delete_stream(STREAM)
    world.aws.kinesis.create_stream(STREAM, 2, mode="ON_DEMAND", distribution="AUTO")
    found = world.findings()
    assert "with ordered=True it does not start" in found["keys-ignored"].text
    assert "Kinesis adds shards as more is put" in found["puts-ok"].text
    with pytest.raises(Exception, match="ordered=False"):
        Producer(STREAM, ordered=True).start()


def test_large_records_are_said(world):
    arn = world.aws.kinesis.describe(STREAM).arn
    boto3.client("kinesis").update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10240)
    assert "A record has at most 10 MiB" in world.findings()["puts-ok"].text


def test_records_that_kinesis_has_refused_of_late_are_counted(world):
    world.throttle_puts(1200, minutes_ago=5)
    world.throttle_puts(34, minutes_ago=2)
    world.throttle_puts(9999, minutes_ago=40)
    found = world.findings()["puts-throttled"]
    assert found.text.startswith("Kinesis has refused 1,234 records within 15 minutes")
    assert found.fix.startswith(
        f"aws kinesis update-shard-count --stream-name {STREAM} --target-shard-count 4 "
    )
    check_command(found.fix)


def test_the_shards_of_an_on_demand_stream_are_not_to_be_set(world):
    world.aws.kinesis.delete_stream(STREAM)
    world.aws.kinesis.create_stream(STREAM, 2, mode="ON_DEMAND")
    world.throttle_puts(1, minutes_ago=1)
    assert world.findings()["puts-throttled"].fix == f"pykcl streams describe {STREAM} --tree"


def test_whoever_may_not_ask_cloudwatch_hears_nothing_of_it(world):
    world.refuse("AccessDeniedException", "GetMetricData")
    assert world.facts().throttled_puts is None
    assert world.findings().keys() == HEALTHY


@pytest.mark.parametrize(
    ("key", "is_own"),
    [("alias/aws/kinesis", False), ("arn:aws:kms:us-east-1:000000000000:key/1", True), (None, True)],
)
def test_a_key_of_ones_own_is_said_as_no_dry_run_tries_it(world, key, is_own):
    world.encrypt(key)
    found = world.findings()
    assert ("key-untried" in found) is is_own
    if is_own:
        assert "kms:GenerateDataKey" in found["key-untried"].text
        check_command(found["key-untried"].fix)


def test_a_compression_that_lacks_its_package_is_found_as_a_producer_would(world, monkeypatch):
    monkeypatch.setattr("pykcl.producer.encode.import_module", _nothing)
    assert "package-missing" not in world.findings()
    world.asked["compression"] = "gzip"
    assert "package-missing" not in world.findings()
    world.asked["compression"] = "zstd"
    found = world.findings()["package-missing"]
    assert found.text.startswith(
        "compression='zstd' needs the package 'zstandard', which is not installed: a producer"
    )
    assert found.fix == "pip install 'pykcl[zstd]'"
    with pytest.raises(ConfigError, match="zstd"):
        Producer(STREAM, compression="zstd")


def _nothing(name):
    raise ImportError(name)


def test_calls_that_are_throttled_blame_no_reader(world):
    world.aws.faults.replace([FaultRule("throttle", "kinesis", "ListShards")])
    found = world.findings()["aws-throttles"]
    assert "All of the account share the calls" in found.text
    assert found.fix == f"pykcl doctor --for producer --stream {STREAM}   (again, later)"


def test_a_stream_that_is_missing_is_not_put_into(world):
    world.asked["stream"] = "ordes"
    assert "stream-missing" in world.findings()
    assert not {"kinesis:PutRecords", "cloudwatch:GetMetricData"} & called(world)


def test_every_finding_of_a_producer_is_in_the_catalogue(world):
    assert {one.id for one in diagnose(world.facts())} <= CATALOGUE.keys()
