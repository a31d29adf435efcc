"""The demo's own bookkeeping: what each worker process wrote down, and how the parent reads it while it grows.

Every worker appends lines of JSON to a file of its own, before `process_records` returns. What it had delivered
therefore survives its kill -9; a line it was killed in the middle of has no end and is not counted.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykcl.model.record import Record


@dataclass(frozen=True, slots=True)
class Delivery:
    """One user record in one call of process_records.

    run: the fencing token of the ownership under which it came. at: monotonic nanoseconds, the same clock in all
    processes. id: what the producer numbered it, None for a record of somebody else.
    """

    worker: str
    run: int
    shard: str
    sequence: str
    sub: int
    id: int | None
    at: int


@dataclass(frozen=True, slots=True)
class Note:
    """An event of a worker, or the beginning of a batch (`kind` "Batch", with `records`)."""

    worker: str
    kind: str
    at: int
    fields: Mapping[str, Any]

    @property
    def shard(self) -> str:
        return str(self.fields.get("shard", ""))


class LedgerFile:
    """The writing side, in a worker process. Any thread may write; each call is in the file when it returns."""

    def __init__(self, path: Path, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, /, **fields: Any) -> None:
        self._write([{**fields, "note": kind, "worker": self._worker, "at": time.monotonic_ns()}])

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


def payload(number: int, size: int) -> bytes:
    """The payload of the user record `number`: JSON of about `size` bytes."""
    start = f'{{"id": {number}, "pad": "'
    return f'{start}{"." * max(0, size - len(start) - 2)}"}}'.encode()


def payload_id(data: bytes) -> int | None:
    """The number in a payload of the demo; None for any other payload."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    number = found.get("id") if isinstance(found, dict) else None
    return number if isinstance(number, int) else None


def parse_line(line: bytes) -> Delivery | Note:
    """Raises ValueError or KeyError for a line no worker wrote."""
    fields = json.loads(line)
    if "note" in fields:
        return Note(fields.pop("worker"), fields.pop("note"), fields.pop("at"), fields)
    return Delivery(**fields)


class Ledgers:
    """The reading side: all files, as far as they are written. Used by one thread."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.notes: list[Note] = []
        self.ids: set[int] = set()
        self.sequences: dict[str, set[str]] = {}
        self.user_records: dict[str, int] = {}
        self.by_worker: dict[str, int] = {}
        self._in_hand: dict[tuple[str, str], int] = {}
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

    def in_hand(self, worker: str) -> int:
        """Records that process_records of `worker` was called with and has not written down yet."""
        return sum(count for (name, _), count in self._in_hand.items() if name == worker)

    def _take(self, entry: Delivery | Note) -> None:
        if isinstance(entry, Note):
            if entry.kind == "Batch":
                self._in_hand[entry.worker, entry.shard] = int(entry.fields["records"])
            else:
                self.notes.append(entry)
            return
        self.deliveries.append(entry)
        self._in_hand[entry.worker, entry.shard] = self._in_hand.get((entry.worker, entry.shard), 1) - 1
        self.sequences.setdefault(entry.shard, set()).add(entry.sequence)
        self.by_worker[entry.worker] = self.by_worker.get(entry.worker, 0) + 1
        if entry.id is not None and entry.id not in self.ids:
            self.ids.add(entry.id)
            self.user_records[entry.shard] = self.user_records.get(entry.shard, 0) + 1
