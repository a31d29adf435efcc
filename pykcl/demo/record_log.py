"""Record log of a demo worker: written by the worker process, read by the demo while it grows.

Every worker appends lines of JSON to a file of its own before `process_records` returns. So its deliveries survive
its kill -9; a line that the kill cut short has no end and is not counted.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykcl.model.record import Record


@dataclass(frozen=True, slots=True)
class Delivery:
    """One user record in one call of process_records.

    run: the fencing token of the ownership under which it came. at: monotonic nanoseconds, the same clock in all
    processes. id: the producer's number, None for a record that the producer did not put.
    """

    worker: str
    run: int
    shard: str
    sequence: str
    sub: int
    id: int | None
    at: int


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event of a worker, or the start of a batch (`kind` "Batch", with `records`)."""

    worker: str
    kind: str
    at: int
    fields: Mapping[str, Any]

    @property
    def shard(self) -> str:
        return str(self.fields.get("shard", ""))


class RecordLogWriter:
    """Writer in a worker process. Any thread may write; each call is in the file when it returns."""

    def __init__(self, path: Path, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def event(self, kind: str, /, **fields: Any) -> None:
        self._write([{**fields, "event": kind, "worker": self._worker, "at": time.monotonic_ns()}])

    def delivered(self, run: int, records: Iterable[Record]) -> None:
        at = time.monotonic_ns()
        self._write(
            {
                "worker": self._worker,
                "run": run,
                "shard": record.shard_id,
                "sequence": record.sequence_number,
                "sub": record.sub_sequence_number,
                "id": payload_id(record.data),
                "at": at,
            }
            for record in records
        )

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        left = memoryview("".join(json.dumps(line) + "\n" for line in lines).encode())
        with self._lock:
            while left:
                left = left[os.write(self._file, left) :]


_POISON = b'"poison": true'


def payload(number: int, size: int, *, poison: bool = False) -> bytes:
    """Payload of the user record `number`: JSON of about `size` bytes."""
    start = f'{{"id": {number}, {_POISON.decode() + ", " if poison else ""}"pad": "'
    return f'{start}{"." * max(0, size - len(start) - 2)}"}}'.encode()


def is_poison(data: bytes) -> bool:
    return _POISON in data


def payload_id(data: bytes) -> int | None:
    """Number in a payload of the demo; None for any other payload."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    number = found.get("id") if isinstance(found, dict) else None
    return number if isinstance(number, int) else None


def parse_line(line: bytes) -> Delivery | LoggedEvent:
    """Parse a line of a record log. Raises ValueError or KeyError for any other line."""
    fields = json.loads(line)
    if "event" in fields:
        return LoggedEvent(fields.pop("worker"), fields.pop("event"), fields.pop("at"), fields)
    return Delivery(**fields)


class RecordLogReader:
    """Reader of all record logs, as far as they are written. Used by one thread."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.events: list[LoggedEvent] = []
        self.ids: set[int] = set()
        self.sequences: dict[str, set[str]] = {}
        self.user_records: dict[str, int] = {}
        self.by_worker: dict[str, int] = {}
        self._in_progress: dict[tuple[str, str], int] = {}
        self._files: dict[Path, tuple[int, bytes]] = {}

    def add(self, path: Path) -> None:
        self._files[path] = (0, b"")

    def poll(self) -> None:
        """Read what has been appended since the last poll."""
        for path, (offset, rest) in self._files.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(offset)
                new = file.read()
            *lines, rest_now = (rest + new).split(b"\n")
            self._files[path] = (offset + len(new), rest_now)
            for line in lines:
                self._take(parse_line(line))

    def in_progress(self, worker: str) -> int:
        """Return the number of records in a running process_records of `worker` that are not logged yet."""
        return sum(count for (name, _), count in self._in_progress.items() if name == worker)

    def _take(self, entry: Delivery | LoggedEvent) -> None:
        if isinstance(entry, LoggedEvent):
            if entry.kind == "Batch":
                self._in_progress[entry.worker, entry.shard] = int(entry.fields["records"])
            else:
                self.events.append(entry)
            return
        self.deliveries.append(entry)
        self._in_progress[entry.worker, entry.shard] = (
            self._in_progress.get((entry.worker, entry.shard), 1) - 1
        )
        self.sequences.setdefault(entry.shard, set()).add(entry.sequence)
        self.by_worker[entry.worker] = self.by_worker.get(entry.worker, 0) + 1
        if entry.id is not None and entry.id not in self.ids:
            self.ids.add(entry.id)
            self.user_records[entry.shard] = self.user_records.get(entry.shard, 0) + 1


WORK_SECONDS = 0.12
"""Duration of a batch of any size, so that a kill -9 can hit it half done."""
PARTS = 4


def process_batch(record_log: RecordLogWriter, run: int, records: Sequence[Record]) -> None:
    """Process a batch in four parts and log each part when it is done. run: see `Delivery`."""
    record_log.event("Batch", shard=records[0].shard_id, records=len(records))
    size = -(-len(records) // PARTS)
    for start in range(0, len(records), size):
        time.sleep(WORK_SECONDS / PARTS)
        record_log.delivered(run, records[start : start + size])
