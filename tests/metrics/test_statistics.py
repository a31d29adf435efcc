"""What waits for CloudWatch: one set of statistics for each metric and minute, never more than allowed."""

import pytest

from pykcl.metrics.catalog import DATA_BYTES_PROCESSED, NUM_WORKERS, RECORDS_PROCESSED
from pykcl.metrics.cloudwatch import Statistics


class Clock:
    def __init__(self, simulation):
        self._runtime = simulation.runtime("w1")
        self.millis = 1_700_000_000_000 // 60_000 * 60_000

    def utcnow_millis(self):
        return self.millis

    def lock(self):
        return self._runtime.lock()


@pytest.fixture
def clock(simulation):
    return Clock(simulation)


def told(one):
    return one.measure.name, one.label, one.at_millis, one.count, one.sum, one.minimum, one.maximum


def test_values_of_a_minute_become_one_set(clock):
    statistics = Statistics(clock, 100)
    minute = clock.millis
    for value in (5.0, 2.0, 9.0):
        statistics.take("shard-1", ((RECORDS_PROCESSED, value), (DATA_BYTES_PROCESSED, 10 * value)))
        clock.millis += 15_000
    assert [told(one) for one in statistics.drain(10)] == [
        ("RecordsProcessed", "shard-1", minute, 3, 16.0, 2.0, 9.0),
        ("DataBytesProcessed", "shard-1", minute, 3, 160.0, 20.0, 90.0),
    ]
    assert len(statistics) == 0


def test_the_next_minute_and_another_shard_have_sets_of_their_own(clock):
    statistics = Statistics(clock, 100)
    minute = clock.millis
    statistics.take("a", ((RECORDS_PROCESSED, 1.0),))
    statistics.take("b", ((RECORDS_PROCESSED, 2.0),))
    clock.millis += 60_000
    statistics.take("a", ((RECORDS_PROCESSED, 4.0),))
    found = [(one.label, one.at_millis - minute, one.sum) for one in statistics.drain(10)]
    assert found == [("a", 0, 1.0), ("b", 0, 2.0), ("a", 60_000, 4.0)]


def test_a_label_counts_only_for_what_is_told_apart_by_it(clock):
    statistics = Statistics(clock, 100)
    for label in ("a", "b", ""):
        statistics.take(label, ((NUM_WORKERS, 3.0),))
    assert [(one.label, one.count) for one in statistics.drain(10)] == [("", 3)]


def test_beyond_the_limit_the_oldest_go_and_are_counted(clock):
    statistics = Statistics(clock, 3)
    statistics.take("a", ((RECORDS_PROCESSED, 1.0),))
    statistics.take("a", ((RECORDS_PROCESSED, 1.0),))
    for label in "bcd":
        statistics.take(label, ((RECORDS_PROCESSED, 1.0),))
    assert len(statistics) == 3
    assert statistics.take_dropped() == 2
    assert statistics.take_dropped() == 0
    assert [one.label for one in statistics.drain(10)] == ["b", "c", "d"]


def test_what_could_not_be_sent_is_first_again_and_added_to_what_came_meanwhile(clock):
    statistics = Statistics(clock, 4)
    for label in "ab":
        statistics.take(label, ((RECORDS_PROCESSED, 7.0),))
    batch = statistics.drain(2)
    statistics.take("b", ((RECORDS_PROCESSED, 1.0),))
    statistics.take("c", ((RECORDS_PROCESSED, 1.0),))
    statistics.put_back(batch)
    assert [(one.label, one.count, one.sum, one.minimum, one.maximum) for one in statistics.drain(10)] == [
        ("a", 1, 7.0, 7.0, 7.0),
        ("b", 2, 8.0, 1.0, 7.0),
        ("c", 1, 1.0, 1.0, 1.0),
    ]


def test_what_cannot_be_put_back_for_want_of_room_is_counted(clock):
    statistics = Statistics(clock, 2)
    for label in "ab":
        statistics.take(label, ((RECORDS_PROCESSED, 1.0),))
    batch = statistics.drain(2)
    for label in "cd":
        statistics.take(label, ((RECORDS_PROCESSED, 1.0),))
    statistics.put_back(batch)
    assert statistics.take_dropped() == 2
    assert [one.label for one in statistics.drain(10)] == ["c", "d"]


def test_only_what_is_over_can_be_asked_for_and_the_rest_stays_in_order(clock):
    statistics = Statistics(clock, 100)
    statistics.take("a", ((RECORDS_PROCESSED, 1.0),))
    clock.millis += 60_000
    for label in "abc":
        statistics.take(label, ((RECORDS_PROCESSED, 2.0),))
    assert [(one.label, one.sum) for one in statistics.drain(10, only_finished=True)] == [("a", 1.0)]
    assert statistics.drain(10, only_finished=True) == []
    statistics.take("b", ((RECORDS_PROCESSED, 3.0),))
    assert [(one.label, one.sum) for one in statistics.drain(10)] == [("a", 2.0), ("b", 5.0), ("c", 2.0)]


def test_drain_takes_no_more_than_it_was_asked_for(clock):
    statistics = Statistics(clock, 100)
    for label in "abc":
        statistics.take(label, ((RECORDS_PROCESSED, 1.0),))
    assert [one.label for one in statistics.drain(2)] == ["a", "b"]
    assert [one.label for one in statistics.drain(2)] == ["c"]
    assert statistics.drain(2) == []
