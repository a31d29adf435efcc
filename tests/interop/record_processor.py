"""What a Java worker's MultiLangDaemon starts for each shard. It writes down what it is given, as `fleet_recording` says,
and checkpoints by its policy.

`python -I -S record_processor.py`: no site packages, so that it is there at once. Its environment names the file, the
worker, the policy (`fleet_recording.Policy`) and the seconds of work per record.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))

from fleet_recording import (
    POLICY_VARIABLE,
    RECORDING_VARIABLE,
    WORK_VARIABLE,
    WORKER_VARIABLE,
    Policy,
    Recording,
    number_of,
)

from pykcl.demo.java_processor import MultiLangProcessor, payload_of, position_of


class Processor(MultiLangProcessor):
    def __init__(self) -> None:
        self._recording = Recording(os.environ[RECORDING_VARIABLE])
        self._policy = Policy.of(os.environ.get(POLICY_VARIABLE, "each"))
        self._work_seconds = float(os.environ.get(WORK_VARIABLE, "0"))
        self._run: dict[str, Any] = {}
        self._recording.write("start", worker=os.environ[WORKER_VARIABLE], pid=os.getpid())

    def initialize(self, shard: str, sequence_number: str, sub_sequence_number: int) -> None:
        # Below zero, where no lease counter is: those are the tokens of pykcl's workers.
        self._run = {"shard": shard, "token": -os.getpid()}
        self._recording.write("init", **self._run, at=f"{sequence_number}:{sub_sequence_number}")

    def process(self, records: list[dict[str, Any]]) -> None:
        named = [(*position_of(record), number_of(payload_of(record))) for record in records]
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

    def end(self, what: str) -> None:
        self._recording.write(what, **self._run)

    def _checkpoint(self, sequence: str, sub: int) -> None:
        error = self.checkpoint(sequence, sub)
        if error:
            self._recording.write("refused", **self._run, error=error)
        else:
            self._recording.write("checkpoint", **self._run, at=f"{sequence}:{sub}")


if __name__ == "__main__":
    Processor().serve()
