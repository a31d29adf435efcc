"""The answers to /livez, /readyz, /metrics and /status, and the token that opens /status from elsewhere."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path

from pykcl.errors import ConfigError
from pykcl.health.http import Answer, Request
from pykcl.health.probes import HealthSource, Verdict, as_json
from pykcl.host_names import is_own

SHORTEST = 16
_MAX_BYTES = 4096


def new_token() -> str:
    """192 bits of chance, in letters."""
    return secrets.token_urlsafe(24)


def checked_token(text: str, origin: str) -> str:
    """`text` as a token. Raises ConfigError, without the text. origin: what to call its place."""
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{origin} holds no token: use {SHORTEST} or more letters, digits and signs without a blank, such as "
            "the output of: openssl rand -hex 24"
        )
    return token


def token_from_file(path: Path) -> str:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
        text = content.decode("ascii")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(
            f"The token file {str(path)!r} cannot be read: {why}. Check path and permission."
        ) from None
    return checked_token(text, f"The token file {str(path)!r}")


def is_authorized(header: str | None, token: str) -> bool:
    """Return whether an Authorization header bears the token, in constant time."""
    scheme, _, given = (header or "").partition(" ")
    matches = hmac.compare_digest(given.strip().encode(), token.encode())
    return matches and scheme.lower() == "bearer"


FRESH_SECONDS = 0.25
"""An answer is reused for so long: a client that asks without end costs the worker four checks a second."""
_PROBES = ("/livez", "/readyz")
_FOREIGN = (
    "This page does not answer to the name in the Host header: a web page could have pointed it here. "
    "Ask by the address, or start the worker with --allow-host NAME."
)
_NO_METRICS = "Metrics for Prometheus are off. Do: --option metrics=prometheus (needs pykcl[prometheus])."


class Pages:
    """Used by the server's thread only. token: what /status needs; None: it is open, to this machine.

    allowed: names that a Host header may have besides the server's own, as of `allowed_names`.
    """

    def __init__(
        self,
        source: HealthSource,
        token: str | None,
        now: Callable[[], float] = time.monotonic,
        allowed: Collection[str] = (),
    ) -> None:
        self._source = source
        self._allowed = allowed
        self._now = now
        self._token = token
        self._fresh: dict[str, tuple[float, Answer]] = {}
        self._pages: dict[str, Callable[[], Answer]] = {
            "/livez": lambda: _verdict(source.check().live),
            "/readyz": lambda: _verdict(source.check().ready),
            "/metrics": self._metrics,
            "/status": lambda: Answer(HTTPStatus.OK, as_json(source.report()), "application/json"),
        }

    def answer(self, request: Request) -> Answer:
        page = self._pages.get(request.path)
        if page is None:
            return Answer.of(HTTPStatus.NOT_FOUND, f"Here are {', '.join(self._pages)}.")
        if not is_own(request.headers.get("host"), request.local_address, self._allowed):
            # A page of the web whose name was made to point here: the browser sends that name. A probe needs the code
            # only, whatever name it has for this place.
            if request.path in _PROBES:
                return Answer(self._recent(request.path, page).status, b"")
            return Answer.of(HTTPStatus.FORBIDDEN, _FOREIGN)
        if (
            request.path == "/status"
            and self._token is not None
            and not is_authorized(request.headers.get("authorization"), self._token)
        ):
            return Answer.of(
                HTTPStatus.UNAUTHORIZED,
                "This page needs the token: Authorization: Bearer TOKEN.",
                **{"WWW-Authenticate": 'Bearer realm="pykcl"'},
            )
        return self._recent(request.path, page)

    def _recent(self, path: str, page: Callable[[], Answer]) -> Answer:
        now = self._now()
        made_at, answer = self._fresh.get(path, (float("-inf"), None))
        if answer is None or now - made_at >= FRESH_SECONDS:
            answer = page()
            self._fresh[path] = (now, answer)
        return answer

    def _metrics(self) -> Answer:
        found = self._source.exposition()
        if found is None:
            return Answer.of(HTTPStatus.NOT_FOUND, _NO_METRICS)
        return Answer(HTTPStatus.OK, *found)


def _verdict(verdict: Verdict) -> Answer:
    if verdict.is_good:
        return Answer.of(HTTPStatus.OK, "ok")
    return Answer.of(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(verdict.why))
