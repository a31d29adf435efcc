"""Simulations of processing policies: a fleet whose workers give records up, and what makes them do so (F21)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from pykcl.errors import TemporaryError
from pykcl.events import Event, RecordsDeadLettered
from pykcl.model.record import Record
from pykcl.processor import Batch, FailedAt, InitializationInput, Reject
from pykcl.testing.simulation.delivery import Ownership, Position, position_of
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.processors import FaultyProcessor
from tests.simulation.letters import LetterChecker, SharedDestination
from tests.simulation.world import CheckedWorld

WAYS = ("raises", "fails at", "rejects")


class BadRecords:
    """The records at which the processors of all hosts fail: for ever (poison), or the first few times (flaky).

    times: calls at which a flaky record fails, at most. ways: of failing, drawn for each record.
    """

    def __init__(self, faults: Faults, rng: random.Random, *, times: int, ways: tuple[str, ...]) -> None:
        self._faults, self._rng = faults, rng
        self._times, self._ways = times, ways
        self._kinds: dict[tuple[str, Position], str | None] = {}
        self._left: dict[tuple[str, Position], int] = {}

    def kind(self, shard_id: str, position: Position) -> str | None:
        """The fault that a record has; None also for one that was in no call so far."""
        return self._kinds.get((shard_id, position))

    def first_failure(self, batch: Batch) -> tuple[int, Exception] | None:
        """Return the index of the first record of a call that fails, and its exception."""
        for at, record in enumerate(batch):
            key = batch.shard_id, position_of(record.sequence_number, record.sub_sequence_number)
            if key not in self._kinds:
                self._draw(key)
            if self._kinds[key] == "F21.poison":
                return at, self._failure(record, len(batch), self._rng.choice(self._ways))
            if self._left.get(key, 0):
                self._left[key] -= 1
                way = self._rng.choice(self._ways)
                # A rejected record would never be tried again.
                return at, self._failure(record, len(batch), "fails at" if way == "rejects" else way)
        return None

    def _draw(self, key: tuple[str, Position]) -> None:
        about = f"{key[0]} {key[1]}"
        kind = next((kind for kind in ("F21.poison", "F21.flaky") if self._faults.happens(kind, about)), None)
        self._kinds[key] = kind
        if kind == "F21.flaky":
            self._left[key] = self._rng.randint(1, self._times)

    def _failure(self, record: Record, records: int, way: str) -> Exception:
        if way == "fails at":
            return FailedAt(record)
        if way == "rejects":
            return Reject(None if records == 1 else record, "poison")
        return ValueError("poison")


class PolicyProcessor(FaultyProcessor):
    """FaultyProcessor that fails at bad records, and otherwise only in ways that blame no record."""

    bad: BadRecords
    owners: dict[tuple[str, str], Ownership]

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        if self._owning is not None:
            self.owners[self._host, init.shard_id] = self._owning

    def process_records(self, batch: Batch) -> Any:
        failure = self.bad.first_failure(batch)
        if failure is None:
            return super().process_records(batch)
        at, error = failure
        owning = self._must_own("process_records")
        positions = [position_of(r.sequence_number, r.sub_sequence_number) for r in batch]
        with owning.call(self._checker, "process_records"):
            self._checker.batch_starts(owning, positions)
            self._dawdle_perhaps(batch.shard_id)
            if isinstance(error, FailedAt) and at:
                self._checker.delivered(owning, positions[:at])
            raise error

    def _fail(self, batch: Batch, owning: Ownership, positions: list[Position]) -> Iterator[None]:
        """Fail as a processor whose database is away: no record is to blame, so that none is given up for it."""
        rng = self._faults.rng("F17.raises")
        if len(batch) > 1 and not self._never and rng.random() < 0.25:
            self._checkpoint(batch.checkpointer, batch.records[rng.randrange(len(batch) - 1)])
        raise TemporaryError("at random")


class PolicyWorld(CheckedWorld):
    """CheckedWorld whose workers have processing policies and share a destination of dead letters."""

    def _create_checkers(self) -> None:
        rng = random.Random(f"{self.simulation.seed}/policies")
        self.options.update(draw_policies(rng))
        super()._create_checkers()
        self.observer.losses.reads_ahead = self.options["batch_window"] > 0
        options, age = self.options, self.options["max_record_age"]
        ways = WAYS if options["bisect"] else (rng.choice(WAYS),)
        self.bad = BadRecords(self.faults, rng, times=options["max_attempts"] - 1, ways=ways)
        self.letters = LetterChecker(
            self.delivery,
            blame=self.bad.kind,
            believes=self._may_believe,
            kinesis_millis=self.kinesis_millis,
            max_attempts=options["max_attempts"],
            max_age=None if age is None else age * 1000,
            exact=options["bisect"] or ways != ("raises",),
            splits=options["bisect"],
        )
        options["dead_letters"] = SharedDestination(self.simulation, self.faults, self.letters)

    def _heard(self, host: str, event: Event) -> None:
        super()._heard(host, event)
        if isinstance(event, RecordsDeadLettered):
            self.letters.heard(host, event)

    def _processor(self, name: str, stop: Callable[[], bool]) -> FaultyProcessor:
        processor = PolicyProcessor(
            name,
            self.simulation,
            self.faults,
            self.delivery,
            by_hand=self.options["checkpoint_mode"] == "manual",
            inner=None,
            stop_worker=stop,
        )
        processor.bad, processor.owners = self.bad, self.letters.owners
        return processor


def draw_policies(rng: random.Random) -> dict[str, Any]:
    """Return the fields of Config that are about policies."""
    return {
        "on_error": "retry",
        "max_attempts": rng.choice([2, 3]),
        "bisect": rng.random() < 0.75,
        "max_record_age": rng.choice([None, 60.0, 120.0]),
        "batch_size": rng.choice([None, 1, 4]),
        "batch_window": rng.choice([0.0, 0.0, 1.0]),
        "dead_letters_in_a_row": rng.choice([0, 3, 100]),
    }
