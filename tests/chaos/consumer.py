"""What the workers of a run process with: `pykcl run consumer:Consumer`. Writes down everything it is told and does.

One line of JSON per fact, in the file named by CHAOS_RECORDING, written before the method goes on: what a process had
done survives its kill -9, and a line it was killed in the middle of has no end and is not counted. `t` is in the
milliseconds of `chaos_clock`.

    {"what": "start", "worker": "w1", "pid": 4711, "t": …}
    {"what": "init", "shard": …, "token": 7, "at": "TRIM_HORIZON:0", "t": …}
    {"what": "given", "shard": …, "token": 7, "records": [["4960…", 0, 1741], …], "t": …}   a batch, before any work
    {"what": "done", "shard": …, "token": 7, "record": ["4960…", 0, 1741], "t": …}           one record, worked on
    {"what": "checkpoint", "shard": …, "token": 7, "at": "4960…:0", "t": …}                 confirmed to us
    {"what": "refused", "shard": …, "token": 7, "error": "LeaseLost", "t": …}
    {"what": "ended" | "lost" | "shutdown", "shard": …, "token": 7, "t": …}
    {"what": "hanging", "shard": …, "token": 7, "t": …}                                     and never goes on
    {"what": "end", "t": …}                                                                 the process, in order
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from pathlib import Path

import chaos_breaks
from chaos_clock import die_with_the_harness, now_millis

from pykcl import Batch, Initialization, LeaseLoss, RecordProcessor, ShardEnd, ShutdownRequest
from pykcl.errors import CheckpointRefused, LeaseLost, TemporaryError
from pykcl.model.record import Record

RECORDING_VARIABLE = "CHAOS_RECORDING"
WORKER_VARIABLE = "CHAOS_WORKER"
WORK_VARIABLE = "CHAOS_WORK_SECONDS"
CHECKPOINT_EVERY = 13
"""After each record with such a number the processor checkpoints by itself, in the middle of its batch."""


class Recording:
    """The file of this process. Any thread may write."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **fields: object) -> None:
        with self._lock:
            line = json.dumps({"what": what, **fields, "t": now_millis()}, separators=(",", ":"))
            left = memoryview(line.encode() + b"\n")
            while left:
                left = left[os.write(self._file, left) :]


recording = Recording(os.environ[RECORDING_VARIABLE])
hang_file = Path(os.environ[RECORDING_VARIABLE] + ".hang")
work_seconds = float(os.environ.get(WORK_VARIABLE, "0.004"))


class Consumer(RecordProcessor):
    """Works a few milliseconds on each record, and checkpoints in the middle of batches now and then."""

    def initialize(self, init: Initialization) -> None:
        self._run = {"shard": init.shard_id, "token": init.fencing_token}
        recording.write("init", **self._run, at=str(init.position))

    def process_records(self, batch: Batch) -> None:
        recording.write("given", **self._run, records=[_named(record) for record in batch])
        self._hang_if_told()
        for record in batch:
            time.sleep(work_seconds)
            recording.write("done", **self._run, record=_named(record))
            if _number(record) % CHECKPOINT_EVERY == 0:
                self._checkpoint(batch, record)

    def _checkpoint(self, batch: Batch, record: Record) -> None:
        try:
            batch.checkpointer.checkpoint(record)
        except (LeaseLost, CheckpointRefused, TemporaryError) as error:
            recording.write("refused", **self._run, error=type(error).__name__)
            return
        recording.write("checkpoint", **self._run, at=str(record.position))

    def _hang_if_told(self) -> None:
        try:
            hang_file.unlink()
        except FileNotFoundError:
            return
        recording.write("hanging", **self._run)
        threading.Event().wait()

    def shard_ended(self, end: ShardEnd) -> None:
        recording.write("ended", **self._run)

    def lease_lost(self, loss: LeaseLoss) -> None:
        recording.write("lost", **self._run)

    def shutdown_requested(self, request: ShutdownRequest) -> None:
        recording.write("shutdown", **self._run)


def _number(record: Record) -> int:
    return int(json.loads(record.data)["id"])


def _named(record: Record) -> tuple[str, int, int]:
    return record.sequence_number, record.sub_sequence_number, _number(record)


die_with_the_harness()
recording.write("start", worker=os.environ[WORKER_VARIABLE], pid=os.getpid())
atexit.register(recording.write, "end")
chaos_breaks.apply(os.environ.get(chaos_breaks.BREAK_VARIABLE, ""))
