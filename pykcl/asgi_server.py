"""An ASGI application on a listening socket: hypercorn, whose connections end with their clients.

hypercorn's own `serve` keeps a connection that its client closed while it was idle until the keep-alive time is over.
Needs the extra `local` or `ui`, so it is imported where a server starts.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.protocol import h2


class _StreamBuffer(h2.StreamBuffer):
    """Data that is still to be sent on one stream of HTTP/2. Whoever adds to it waits while it is full.

    hypercorn's own lets them go on as soon as the client's window is closed, so an answer without an end would pile up.
    """

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < h2.BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


h2.StreamBuffer = _StreamBuffer  # type: ignore[misc]

_ROUNDS_TO_ACCEPT = 5
"""Rounds of the event loop that a connection takes, once it has come, until its task is under way."""


class _Connection(TCPServer):
    """One connection. It waits for a next request only as long as its client may send one."""

    _has_client_left = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self._has_client_left = True
        await self.idle_task.stop()

    async def _idle_timeout(self) -> None:
        # A request that was under way when the client left begins the wait again at its end.
        if not self._has_client_left:
            await super()._idle_timeout()


async def serve(
    app: Any,
    config: Config,
    listener: socket.socket,
    until: Callable[[], Awaitable[None]],
    around: Callable[[asyncio.WriteTransport], AbstractContextManager[None]] = lambda transport: (
        nullcontext()
    ),
) -> None:
    """Serve until `until` returns; then close what is idle, and after `config.graceful_timeout` the rest.

    app: gets no lifespan events. config: its addresses are not used. around: entered for each connection.
    """
    context, loop = WorkerContext(None), asyncio.get_running_loop()
    wrapped = ASGIWrapper(app)
    under_way: set[asyncio.Task[Any]] = set()
    transports: WeakSet[asyncio.WriteTransport] = WeakSet()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        transports.add(writer.transport)
        with around(writer.transport):
            await _Connection(wrapped, loop, config, context, {}, reader, writer)

    server = await asyncio.start_server(converse, sock=listener, backlog=config.backlog)
    try:
        await until()
    finally:
        # A closed server loses a connection that it has just accepted, and leaves its socket open.
        with suppress(NotImplementedError):
            loop.remove_reader(listener)
        for _ in range(_ROUNDS_TO_ACCEPT):
            await asyncio.sleep(0)
        server.close()
        await context.terminated.set()
        late: set[asyncio.Task[Any]] = set()
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=config.graceful_timeout)
        # One whose client does not read would never end, as hypercorn waits until all is sent.
        for transport in transports:
            transport.abort()
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await asyncio.sleep(0)
