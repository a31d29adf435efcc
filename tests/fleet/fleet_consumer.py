"""What a pykcl worker of a fleet processes with: `pykcl run fleet_consumer:Consumer`, told what by the environment.

Writes down everything it is told and does, as `fleet_recording` says.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from pathlib import Path

from fleet_clock import die_with_the_harness
from fleet_recording import (
    POLICY_VARIABLE,
    RECORDING_VARIABLE,
    WORK_VARIABLE,
    WORKER_VARIABLE,
    Policy,
    Recording,
    number_of,
)

from pykcl import (
    Batch,
    InitializationInput,
    LeaseLostInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.errors import CheckpointRefused, LeaseLostError, TemporaryError
from pykcl.model.record import Record

recording = Recording(os.environ[RECORDING_VARIABLE])
hang_file = Path(os.environ[RECORDING_VARIABLE] + ".hang")
work_seconds = float(os.environ.get(WORK_VARIABLE, "0.004"))
policy = Policy.of(os.environ.get(POLICY_VARIABLE, "every:13"))


class Consumer(RecordProcessor):
    """Works a few milliseconds on each record, and checkpoints by its policy, beside what its Config says."""

    def initialize(self, init: InitializationInput) -> None:
        self._run = {"shard": init.shard_id, "token": init.fencing_token}
        recording.write("init", **self._run, at=str(init.position))

    def process_records(self, batch: Batch) -> None:
        recording.write("given", **self._run, records=[_named(record) for record in batch])
        self._hang_if_told()
        for record in batch:
            time.sleep(work_seconds)
            recording.write("done", **self._run, record=_named(record))
            if policy.after_record(record.sub_sequence_number, _number(record)):
                self._checkpoint(batch, record)
        if policy.after_batch:
            self._checkpoint(batch, batch.records[-1])

    def _checkpoint(self, batch: Batch, record: Record) -> None:
        try:
            batch.checkpointer.checkpoint(record)
        except (LeaseLostError, CheckpointRefused, TemporaryError) as error:
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

    def shard_ended(self, end: ShardEndedInput) -> None:
        recording.write("ended", **self._run)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        recording.write("lost", **self._run)

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        recording.write("shutdown", **self._run)


def _number(record: Record) -> int:
    return number_of(record.data)


def _named(record: Record) -> tuple[str, int, int]:
    return record.sequence_number, record.sub_sequence_number, _number(record)


die_with_the_harness()
recording.write("start", worker=os.environ[WORKER_VARIABLE], pid=os.getpid())
atexit.register(recording.write, "end")
