"""`LocalAws`: Kinesis, DynamoDB, CloudWatch, SQS, SNS and S3 on one port, over HTTP/1.1 and HTTP/2.

`AwsApp` is the ASGI application: it reads a request, finds its service, serves and logs it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from pykcl.host_names import allowed_names, is_own
from pykcl.local import destinations, kinesis_api, services
from pykcl.local.errors import AwsError
from pykcl.local.faults import CONTROL_PATH, NOT_DONE, Connections, FaultRule, Faults, refusal
from pykcl.local.pushing import CONTENT_TYPE as EVENTS_TYPE
from pykcl.local.pushing import PUSH_FAULTS, Cut, EventStream
from pykcl.local.request_log import LoggedRequest, RequestLog, known
from pykcl.local.services import CLOUDWATCH_PREFIX, DYNAMODB_PREFIX, MotoServices, ServiceResponse
from pykcl.local.stream import SUBSCRIPTION_SECONDS, LocalKinesis, ReadSpan
from pykcl.local.wire import MAX_VALUES, not_serialized, read_json
from pykcl.local.wire_cbor import format_of

LOOPBACK = "127.0.0.1"
START_SECONDS = 10.0
STOP_SECONDS = 10.0
BACKLOG = 1024
MAX_CONCURRENT_STREAMS = 500
"""Requests under way on one HTTP/2 connection.

