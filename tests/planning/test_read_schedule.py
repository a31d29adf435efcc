"""When a shard is read next: by what its pages told, and by what its other readers leave."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.planning.read_schedule import (
    BYTES_PER_SECOND,
    MIN_SHARE,
    SMALL_PAGE,
    ReadSchedule,
    after_page,
    after_throttling,
    throttled_pause,
)

MIB = 1024 * 1024
PAGE_OF_A_BUSY_SHARD = {"records": 3, "size": 300, "millis_behind": 0}
EMPTY = {"records": 0, "size": 0, "millis_behind": 0}


def pause(schedule=None, now=0.0, *, idle_time_between_reads=None, **page):
    return after_page(
        schedule or ReadSchedule(), now, idle_time_between_reads=idle_time_between_reads, **{**EMPTY, **page}
    ).pause


@pytest.mark.parametrize(
    ("records", "size", "millis_behind", "idle_time_between_reads", "expected"),
    [
        # Behind: five reads a second, or 2 MiB a second, whatever idle_time_between_reads says.
        (10, 1000, 60_000, None, 0.2),
        (0, 0, 60_000, None, 0.2),
        (10, 1000, 60_000, 30.0, 0.2),
        (10, 1000, 1, None, 0.2),
        (4000, SMALL_PAGE, 60_000, None, 0.2),
        (1000, 1 * MIB, 60_000, None, 0.5),
        (10_000, 10 * MIB, 60_000, None, 5.0),
        # Caught up, with records.
        (3, 300, 0, None, 0.25),
        (3, 300, None, None, 0.25),
        (3, 300, 0, 0.2, 0.2),
        (3, 300, 0, 0.75, 0.75),
        (3, 300, 0, 5.0, 5.0),
        # A page that weighs more than its pause allows: the shard would answer nobody.
        (10_000, 10 * MIB, 0, None, 5.0),
        (10_000, 10 * MIB, 0, 2.0, 5.0),
        (10_000, 10 * MIB, 0, 8.0, 8.0),
        # Caught up, the first read that brings nothing.
        (0, 0, 0, None, 0.5),
        (0, 0, 0, 0.2, 0.2),
        (0, 0, 0, 3.0, 3.0),
    ],
)
def test_the_pause_after_a_page(records, size, millis_behind, idle_time_between_reads, expected):
    assert (
        pause(
            records=records,
            size=size,
            millis_behind=millis_behind,
            idle_time_between_reads=idle_time_between_reads,
        )
        == expected
    )


@pytest.mark.parametrize(
    ("idle_time_between_reads", "expected"),
    [(None, [0.5, 1.0, 1.0, 1.0]), (0.2, [0.2] * 4), (0.4, [0.4] * 4), (2.5, [2.5] * 4)],
)
def test_reads_that_bring_nothing_come_at_growing_pauses_unless_idle_time_says_which(
    idle_time_between_reads, expected
):
    schedule, pauses = ReadSchedule(), []
    for _ in range(4):
        schedule = after_page(schedule, 0.0, **EMPTY, idle_time_between_reads=idle_time_between_reads)
        pauses.append(schedule.pause)
    assert pauses == expected
    assert after_page(schedule, 0.0, **PAGE_OF_A_BUSY_SHARD, idle_time_between_reads=None).pause == 0.25
    again = after_page(
        after_page(schedule, 0.0, **PAGE_OF_A_BUSY_SHARD, idle_time_between_reads=None),
        0.0,
        **EMPTY,
        idle_time_between_reads=None,
    )
    assert again.pause == 0.5, "one record begins it anew"


@pytest.mark.parametrize(
    ("refusals", "size", "millis_behind", "expected"),
    [
        (1, 0, 9, 0.4),
        (2, 0, 9, 0.8),
        (1, MIB, 9, 1.0),
        (4, 0, 9, 3.2),
        (5, 0, 9, 0.2 / MIN_SHARE),
        (50, 0, 9, 0.2 / MIN_SHARE),
        # Caught up it read so seldom that a little less of the rate changes nothing...
        (1, 0, 0, 0.5),
        # ...until it does.
        (3, 0, 0, 1.6),
    ],
)
def test_each_refusal_halves_what_is_asked_of_that_shard(refusals, size, millis_behind, expected):
    schedule = ReadSchedule()
    for _ in range(refusals):
        schedule = after_throttling(schedule, 0.0)
    assert pause(schedule, size=size, millis_behind=millis_behind) == pytest.approx(expected)


def test_after_a_refusal_the_pace_grows_again_within_half_a_minute_and_not_at_once():
    slow = after_throttling(ReadSchedule(), 100.0)
    pauses = [pause(slow, now, millis_behind=9) for now in (100.0, 101.0, 115.0, 130.0, 1000.0)]
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[0] == pytest.approx(0.4)
    assert pauses[1] > 0.38
    assert pauses[2] == pytest.approx(0.2 / 0.75)
    assert pauses[3:] == [pytest.approx(0.2)] * 2


def test_it_grows_by_the_second_whether_or_not_pages_come_in_between():
    slow = after_throttling(ReadSchedule(), 0.0)
    read_often = slow
    for tenth in range(100):
        read_often = after_page(read_often, tenth / 10, **EMPTY, idle_time_between_reads=None)
    assert read_often.share_at(10.0) == pytest.approx(slow.share_at(10.0))


def test_the_attempt_after_a_refusal_is_no_sooner_than_the_next_read_would_have_been_and_is_spread():
    rng = random.Random(1)
    fresh = [throttled_pause(after_throttling(ReadSchedule(), 0.0), rng) for _ in range(200)]
    assert 0.4 <= min(fresh) < 0.42
    assert 0.58 < max(fresh) <= 0.6
    seldom = after_page(ReadSchedule(), 0.0, **EMPTY, idle_time_between_reads=30.0)
    assert 30.0 <= throttled_pause(after_throttling(seldom, 0.0), rng) <= 45.0
    heavy = after_page(
        ReadSchedule(), 0.0, records=9, size=10 * MIB, millis_behind=9, idle_time_between_reads=None
    )
    assert throttled_pause(after_throttling(heavy, 0.0), rng) >= 5.0


def test_a_clock_that_stands_still_or_a_pace_of_the_future_gives_nothing_back():
    slow = after_throttling(ReadSchedule(), 50.0)
    assert slow.share_at(50.0) == slow.share_at(0.0) == 0.5


PAGES = st.tuples(
    st.floats(0, 100), st.integers(0, 10_000), st.integers(0, 14 * MIB), st.none() | st.integers(0, 10**9)
)


@given(
    st.lists(PAGES | st.just("refused"), max_size=40), st.none() | st.floats(0.2, 1000), st.integers(0, 2**32)
)
def test_no_history_makes_a_shard_read_above_its_limits_or_never(history, idle_time_between_reads, seed):
    schedule, now, rng = ReadSchedule(), 0.0, random.Random(seed)
    for step in history:
        if step == "refused":
            schedule = after_throttling(schedule, now)
            wait = throttled_pause(schedule, rng)
            assert wait >= 0.2
        else:
            late, records, size, millis_behind = step
            now += late
            schedule = after_page(
                schedule,
                now,
                records=records,
                size=size,
                millis_behind=millis_behind,
                idle_time_between_reads=idle_time_between_reads,
            )
            wait = schedule.pause
            assert wait >= max(0.2, size / BYTES_PER_SECOND)
            if not millis_behind:
                assert wait >= (idle_time_between_reads or 0.25)
        assert MIN_SHARE <= schedule.share <= 1.0
        # Seven seconds for the heaviest page, at the smallest share; no refusal makes it much more.
        assert wait <= max(7.0 / MIN_SHARE, idle_time_between_reads or 0.0) * 1.5
        now += wait
