"""IAM policies: the minimum that a worker needs over its whole life, and those of operators."""

from __future__ import annotations

import json
import re
from typing import Any

from pykcl.aws.table_admin import state_table_of
from pykcl.model.dead_letter import Address

_LABEL = re.compile(r"[^A-Za-z0-9_-]")

STREAM_ACTIONS = (
    "kinesis:DescribeStreamSummary",
    "kinesis:GetRecords",
    "kinesis:GetShardIterator",
    "kinesis:ListShards",
)
TABLE_ACTIONS = (
    "dynamodb:DeleteItem",
    "dynamodb:DescribeTable",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
)
CREATE_ACTIONS = ("dynamodb:CreateTable",)
"""Needed only if pykcl creates the lease table (`create_table`), by the first worker that starts."""
RECOVERY_ACTIONS = ("dynamodb:UpdateContinuousBackups",)
"""Needed to create the lease table with `point_in_time_recovery`."""
METRICS_ACTIONS = ("cloudwatch:PutMetricData",)
"""Needed only if `metrics` names cloudwatch. The action has no resources, but a condition on the namespace."""
STATE_ACTIONS = ("dynamodb:GetItem",)
"""On the state table of Java KCL 3.0-3.4, which most applications do not have. Optional: without it pykcl cannot
see whether such a fleet has left the mode of 2.x."""