hypercorn keeps them in a tree of at most 1,000, including those that were cancelled lately, and hangs the connection
beyond.
"""
FaultHook = Callable[[str, str, dict[str, Any]], str | None]
LOSE_ANSWER = "lose-answer"
_ACTION = re.compile(rb"(?:^|&)Action=([A-Za-z0-9]{1,100})(?:&|$)")
_GZIP = 31
MAX_REFUSALS_LOGGED = 20
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Enough for 10 MB of records in base64, and the limit of DynamoDB."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("pykcl.local")


def _utcnow_millis() -> int:
    return time.time_ns() // 1_000_000


class LocalAws:
    """A local AWS in background threads of this process. Use as a context manager, or start() and stop().

    port: 0 takes a free one. host: the address to listen on. allow_hosts: names or addresses that a request's Host
    header may have besides localhost and the address it came in on. limits: enforce the per-shard rates of Kinesis.
    state_seconds: how long streams stay CREATING, UPDATING, DELETING. read_span, listing_lag, subscription_seconds: as
    `LocalKinesis` has them. request_log: a file that gets every request as a JSON line. now_millis: the clock of
    Kinesis and of the Date headers, epoch milliseconds. fault: called with (service, operation, parameters) before each
    request, in a thread of its own; it may wait, raise AwsError to respond with that error, or return "lose-answer" to
    have the request done and respond with a 500.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = LOOPBACK,
        allow_hosts: Iterable[str] | None = (),
        limits: bool = False,
        state_seconds: float = 0.0,
        read_span: ReadSpan | None = None,
        listing_lag: float = 0.5,
        subscription_seconds: float = SUBSCRIPTION_SECONDS,
        request_log: Path | None = None,
        now_millis: Callable[[], int] | None = None,
        fault: FaultHook | None = None,
    ) -> None:
        now = now_millis or _utcnow_millis
        self.kinesis = LocalKinesis(
            now,
            limits=limits,
            state_seconds=state_seconds,
            read_span=read_span,
            listing_lag=listing_lag,
            subscription_seconds=subscription_seconds,
            seed=time.time_ns(),
        )
        self._wanted = (host, port)
        self.requests = RequestLog(request_log)
        self._parts = MotoServices()
        self._app = AwsApp(self.kinesis, self._parts, self.requests, now, allowed_names(allow_hosts))
        self._app.fault = fault
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._port = 0
        self._url = ""

    @property
    def fault(self) -> FaultHook | None:
        """The fault hook; may be set while running."""
        return self._app.fault

    @fault.setter
    def fault(self, hook: FaultHook | None) -> None:
        self._app.fault = hook

    @property
    def faults(self) -> Faults:
        """Faults between the clients and this server, by rules; also set over HTTP, see `faults`."""
        return self._app.faults

    @property
    def port(self) -> int:
        """The port; 0 before start()."""
        return self._port

    @property
    def url(self) -> str:
        """Endpoint URL of all services. Raises RuntimeError before start()."""
        if not self._url:
            raise RuntimeError("The local AWS has no URL yet: call start() first.")
        return self._url

    def start(self) -> LocalAws:
        """Bind and serve. Raises OSError if the address cannot be bound, RuntimeError if it was started before."""
        if self._thread is not None:
            raise RuntimeError("This local AWS was already started. Create a new LocalAws.")
        listener = _listener(*self._wanted)
        address, self._port = str(listener.getsockname()[0]), int(listener.getsockname()[1])
        # Clients cannot connect to "all addresses".
        reached = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(address, address)  # noqa: S104 - compared, not bound
        self._url = f"http://[{reached}]:{self._port}" if ":" in reached else f"http://{reached}:{self._port}"
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="pykcl-local", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise RuntimeError(f"The local AWS did not start within {START_SECONDS:g} s.")
        return self

    def stop(self) -> None:
        """Close the port, end the threads and drop the data. Does nothing when not running."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or not thread.is_alive():
            return
        if loop is not None and stop is not None:
            loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            log.warning("local AWS thread still running seconds=%s", STOP_SECONDS)
        self._app.close()
        self.requests.close()
        self._parts.forget()

    def reset(self) -> None:
        """Delete all streams, tables, metrics and fault rules; keep running."""
        for stream in self.kinesis.list_streams():
            self.kinesis.delete_stream(stream.name)
        self._parts.forget()
        self.faults.reset()

    def __enter__(self) -> LocalAws:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self._serve_until_stopped(listener))
        except Exception as error:
            log.error("local AWS died error=%s", type(error).__name__)
            raise

    async def _serve_until_stopped(self, listener: socket.socket) -> None:
        from pykcl.asgi_server import serve

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._app.warm_up()
        listener.listen(BACKLOG)  # from here on clients are queued, so they need not wait for the loop
        self._ready.set()
        await serve(self._app, _config(), listener, self._until_stopped, self._app.connections.recorded)

    async def _until_stopped(self) -> None:
        if self._stop is not None:
            await self._stop.wait()
        self._app.connections.reset_held()


def _listener(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
    except OSError:
        listener.close()
        raise
    return listener


def _config() -> Any:
    from hypercorn.config import Config

    config = Config()
    config.loglevel = "WARNING"
    config.errorlog = None
    config.accesslog = None
    config.include_date_header = False  # ours goes by the injected clock
    config.include_server_header = False
    config.graceful_timeout = 0.2
    # Clients keep their connections; hypercorn's defaults (5 s, 1,000 requests) would close them in the middle.
    config.keep_alive_timeout = 3600
    config.keep_alive_max_requests = 1 << 62
    config.backlog = BACKLOG
    # A client that exceeds the limit it was sent loses the whole connection; Java sends the requests of all shards over
    # one.
    config.h2_max_concurrent_streams = MAX_CONCURRENT_STREAMS
    return config


class AwsApp:
    """ASGI application. Kinesis is served on the event loop (memory only, quick); moto in one worker thread."""

    def __init__(
        self,
        kinesis: LocalKinesis,
        moto: MotoServices,
        requests: RequestLog,
        now_millis: Callable[[], int],
        allowed_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.fault: FaultHook | None = None
        self.faults = Faults()
        self.connections = Connections()
        self._kinesis = kinesis_api.KinesisApi(kinesis, now_millis)
        self._moto = moto
        self._requests = requests
        self._now = now_millis
        self._allowed_hosts = allowed_hosts
        self._refused: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pykcl-local-moto")

    def warm_up(self) -> None:
        """Import moto in the background."""
        self._pool.submit(self._moto.warm_up)

    def close(self) -> None:
        """End the worker thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await _read_body(receive)
            if body is not None and headers.get("content-encoding", "aws-chunked") != "aws-chunked":
                body = _unpacked(headers.pop("content-encoding"), body)
        except AwsError as error:
            service, operation = _target(scope, headers, b"")
            self._log(service, operation, {}, error.status, error.code, headers)
            await _send_response(send, _error_response(service, error, headers), self._now())
            return
        if body is None:
            return
        refused = self._refused_client(scope, headers)
        if refused is not None:
            service, _ = _target(scope, headers, b"")
            await _send_response(send, _error_response(service, refused, headers), self._now())
            return
        if scope["path"] == CONTROL_PATH:
            await _send_response(send, self._control(scope["method"], headers, body), self._now())
            return
        service, operation = _target(scope, headers, body)
        rule = self.faults.choose(service, operation) if service else None
        if rule is None and operation != kinesis_api.SUBSCRIBE:
            response = await self._respond(service, operation, scope, headers, body)
            await _send_response(send, response, self._now())
            return
        with self.connections.held(scope.get("client")):
            held: ServiceResponse | None
            if rule is None:
                held = await self._respond(service, operation, scope, headers, body)
            else:
                held = await self._serve_with_fault(rule, service, operation, scope, headers, body)
            if held is None or not await self._push(held, receive, send):
                # No response, or a part of one: the client gets a reset, or times out. Returning would send a 500.
                if rule is not None and rule.kind != "lost-answer":
                    self.connections.reset(scope.get("client"))
                await _until_gone(receive)

    async def _push(self, response: ServiceResponse, receive: Receive, send: Send) -> bool:
        """Send a response, with its events until they end. False: the connection is to be reset."""

        async def send_part(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        if response.events is None:
            await _send_response(send, response, self._now())
            return True
        await send(_head(response, self._now()))
        try:
            await response.events.send(send_part, partial(_until_gone, receive))
        except Cut:
            return False
        await send({"type": "http.response.body", "body": b""})
        return True

    def _refused_client(self, scope: Scope, headers: dict[str, str]) -> AwsError | None:
        """Return the error for a request that a browser sends for a web page: there are no signatures to check."""
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
                "This local AWS does not answer requests that a browser makes for a web page, because it checks "
                "no signatures. Use a program or a shell."
            )
        else:
            return None
        if shown not in self._refused and len(self._refused) < MAX_REFUSALS_LOGGED:
            self._refused.add(shown)
            origin = headers.get("origin", "")
            log.warning("request refused host=%r origin=%r", (host or "")[:200], origin[:200])
        return AwsError("AccessDeniedException", why, 403)

    def _control(self, method: str, headers: dict[str, str], body: bytes) -> ServiceResponse:
        status, content = self.faults.control(method, headers.get("content-type", ""), body)
        return ServiceResponse(
            status, {"content-type": "application/json"}, json.dumps(content).encode() + b"\n"
        )

    async def _serve_with_fault(
        self,
        rule: FaultRule,
        service: str,
        operation: str,
        scope: Scope,
        headers: dict[str, str],
        body: bytes,
    ) -> ServiceResponse | None:
        """Return the response under a fault, None for no response. The log has the outcome of the request itself."""
        if rule.kind in NOT_DONE:
            error = refusal(rule, service, operation)
            if rule.kind == "reset-before":
                error = AwsError("ConnectionReset", "", 0)
            self._log(
                service, operation, _readable(service, headers, body), error.status, error.code, headers
            )
            return None if rule.kind == "reset-before" else _error_response(service, error, headers)
        if rule.kind == "late":
            await asyncio.sleep(rule.seconds)
        response = await self._respond(service, operation, scope, headers, body)
        if rule.kind == "slow":
            await asyncio.sleep(rule.seconds)
        if rule.kind in ("reset-after", "lost-answer"):
            return None
        if rule.kind in PUSH_FAULTS and response.events is not None:
            return replace(response, events=replace(response.events, fault=rule.kind))
        return (
            _error_response(service, refusal(rule, service, operation), headers)
            if rule.kind == "error-after"
            else response
        )

    async def _respond(
        self, service: str, operation: str, scope: Scope, headers: dict[str, str], body: bytes
    ) -> ServiceResponse:
        params: dict[str, Any] = {}
        try:
            params = _parameters(service, headers, body)
            lose = await self._loses_response(service, operation, params)
            if service == "kinesis" and operation == kinesis_api.SUBSCRIBE:
                events = EventStream(self._kinesis.subscribe(params), self._kinesis, format_of(headers))
                response = ServiceResponse(200, {"content-type": EVENTS_TYPE}, b"", events=events)
            elif service == "kinesis":
                wire = format_of(headers)
                content = wire.encode(self._kinesis.call(operation, params))
                response = ServiceResponse(200, {"content-type": wire.content_type}, content)
            elif service == "sts":
                response = ServiceResponse(
                    200, {"content-type": services.STS_CONTENT_TYPE}, services.sts_identity()
                )
            elif service:
                serve = partial(self._moto.serve, service, scope["path"], headers, body)
                if service in destinations.SERVICES:
                    raw_path, query = (
                        scope["raw_path"].decode("latin-1"),
                        scope["query_string"].decode("latin-1"),
                    )
                    serve = partial(
                        self._moto.serve_destination, service, scope["method"], raw_path, query, headers, body
                    )
                if services.is_rpc(headers):
                    serve = partial(services.serve_rpc, self._moto, operation, headers, params)
                response = await asyncio.get_running_loop().run_in_executor(self._pool, serve)
            else:
                raise AwsError(
                    "UnknownOperationException",
                    "The local AWS has Kinesis, DynamoDB, CloudWatch, SQS, SNS and S3 only.",
                )
        except AwsError as error:
            response, lose = _error_response(service, error, headers), False
        except Exception as error:
            log.exception("local AWS failed service=%s operation=%s", service, operation)
            response, lose = _error_response(service, _failure(error), headers), False
        self._log(service, operation, params, response.status, response.error_code, headers)
        if lose:
            lost = AwsError("InternalServerError", "The response was lost on purpose.", 500)
            return _error_response(service, lost, headers)
        return response

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
            shown = kinesis_api.loggable(shown)
        client = headers.get("user-agent", "")
        self._requests.add(LoggedRequest(self._now(), service, operation, shown, status, code, client))

    async def _loses_response(self, service: str, operation: str, params: dict[str, Any]) -> bool:
        """Return True if the response shall be lost.

        Runs in a thread, so that a hook that waits delays its request only.
        """
        if self.fault is None:
            return False
        return await asyncio.to_thread(self.fault, service, operation, params) == LOSE_ANSWER


