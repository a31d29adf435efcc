"""A worker of kcl-rs that writes down what it is given, as `fleet_recording` says, and checkpoints after each batch. Runs
in an environment of its own, until SIGTERM.

    python fleet_kcl_rs.py APPLICATION STREAM WORKER URL
"""

import itertools
import os
import signal
import sys
import threading

from fleet_recording import RECORDING_VARIABLE, Recording, number_of
from kcl_rs import RecordProcessorBase, Scheduler

recording = Recording(os.environ[RECORDING_VARIABLE])
tokens = itertools.count(1)


class Processor(RecordProcessorBase):
    def initialize(self, initialize_input):
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
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        recording.write("lost", **self._run)

    def shard_ended(self, shard_ended_input):
        recording.write("ended", **self._run)
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        recording.write("shutdown", **self._run)
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    scheduler = Scheduler(
        stream_name=sys.argv[2],
        application_name=sys.argv[1],
        worker_identifier=sys.argv[3],
        record_processor_factory=Processor,
        region=os.environ["AWS_DEFAULT_REGION"],
        endpoint_url=sys.argv[4],
        initial_position="TRIM_HORIZON",
        retrieval_mode="POLLING",
    )
    scheduler.start()
    stop.wait()
    scheduler.shutdown()
