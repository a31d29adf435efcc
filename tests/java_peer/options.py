"""Configuration of a Java worker, and the events that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pykcl.model.checkpoint import Checkpoint, StartPosition

JavaAction = Literal[
    "created",
    "taken",
    "stolen",
    "initialized",
    "prepared",
    "checkpointed",
    "ended",
    "lost",
    "deleted",
    "failed",
]


JavaVersion = Literal["2.7.2", "3.5.1"]
"""3.5.1: in the configuration COMPATIBLE_WITH_2X_PHASE1, in which it behaves as 2.x and writes no rows of its own."""

_OLDEST = StartPosition("TRIM_HORIZON")


@dataclass(frozen=True, slots=True)
class JavaEvent:
    """One thing a Java worker has done, reported after the answer came.

    shard: "" where none is meant. position: of prepared, checkpointed and ended, and where initialized starts.
    detail: of taken and stolen, from whom; of failed, the exception, and the key of a row that Java cannot read.
    """

    peer: str
    action: JavaAction
    shard: str
    position: Checkpoint | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JavaOptions:
    """Java's own names are in brackets; the defaults are Java's. All times in seconds.

    Java KCL 2.7.3: `leases/LeaseManagementConfig.java`, `coordinator/CoordinatorConfig.java`,
    `retrieval/polling/PollingConfig.java`.
    """

    version: JavaVersion = "2.7.2"
    failover: float = 10.0
    """[failoverTimeMillis] Renewals come every third of it, lease taking every 2 * (it + 25 ms)."""
    start: StartPosition = _OLDEST
    """[initialPositionInStream]"""
    max_leases: int = 2**31 - 1
    """[maxLeasesForWorker]"""
    max_leases_to_steal: int = 1
    """[maxLeasesToStealAtOneTime]"""
    idle: float = 1.5
    """[idleTimeBetweenReadsInMillis] Pause between any two reads of a shard."""
    max_records: int = 10_000
    """[maxRecords] Most Kinesis records of one read."""
    parent_poll: float = 10.0
    """[parentShardPollIntervalMillis]"""
    task_backoff: float = 0.5
    """[taskBackoffTimeMillis] Pause after something failed."""
    startup_wait: float = 30.0
    """Longest of the random waits (from 1 s) for somebody else to fill an empty table."""
    auditor_interval: float = 120.0
    """[leasesRecoveryAuditorExecutionFrequencyMillis] The first audit comes after half of it."""
    auditor_threshold: int = 3
    """[leasesRecoveryAuditorInconsistencyConfidenceThreshold]"""
    election_interval: float = 300.0
    """How long an election of the leader is believed."""
    cleanup_interval: float = 300.0
    """[completedLeaseCleanupIntervalMillis]"""
    sdk_attempts: int = 4
    """How often the AWS SDK sends a request before its caller hears of the failure."""
    two_phase: bool = False
    """Whether the application prepares every checkpoint before it makes it."""
