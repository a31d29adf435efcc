"""The HTTP/2 connections of a process, and the one thread `pykcl-push` that serves them.

A thread that subscribes connects by itself where it must, because it may wait; from then on a connection belongs to the
one thread alone. All others leave it something to do, and wake it. It ends with the last connection, and a connection
with its last subscription.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from botocore.exceptions import BotoCoreError

from pykcl.aws.errors import sort_failure
from pykcl.aws.push.h2_link import Exchange, Headers, Link, NoHttp2
from pykcl.aws.push.subscription import PushedEvents
from pykcl.aws.transport.request_template import ClientSettings
from pykcl.aws.transport.transport import connect, failure_of
from pykcl.errors import PyKclError, TemporaryError
from pykcl.runtime import Runtime, Task

SECOND_LINK_FROM: Final = 8
"""Number of subscriptions from which on there are two connections, so that the loss of one does not end all."""
_ENOUGH_TO_WAKE: Final = 64 * 1024


class Place:
    """An endpoint. url: as errors name it. settings: how a client connects to it."""

    def __init__(self, url: str, host: str, port: int, is_tls: bool, settings: ClientSettings) -> None:
        self.url, self.host, self.port, self.is_tls, self.settings = url, host, port, is_tls, settings
        if settings.context is not None:
            settings.context.set_alpn_protocols(["h2", "http/1.1"])

    @property
    def key(self) -> tuple[str, int, bool, str]:
        """Endpoints with the same key share connections."""
        return self.host, self.port, self.is_tls, self.settings.trusted


class PushLinks:
    """The connections of this process. May be used by any number of threads at once; `of_process` finds it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._process = os.getpid()
        self._lock, self._opening = runtime.lock(), runtime.lock()
        self._links: dict[Any, list[Link]] = {}
        self._failed: dict[Any, tuple[float, BotoCoreError]] = {}
        self._orders: deque[tuple[Link, Callable[[], None]]] = deque()
        self._thread: Task | None = None
        self._waker: socket.socket | None = None

    def request(
        self, place: Place, headers: Headers, body: bytes, events: PushedEvents
    ) -> tuple[Link, Exchange]:
        """Send a request, and return once it is answered. Raises NoHttp2, and what botocore raises."""
        link = self._link_to(place)
        exchange = Exchange(headers, body, events, self._runtime.event())
        with self._lock:
            try:
                self._start()
            except TemporaryError:
                link.load -= 1
                raise
            # Under the lock, so that the thread does not end before it has the order.
            self._order(link, partial(link.send, exchange))
        is_answered = exchange.answered.wait(place.settings.read_timeout)
        failure = exchange.failure if is_answered else TimeoutError("no answer came")
        if failure is not None or not exchange.is_good:
            self.leave(link, exchange)
        if failure is not None:
            raise failure_of(failure, place.settings, place.url)
        return link, exchange

    def leave(self, link: Link, exchange: Exchange) -> None:
        """End what is left of an exchange, and what it took of the link. Once for each exchange."""

        def leave() -> None:
            with self._lock:
                link.load -= 1
                is_last = link.load == 0
                if is_last:
                    self._forget(link)
            link.cancel(exchange)
            if is_last:
                link.close(ConnectionResetError("it is no longer needed"))

        self._order(link, leave)

    def taken(self, link: Link, exchange: Exchange) -> None:
        """Let the service send as much as was taken."""
        self._order(link, partial(link.taken, exchange))

    # -- connecting ------------------------------------------------------------------------------------------------

    def _link_to(self, place: Place) -> Link:
        """Return a link with room, and count one more subscription of it."""
        began = self._runtime.monotonic()
        if (link := self._found(place)) is not None:
            return link
        with self._opening:
            # Another thread may have connected meanwhile, or have found that nobody can.
            if (link := self._found(place)) is not None:
                return link
            failed_at, error = self._failed.get(place.key, (-1.0, None))
            if error is not None and failed_at >= began:
                raise type(error)(**error.kwargs)
            try:
                link = self._opened(place)
            except BotoCoreError as error:
                self._failed[place.key] = self._runtime.monotonic(), error
                raise
            link.load = 1
            with self._lock:
                self._links.setdefault(place.key, []).append(link)
            return link

    def _found(self, place: Place) -> Link | None:
        with self._lock:
            links = [one for one in self._links.get(place.key, ()) if not one.is_closed]
            if not links or (len(links) == 1 and links[0].load >= SECOND_LINK_FROM):
                return None
            link = min(links, key=lambda one: one.load)
            if link.load >= link.max_streams:
                return None
            link.load += 1
            return link

    def _opened(self, place: Place) -> Link:
        opened = connect(place.settings, place.url, place.host, place.port, is_tls=place.is_tls)
        link = Link(opened, self._runtime.monotonic(), partial(_sorted, place))
        try:
            link.agree()
        except BaseException as error:
            opened.close()
            if isinstance(error, OSError) and not place.is_tls:
                # Nobody has promised HTTP/2 there, and some servers never answer what they do not know.
                raise NoHttp2 from error
            if isinstance(error, OSError):
                raise failure_of(error, place.settings, place.url) from error
            raise
        return link

    def _forget(self, link: Link) -> None:
        for links in self._links.values():
            if link in links:
                links.remove(link)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            waker, waking = socket.socketpair()
            waker.setblocking(False)
            waking.setblocking(False)
            try:
                self._thread = self._runtime.spawn("pykcl-push", partial(self._run, waker))
            except TemporaryError:
                waker.close()
                waking.close()
                raise
            self._waker = waking

    def _order(self, link: Link, order: Callable[[], None]) -> None:
        if self._process != os.getpid():
            return  # a process that was forked: the connections belong to the other one
        self._orders.append((link, order))
        waker = self._waker
        if waker is not None:
            # A full one wakes as well; one that was closed is of a thread that has ended, and so have all links.
            with suppress(OSError):
                waker.send(b"!")

    def _run(self, waker: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, waker:
            selector.register(waker, selectors.EVENT_READ)
            while True:
                self._obey()
                links = self._watched(selector, waker)
                if links is None:
                    return
                now = self._runtime.monotonic()
                wait = min((link.due_at for link in links), default=now) - now
                for key, _ in selector.select(max(0.0, wait)):
                    if key.fileobj is waker:
                        with suppress(OSError):
                            waker.recv(1 << 16)
                    else:
                        self._serve(key.fileobj)
                for link in links:
                    self._guard(link, partial(link.check, self._runtime.monotonic()))

    def _obey(self) -> None:
        while self._orders:
            self._guard(*self._orders.popleft())

    def _serve(self, link: Any) -> None:
        def serve() -> None:
            if link.wants_to_send:
                link.flush()
            link.receive(self._runtime.monotonic())

        self._guard(link, serve)

    def _guard(self, link: Link, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other connections are served on
            link.close(error)

    def _watched(self, selector: selectors.BaseSelector, waker: socket.socket) -> list[Link] | None:
        """Let the selector watch all links that are open. None: there are none, and nothing to do; the thread ends."""
        with self._lock:
            links = [link for found in self._links.values() for link in found if not link.is_closed]
            for found in self._links.values():
                found[:] = [link for link in found if not link.is_closed]
            if not links and not self._orders:
                self._thread = None
                if self._waker is not None:
                    self._waker.close()
                return None
        wanted = {link: selectors.EVENT_READ | (link.wants_to_send * selectors.EVENT_WRITE) for link in links}
        for key in list(selector.get_map().values()):
            if key.fileobj is not waker and key.fileobj not in wanted:
                selector.unregister(key.fileobj)
        for link, events in wanted.items():
            if link not in selector.get_map():
                selector.register(link, events)
            elif selector.get_key(link).events != events:
                selector.modify(link, events)
        return links


class LinkSource:
    """The `Source` of a subscription that a link carries."""

    def __init__(self, links: PushLinks, link: Link, exchange: Exchange) -> None:
        self._links, self._link, self._exchange = links, link, exchange
        self._taken = 0

    def taken(self, size: int) -> None:
        self._taken += size
        # Seldom, because it costs a system call; but the beginning of a long event must not wait for room.
        if self._taken >= _ENOUGH_TO_WAKE or self._exchange.events.is_first_cut:
            self._taken = 0
            self._links.taken(self._link, self._exchange)

    def close(self) -> None:
        self._links.leave(self._link, self._exchange)


def _sorted(place: Place, error: Exception) -> PyKclError:
    return sort_failure(
        failure_of(error, place.settings, place.url), doing="Reading the events of a subscription"
    )


_BY_PROCESS: Final[dict[int, PushLinks]] = {}


def of_process(runtime: Runtime) -> PushLinks:
    """Return the connections of this process."""
    return _BY_PROCESS.setdefault(os.getpid(), PushLinks(runtime))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_BY_PROCESS.clear)


__all__ = ["LinkSource", "NoHttp2", "Place", "PushLinks", "of_process"]
