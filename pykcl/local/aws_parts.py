"""DynamoDB and CloudWatch of the local AWS: moto's own request handlers, without a web framework around them.

One lock for the whole process: moto checks a condition and then writes without one, which loses updates. Two things are
done for moto:

* **Scan answers are written in one pass.** moto walks the service model for every attribute of every row: a second of
  CPU for 1,000 leases. The rows are in wire form already, so JSON is all that is left to do. A moto that does not call
  `serialized` answers as it always does.
* **The old parameters `Expected` and `AttributeUpdates`**, which Java KCL sends, are put into expressions. moto knows
  them in part: it looks at `Exists: true` and forgets the `Value` beside it, ignores `Expected` of DeleteItem, stores
  binary values as their Python text, and shows no row after a failed condition, which a Java 3.x renewal needs to
  notice a hand-off. Its expressions are right.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pykcl.local.errors import ACCOUNT, REGION, AwsError


@cache
def fast_handler() -> Any:
    """The class that serves DynamoDB's requests. moto is imported on the first call."""
    from moto.dynamodb.responses import DynamoHandler

    class FastDynamoHandler(DynamoHandler):
        def serialized(self, action_result: Any) -> Any:
            answer = action_result.result
            if self._get_action() != "Scan" or not isinstance(answer, dict):
                return super().serialized(action_result)
            told = {name: value for name, value in answer.items() if value is not None}
            headers = {"Content-Type": "application/x-amz-json-1.0", **self.response_headers}
            return 200, headers, json.dumps(told, default=_base64)

    return FastDynamoHandler


def _base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is nothing that a row can hold")
    return base64.b64encode(value).decode("ascii")


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


DYNAMODB_PREFIX = "DynamoDB_20120810."
CLOUDWATCH_PREFIX = "GraniteServiceVersion20100801."
_HOSTS = {"dynamodb": f"dynamodb.{REGION}.amazonaws.com", "cloudwatch": f"monitoring.{REGION}.amazonaws.com"}
_PASSED_ON = ("content-type", "x-amz-target", "x-amzn-query-mode")

_moto_lock = threading.Lock()
_accounts = itertools.count()


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """What a service answered. error_code: None when it succeeded."""

    status: int
    headers: dict[str, str]
    body: bytes
    error_code: str | None = None


class MotoParts:
    """DynamoDB and CloudWatch with data of their own: every instance uses another account of moto's."""

    def __init__(self) -> None:
        self.account = f"{int(ACCOUNT) + next(_accounts):012d}"

    def warm_up(self) -> None:
        """Do the slow imports now instead of at the first request."""
        with _moto_lock:
            from moto.cloudwatch.models import cloudwatch_backends
            from moto.dynamodb.models import dynamodb_backends

            for backends in (dynamodb_backends, cloudwatch_backends):
                _ = backends[self.account][REGION]

    def answer(self, service: str, path: str, headers: Mapping[str, str], body: bytes) -> PartAnswer:
        """Serve one request; blocks while another one is served. headers: names in lower case.

        Raises AwsError for an operation moto does not have.
        """
        with _moto_lock:
            try:
                return self._answer(service, path, headers, body)
            except RecursionError:  # an expression of thousands of brackets
                raise AwsError(
                    "ValidationException", "The local AWS does not read anything so deep."
                ) from None

    def forget(self) -> None:
        """Drop all data."""
        with _moto_lock:
            from moto.cloudwatch.models import cloudwatch_backends
            from moto.dynamodb.models import dynamodb_backends

            for backends in (dynamodb_backends, cloudwatch_backends):
                backends[self.account][REGION].reset()

    def _answer(self, service: str, path: str, headers: Mapping[str, str], body: bytes) -> PartAnswer:
        from botocore.awsrequest import AWSPreparedRequest
        from botocore.compat import HTTPHeaders
        from botocore.model import OperationNotFoundError
        from moto.cloudwatch.responses import CloudWatchResponse
        from moto.core.request import normalize_request
        from werkzeug.exceptions import HTTPException

        # The signature's region is not passed on: whatever region a client uses, it sees the same data.
        sent = HTTPHeaders()
        for name in _PASSED_ON:
            if name in headers:
                sent[name] = headers[name]
        sent["x-moto-account-id"] = self.account
        url = f"https://{_HOSTS[service]}{path}"
        if service == "dynamodb":
            body = understandable(body)
        handler = fast_handler() if service == "dynamodb" else CloudWatchResponse
        request = normalize_request(AWSPreparedRequest("POST", url, sent, body, False))
        try:
            status, answer_headers, answer = handler.dispatch(request, url, sent)
        except HTTPException as error:
            status, answer_headers, answer = error.code or 500, dict(error.get_headers()), error.get_body()
        except (NotImplementedError, OperationNotFoundError) as error:
            raise AwsError(
                "UnknownOperationException", f"The local AWS does not know this: {error}"
            ) from error
        raw = answer.encode() if isinstance(answer, str) else answer
        kept = {str(name).lower(): str(value) for name, value in answer_headers.items()}
        for name in ("status", "date", "server", "content-length"):
            kept.pop(name, None)
        return PartAnswer(status, kept, raw, None if status < 400 else _error_code(raw))


def _error_code(body: bytes) -> str:
    try:
        content: Any = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return "Error"
    return str(content.get("__type", "Error")).rpartition("#")[2]
