"""What workers themselves tell over their health endpoint: /status (lag, what stalls), /metrics (records processed)."""

from __future__ import annotations

import http.client
import io
import json
import logging
import math
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from pykcl.errors import ConfigError
from pykcl.operate.side_by_side import side_by_side
from pykcl.runtime import Runtime

log = logging.getLogger("pykcl.operate")

PATIENCE = 2.0
"""Seconds for one answer, from the connection to its last byte."""
_SIDE_BY_SIDE = 8
_MOST_BYTES = 8 * 1024 * 1024
_MOST_MEASURE = 1e15
_RECORDS = "pykcl_records_processed_total"
_SAMPLE = re.compile(
    rf"^{_RECORDS}(?:\{{(.*)\}})? ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?: [0-9]+)?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """One worker, as it tells of itself.

    url: where. worker: its identifier; None: it did not answer, or not as a worker does, and `problem` says how.
    state: of the worker. behind: lease key -> (seconds behind the tip, seconds since that was told). records: how many
    it has processed since it began; None: it does not tell. stalled: lease keys. troubles: texts.
    process: its number, where it is one of several behind that address.
    """

    url: str
    worker: str | None = None
    problem: str = ""
    state: str = ""
    ready: bool = False
    behind: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    records: float | None = None
    stalled: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a worker answers."""

    url: str
    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def of(cls, text: str) -> Endpoint:
        """`http://host:8080`, or `host:8080`. Raises ConfigError."""
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https") or parts.path not in ("", "/") or parts.username:
            raise ConfigError(
                f"{text[:200]!r} is no address of a worker. Write it as its --http has it, such as "
                "http://10.0.1.7:8080."
            )
        is_tls = parts.scheme == "https"
        return cls(f"{parts.scheme}://{parts.netloc}", host, port or (443 if is_tls else 80), is_tls)


class WorkerPages:
    """Asks all of them at once. token: what /status needs, the same for all; None: without one."""

    def __init__(self, urls: Sequence[str], runtime: Runtime, token: str | None = None) -> None:
        self.endpoints = tuple(Endpoint.of(url) for url in urls)
        self._runtime, self._token = runtime, token

    def ask(
        self, *, counts: bool = True, on_answer: Callable[[int, list[WorkerPage]], None] = lambda *_: None
    ) -> list[WorkerPage]:
        """One for each, in order; of a parent of several processes one for each of those. counts: also of the records.

        on_answer: called from other threads with the number of an endpoint and its pages, as soon as they are there.
        Never raises for a worker that does not answer.
        """

        def ask_one(number: int) -> list[WorkerPage]:
            pages = self._ask(self.endpoints[number], counts=counts)
            on_answer(number, pages)
            return pages

        found = side_by_side(
            range(len(self.endpoints)),
            ask_one,
            self._runtime,
            most=_SIDE_BY_SIDE,
            name="pykcl-worker-page",
        )
        return [
            page
            for number, endpoint in enumerate(self.endpoints)
            for page in found.get(number)
            or [WorkerPage(endpoint.url, problem="could not be asked; the log says more")]
        ]

    def _ask(self, endpoint: Endpoint, *, counts: bool) -> list[WorkerPage]:
        try:
            code, body = self._get(endpoint, "/status", with_token=True)
            if code != 200:
                return [WorkerPage(endpoint.url, problem=_refusal(code))]
            pages = pages_of(endpoint.url, body)
            if not counts or all(page.worker is None for page in pages):
                return pages
            code, body = self._get(endpoint, "/metrics", with_token=False)
            told = body if code == 200 else b""
            return [replace(page, records=records_in(told, page.process)) for page in pages]
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # the last: a name with an empty part
            log.debug("worker does not answer url=%r error=%s", endpoint.url, type(error).__name__)
            return [WorkerPage(endpoint.url, problem=f"does not answer ({type(error).__name__})")]

    def _get(self, endpoint: Endpoint, path: str, *, with_token: bool) -> tuple[int, bytes]:
        until = self._runtime.monotonic() + PATIENCE

        def left() -> float:
            seconds = until - self._runtime.monotonic()
            if seconds <= 0:
                raise TimeoutError
            return seconds

        # No redirects: the token goes to nobody but whom it was told for.
        if endpoint.is_tls:
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                endpoint.host, endpoint.port, timeout=left(), context=context
            )
        else:
            connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=left())
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if with_token and self._token else {}
            connection.request("GET", path, headers=headers)
            opened: Any = _ReadWithin(connection.sock, left)  # of a socket only makefile() is asked for
            answer = http.client.HTTPResponse(opened, method="GET")
            answer.begin()
            body = answer.read(_MOST_BYTES + 1)
            if len(body) > _MOST_BYTES:
                raise http.client.IncompleteRead(b"", _MOST_BYTES)
            return answer.status, body
        finally:
            connection.close()


