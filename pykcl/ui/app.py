"""Routes of the page, and the access checks before all of them. Loopback is not an authentication: every page of the
web, and every account of this machine, can send requests to a port of it.

The checks in their order: the name in the Host header is one of ours (else another name resolves to this address, and
the browser would use our responses for that name); no other site is behind the request; and the browser has a session,
which it got for the token that was printed where the page was started.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pykcl.model.metered_json import read_json
from pykcl.ui.poller import FleetPoller
from pykcl.ui.state_store import Broadcast

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024
MAX_SESSIONS = 64
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_NO_HTTP_2 = (HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1, please.")
_ALWAYS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(slots=True)
class Sessions:
    """Sessions of browsers that sent the token, until the process ends. cookie: its name, with the port: two pages on
    one machine need different ones."""

    token: str
    cookie: str
    _known: dict[str, None] = field(default_factory=dict, repr=False)

    def begin(self, token: object) -> str | None:
        """Return the Set-Cookie header for the right token, else None."""
        # JSON can hold half a character, which cannot be encoded; a token is ASCII.
        if not isinstance(token, str) or not token.isascii():
            return None
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        session = secrets.token_urlsafe(24)
        self._known[session] = None
        for oldest in list(self._known)[:-MAX_SESSIONS]:
            del self._known[oldest]
        return f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"

    def has(self, session: str | None) -> bool:
        return session is not None and session in self._known


class Guard:
    """ASGI middleware with the checks. hosts: allowed values of Host, with the port, in lower case. open_paths: served
    without a session. with_session: called with the client of each request that has one."""

    def __init__(
        self,
        app: App,
        sessions: Sessions,
        hosts: Collection[str],
        open_paths: Collection[str],
        with_session: Callable[[Any], None],
    ) -> None:
        self._app, self._sessions, self._with_session = app, sessions, with_session
        self._hosts, self._open = frozenset(hosts), frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _single(scope["headers"])
        scope["session"] = session = _cookie(headers, self._sessions.cookie)
        refusal = _NO_HTTP_2 if scope["http_version"] == "2" else self._refusal(scope, headers, session)
        if refusal is not None:
            await _refuse(_with_headers(send), *refusal)
            return
        scope["has_session"] = self._sessions.has(session)
        if scope["has_session"]:
            self._with_session(scope.get("client"))
        await self._app(scope, receive, _with_headers(send))

    def _refusal(
        self, scope: Scope, headers: dict[str, str], session: str | None
    ) -> tuple[HTTPStatus, str] | None:
        method, path = scope["method"], scope["path"]
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, "This page does not answer to that name."
        if method not in ("GET", "HEAD", "POST"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD or POST."
        own = f"{scope.get('scheme', 'http')}://{host}"
        if self._is_of_another_site(method, path, headers, own):
            return HTTPStatus.FORBIDDEN, "Another site is behind this request."
        if (
            method == "POST"
            and headers.get("content-type", "").partition(";")[0].strip() != "application/json"
        ):
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "JSON, please."
        if path not in self._open and not self._sessions.has(session):
            return HTTPStatus.UNAUTHORIZED, "Open the address that was printed where this page was started."
        return None

    @staticmethod
    def _is_of_another_site(method: str, path: str, headers: dict[str, str], own: str) -> bool:
        origin = headers.get("origin")
        if origin is not None and origin != own:
            return True
        if method == "POST" and origin is None:
            # Every browser sends it with a POST.
            return True
        site = headers.get("sec-fetch-site", "same-origin")
        # To follow a link to the front page is all that other sites may: without the cookie, which is Strict.
        is_link = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
        return site not in ("same-origin", "none") and not is_link


def _single(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; the value of one that is there twice is invalid."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        found[key] = value.decode("latin-1") if key not in found else "\0"
    return found


def _cookie(headers: dict[str, str], name: str) -> str | None:
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[name].value if name in jar else None


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.lower().encode(), value.encode()) for name, value in _ALWAYS.items()]
            names = {name for name, _ in own}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names]
            message["headers"] = [*kept, *own]
        await send(message)

    return with_headers


async def _refuse(send: Send, status: HTTPStatus, text: str) -> None:
    body = f"{text}\n".encode("ascii")
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
    ".LICENSE": "text/plain; charset=utf-8",
}
OPEN_PATHS = (
    "/",
    "/session",
    "/static/icon.svg",
    "/static/login.js",
    "/static/session.js",
    "/static/style.css",
    "/static/theme.js",
)
"""Served without a session: the login page and its files."""
_WRONG_TOKEN_PAUSE = 0.5
BODY_SECONDS = 10.0
"""Deadline for the body of a request, after its head."""


def static_files() -> dict[str, tuple[bytes, str]]:
    """Read the static files; return content and type by path. Read once: no request ever names a file."""
    found: dict[str, tuple[bytes, str]] = {}
    root = files("pykcl.ui") / "static"
    for folder, prefix in ((root, "/static/"), (root / "vendor", "/static/vendor/")):
        for one in folder.iterdir():
            kind = next((kind for end, kind in _KINDS.items() if one.name.endswith(end)), None)
            if one.is_file() and kind is not None:
                found[prefix + one.name] = (one.read_bytes(), kind)
    return found


class Site:
    """Routes; none of them writes to AWS. with_session: see `Guard`."""

    def __init__(
        self,
        watching: FleetPoller,
        hub: Broadcast,
        sessions: Sessions,
        hosts: frozenset[str],
        *,
        with_session: Callable[[Any], None],
    ) -> None:
        self._watching, self._hub, self._sessions = watching, hub, sessions
        self._files = static_files()
        routes = [
            Route("/", self._front),
            Route("/static/{path:path}", self._static),
            Route("/session", self._begin, methods=["POST"]),
            Route("/api/state", self._state),
            Route("/api/events", self._events),
        ]
        inner: Any = Starlette(routes=routes, exception_handlers={Exception: _failed})
        self.app: App = Guard(inner, sessions, hosts, OPEN_PATHS, with_session)

    async def _front(self, request: Request) -> Response:
        name = "index.html" if request.scope["has_session"] else "login.html"
        content, kind = self._files[f"/static/{name}"]
        return Response(content, media_type=kind)

    async def _static(self, request: Request) -> Response:
        found = self._files.get(request.url.path)
        if found is None:
            return PlainTextResponse("There is no such file.\n", HTTPStatus.NOT_FOUND)
        return Response(found[0], media_type=found[1])

    async def _begin(self, request: Request) -> Response:
        body = await _body(request)
        cookie = self._sessions.begin(body.get("token")) if body is not None else None
        if cookie is None:
            await asyncio.sleep(_WRONG_TOKEN_PAUSE)
            return PlainTextResponse("That is not the token.\n", HTTPStatus.FORBIDDEN)
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Set-Cookie": cookie})

    async def _state(self, request: Request) -> Response:
        if self._hub.visit():
            self._watching.hurry()
        _, whole = await asyncio.to_thread(self._watching.memory.whole)
        return _json(whole)

    async def _events(self, request: Request) -> Response:
        if self._hub.is_full():
            return PlainTextResponse(
                "Too many viewers have this page open.\n",
                HTTPStatus.SERVICE_UNAVAILABLE,
                {"Retry-After": "10"},
            )
        # A viewer counts from now on, not from its first frame: the next scan must already use its interval.
        self._hub.visit()
        self._watching.hurry()
        return StreamingResponse(self._hub.frames(), media_type="text/event-stream")


async def _body(request: Request) -> dict[str, Any] | None:
    """Return the JSON object of a body; None if it is not one, too long, or late."""
    try:
        body = read_json(await asyncio.wait_for(_content(request), BODY_SECONDS))
    except (TimeoutError, ClientDisconnect, ValueError):
        return None
    return body if isinstance(body, dict) else None


async def _content(request: Request) -> bytes:
    """Return the body. Raises ValueError if it is too long."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise ValueError
    return content


def _json(content: Any) -> Response:
    """Return a response in ASCII, so that every name in it, even half a surrogate pair, is valid text."""
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Internal error: see the log of pykcl ui.\n", HTTPStatus.INTERNAL_SERVER_ERROR)
