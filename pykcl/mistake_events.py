"""Events that are about nothing but a mistake, of a configuration or of a processor; `pykcl.events` has those that tell
what the worker does."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pykcl.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StartIgnored(Event):
    """The configured start applies to shards without a checkpoint only, and there is none. leases: that have one."""

    TEXT = "start has no effect: every lease has a checkpoint and goes on there"
    start: str
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StillStarting(Event):
    """The worker cannot start, and tries again. Repeated every 30 seconds. seconds: since the first attempt."""

    LEVEL = logging.WARNING
    TEXT = "worker not started yet, it keeps trying"
    what: str
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionNear(Event):
    """Soon Kinesis drops records that were not read yet. All times in seconds."""

    LEVEL = logging.WARNING
    TEXT = "reading falls behind the retention period, unread records are dropped soon"
    shard: str
    behind: float
    retention: float
    dropped_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorGivenUp(Event):
    """A call did not return within `processor_timeout`. Its thread cannot be ended: while it runs, this process takes
    that lease no more. seconds: that the call had taken by then."""

    LEVEL = logging.ERROR
    TEXT = (
        "lease given up with a processor that does not return: another worker goes on with the shard, this process "
        "cannot until it is restarted"
    )
    shard: str
    method: str
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverCheckpointed(Event):
    """A processor that is to checkpoint by itself has not, since this worker reads the shard. seconds: since then."""

    LEVEL = logging.WARNING
    TEXT = 'no checkpoint yet: with checkpoint="manual" all of these batches come again after a restart'
    shard: str
    batches: int
    seconds: float
