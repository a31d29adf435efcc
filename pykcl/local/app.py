"""The ASGI application of the local AWS: reads a request, finds its service, logs and answers it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from functools import partial
from typing import Any

from pykcl.host_names import is_own
from pykcl.local import kinesis_wire, rpc_v2, sts
from pykcl.local.aws_parts import CLOUDWATCH_PREFIX, DYNAMODB_PREFIX, MotoParts, PartAnswer
from pykcl.local.errors import AwsError
from pykcl.local.faults import CONTROL_PATH, NOT_DONE, Connections, FaultRule, Faults, refusal
from pykcl.local.formats import format_of
from pykcl.local.request_log import LoggedRequest, RequestLog, known
from pykcl.local.stream import LocalKinesis
from pykcl.local.wire_json import MOST_VALUES, read_json
from pykcl.local.wire_values import not_serialized

FaultHook = Callable[[str, str, dict[str, Any]], str | None]
LOSE_ANSWER = "lose-answer"
_ACTION = re.compile(rb"(?:^|&)Action=([A-Za-z0-9]{1,100})(?:&|$)")
_GZIP = 31
MOST_REFUSALS_LOGGED = 20
MOST_BODY_BYTES = 16 * 1024 * 1024
"""Enough for 10 MB of records in base64, and what DynamoDB allows."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("pykcl.local")


