"""Handlers with `concurrency`, plain and async, in the simulations of acks: order of each key, and what is settled."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import pairwise
from typing import Any

from pykcl.errors import TemporaryError
from pykcl.events import RecordsDeadLettered, RetriesExhausted
from pykcl.handlers.functions import Context, handler
from pykcl.model.record import Record
from pykcl.processor import Batch, InitializationInput, Reject
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation.delivery import Ownership, Position, position_of
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.processors import FaultyProcessor
from tests.simulation.letters import LetterChecker

_STEP = 0.5
"""Seconds after which a call that takes long checks whether it is still of use."""
_LONGEST = 60.0
_LONGEST_AT_REST = 1.0
_LONGEST_OUTAGE = 60.0


class AckBook:
    """Records that one instance was given, and which of them it has acked. Used by all its threads.

    acked: records whose ack was accepted. worked, given_up: records, with the time of their call or letter.
    """

    def __init__(self) -> None:
        self.acked: set[Position] = set()
        self.worked: list[tuple[Position, float]] = []
        self.given_up: list[tuple[Position, float]] = []
        self._said: set[Position] = set()
        self._given: set[Position] = set()
        self._above: deque[Position] = deque()
        self._failed: list[Position] = []

    def given(self, positions: list[Position]) -> list[Position]:
        """Note a batch; return what it stands for: with the records of a batch that failed and were acked meanwhile."""
        new = [position for position in positions if position not in self._given]
        self._given.update(new)
        self._above.extend(new)
        open_ones = self._failed_and_open - set(positions)
        # Where a call has the first ones of its batch alone, the others come in a later one.
        first = min(open_ones, default=None)
        acked = [p for p in self._failed if p in self._said and (first is None or p < first)]
        self._failed = [] if first is None else [p for p in self._failed if p >= first]
        return sorted({*positions, *acked})

    @property
    def _failed_and_open(self) -> set[Position]:
        return {position for position in self._failed if position not in self._said}

    def failed(self, positions: list[Position]) -> None:
        """Note a batch whose call raised: those of its records that are not acked come again."""
        self._failed = sorted({*positions, *self._failed})

    def given_up_upto(self, last: Position) -> None:
        """Note that nothing comes again up to there, though no call has returned."""
        self._failed = [position for position in self._failed if position > last]

    def says_done(self, position: Position) -> None:
        """Note that the record is about to be acked: from now on a checkpoint may pass it."""
        self._said.add(position)

    def is_done(self, position: Position) -> bool:
        return position in self._said

    def has_got_further(self) -> bool:
        """Return whether the first record that it was given is done."""
        return bool(self._given) and min(self._given) in self._said

    def works_between(self, count: int) -> Position | None:
        """Return a record that worked between two of the last ones that were given up, after the first of both was."""
        last = self.given_up[-count:]
        for (first, since), (second, until) in pairwise(last):
            low, high = sorted((first, second))
            for position, at in self.worked:
                if low < position < high and since < at < until:
                    return position
        return None

    def above(self) -> int:
        """Return how many records were given and are above the last one without a gap, at most."""
        while self._above and self._above[0] in self._said:
            self._above.popleft()
        return len(self._above)


class BadLanes:
    """What makes calls of lanes fail where records are given up: records that are bad, and what is down for a while."""

    def __init__(self, simulation: Simulation, faults: Faults) -> None:
        self._simulation, self._faults = simulation, faults
        self._kinds: dict[tuple[str, Position], str | None] = {}
        self._down_until = 0.0

    def kind(self, shard_id: str, position: Position) -> str | None:
        """As in `BadRecords`; a record that was called while all was down counts as flaky."""
        return self._kinds.get((shard_id, position))

    def failure(self, host: str, record: Record) -> Exception | None:
        faults, now = self._faults, self._simulation.now
        key = record.shard_id, _position(record)
        if key not in self._kinds:
            is_bad = faults.happens("F23.bad", f"{key[0]} {key[1]}")
            self._kinds[key] = "F21.poison" if is_bad else None
        if faults.happens("F23.outage", host):
            self._down_until = now + faults.rng("F23.outage").uniform(1, _LONGEST_OUTAGE)
        if self._kinds[key] is not None and self._kinds[key] != "F21.flaky":
            rejects = faults.rng("F23.bad").random() < 0.2
            return Reject(None, "poison") if rejects else ValueError("poison")
        if now < self._down_until and not faults.healed:
            self._kinds[key] = "F21.flaky"
            return ValueError("all is down")
        return None


class LaneLetters(LetterChecker):
    """LetterChecker for lanes: letters come in the order in which they are given up, between records that are done."""

    books: dict[tuple[str, str], AckBook]
    now: Callable[[], float]

    def heard(self, host: str, event: RecordsDeadLettered) -> None:
        positions = self.reported(host, event)
        book = self.books[host, event.shard]
        for position in positions:
            book.says_done(position)
        if positions:
            owning = self.owners[host, event.shard]
            book.given_up.append((positions[0], self.now()))
            owning.delivered.update(positions)
            if all(map(book.is_done, owning.running)):
                # No call says that the batch is over: what was left of it is given up.
                owning.after = owning.running[-1]
                book.given_up_upto(owning.after)
                self._checker.on_skipped(owning)

    def handed_back(self, host: str, event: RetriesExhausted, limit: int) -> None:
        """Check that a lease which goes back for failures in a row has got further, and that they were in a row."""
        book, where = (
            self.books[host, event.shard],
            f"{host} {event.shard}: handed back at {event.checkpoint}",
        )
        self._expect(
            book.has_got_further(),
            f"{where}, and the next owner begins where this one has",
            Guarantee.ALL_DELIVERED,
        )
        worked = book.works_between(limit)
        self._expect(worked is None, f"{where} for {limit} in a row, and {worked} has worked between them",
                     Guarantee.NO_FALSE_ALARM)  # fmt: skip


class LaneChecker(FaultyProcessor):
    """FaultyProcessor around a handler of one record, in lanes.

    `rng` draws what one call does; way: "lanes" or "async lanes". bad: what fails in simulations whose workers give
    records up; owners: for the checker of their letters.
    """

    rng: random.Random
    books: dict[tuple[str, str], AckBook]
    way: str
    concurrency: int
    bad: BadLanes | None = None
    owners: dict[tuple[str, str], Ownership]
    handler_name = "tests.simulation.lanes:work"

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        if self._owning is not None:
            self.owners[self._host, init.shard_id] = self._owning
        self._book = self.books[self._host, init.shard_id] = AckBook()
        self._running: set[str] = set()
        self._last_of: dict[str, Position] = {}
        self._open: set[Position] = set()
        self._dropped = False
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
            if self._dropped:
                # Its lease is lost: the next owner is given the batch.
                return
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
            if (late := self._drops_after(record, context)) is not None:
                self._simulation.sleep(late)
                return
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
            if (late := self._drops_after(record, context)) is not None:
                await asyncio.sleep(late)
                return
            self._ends(record, context)
        except asyncio.CancelledError:
            if not self._faults.happens("F23.swallows", f"{self._host} {record.shard_id}"):
                raise
            rng = self._faults.rng("F23.swallows")
            await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 3)]))
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

    def _drops_after(self, record: Record, context: Context) -> float | None:
        """Return the seconds after which the call returns with its work not done, as its lease is lost; None: it is."""
        if not context.lost or not self._faults.happens("F23.drops", f"{self._host} {record.shard_id}"):
            return None
        self._dropped = True
        return self._faults.rng("F23.drops").choice([0.0, 1.0, 10.0])

    def _is_of_no_use(self, context: Context, seconds: float) -> bool:
        return context.lost or (self._faults.healed and seconds > _LONGEST_AT_REST)

    def _ends(self, record: Record, context: Context) -> None:
        owning, position = self._must_own("process_records"), _position(record)
        if self._faults.happens("F17.raises", f"{self._host} {record.shard_id}"):
            # Where records are given up, none is to be for this.
            raise ValueError("at random") if self.bad is None else TemporaryError("at random")
        failure = None if self.bad is None else self.bad.failure(self._host, record)
        if failure is not None:
            raise failure
        self._book.worked.append((position, self._simulation.now))
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


def draw_lane_policies(rng: random.Random) -> dict[str, Any]:
    """Return the fields of Config that go with lanes whose bad records are given up; none for every second fleet."""
    if rng.random() < 0.5:
        return {}
    return {
        "on_error": "retry",
        "max_attempts": rng.choice([1, 2, 3]),
        "dead_letters_in_a_row": rng.choice([0, 3, 3, 10]),
    }


def _position(record: Record) -> Position:
    return position_of(record.sequence_number, record.sub_sequence_number)
