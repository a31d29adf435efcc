"""Losses: each gap that retention tore is reported once, by the worker that reads across it, and no other is."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping

from pykcl.events import DataLost, UnreadShardLost
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.memory.expressions import Item
from pykcl.testing.simulation.delivery import (
    FIRST,
    Ownership,
    Position,
    RecordLog,
    checkpoint_position,
    position_in,
)
from pykcl.testing.simulation.guarantees import Guarantee, Violations


class LossChecker:
    """is_gone: whether Kinesis knows a shard no more.

    reads_ahead: workers gather records over several reads, and so may report a gap before they deliver what lies before
    it. A report then stands until a gap is seen. is_at_latest: whether LATEST stands for a position of a shard. Whoever
    begins there knows a time, and no record that could be gone. never_saw: whether a host never saw the row of a shard,
    which an operator deleted.
    """

    def __init__(
        self, record_log: RecordLog, violations: Violations, *, is_gone: Callable[[str], bool]
    ) -> None:
        self._record_log, self._violations, self._is_gone = record_log, violations, is_gone
        self._reported: defaultdict[tuple[str, str], list[DataLost]] = defaultdict(list)
        self.reads_ahead = False
        self.is_at_latest: Callable[[str, Position], bool] = lambda shard_id, position: False
        self._lacking: set[tuple[str, str]] = set()
        self._without_trace: set[str] = set()
        self.never_saw: Callable[[str, str], bool] = lambda host, key: False

    def deleted_by_java(self, key: str, rows: Mapping[str, Item]) -> None:
        """Note that a Java worker has just deleted a row. rows: those that are left.

        1) Retention takes a shard while Java reads it; 2) told of no children, Java makes no leases for them, ends the
        row, and deletes it: nobody can know that the shard was read. Seed 189887978140.
        """
        if rows.keys().isdisjoint(self._record_log.children(key)):
            self._without_trace.add(key)

    def heard(self, host: str, event: DataLost) -> None:
        self._reported[host, event.shard].append(event)
        true = self._is_gone(event.shard) or self._is_lost(event.shard, event.checkpoint)
        if isinstance(event, UnreadShardLost):
            is_read = bool(self._record_log.shard(event.shard).delivered)
            # The row of a child shows that it was read, too. Seed 79221998196: an operator deleted that of the last one.
            hidden = any(self.never_saw(host, key) for key in (event.shard, *event.after))
            is_traced = event.shard not in self._without_trace and not hidden
            true = self._is_gone(event.shard) and not (is_read and is_traced)
        self._expect(true, f"{host} gives a false alarm about {event.shard} at {event.checkpoint}")

    def _is_lost(self, shard_id: str, checkpoint: str) -> bool:
        """The record of the checkpoint is gone; of one that the record_log does not know, any record."""
        position = position_in(checkpoint)
        shard = self._record_log.shard(shard_id)
        index = bisect_left(shard.put, (position[0], -1))
        if index < len(shard.put) and shard.put[index][0] == position[0]:
            return shard.put[index] in shard.trimmed
        return shard.is_trimmed

    def starts(self, owning: Ownership) -> None:
        self._lacking.discard((owning.host, owning.shard_id))
        owning.reported = len(self._reported[owning.host, owning.shard_id])

    def batch_is_over(self, owning: Ownership) -> None:
        """Assign the earlier reports to a batch that is done or was skipped."""
        key = owning.host, owning.shard_id
        reported = self._reported[key]
        if not self.reads_ahead:
            owning.reported = len(reported)
        elif key in self._lacking:
            self._lacking.discard(key)
            # Of several gaps that were read across, only those before the end of this batch.
            while owning.reported < len(reported) and _is_before(reported[owning.reported], owning.after):
                owning.reported += 1

    def reads_on(self, owning: Ownership, lacks: bool) -> None:
        """The next batch, or the end. lacks: whether records before it were trimmed and not given."""
        events = self._reported[owning.host, owning.shard_id][owning.reported :]
        reported = [event.checkpoint for event in events]
        where = f"{owning.host} {owning.shard_id} after {owning.after}"
        if lacks and owning.after[0] > 0 and not self.is_at_latest(owning.shard_id, owning.after):
            self._expect(bool(reported), f"{where}: records are missing, and it does not report it")
        if self.reads_ahead:
            if lacks:
                # The batch may come again: the reports are assigned to it when it is done.
                self._lacking.add((owning.host, owning.shard_id))
            return
        once = self._is_one_gap_each(owning.shard_id, reported)
        self._expect(once or self._is_gone(owning.shard_id), f"{where}: reported after {', '.join(reported)}")

    def _is_one_gap_each(self, shard_id: str, reported: list[str]) -> bool:
        """1) It reads across a gap and reports it; 2) it finds an aggregate of another shard, which no batch brings;
        3) retention takes that, and what came behind it: another gap, and the next batch is behind both."""
        shard = self._record_log.shard(shard_id)
        return len(set(reported)) == len(reported) and all(
            shard.is_dropped(position_in(at)[0]) for at in reported[1:]
        )

    def _expect(self, holds: bool, what: str) -> None:
        self._violations.expect(holds, Guarantee.LOSS_REPORTED, what)


def _is_before(event: DataLost, position: Position) -> bool:
    return event.resumed_at is None or position_in(event.resumed_at) <= position


class DeletedRows:
    """Rows deleted by an operator. must_be_reported: what retention took of each lease after its checkpoint.

    now: virtual seconds. joined: when each host had its first view of the lease table.

    1) Retention takes records behind the checkpoint; 2) before anybody reads on, an operator deletes the row; 3) before
    those who saw it put it back, as they do, at its checkpoint, a worker that has just started finds a shard without a
    lease and makes one at the start position. Whoever reads from there cannot know that anything is missing before the
    first record it gets: docs/concepts/guarantees.md guarantees nothing for such a row. What lies up to the checkpoint
    was read across, and has to be reported all the same; so has everything else where the row comes back with its
    checkpoint, or is created again by a worker that knew better.
    """

    def __init__(
        self,
        must_be_reported: Mapping[str, set[Position]],
        *,
        now: Callable[[], float],
        joined: Mapping[str, float],
    ) -> None:
        self._must_be_reported, self._now, self._joined = must_be_reported, now, joined
        self._deleted: dict[str, tuple[Item, float]] = {}

    def deleted(self, key: str, row: Item) -> None:
        """Note that an operator has just deleted the row."""
        self._deleted[key] = (row, self._now())

    def put_back(self, key: str) -> None:
        """Note that the operator who deleted the row has put it back."""
        self._deleted.pop(key, None)

    def never_saw(self, host: str, key: str) -> bool:
        """Return whether the row is missing, and the host has come since."""
        return key in self._deleted and self._joined.get(host, float("-inf")) >= self._deleted[key][1]

    @property
    def missing(self) -> dict[str, str | None]:
        """Keys of the rows that nobody has put back, with the owner of each."""
        return {key: row.get("leaseOwner", {}).get("S") for key, (row, _) in self._deleted.items()}

    def row_changed(self, change: Change) -> None:
        """Also a row that is there again."""
        if change.before is not None or change.after is None or change.key not in self._deleted:
            return
        never_saw_it = self.never_saw(change.author, change.key)
        row, _ = self._deleted.pop(change.key)
        read = checkpoint_position(row)
        is_at_the_start = checkpoint_position(change.after) < FIRST
        if is_at_the_start and never_saw_it:
            lost = self._must_be_reported.get(change.key, set())
            lost.difference_update({position for position in lost if position > read})
