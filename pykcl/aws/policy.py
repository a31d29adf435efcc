"""What a worker may do at AWS, as data: the least that its whole life needs."""

from __future__ import annotations

from typing import Any

from pykcl.aws.state_table import state_table_of

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
"""Needed only where pykcl makes the lease table (`create_table`), by the first worker that starts."""
STATE_ACTIONS = ("dynamodb:GetItem",)
"""On the state table of Java KCL 3.0-3.4, which most applications do not have. Optional: without it pykcl cannot tell
whether such a fleet has left the mode of 2.x."""


def worker_policy(
    *,
    stream: str,
    table: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    create_table: bool = True,
    application: str | None = None,
) -> dict[str, Any]:
    """The IAM policy of a worker, as the JSON document AWS takes.

    stream, table: names. create_table: with the statement that lets it make the lease table. application: its name, if
    the lease table is not called like it. A stream encrypted with a customer managed key needs `kms:Decrypt` on that
    key besides.
    """
    tables = f"arn:{partition}:dynamodb:{region}:{account}:table/"
    lease_table, state_table = tables + table, tables + state_table_of(application or table)
    statements = [
        _statement("Read", STREAM_ACTIONS, f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"),
        _statement("Leases", TABLE_ACTIONS, lease_table),
    ]
    if create_table:
        statements.append(_statement("CreateLeaseTable", CREATE_ACTIONS, lease_table))
    statements.append(_statement("ReadJavaState", STATE_ACTIONS, state_table))
    return {"Version": "2012-10-17", "Statement": statements}


def actions_of(policy: dict[str, Any]) -> set[str]:
    """Every action the policy allows, such as "kinesis:GetRecords"."""
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def _statement(name: str, actions: tuple[str, ...], resource: str) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resource}