class _ReadWithin(io.RawIOBase):
    """Reads what comes within a time. A socket's own time-out is for each read: a byte each second never ends.

    left: seconds, or it raises TimeoutError.
    """

    def __init__(self, opened: socket.socket, left: Callable[[], float]) -> None:
        self._socket, self._left = opened, left

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(self._left())
        return self._socket.recv_into(buffer)


_NO_STATUS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


def pages_of(url: str, body: bytes) -> list[WorkerPage]:
    """What /status says, of one worker or of each of several processes; tolerant of fields that are not there."""
    try:
        told = json.loads(body)
        processes = told.get("processes")
        if processes is None:
            return [_page_of(url, told)]
        return [
            replace(_page_of(f"{url} process {one['process']}", one), process=int(one["process"]))
            for one in processes
        ]
    except _NO_STATUS as error:
        return [WorkerPage(url, problem=f"answers with something else ({type(error).__name__})")]


def _page_of(url: str, told: Any) -> WorkerPage:
    try:
        worker = told["worker"]
        if worker is None:
            return WorkerPage(url, problem="has no worker yet")
        leases = [lease for lease in worker["leases"] if isinstance(lease.get("shard"), str)]
        return WorkerPage(
            url,
            worker=_text(worker["worker_id"]),
            state=_text(worker["state"]),
            ready=bool(told.get("ready")),
            behind=dict(filter(None, map(_behind, leases))),
            stalled=tuple(lease["shard"] for lease in leases if (lease.get("call") or {}).get("stalled")),
            troubles=tuple(_trouble(one) for one in worker.get("troubles") or ()),
        )
    except _NO_STATUS as error:
        return WorkerPage(url, problem=f"answers with something else ({type(error).__name__})")


def records_in(body: bytes, process: int | None = None) -> float | None:
    """The sum of the records processed in a page for Prometheus, all or those of one process; None: no such metric."""
    found = _SAMPLE.findall(body.decode("utf-8", "replace"))
    label = f'process="{process}",'
    values = [float(value) for labels, value in found if process is None or labels.startswith(label)]
    return sum(values) if values and math.isfinite(sum(values)) else None


def _behind(lease: Mapping[str, Any]) -> tuple[str, tuple[float, float]] | None:
    millis, ago = lease.get("millis_behind_latest"), lease.get("behind_told_ago")
    if not _is_measure(millis) or not _is_measure(ago):
        return None
    return lease["shard"], (millis / 1000, float(ago))


def _is_measure(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that can be reckoned with: JSON has integers that no float can hold."""
    return isinstance(value, int | float) and -_MOST_MEASURE < value < _MOST_MEASURE


def _trouble(one: Mapping[str, Any]) -> str:
    where = f" of {one['shard']}" if one.get("shard") else ""
    return f"{_text(one['what'])}{where} fails ({_text(one['cause'])})"


def _text(value: object) -> str:
    return str(value)[:1000]


def _refusal(code: int) -> str:
    if code in (401, 403):
        return "refuses: its token is another one. Do: PYKCL_HTTP_TOKEN=…, or --worker-token-file"
    return f"answers with {code} instead of its status"
