"""Asking AWS who one is and what one may do: every answer it may give is a fact, and none is an exception."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.stub import Stubber
from doctor_world import World

from pykcl.aws.credentials import ClientSpec
from pykcl.errors import TemporaryError
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.iam import (
    Prober,
    identity_of,
    operator_policy,
    simulate,
    trouble_from,
    worker_policy,
)
from pykcl.runtime import SystemRuntime

POLICY = {"Statement": [{"Action": ["kinesis:GetRecords"], "Resource": "arn:aws:kinesis:x:1:stream/s"}]}
SESSION = "arn:aws:sts::123456789012:assumed-role/worker/i-1"


def refusal(code, status=400):
    return ClientError(
        {"Error": {"Code": code, "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Any"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refusal("AccessDeniedException"), "denied"),
        (refusal("KMSAccessDeniedException"), "key"),
        (refusal("KMSDisabledException"), "key"),
        (refusal("KMSThrottlingException"), "throttled"),
        (refusal("ExpiredTokenException"), "credentials"),
        (refusal("InvalidSignatureException"), "credentials"),
        (refusal("ResourceNotFoundException"), "missing"),
        (refusal("ProvisionedThroughputExceededException"), "throttled"),
        (refusal("ValidationException"), "refused"),
        (refusal("InternalFailure", 500), "unreachable"),
        (refusal("SomethingNew", 500), "unreachable"),
        (EndpointConnectionError(endpoint_url="https://x"), "unreachable"),
        (TemporaryError("later"), "unreachable"),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole"), "credentials"),
    ],
)  # fmt: skip
def test_every_kind_of_trouble_is_told_apart(error, kind):
    assert trouble_from(error, "kinesis:ListShards").kind == kind


def test_a_permission_lacks_whoever_asks_and_no_worker():
    told = trouble_from(refusal("AccessDeniedException"), "kinesis:ListShards").text
    assert told.endswith("Grant it in the IAM policy of whoever runs this.")


def test_a_throttled_call_is_made_once_more_and_only_then_told():
    class Impatient(SystemRuntime):
        def event(self):
            return self

        def wait(self, timeout=None):
            return False

    answers = iter(
        [
            refusal("ThrottlingException"),
            {"a": 1},
            refusal("ThrottlingException"),
            refusal("ThrottlingException"),
        ]
    )

    def call():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    prober = Prober(Impatient())
    assert prober.ask("a:A", call) == {"a": 1}
    assert prober.ask("a:B", call) is None
    assert [probe.trouble and probe.trouble.kind for probe in prober.probes] == [None, "throttled"]


@pytest.fixture
def iam():
    client = boto3.Session("local", "local").client("iam", region_name="us-east-1")
    with Stubber(client) as stub:
        yield client, stub
    client.close()


def allowed(**more):
    return {
        "EvaluationResults": [{"EvalActionName": "kinesis:GetRecords", "EvalDecision": "allowed"}],
        **more,
    }


def test_a_session_is_simulated_as_its_role_with_the_path_that_only_iam_knows(iam):
    client, stub = iam
    arn = "arn:aws:iam::123456789012:role/service/worker"
    role = {
        "Path": "/service/",
        "RoleName": "worker",
        "RoleId": "AROAEXAMPLEEXAMPLE",
        "Arn": arn,
        "CreateDate": "2026-01-01T00:00:00Z",
    }
    stub.add_response("get_role", {"Role": role}, {"RoleName": "worker"})
    asked = {"PolicySourceArn": arn, "ActionNames": ["kinesis:GetRecords"], "ResourceArns": ["arn:aws:kinesis:x:1:stream/s"],
             "ContextEntries": []}  # fmt: skip
    stub.add_response("simulate_principal_policy", allowed(IsTruncated=True, Marker="m"), asked)
    denied = {"EvaluationResults": [{"EvalActionName": "kinesis:GetRecords", "EvalDecision": "explicitDeny"}]}
    stub.add_response("simulate_principal_policy", denied, {**asked, "Marker": "m"})
    assert simulate(client, SESSION, POLICY).denied == (
        ("kinesis:GetRecords", "arn:aws:kinesis:x:1:stream/s"),
    )


def test_where_the_role_may_not_be_looked_up_its_path_is_taken_for_none(iam):
    client, stub = iam
    stub.add_client_error("get_role", "AccessDenied")
    stub.add_response("simulate_principal_policy", allowed())
    found = simulate(client, SESSION, POLICY)
    assert (found.denied, found.asked, found.why_not) == ((), 1, "")


@pytest.mark.parametrize(
    "arn", ["arn:aws:iam::123456789012:root", "arn:aws:sts::123456789012:federated-user/x", "?"]
)
def test_who_is_no_user_and_no_role_is_not_simulated(iam, arn):
    assert "neither a user nor a role" in simulate(iam[0], arn, POLICY).why_not


def test_iam_refusing_to_simulate_is_told(iam):
    client, stub = iam
    stub.add_client_error("simulate_principal_policy", "AccessDenied")
    assert (
        "not permitted"
        in simulate(client, "arn:aws:iam::123456789012:user/x", worker_policy(stream="s", table="t")).why_not
    )


def test_sts_of_aws_is_not_asked_about_the_credentials_of_a_local_kinesis(monkeypatch):
    with World(monkeypatch) as world:
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        clients = OperatorClients(specs={"kinesis": ClientSpec(endpoint=world.aws.url)})
        found = identity_of(clients, "kinesis")
        assert found.arn is None
        assert "STS has not" in found.why_not
        assert not world.aws.requests.of("sts")


def resources_of(policy):
    return {one["Sid"]: one["Resource"].rpartition(":")[2] for one in policy["Statement"]}


@pytest.mark.parametrize(
    ("given", "table"),
    [
        ({}, "table/leases-WorkerMetricStats"),
        ({"application": "orders-app"}, "table/orders-app-WorkerMetricStats"),
        ({"application": "orders-app", "worker_metrics_table": "reports"}, "table/reports"),
    ],
)
def test_the_metrics_of_kcl_3_4_are_in_a_table_named_after_the_application_unless_it_is_given(given, table):
    worker = resources_of(worker_policy(stream="orders", table="leases", follow_leader=True, **given))
    assert worker["ReportToLeader"] == table
    assert worker["FollowLeader"] == "table/leases/index/LeaseOwnerToLeaseKeyIndex"
    operator = resources_of(operator_policy(stream="orders", table="leases", **given))
    assert operator["ReadJavaMetrics"] == table


def test_a_leader_of_kcl_3x_writes_nothing_but_rows_of_the_lease_table():
    policy = worker_policy(stream="orders", table="leases", follow_leader=True)
    (leases,) = [
        one
        for one in policy["Statement"]
        if one["Resource"].endswith("table/leases") and "dynamodb:Scan" in one["Action"]
    ]
    assert {f"dynamodb:{name}Item" for name in ("Get", "Put", "Update", "Delete")} <= set(leases["Action"])


def test_enhanced_fan_out_needs_its_consumer_and_nothing_of_others():
    given = {"stream": "orders", "table": "leases", "consumer": "app"}
    statements = worker_policy(**given)["Statement"]
    granted = {
        (action.removeprefix("kinesis:"), one["Resource"].rpartition("stream/")[2])
        for one in statements
        for action in one["Action"]
        if "Consumer" in action or "Subscribe" in action
    }
    assert granted == {
        ("DescribeStreamConsumer", "orders"),
        ("DescribeStreamConsumer", "orders/consumer/app:*"),
        ("RegisterStreamConsumer", "orders"),
        ("RegisterStreamConsumer", "orders/consumer/app:*"),
        ("SubscribeToShard", "orders/consumer/app:*"),
    }
    assert "SubscribeToShard" not in str(worker_policy(stream="orders", table="leases"))
    assert "kinesis:DeregisterStreamConsumer" in str(operator_policy(**given))
    assert "SubscribeToShard" not in str(operator_policy(**given))
