"""DynamoDB and CloudWatch of the local AWS: moto's own request handlers, without a web framework around them.

One lock for the whole process: moto checks a condition and then writes without one, which loses updates.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.local.errors import ACCOUNT, REGION, AwsError
from pykcl.local.fast_scans import fast_handler
from pykcl.local.legacy import understandable

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
