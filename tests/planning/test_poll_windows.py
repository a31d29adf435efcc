"""When shards at rest are read together."""

import random
from math import inf

import pytest

from pykcl.planning.read_schedule import PollWindow, ReadSchedule, after_page, next_poll, poll_window


def window(due, slack=0.0):
    return PollWindow(due - slack, due, due + slack / 2)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([], inf),
        ([window(3.0)], 3.0),
        ([window(3.0), window(5.0)], 3.0),
        ([window(3.0, 0.2), window(3.05, 0.2)], 3.05),
        ([window(3.0, 0.2), window(3.05, 0.2), window(3.12, 0.2)], 3.05),
        ([window(3.0), window(3.05, 0.2)], 3.0),
    ],
    ids=["none", "one", "far apart", "close together", "the third too late for the first", "one that cannot wait"],
)  # fmt: skip
def test_the_next_round_is_when_the_last_shard_is_due_for_which_the_first_can_wait(windows, expected):
    assert next_poll(windows) == expected


@pytest.mark.parametrize(
    ("idle_time_between_reads", "earliest", "due", "latest"), [(None, 0.9, 1.0, 1.5), (2.0, 2.0, 2.0, 3.0)]
)
def test_a_shard_at_rest_may_be_read_a_little_sooner_unless_its_pause_is_configured(
    idle_time_between_reads, earliest, due, latest
):
    schedule = ReadSchedule(quiet_reads=5)
    schedule = after_page(
        schedule, 100.0, records=0, size=0, millis_behind=0, idle_time_between_reads=idle_time_between_reads
    )
    found = poll_window(schedule)
    assert (found.earliest, found.due, found.latest) == pytest.approx(
        (100 + earliest, 100 + due, 100 + latest)
    )


def test_no_window_opens_sooner_than_the_shard_allows():
    schedule = after_page(
        ReadSchedule(), 100.0, records=9, size=0, millis_behind=0, idle_time_between_reads=None
    )
    assert poll_window(schedule).earliest == pytest.approx(100.225)
    slow = after_page(
        ReadSchedule(share=0.5, at=100.0),
        100.0,
        records=9,
        size=0,
        millis_behind=0,
        idle_time_between_reads=None,
    )
    assert poll_window(slow).earliest == pytest.approx(100.4)


def test_a_shard_to_which_something_came_waits_less_for_others():
    schedule = after_page(
        ReadSchedule(), 100.0, records=9, size=0, millis_behind=0, idle_time_between_reads=1.0
    )
    assert poll_window(schedule).latest == pytest.approx(101.05)


@pytest.mark.parametrize("seed", range(20))
def test_quiet_shards_come_together_whenever_they_were_read_first(seed):
    rng = random.Random(seed)
    quiet = {"records": 0, "size": 0, "millis_behind": 0, "idle_time_between_reads": 0.5}
    schedules = {
        shard: after_page(ReadSchedule(quiet_reads=5), rng.uniform(0.0, 0.5), **quiet) for shard in range(30)
    }
    rounds, now = [], 0.0
    while now < 30:
        now = next_poll([poll_window(schedule) for schedule in schedules.values()])
        for shard, schedule in schedules.items():
            if poll_window(schedule).earliest <= now:
                schedules[shard] = after_page(schedule, now, **quiet)
        rounds.append(now)
    assert len([moment for moment in rounds if moment > 20]) <= 21


def test_who_is_behind_is_read_as_soon_as_the_shard_allows_and_waits_for_nobody():
    schedule = after_page(
        ReadSchedule(), 100.0, records=9, size=0, millis_behind=5, idle_time_between_reads=None
    )
    assert poll_window(schedule) == PollWindow(100.2, 100.2, 100.2)


@pytest.mark.parametrize("seed", range(20))
def test_shards_with_the_same_pause_come_together_and_stay_so(seed):
    """From any start: the rounds of a minute later are no more than ten a second, and each shard keeps its rhythm."""
    rng = random.Random(seed)
    windows = {shard: window(rng.uniform(0.0, 1.0), 0.1) for shard in range(50)}
    last, rounds, gaps = {}, [], []
    now = 0.0
    while now < 60:
        now = next_poll(windows.values())
        for shard, found in list(windows.items()):
            if found.earliest <= now:
                gaps.append(now - last.get(shard, now - 1))
                last[shard] = now
                windows[shard] = window(now + 1.0 + rng.uniform(0.0, 0.002), 0.1)
        rounds.append(now)
    assert len([moment for moment in rounds if moment > 50]) <= 100
    assert min(gaps) >= 0.9 - 1e-9
    assert max(gaps) <= 1.06
