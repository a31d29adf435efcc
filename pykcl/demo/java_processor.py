"""Record processor that a MultiLangDaemon starts for each shard: JSON lines on standard input and output.

`python -m pykcl.demo.java_processor RECORD_LOG WORKER` is the processor of the demo's Java worker. Imports quick parts
of the standard library only, and what the demo's processor needs when that is started: a process for each shard is
many.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykcl.demo.record_log import RecordLogWriter
    from pykcl.model.record import Record

ENDS = {"leaseLost": "lost", "shardEnded": "ended", "shutdownRequested": "shutdown"}
"""The daemon's name for an end of a processor, and ours."""


class MultiLangProcessor:
    """Processor of one shard of one worker. `serve` returns when the daemon has closed its pipe or is gone."""

    def initialize(self, shard: str, sequence_number: str, sub_sequence_number: int) -> None:
        """Called before any record. sequence_number: the start of reading, or a sentinel such as TRIM_HORIZON."""

    def process(self, records: list[dict[str, Any]]) -> None:
        """Process a batch. records: as the daemon sends them, see `payload_of` and `position_of`."""

    def end(self, what: str) -> None:
        """Called at the end. what: "lost", "ended" or "shutdown". After "ended" the shard is checkpointed as such."""

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            action = message["action"]
            if action == "initialize":
                sub = message.get("subSequenceNumber") or 0
                self.initialize(message["shardId"], message["sequenceNumber"], sub)
            elif action == "processRecords":
                self.process(message["records"])
            elif action in ENDS:
                self.end(ENDS[action])
                if action == "shardEnded":
                    # Without it the daemon takes the shard for unfinished.
                    self.checkpoint(None, None)
            _send({"action": "status", "responseFor": action})

    def checkpoint(self, sequence: str | None, sub: int | None) -> str | None:
        """Checkpoint that record, or the end of the shard with None. Return the daemon's error, None for success."""
        _send({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)  # the daemon is gone, so no answer will come
        error: str | None = json.loads(line).get("error")
        return error


def payload_of(record: dict[str, Any]) -> bytes:
    return base64.b64decode(record["data"])


def position_of(record: dict[str, Any]) -> tuple[str, int]:
    """Return sequence number and sub-sequence number."""
    return record["sequenceNumber"], record.get("subSequenceNumber") or 0


def _send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class DemoProcessor(MultiLangProcessor):
    """Process batches as the Python workers do, and checkpoint each one when it is done."""

    def __init__(self, record_log: RecordLogWriter) -> None:
        self._record_log = record_log
        self._shard = ""

    def initialize(self, shard: str, sequence_number: str, sub_sequence_number: int) -> None:
        self._shard = shard

    def process(self, records: list[dict[str, Any]]) -> None:
        from pykcl.demo.record_log import process_batch

        if not records:
            return
        # Each ownership of a shard has a process of its own, so the process id can stand for the fencing token.
        process_batch(self._record_log, os.getpid(), [self._record(record) for record in records])
        self.checkpoint(*position_of(records[-1]))

    def _record(self, record: dict[str, Any]) -> Record:
        from pykcl.model.record import Record

        sequence, sub = position_of(record)
        return Record(
            payload_of(record),
            record["partitionKey"],
            sequence,
            shard_id=self._shard,
            sub_sequence_number=sub,
        )


def main(record_log: str, worker: str) -> None:
    from pykcl.demo.record_log import RecordLogWriter

    DemoProcessor(RecordLogWriter(Path(record_log), worker)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
