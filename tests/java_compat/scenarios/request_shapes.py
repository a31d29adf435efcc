"""The form of a DynamoDB request: everything but what differs from row to row."""

from __future__ import annotations

import json
from typing import Any

_KINDS = ("S", "N", "B", "SS")
_TOLD_APART = ("entityType",)
"""Attributes whose very value belongs to the form."""


def shape(operation: str, params: Any) -> str:
    """Attribute names, types, actions, conditions and return values, as text."""
    return f"{operation} {json.dumps(_form(params, ''), sort_keys=True)}"


def _form(value: Any, name: str) -> Any:
    if name in ("TableName", "ExclusiveStartKey"):
        return "*"
    if isinstance(value, dict):
        if len(value) == 1 and (kind := next(iter(value))) in _KINDS:
            return value if name in _TOLD_APART else {kind: "*"}
        # The value of a condition or an update stands one level deeper than its attribute.
        return {inner: _form(each, name if inner == "Value" else inner) for inner, each in value.items()}
    if isinstance(value, list | tuple):
        return [_form(each, "") if isinstance(each, dict) else each for each in value]
    return value
