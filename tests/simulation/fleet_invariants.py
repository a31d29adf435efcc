"""What must hold in every fleet whatever goes wrong, judged at every write of a row and at every delivery."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.shard import Shard
from pykcl.processor import Batch
from pykcl.testing.fleet import STREAM
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.memory.values import Item


class Invariant(Enum):
    """What is promised, in words."""

    CHECKPOINT_AFTER_DELIVERY = "no checkpoint passes a record that was not delivered"
    CHECKPOINT_FORWARD = "no checkpoint moves back or leaves SHARD_END"
    COUNTER_BY_ONE = "every write raises the lease counter by exactly one"
    ROWS_KEPT = "no write creates a row by update or overwrites one by creation"
    DELETION_BY_EVIDENCE = "a row is deleted only after SHARD_END, when every child has begun"
    NO_GAP = "an owner is given every record after its checkpoint, once per return and in order"
    PARENTS_FIRST = "no record is delivered before all records of the ancestors of its shard"
    LIFE_CYCLE = "a processor is called by one thread at a time, in the order of its life"
    ALL_DELIVERED = "once the faults end, every record is delivered"
    COMES_TO_REST = "once the faults end, leases are spread evenly and stay where they are"
    CLEAN_STOP = "a worker stops in time and leaves neither threads nor leases behind"
    NO_FALSE_ALARM = "no worker fails, and no loss is reported, while nothing was trimmed"


class InvariantBroken(AssertionError):
    """invariant: the first that was broken."""

    def __init__(self, invariant: Invariant, what: str) -> None:
        super().__init__(f"{invariant.name} ({invariant.value}): {what}")
        self.invariant = invariant


class Watch:
    """Knows every record that was put and delivered.

    Threads of workers note what they break; the test's thread raises it from `check`. by_hand: processors checkpoint
    themselves, so a record counts as delivered when it was handed over, not only when its batch returned.
    """

    def __init__(self, kinesis: LocalKinesis, *, by_hand: bool) -> None:
        self.by_hand = by_hand
        self.put: dict[str, list[Checkpoint]] = defaultdict(list)
        self._delivered: dict[str, set[Checkpoint]] = defaultdict(set)
        self._kinesis = kinesis
        self._broken: InvariantBroken | None = None

    def expect(self, holds: bool, invariant: Invariant, what: str) -> None:
        if not holds and self._broken is None:
            self._broken = InvariantBroken(invariant, what)

    def check(self) -> None:
        """Raise InvariantBroken if anything was broken so far."""
        if self._broken is not None:
            raise self._broken

    # -- deliveries --------------------------------------------------------------------------------------------

    def delivered(self, batch: Batch) -> None:
        self._delivered[batch.shard_id].update(record.position for record in batch)

    def undelivered(self, shard: str) -> list[Checkpoint]:
        return [position for position in self.put[shard] if position not in self._delivered[shard]]

    def all_undelivered(self) -> dict[str, int]:
        """How many records each shard still owes."""
        return {shard: len(owed) for shard in list(self.put) if (owed := self.undelivered(shard))}

    def batch_begins(self, batch: Batch, after: Checkpoint) -> None:
        """NO_GAP and PARENTS_FIRST. after: what this processor was started at, or the last it returned from."""
        given = [record.position for record in batch]
        wanted = [position for position in self.put[batch.shard_id] if position > after][: len(given)]
        where = f"{batch.shard_id} after {after}"
        self.expect(given == wanted, Invariant.NO_GAP, f"{where}: wanted {wanted[:1]}, given {given[:1]}")
        for ancestor in self._ancestors(batch.shard_id):
            owed = len(self.undelivered(ancestor))
            self.expect(not owed, Invariant.PARENTS_FIRST, f"{where}: {ancestor} still owes {owed}")

    def _shards(self) -> dict[str, Shard]:
        return {shard.shard_id: shard for shard in self._kinesis.list_shards(STREAM, operation=None)}

    def _ancestors(self, shard: str) -> set[str]:
        shards = self._shards()
        found: set[str] = set()
        ahead = list(shards[shard].parents)
        while ahead:
            parent = ahead.pop()
            found.add(parent)
            ahead += shards[parent].parents
        return found

    # -- rows --------------------------------------------------------------------------------------------------

    def row_changed(self, change: Change, rows: dict[str, Item]) -> None:
        """Every invariant of a single write. rows: the table after it."""
        before, after = change.before, change.after
        wrong = (change.operation == "UpdateItem" and not before) or (
            change.operation == "PutItem" and before
        )
        self.expect(not wrong, Invariant.ROWS_KEPT, f"{change.operation} of {change.key}")
        if before and after:
            self._row_updated(change.key, before, after)
        if before and not after:
            self._row_deleted(change.key, before, rows)

    def _row_updated(self, key: str, before: Item, after: Item) -> None:
        counters = int(before["leaseCounter"]["N"]), int(after["leaseCounter"]["N"])
        self.expect(counters[1] == counters[0] + 1, Invariant.COUNTER_BY_ONE, f"{key}: {counters}")
        old, new = checkpoint_of(before), checkpoint_of(after)
        self.expect(new >= old, Invariant.CHECKPOINT_FORWARD, f"{key}: {old} to {new}")
        if new == old:
            return
        self.expect(not old.is_shard_end, Invariant.CHECKPOINT_FORWARD, f"{key}: {old} to {new}")
        passed = [position for position in self.undelivered(key) if position <= new]
        self.expect(not passed, Invariant.CHECKPOINT_AFTER_DELIVERY, f"{key} at {new} passes {len(passed)}")

    def _row_deleted(self, key: str, before: Item, rows: dict[str, Item]) -> None:
        children = [shard.shard_id for shard in self._shards().values() if key in shard.parents]
        begun = all(child in rows and not checkpoint_of(rows[child]).is_start for child in children)
        ended = checkpoint_of(before).is_shard_end
        self.expect(ended and begun, Invariant.DELETION_BY_EVIDENCE, f"{key}, children {children}")


def checkpoint_of(item: Item) -> Checkpoint:
    return Checkpoint(item["checkpoint"]["S"], int(item["checkpointSubSequenceNumber"]["N"]))
