"""The ASGI application of the local AWS: reads a request, finds its service, logs and answers it."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl

from pykcl.local import kinesis_wire
from pykcl.local.aws_parts import CLOUDWATCH_PREFIX, DYNAMODB_PREFIX, MotoParts, PartAnswer
from pykcl.local.errors import AwsError
from pykcl.local.request_log import LoggedRequest, RequestLog
from pykcl.local.stream import LocalKinesis

FaultHook = Callable[[str, str, dict[str, Any]], str | None]
LOSE_ANSWER = "lose-answer"

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("pykcl.local")


class AwsApp:
    """Kinesis is answered on the event loop (memory only, quick); moto in one worker thread."""

    def __init__(
        self, kinesis: LocalKinesis, parts: MotoParts, requests: RequestLog, now_millis: Callable[[], int]
    ) -> None:
        self.fault: FaultHook | None = None
        self._wire = kinesis_wire.KinesisWire(kinesis, now_millis)
        self._parts = parts
        self._requests = requests
        self._now = now_millis
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pykcl-local-moto")

    def warm_up(self) -> None:
        """Import moto in the background."""
        self._pool.submit(self._parts.warm_up)

    def close(self) -> None:
        """End the worker thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        body = await _read_body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        service, operation = _addressee(scope, headers, body)
        answer = await self._answer(service, operation, scope["path"], headers, body)
        await _send_answer(send, answer, self._now())

    async def _answer(
        self, service: str, operation: str, path: str, headers: dict[str, str], body: bytes
    ) -> PartAnswer:
        params: dict[str, Any] = {}
        try:
            params = _parameters(service, headers, body)
            lose = await self._ask_fault_hook(service, operation, params)
            if service == "kinesis":
                content = kinesis_wire.encode(self._wire.answer(operation, params))
                answer = PartAnswer(200, {"content-type": kinesis_wire.CONTENT_TYPE}, content)
            elif service:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(
                    self._pool, self._parts.answer, service, path, headers, body
                )
            else:
                raise AwsError(
                    "UnknownOperationException", "The local AWS speaks Kinesis, DynamoDB and CloudWatch."
                )
        except AwsError as error:
            answer, lose = _error_answer(error, headers), False
        except Exception as error:
            log.exception("local AWS failed service=%s operation=%s", service, operation)
            answer, lose = _error_answer(_failure(error), headers), False
        shown = kinesis_wire.loggable(params) if service == "kinesis" else params
        self._requests.add(
            LoggedRequest(self._now(), service, operation, shown, answer.status, answer.error_code)
        )
        if lose:
            lost = AwsError("InternalServerError", "The answer was lost on purpose.", 500)
            return _error_answer(lost, headers)
        return answer

    async def _ask_fault_hook(self, service: str, operation: str, params: dict[str, Any]) -> bool:
        """Whether to lose the answer. In a thread: a hook may wait, and only its request waits with it."""
        if self.fault is None:
            return False
        return await asyncio.to_thread(self.fault, service, operation, params) == LOSE_ANSWER


def _failure(error: Exception) -> AwsError:
    return AwsError("InternalFailure", f"The local AWS failed with {type(error).__name__}.", 500)


def _addressee(scope: Scope, headers: dict[str, str], body: bytes) -> tuple[str, str]:
    """Service and operation of a request; the service is empty for none of ours."""
    target = headers.get("x-amz-target", "")
    for prefix, service in (
        (kinesis_wire.TARGET_PREFIX, "kinesis"),
        (DYNAMODB_PREFIX, "dynamodb"),
        (CLOUDWATCH_PREFIX, "cloudwatch"),
    ):
        if target.startswith(prefix):
            return service, target[len(prefix) :]
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        action = dict(parse_qsl(body.decode("utf-8", "replace"))).get("Action", "")
        return ("cloudwatch", action) if action else ("", "")
    return "", str(scope["path"])


def _parameters(service: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    if service == "kinesis":
        return kinesis_wire.decode(body)
    if service == "cloudwatch" and "json" not in headers.get("content-type", ""):
        return {}  # the query protocol, or compressed
    if headers.get("content-encoding"):
        return {}
    try:
        params = json.loads(body or b"{}")
    except ValueError:
        params = None
    return params if isinstance(params, dict) else {}


def _error_answer(error: AwsError, headers: dict[str, str]) -> PartAnswer:
    content_type = headers.get("content-type", kinesis_wire.CONTENT_TYPE)
    content = json.dumps({"__type": error.code, "message": error.message}).encode()
    return PartAnswer(error.status, {"content-type": content_type}, content, error.code)


async def _read_body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def _send_answer(send: Send, answer: PartAnswer, now_millis: int) -> None:
    headers = {
        "x-amzn-requestid": str(uuid.uuid4()),
        "date": formatdate(now_millis / 1000, usegmt=True),
        **answer.headers,
        "content-length": str(len(answer.body)),
    }
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
    await send({"type": "http.response.body", "body": answer.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
