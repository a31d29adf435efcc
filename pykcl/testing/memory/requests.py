"""Parameters of a DynamoDB write: modern expressions, and the legacy parameters that Java KCL still sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.testing.memory.expressions import (
    Condition,
    Parser,
    Placeholders,
    Update,
    add_values,
    delete_values,
    parse_update,
)
from pykcl.testing.memory.values import (
    MAX_ITEM_BYTES,
    InvalidRequestError,
    Item,
    Value,
    check_value,
    copy_item,
    equal,
    item_bytes,
    order,
)

Params = Mapping[str, Any]
_LEGACY = ("Expected", "AttributeUpdates", "ConditionalOperator", "AttributesToGet", "ScanFilter")
_EXPRESSIONS = ("ConditionExpression", "UpdateExpression", "FilterExpression", "ProjectionExpression")
_MAX_KEY_BYTES = 2048
_RETURNED = {"PutItem": ("NONE", "ALL_OLD"), "DeleteItem": ("NONE", "ALL_OLD")}


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A write, parsed: when it may happen, what it makes of the row, and which attributes it touches."""

    condition: Condition
    apply: Callable[[Item | None], Item | None]
    touched: frozenset[str]


def key_of(given: Mapping[str, Value], key_name: str, *, whole_item: bool = False) -> str:
    """The key in `given`. Raises InvalidRequestError."""
    if key_name not in given and whole_item:
        raise InvalidRequestError(
            f"One or more parameter values were invalid: Missing the key {key_name} in the item"
        )
    if key_name not in given or (not whole_item and len(given) != 1):
        raise InvalidRequestError("The provided key element does not match the schema")
    text = given[key_name].get("S")
    if text is None:
        raise InvalidRequestError(
            f"One or more parameter values were invalid: Type mismatch for key {key_name} expected: S"
        )
    if not text or len(text.encode()) > _MAX_KEY_BYTES:
        raise InvalidRequestError(
            "One or more parameter values are not valid. The AttributeValue for a key attribute cannot "
            f"contain an empty string value, nor one of more than {_MAX_KEY_BYTES} bytes. Key: {key_name}"
        )
    return str(text)


def row_filter(params: Params) -> Condition:
    """The FilterExpression of a scan."""
    _refuse_mixture(params)
    placeholders = Placeholders.of(params)
    wanted = _condition("FilterExpression", params, placeholders)
    placeholders.refuse_unused()
    return wanted


def segment_of(params: Params) -> tuple[int, int]:
    """Return the segment that a scan wants, and the number of segments. Raises InvalidRequestError."""
    segment, segments = params.get("Segment"), params.get("TotalSegments")
    if segment is None and segments is None:
        return 0, 1
    if segment is None or segments is None:
        missing, given = ("Segment", "TotalSegments") if segment is None else ("TotalSegments", "Segment")
        raise InvalidRequestError(
            f"The {missing} parameter is required but was not present in the request when parameter {given} is present"
        )
    if segment >= segments:
        raise InvalidRequestError(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {segment} is not less than TotalSegments: {segments}"
        )
    return segment, segments


def parse_write(operation: str, params: Params, key_name: str) -> WriteRequest:
    """A PutItem, UpdateItem or DeleteItem. Raises InvalidRequestError."""
    _refuse_mixture(params)
    wanted = params.get("ReturnValues", "NONE")
    if wanted not in _RETURNED.get(operation, (wanted,)):
        raise InvalidRequestError("Return values set to invalid value")
    placeholders = Placeholders.of(params)
    condition = _condition("ConditionExpression", params, placeholders)
    if params.get("Expected"):
        condition = _legacy_condition(params)
    if operation == "PutItem":
        new = {name: check_value(value) for name, value in params["Item"].items()}
        request = WriteRequest(condition, lambda row: copy_item(new), frozenset(new))
    elif operation == "DeleteItem":
        request = WriteRequest(condition, lambda row: None, frozenset())
    else:
        request = _update_request(condition, params, placeholders, key_name)
    placeholders.refuse_unused()
    return request


def _update_request(
    condition: Condition, params: Params, placeholders: Placeholders, key_name: str
) -> WriteRequest:
    if "UpdateExpression" in params:
        update = parse_update(params["UpdateExpression"], placeholders)
    else:
        update = _legacy_update(params.get("AttributeUpdates", {}))
    if key_name in update.touched:
        raise InvalidRequestError(
            f"One or more parameter values were invalid: Cannot update attribute {key_name}. "
            "This attribute is part of the key"
        )
    key = {name: check_value(value) for name, value in params["Key"].items()}
    return WriteRequest(condition, lambda row: update.apply(row if row is not None else key), update.touched)


