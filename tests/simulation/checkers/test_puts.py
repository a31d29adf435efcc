"""The checker of producers, fed what is in order and what is not."""

import pytest

from pykcl.errors import NotDelivered, SetupError
from pykcl.model.kpl import aggregate
from pykcl.model.new_record import NewRecord
from pykcl.model.record import Record
from pykcl.model.shard import HashRange
from pykcl.producer.accumulator import PutResult
from pykcl.runtime import Future
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.checkers.puts import Program, PutChecker
from tests.simulation.checking import broken_by

ALL = HashRange(0, 2**128 - 1)
NOWHERE = HashRange(0, 0)


class Case:
    """A program "p" that puts records "1", "2" and so on, all of one key."""

    def __init__(self, *, ordered=False, most=10_000):
        self.violations = Violations()
        self.checker = PutChecker(self.violations, lambda number: number)
        self.program = self.checker.programs["p"] = Program(most, ordered)
        self.futures = {}
        self.arrived = 0

    def put(self, *names):
        for name in names:
            future = self.futures[name] = Future()
            self.checker.taken(self.checker.begins("p", name.encode(), "key"), future)
        return self

    def request(self, *names, arrives=True, keys=ALL, consumed=True):
        """A request with one record or aggregate of these, which arrives; return its sequence number."""
        record = NewRecord(names[0].encode(), "key")
        if len(names) > 1:
            (blob,) = aggregate([("key", None, name.encode()) for name in names])
            record = NewRecord(blob.data, blob.partition_key)
        self.checker.sent([record])
        if arrives:
            self.arrived += 1
            seen = self.checker.landed(record, "shard", str(self.arrived), keys)
            for sub in range(seen if consumed else 0):
                one = Record(names[sub].encode(), "key", str(self.arrived), 0, "shard", "s")
                one.sub_sequence_number = sub
                self.checker.consumed([one])
        return self.arrived

    def is_put(self, name, number, sub=0, *, attempts=1, twice=False):
        self.futures[name].set_result(PutResult("shard", str(number), sub, attempts, twice))

    def is_given_up(self, name, *, perhaps=False, reported=1, error=None):
        for _ in range(reported):
            self.checker.gave_up(NewRecord(name.encode(), "key"))
        self.futures[name].set_exception(error or NotDelivered("late", perhaps_put=perhaps))

    @property
    def broken(self):
        self.checker.check()
        return broken_by(self.violations)


def test_records_that_arrive_and_are_read_are_in_order():
    case = Case(ordered=True).put("1", "2", "3")
    number = case.request("1", "2")
    case.is_put("1", number)
    case.is_put("2", number, 1)
    case.is_put("3", case.request("3"))
    assert case.broken is None
    assert case.checker.figures()["put"] == 3


@pytest.mark.parametrize("place", [(2, 0), (1, 1)])
def test_a_result_with_another_place_is_caught(place):
    case = Case().put("1", "2")
    case.request("1")
    case.is_put("2", case.request("2"))
    case.is_put("1", *place)
    assert case.broken is Guarantee.PUT_DELIVERED


def test_an_aggregate_that_consumers_drop_is_not_put():
    case = Case().put("1", "2")
    number = case.request("1", "2", keys=NOWHERE)
    case.is_put("1", number)
    assert case.broken is Guarantee.PUT_DELIVERED


def test_a_record_that_is_there_and_was_not_read_is_caught():
    case = Case().put("1")
    case.is_put("1", case.request("1", consumed=False))
    assert case.broken is Guarantee.PUT_DELIVERED


def test_a_future_without_an_outcome_is_caught_unless_its_process_died():
    case = Case().put("1")
    case.request("1")
    case.program.is_killed = True
    assert case.broken is None
    case.program.is_killed = False
    assert case.broken is Guarantee.PUT_DELIVERED


def test_behind_a_flush_no_record_waits_that_was_taken_before():
    case = Case().put("1")
    waiting = case.checker.waiting("p")
    case.put("2")
    case.is_put("1", case.request("1"))
    case.checker.flushed(waiting)
    assert broken_by(case.violations) is None
    case.checker.flushed(case.checker.waiting("p"))
    assert broken_by(case.violations) is Guarantee.PUT_DELIVERED


@pytest.mark.parametrize("reported", [0, 2])
def test_a_record_that_is_given_up_is_reported_once(reported):
    case = Case().put("1")
    case.is_given_up("1", reported=reported)
    assert case.broken is Guarantee.PUT_DELIVERED


@pytest.mark.parametrize(("counted", "broken"), [(0, Guarantee.PUT_DELIVERED), (1, None)])
def test_who_is_closed_hears_of_each_record_that_was_given_up(counted, broken):
    case = Case().put("1")
    case.is_given_up("1")
    case.program.reported = counted
    case.checker.check_reports("p")
    assert case.broken is broken


def test_a_record_that_was_not_taken_is_not_sent():
    case = Case()
    case.checker.begins("p", b"1", "key")
    assert case.broken is None
    case.request("1")
    assert case.broken is Guarantee.PUT_DELIVERED


@pytest.mark.parametrize(("twice", "broken"), [(False, Guarantee.PUT_COUNTED), (True, None)])
def test_a_record_that_is_there_twice_says_so_also_if_one_copy_is_dropped(twice, broken):
    case = Case().put("1", "2")
    case.request("1", "2", keys=NOWHERE)
    number = case.request("1", "2")
    case.is_put("1", number, attempts=2, twice=twice)
    case.is_put("2", number, 1, attempts=2, twice=twice)
    assert case.broken is broken


@pytest.mark.parametrize(("perhaps", "broken"), [(False, Guarantee.PUT_COUNTED), (True, None)])
def test_a_record_that_is_given_up_and_is_there_says_so(perhaps, broken):
    case = Case().put("1")
    case.request("1")
    case.is_given_up("1", perhaps=perhaps)
    assert case.broken is broken


@pytest.mark.parametrize(("arrives", "broken"), [(True, Guarantee.PUT_COUNTED), (False, None)])
def test_a_record_that_is_given_up_for_a_missing_permission_is_not_there(arrives, broken):
    case = Case().put("1")
    case.request("1", arrives=arrives)
    case.is_given_up("1", error=SetupError("not permitted"))
    assert case.broken is broken


def test_attempts_are_those_that_were_made():
    case = Case().put("1")
    case.request("1", arrives=False)
    case.is_put("1", case.request("1"))
    assert case.broken is Guarantee.PUT_COUNTED


def test_first_copies_in_another_order_are_caught_and_later_ones_are_not():
    case = Case(ordered=True).put("1", "2")
    case.is_put("1", case.request("1"), twice=True)
    case.is_put("2", case.request("2"))
    case.request("1")
    assert case.broken is None
    case.put("3", "4")
    case.is_put("4", case.request("4"))
    case.is_put("3", case.request("3"))
    assert case.broken is Guarantee.PUT_IN_ORDER


def test_one_record_more_than_the_bound_may_wait():
    size = 1 + len("key") + 1024
    case = Case(most=size).put("1", "2")
    case.is_put("1", case.request("1"))
    case.put("3" * 100)
    assert broken_by(case.violations) is None
    case.put("4")
    assert broken_by(case.violations) is Guarantee.PUT_BOUNDED
