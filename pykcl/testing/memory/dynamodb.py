"""A DynamoDB client in memory: it has the boto3 methods that pykcl calls, and evaluates the requests it gets.

So `aws/lease_table.py` runs unmodified in tests and simulations, and a wrong condition fails there, not in
production. Requests come with modern expressions, or with the legacy parameters that Java KCL still sends. They are
checked against botocore's own model of the service; errors are botocore's ClientError with AWS' codes. Faults are
injected per request: see `Fault`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError, ParamValidationError, ReadTimeoutError

from pykcl.runtime import Runtime, SystemRuntime
from pykcl.testing.memory.expressions import (
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


_ENDPOINT = "http://dynamodb.invalid"


def timed_out() -> Exception:
    """No answer came in time, and the outcome of the request is unknown."""
    return ReadTimeoutError(endpoint_url=_ENDPOINT)


def unreachable() -> Exception:
    """The connection failed."""
    return EndpointConnectionError(endpoint_url=_ENDPOINT)


def throttled(operation: str = "UpdateItem") -> ClientError:
    return aws_error("ProvisionedThroughputExceededException", "Rate exceeded", operation)


def failing(operation: str = "UpdateItem") -> ClientError:
    """HTTP 500: the request may have been applied."""
    return aws_error("InternalServerError", "Internal server error", operation, status=500)


def absent(operation: str) -> ClientError:
    """The table does not exist, whether it does or not."""
    return aws_error("ResourceNotFoundException", "Requested resource not found", operation)


def denied(operation: str = "UpdateItem") -> ClientError:
    message = f"User: arn:aws:iam::123456789012:user/u is not authorized to perform: dynamodb:{operation}"
    return aws_error("AccessDeniedException", message, operation)


PAGE_BYTES = 1024 * 1024
_READ_UNIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Fault:
    """Faults of one request; none by default.

    delay: seconds it waits before anything happens. late_answer: seconds from what it does to the answer.
    before: raised, and the request is never applied. after: raised although the request was applied. postponed:
    raised at once; the request is applied when the test calls `deliver_postponed`, as one that was still under
    way when its sender gave up. on_effect: called when it made a difference: for `before` when it is raised, for
    `after` when a request that was applied goes without its answer, for `postponed` when the request arrives.
    """

    before: Exception | None = None
    after: Exception | None = None
    postponed: Exception | None = None
    delay: float = 0.0
    late_answer: float = 0.0
    on_effect: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Change:
    """One applied write: the row before and after it (None: no row), its sender, where known, and the request."""

    operation: str
    table: str
    key: str
    before: Item | None
    after: Item | None
    author: str = ""
    params: Params = field(default_factory=dict)


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


class MemoryDynamoDB:
    """The client. Thread-safe; every item is copied on its way in and out.

    fault: asked before each request, (operation in CamelCase, parameters) → Fault or None. changes: every
    applied write in order. requests: every request in order, as (operation, parameters).
    describes_until_active: how many DescribeTable answers say CREATING after CreateTable. author: asked at each
    request who sends it. on_change: called with every applied write at once; it must not wait.
    """

    def __init__(
        self,
        *,
        runtime: Runtime | None = None,
        fault: Callable[[str, Params], Fault | None] | None = None,
        describes_until_active: int = 0,
        page_bytes: int = PAGE_BYTES,
        author: Callable[[], str] = lambda: "",
        on_change: Callable[[Change], None] | None = None,
    ) -> None:
        self._runtime = runtime or SystemRuntime()
        self._lock = self._runtime.lock()
        self.describes_until_active = describes_until_active
        self._page_bytes = page_bytes
        self._postponed: list[tuple[str, Params, str, Callable[[], None]]] = []
        self._being_postponed: list[Params] = []
        self._tables_made = 0
        self._author = author
        self.on_change = on_change
        self.fault = fault
        self.tables: dict[str, Table] = {}
        self.changes: list[Change] = []
        self.requests: list[tuple[str, Params]] = []

    def create_table(self, **params: Any) -> dict[str, Any]:
        return self._call("CreateTable", params)

    def describe_table(self, **params: Any) -> dict[str, Any]:
        return self._call("DescribeTable", params)

    def delete_table(self, **params: Any) -> dict[str, Any]:
        return self._call("DeleteTable", params)

    def scan(self, **params: Any) -> dict[str, Any]:
        return self._call("Scan", params)

    def query(self, **params: Any) -> dict[str, Any]:
        return self._call("Query", params)

    def get_item(self, **params: Any) -> dict[str, Any]:
        return self._call("GetItem", params)

    def put_item(self, **params: Any) -> dict[str, Any]:
        return self._call("PutItem", params)

    def update_item(self, **params: Any) -> dict[str, Any]:
        return self._call("UpdateItem", params)

    def delete_item(self, **params: Any) -> dict[str, Any]:
        return self._call("DeleteItem", params)

    def rows(self, table: str) -> dict[str, Item]:
        """Every row by key, for looking at; not a request."""
        with self._lock:
            return {key: copy_item(row) for key, row in self.tables[table].rows.items()}

    def put_raw(self, table: str, item: Item) -> None:
        """Put a row as it is, junk included, as a foreign worker might have; not a request."""
        with self._lock:
            found = self.tables[table]
            found.rows[item[found.key_name]["S"]] = copy_item(item)

    def postponed_keys(self) -> set[str]:
        """The keys of the rows that postponed requests are about, from the time they are sent."""
        with self._lock:
            sent = [*self._being_postponed, *(params for _, params, *_ in self._postponed)]
        given = [params.get("Key") or params.get("Item") or {} for params in sent]
        return {
            value["S"] for key in given for value in key.values() if isinstance(value, dict) and "S" in value
        }

    def deliver_postponed(self) -> None:
        """Apply the postponed requests now; whoever sent them is gone, so refusals go nowhere."""
        with self._lock:
            waiting, self._postponed = self._postponed, []
        for operation, params, author, on_effect in waiting:
            on_effect()
            try:
                self._apply(operation, params, author)
            except Exception as error:
                if not hasattr(error, "response"):
                    raise

    def _call(self, operation: str, params: Params) -> dict[str, Any]:
        _check_shape(operation, params)
        with self._lock:
            self.requests.append((operation, params))
        fault = (self.fault and self.fault(operation, params)) or Fault()
        if fault.postponed is not None:
            self._being_postponed.append(params)
        try:
            return self._call_with(fault, operation, params)
        finally:
            if fault.postponed is not None:
                self._being_postponed.remove(params)

    def _call_with(self, fault: Fault, operation: str, params: Params) -> dict[str, Any]:
        if fault.delay > 0:
            self._runtime.event().wait(fault.delay)
        if fault.before is not None:
            fault.on_effect()
            raise fault.before
        if fault.postponed is not None:
            with self._lock:
                self._postponed.append((operation, params, self._author(), fault.on_effect))
            raise fault.postponed
        answer = self._apply(operation, params, self._author())
        if fault.late_answer > 0:
            self._runtime.event().wait(fault.late_answer)
        if fault.after is not None:
            fault.on_effect()
            raise fault.after
        return answer

    def _apply(self, operation: str, params: Params, author: str) -> dict[str, Any]:
        with self._lock:
            try:
                answer = self._answer(operation, params, author)
            except InvalidRequestError as refusal:
                raise aws_error("ValidationException", str(refusal), operation) from None
        return {
            **answer,
            "ResponseMetadata": {"HTTPStatusCode": 200, "RequestId": "in-memory", "RetryAttempts": 0},
        }

    def _answer(self, operation: str, params: Params, author: str) -> dict[str, Any]:
        if operation == "CreateTable":
            return self._create(params)
        table = self.tables.get(params["TableName"])
        if table is None:
            raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
        if operation == "DescribeTable":
            return self._describe(table)
        if operation == "DeleteTable":
            return {"TableDescription": self.tables.pop(table.name).description()}
        if table.status == "CREATING":
            raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
        reads = {"Scan": self._scan, "Query": self._query, "GetItem": self._get}
        if operation in reads:
            return reads[operation](table, params)
        return self._write(operation, table, params, author)

    def _create(self, params: Params) -> dict[str, Any]:
        name = params["TableName"]
        if name in self.tables:
            raise aws_error("ResourceInUseException", f"Table already exists: {name}", "CreateTable")
        self._tables_made += 1
        table_id = f"00000000-0000-4000-8000-{self._tables_made:012}"
        self.tables[name] = Table(params, self.describes_until_active, table_id)
        return {"TableDescription": self.tables[name].description()}

    def _describe(self, table: Table) -> dict[str, Any]:
        answer = {"Table": table.description()}
        if table.status == "CREATING":
            table.describes_until_active -= 1
            table.status = "ACTIVE" if table.describes_until_active <= 0 else "CREATING"
        return answer

    def _get(self, table: Table, params: Params) -> dict[str, Any]:
        row = table.rows.get(key_of(params["Key"], table.key_name))
        consistent = bool(params.get("ConsistentRead"))
        answer = {} if row is None else {"Item": copy_item(row)}
        return {**answer, **_consumed(params, lambda: _read_units(item_bytes(row or {}), consistent))}

    def _scan(self, table: Table, params: Params) -> dict[str, Any]:
        wanted = row_filter(params)
        segment, segments = segment_of(params)
        ahead = table.scan_order()
        if "ExclusiveStartKey" in params:
            last = spread_order(key_of(params["ExclusiveStartKey"], table.key_name))
            ahead = ahead[bisect_right(ahead, last) :]
        keys = [key for spread, key in ahead if spread % segments == segment]
        limit = params.get("Limit", len(keys))
        page: list[str] = []
        size = 0
        for key in keys:
            if len(page) >= limit or size >= self._page_bytes:
                break
            page.append(key)
            size += table.row_bytes(key)
        found = [copy_item(table.rows[key]) for key in page if wanted(table.rows[key])]
        answer: dict[str, Any] = {"Count": len(found), "ScannedCount": len(page)}
        if params.get("Select") != "COUNT":
            answer["Items"] = found
        # As AWS: a page that stops at one of its limits names a last key even when nothing follows.
        full = len(page) == params.get("Limit") or size >= self._page_bytes
        if page and (len(page) < len(keys) or full):
            answer["LastEvaluatedKey"] = {table.key_name: {"S": page[-1]}}
        return {**answer, **_consumed(params, lambda: _read_units(size, bool(params.get("ConsistentRead"))))}

    def _query(self, table: Table, params: Params) -> dict[str, Any]:
        """A whole index that projects keys only; it is as new as the table."""
        index = table.index(params.get("IndexName", ""))
        if params.get("ConsistentRead"):
            raise InvalidRequestError("Consistent reads are not supported on global secondary indexes")
        placeholders = Placeholders.of(params)
        wanted = _condition("KeyConditionExpression", params, placeholders)
        placeholders.refuse_unused()
        keys = [part["AttributeName"] for part in index["KeySchema"]]
        names = {*keys, table.key_name}
        found = [
            {name: row[name] for name in names}
            for _, row in sorted(table.rows.items())
            if all(name in row for name in names) and wanted(row)
        ]
        answer = {"Items": found, "Count": len(found), "ScannedCount": len(found)}
        return {**answer, **_consumed(params, lambda: max(0.5, 0.5 * len(found) / 40))}

    def _write(self, operation: str, table: Table, params: Params, author: str) -> dict[str, Any]:
        given = params["Item"] if operation == "PutItem" else params["Key"]
        key = key_of(given, table.key_name, whole_item=operation == "PutItem")
        before = table.rows.get(key)
        change = parse_write(operation, params, table.key_name)
        if not change.condition(before or {}):
            extra: dict[str, Any] = {}
            if params.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" and before is not None:
                extra["Item"] = copy_item(before)
            message = "The conditional request failed"
            raise aws_error("ConditionalCheckFailedException", message, operation, **extra)
        after = change.apply(before)
        if after is None:
            table.rows.pop(key, None)
        else:
            check_row(after, table.index_types())
            table.rows[key] = after
        # Not copied: a row that is written takes the place of the one before, which stays as it was.
        done = Change(operation, table.name, key, before, after, author, params)
        self.changes.append(done)
        if self.on_change is not None:
            self.on_change(done)
        shown = returned(params.get("ReturnValues", "NONE"), before, after, change.touched)
        return {
            **({"Attributes": shown} if shown else {}),
            **_consumed(params, lambda: _write_units(before, after)),
        }


_LONGEST_MINIMUM = 3
"""No text in these requests has to be longer than that, says botocore's model of DynamoDB: IndexName."""
_MOST_FORMS = 5000
_sound_forms: set[Any] = set()


@lru_cache(maxsize=1)
def _service_model() -> Any:
    import botocore.session

    return botocore.session.get_session().get_service_model("dynamodb")


@lru_cache(maxsize=32)
def _input_shape(operation: str) -> Any:
    return _service_model().operation_model(operation).input_shape


def _check_shape(operation: str, params: Params) -> None:
    """botocore's own check of parameter names and types, as before anything is sent. Raises
    ParamValidationError.
    """
    from botocore.validate import ParamValidator

    # A worker sends the same few forms of request again and again, with other texts in them.
    form = (operation, _form(params))
    if form in _sound_forms:
        return
    report = ParamValidator().validate(params, _input_shape(operation))
    if report.has_errors():
        raise ParamValidationError(report=report.generate_report())
    if len(_sound_forms) < _MOST_FORMS:
        _sound_forms.add(form)


def _form(value: Any) -> Any:
    """All that botocore checks: names, types, numbers, and whether a text is long enough."""
    if isinstance(value, str):
        return min(len(value), _LONGEST_MINIMUM)
    if isinstance(value, Mapping):
        return (type(value), *[(name, _form(inner)) for name, inner in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), *map(_form, value))
    return (type(value), value) if isinstance(value, int | float) else type(value)


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
