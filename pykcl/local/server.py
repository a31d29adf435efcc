"""`LocalAws`: Kinesis, DynamoDB and CloudWatch on one port, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from pykcl.host_names import allowed_names
from pykcl.local.app import AwsApp, FaultHook
from pykcl.local.aws_parts import MotoParts
from pykcl.local.faults import Faults
from pykcl.local.request_log import RequestLog
from pykcl.local.stream import LocalKinesis, ReadSpan

LOOPBACK = "127.0.0.1"
START_SECONDS = 10.0
STOP_SECONDS = 10.0
MOST_STREAMS = 500
"""Requests under way on one HTTP/2 connection.

hypercorn keeps them in a tree of at most 1,000, those given up lately among them, and hangs the connection beyond.
"""

log = logging.getLogger("pykcl.local")


def _utcnow_millis() -> int:
    return time.time_ns() // 1_000_000


class LocalAws:
    """A local AWS in background threads of this process. Use as a context manager, or start() and stop().

    port: 0 takes a free one. host: the address to listen on. allow_hosts: names or addresses that a request's Host
    header may have besides localhost and the address it came in on. limits: enforce the per-shard rates of Kinesis.
    state_seconds: how long streams stay CREATING, UPDATING, DELETING. read_span, listing_lag: as `LocalKinesis` has
    them. request_log: a file that gets every request as a JSON line. now_millis: the clock of Kinesis and of the Date
    headers, epoch milliseconds. fault: called with (service, operation, parameters) before each request, in a thread
    of its own; it may wait, raise AwsError to answer with that error, or return "lose-answer" to have the request
    done and answered with a 500.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = LOOPBACK,
        allow_hosts: Iterable[str] = (),
        limits: bool = False,
        state_seconds: float = 0.0,
        read_span: ReadSpan | None = None,
        listing_lag: float = 0.5,
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
            seed=time.time_ns(),
        )
        self._wanted = (host, port)
        self.requests = RequestLog(request_log)
        self._parts = MotoParts()
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
        """Faults between the clients and this server, by rules; also to be had over HTTP, see `faults`."""
        return self._app.faults

    @property
    def port(self) -> int:
        """The port it answers on; 0 before start()."""
        return self._port

    @property
    def url(self) -> str:
        """The endpoint URL for all three services. Raises RuntimeError before start()."""
        if not self._url:
            raise RuntimeError("The local AWS has no URL yet: call start() first.")
        return self._url

    def start(self) -> LocalAws:
        """Bind and answer. Raises OSError when address or port cannot be had, RuntimeError when already started."""
        if self._thread is not None:
            raise RuntimeError("This local AWS was started already. Make a new LocalAws.")
        listener = _listener(*self._wanted)
        address, self._port = str(listener.getsockname()[0]), int(listener.getsockname()[1])
        # Nobody can connect to "all addresses".
        reached = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(address, address)  # noqa: S104 - compared, not bound
        self._url = f"http://[{reached}]:{self._port}" if ":" in reached else f"http://{reached}:{self._port}"
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="pykcl-local", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise RuntimeError(f"The local AWS did not begin to answer within {START_SECONDS:g} s.")
        return self

    def stop(self) -> None:
        """Stop answering, free the port, end the threads, forget the data. Does nothing when not running."""
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
        """Delete all streams, tables, metrics and fault rules, and go on answering."""
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
        from hypercorn.asyncio import serve

        self._loop = asyncio.get_running_loop()
        self._app.connections.watch(self._loop)
        self._stop = stop = asyncio.Event()
        self._app.warm_up()
        listener.listen(1024)  # from here on clients are queued, so they need not wait for the loop
        self._ready.set()
        app: Any = self._app  # hypercorn's types want its own names for the ASGI messages
        try:
            await serve(app, _config(listener), shutdown_trigger=self._until_stopped)
        except asyncio.CancelledError:
            # hypercorn cancels what is still under way after its grace (an answer that a fault holds back), and then
            # raises that very cancellation. Nobody else cancels this task.
            if not stop.is_set():
                raise

    async def _until_stopped(self) -> None:
        if self._stop is not None:
            await self._stop.wait()
        self._app.connections.reset_held()


def _listener(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OSError."""
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


def _config(listener: socket.socket) -> Any:
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.loglevel = "WARNING"
    config.errorlog = None
    config.accesslog = None
    config.include_date_header = False  # ours goes by the injected clock
    config.include_server_header = False
    config.graceful_timeout = 0.2
    # Clients keep their connections; hypercorn's defaults (5 s, 1,000 requests) would break them under way.
    config.keep_alive_timeout = 3600
    config.keep_alive_max_requests = 1 << 62
    config.backlog = 1024
    # A client with more requests under way than it was told of loses the whole connection; Java sends each shard's
    # requests over one.
    config.h2_max_concurrent_streams = MOST_STREAMS
    return config
