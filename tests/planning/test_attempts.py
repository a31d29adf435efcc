"""The attempts of a batch, over random sets of poison: what is given up is the poison, and nothing else."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.dead_letter import Condition
from pykcl.model.record import Record
from pykcl.planning.attempts import Cause, Failure, InARow, Policy, Successes, Verdict, WorkList


class Run:
    """One batch worked off over calls that raise for a call with poison in it. at: raise FailedAt instead."""

    def __init__(self, records, poison, *, at=False, rejects=False, **policy):
        self.calls, self.given_up, self.settled = 0, [], []
        self.work = work = WorkList(records, Policy(**policy))
        poison = sorted(poison)
        while (part := work.next()) is not None:
            assert part.start == len(self.settled), "from the left, without a hole"
            records_of_part = range(part.start, part.stop)
            if part.condition is not None:
                self.given_up.extend((record, part.condition, part.attempts) for record in records_of_part)
                self.settled.extend(records_of_part)
                work.returned()
                continue
            self.calls += 1
            first = next((each for each in poison if part.start <= each < part.stop), None)
            if first is None:
                self.settled.extend(records_of_part)
                work.returned()
                continue
            failure = Failure.REJECTED if rejects else Failure.FAILED_AT if at else Failure.ERROR
            if at and not rejects:
                self.settled.extend(range(part.start, first))
            decision = work.failed(
                failure, began=0.0, now=0.0, rng=Random(0), at=first if at or rejects else None
            )
            assert decision.verdict is not Verdict.HAND_BACK


batches = st.integers(1, 60).flatmap(
    lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), max_size=size))
)


@given(batches, st.integers(1, 4), st.booleans(), st.booleans())
def test_what_is_given_up_is_the_poison_and_nothing_else(batch, max_attempts, at, rejects):
    size, poison = batch
    run = Run(size, poison, at=at, rejects=rejects, max_attempts=max_attempts, bisect=True)
    assert [record for record, _, _ in run.given_up] == sorted(poison)
    assert run.settled == list(range(size))
    if rejects:
        assert {condition for _, condition, _ in run.given_up} <= {Condition.REJECTED}
    else:
        assert {(condition, attempts) for _, condition, attempts in run.given_up} <= {
            (Condition.RETRY_ATTEMPTS_EXHAUSTED, max_attempts)
        }


@given(batches, st.integers(1, 4))
def test_a_handler_that_names_its_failures_loses_nothing_else_without_bisect_either(batch, max_attempts):
    size, poison = batch
    run = Run(size, poison, at=True, max_attempts=max_attempts)
    assert [record for record, _, _ in run.given_up] == sorted(poison)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 10_000])
def test_one_poison_record_costs_at_most_two_calls_for_each_halving(size):
    step = max(1, size // 97)
    for index in {*range(0, size, step), size - 1}:
        run = Run(size, {index}, max_attempts=3, bisect=True)
        assert [record for record, _, _ in run.given_up] == [index]
        assert run.calls <= 2 * math.ceil(math.log2(size)) + 3


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_batch_of_nothing_but_poison_costs_its_splits_and_the_attempts_of_each_record(size):
    run = Run(size, set(range(size)), max_attempts=3, bisect=True)
    assert run.calls == size - 1 + 3 * size
    assert [record for record, _, _ in run.given_up] == list(range(size))


def test_halves_forget_neither_side():
    work = WorkList(5, Policy(bisect=True, max_attempts=1))
    work.failed(Failure.ERROR, began=0.0, now=0.0, rng=Random(0))
    parts = []
    while (part := work.next()) is not None:
        parts.append((part.start, part.stop))
        work.returned()
    assert parts == [(0, 3), (3, 5)]


def test_the_letter_of_a_record_knows_when_it_failed_first_and_of_what_last():
    work = WorkList(2, Policy(bisect=True, max_attempts=2))
    for second, name in enumerate(("KeyError", "ValueError", "TypeError")):
        work.failed(
            Failure.ERROR,
            began=second,
            now=second,
            rng=Random(0),
            now_millis=1000 * second,
            cause=Cause(error=name),
        )
    part = work.next()
    assert (part.start, part.stop, part.attempts) == (0, 1, 2)
    assert part.condition is Condition.RETRY_ATTEMPTS_EXHAUSTED
    assert part.first_failed_at == 0
    assert part.cause.error == "TypeError"


def test_what_cannot_be_decoded_is_given_up_under_its_own_condition_and_counts_no_call():
    work = WorkList(3, Policy(max_attempts=2))
    decision = work.failed(
        Failure.REJECTED, began=0.0, now=0.0, rng=Random(0), at=1, condition=Condition.DECODE_FAILED
    )
    assert decision.verdict is Verdict.GIVE_UP_RECORDS
    parts = []
    while (part := work.next()) is not None:
        parts.append((part.start, part.stop, part.condition, part.attempts))
        work.returned()
    assert parts == [(0, 1, None, 0), (1, 2, Condition.DECODE_FAILED, 0), (2, 3, None, 0)]


# -- in a row, where several lanes fail at once ----------------------------------------------------------------


def numbered(number):
    return Record(b"", "key", str(number))


def longest_row(outcomes):
    """One lane: outcomes of its records in order, True for a success."""
    longest = row = 0
    for worked in outcomes:
        row = 0 if worked else row + 1
        longest = max(longest, row)
    return longest


@given(st.lists(st.lists(st.booleans(), max_size=40), max_size=4))
def test_lanes_that_fail_in_one_round_count_as_one_lane_would(batches):
    in_a_row, longest = InARow(10_000), 0
    for batch in batches:
        outcomes = list(enumerate(batch, 1))
        successes = Successes()
        successes.add([numbered(number) for number, worked in outcomes if worked])
        for number, worked in outcomes:
            if not worked:
                if successes.are_before(numbered(number).position, 0):
                    in_a_row.worked()
                in_a_row.exhausted()
                longest = max(longest, in_a_row.count)
        if successes.are_behind():
            in_a_row.worked()
    assert longest == longest_row([worked for batch in batches for worked in batch])


def test_a_success_before_the_first_attempts_of_both_is_not_between_them():
    successes = Successes()
    # Two lanes, far apart; then the database goes down.
    successes.add([numbered(number) for number in (*range(1, 10), *range(500, 900))])
    assert successes.are_before(numbered(10).position, 0)
    assert successes.are_before(numbered(900).position, 0)
    for round_ in range(1, 10):
        successes.add([])
        was_there = [successes.are_before(numbered(each + round_).position, round_) for each in (10, 900)]
        assert was_there == [round_ == 1, False]
    assert not successes.are_behind()
    successes.add([numbered(950)])
    assert successes.are_behind()
