"""A processor of version 3 of amazon_kclpy that writes down what it is given, as `fleet_recording` says: for a worker of a
fleet, under a MultiLangDaemon or in process. Checkpoints after each batch, at a request to stop and at the end.
"""

import itertools
import os

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from fleet_recording import RECORDING_VARIABLE, WORKER_VARIABLE, Recording, number_of

recording = Recording(os.environ[RECORDING_VARIABLE])
tokens = itertools.count(os.getpid() * 1000)


class RecordProcessor(processor.RecordProcessorBase):
    def __init__(self):
        self._run = {}

    def initialize(self, initialize_input):
        # Below zero, where no lease counter is. In process there are many processors.
        self._run = {"shard": initialize_input.shard_id, "token": -next(tokens)}
        at = f"{initialize_input.sequence_number}:{initialize_input.sub_sequence_number or 0}"
        recording.write("init", **self._run, at=at)

    def process_records(self, process_records_input):
        records = process_records_input.records
        named = [
            (one.sequence_number, one.sub_sequence_number or 0, number_of(one.binary_data)) for one in records
        ]
        if not named:
            return
        recording.write("given", **self._run, records=named)
        for one in named:
            recording.write("done", **self._run, record=one)
        self._checkpoint(process_records_input.checkpointer, "{}:{}".format(*named[-1]))

    def lease_lost(self, lease_lost_input):
        recording.write("lost", **self._run)

    def shard_ended(self, shard_ended_input):
        recording.write("ended", **self._run)
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        recording.write("shutdown", **self._run)

    def _checkpoint(self, checkpointer, at):
        try:
            checkpointer.checkpoint()
        except kcl.CheckpointError as error:
            recording.write("refused", **self._run, error=error.value)
        else:
            recording.write("checkpoint", **self._run, at=at)


if __name__ == "__main__":
    recording.write("start", worker=os.environ[WORKER_VARIABLE], pid=os.getpid())
    kcl.KCLProcess(RecordProcessor()).run()
