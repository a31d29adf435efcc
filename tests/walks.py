"""The way of a page, of a checkpoint and of a heartbeat through pykcl: frames and files, seen in a running worker."""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest import mock

import boto3

from pykcl import RecordProcessor, Worker
from pykcl.local import local_environment
from pykcl.local.server import LocalAws

_PACKAGE = str(__import__("pykcl").__path__[0])
_PAGES = 4
_RENEWERS = ("pykcl-renewer", "pykcl-heartbeat")
_SECONDS = 60
_FEWEST = 10
"""Frames of a heartbeat that goes as far as its request."""


@dataclass
class Walk:
    """Files that took part, and the most frames of pykcl that lay on each other."""

    files: set[str] = field(default_factory=set)
    frames: int = 0

    def saw(self, stack: list[str]) -> None:
        self.files.add(stack[-1])
        self.frames = max(self.frames, len(stack))

    def __str__(self) -> str:
        return f"{self.frames} frames, {len(self.files)} files"


class Walker:
    """A profiler of all threads: what each of them calls in pykcl between two marks."""

    def __init__(self) -> None:
        self._stacks: defaultdict[int, list[str]] = defaultdict(list)
        self.since: defaultdict[int, Walk] = defaultdict(Walk)
        self.heartbeat = Walk(frames=_FEWEST)
        self.has_beaten = threading.Event()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path, me = frame.f_code.co_filename, threading.get_ident()
        if path == threading.__file__ and frame.f_code.co_name == "wait" and event == "call":
            self._rested(me)
        if event not in ("call", "return") or not path.startswith(_PACKAGE):
            return
        stack = self._stacks[me]
        if event == "call":
            stack.append(path.removeprefix(_PACKAGE + "/"))
            self.since[me].saw(stack)
        elif stack:
            stack.pop()

    def mark(self) -> Walk:
        """The walk of this thread since the last mark; the next one begins."""
        return self.since.pop(threading.get_ident(), Walk())

    def _rested(self, me: int) -> None:
        """A thread waits: what it did before is a walk of its own, a heartbeat where the renewer's thread wrote."""
        if threading.current_thread().name.startswith(_RENEWERS):
            walk = self.since.pop(me, Walk())
            if walk.frames > self.heartbeat.frames:
                self.heartbeat = walk
                self.has_beaten.set()


def walks() -> list[tuple[str, str, str]]:
    """Rows as of tests.measure: a page from the request to `process_records`, a checkpoint, a heartbeat."""
    walker, pages, checkpoints = Walker(), [], []
    enough = threading.Event()

    class Noting(RecordProcessor):
        def process_records(self, batch: Any) -> None:
            pages.append(walker.mark())
            batch.checkpointer.checkpoint()
            checkpoints.append(walker.mark())
            if len(pages) >= _PAGES:
                enough.set()

    with LocalAws() as aws, mock.patch.dict(os.environ, local_environment(aws.url)):
        client = boto3.client("kinesis")
        client.create_stream(StreamName="walks", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="walks", WaiterConfig={"Delay": 1})
        options = {"initial_position": "TRIM_HORIZON", "failover_time": 2.0, "checkpoint_mode": "manual"}
        worker = Worker("walks", stream="walks", processor=Noting, **options)
        threading.setprofile(walker)
        try:
            worker.start()
            for number in range(_SECONDS):
                client.put_record(StreamName="walks", Data=b"%d" % number, PartitionKey="k")
                if enough.wait(1.0):
                    break
            # A checkpoint is a heartbeat, too; the pure one comes when there are no more.
            walker.has_beaten.wait(_SECONDS)
        finally:
            threading.setprofile(None)
            worker.stop()
    if not checkpoints or not walker.has_beaten.is_set():
        sys.exit("No batch or no heartbeat came within a minute: nothing to measure.")
    # The first ones bring what is learned once; the last one is the usual way.
    return [
        ("a page, from the request to process_records", str(pages[-1]), "16"),
        ("a checkpoint", str(checkpoints[-1]), ""),
        ("a heartbeat", str(walker.heartbeat), ""),
    ]
