"""A client of the health endpoints of workers: /status (lag, stalled calls) and /metrics (records processed)."""

from __future__ import annotations

import http.client
import io
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
from pykcl.model.metered_json import read_json
from pykcl.runtime import Runtime, parallel_map

log = logging.getLogger("pykcl.operate")

PATIENCE = 2.0
"""Seconds for one answer, from the connection to its last byte."""
_MAX_PARALLEL = 8
_MAX_BYTES = 8 * 1024 * 1024
_MAX_NUMBER = 1e15
_RECORDS = "pykcl_records_processed_total"
_SAMPLE = re.compile(
    rf"^{_RECORDS}(?:\{{(.*)\}})? ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?: [0-9]+)?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The status of one worker, as it reports it.

    worker: its identifier; None where there was no valid answer, and `problem` says why. state: of the worker.
    behind: lease key -> (seconds behind the tip, age of that value in seconds). records: number processed since it
    started; None where it has no such metric. stalled, paused: lease keys. troubles: texts. process: its number,
    where several processes answer at this address.
    """

    url: str
    worker: str | None = None
    problem: str = ""
    state: str = ""
    ready: bool = False
    behind: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    records: float | None = None
    stalled: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a worker."""

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
                f"{text[:200]!r} is not the address of a worker. Write it as in its --http, such as "
                "http://10.0.1.7:8080."
            )
        is_tls = parts.scheme == "https"
        return cls(f"{parts.scheme}://{parts.netloc}", host, port or (443 if is_tls else 80), is_tls)


class StatusClient:
    """Polls several workers in parallel. token: for /status, the same for all."""

    def __init__(self, urls: Sequence[str], runtime: Runtime, token: str | None = None) -> None:
        self.endpoints = tuple(Endpoint.of(url) for url in urls)
        self._runtime, self._token = runtime, token

    def ask(
        self, *, counts: bool = True, on_answer: Callable[[int, list[WorkerReport]], None] = lambda *_: None
    ) -> list[WorkerReport]:
        """Return one report per worker, in order; a parent of several processes has one for each of them.

        counts: with the number of records. on_answer: called from other threads with the number of an endpoint and its
        reports, as soon as they arrive. A worker that does not answer has a report with a problem.
        """

        def ask_one(number: int) -> list[WorkerReport]:
            reports = self._ask(self.endpoints[number], counts=counts)
            on_answer(number, reports)
            return reports

        numbers = range(len(self.endpoints))
        found = parallel_map(
            ask_one, numbers, self._runtime, max_threads=_MAX_PARALLEL, name="pykcl-worker-status"
        )
        return [report for number in numbers for report in found[number]]

    def _ask(self, endpoint: Endpoint, *, counts: bool) -> list[WorkerReport]:
        try:
            code, body = self._get(endpoint, "/status", with_token=True)
            if code != 200:
                return [WorkerReport(endpoint.url, problem=_refusal(code))]
            reports = parse_status(endpoint.url, body)
            if not counts or all(report.worker is None for report in reports):
                return reports
            code, body = self._get(endpoint, "/metrics", with_token=False)
            metrics = body if code == 200 else b""
            return [replace(one, records=parse_record_count(metrics, one.process)) for one in reports]
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # the last: a name with an empty part
            log.debug("worker does not answer url=%r error=%s", endpoint.url, type(error).__name__)
            return [WorkerReport(endpoint.url, problem=f"does not answer ({type(error).__name__})")]

    def _get(self, endpoint: Endpoint, path: str, *, with_token: bool) -> tuple[int, bytes]:
        until = self._runtime.monotonic() + PATIENCE

        def left() -> float:
            seconds = until - self._runtime.monotonic()
            if seconds <= 0:
                raise TimeoutError
            return seconds

        # No redirects: the token goes to the named address only.
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
            body = answer.read(_MAX_BYTES + 1)
            if len(body) > _MAX_BYTES:
                raise http.client.IncompleteRead(b"", _MAX_BYTES)
            return answer.status, body
        finally:
            connection.close()


class _ReadWithin(io.RawIOBase):
    """Reads a socket with one timeout for all reads. A socket's own timeout is for each: a byte a second would never
    end.

    left: returns the remaining seconds, or raises TimeoutError.
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


_NO_STATUS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


def parse_status(url: str, body: bytes) -> list[WorkerReport]:
    """Return the reports in an answer of /status, one for each process; missing fields are accepted."""
    try:
        status = read_json(body)
        processes = status.get("processes")
        if processes is None:
            return [_report(url, status)]
        return [
            replace(_report(f"{url} process {one['process']}", one), process=int(one["process"]))
            for one in processes
        ]
    except _NO_STATUS as error:
        return [WorkerReport(url, problem=f"answers with something else ({type(error).__name__})")]


def _report(url: str, status: Any) -> WorkerReport:
    try:
        worker = status["worker"]
        if worker is None:
            return WorkerReport(url, problem="has no worker yet")
        leases = [lease for lease in worker["leases"] if isinstance(lease.get("shard"), str)]
        return WorkerReport(
            url,
            worker=_text(worker["worker_id"]),
            state=_text(worker["state"]),
            ready=bool(status.get("ready")),
            behind=dict(filter(None, map(_behind, leases))),
            stalled=tuple(lease["shard"] for lease in leases if (lease.get("call") or {}).get("stalled")),
            paused=tuple(lease["shard"] for lease in leases if lease.get("paused") is True),
            troubles=tuple(_trouble(one) for one in worker.get("troubles") or ()),
        )
    except _NO_STATUS as error:
        return WorkerReport(url, problem=f"answers with something else ({type(error).__name__})")


def parse_record_count(body: bytes, process: int | None = None) -> float | None:
    """Return the records processed in a page for Prometheus, of all processes or of one; None without the metric."""
    found = _SAMPLE.findall(body.decode("utf-8", "replace"))
    label = f'process="{process}",'
    values = [float(value) for labels, value in found if process is None or labels.startswith(label)]
    return sum(values) if values and math.isfinite(sum(values)) else None


def _behind(lease: Mapping[str, Any]) -> tuple[str, tuple[float, float]] | None:
    millis, ago = lease.get("millis_behind_latest"), lease.get("lag_age")
    if not _is_measure(millis) or not _is_measure(ago):
        return None
    return lease["shard"], (millis / 1000, float(ago))


def _is_measure(value: object) -> TypeGuard[int | float]:
    """Return True for a number that a float can hold: JSON has larger integers."""
    return isinstance(value, int | float) and -_MAX_NUMBER < value < _MAX_NUMBER


def _trouble(one: Mapping[str, Any]) -> str:
    where = f" of {one['shard']}" if one.get("shard") else ""
    return f"{_text(one['what'])}{where} fails ({_text(one['cause'])})"


def _text(value: object) -> str:
    return str(value)[:1000]


def _refusal(code: int) -> str:
    if code in (401, 403):
        return "refuses: its token is another one. Do: PYKCL_HTTP_TOKEN=…, or --status-token-file"
    return f"answers with {code} instead of its status"
