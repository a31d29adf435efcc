"""Server of the page: one thread with an event loop, on a socket that is bound before the address is printed."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from pykcl.errors import ConfigError, SetupError
from pykcl.health.http import Address, Listener, listen
from pykcl.health.pages import new_token
from pykcl.runtime import Runtime
from pykcl.ui.app import Sessions, Site
from pykcl.ui.poller import Fleet, FleetPoller, LagPoller, Scans, WorkerPoller
from pykcl.ui.state_store import Broadcast, Rates, StateStore

MAX_CONNECTIONS = 128
"""Five browsers use less than half of them. A process may usually open 1,024 files."""

Place = tuple[str, int]


class Connections(socket.socket):
    """Listening socket with a limit, in place of `listener`. If there are too many connections, the oldest one without
    a session is ended, or the oldest one if all have one. Used by the thread of the event loop.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self.setblocking(False)
        self._open: dict[Place, socket.socket] = {}
        self._with_session: set[Place] = set()

    def accept(self) -> tuple[socket.socket, Any]:
        opened, address = super().accept()
        self._open = {place: one for place, one in self._open.items() if one.fileno() >= 0}
        self._with_session &= self._open.keys()
        if len(self._open) >= MAX_CONNECTIONS:
            self._end_one()
        place = address[:2]
        self._with_session.discard(place)
        self._open[place] = opened
        return opened, address

    def keep(self, client: Any) -> None:
        """Mark a connection on which a request with a session came. client: as in ASGI."""
        place = tuple(client or ())
        if place in self._open:
            self._with_session.add(place)

    def _end_one(self) -> None:
        place = next((one for one in self._open if one not in self._with_session), next(iter(self._open)))
        # The server sees the end of it, and closes it.
        with suppress(OSError):
            self._open.pop(place).shutdown(socket.SHUT_RDWR)


log = logging.getLogger("pykcl.ui")

START_SECONDS = 10.0
STOP_SECONDS = 5.0
HEAD_SECONDS = 20.0
"""Deadline for the head of a request after the connection or the previous response, so also the idle time."""


class UiServer:
    """Context manager that polls and serves.

    bind: where, such as "127.0.0.1:7654"; port 0 takes a free one. names: what browsers may call it besides, as in a
    Host header. Raises, when entered, ConfigError and SetupError for an address that cannot be had.
    """

    def __init__(
        self,
        watching: FleetPoller,
        hub: Broadcast,
        *,
        bind: str,
        names: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        self._watching, self._hub = watching, hub
        self._address = Address.of(bind)
        self._names = tuple(names)
        self.token = token or new_token()
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        """URL without the token. Raises RuntimeError before it is entered."""
        if self._listener is None:
            raise RuntimeError("The page has no address yet.")
        return f"http://{self._listener.address}"

    @property
    def link(self) -> str:
        """Link to the page. The token is after a #: browsers do not send that part."""
        return f"{self.url}/#token={self.token}"

    def __enter__(self) -> UiServer:
        self._listener = listener = listen(self._address)
        if not listener.is_loopback and not self._names:
            listener.socket.close()
            raise _too_open(listener)
        port = listener.address.port
        sessions = Sessions(self.token, f"pykcl_ui_{port}")
        connections = Connections(listener.socket)
        site = Site(
            self._watching,
            self._hub,
            sessions,
            hosts_of(listener, self._names),
            with_session=connections.keep,
        )
        self._thread = threading.Thread(
            target=self._run, args=(site, connections), name="pykcl-ui-http", daemon=True
        )
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise SetupError(f"The page did not begin to answer within {START_SECONDS:g} s.")
        self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.stop()
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or loop is None or stop is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)

    def _run(self, site: Site, connections: Connections) -> None:
        try:
            asyncio.run(self._serve(site, connections))
        except Exception as error:
            log.error("the page's server died error=%s", type(error).__name__)
            raise

    async def _serve(self, site: Site, connections: Connections) -> None:
        from pykcl.asgi_server import serve

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._hub.start(self._loop)
        self._ready.set()
        await serve(site.app, _config(), connections, self._until_stopped)

    async def _until_stopped(self) -> None:
        if self._stop is not None:
            await self._stop.wait()
        self._hub.end()


def page_server(
    fleet: Fleet,
    table: Scans,
    runtime: Runtime,
    *,
    bind: str,
    rates: Rates,
    names: Sequence[str] = (),
    lags: LagPoller | None = None,
    workers: WorkerPoller | None = None,
) -> UiServer:
    """Create the server with its poller, state store and broadcast."""
    memory = StateStore(runtime)
    hub = Broadcast(memory.whole)
    watching = FleetPoller(
        fleet,
        table,
        runtime,
        memory,
        rates=rates,
        lags=lags,
        workers=workers,
        publish=hub.publish,
        is_watched=lambda: hub.is_watched,
    )
    return UiServer(watching, hub, bind=bind, names=names)


def hosts_of(listener: Listener, names: Sequence[str]) -> frozenset[str]:
    """Return the allowed values of a Host header, with and, for port 80, without the port."""
    port = listener.address.port
    own = {"127.0.0.1", "localhost", "[::1]"} if listener.is_loopback else set()
    bare = {*own, *(name.lower() for name in names)}
    found = {name if _has_port(name) else f"{name}:{port}" for name in bare}
    return frozenset(found | ({name for name in bare if not _has_port(name)} if port == 80 else set()))


def _has_port(name: str) -> bool:
    return name.rpartition("]")[2].count(":") == 1


def _too_open(listener: Listener) -> ConfigError:
    return ConfigError(
        f"{listener.address} can be reached from elsewhere, over plain HTTP. Do: bind to 127.0.0.1 and come through a "
        "tunnel (ssh -L 7654:127.0.0.1:7654 HOST); or, behind a proxy with TLS, name it: --allow-host NAME."
    )


def _config() -> Any:
    from hypercorn.config import Config

    config = Config()
    config.loglevel = "WARNING"
    config.errorlog = None
    config.accesslog = None
    config.include_server_header = False
    config.graceful_timeout = 0.5
    config.h11_max_incomplete_size = 16 * 1024
    config.read_timeout = None
    config.keep_alive_timeout = HEAD_SECONDS
    # The guard refuses HTTP/2, which this server also speaks without TLS by default.
    config.alpn_protocols = ["http/1.1"]
    return config
