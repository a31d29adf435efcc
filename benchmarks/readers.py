"""The readers that `benchmarks.peers` compares: how each is started, given records, and measured from outside."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from benchmarks.canned import Shape
from benchmarks.kclpy_child import ROOT, KclpyChild, lines_of
from benchmarks.live_shards import Control
from benchmarks.processes import Child

PROGRAMS = ROOT / "benchmarks" / "peer_programs"
REGION = "eu-west-1"
_LEAST_WINDOW = 3.0
SETTLE = 0.4
"""Seconds from the first records of a round until counting begins."""

BOTO3, PACED_BOTO3, ASYNC, KCLPY = "raw boto3", "raw boto3, paced", "async-kinesis", "kclpy child"
OVER_BOTO3, DIRECT_JSON, DIRECT_CBOR = "pykcl, boto3, JSON", "pykcl, direct, JSON", "pykcl, direct, CBOR"
EACH_BATCH = ", each batch"
EVERY_SECOND: dict[str, Any] = {"checkpoint_mode": "interval", "checkpoint_interval": 1.0}
PYKCL: dict[str, dict[str, Any]] = {
    OVER_BOTO3: {"http_transport": "boto3", **EVERY_SECOND},
    DIRECT_JSON: {"http_transport": "direct", "record_encoding": "json", **EVERY_SECOND},
    DIRECT_CBOR: {"http_transport": "direct", "record_encoding": "cbor", **EVERY_SECOND},
    DIRECT_JSON + EACH_BATCH: {
        "http_transport": "direct",
        "record_encoding": "json",
        "checkpoint_mode": "auto",
    },
    DIRECT_CBOR + EACH_BATCH: {
        "http_transport": "direct",
        "record_encoding": "cbor",
        "checkpoint_mode": "auto",
    },
}
"""Options of Config beside stream and start; all else is as it is by default."""


class TooLittleError(RuntimeError):
    """A window in which nothing came, or something else than what was put."""


class Reader(Protocol):
    name: str

    def sample(self, shape: Shape, window: float) -> float:
        """CPU of its process in seconds per user record, over a window of so many seconds."""

    def end(self) -> None: ...


def surroundings(url: str, certificate: Path | None) -> dict[str, str]:
    """What tells an AWS SDK where to go and whom to trust."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYKCL_"))}
    trusted = {"AWS_CA_BUNDLE": str(certificate)} if certificate else {}
    return {
        **kept, **trusted, "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip


def poll_window(child: Child, shape: Shape, window: float) -> float:
    """CPU per user record of a child to which records come."""
    child.wait_for_records(child.count()[0])
    time.sleep(SETTLE)
    (records, size), cpu = child.count(), child.cpu
    time.sleep(window)
    (more, larger), spent = child.count(), child.cpu - cpu
    if more <= records:
        raise TooLittleError(f"{child.name} got no records within {window:g} s")
    # Records and bytes are not counted at the same moment, and aws-kinesis-agg gives base64: a third more.
    mean = (larger - size) / (more - records)
    if not 0.8 * shape.size <= mean <= 1.6 * shape.size:
        raise TooLittleError(
            f"{child.name} got {mean:.0f} bytes a record of {shape.name}, not {shape.size}: wrong records"
        )
    return spent / (more - records)


class Boto3Reader:
    """Reads one shard flat out, in one thread, without the pauses that Kinesis demands: the least it can cost."""

    name = BOTO3
    program = "boto3_loop"

    def __init__(self, control: Control, certificate: Path | None, logs: Path, shards: int) -> None:
        self.control = control
        self.child = Child(
            self.name, [sys.executable, "-m", f"benchmarks.peer_programs.{self.program}", str(shards)],
            surroundings(control.url, certificate), logs,
        )  # fmt: skip

    def sample(self, shape: Shape, window: float) -> float:
        return self.sample_at("flat-out", shape, window)

    def sample_at(self, pace: str, shape: Shape, window: float) -> float:
        """pace: as the program is told it."""
        self.control.serve(shape.name)
        self.child.ask("aggregated" if shape.in_each > 1 else "plain")
        self.child.ask(pace)
        try:
            return poll_window(self.child, shape, window)
        finally:
            self.child.ask("rest")
            self.control.serve("")

    def flat_out_polls(self, window: float) -> float:
        """CPU of one empty poll, in seconds, without any pause."""
        self.child.ask("flat-out")
        polls, cpu = self.control.polls(), self.child.cpu
        time.sleep(window)
        spent, done = self.child.cpu - cpu, self.control.polls() - polls
        self.child.ask("rest")
        return spent / done

    def end(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.child.ask("rest")
        self.child.end()


class CallsReader(Boto3Reader):
    """pykcl's calls alone, in the same two ways."""

    name = "pykcl's calls"
    program = "stream_loop"


class PacedBoto3Reader:
    """The same program with a thread for each shard and Kinesis' pauses, as the worker has them: caches are as cold."""

    name = PACED_BOTO3

    def __init__(self, reader: Boto3Reader) -> None:
        self._reader = reader

    def sample(self, shape: Shape, window: float) -> float:
        return self._reader.sample_at("paced 0.2", shape, window)

    def end(self) -> None:
        """Its process is the other one's."""


class PykclReader:
    """A real worker in a process of its own, which lives as long as the run; at rest while others are measured."""

    def __init__(
        self, name: str, options: Mapping[str, Any], control: Control, certificate: Path | None, logs: Path
    ) -> None:
        self.name, self.control = name, control
        self.child = Child(
            name, [sys.executable, "-m", "benchmarks.peer_programs.pykcl_worker", json.dumps(options)],
            surroundings(control.url, certificate), logs,
        )  # fmt: skip

    def warm_up(self, shape: Shape) -> None:
        """Until records came and the way they come by has been learned."""
        self.control.serve(shape.name)
        self.child.wait_for_records(0)
        time.sleep(2.0)
        self.control.serve("")

    def sample(self, shape: Shape, window: float) -> float:
        self.control.serve(shape.name)
        try:
            return poll_window(self.child, shape, window)
        finally:
            self.control.serve("")

    def end(self) -> None:
        self.child.end()


class AsyncKinesisReader:
    """Started anew for each window: at rest it would look at one shard of eight every two seconds, in turn."""

    name = ASYNC

    def __init__(self, python: Path, control: Control, certificate: Path | None, logs: Path) -> None:
        self.control = control
        self._python, self._certificate, self._logs = python, certificate, logs
        self._child: Child | None = None

    def start(self, kind: str) -> Child:
        environment = surroundings(self.control.url, self._certificate)
        # Its environment is not ours: there is no pykcl in it.
        del environment["PYTHONPATH"]
        program = [str(self._python), str(PROGRAMS / "async_kinesis.py"), self.control.url, REGION, kind]
        self._child = Child(self.name, program, environment, self._logs)
        return self._child

    def sample(self, shape: Shape, window: float) -> float:
        self.control.serve(shape.name)
        child = self.start("aggregated" if shape.in_each > 1 else "plain")
        try:
            child.wait_for_records(0)
            time.sleep(1.0)
            # It fetches once a second: whole seconds, or the count depends on where they begin.
            return poll_window(child, shape, max(_LEAST_WINDOW, round(window)))
        finally:
            self.end()
            self.control.serve("")

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class KclpyReader:
    """The Python child of amazon_kclpy alone: what the JVM does (fetch, decode, open aggregates, encode) is missing."""

    name = KCLPY

    def __init__(self) -> None:
        self._child = KclpyChild(checkpoint_every=1.0)
        self._lines: dict[str, bytes] = {}

    def sample(self, shape: Shape, window: float) -> float:
        line = self._lines.setdefault(shape.name, lines_of(shape))
        self._child.say(line)
        until, cpu, records = time.monotonic() + window, self._child.cpu, 0
        while time.monotonic() < until:
            self._child.say(line)
            records += shape.user_records
        return (self._child.cpu - cpu) / records

    def end(self) -> None:
        self._child.end()
