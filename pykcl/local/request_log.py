"""What the local AWS was asked and what it answered, kept bounded in memory and, if wanted, as JSON lines."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

ROW_WRITES = ("PutItem", "UpdateItem", "DeleteItem")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request. at_millis: when it was answered, epoch. service: kinesis, dynamodb or cloudwatch.

    parameters: as sent, without Kinesis payloads, keys and iterators. error_code: None when it succeeded. user_agent:
    how the client calls itself; AWS_SDK_UA_APP_ID in its environment stands there as `app/…`.
    """

    at_millis: int
    service: str
    operation: str
    parameters: dict[str, Any]
    status: int
    error_code: str | None = None
    user_agent: str = ""


class RequestLog:
    """The last `capacity` requests of each service. Thread-safe."""

    def __init__(self, path: Path | None = None, capacity: int = 20_000) -> None:
        self._lock = threading.Lock()
        self._capacity = capacity
        self._count = 0
        self._by_service: dict[str, deque[tuple[int, LoggedRequest]]] = {}
        self._file: TextIO | None = path.open("a", encoding="utf-8") if path is not None else None

    def add(self, request: LoggedRequest) -> None:
        with self._lock:
            kept = self._by_service.setdefault(request.service, deque(maxlen=self._capacity))
            self._count += 1
            kept.append((self._count, request))
            if self._file is not None:
                self._file.write(json.dumps(asdict(request), separators=(",", ":"), default=repr) + "\n")
                self._file.flush()

    def of(self, service: str, operation: str | None = None) -> list[LoggedRequest]:
        """The requests to one service, oldest first, of one operation if given."""
        with self._lock:
            kept = list(self._by_service.get(service, ()))
        return [request for _, request in kept if operation in (None, request.operation)]

    def __iter__(self) -> Iterator[LoggedRequest]:
        """All kept requests, oldest first."""
        with self._lock:
            kept = [numbered for service in self._by_service.values() for numbered in service]
        return iter([request for _, request in sorted(kept, key=itemgetter(0))])

    def last_writes(self, table: str, key: str = "leaseKey") -> dict[str, LoggedRequest]:
        """The last successful write of every row of a table, by the text of its key attribute."""
        last: dict[str, LoggedRequest] = {}
        for request in self.of("dynamodb"):
            given = request.parameters
            if (
                request.operation not in ROW_WRITES
                or request.status != 200
                or given.get("TableName") != table
            ):
                continue
            row = given.get("Key") or given.get("Item") or {}
            last[str(row.get(key, {}).get("S", ""))] = request
        return last

    def close(self) -> None:
        """Close the file; what is in memory stays readable."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