def _refuse_mixture(params: Params) -> None:
    legacy = [name for name in _LEGACY if name in params]
    modern = [name for name in _EXPRESSIONS if name in params]
    if legacy and modern:
        raise InvalidRequestError(
            "Can not use both expression and non-expression parameters in the same request: "
            f"Non-expression parameters: {{{', '.join(legacy)}}} "
            f"Expression parameters: {{{', '.join(modern)}}}"
        )
    for name in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
        if name in params and not modern:
            raise InvalidRequestError(f"{name} can only be specified when using expressions")
        if name in params and not params[name]:
            raise InvalidRequestError(f"{name} must not be empty")


def _condition(kind: str, params: Params, placeholders: Placeholders) -> Condition:
    if kind not in params:
        return lambda item: True
    return Parser(kind, params[kind], placeholders).condition()


def _legacy_condition(params: Params) -> Condition:
    tests = [_legacy_test(name, expected) for name, expected in params["Expected"].items()]
    combine = any if params.get("ConditionalOperator") == "OR" else all
    return lambda item: combine(test(item) for test in tests)


def _legacy_test(name: str, expected: Mapping[str, Any]) -> Condition:
    operator = expected.get("ComparisonOperator")
    if expected.get("Exists") is False or operator == "NULL":
        if "Value" in expected:
            raise InvalidRequestError("Value cannot be used when Exists is false for Attribute: " + name)
        return lambda item: name not in item
    if operator == "NOT_NULL":
        return lambda item: name in item
    values = [expected["Value"]] if "Value" in expected else expected.get("AttributeValueList", [])
    if len(values) != 1:
        raise InvalidRequestError(f"One or more parameter values were invalid: no value to expect of {name}")
    value = check_value(values[0])
    ways = {"EQ": (0,), "LT": (-1,), "LE": (-1, 0), "GT": (1,), "GE": (1, 0)}
    if operator in (None, "EQ"):
        return lambda item: name in item and equal(item[name], value)
    if operator == "NE":
        return lambda item: not (name in item and equal(item[name], value))
    if operator not in ways:
        raise InvalidRequestError(f"Unsupported operator on the legacy condition: {operator}")
    return lambda item: name in item and order(item[name], value) in ways[operator]


def _legacy_update(updates: Mapping[str, Mapping[str, Any]]) -> Update:
    actions = []
    for name, update in updates.items():
        action = update.get("Action", "PUT")
        value = check_value(update["Value"]) if "Value" in update else None
        actions.append(((name,), _legacy_operand(name, action, value)))
    return Update(tuple(actions))


def _legacy_operand(name: str, action: str, value: Value | None) -> Callable[[Item], Value | None]:
    if value is None:
        if action != "DELETE":
            raise InvalidRequestError(
                f"One or more parameter values were invalid: Only DELETE action is allowed when no "
                f"attribute value is specified; {name}"
            )
        return lambda item: None
    if action == "PUT":
        return lambda item: value
    combine = add_values if action == "ADD" else delete_values
    return lambda item: combine(item.get(name), value)


def check_row(row: Item, index_types: Mapping[str, tuple[str, str]]) -> None:
    """Refuse to store as DynamoDB does: rows over 400 KB, and index keys of the wrong type or empty."""
    if item_bytes(row) > MAX_ITEM_BYTES:
        raise InvalidRequestError("Item size to update has exceeded the maximum allowed size")
    for name, (kind, index) in index_types.items():
        if name in row and kind not in row[name]:
            raise InvalidRequestError(
                f"One or more parameter values were invalid: Type mismatch for Index Key {name} "
                f"Expected: {kind} Actual: {next(iter(row[name]))} IndexName: {index}"
            )
        if row.get(name) == {"S": ""}:
            raise InvalidRequestError(
                "One or more parameter values are not valid. A value specified for a secondary index key is "
                "not supported. The AttributeValue for a key attribute cannot contain an empty string value. "
                f"IndexName: {index}, IndexKey: {name}"
            )


def returned(kind: str, before: Item | None, after: Item | None, touched: frozenset[str]) -> Item | None:
    """The Attributes of the answer, by ReturnValues."""
    row = before if kind.endswith("OLD") else after
    if kind == "NONE" or row is None:
        return None
    if kind.startswith("UPDATED"):
        row = {name: value for name, value in row.items() if name in touched}
    return copy_item(row)
