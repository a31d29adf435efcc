"""Services of the local AWS besides Kinesis: DynamoDB, CloudWatch and `destinations` by moto, and one call of STS.

One lock for the whole process: moto checks a condition and then writes without a lock, which loses updates. There is no
web framework around the handlers.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

import cbor2

from pykcl.local import destinations, wire_cbor
from pykcl.local.errors import ACCOUNT, REGION, AwsError
from pykcl.local.pushing import EventStream
from pykcl.local.wire import Params, not_serialized

DYNAMODB_PREFIX = "DynamoDB_20120810."
CLOUDWATCH_PREFIX = "GraniteServiceVersion20100801."
_HOSTS = {"dynamodb": f"dynamodb.{REGION}.amazonaws.com", "cloudwatch": f"monitoring.{REGION}.amazonaws.com"}
_XML_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,100})</Code>")
_PASSED_ON = ("content-type", "x-amz-target", "x-amzn-query-mode")

_moto_lock = threading.Lock()
_accounts = itertools.count()


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """Response of a service. error_code: None for success. events: those that follow, instead of a body."""

    status: int
    headers: dict[str, str]
    body: bytes
    error_code: str | None = None
    events: EventStream | None = None


class MotoServices:
    """DynamoDB, CloudWatch, SQS, SNS and S3 with data of their own: every instance uses another account of moto's."""

    def __init__(self) -> None:
        self.account = f"{int(ACCOUNT) + next(_accounts):012d}"
        self._destinations: dict[str, Any] = {}

    def warm_up(self) -> None:
        """Do the slow imports now instead of at the first request."""
        with _moto_lock:
            from moto.cloudwatch.models import cloudwatch_backends
            from moto.dynamodb.models import dynamodb_backends

            for backends in (dynamodb_backends, cloudwatch_backends):
                _ = backends[self.account][REGION]

    def serve(self, service: str, path: str, headers: Mapping[str, str], body: bytes) -> ServiceResponse:
        """Serve one request; blocks while another one is served. headers: names in lower case.

        Raises AwsError for an operation moto does not have.
        """
        with _moto_lock:
            try:
                return self._serve(service, path, headers, body)
            except RecursionError:  # an expression of thousands of brackets
                raise AwsError(
                    "ValidationException", "The request is nested too deeply for the local AWS."
                ) from None

    def forget(self) -> None:
        """Drop all data."""
        with _moto_lock:
            from moto.cloudwatch.models import cloudwatch_backends
            from moto.dynamodb.models import dynamodb_backends

            for backends in (dynamodb_backends, cloudwatch_backends):
                backends[self.account][REGION].reset()
            for service, backends in self._destinations.items():
                backends[self.account][destinations.place_of(service)].reset()
            self._destinations = {}

    def serve_destination(
        self, service: str, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> ServiceResponse:
        """Serve one request to SQS, SNS or S3 as `serve` does. path: as it was sent, with its escapes."""
        if service == "s3":
            destinations.refuse_another_owner(headers)
        if service == "sqs":
            body = destinations.without_waiting(body)
        url = f"http://{headers.get('host', 'localhost')}{path}{'?' if query else ''}{query}"
        with _moto_lock:
            if not self._destinations:
                # Imported with the first request: most processes never need them.
                self._destinations = dict(zip(destinations.SERVICES, destinations.backends(), strict=True))
            return self._handled(destinations.handler_of(service, path), method, url, headers, body)

    def _serve(self, service: str, path: str, headers: Mapping[str, str], body: bytes) -> ServiceResponse:
        from moto.cloudwatch.responses import CloudWatchResponse

        # The signature's region is not passed on: whatever region a client uses, it sees the same data.
        passed = {name: headers[name] for name in _PASSED_ON if name in headers}
        url = f"https://{_HOSTS[service]}{path}"
        if service == "dynamodb":
            body = with_expressions(body)
        handler = fast_handler() if service == "dynamodb" else CloudWatchResponse
        return self._handled(handler.dispatch, "POST", url, passed, body)

    def _handled(
        self, handler: Any, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> ServiceResponse:
        from botocore.awsrequest import AWSPreparedRequest
        from botocore.compat import HTTPHeaders
        from botocore.model import OperationNotFoundError
        from moto.core.request import normalize_request
        from werkzeug.exceptions import HTTPException

        sent = HTTPHeaders()
        for name, value in headers.items():
            sent[name] = value
        sent["x-moto-account-id"] = self.account
        request = normalize_request(AWSPreparedRequest(method, url, sent, body, False))
        try:
            status, sent_back, content = handler(request, url, sent)
        except HTTPException as error:
            status, sent_back, content = error.code or 500, dict(error.get_headers()), error.get_body()
        except (NotImplementedError, OperationNotFoundError) as error:
            raise AwsError(
                "UnknownOperationException", f"The local AWS does not have this operation: {error}"
            ) from error
        raw = content.encode() if isinstance(content, str) else content
        kept = {str(name).lower(): str(value) for name, value in sent_back.items()}
        for name in ("status", "date", "server", "content-length"):
            kept.pop(name, None)
        return ServiceResponse(status, kept, raw, None if status < 400 else _error_code(raw))


def _error_code(body: bytes) -> str:
    found = _XML_CODE.search(body)
    if found is not None:
        return found[1].decode()
    try:
        content: Any = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return "Error"
    return str(content.get("__type", "Error")).rpartition("#")[2]


# -- DynamoDB: responses with rows in one pass -------------------------------------------------------------------------

# moto walks the service model for every attribute of every row: a second of CPU for 1,000 leases, a third of the time
# of a write. The rows are in wire form already, so JSON is all that is left to do. A moto that does not call
# `serialized` responds as it always does.


_WITH_ROWS = frozenset({"Scan", "Query", "GetItem", "PutItem", "UpdateItem", "DeleteItem"})


@cache
def fast_handler() -> Any:
    """Return the class that serves DynamoDB's requests. moto is imported on the first call."""
    from moto.dynamodb.responses import DynamoHandler

    class FastDynamoHandler(DynamoHandler):
        def serialized(self, action_result: Any) -> Any:
            result = action_result.result
            if self._get_action() not in _WITH_ROWS or not isinstance(result, dict):
                return super().serialized(action_result)
            present = {name: value for name, value in result.items() if value is not None}
            headers = {"Content-Type": "application/x-amz-json-1.0", **self.response_headers}
            return 200, headers, json.dumps(present, default=_base64)

    return FastDynamoHandler


def _base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"a row cannot hold a {type(value).__name__}")
    return base64.b64encode(value).decode("ascii")


# -- DynamoDB: Expected and AttributeUpdates ---------------------------------------------------------------------------

# Java KCL sends these legacy parameters; they are translated into expressions, which moto gets right. Of the legacy
# ones it knows only a part: it checks `Exists: true` and ignores the `Value` beside it, ignores `Expected` of
# DeleteItem, stores binary values as their Python text, and returns no row after a failed condition, which a Java 3.x
# renewal needs to notice a hand-off.

_COMPARISONS = {"EQ": "=", "NE": "<>", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_OLD = (b'"Expected"', b'"AttributeUpdates"')
_CLAUSES = {"PUT": "SET", "ADD": "ADD", "DELETE": "DELETE"}


class _UnknownError(Exception):
    """Parameters that are passed to moto as they are."""


class _Placeholders:
    """Placeholders of the names and values in one request."""

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


def with_expressions(body: bytes) -> bytes:
    """Translate legacy parameters into expressions; return the request unchanged if it has none or unknown ones."""
    if not any(name in body for name in _OLD):
        return body
    params = json.loads(body)
    # Legacy parameters beside expressions are invalid: moto has an error for that.
    if not isinstance(params, dict) or any("Expression" in name for name in params):
        return body
    try:
        return json.dumps(_translated(params)).encode()
    except (_UnknownError, AttributeError, KeyError, TypeError):
        return body


def _translated(params: dict[str, Any]) -> dict[str, Any]:
    words = _Placeholders()
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


def _condition(words: _Placeholders, name: str, condition: dict[str, Any]) -> str:
    operator = condition.get("ComparisonOperator", "EQ")
    if condition.get("Exists") is False or operator == "NULL":
        return f"attribute_not_exists({words.name(name)})"
    if operator == "NOT_NULL":
        return f"attribute_exists({words.name(name)})"
    values = [condition["Value"]] if "Value" in condition else condition["AttributeValueList"]
    if operator not in _COMPARISONS or len(values) != 1:
        raise _UnknownError
    return f"{words.name(name)} {_COMPARISONS[operator]} {words.value(values[0])}"


def _update(words: _Placeholders, updates: dict[str, dict[str, Any]]) -> str:
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


# -- CloudWatch in Smithy RPC v2 (CBOR) --------------------------------------------------------------------------------

# Newer SDKs send this: put into JSON for moto, and back.
# https://smithy.io/2.0/additional-specs/protocols/smithy-rpc-v2.html
RPC_CONTENT_TYPE = "application/cbor"
RPC_HEADERS = {"smithy-protocol": "rpc-v2-cbor"}
"""Header of every request and every response."""
MAX_RPC_READS = 100_000
"""Of 16 bytes each: CloudWatch accepts a megabyte."""
_RPC_PATH = re.compile(rf"/service/{CLOUDWATCH_PREFIX[:-1]}/operation/([A-Za-z0-9]{{1,100}})\Z")


def is_rpc(headers: Mapping[str, str]) -> bool:
    """Return True for the headers of such a request. headers: names in lower case."""
    return RPC_HEADERS.items() <= headers.items()


def rpc_operation(path: str) -> str | None:
    """Return the operation of CloudWatch in a path, if it has one."""
    found = _RPC_PATH.search(path)
    return found[1] if found else None


def decode_rpc(body: bytes) -> Params:
    """Decode the members, times as seconds since the epoch. Raises AwsError SerializationException."""
    return wire_cbor.decode(body, max_reads=MAX_RPC_READS, read_time=_read_seconds)


def serve_rpc(
    moto: MotoServices, operation: str, headers: Mapping[str, str], params: Params
) -> ServiceResponse:
    """Serve one request. Raises AwsError as `MotoServices.serve` does."""
    sent = {
        **headers,
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": CLOUDWATCH_PREFIX + operation,
    }
    try:
        body = json.dumps(params, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise not_serialized("The request body has values that no operation takes.") from error
    response = moto.serve("cloudwatch", "/", sent, body)
    response_headers = {**response.headers, **RPC_HEADERS, "content-type": RPC_CONTENT_TYPE}
    shape = None if response.error_code else _cloudwatch_model().operation_model(operation).output_shape
    if response.error_code:
        members = {**json.loads(response.body), "__type": response.error_code}
    elif shape is None:
        # The response of an operation without an output has no body.
        del response_headers["content-type"]
        return ServiceResponse(response.status, response_headers, b"")
    else:
        from botocore.parsers import create_parser

        parsed = {"status_code": response.status, "headers": {}, "body": response.body}
        members = create_parser("json").parse(parsed, shape)
        del members["ResponseMetadata"]
    content = cbor2.dumps(members, datetime_as_timestamp=True)
    return ServiceResponse(response.status, response_headers, content, response.error_code)


def _read_seconds(value: Any, _: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wire_cbor.RefusedError
    return value


@cache
def _cloudwatch_model() -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model("cloudwatch", "service-2"))


# -- STS: whose credentials these are, in the query protocol: a form in, XML out ---------------------------------------

STS_OPERATION = "GetCallerIdentity"
STS_CONTENT_TYPE = "text/xml"
_STS_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


def sts_identity(user: str = "local") -> bytes:
    """Return the response: every caller is the same user of the account of the local streams."""
    return _xml(
        f'<GetCallerIdentityResponse xmlns="{_STS_NAMESPACE}"><GetCallerIdentityResult>'
        f"<Arn>arn:aws:iam::{ACCOUNT}:user/{escape(user)}</Arn><UserId>LOCAL</UserId><Account>{ACCOUNT}</Account>"
        f"</GetCallerIdentityResult>{_sts_metadata()}</GetCallerIdentityResponse>"
    )


def s3_error(error: AwsError) -> bytes:
    """Return an error in the form of S3."""
    return _xml(f"<Error><Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message></Error>")


def sts_error(error: AwsError) -> bytes:
    """Return an error in the form of STS."""
    return _xml(
        f'<ErrorResponse xmlns="{_STS_NAMESPACE}"><Error><Type>Sender</Type><Code>{escape(error.code)}</Code>'
        f"<Message>{escape(error.message)}</Message></Error><RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    )


def _sts_metadata() -> str:
    return f"<ResponseMetadata><RequestId>{uuid.uuid4()}</RequestId></ResponseMetadata>"


def _xml(text: str) -> bytes:
    return b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()
