"""Asking IAM what an identity may do, without doing it: SimulatePrincipalPolicy.

It knows the policies of the user or role, permission boundaries and service control policies; not those of resources,
nor conditions on what it is not told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.aws.errors import MALFORMED, aws_errors, error_code, sort_failure
from pykcl.aws.preflight import unreadable_xml

_ROLE = re.compile(
    r"arn:(?P<partition>[a-z0-9-]+):sts::(?P<account>[0-9]{12}):assumed-role/(?P<role>[^/]+)/.*\Z"
)
_USER = re.compile(r"arn:[a-z0-9-]+:iam::[0-9]{12}:(?:user|role)/.+\Z")


@dataclass(frozen=True, slots=True)
class Simulation:
    """denied: (action, resource) that IAM would not permit. asked: how many actions. why_not: it could not be asked."""

    denied: tuple[tuple[str, str], ...] = ()
    asked: int = 0
    why_not: str = ""


def simulate(iam: Any, arn: str, policy: Mapping[str, Any]) -> Simulation:
    """Whether the identity `arn` (as GetCallerIdentity tells it) may do what the policy allows.

    iam: a boto3 client. Needs iam:SimulatePrincipalPolicy, and for a role iam:GetRole.
    """
    try:
        principal = _principal(iam, arn)
        if principal is None:
            return Simulation(why_not=f"{arn} is neither a user nor a role, and IAM simulates only these")
        denied: list[tuple[str, str]] = []
        asked = 0
        for statement in policy["Statement"]:
            asked += len(statement["Action"])
            denied += _denied(iam, principal, statement)
    except aws_errors() as error:
        return Simulation(why_not=str(sort_failure(error, doing="iam:SimulatePrincipalPolicy")))
    except (*MALFORMED, unreadable_xml()) as error:
        return Simulation(why_not=f"IAM's answer cannot be read ({type(error).__name__})")
    return Simulation(tuple(denied), asked)


def _principal(iam: Any, arn: str) -> str | None:
    found = _ROLE.match(arn)
    if found is None:
        return arn if _USER.match(arn) else None
    try:
        # A session's ARN lacks the path of its role.
        return str(iam.get_role(RoleName=found["role"])["Role"]["Arn"])
    except aws_errors() as error:
        if error_code(error) not in ("AccessDenied", "AccessDeniedException"):
            raise
        return f"arn:{found['partition']}:iam::{found['account']}:role/{found['role']}"


def _denied(iam: Any, principal: str, statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    resource = str(statement["Resource"])
    request: dict[str, Any] = {
        "PolicySourceArn": principal,
        "ActionNames": list(statement["Action"]),
        "ResourceArns": [resource],
        "ContextEntries": _context(statement.get("Condition")),
    }
    denied = []
    while True:
        answer = iam.simulate_principal_policy(**request)
        denied += [
            (str(one["EvalActionName"]), resource)
            for one in answer["EvaluationResults"]
            if one["EvalDecision"] != "allowed"
        ]
        if not answer.get("IsTruncated"):
            return denied
        request["Marker"] = answer["Marker"]


def _context(condition: Mapping[str, Mapping[str, str]] | None) -> list[dict[str, Any]]:
    """What the policy's own conditions compare, as IAM is told it."""
    return [
        {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for comparison in (condition or {}).values()
        for key, value in comparison.items()
    ]
