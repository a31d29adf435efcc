"""A DynamoDB client in memory: it has the boto3 methods that pykcl calls, and evaluates the requests it gets.

So `aws/lease_table.py` runs unmodified in tests and simulations, and a wrong condition fails there, not in
production. Requests come with modern expressions, or with the legacy parameters that Java KCL still sends. They are
checked against botocore's own model of the service; errors are botocore's ClientError with AWS' codes. Faults are
injected per request: see `Fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError, ParamValidationError, ReadTimeoutError

from pykcl.runtime import Runtime, SystemRuntime
from pykcl.stores.expressions import InvalidRequestError, Item, aws_error, copy_item
from pykcl.stores.requests import PAGE_BYTES, Params, Table

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
        if operation == "Scan":
            return table.scan(params, self._page_bytes)
        if operation in ("Query", "GetItem"):
            return table.query(params) if operation == "Query" else table.get(params)
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

    def _write(self, operation: str, table: Table, params: Params, author: str) -> dict[str, Any]:
        answer, written = table.write(operation, params)
        done = Change(operation, table.name, written.key, written.before, written.after, author, params)
        self.changes.append(done)
        if self.on_change is not None:
            self.on_change(done)
        return answer


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
