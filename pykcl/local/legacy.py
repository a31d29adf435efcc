"""DynamoDB's old `Expected` conditions, which Java KCL sends, put into words that moto understands.

moto looks at `Exists: true` and then forgets the `Value` beside it, and ignores `Expected` of DeleteItem.
"""

from __future__ import annotations

import json
from typing import Any


def understandable(operation: str, body: bytes) -> bytes:
    """The same request for moto; untouched when it has no `Expected`."""
    if b'"Expected"' not in body:
        return body
    params = json.loads(body)
    expected = params.get("Expected")
    if not isinstance(expected, dict):
        return body
    for condition in expected.values():
        if "Value" in condition:
            condition.pop("Exists", None)
    if operation == "DeleteItem" and all(_is_simple(condition) for condition in expected.values()):
        params.update(_as_expression(params.pop("Expected")))
    return json.dumps(params).encode()


def _is_simple(condition: dict[str, Any]) -> bool:
    return "Value" in condition or condition.get("Exists") is False


def _as_expression(expected: dict[str, dict[str, Any]]) -> dict[str, Any]:
    clauses, names, values = [], {}, {}
    for number, (name, condition) in enumerate(expected.items()):
        names[f"#e{number}"] = name
        if "Value" in condition:
            values[f":e{number}"] = condition["Value"]
            clauses.append(f"#e{number} = :e{number}")
        else:
            clauses.append(f"attribute_not_exists(#e{number})")
    written: dict[str, Any] = {
        "ConditionExpression": " AND ".join(clauses),
        "ExpressionAttributeNames": names,
    }
    if values:
        written["ExpressionAttributeValues"] = values
    return written
