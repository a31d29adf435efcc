"""Simulations of records that are settled one by one (F23).

With checkpoint_mode="ack" threads of the processor ack in random order, late or not at all; in the others a handler
processes several records at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pykcl.errors import ConfigError, TemporaryError
from pykcl.events import Event, RecordsDeadLettered, RetriesExhausted
from pykcl.model.dead_letter import DeadLetter
from pykcl.model.record import Record
from pykcl.processor import Batch, InitializationInput
from pykcl.testing.simulation.delivery import Ownership, Position, position_of
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.processors import FaultyProcessor
from tests.simulation.lanes import AckBook, BadLanes, LaneChecker, LaneLetters, draw_lane_policies, draw_lanes
from tests.simulation.letters import SharedDestination
from tests.simulation.quiescence import FleetQuiescence
from tests.simulation.world import CheckedWorld

_LATE_AT_REST = 3.0
_LANES_END = 60.0
"""Seconds within which the lanes end that were at work when the faults ended."""
_STEP = 0.5
"""Seconds after which a thread that holds a record back checks whether it is still of use."""


class AckProcessor(FaultyProcessor):
    """FaultyProcessor whose records are done, and acked, by threads of its own."""

    rng: random.Random
    books: dict[tuple[str, str], AckBook]
    max_unacked: int

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        self._book = self.books[self._host, init.shard_id] = AckBook()

    def process_records(self, batch: Batch) -> Any:
        owning = self._must_own("process_records")
        positions = [_position(record) for record in batch]
        about = f"{self._host} {batch.shard_id}"
        with owning.call(self._checker, "process_records"):
            stands_for = self._book.given(positions)
            above = self._book.above()
            self._checker.expect(
                above <= self.max_unacked,
                Guarantee.NO_DUPLICATES,
                f"{about}: {above} records would come again, max_unacked={self.max_unacked}",
            )
            self._checker.batch_starts(owning, stands_for)
            self._dawdle_perhaps(batch.shard_id)
            if self._faults.happens("F17.raises", about):
                self._submit(batch, owning, self.rng.randrange(len(batch)))
                self._book.failed(stands_for)
                raise ValueError("at random")
            self._submit(batch, owning, len(batch))
            owning.after = positions[-1]
            self._checker.on_returned(owning)
            self._last = (batch.checkpointer, batch.records[-1])
            if self._faults.happens("F17.twice", about):
                # Mostly refused.
                self._checkpoint(batch.checkpointer, self.rng.choice(batch.records))
            if self._faults.happens("F17.ahead", about):
                self._acks_ahead(batch, about)

    def _acks_ahead(self, batch: Batch, about: str) -> None:
        """Ack a record that nobody was given: an error, or without effect where the lease is lost."""
        number = int(batch.records[-1].sequence_number) + 10**30
        try:
            accepted = batch.ack(Record(b"", "", str(number), shard_id=batch.shard_id))
        except ValueError:
            return
        what = f"{about}: an ack of {number} was accepted"
        self._checker.expect(not accepted, Guarantee.CHECKPOINT_AFTER_DELIVERY, what)

    def _submit(self, batch: Batch, owning: Ownership, count: int) -> None:
        """Hand the first records of the batch to a thread or two, in random order."""
        records = list(batch.records[:count])
        self.rng.shuffle(records)
        cut = self.rng.randint(0, len(records))
        for part in (records[:cut], records[cut:]):
            if part:
                work = partial(self._work, batch, owning, part)
                self._simulation.spawn(f"app-{batch.shard_id}", self._host, work)

    def _work(self, batch: Batch, owning: Ownership, records: list[Record]) -> None:
        faults, about = self._faults, f"{self._host} {batch.shard_id}"
        if (
            faults.healed
            and not faults.strained
            and self._checker.record_log.shards[batch.shard_id].owed() <= 5
        ):
            # For a stop to wait for. While there is much to do it would take too long.
            self._simulation.sleep(self.rng.uniform(0, _LATE_AT_REST))
        for record in records:
            seconds = 0.0 if faults.healed else self.rng.choice([0.0, 0.0, 0.1, 1.0]) * self.rng.random()
            if faults.happens("F23.late", about):
                seconds = self.rng.uniform(1, 20)
            if faults.happens("F23.never", about):
                seconds = 10_000.0
            if not self._holds_back(owning, seconds):
                return
            if faults.happens("F23.rejects", about):
                # The program logs that, and has another way to be done with the record, some time later.
                with suppress(TemporaryError, ConfigError):
                    batch.reject(record, "at random")
                if not self._holds_back(owning, faults.rng("F23.rejects").uniform(1, 10)):
                    return
            position = _position(record)
            # Said first: once it is acked, a checkpoint may pass it before this thread goes on.
            self._book.says_done(position)
            self._checker.record_log.delivered(owning.shard_id, [position])
            owning.delivered.add(position)
            if batch.ack(record):
                self._book.acked.add(position)
            elif owning.state == "shut down":
                # 1) Its stop has waited for acks as long as it may; 2) this thread is about to ack; 3) the lease is
                # released. The ack is refused, so that the record comes again, and the application knows of it.
                owning.delivered.discard(position)
            if faults.happens("F23.twice", about):
                self._checker.expect(
                    not batch.ack(record), Guarantee.LIFE_CYCLE, f"{about}: a second ack was accepted"
                )

    def _holds_back(self, owning: Ownership, seconds: float) -> bool:
        """Wait for so long, but not into the time without faults; False once nobody wants the ack any more."""
        until = self._simulation.now + seconds
        while self._simulation.now < until:
            left = until - self._simulation.now
            self._simulation.sleep(min(left, _STEP))
            if owning.state == "lost":
                return False
            if self._faults.healed:
                break
        return True


class DownForEver:
    """A DeadLetterDestination that keeps nothing."""

    def send(self, letters: Sequence[DeadLetter]) -> None:
        raise TemporaryError("the destination is down")


class AckQuiescence(FleetQuiescence):
    """FleetQuiescence with a successor for a worker that stops because of a record that raised before.

    1) A record raises in a lane; 2) the faults end, and two workers are there; 3) the other lanes of its batch end, and
    on_error="raise" stops the worker; 4) the other one may hold too few leases to read every shard.
    """

    def _expect_soon(
        self, condition: Callable[[], bool], seconds: float, guarantee: Guarantee, what: Callable[[], str]
    ) -> None:
        def holds() -> bool:
            fleet, world = self._fleet, self._world
            may_fail = world.simulation.now < world.healed_at + _LANES_END
            if guarantee is Guarantee.ALL_DELIVERED and may_fail and len(fleet.workers()) < fleet.fewest():
                fleet.start()
            return condition()

        super()._expect_soon(holds, seconds, guarantee, what)


class AckWorld(CheckedWorld):
    """CheckedWorld whose workers settle records one by one.

    way: "acks" of a class, or the calls of a handler in "lanes" or "async lanes".
    """

    def _create_checkers(self) -> None:
        way = random.Random(f"{self.simulation.seed}/way")
        self.way = way.choice(["acks", "lanes", "async lanes"])
        self.rng = random.Random(f"{self.simulation.seed}/acks")
        given_up: dict[str, Any] = {}
        if self.way == "acks":
            self.options.update(draw_acks(self.rng))
            if self.options["on_error"] == "retry":
                self.options["dead_letters"] = DownForEver()
            self.options.pop("checkpoint_interval", None)
        else:
            self.options.update(draw_lanes(self.rng))
            if self.options["checkpoint_mode"] == "interval":
                self.options.setdefault("checkpoint_interval", 2.0)
            else:
                self.options.pop("checkpoint_interval", None)
            self.concurrency = self.rng.choice([2, 4, 16] if self.way == "lanes" else [1, 2, 4, 16])
            given_up = draw_lane_policies(random.Random(f"{self.simulation.seed}/lane policies"))
            self.options.update(given_up)
        super()._create_checkers()
        # Besides those after a batch one a second while lanes run, or acks come in and no batch does.
        rules = self.observer.budgets.rules
        rules["checkpoint"] = replace(rules["checkpoint"], most=28)
        self.observer.losses.reads_ahead = self.options["batch_window"] > 0
        self.books: dict[tuple[str, str], AckBook] = {}
        self.bad: BadLanes | None = None
        self.letters: LaneLetters | None = None
        if given_up:
            self._give_up_what_is_bad()

    def _give_up_what_is_bad(self) -> None:
        self.bad = BadLanes(self.simulation, self.faults)
        self.letters = LaneLetters(
            self.delivery,
            blame=self.bad.kind,
            believes=self._may_believe,
            kinesis_millis=self.kinesis_millis,
            max_attempts=self.options["max_attempts"],
            max_age=None,
            exact=True,
            splits=False,
        )
        self.letters.books, self.letters.now = self.books, lambda: self.simulation.now
        self.options["dead_letters"] = SharedDestination(self.simulation, self.faults, self.letters)

    def _heard(self, host: str, event: Event) -> None:
        super()._heard(host, event)
        if self.letters is None:
            return
        if isinstance(event, RecordsDeadLettered):
            self.letters.heard(host, event)
        limit = self.options["dead_letters_in_a_row"]
        if isinstance(event, RetriesExhausted) and "in_a_row" in event.cause:
            self.letters.handed_back(host, event, limit)

    def _processor(self, name: str, stop: Callable[[], bool]) -> FaultyProcessor:
        kind = AckProcessor if self.way == "acks" else LaneChecker
        processor = kind(
            name, self.simulation, self.faults, self.delivery, by_hand=False, inner=None, stop_worker=stop
        )
        processor.rng, processor.books = self.rng, self.books
        if isinstance(processor, AckProcessor):
            processor.max_unacked = self.options["max_unacked"]
        else:
            processor.way, processor.concurrency = self.way, self.concurrency
            processor.bad = self.bad
            processor.owners = {} if self.letters is None else self.letters.owners
        return processor


def draw_acks(rng: random.Random) -> dict[str, Any]:
    """Return the fields of Config that are about acks."""
    return {
        "checkpoint_mode": "ack",
        "max_unacked": rng.choice([1, 3, 20, 10_000]),
        "on_error": rng.choice(["retry", "retry", "retry", "raise"]),
        "batch_size": rng.choice([None, 1, 4]),
        "batch_window": rng.choice([0.0, 0.0, 1.0]),
        # Else a record that is never acked would hold up its shard for good.
        "processor_warn_after": 10.0,
        "processor_timeout": 25.0,
    }


def _position(record: Record) -> Position:
    return position_of(record.sequence_number, record.sub_sequence_number)
