"""Who is answered. Loopback is no authentication: every page of the web, and everybody who has an account on this
machine, can send requests to a port of it.

In this order: the name in the Host header is one of ours (else another name was made to point here, and the browser
would take our answers for that name's); no other site is behind the request; and the browser has a session, which it
got for the token that was printed where the page was started.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY_BYTES = 64 * 1024
MOST_SESSIONS = 64
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
    """Browsers that have shown the token. Ends with the process. cookie: the name, which has the port in it: two of
    these pages on one machine would take each other's."""

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
        for oldest in list(self._known)[:-MOST_SESSIONS]:
            del self._known[oldest]
        return f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"

    def has(self, session: str | None) -> bool:
        return session is not None and session in self._known


class Guard:
    """ASGI around the application. hosts: what Host may be, with the port, in small letters. open_paths: what is
    answered without a session. with_session: called with the client of each request that has one."""

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
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
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
    """Of a header that is there twice, such as Host, nothing is believed."""
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
