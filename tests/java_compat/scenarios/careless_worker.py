"""A worker of another library, whose writes break the protocol in the ways that were found in its source.

It creates rows without a condition, resets the counter to 1 when it takes, and writes checkpoints that neither move the
counter nor set the sub-sequence number, without asking whose lease it is.
"""

from __future__ import annotations

from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.shard import Shard


class CarelessWorker:
    def __init__(self, name: str, client: Any, table: str) -> None:
        self.name, self._client, self._table = name, client, table

    def create(self, shard: Shard) -> None:
        """Overwrites whatever stands there."""
        item: dict[str, Any] = {
            "leaseKey": {"S": shard.shard_id},
            "leaseCounter": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "startingHashKey": {"S": str(shard.hash_range.first)},
            "endingHashKey": {"S": str(shard.hash_range.last)},
        }
        if shard.parents:
            item["parentShardId"] = {"SS": list(shard.parents)}
        self._client.put_item(TableName=self._table, Item=item)

    def take(self, key: str, last_owner: str | None) -> None:
        """Asks for the owner only; resets the counter; drops what the row knows of children and preparations."""
        self._update(
            key,
            "SET leaseOwner = :me, leaseCounter = :one "
            "REMOVE checkpointOwner, pendingCheckpoint, pendingCheckpointSubSequenceNumber, "
            "pendingCheckpointState, childShardIds, throughputKBps ADD ownerSwitchesSinceCheckpoint :one",
            "attribute_not_exists(leaseOwner) OR leaseOwner = :last",
            {":me": {"S": self.name}, ":one": {"N": "1"}, ":last": {"S": last_owner or "nobody"}},
        )

    def checkpoint(self, key: str, at: Checkpoint) -> None:
        """Leaves the sub-sequence number and the counter as they are."""
        self._update(
            key,
            "SET checkpoint = :at, ownerSwitchesSinceCheckpoint = :zero",
            "attribute_exists(leaseKey)",
            {":at": {"S": at.sequence_number}, ":zero": {"N": "0"}},
        )

    def _update(self, key: str, update: str, condition: str, values: dict[str, Any]) -> None:
        self._client.update_item(
            TableName=self._table,
            Key={"leaseKey": {"S": key}},
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
        )
