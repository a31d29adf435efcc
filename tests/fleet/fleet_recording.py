"""What a record processor writes down, and when it checkpoints. Imports nothing but the standard library's quick parts:
a Java worker starts a process of its own for each shard.

One line of JSON per fact, in a file of each worker, written before the processor goes on: what a process had done
survives its kill -9, and a line it was killed in the middle of has no end and is not counted. `t` is in the milliseconds
of `fleet_clock`. `token` tells apart the processors that a worker had for one shard.

    {"what": "start", "worker": "w1", "pid": 4711, "t": …}
    {"what": "init", "shard": …, "token": 7, "at": "TRIM_HORIZON:0", "t": …}
    {"what": "given", "shard": …, "token": 7, "records": [["4960…", 0, 1741], …], "t": …}   a batch, before any work
    {"what": "done", "shard": …, "token": 7, "record": ["4960…", 0, 1741], "t": …}           one record, worked on
    {"what": "checkpoint", "shard": …, "token": 7, "at": "4960…:0", "t": …}                 confirmed to us
    {"what": "refused", "shard": …, "token": 7, "error": "LeaseLostError", "t": …}
    {"what": "ended" | "lost" | "shutdown", "shard": …, "token": 7, "t": …}
    {"what": "hanging", "shard": …, "token": 7, "t": …}                                     and never goes on
    {"what": "end", "t": …}                                                                 the process, in order

A record is [sequence number, sub-sequence number, its own number].
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_clock import now_millis

RECORDING_VARIABLE = "FLEET_RECORDING"
WORKER_VARIABLE = "FLEET_WORKER"
WORK_VARIABLE = "FLEET_WORK_SECONDS"
POLICY_VARIABLE = "FLEET_CHECKPOINTS"


class Recording:
    """A file that any thread of any process may append to: a line is one write."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **fields: object) -> None:
        with self._lock:
            line = json.dumps({"what": what, **fields, "t": now_millis()}, separators=(",", ":"))
            left = memoryview(line.encode() + b"\n")
            while left:
                left = left[os.write(self._file, left) :]


def complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of JSON that have an end: a process may have been killed in the middle of the last one."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def number_of(data: bytes) -> int:
    """A record's own number; one below zero, by its bytes, for a record that is none of the producer's JSON."""
    return int(json.loads(data)["id"]) if data[:1] == b"{" else -1 - zlib.crc32(data)


@dataclass(frozen=True, slots=True)
class Policy:
    """When a processor checkpoints by itself. Of the text "each", "every:13", "inside:2" or "never".

    each: when a batch is done. every: after each record whose own number is divisible by that. inside: after each
    record with that sub-sequence number, and nowhere else: in the middle of an aggregate. never: only the end of a shard.
    """

    kind: str
    number: int

    @staticmethod
    def of(text: str) -> Policy:
        """Raises ValueError for any other text."""
        kind, colon, number = text.partition(":")
        if kind not in ("each", "every", "inside", "never") or bool(colon) != (kind in ("every", "inside")):
            raise ValueError(f"{text!r} is no checkpoint policy: each, every:N, inside:N or never.")
        return Policy(kind, int(number or 0))

    def after_record(self, sub_sequence_number: int, number: int) -> bool:
        if self.kind == "every":
            return number % self.number == 0
        return self.kind == "inside" and sub_sequence_number == self.number

    @property
    def after_batch(self) -> bool:
        return self.kind == "each"
