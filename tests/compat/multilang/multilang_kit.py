"""Around children that are real processes: what they wrote down, and what they are given."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pykcl.errors import CheckpointRefused
from pykcl.events import Event
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.processor import Batch, InitializationInput
from pykcl.worker.checkpointer import EndCheckpointer

TALKATIVE = Path(__file__).parent / "talkative.py"
SHARD = "shardId-000000000007"
DEADLINE = 300


def eventually(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + DEADLINE
    while not (result := condition()):
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.01)
    return result


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def notes(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def of(self, key: str) -> list[Any]:
        return [note[key] for note in self.notes if key in note]

    @property
    def pids(self) -> list[int]:
        return list(dict.fromkeys(note["pid"] for note in self.notes))


class Heard:
    """Events, by type."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Checkpoints:
    """A `Checkpointer` that remembers. fails: raised instead."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.made: list[tuple[Any, int]] = []
        self.fails = fails

    def checkpoint(self, at: Any = None, sub_sequence_number: int = 0) -> None:
        if self.fails is not None:
            raise self.fails
        if at is not None and not str(at).isdigit():
            raise CheckpointRefused("no number")
        self.made.append((at, sub_sequence_number))

    def prepare_checkpoint(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the protocol has no prepared checkpoints")


class End(EndCheckpointer):
    """Of a shard that has ended, without a lease behind it."""

    def __init__(self) -> None:
        self.confirmed = False

    def checkpoint(self, at: Any = None, sub_sequence_number: int = 0) -> None:
        self.confirmed = self.confirmed or at is None


def record(number: int, data: bytes = b"x", **other: Any) -> Record:
    return Record(data, f"key-{number}", str(number), 1_700_000_000_000.0 + number, SHARD, "orders", **other)


def batch(checkpointer: Any, *records: Record) -> Batch:
    return Batch(tuple(records), checkpointer, 5, SHARD, "orders")


def initialization(shard: str = SHARD) -> InitializationInput:
    return InitializationInput(shard, "orders", Checkpoint("TRIM_HORIZON"), None, 1, Checkpoints())
