"""amazon_kclpy's Python child alone: fed the lines a MultiLangDaemon would write; the JVM is not there and not counted."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from benchmarks.canned import Shape
from benchmarks.processes import cpu_seconds

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "peer_programs" / "kclpy_program.py"
sys.path.insert(0, str(ROOT / "tests" / "interop"))
import kclpy_package  # noqa: E402 - the one that installs the real amazon_kclpy

Unavailable = kclpy_package.Unavailable


def environment() -> dict[str, str]:
    """For a program of amazon_kclpy. Raises Unavailable."""
    return {**os.environ, "PYTHONPATH": str(kclpy_package.installed())}


def lines_of(shape: Shape) -> bytes:
    """One page as the JVM hands it over: every user record an object of its own, aggregates opened."""
    chance = random.Random(1)
    records = [
        {
            "data": base64.b64encode(chance.randbytes(shape.size)).decode(),
            "partitionKey": "device-00001",
            "sequenceNumber": f"4966{kinesis:052d}",
            "approximateArrivalTimestamp": 1_700_000_000_000 + kinesis,
            "subSequenceNumber": user,
            "action": "record",
        }
        for kinesis in range(shape.records)
        for user in range(shape.in_each)
    ]
    message = {"action": "processRecords", "records": records, "millisBehindLatest": 60_000}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class KclpyChild:
    """Started and initialized for one shard. checkpoint_every: seconds. Raises Unavailable."""

    def __init__(self, checkpoint_every: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "-", str(checkpoint_every)], env=environment(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        begin = {"action": "initialize", "shardId": "shardId-000000000000", "sequenceNumber": "TRIM_HORIZON"}
        self.say(json.dumps({**begin, "subSequenceNumber": 0}).encode() + b"\n")

    @property
    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def say(self, line: bytes) -> None:
        """And grant its checkpoints until it says that it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()
        while answer := self.process.stdout.readline():
            said = json.loads(answer) if answer.strip() else {}
            if said.get("action") == "status":
                return
            if said.get("action") == "checkpoint":
                granted = json.dumps({**said, "error": None}).encode() + b"\n"
                self.process.stdin.write(granted)
                self.process.stdin.flush()
        raise RuntimeError("the child of amazon_kclpy ended")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
