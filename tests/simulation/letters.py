"""Dead letters of a simulation: the destination that all hosts share, and the checker of what they give up (F21)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykcl.errors import TemporaryError
from pykcl.events import RecordsDeadLettered
from pykcl.model.dead_letter import Condition, DeadLetter
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation.delivery import DeliveryChecker, Ownership, Position, position_of
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Guarantee

_SLOWEST_ANSWER = 1.0
_LONGEST_OUTAGE = 60.0
_CLOCK_STEP = 1000
"""Kinesis tells its time in whole seconds."""

Blame = Callable[[str, Position], str | None]
"""The fault that a record has, by shard and position: "F21.poison", "F21.flaky" or None."""


class LetterChecker:
    """NO_GAP for records that are given up: each for a reason, and none before its letter is kept.

    kept: shard and positions, by the letter's identifier. exact: a failure names its record, or batches are split until
    one is left, so that no sound record is given up beside a poison one. splits: all are. max_age: milliseconds.
    """

    def __init__(
        self,
        checker: DeliveryChecker,
        *,
        blame: Blame,
        believes: Callable[[str, str], bool],
        kinesis_millis: Callable[[], int],
        max_attempts: int,
        max_age: float | None,
        exact: bool,
        splits: bool,
    ) -> None:
        self._checker, self._record_log = checker, checker.record_log
        self._blame, self._believes, self._kinesis_millis = blame, believes, kinesis_millis
        self._max_attempts, self._max_age = max_attempts, max_age
        self._exact, self._splits = exact, splits
        self.kept: dict[str, tuple[str, list[Position]]] = {}
        self._ids: dict[tuple[str, Position, Position], str] = {}
        self.owners: dict[tuple[str, str], Ownership] = {}

    def sent(self, host: str, letter: DeadLetter) -> None:
        """Check a letter when its host begins to send it."""
        shard_id, positions = letter.shard_id, positions_in(letter)
        where = f"{host} {shard_id}: a letter of {positions[0]} to {positions[-1]}"
        believed = self._believes(host, shard_id)
        self._expect(believed, f"{where} without belief in the lease", Guarantee.SILENT_AFTER_LOSS)
        shard = self._record_log.shard(shard_id)
        # With a clock that is behind, a start at LATEST reads what was put before it. That is owed to nobody.
        positions = [position for position in positions if position not in shard.before]
        if not positions:
            return
        span = shard.put[shard.index(positions[0]) : shard.index(positions[-1]) + 1]
        # What retention took was there for one who read the shard before, and not for one who read across the gap.
        there = [position for position in span if position in positions or position not in shard.trimmed]
        self._expect(there == positions, f"{where} has {positions}, and the shard {there}")
        known = self._ids.setdefault((shard_id, positions[0], positions[-1]), letter.id)
        self._expect(known == letter.id, f"{where} is {letter.id}, and was {known}")
        if letter.condition is Condition.RECORD_AGE_EXPIRED:
            self._check_age(where, [shard.arrived_at(position) for position in positions])
        else:
            self._check_blame(where, letter, [self._blame(shard_id, position) for position in positions])

    def _check_age(self, where: str, arrivals: list[int]) -> None:
        youngest = self._kinesis_millis() - max(arrivals)
        fits = self._max_age is not None and youngest > self._max_age - _CLOCK_STEP
        self._expect(fits, f"{where} that are {youngest} ms old or older, and not too old")

    def _check_blame(self, where: str, letter: DeadLetter, blamed: list[str | None]) -> None:
        if letter.condition is Condition.REJECTED:
            fits = blamed == ["F21.poison"]
        elif not self._exact:
            fits = any(blamed) and letter.attempts == self._max_attempts
        else:
            # A flaky one that another took the first attempt from; where batches are split each has all of its own.
            allowed = ["F21.poison"] if self._splits else ["F21.poison", "F21.flaky"]
            fits = len(blamed) == 1 and blamed[0] in allowed and letter.attempts == self._max_attempts
        self._expect(
            fits, f"{where}, {letter.condition.value} after {letter.attempts} attempts, has {blamed}"
        )

    def keep(self, letter: DeadLetter) -> None:
        """Note that the destination keeps a letter: its records are settled, whether its sender learns of it or not."""
        positions = positions_in(letter)
        self.kept[letter.id] = (letter.shard_id, positions)
        self._record_log.shard(letter.shard_id).delivered.update(positions)

    def heard(self, host: str, event: RecordsDeadLettered) -> None:
        """Check that a host goes on behind records only when their letter is kept."""
        if positions := self.reported(host, event):
            self._checker.given_up(self.owners[host, event.shard], positions)

    def reported(self, host: str, event: RecordsDeadLettered) -> list[Position]:
        """Check that a letter is reported only when it is kept; return its records."""
        shard_id, positions = self.kept.get(event.letter, (event.shard, []))
        where = f"{host} {event.shard}: letter {event.letter} of {event.first} to {event.last}"
        fits = shard_id == event.shard and len(positions) == event.records
        self._expect(fits, f"{where} is reported, and not kept")
        return positions if fits else []

    def _expect(self, holds: bool, what: str, guarantee: Guarantee = Guarantee.NO_GAP) -> None:
        self._checker.expect(holds, guarantee, what)


class SharedDestination:
    """A DeadLetterDestination of all hosts. It is down for a while (F21.down), or its answer is lost (F21.unanswered)."""

    def __init__(self, simulation: Simulation, faults: Faults, checker: LetterChecker) -> None:
        self._simulation, self._faults = simulation, faults
        self._sent, self._keep = simulation.insist(checker.sent), simulation.insist(checker.keep)
        self._down_until = 0.0

    def send(self, letters: Sequence[DeadLetter]) -> None:
        host, faults = self._simulation.current_group, self._faults
        for letter in letters:
            self._sent(host, letter)
        about = f"{host} {letters[0].shard_id}"
        if faults.happens("F21.down", about):
            self._down_until = self._simulation.now + faults.rng("F21.down").uniform(1, _LONGEST_OUTAGE)
        self._answers_later()
        if self._simulation.now < self._down_until and not faults.healed:
            raise TemporaryError("the destination is down")
        for letter in letters:
            self._keep(letter)
        if faults.happens("F21.unanswered", about):
            self._answers_later()
            raise TemporaryError("the answer is lost")

    def _answers_later(self) -> None:
        if not self._faults.healed:
            self._simulation.sleep(self._faults.rng("F21.unanswered").uniform(0, _SLOWEST_ANSWER))


def positions_in(letter: DeadLetter) -> list[Position]:
    return [position_of(r.sequence_number, r.sub_sequence_number) for r in letter.records]
