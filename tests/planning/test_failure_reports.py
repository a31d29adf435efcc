"""What is reported of failures: those that last, once for all shards, six lines a minute at most, and their end."""

import itertools
import random

import pytest

from pykcl.planning.failure_reports import FailureKind


class Course:
    """One kind of failure, checked once a second; and the lines that it made: when, and the report."""

    def __init__(self, shards, **options):
        self.kind, self.shards, self.now, self.lines = FailureKind(**options), shards, 1000.0, []

    def check(self):
        report = self.kind.report(self.now, self.shards)
        if report is not None:
            self.lines.append((self.now, report))

    def run(self, seconds, each_second=lambda: None):
        for _ in range(seconds):
            each_second()
            self.check()
            self.now += 1.0
        return self.lines


def test_a_retry_or_two_is_no_line():
    course = Course(1)
    for _ in range(2):
        course.kind.began("s", course.now)
        course.run(3)
        course.kind.ended("s")
        course.run(10)
    course.run(60)
    assert course.lines == []
    assert course.kind.is_quiet


def test_what_lasts_is_one_line_after_ten_seconds_and_one_at_its_end():
    course = Course(4)
    course.kind.began("s2", course.now)
    course.run(300)
    course.kind.ended("s2")
    course.run(60)
    (began, first), (ended, last) = course.lines
    assert (began, ended) == (1010.0, 1329.0)
    assert (first.has_passed, first.shard, first.failing, first.seconds, first.failures) == (
        False,
        "s2",
        1,
        10.0,
        1,
    )
    assert (last.has_passed, last.seconds, last.failures) == (True, 299.0, 0)
    assert course.kind.is_quiet


def test_a_hundred_shards_whose_connection_breaks_at_once_are_no_trouble_while_each_gets_on():
    course = Course(100)
    for shard in range(100):
        course.kind.began(f"s{shard}", course.now)
    course.run(5)
    for shard in range(100):
        course.kind.ended(f"s{shard}")
    assert course.run(100) == []


def flaky(course, random, chance):
    """Each shard reads once a second; an attempt fails with that chance."""

    def second():
        for shard in range(course.shards):
            name = f"s{shard}"
            if random.random() < chance:
                if name not in course.kind.failing:
                    course.kind.began(name, course.now)
            else:
                course.kind.ended(name)

    return second


@pytest.mark.parametrize("shards", [1, 3, 100])
def test_twenty_minutes_of_flaky_reads_are_few_lines_that_count_all_failures(shards):
    course = Course(shards)
    lines = course.run(1200, flaky(course, random.Random(5), 0.3))
    assert 1 <= len(lines) <= 12
    assert lines[0][0] - 1000 <= 60, "visible within a minute"
    if shards == 100:
        assert len(lines) <= 10
        assert 15 <= lines[0][1].failing <= 50
        assert sum(report.failures for _, report in lines) > 12_000


def test_one_failure_in_ten_thousand_attempts_of_a_thousand_shards_is_no_trouble():
    course = Course(1000)
    assert course.run(600, flaky(course, random.Random(5), 0.0001)) == []


def test_an_outage_that_grows_is_reported_again_and_not_for_each_shard():
    course = Course(100)
    course.kind.began("s0", course.now)
    course.run(15)
    for shard in range(1, 100):
        course.kind.began(f"s{shard}", course.now)
    course.run(1200)
    assert [report.failing for _, report in course.lines] == [1, 100, 100]


def test_a_real_outage_after_days_of_rare_failures_counts_from_its_own_begin():
    course = Course(100)
    course.run(1200, flaky(course, random.Random(5), 0.0005))
    for shard in tuple(course.kind.failing):
        course.kind.ended(shard)
    assert course.lines == []
    course.kind.began("s7", course.now)
    ((at, report),) = course.run(30)
    assert (report.shard, report.seconds) == ("s7", 10.0)
    assert report.failures < 20
    assert at == 2210.0


def test_what_has_lasted_when_it_is_found_is_a_line_at_once():
    course = Course(1, at_once=True)
    course.kind.began(None, course.now)
    course.check()
    course.kind.ended(None)
    course.run(40)
    assert [(at, report.has_passed) for at, report in course.lines] == [(1000.0, False), (1030.0, True)]


@pytest.mark.parametrize("seed", range(20))
def test_no_course_makes_more_than_six_lines_a_minute_and_none_ends_that_has_not_begun(seed):
    chance = random.Random(seed)
    shards = chance.choice([1, 2, 10])
    course = Course(shards, at_once=chance.random() < 0.5)

    def second():
        if chance.random() < 0.5:
            shard = f"s{chance.randrange(shards)}"
            if shard in course.kind.failing:
                course.kind.ended(shard)
            else:
                course.kind.began(shard, course.now)
        if chance.random() < 0.01:
            course.now += chance.choice([5, 40, 700])

    lines = course.run(2000, second)
    times = [at for at, _ in lines]
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(times))
    is_on = False
    for _, report in lines:
        assert is_on or not report.has_passed
        is_on = not report.has_passed