def _failure(error: Exception) -> AwsError:
    return AwsError("InternalFailure", f"The local AWS failed with {type(error).__name__}.", 500)


def _target(scope: Scope, headers: dict[str, str], body: bytes) -> tuple[str, str]:
    """Return service and operation of a request; the service is empty if it is unknown."""
    unknown = "", str(scope["path"])
    if services.is_rpc(headers):
        operation = services.rpc_operation(scope["path"])
        return ("cloudwatch", operation) if operation else unknown
    if destinations.is_s3(headers):
        return "s3", destinations.s3_operation(scope["method"], scope["path"], scope["query_string"], headers)
    target = headers.get("x-amz-target", "")
    for prefix, service in (
        (kinesis_api.TARGET_PREFIX, "kinesis"),
        (DYNAMODB_PREFIX, "dynamodb"),
        (CLOUDWATCH_PREFIX, "cloudwatch"),
        (destinations.SQS_PREFIX, "sqs"),
    ):
        if target.startswith(prefix):
            return service, target[len(prefix) :]
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        found = _ACTION.search(body)
        if found is None:
            return "", ""
        action = found[1].decode()
        service = "sns" if destinations.is_sns(body) else "cloudwatch"
        return "sts" if action == services.STS_OPERATION else service, action
    return unknown


