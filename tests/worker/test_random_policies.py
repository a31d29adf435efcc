"""Random handlers, ends, faults and destinations under policies; and mutants of the policies, which these runs catch."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pykcl import FailedAt, RecordProcessor, Reject, TemporaryError
from pykcl.planning.attempts import WorkList
from pykcl.testing import assert_in_order, records, run_processor
from pykcl.testing.fleet import Fleet
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation
from pykcl.worker.batch_delivery import BatchDelivery
from tests.mutants.mutant import Patch

SEEDS = range(40)
FAILURES_OF_AN_OUTAGE = 14
"""Attempts to send; with their pauses they take longer than retry_timeout."""


@dataclass
class Destination:
    """Fails at random before or after it has kept a letter, and once for long."""

    rng: random.Random
    outage: int
    kept: list = field(default_factory=list)

    def send(self, letters):
        if self.outage:
            self.outage -= 1
            raise TemporaryError("down")
        if self.rng.random() < 0.3:
            raise TemporaryError("down")
        self.kept += letters
        if self.rng.random() < 0.3:
            raise TemporaryError("the answer is lost")


def course(seed):
    """Run one seed. Raises AssertionError for a record that is lost, and for a dead letter that is none."""
    rng = random.Random(f"policies/{seed}")
    size = rng.randrange(1, 16)
    data = [f"r{number}" for number in range(size)]
    poison = {each for each in data if rng.random() < rng.choice([0.0, 0.2, 0.9])}
    flaky = {each for each in data if rng.random() < 0.2}
    way = rng.choice(["raises", "failed at", "rejects"])

    class Handler(RecordProcessor):
        def process_records(self, batch):
            for record in batch:
                text = record.text()
                if text in flaky:
                    flaky.discard(text)
                    raise rng.choice([ValueError("once"), TemporaryError("once"), FailedAt(record)])
                if text in poison and way == "raises":
                    raise ValueError("always")
                if text in poison:
                    raise FailedAt(record) if way == "failed at" else Reject(record)

    destination = Destination(rng, rng.choice([0, 0, FAILURES_OF_AN_OUTAGE]))
    end = rng.choice(["shard_end", "stop", "crash", "lease_lost"])
    result = run_processor(
        Handler,
        records(*data, partition_key="k", aggregated=rng.random() < 0.5),
        end=end,
        seed=seed,
        faults=[name for name in ("checkpoint_throttled", "lost_answers") if rng.random() < 0.3],
        timeout=3600.0,
        max_attempts=rng.randrange(2, 4),
        bisect=True,
        batch_size=rng.choice([None, 1, 4]),
        batch_window=rng.choice([0.0, 0.0, 3.0]),
        checkpoint_mode=rng.choice(["auto", "interval"]),
        retry_timeout=30.0,
        dead_letters_in_a_row=0,
        dead_letters=destination,
    )
    assert result.lost == 0
    given_up = {record.text() for letter in destination.kept for record in letter.records}
    assert given_up == poison
    assert len({letter.id for letter in destination.kept}) == len(poison)
    assert {record.text() for record in result.delivered} == set(data) - poison
    assert_in_order(result)
    return result


def age_course(hours):
    """Give up what is old by Kinesis' clock, on a host whose clock is wrong. Raises AssertionError."""
    with Simulation(seed=0) as simulation, pytest.MonkeyPatch.context() as patch:
        fleet = Fleet(simulation, shards=1)
        now = lambda self: EPOCH_MILLIS + int(simulation.now) * 1000  # noqa: E731
        patch.setattr(MemoryStream, "server_time_millis", now)
        old = fleet.put(2, "old")
        simulation.sleep(90)
        young = fleet.put(2, "young")
        simulation.clock("w1").wall_offset = hours * 3_600_000
        kept = []
        fleet.start("w1", max_record_age=60.0, dead_letters=kept.extend)
        simulation.sleep(10)
        fleet.workers["w1"].stop()
        assert [record.data for letter in kept for record in letter.records] == old
        assert fleet.ledger.by("w1") == young


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dead_letters_are_the_poison_and_nothing_is_lost(seed):
    course(seed)


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_the_host_does_not_matter(hours):
    age_course(hours)


def _settled_before_the_answer(patch):
    def make(give_up):
        def early(self, work, part, condition, chosen):
            self._settle(chosen, False)
            return give_up(self, work, part, condition, chosen)

        return early

    patch.replace(BatchDelivery, "_give_up", make)


def _right_half_forgotten(patch):
    def make(cut):
        def forgetful(self, part, start, stop, verdict, chosen):
            decision = cut(self, part, start, stop, verdict, chosen)
            if part.stop > stop:
                del self._parts[len(self._parts) - (2 if start == part.start else 3)]
            return decision

        return forgetful

    patch.replace(WorkList, "_cut", make)


def _lost_answer_taken_for_a_kept_letter(patch):
    patch.replace(BatchDelivery, "_send", lambda send: lambda self, destination, letter: (
        self._calls.send_letters(destination.send, (letter,)) is None and False
    ))  # fmt: skip


@pytest.mark.parametrize(
    "mutant", [_settled_before_the_answer, _right_half_forgotten, _lost_answer_taken_for_a_kept_letter]
)
def test_a_mutant_of_the_policies_is_caught(mutant):
    with Patch() as patch:
        mutant(patch)
        caught = None
        for seed in SEEDS:
            try:
                course(seed)
            except AssertionError:
                caught = seed
                break
        assert all(patch.called.values()), "never called"
    assert caught is not None
    course(caught)


def _by_the_host(expire):
    def by_the_host(self, work, first, chosen):
        context = self._context
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(context.stream), "server_time_millis", lambda stream: context.runtime.utcnow_millis()
            )
            return expire(self, work, first, chosen)

    return by_the_host


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_mutant_that_takes_the_age_by_the_hosts_clock_is_caught(hours):
    with Patch() as patch:
        patch.replace(BatchDelivery, "_expire", _by_the_host)
        with pytest.raises(AssertionError):
            age_course(hours)
        assert all(patch.called.values())
