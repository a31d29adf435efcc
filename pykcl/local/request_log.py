"""Log of the requests to the local AWS and their results, bounded in memory, and in a file of JSON lines."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

MAX_BYTES = 64 * 1024 * 1024
"""Memory for each service, about."""
_VALUE_BYTES, _REQUEST_BYTES = 64, 500
ROW_WRITES = ("PutItem", "UpdateItem", "DeleteItem")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request. at_millis: time of the response, epoch. service: such as kinesis.

    parameters: those that the operation has, without Kinesis payloads, keys and iterators. error_code: None for
    success. user_agent: name of the client, with AWS_SDK_UA_APP_ID of its environment as `app/…`.
    """

    at_millis: int
    service: str
    operation: str
    parameters: dict[str, Any]
    status: int
    error_code: str | None = None
    user_agent: str = ""


def known(service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that the operation has at AWS; empty for an operation that AWS does not have."""
    names = members_of(service).get(operation, frozenset()) if service else ()
    return {name: value for name, value in parameters.items() if name in names}


@cache
def members_of(service: str) -> dict[str, frozenset[str]]:
    """Return the members of each operation's request."""
    from botocore.loaders import Loader

    model = Loader().load_service_model(service, "service-2")
    inputs = {name: operation.get("input") for name, operation in model["operations"].items()}
    return {
        name: frozenset(model["shapes"][given["shape"]]["members"] if given else ())
        for name, given in inputs.items()
    }


def _size(request: LoggedRequest) -> int:
    """Estimate the memory of a request, in bytes: a small value takes more than its text."""
    text = json.dumps(request.parameters, separators=(",", ":"), default=repr)
    values = text.count(",") + text.count("[") + text.count("{")
    return (
        len(text) + _VALUE_BYTES * values + len(request.operation) + len(request.user_agent) + _REQUEST_BYTES
    )


class RequestLog:
    """Last requests of each service, at most `capacity` of them and about `max_bytes` of memory. Thread-safe."""

    def __init__(self, path: Path | None = None, capacity: int = 20_000, max_bytes: int = MAX_BYTES) -> None:
        self._lock = threading.Lock()
        self._capacity, self._most_bytes = capacity, max_bytes
        self._count = 0
        self._by_service: dict[str, deque[tuple[int, int, LoggedRequest]]] = {}
        self._bytes: Counter[str] = Counter()
        self._file: TextIO | None = path.open("a", encoding="utf-8") if path is not None else None

    def add(self, request: LoggedRequest) -> None:
        size = _size(request)
        with self._lock:
            service = request.service
            kept = self._by_service.setdefault(service, deque())
            self._count += 1
            kept.append((self._count, size, request))
            self._bytes[service] += size
            while len(kept) > self._capacity or self._bytes[service] > self._most_bytes:
                self._bytes[service] -= kept.popleft()[1]
            if self._file is not None:
                self._file.write(json.dumps(asdict(request), separators=(",", ":"), default=repr) + "\n")
                self._file.flush()

    def of(self, service: str, operation: str | None = None) -> list[LoggedRequest]:
        """Return the requests to one service, oldest first, of one operation if given."""
        with self._lock:
            kept = list(self._by_service.get(service, ()))
        return [request for _, _, request in kept if operation in (None, request.operation)]

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Iterate over all stored requests, oldest first."""
        with self._lock:
            kept = [numbered for service in self._by_service.values() for numbered in service]
        return iter([request for _, _, request in sorted(kept, key=itemgetter(0))])

    def close(self) -> None:
        """Close the file; the requests in memory stay readable."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
