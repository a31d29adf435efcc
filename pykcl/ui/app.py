"""What is answered to which path. The guard stands in front of all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pykcl.ui.guard import MOST_BODY_BYTES, App, Guard, Sessions
from pykcl.ui.hub import Hub
from pykcl.ui.watching import Watching

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
"""Without a session: the page on which to enter the token, and what that page is made of."""
_WRONG_TOKEN_PAUSE = 0.5
BODY_SECONDS = 10.0
"""For the body of a request, after its head."""


def static_files() -> dict[str, tuple[bytes, str]]:
    """Path -> content and type. Read once: nothing that a request says ever becomes the name of a file."""
    found: dict[str, tuple[bytes, str]] = {}
    root = files("pykcl.ui") / "static"
    for folder, prefix in ((root, "/static/"), (root / "vendor", "/static/vendor/")):
        for one in folder.iterdir():
            kind = next((kind for end, kind in _KINDS.items() if one.name.endswith(end)), None)
            if one.is_file() and kind is not None:
                found[prefix + one.name] = (one.read_bytes(), kind)
    return found


class Site:
    """The routes; none of them writes to AWS. with_session: see `Guard`."""

    def __init__(
        self,
        watching: Watching,
        hub: Hub,
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
        told = await _body(request)
        cookie = self._sessions.begin(told.get("token")) if told is not None else None
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
                "Too many have this page open.\n", HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "10"}
            )
        # It counts from now on, not only from when its first words are sent: the next look must know of it.
        self._hub.visit()
        self._watching.hurry()
        return StreamingResponse(self._hub.frames(), media_type="text/event-stream")


async def _body(request: Request) -> dict[str, Any] | None:
    """None for what is no JSON object, too long, or not there in time."""
    try:
        told = json.loads(await asyncio.wait_for(_content(request), BODY_SECONDS))
    except (asyncio.TimeoutError, ClientDisconnect, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


async def _content(request: Request) -> bytes:
    """Raises ValueError where it is too long."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BODY_BYTES:
            raise ValueError
    return content


def _json(told: Any) -> Response:
    """In ASCII: no name in it can be more than text, not even half a character."""
    return Response(json.dumps(told, allow_nan=False), media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("That failed here; the log says of what.\n", HTTPStatus.INTERNAL_SERVER_ERROR)