def _parameters(service: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    if service == "kinesis":
        return format_of(headers).decode(body)
    if service == "sqs":
        read_json(body or b"{}")  # moto reads it without limits
    if not service or service in destinations.SERVICES:
        return {}
    if services.is_rpc(headers):
        return services.decode_rpc(body)
    if service in ("cloudwatch", "sts") and "json" not in headers.get("content-type", ""):
        if body.count(b"&") > MAX_VALUES:
            raise not_serialized(f"The request body has more than {MAX_VALUES} fields.")
        return {}  # the query protocol
    params = read_json(body or b"{}")
    if not isinstance(params, dict):
        raise not_serialized("The request body is not a JSON object.")
    return params


def _readable(service: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """Return the parameters of a request that is not done; empty if they cannot be read."""
    try:
        return _parameters(service, headers, body)
    except AwsError:
        return {}


def _unpacked(encoding: str, body: bytes) -> bytes:
    """Decompress a body. Raises AwsError; stops when the content gets too large."""
    if encoding.lower() != "gzip":
        raise not_serialized("The request body is compressed, but not with gzip.")
    stream = zlib.decompressobj(_GZIP)
    try:
        content = stream.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise not_serialized("The request body is not compressed with gzip.") from error
    if len(content) > MAX_BODY_BYTES:
        raise _too_large()
    if not stream.eof or stream.unused_data:
        raise not_serialized("The request body is not exactly one gzip member.")
    return content


def _too_large() -> AwsError:
    return AwsError(
        "RequestEntityTooLargeException", f"A request body holds at most {MAX_BODY_BYTES} bytes.", 413
    )


def _error_response(service: str, error: AwsError, headers: dict[str, str]) -> ServiceResponse:
    if service in ("sts", "sns", "s3"):
        content = services.s3_error(error) if service == "s3" else services.sts_error(error)
        return ServiceResponse(error.status, {"content-type": services.STS_CONTENT_TYPE}, content, error.code)
    wire = format_of(headers)
    # Others have content types of their own.
    content_type = (
        wire.content_type if service == "kinesis" else headers.get("content-type", wire.content_type)
    )
    content = wire.encode({"__type": error.code, "message": error.message})
    answered = {"content-type": content_type, "x-amzn-errortype": error.code}
    if services.is_rpc(headers):
        answered |= services.RPC_HEADERS
    return ServiceResponse(error.status, answered, content, error.code)


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body; None if the client disconnected before its end.

    Raises AwsError, after its end, if it is too large.
    """
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        # Read to the end all the same: unread data would block the other streams of an HTTP/2 connection.
        if size <= MAX_BODY_BYTES:
            parts.append(part)
        else:
            parts.clear()
        more = message.get("more_body", False)
    if size > MAX_BODY_BYTES:
        raise _too_large()
    return b"".join(parts)


async def _until_gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_response(send: Send, response: ServiceResponse, now_millis: int) -> None:
    await send(_head(response, now_millis))
    await send({"type": "http.response.body", "body": response.body})


def _head(response: ServiceResponse, now_millis: int) -> dict[str, Any]:
    headers = {
        "x-amzn-requestid": str(uuid.uuid4()),
        "date": formatdate(now_millis / 1000, usegmt=True),
        **response.headers,
    }
    if response.events is None:
        headers["content-length"] = str(len(response.body))
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": response.status, "headers": pairs}
