"""Rows: conditions, counters, checkpoints, deletions and what is not pykcl's, at every write to the lease table."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.local.request_log import ROW_WRITES
from pykcl.model.shard import HashRange
from pykcl.stores.expressions import Item
from pykcl.stores.requests import Params
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation.delivery import (
    AT_LATEST,
    END,
    Position,
    RecordLog,
    checkpoint_position,
)
from pykcl.testing.simulation.guarantees import Guarantee, Violations

_OURS = frozenset({
    "leaseKey", "leaseOwner", "leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint",
    "checkpointSubSequenceNumber", "parentShardId", "childShardIds", "startingHashKey", "endingHashKey",
    "pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState", "pykcl", "entityType",
    "checkpointOwner",
})  # fmt: skip
_RANGE = ("startingHashKey", "endingHashKey")
_ABOUT_THE_SHARD = {"childShardIds", *_RANGE}


def worker_on(row: Item) -> str | None:
    """Return the worker that works on the lease: until a hand-off is over, not yet the next owner."""
    return row.get("checkpointOwner", row.get("leaseOwner", {})).get("S")


def is_about_the_shard_only(change: Change) -> bool:
    """Return whether it is a write that no counter fences and that leaves it: Java's two, and pykcl's fill."""
    changed = _changed(change.before, change.after) if change.before and change.after else set()
    return bool(changed) and changed <= _ABOUT_THE_SHARD


def _changed(before: Item, after: Item) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


class RowChecker:
    """is_peer: whether a host is not pykcl (a Java worker), so that only what it delivered is checked.

    rows: the lease table as it is. is_gone: whether Kinesis knows a shard no more. worker_ids: of each host.
    has_ended: whether a host's processor was called with the end of the shard. ours: attributes that pykcl may write.
    """

    ours: frozenset[str] = _OURS

    def __init__(
        self,
        record_log: RecordLog,
        violations: Violations,
        *,
        is_peer: Callable[[str], bool],
        rows: Callable[[], dict[str, Item]],
        is_gone: Callable[[str], bool],
    ) -> None:
        self._record_log, self._violations = record_log, violations
        self._is_peer, self._rows, self._is_gone = is_peer, rows, is_gone
        self._started: set[str] = set()
        self.worker_ids: dict[str, str] = {}
        self.has_ended: Callable[[str, str], bool] = lambda host, shard: True

    def _expect(self, holds: bool, guarantee: Guarantee, what: str) -> None:
        self._violations.expect(holds, guarantee, what)

    def edited(self, key: str, row: Item) -> None:
        """Note that somebody changed the row by hand: a scan may have shown to others that its shard was begun."""
        if checkpoint_position(row) >= AT_LATEST:
            self._started.add(key)

    def request_sent(self, operation: str, params: Params, host: str) -> None:
        if operation in ROW_WRITES and not self._is_peer(host):
            condition = params.get("ConditionExpression", "")
            # A counter that is compared, or a key that must be free: without one of the two a write is not fenced.
            wanted = "attribute_not_exists" if operation == "PutItem" else "leaseCounter"
            self._expect(
                wanted in condition, Guarantee.CONDITIONAL, f"{operation} by {host} under {condition!r}"
            )

    def row_changed(self, change: Change) -> None:
        """Every guarantee about a single write."""
        before, after, key = change.before, change.after, change.key
        ours = not self._is_peer(change.author)
        who = f"{change.operation} of {key} by {change.author}"
        if ours:
            wrong = (change.operation == "UpdateItem" and not before) or (
                change.operation == "PutItem" and before
            )
            self._expect(not wrong, Guarantee.CONDITIONAL, who)
            self._expect(key in self._record_log.parents, Guarantee.FOREIGN_KEPT, who)
        if before and after:
            if ours and is_about_the_shard_only(change):
                self._filled(key, who, before, after)
                return
            if ours:
                self._updated_by_us(who, before, after)
            # Java writes by the counter alone: where another library put it back by hand, into the row of that one, or of
            # another Java worker that has taken it since (seed 158148864088).
            if ours or worker_on(before) == self.worker_ids.get(change.author, change.author):
                self._checkpoint_moved(key, who, before, after)
            if ours:
                self._written_by_its_owner(change, before, after)
        if before and not after and ours:
            self._deleted(key, who, before)

    def _updated_by_us(self, who: str, before: Item, after: Item) -> None:
        counters = int(before["leaseCounter"]["N"]), int(after["leaseCounter"]["N"])
        self._expect(counters[1] == counters[0] + 1, Guarantee.COUNTER_BY_ONE, f"{who}: {counters}")
        foreign = sorted(_changed(before, after) - self.ours)
        self._expect(not foreign, Guarantee.FOREIGN_KEPT, f"{who}: attributes {foreign}")

    def _filled(self, key: str, who: str, before: Item, after: Item) -> None:
        """A row that lacked its hash range has it, by whomever, and the counter may stay where it is."""
        lacked = not all("S" in before.get(name, {}) for name in _RANGE)
        found = HashRange.parse(*(after.get(name, {}).get("S", "") for name in _RANGE))
        fits = (
            _changed(before, after) <= set(_RANGE)
            and found is not None
            and found == self._record_log.ranges.get(key)
        )
        what = f"{who}: {sorted(_changed(before, after))} at the same counter"
        self._expect(lacked and fits, Guarantee.COUNTER_BY_ONE, what)

    def _written_by_its_owner(self, change: Change, before: Item, after: Item) -> None:
        """A host that is not the owner may take a lease, and do nothing else; no shard ends without its processor."""
        me = self.worker_ids.get(change.author, change.author)
        owner = worker_on(before)
        takes = after.get("leaseOwner", {}).get("S") == me and before.get("checkpoint") == after.get(
            "checkpoint"
        )
        who = f"{change.operation} of {change.key} by {change.author}"
        self._expect(owner == me or takes, Guarantee.SILENT_AFTER_LOSS, f"{who}, while {owner} owned it")
        ends = self._position(who, after) == END != self._position(who, before)
        called = not ends or self.has_ended(change.author, change.key)
        self._expect(called, Guarantee.LIFE_CYCLE, f"{who} to SHARD_END, without shard_ended")

    def _checkpoint_moved(self, key: str, who: str, before: Item, after: Item) -> None:
        old, new = self._position(who, before), self._position(who, after)
        if new is not None and new[0] >= 0:
            self._started.add(key)
        if old is None or new is None or new == old:
            return
        moved = f"{who}: {old} to {new}"
        self._expect(new > old and old != END, Guarantee.CHECKPOINT_FORWARD, moved)
        self._expect(new[1] == 0 or 0 < new[0] < END[0], Guarantee.CHECKPOINT_FORWARD, moved)
        owed = self._record_log.shard(key).first_owed()
        passed = owed is not None and owed <= new
        self._expect(not passed, Guarantee.CHECKPOINT_AFTER_DELIVERY, f"{moved} passes {owed}")
        if 0 < new[0] < END[0]:
            # Not between two records either: whoever resumes there would skip or repeat a part.
            shard = self._record_log.shard(key)
            known = new in shard.positions or new in shard.before
            self._expect(known, Guarantee.CHECKPOINT_FORWARD, f"{moved}, where no record is")

    def _position(self, who: str, item: Item) -> Position | None:
        try:
            return checkpoint_position(item)
        except (KeyError, ValueError):
            self._expect(False, Guarantee.CHECKPOINT_FORWARD, f"{who}: not a checkpoint")
            return None

    def _deleted(self, key: str, who: str, before: Item) -> None:
        rows, children = self._rows(), self._record_log.children(key)
        ended = checkpoint_position(before) == END
        started = all(self._has_started(child, rows) for child in children)
        allowed = (ended and started) or self._is_gone(key)
        self._expect(
            allowed, Guarantee.DELETION_BY_EVIDENCE, f"{who} at {before['checkpoint']}, children {children}"
        )

    def _has_started(self, shard_id: str, rows: dict[str, Item]) -> bool:
        """Its row is, or was, past its start; or it has none, and then its children's rows prove as much.

        Was: whoever deletes by a scan that is a moment old may not know that a late creation brought the row back.
        """
        if shard_id in self._started:
            return True
        if shard_id in rows:
            # LATEST is no start of a child, but of an application: whoever is there was guaranteed nothing older.
            return checkpoint_position(rows[shard_id]) >= AT_LATEST
        children = self._record_log.children(shard_id)
        return bool(children) and all(self._has_started(child, rows) for child in children)