class AwsApp:
    """Kinesis is answered on the event loop (memory only, quick); moto in one worker thread."""

    def __init__(
        self,
        kinesis: LocalKinesis,
        parts: MotoParts,
        requests: RequestLog,
        now_millis: Callable[[], int],
        allowed_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.fault: FaultHook | None = None
        self.faults = Faults()
        self.connections = Connections()
        self._wire = kinesis_wire.KinesisWire(kinesis, now_millis)
        self._parts = parts
        self._requests = requests
        self._now = now_millis
        self._allowed_hosts = allowed_hosts
        self._refused: set[str] = set()
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
        if scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await _read_body(receive)
            if body is not None and "content-encoding" in headers:
                body = _unpacked(headers.pop("content-encoding"), body)
        except AwsError as error:
            service, operation = _addressee(scope, headers, b"")
            self._log(service, operation, {}, error.status, error.code, headers)
            await _send_answer(send, _error_answer(service, error, headers), self._now())
            return
        if body is None:
            return
        stranger = self._stranger(scope, headers)
        if stranger is not None:
            service, _ = _addressee(scope, headers, b"")
            await _send_answer(send, _error_answer(service, stranger, headers), self._now())
            return
        if scope["path"] == CONTROL_PATH:
            await _send_answer(send, self._control(scope["method"], headers, body), self._now())
            return
        service, operation = _addressee(scope, headers, body)
        rule = self.faults.choose(service, operation) if service else None
        if rule is None:
            answer = await self._answer(service, operation, scope["path"], headers, body)
            await _send_answer(send, answer, self._now())
            return
        with self.connections.held(scope.get("client")):
            told = await self._answer_badly(rule, service, operation, scope, headers, body)
            if told is not None:
                await _send_answer(send, told, self._now())
                return
            # Nothing is said: the client hears of it by a reset, or gives up by itself. Returning would send a 500.
            if rule.kind != "lost-answer":
                self.connections.reset(scope.get("client"))
            while (await receive())["type"] != "http.disconnect":
                pass

    def _stranger(self, scope: Scope, headers: dict[str, str]) -> AwsError | None:
        """The refusal of a request that a browser makes for a web page; no signature says who asks."""
        local_address = str((scope.get("server") or ("",))[0])
        host = headers.get("host") or None  # empty over HTTP/2 where the client names none
        if host is not None and not is_own(host, local_address, self._allowed_hosts):
            shown = host[:200]
            why = (
                f"This local AWS does not answer to the name {shown!r}: a web page could have pointed it here. "
                "Use localhost or the address it listens on, or start it with --allow-host NAME "
                "(in a program: LocalAws(allow_hosts=[NAME]))."
            )
        elif "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            shown = headers.get("origin", "")[:200]
            why = (
                "This local AWS does not answer requests that a browser makes for a web page, as it checks no "
                "signatures. Ask from a program or a shell."
            )
        else:
            return None
        if shown not in self._refused and len(self._refused) < MOST_REFUSALS_LOGGED:
            self._refused.add(shown)
            origin = headers.get("origin", "")
            log.warning("request refused host=%r origin=%r", (host or "")[:200], origin[:200])
        return AwsError("AccessDeniedException", why, 403)

    def _control(self, method: str, headers: dict[str, str], body: bytes) -> PartAnswer:
        status, content = self.faults.control(method, headers.get("content-type", ""), body)
        return PartAnswer(status, {"content-type": "application/json"}, json.dumps(content).encode() + b"\n")

    async def _answer_badly(
        self,
        rule: FaultRule,
        service: str,
        operation: str,
        scope: Scope,
        headers: dict[str, str],
        body: bytes,
    ) -> PartAnswer | None:
        """What the client is told under a fault; None: nothing. The log tells whether the request was done."""
        if rule.kind in NOT_DONE:
            error = refusal(rule, service, operation)
            if rule.kind == "reset-before":
                error = AwsError("ConnectionReset", "", 0)
            self._log(
                service, operation, _readable(service, headers, body), error.status, error.code, headers
            )
            return None if rule.kind == "reset-before" else _error_answer(service, error, headers)
        if rule.kind == "late":
            await asyncio.sleep(rule.seconds)
        answer = await self._answer(service, operation, scope["path"], headers, body)
        if rule.kind == "slow":
            await asyncio.sleep(rule.seconds)
        if rule.kind in ("reset-after", "lost-answer"):
            return None
        return (
            _error_answer(service, refusal(rule, service, operation), headers)
            if rule.kind == "error-after"
            else answer
        )

    async def _answer(
        self, service: str, operation: str, path: str, headers: dict[str, str], body: bytes
    ) -> PartAnswer:
        params: dict[str, Any] = {}
        try:
            params = _parameters(service, headers, body)
            lose = await self._ask_fault_hook(service, operation, params)
            if service == "kinesis":
                wire = format_of(headers)
                content = wire.encode(self._wire.answer(operation, params))
                answer = PartAnswer(200, {"content-type": wire.CONTENT_TYPE}, content)
            elif service == "sts":
                answer = PartAnswer(200, {"content-type": sts.CONTENT_TYPE}, sts.identity())
            elif service:
                serve = partial(self._parts.answer, service, path, headers, body)
                if rpc_v2.is_spoken(headers):
                    serve = partial(rpc_v2.answer, self._parts, operation, headers, params)
                answer = await asyncio.get_running_loop().run_in_executor(self._pool, serve)
            else:
                raise AwsError(
                    "UnknownOperationException", "The local AWS speaks Kinesis, DynamoDB and CloudWatch."
                )
        except AwsError as error:
            answer, lose = _error_answer(service, error, headers), False
        except Exception as error:
            log.exception("local AWS failed service=%s operation=%s", service, operation)
            answer, lose = _error_answer(service, _failure(error), headers), False
        self._log(service, operation, params, answer.status, answer.error_code, headers)
        if lose:
            lost = AwsError("InternalServerError", "The answer was lost on purpose.", 500)
            return _error_answer(service, lost, headers)
        return answer

    def _log(
        self,
        service: str,
        operation: str,
        params: dict[str, Any],
        status: int,
        code: str | None,
        headers: dict[str, str],
    ) -> None:
        shown = known(service, operation, params)
        if service == "kinesis":
            shown = kinesis_wire.loggable(shown)
        client = headers.get("user-agent", "")
        self._requests.add(LoggedRequest(self._now(), service, operation, shown, status, code, client))

    async def _ask_fault_hook(self, service: str, operation: str, params: dict[str, Any]) -> bool:
        """Whether to lose the answer. In a thread: a hook may wait, and only its request waits with it."""
        if self.fault is None:
            return False
        return await asyncio.to_thread(self.fault, service, operation, params) == LOSE_ANSWER


def _failure(error: Exception) -> AwsError:
    return AwsError("InternalFailure", f"The local AWS failed with {type(error).__name__}.", 500)


def _addressee(scope: Scope, headers: dict[str, str], body: bytes) -> tuple[str, str]:
    """Service and operation of a request; the service is empty for none of ours."""
    if rpc_v2.is_spoken(headers):
        operation = rpc_v2.operation_of(scope["path"])
        return ("cloudwatch", operation) if operation else ("", str(scope["path"]))
    target = headers.get("x-amz-target", "")
    for prefix, service in (
        (kinesis_wire.TARGET_PREFIX, "kinesis"),
        (DYNAMODB_PREFIX, "dynamodb"),
        (CLOUDWATCH_PREFIX, "cloudwatch"),
    ):
        if target.startswith(prefix):
            return service, target[len(prefix) :]
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        found = _ACTION.search(body)
        if found is None:
            return "", ""
        action = found[1].decode()
        return "sts" if action == sts.OPERATION else "cloudwatch", action
    return "", str(scope["path"])


def _parameters(service: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    if service == "kinesis":
        return format_of(headers).decode(body)
    if not service:
        return {}
    if rpc_v2.is_spoken(headers):
        return rpc_v2.decode(body)
    if service in ("cloudwatch", "sts") and "json" not in headers.get("content-type", ""):
        if body.count(b"&") > MOST_VALUES:
            raise not_serialized(f"The request body has more than {MOST_VALUES} fields.")
        return {}  # the query protocol
    params = read_json(body or b"{}")
    if not isinstance(params, dict):
        raise not_serialized("The request body is not a JSON object.")
    return params


def _readable(service: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The parameters of a request that is not done; none where they cannot be read."""
    try:
        return _parameters(service, headers, body)
    except AwsError:
        return {}


def _unpacked(encoding: str, body: bytes) -> bytes:
    """A compressed body as it was before. Raises AwsError; one that grows too large is not unpacked to its end."""
    if encoding.lower() != "gzip":
        raise not_serialized("The request body is compressed, and not with gzip.")
    stream = zlib.decompressobj(_GZIP)
    try:
        content = stream.decompress(body, MOST_BODY_BYTES + 1)
    except zlib.error as error:
        raise not_serialized("The request body is not compressed with gzip.") from error
    if len(content) > MOST_BODY_BYTES:
        raise _too_large()
    if not stream.eof or stream.unused_data:
        raise not_serialized("The request body is not one gzip member from its beginning to its end.")
    return content


def _too_large() -> AwsError:
    return AwsError(
        "RequestEntityTooLargeException", f"A request body holds at most {MOST_BODY_BYTES} bytes.", 413
    )


def _error_answer(service: str, error: AwsError, headers: dict[str, str]) -> PartAnswer:
    if service == "sts":
        return PartAnswer(error.status, {"content-type": sts.CONTENT_TYPE}, sts.refusal(error), error.code)
    wire = format_of(headers)
    # DynamoDB and CloudWatch have content types of their own.
    content_type = (
        wire.CONTENT_TYPE if service == "kinesis" else headers.get("content-type", wire.CONTENT_TYPE)
    )
    content = wire.encode({"__type": error.code, "message": error.message})
    answered = {"content-type": content_type, "x-amzn-errortype": error.code}
    if rpc_v2.is_spoken(headers):
        answered |= rpc_v2.PROTOCOL
    return PartAnswer(error.status, answered, content, error.code)


async def _read_body(receive: Receive) -> bytes | None:
    """The body; None when the client went before its end. Raises AwsError, after its end, for too large a one."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        # Read to the end even so: what is left unread would stop the other streams of an HTTP/2 connection.
        if size <= MOST_BODY_BYTES:
            parts.append(part)
        else:
            parts.clear()
        more = message.get("more_body", False)
    if size > MOST_BODY_BYTES:
        raise _too_large()
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
