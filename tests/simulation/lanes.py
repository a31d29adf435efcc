"""Handlers with `concurrency`, plain and async, in the simulations of acks: order of each key, and what is settled."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import nullcontext, suppress
from typing import Any

from pykcl.handlers.functions import Context, handler
from pykcl.model.record import Record
from pykcl.processor import Batch, InitializationInput
from pykcl.testing.simulation.delivery import Position, position_of
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.processors import FaultyProcessor

_STEP = 0.5
"""Seconds after which a call that takes long checks whether it is still of use."""
_LONGEST = 60.0
_LONGEST_AT_REST = 1.0


class AckBook:
    """Records that one instance was given, and which of them it has acked. Used by all its threads.

    acked: records whose ack was accepted.
    """

    def __init__(self) -> None:
        self.acked: set[Position] = set()
        self._said: set[Position] = set()
        self._given: set[Position] = set()
        self._above: deque[Position] = deque()
        self._failed: list[Position] = []

    def given(self, positions: list[Position]) -> list[Position]:
        """Note a batch; return what it stands for: with the records of a batch that failed and were acked meanwhile."""
        new = [position for position in positions if position not in self._given]
        self._given.update(new)
        self._above.extend(new)
        acked = [position for position in self._failed if position in self._said]
        self._failed = []
        return sorted({*positions, *acked})

    def failed(self, positions: list[Position]) -> None:
        """Note a batch whose call raised: those of its records that are not acked come again."""
        self._failed = positions

    def says_done(self, position: Position) -> None:
        """Note that the record is about to be acked: from now on a checkpoint may pass it."""
        self._said.add(position)

    def is_done(self, position: Position) -> bool:
        return position in self._said

    def above(self) -> int:
        """Return how many records were given and are above the last one without a gap, at most."""
        while self._above and self._above[0] in self._said:
            self._above.popleft()
        return len(self._above)


class LaneChecker(FaultyProcessor):
    """FaultyProcessor around a handler of one record, in lanes.

    `rng` draws what one call does; way: "lanes" or "async lanes".
    """

    rng: random.Random
    books: dict[tuple[str, str], AckBook]
    way: str
    concurrency: int
    handler_name = "tests.simulation.lanes:work"

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        self._book = self.books[self._host, init.shard_id] = AckBook()
        self._running: set[str] = set()
        self._last_of: dict[str, Position] = {}
        self._open: set[Position] = set()
        work = self._await_work if self.way == "async lanes" else self._work
        self._lanes: Any = handler(work, concurrency=self.concurrency)()
        self._lanes.initialize(init)

    def settle_by(self, settling: Any) -> None:
        self._settling = settling
        self._lanes.settle_by(settling)

    @property
    def settles_because(self) -> str:
        return str(self._lanes.settles_because)

    def process_records(self, batch: Batch) -> Any:
        owning = self._must_own("process_records")
        positions = [_position(record) for record in batch]
        with owning.call(self._checker, "process_records"):
            stands_for = self._book.given(positions)
            self._checker.batch_starts(owning, stands_for)
            self._dawdle_perhaps(batch.shard_id)
            self._open = set(positions)
            self._has_checkpointed = False
            try:
                self._lanes.process_records(batch)
            except Exception:
                self._book.failed(stands_for)
                # 1) A record raises; 2) the faults end, and the worker is stopped; 3) the rest of its batch ends.
                owning.has_failed_in_faults = not owning.while_healed
                self._none_may_run(batch)
                raise
            owning.has_failed_in_faults = False
            self._none_may_run(batch)
            left = [position for position in positions if not self._book.is_done(position)]
            self._checker.expect(
                not left, Guarantee.NO_GAP, f"{self._host} {batch.shard_id}: not called for {left}"
            )
            owning.after = stands_for[-1]
            self._checker.on_returned(owning)
            self._last = (batch.checkpointer, batch.records[-1])

    def _none_may_run(self, batch: Batch) -> None:
        """A task that does not end when it is cancelled is left alone; a thread is waited for."""
        what = f"{self._host} {batch.shard_id}: a lane runs on after process_records"
        self._checker.expect(not self._running or self.way == "async lanes", Guarantee.LIFE_CYCLE, what)

    # -- calls, in any lane ------------------------------------------------------------------------------------

    def _work(self, record: Record, context: Context) -> None:
        seconds = self._begins(record)
        try:
            until = self._simulation.now + seconds
            while self._simulation.now < until and not self._is_of_no_use(context, seconds):
                self._simulation.sleep(min(until - self._simulation.now, _STEP))
            self._ends(record, context)
        finally:
            self._running.discard(record.partition_key)

    async def _await_work(self, record: Record, context: Context) -> None:
        seconds = self._begins(record)
        try:
            until = self._simulation.now + seconds
            if self._faults.happens("F17.raises", f"{self._host} {record.shard_id} blocks"):
                # And with it every other task of its process.
                self._simulation.sleep(min(seconds, 3.0))
            while self._simulation.now < until and not self._is_of_no_use(context, seconds):
                await asyncio.sleep(min(until - self._simulation.now, _STEP))
            self._ends(record, context)
        finally:
            self._running.discard(record.partition_key)

    def _begins(self, record: Record) -> float:
        """Return the seconds that the call takes."""
        owning, position, key = self._must_own("process_records"), _position(record), record.partition_key
        where = f"{self._host} {record.shard_id}: {position}"
        expect = self._checker.expect
        believed = self._checker.believes(owning.host, owning.shard_id)
        expect(believed, Guarantee.SILENT_AFTER_LOSS, f"{where} begun without belief in the lease")
        expect(position in self._open, Guarantee.NO_DUPLICATES, f"{where} is not of this batch, or done")
        expect(key not in self._running, Guarantee.NO_GAP, f"{where}: another record of its key runs")
        last = self._last_of.get(key)
        expect(last is None or last <= position, Guarantee.NO_GAP, f"{where} after {last} of the same key")
        self._running.add(key)
        faults, about = self._faults, f"{self._host} {record.shard_id}"
        seconds = self.rng.choice([0.0, 0.0, 0.1, 0.3]) * self.rng.random()
        if faults.healed:
            # For a stop to wait for. While there is much to do it would take too long.
            owed = self._checker.record_log.shards[owning.shard_id].owed()
            seconds = self.rng.uniform(0, _LONGEST_AT_REST) if owed <= 20 and not faults.strained else 0.0
        if faults.happens("F23.late", about):
            seconds = self.rng.uniform(0.5, 5)
        if faults.happens("F23.never", about):
            seconds = _LONGEST
        return seconds

    def _is_of_no_use(self, context: Context, seconds: float) -> bool:
        return context.lost or (self._faults.healed and seconds > _LONGEST_AT_REST)

    def _ends(self, record: Record, context: Context) -> None:
        owning, position = self._must_own("process_records"), _position(record)
        if self._faults.happens("F17.raises", f"{self._host} {record.shard_id}"):
            raise ValueError("at random")
        # Said first: once the call has returned, a checkpoint may pass it.
        self._open.discard(position)
        self._last_of[record.partition_key] = position
        self._book.says_done(position)
        self._checker.record_log.delivered(owning.shard_id, [position])
        owning.delivered.add(position)
        is_settled = self._faults.happens("F23.twice", f"{self._host} {record.shard_id}")
        if is_settled:
            # The lane does so once more.
            self._settling.settle((record.sequence_number, record.sub_sequence_number))
        if not self._has_checkpointed and self._faults.happens(
            "F17.twice", f"{self._host} {record.shard_id}"
        ):
            self._has_checkpointed = True
            # A record that is settled is done, and its call may not fail any more: no worker settles it before that.
            with suppress(Exception) if is_settled else nullcontext():
                # Mostly refused: up to the records that are done without a gap.
                self._checkpoint(context.batch.checkpointer, record)


def draw_lanes(rng: random.Random) -> dict[str, Any]:
    """Return the fields of Config that go with handlers in lanes."""
    return {
        "checkpoint_mode": rng.choice(["auto", "auto", "interval"]),
        "on_error": rng.choice(["retry", "retry", "retry", "raise"]),
        "batch_size": rng.choice([None, 4, 20]),
        "batch_window": rng.choice([0.0, 0.0, 1.0]),
        "processor_timeout": rng.choice([None, 60.0]),
    }


def _position(record: Record) -> Position:
    return position_of(record.sequence_number, record.sub_sequence_number)
