"""A lease row as Java reads it: strictly (`leases/dynamodb/DynamoDBLeaseSerializer.java`, v2.7.3 and v3.5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.shard import HashRange, Shard


class DependencyFailed(Exception):
    """Java's DependencyException, ProvisionedThroughputException and such: the table or the stream did not serve."""


class RowUnreadable(DependencyFailed):
    """Java: NullPointerException or NumberFormatException. One such row fails the scan of the table."""


Item = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class JavaLease:
    """The attributes Java knows; whatever else a row holds it neither reads nor writes."""

    key: str
    checkpoint: Checkpoint
    counter: int = 0
    owner: str | None = None
    owner_switches: int = 0
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    hash_range: HashRange | None = None
    pending: Checkpoint | None = None
    pending_state: bytes | None = None
    checkpoint_owner: str | None = None

    @property
    def actual_owner(self) -> str | None:
        """(3.x) Who works on it: during a hand-off the checkpoint owner."""
        return self.checkpoint_owner or self.owner

    @property
    def is_ended(self) -> bool:
        """Exactly (SHARD_END, 0): Java compares both halves."""
        return self.checkpoint.is_shard_end and self.checkpoint.sub_sequence_number == 0

    def with_(self, **changes: Any) -> JavaLease:
        return replace(self, **changes)


def is_lease_row(item: Item) -> bool:
    """(From 3.5 on) Whether it is tried to be read at all. Older versions try every row of the table."""
    return bool(item.get("entityType", {}).get("S", "LEASE") == "LEASE")


def new_lease(shard: Shard, checkpoint: Checkpoint) -> JavaLease:
    return JavaLease(shard.shard_id, checkpoint, parents=shard.parents, hash_range=shard.hash_range)


def read_row(item: Item) -> JavaLease:
    """Raises RowUnreadable."""
    key = item["leaseKey"]["S"]
    try:
        pending = _position(item, "pendingCheckpoint", "pendingCheckpointSubSequenceNumber")
        checkpoint = _position(item, "checkpoint", "checkpointSubSequenceNumber")
        if checkpoint is None:
            # Java parses such a row and fails a step later, when it checks whether the shard has ended.
            raise RowUnreadable(f"{key!r} has no checkpoint")
        return JavaLease(
            key,
            checkpoint,
            counter=int(item["leaseCounter"]["N"]),
            owner=item.get("leaseOwner", {}).get("S"),
            owner_switches=int(item["ownerSwitchesSinceCheckpoint"]["N"]),
            parents=tuple(sorted(item.get("parentShardId", {}).get("SS", ()))),
            children=tuple(sorted(item.get("childShardIds", {}).get("SS", ()))),
            hash_range=_hash_range(item),
            pending=pending,
            pending_state=item["pendingCheckpointState"]["B"] if "pendingCheckpointState" in item else None,
            checkpoint_owner=item.get("checkpointOwner", {}).get("S"),
        )
    except (KeyError, ValueError) as problem:
        raise RowUnreadable(f"{key!r}: {problem!r}") from None


def _position(item: Item, name: str, sub_name: str) -> Checkpoint | None:
    text = item.get(name, {}).get("S")
    return None if text is None else Checkpoint(text, int(item.get(sub_name, {}).get("N", 0)))


def _hash_range(item: Item) -> HashRange | None:
    if "startingHashKey" not in item or "endingHashKey" not in item:
        return None
    found = HashRange(int(item["startingHashKey"]["S"]), int(item["endingHashKey"]["S"]))
    if found.first >= found.last:
        raise ValueError("hash range")
    return found