OPERATOR_STREAM_ACTIONS = (*STREAM_ACTIONS, "kinesis:ListStreamConsumers")
OPERATOR_TABLE_ACTIONS = ("dynamodb:DescribeTable", "dynamodb:GetItem", "dynamodb:Scan")
LISTING_ACTIONS = ("dynamodb:ListTables", "kinesis:ListStreams")
"""For completion of names, `streams list`, and "did you mean"; the actions have no resources."""
STEERING_ACTIONS = ("dynamodb:DeleteItem", "dynamodb:PutItem", "dynamodb:UpdateItem")
"""For `checkpoints reset --execute`, `leases release` and `leases prune`."""
READ_METRICS_ACTIONS = ("cloudwatch:GetMetricData",)
"""For `lag --source cloudwatch`; the action has no resources."""
PUT_ACTIONS = ("kinesis:PutRecords",)
"""For `put`."""
SEND_ACTIONS = {
    "sqs": ("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
    "sns": ("sns:Publish",),
    "s3": ("s3:PutObject",),
    "kinesis": ("kinesis:PutRecords",),
}
"""Of a worker, by the kind of the destination of its dead letters. One that is encrypted with a customer managed key
also needs `kms:GenerateDataKey` and `kms:Decrypt` on that key."""
REDRIVE_ACTIONS = {
    "sqs": (
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
    ),
    "s3": ("s3:DeleteObject", "s3:GetObject", "s3:PutObject"),
}
"""For `dead-letters redrive`; `list` and `show` delete and put nothing."""
LIST_LETTERS_ACTIONS = ("s3:ListBucket",)
SIMULATE_ACTIONS = ("iam:GetRole", "iam:SimulatePrincipalPolicy")
"""For `doctor --simulate-iam`."""


def worker_policy(
    *,
    stream: str,
    table: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    create_table: bool = True,
    point_in_time_recovery: bool = False,
    application: str | None = None,
    coordinator_state_table: str | None = None,
    metrics_namespace: str | None = None,
    dead_letters: Address | None = None,
) -> dict[str, Any]:
    """Return the IAM policy of a worker as AWS' JSON document.

    stream, table: names. create_table: include the statement to create the lease table, and with
    point_in_time_recovery to enable its point-in-time recovery. application: its name, if the lease table has another
    one. coordinator_state_table: as in `Config`. metrics_namespace: of CloudWatch; None without metrics there.
    dead_letters: the destination of dead letters, if they go to AWS.
    A stream encrypted with a customer managed key also needs `kms:Decrypt` on that key.
    """
    tables = f"arn:{partition}:dynamodb:{region}:{account}:table/"
    lease_table = tables + table
    state_table = tables + (coordinator_state_table or state_table_of(application or table))
    statements = [
        _statement("Read", STREAM_ACTIONS, f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"),
        _statement("Leases", TABLE_ACTIONS, lease_table),
    ]
    if create_table:
        actions = CREATE_ACTIONS + (RECOVERY_ACTIONS if point_in_time_recovery else ())
        statements.append(_statement("CreateLeaseTable", actions, lease_table))
    statements.append(_statement("ReadJavaState", STATE_ACTIONS, state_table))
    if metrics_namespace is not None:
        metrics = _statement("PublishMetrics", METRICS_ACTIONS, "*")
        metrics["Condition"] = {"StringEquals": {"cloudwatch:namespace": metrics_namespace}}
        statements.append(metrics)
    if dead_letters is not None and dead_letters.kind in SEND_ACTIONS:
        resource = _letters_in(dead_letters, partition)
        statements.append(_statement("SendDeadLetters", SEND_ACTIONS[dead_letters.kind], resource))
    return {"Version": "2012-10-17", "Statement": statements}


def operator_policy(
    *,
    stream: str,
    table: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    application: str | None = None,
    coordinator_state_table: str | None = None,
    steer: bool = False,
    put: bool = False,
    simulate: bool = False,
    read_metrics: bool = False,
    dead_letters: Address | None = None,
) -> dict[str, Any]:
    """Return the IAM policy of an operator, which only reads by default; arguments as in `worker_policy`.

    steer: may move checkpoints, release and delete leases, too. put: may put records. simulate: may simulate policies
    with the doctor. read_metrics: may read the lag from CloudWatch. dead_letters: may list and redrive those of this
    queue or bucket.
    """
    tables = f"arn:{partition}:dynamodb:{region}:{account}:table/"
    streams = f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"
    state = tables + (coordinator_state_table or state_table_of(application or table))
    statements = [
        _statement("LookAtStream", OPERATOR_STREAM_ACTIONS, streams),
        _statement("LookAtLeases", OPERATOR_TABLE_ACTIONS, tables + table),
        _statement("ReadJavaState", STATE_ACTIONS, state),
        _statement("ListNames", LISTING_ACTIONS, "*"),
    ]
    if steer:
        statements.append(_statement("SteerLeases", STEERING_ACTIONS, tables + table))
    if put:
        statements.append(_statement("PutRecords", PUT_ACTIONS, streams))
    if read_metrics:
        statements.append(_statement("ReadMetrics", READ_METRICS_ACTIONS, "*"))
    if simulate:
        statements.append(_statement("SimulatePolicies", SIMULATE_ACTIONS, "*"))
    if dead_letters is not None and dead_letters.kind in REDRIVE_ACTIONS:
        resource = _letters_in(dead_letters, partition)
        statements.append(_statement("RedriveDeadLetters", REDRIVE_ACTIONS[dead_letters.kind], resource))
        if dead_letters.kind == "s3":
            bucket = f"arn:{partition}:s3:::{dead_letters.name}"
            statements.append(_statement("ListDeadLetters", LIST_LETTERS_ACTIONS, bucket))
    return {"Version": "2012-10-17", "Statement": statements}


def _letters_in(address: Address, partition: str) -> str:
    """Return the ARN of what a destination's actions are about."""
    return f"arn:{partition}:s3:::{address.name}/{address.prefix}*" if address.kind == "s3" else address.text


def terraform_of(policy: dict[str, Any], name: str) -> str:
    """Return the policy as a data source and a policy resource of Terraform's AWS provider. name: of both."""
    label = _LABEL.sub("_", name)
    label = label if label[:1].isalpha() else f"_{label}"
    lines = [f'data "aws_iam_policy_document" "{label}" {{']
    for statement in policy["Statement"]:
        lines += ["  statement {", f"    sid       = {_hcl(statement['Sid'])}", '    effect    = "Allow"']
        lines += [f"    actions   = [{', '.join(map(_hcl, statement['Action']))}]"]
        lines += [f"    resources = [{_hcl(statement['Resource'])}]"]
        for test, compared in statement.get("Condition", {}).items():
            for variable, value in compared.items():
                lines += ["    condition {", f"      test     = {_hcl(test)}"]
                lines += [f"      variable = {_hcl(variable)}", f"      values   = [{_hcl(value)}]", "    }"]
        lines += ["  }", ""]
    lines[-1] = "}"
    lines += ["", f'resource "aws_iam_policy" "{label}" {{', f"  name   = {_hcl(name)}"]
    lines += [f"  policy = data.aws_iam_policy_document.{label}.json", "}"]
    return "\n".join(lines)


def _hcl(text: str) -> str:
    """Return a string of HCL: JSON's, with template signs doubled."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")


def actions_of(policy: dict[str, Any]) -> set[str]:
    """Return every action that the policy allows, such as "kinesis:GetRecords"."""
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def _statement(name: str, actions: tuple[str, ...], resource: str) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resource}
