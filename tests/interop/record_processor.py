"""What a Java worker's MultiLangDaemon starts for each shard: the other end of its protocol, JSON lines on standard
input and output. It writes down what it is given, as `fleet_recording` says, and checkpoints by its policy.

`python -I -S record_processor.py`: no site packages, so that it is there at once. Its environment names the file, the
worker, the policy (`fleet_recording.Policy`) and the seconds of work per record.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))

from fleet_recording import (
    POLICY_VARIABLE,
    RECORDING_VARIABLE,
    WORK_VARIABLE,
    WORKER_VARIABLE,
    Policy,
    Recording,
)

WORDS = {"leaseLost": "lost", "shardEnded": "ended", "shutdownRequested": "shutdown"}
"""The ends of a processor, by the daemon's name and ours."""


class Processor:
    """One shard of one worker. Ends when the daemon is gone, however it went: its standard input is at an end."""

    def __init__(self) -> None:
        self._recording = Recording(os.environ[RECORDING_VARIABLE])
        self._policy = Policy.of(os.environ.get(POLICY_VARIABLE, "each"))
        self._work_seconds = float(os.environ.get(WORK_VARIABLE, "0"))
        self._run: dict[str, Any] = {}
        self._recording.write("start", worker=os.environ[WORKER_VARIABLE], pid=os.getpid())

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            action = message["action"]
            if action == "initialize":
                self._initialize(message)
            elif action == "processRecords":
                self._process(message["records"])
            elif action in WORDS:
                self._end(WORDS[action])
            _say({"action": "status", "responseFor": action})

    def _initialize(self, message: dict[str, Any]) -> None:
        # Below zero, where no lease counter is: those are the tokens of pykcl's workers.
        self._run = {"shard": message["shardId"], "token": -os.getpid()}
        at = f"{message['sequenceNumber']}:{message.get('subSequenceNumber') or 0}"
        self._recording.write("init", **self._run, at=at)

    def _process(self, records: list[dict[str, Any]]) -> None:
        named = [_named(record) for record in records]
        if not named:
            return
        self._recording.write("given", **self._run, records=named)
        for sequence, sub, number in named:
            if self._work_seconds:
                time.sleep(self._work_seconds)
            self._recording.write("done", **self._run, record=(sequence, sub, number))
            if self._policy.after_record(sub, number):
                self._checkpoint(sequence, sub)
        if self._policy.after_batch:
            self._checkpoint(*named[-1][:2])

    def _end(self, what: str) -> None:
        self._recording.write(what, **self._run)
        if what == "ended":
            # Without it the daemon takes the shard for unfinished.
            self._checkpoint(None, None)

    def _checkpoint(self, sequence: str | None, sub: int | None) -> None:
        _say({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)  # the daemon is gone, and nobody will ever tell
        answer = json.loads(line)
        if answer.get("error"):
            self._recording.write("refused", **self._run, error=answer["error"])
        elif sequence is not None:
            self._recording.write("checkpoint", **self._run, at=f"{sequence}:{sub}")


def _named(record: dict[str, Any]) -> tuple[str, int, int]:
    number = int(json.loads(base64.b64decode(record["data"]))["id"])
    return record["sequenceNumber"], record.get("subSequenceNumber") or 0, number


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Processor().serve()
