"""The other end of a MultiLangDaemon: JSON lines on standard input and output, for one shard.

Imports the standard library's quick parts only: the daemon starts a process of this for each shard.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

ENDS = {"leaseLost": "lost", "shardEnded": "ended", "shutdownRequested": "shutdown"}
"""How a processor ends, by the daemon's name and ours."""


class MultiLangProcessor:
    """One shard of one worker. `serve` returns when the daemon is gone, however it went: its pipe is closed."""

    def initialize(self, shard: str, sequence_number: str, sub_sequence_number: int) -> None:
        """Before any record. sequence_number: where reading starts, or a sentinel such as TRIM_HORIZON."""

    def process(self, records: list[dict[str, Any]]) -> None:
        """records: as the daemon sends them, see `payload_of` and `position_of`."""

    def end(self, what: str) -> None:
        """what: "lost", "ended" or "shutdown". After "ended" the shard is checkpointed as such."""

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
            _say({"action": "status", "responseFor": action})

    def checkpoint(self, sequence: str | None, sub: int | None) -> str | None:
        """Of that record, or of the end of the shard with None. The daemon's word for why not; None if it is kept."""
        _say({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)  # the daemon is gone, and nobody will ever tell
        error: str | None = json.loads(line).get("error")
        return error


def payload_of(record: dict[str, Any]) -> bytes:
    return base64.b64decode(record["data"])


def position_of(record: dict[str, Any]) -> tuple[str, int]:
    """Sequence number and sub-sequence number."""
    return record["sequenceNumber"], record.get("subSequenceNumber") or 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
