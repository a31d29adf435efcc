"""Requests to one table of DynamoDB, evaluated: condition, update and answer.

Requests come with modern expressions, or with the legacy parameters that Java KCL still sends. Nothing here waits or
locks: a `Table` has rows that somebody else keeps, in memory or in a file.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.stores.expressions import (
    MAX_ITEM_BYTES,
    Condition,
    InvalidRequestError,
    Item,
    Parser,
    Placeholders,
    Update,
    Value,
    add_values,
    aws_error,
    check_value,
    copy_item,
    delete_values,
    equal,
    item_bytes,
    order,
    parse_update,
)

Params = Mapping[str, Any]
_LEGACY = ("Expected", "AttributeUpdates", "ConditionalOperator", "AttributesToGet", "ScanFilter")
_EXPRESSIONS = (
    "KeyConditionExpression",
    "ConditionExpression",
    "UpdateExpression",
    "FilterExpression",
    "ProjectionExpression",
)
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


PAGE_BYTES = 1024 * 1024
_READ_UNIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Written:
    """One applied write: the row before and after it; None: no row."""

    key: str
    before: Item | None
    after: Item | None


class Table:
    """One table: its rows by key, and what CreateTable said about it."""

    def __init__(self, params: Params, describes_until_active: int, table_id: str = "") -> None:
        self.name: str = params["TableName"]
        self.table_id = table_id
        self.schema: list[Mapping[str, str]] = list(params["KeySchema"])
        self.attributes: list[Mapping[str, str]] = list(params["AttributeDefinitions"])
        self.indexes: list[Mapping[str, Any]] = list(params.get("GlobalSecondaryIndexes", []))
        self.billing: str = params.get("BillingMode", "PROVISIONED")
        self.describes_until_active = describes_until_active
        self.status = "CREATING" if describes_until_active else "ACTIVE"
        self.key_name = next(part["AttributeName"] for part in self.schema if part["KeyType"] == "HASH")
        self.rows: dict[str, Item] = {}
        # Scans are most of what a fleet asks for: what they need of rows that did not change is kept.
        self._order: list[tuple[int, str]] = []
        self._sizes: dict[str, tuple[Item, int]] = {}

    def scan_order(self) -> list[tuple[int, str]]:
        """Every row as (hash, key), sorted: the order in which a scan runs through them."""
        if len(self._order) != len(self.rows) or any(key not in self.rows for _, key in self._order):
            self._order = sorted(map(spread_order, self.rows))
        return self._order

    def row_bytes(self, key: str) -> int:
        """The size of a row. Rows are replaced and never changed in place, so it is the same as long as the row is."""
        row = self.rows[key]
        known = self._sizes.get(key)
        if known is None or known[0] is not row:
            self._sizes[key] = known = (row, item_bytes(row))
        return known[1]

    def description(self) -> dict[str, Any]:
        return {
            "TableName": self.name,
            "TableId": self.table_id,
            "TableStatus": self.status,
            "KeySchema": [dict(part) for part in self.schema],
            "AttributeDefinitions": [dict(part) for part in self.attributes],
            "BillingModeSummary": {"BillingMode": self.billing},
            "GlobalSecondaryIndexes": [dict(index) for index in self.indexes],
            "ItemCount": len(self.rows),
            "TableArn": f"arn:aws:dynamodb:us-east-1:123456789012:table/{self.name}",
        }

    def index(self, name: str) -> Mapping[str, Any]:
        """Raises InvalidRequestError."""
        for index in self.indexes:
            if index["IndexName"] == name:
                return index
        raise InvalidRequestError(f"The table does not have the specified index: {name}")

    def index_types(self) -> dict[str, tuple[str, str]]:
        """Attribute → (type, index) of every index key: DynamoDB checks these types on each write."""
        types = {part["AttributeName"]: part["AttributeType"] for part in self.attributes}
        return {
            part["AttributeName"]: (types[part["AttributeName"]], index["IndexName"])
            for index in self.indexes
            for part in index["KeySchema"]
            if part["AttributeName"] != self.key_name
        }

    def get(self, params: Params) -> dict[str, Any]:
        row = self.rows.get(key_of(params["Key"], self.key_name))
        consistent = bool(params.get("ConsistentRead"))
        answer = {} if row is None else {"Item": copy_item(row)}
        return {**answer, **_consumed(params, lambda: _read_units(item_bytes(row or {}), consistent))}

    def scan(self, params: Params, page_bytes: int = PAGE_BYTES) -> dict[str, Any]:
        wanted = row_filter(params)
        segment, segments = segment_of(params)
        ahead = self.scan_order()
        if "ExclusiveStartKey" in params:
            last = spread_order(key_of(params["ExclusiveStartKey"], self.key_name))
            ahead = ahead[bisect_right(ahead, last) :]
        keys = [key for spread, key in ahead if spread % segments == segment]
        limit = params.get("Limit", len(keys))
        page: list[str] = []
        size = 0
        for key in keys:
            if len(page) >= limit or size >= page_bytes:
                break
            page.append(key)
            size += self.row_bytes(key)
        found = [copy_item(self.rows[key]) for key in page if wanted(self.rows[key])]
        answer: dict[str, Any] = {"Count": len(found), "ScannedCount": len(page)}
        if params.get("Select") != "COUNT":
            answer["Items"] = found
        # As AWS: a page that stops at one of its limits names a last key even when nothing follows.
        full = len(page) == params.get("Limit") or size >= page_bytes
        if page and (len(page) < len(keys) or full):
            answer["LastEvaluatedKey"] = {self.key_name: {"S": page[-1]}}
        return {**answer, **_consumed(params, lambda: _read_units(size, bool(params.get("ConsistentRead"))))}

    def query(self, params: Params) -> dict[str, Any]:
        """A whole index that projects keys only; it is as new as the self."""
        index = self.index(params.get("IndexName", ""))
        if params.get("ConsistentRead"):
            raise InvalidRequestError("Consistent reads are not supported on global secondary indexes")
        placeholders = Placeholders.of(params)
        wanted = _condition("KeyConditionExpression", params, placeholders)
        placeholders.refuse_unused()
        keys = [part["AttributeName"] for part in index["KeySchema"]]
        names = {*keys, self.key_name}
        found = [
            {name: row[name] for name in names}
            for _, row in sorted(self.rows.items())
            if all(name in row for name in names) and wanted(row)
        ]
        answer = {"Items": found, "Count": len(found), "ScannedCount": len(found)}
        return {**answer, **_consumed(params, lambda: max(0.5, 0.5 * len(found) / 40))}

    def write(self, operation: str, params: Params) -> tuple[dict[str, Any], Written]:
        """PutItem, UpdateItem or DeleteItem. Raises InvalidRequestError, and ClientError if the condition failed."""
        given = params["Item"] if operation == "PutItem" else params["Key"]
        key = key_of(given, self.key_name, whole_item=operation == "PutItem")
        before = self.rows.get(key)
        change = parse_write(operation, params, self.key_name)
        if not change.condition(before or {}):
            extra: dict[str, Any] = {}
            if params.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" and before is not None:
                extra["Item"] = copy_item(before)
            message = "The conditional request failed"
            raise aws_error("ConditionalCheckFailedException", message, operation, **extra)
        after = change.apply(before)
        if after is None:
            self.rows.pop(key, None)
        else:
            check_row(after, self.index_types())
            self.rows[key] = after
        shown = returned(params.get("ReturnValues", "NONE"), before, after, change.touched)
        answer = {
            **({"Attributes": shown} if shown else {}),
            **_consumed(params, lambda: _write_units(before, after)),
        }
        # Not copied: a row that is written takes the place of the one before, which stays as it was.
        return answer, Written(key, before, after)


def spread_order(key: str) -> tuple[int, str]:
    # A scan runs through the rows in the order of a hash of their keys, not in the order people expect.
    return zlib.crc32(key.encode()), key


def _read_units(size: int, consistent: bool) -> float:
    return max(1, -(-size // _READ_UNIT_BYTES)) * (1.0 if consistent else 0.5)


def _write_units(before: Item | None, after: Item | None) -> float:
    size = max(item_bytes(before or {}), item_bytes(after or {}))
    return float(max(1, -(-size // 1024)))


def _consumed(params: Params, units: Callable[[], float]) -> dict[str, Any]:
    if params.get("ReturnConsumedCapacity", "NONE") == "NONE":
        return {}
    return {"ConsumedCapacity": {"TableName": params["TableName"], "CapacityUnits": units()}}
