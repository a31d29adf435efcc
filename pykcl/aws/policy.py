"""What a worker may do at AWS, as data: the least that its whole life needs."""

from __future__ import annotations

from typing import Any

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


def worker_policy(
    *,
    stream: str,
    table: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    create_table: bool = True,
) -> dict[str, Any]:
    """The IAM policy of a worker, as the JSON document AWS takes.

    stream, table: names. create_table: with the statement that lets it make the lease table. A stream encrypted
    with a customer managed key needs `kms:Decrypt` on that key besides.
    """
    lease_table = f"arn:{partition}:dynamodb:{region}:{account}:table/{table}"
    statements = [
        _statement("Read", STREAM_ACTIONS, f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"),
        _statement("Leases", TABLE_ACTIONS, lease_table),
    ]
    if create_table:
        statements.append(_statement("CreateLeaseTable", CREATE_ACTIONS, lease_table))
    return {"Version": "2012-10-17", "Statement": statements}


def actions_of(policy: dict[str, Any]) -> set[str]:
    """Every action the policy allows, such as "kinesis:GetRecords"."""
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def _statement(name: str, actions: tuple[str, ...], resource: str) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resource}
