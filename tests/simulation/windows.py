"""Simulations of tumbling windows: each final state is a function of the records, whatever happens to their readers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from pykcl.errors import CheckpointRefused
from pykcl.handlers.functions import handler
from pykcl.handlers.windows import Window
from pykcl.processor import Batch, InitializationInput
from pykcl.testing.simulation.delivery import Ownership, Position, RecordLog, position_of
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.processors import FaultyProcessor
from tests.simulation.world import CheckedWorld

State = list[Position]


class WindowChecker:
    """Checker of final states. finals: by shard and first record, the records of each window that was closed.

    length: of a window, milliseconds.
    """

    def __init__(self, record_log: RecordLog, length: int) -> None:
        self._record_log, self.length = record_log, length
        self.finals: dict[tuple[str, Position], State] = {}

    def close(self, shard_id: str, state: State) -> str | None:
        """Note a final state; return what is wrong with it."""
        before = self.finals.setdefault((shard_id, state[0]), state)
        if before != state:
            return f"{len(state)} records from {state[0]}, and {len(before)} when it was closed before"
        expected = self._expected(shard_id, state[0])
        # What is put later than the final call in the same span goes into no window that has ended by then.
        if state != expected[: len(state)] or (len(expected) > len(state) and not self._has_ended(shard_id)):
            return f"{len(state)} records from {state[0]}, expected {len(expected)}"
        return None

    def _has_ended(self, shard_id: str) -> bool:
        return bool(self._record_log.children(shard_id))

    def _expected(self, shard_id: str, first: Position) -> State:
        """Return the records of the window that begins with this one, as the log has them."""
        shard = self._record_log.shards[shard_id]
        start = shard.arrived_at(first) // self.length
        found = []
        for position in shard.put[shard.index(first) :]:
            if shard.arrived_at(position) // self.length > start:
                break
            found.append(position)
        return found

    def missing(self) -> list[tuple[str, Position]]:
        """Return records that are in no final state, or in several."""
        found = [(shard, position) for (shard, _), state in self.finals.items() for position in state]
        counts = {each: found.count(each) for each in set(found)} if len(found) != len(set(found)) else {}
        put = {
            (name, position)
            for name, shard in self._record_log.shards.items()
            for position in shard.put
            if position not in shard.trimmed and position not in shard.before
        }
        return sorted((put - set(found)) | {each for each, count in counts.items() if count > 1})


class WindowProcessor(FaultyProcessor):
    """FaultyProcessor around a function with windows, whose state is the records of its calls.

    A record counts as delivered when its window is closed: no checkpoint may pass it before.
    """

    checker: WindowChecker

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        self._function = cast(Any, handler(self._collect, window=self.checker.length // 1000)())
        self._function.initialize(init)
        self.windows = self._function.windows
        self._final: State | None = None

    def _collect(self, batch: Batch, window: Window) -> State:
        state: State = window.state or []
        if window.is_final:
            self._final = state
        # In place: what a failing call has changed must not count.
        state += _positions(batch)
        self._raise_perhaps(batch.shard_id)
        return state

    def process_records(self, batch: Batch) -> Any:
        owning = self._must_own("process_records")
        positions = _positions(batch)
        with owning.call(self._checker, "process_records"):
            if not batch:
                self._close(batch, owning)
                return
            self._checker.batch_starts(owning, positions)
            self._dawdle_perhaps(batch.shard_id)
            self._function.process_records(batch)
            owning.after = positions[-1]
            self._last = (batch.checkpointer, batch.records[-1])
            if self._faults.happens("F17.twice", f"{self._host} {batch.shard_id}"):
                self._must_refuse(
                    CheckpointRefused,
                    Guarantee.CHECKPOINT_AFTER_DELIVERY,
                    batch.checkpointer,
                    batch.records[-1],
                )

    def _close(self, batch: Batch, owning: Ownership) -> None:
        self._dawdle_perhaps(batch.shard_id)
        self._final = None
        self._function.process_records(batch)
        state: State | None = self._final
        if state is None:
            self._checker.expect(
                False, Guarantee.LIFE_CYCLE, f"{self._host}: a window without records was closed"
            )
            return
        wrong = self.checker.close(batch.shard_id, state)
        self._checker.expect(wrong is None, Guarantee.NO_GAP, f"{self._host} {batch.shard_id}: {wrong}")
        self._checker.record_log.delivered(batch.shard_id, state)
        owning.delivered.update(state)
        self._checker.on_returned(owning)


class WindowWorld(CheckedWorld):
    """CheckedWorld whose workers call a function with windows."""

    def _create_checkers(self) -> None:
        rng = random.Random(f"{self.simulation.seed}/windows")
        self.options.update(draw_windows(rng))
        if self.options["checkpoint_mode"] == "auto":
            self.options.pop("checkpoint_interval", None)
        super()._create_checkers()
        self.observer.losses.reads_ahead = self.options["batch_window"] > 0
        self.windows = WindowChecker(self.record_log, rng.choice([1, 5, 30]) * 1000)

    def _processor(self, name: str, stop: Callable[[], bool]) -> FaultyProcessor:
        processor = WindowProcessor(
            name, self.simulation, self.faults, self.delivery, by_hand=False, inner=None, stop_worker=stop
        )
        processor.checker = self.windows
        return processor


def draw_windows(rng: random.Random) -> dict[str, Any]:
    """Return the fields of Config of simulations of windows."""
    return {
        # Else a window would begin where its reader was first started.
        "initial_position": "TRIM_HORIZON",
        "checkpoint_mode": rng.choice(["auto", "auto", "interval"]),
        "checkpoint_interval": rng.choice([0.5, 5.0]),
        "on_error": rng.choice(["retry", "retry", "retry", "raise"]),
        "batch_size": rng.choice([None, 1, 4]),
        "batch_window": rng.choice([0.0, 0.0, 1.0]),
    }


def _positions(batch: Batch) -> State:
    return [position_of(each.sequence_number, each.sub_sequence_number) for each in batch]
