"""DynamoDB's old parameters `Expected` and `AttributeUpdates`, which Java KCL sends, put into expressions for moto.

moto knows the old ones in part: it looks at `Exists: true` and forgets the `Value` beside it, ignores `Expected` of
DeleteItem, stores binary values as their Python text, and shows no row after a failed condition, which a Java 3.x
renewal needs to notice a hand-off. Its expressions are right.
"""

from __future__ import annotations

import json
from typing import Any

_COMPARISONS = {"EQ": "=", "NE": "<>", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_OLD = (b'"Expected"', b'"AttributeUpdates"')
_CLAUSES = {"PUT": "SET", "ADD": "ADD", "DELETE": "DELETE"}


class _UnknownError(Exception):
    """Something moto shall judge by itself."""


class _Words:
    """The placeholders of one request."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def name(self, name: str) -> str:
        placeholder = f"#n{len(self.names)}"
        self.names[placeholder] = name
        return placeholder

    def value(self, value: Any) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = value
        return placeholder


def understandable(body: bytes) -> bytes:
    """The same request for moto; untouched when it has no old parameters, or what is not understood here."""
    if not any(name in body for name in _OLD):
        return body
    params = json.loads(body)
    # Old and new ones together are invalid; that is not for us to say.
    if not isinstance(params, dict) or any("Expression" in name for name in params):
        return body
    try:
        return json.dumps(_translated(params)).encode()
    except (_UnknownError, AttributeError, KeyError, TypeError):
        return body


def _translated(params: dict[str, Any]) -> dict[str, Any]:
    words = _Words()
    translated = dict(params)
    expected, updates = translated.pop("Expected", {}), translated.pop("AttributeUpdates", {})
    joined = f" {translated.pop('ConditionalOperator', 'AND')} "
    if expected:
        tests = [_condition(words, name, condition) for name, condition in expected.items()]
        translated["ConditionExpression"] = joined.join(tests)
    if updates:
        translated["UpdateExpression"] = _update(words, updates)
    if words.names:
        translated["ExpressionAttributeNames"] = words.names
    if words.values:
        translated["ExpressionAttributeValues"] = words.values
    return translated


def _condition(words: _Words, name: str, condition: dict[str, Any]) -> str:
    operator = condition.get("ComparisonOperator", "EQ")
    if condition.get("Exists") is False or operator == "NULL":
        return f"attribute_not_exists({words.name(name)})"
    if operator == "NOT_NULL":
        return f"attribute_exists({words.name(name)})"
    values = [condition["Value"]] if "Value" in condition else condition["AttributeValueList"]
    if operator not in _COMPARISONS or len(values) != 1:
        raise _UnknownError
    return f"{words.name(name)} {_COMPARISONS[operator]} {words.value(values[0])}"


def _update(words: _Words, updates: dict[str, dict[str, Any]]) -> str:
    clauses: dict[str, list[str]] = {}
    for name, update in updates.items():
        action = update.get("Action", "PUT")
        if "Value" not in update:
            if action != "DELETE":
                raise _UnknownError
            clauses.setdefault("REMOVE", []).append(words.name(name))
        else:
            between = " = " if action == "PUT" else " "
            assignment = f"{words.name(name)}{between}{words.value(update['Value'])}"
            clauses.setdefault(_CLAUSES[action], []).append(assignment)
    return " ".join(f"{clause} {', '.join(parts)}" for clause, parts in clauses.items())
