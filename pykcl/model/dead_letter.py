"""A dead letter: records that a processor gave up, and why."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from pykcl.model.record import Record


class Condition(Enum):
    """The reason for a dead letter. The first two are Lambda's words."""

    RETRY_ATTEMPTS_EXHAUSTED = "RetryAttemptsExhausted"
    RECORD_AGE_EXPIRED = "RecordAgeExpired"
    REJECTED = "Rejected"
    DECODE_FAILED = "DecodeFailed"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Consecutive records of one shard that are given up together; never empty.

    processor: name of the processor, MODULE:NAME. stream_created_at, first_failed_at, created_at: epoch milliseconds;
    first_failed_at is None where no attempt failed. attempts: calls that failed. error: class name of the last
    exception, where: its file and line, message: its text, at most 1,000 characters; empty where no call failed.
    reason: of a Reject.
    """

    condition: Condition
    application: str
    processor: str
    worker_id: str
    stream: str
    stream_arn: str
    stream_created_at: int
    shard_id: str
    records: tuple[Record, ...]
    attempts: int
    created_at: int
    first_failed_at: int | None = None
    error: str = ""
    where: str = ""
    message: str = ""
    reason: str = ""

    @property
    def id(self) -> str:
        """32 hex digits, the same on every worker that gives up the same records."""
        first, last = self.records[0].position, self.records[-1].position
        parts = (
            self.stream_arn, str(self.stream_created_at), self.application, self.shard_id, str(first), str(last),
        )  # fmt: skip
        return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
