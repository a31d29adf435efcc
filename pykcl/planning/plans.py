"""The values planners return. Each says why it was made and carries the condition of its own write."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pykcl.model.lease import Lease


class CreationReason(Enum):
    """Reason for which a lease is created. Its value is the one that `LeaseCreated` gives."""

    START = "start of the application"
    OLDEST_LISTED = "oldest shard still listed"
    CHILD = "child of an ended lease"
    PARENT_OF_MERGE = "missing parent of a merge"
    ANCESTOR_OF_MERGE = "ancestor of a merge"
    ROW_DELETED = "its row was deleted by somebody else"


@dataclass(frozen=True, slots=True)
class LeaseCreation:
    """Put this row if its key is absent."""

    lease: Lease
    reason: CreationReason


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Take this lease, provided that it still is as `seen`: the same counter, the same owner. (For a rebalance the same
    owner will do: it is alive, so the counter is read again just before.)

    `reason`: "rebalance" takes it from a live owner; "expired" from one whose counter stood still; "child" is an
    unowned child of a lease this worker ended.
    """

    seen: Lease
    reason: Literal["unowned", "expired", "rebalance", "child"]

    @property
    def lease_key(self) -> str:
        return self.seen.key

    @property
    def is_steal(self) -> bool:
        return self.reason == "rebalance"


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete this row, provided that it still is as `seen`."""

    seen: Lease
    reason: Literal["every child has been started", "Kinesis no longer knows the shard"]
