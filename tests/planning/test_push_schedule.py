"""When a shard is subscribed to: by what its calls brought, and by what its subscriptions say."""

import random
from itertools import pairwise

import pytest

from pykcl.planning.push_schedule import (
    PushSchedule,
    after_break,
    after_call,
    after_event,
    after_refusal,
    after_silence,
    after_subscribing,
    after_taking,
    consumer_again_at,
    is_given_up,
    tried_again_at,
)


@pytest.fixture
def rng():
    return random.Random(7)


def test_a_subscription_that_ended_early_is_followed_by_the_next_after_a_second(rng):
    assert after_subscribing(PushSchedule(), 100.0, rng).call_at == 101.0


def test_subscriptions_are_renewed_before_their_five_minutes_are_over_and_not_all_at_once(rng):
    renewals = [after_subscribing(PushSchedule(), 0.0, rng).renew_at for _ in range(100)]
    assert 270 <= min(renewals) < 275
    assert 290 < max(renewals) <= 295


def test_a_subscription_is_silent_thirty_seconds_after_its_last_event(rng):
    schedule = after_subscribing(PushSchedule(), 0.0, rng)
    assert schedule.idle_until == 30.0
    assert after_event(schedule, 12.0).idle_until == 42.0
    assert after_event(schedule, 290.0).idle_until == schedule.renew_at


def test_a_call_that_is_refused_for_the_last_subscription_of_this_reader_comes_when_that_is_old_enough(rng):
    schedule = after_subscribing(PushSchedule(), 10.0, rng)
    refused = after_refusal(schedule, 12.0, rng)
    assert refused.call_at == 15.0
    assert refused.taken == ()
    # An answer that was long under way.
    assert after_refusal(schedule, 15.5, rng).call_at == 16.5


def test_a_new_owner_asks_every_second_until_the_last_subscription_must_be_old_enough(rng):
    schedule, now, times = PushSchedule(), 50.0, []
    while not schedule.taken:
        times.append(now)
        schedule = after_refusal(schedule, now, rng)
        now = schedule.call_at
    assert all(1 <= later - earlier <= 2 for earlier, later in pairwise(times))
    assert times[-1] - times[0] >= 6
    assert 5 <= now - times[-1] <= 6, "somebody else's"


def test_three_take_overs_within_a_minute_are_a_contest_and_an_old_one_does_not_count(rng):
    schedule = after_subscribing(PushSchedule(), 0.0, rng)
    for at in (1000.0, 1050.0, 1065.0):
        schedule = after_taking(schedule, at, rng)
        assert 5 <= schedule.call_at - at <= 6
    assert not schedule.is_contested
    schedule = after_taking(schedule, 1070.0, rng)
    assert schedule.is_contested
    assert after_subscribing(schedule, 1076.0, rng).is_contested
    assert not after_subscribing(schedule, 1400.0, rng).is_contested


def test_calls_that_fail_come_less_and_less_often_and_never_more_than_once_a_second(rng):
    schedule, now, pauses = PushSchedule(), 0.0, []
    for _ in range(10):
        schedule = after_call(schedule, now, rng)
        pauses.append(schedule.call_at - now)
        now = schedule.call_at
    assert min(pauses) >= 1
    assert min(pauses[4:]) >= 5
    assert max(pauses) <= 10
    assert after_event(after_subscribing(schedule, now, rng), now).failures == 0


def test_a_subscription_that_breaks_is_followed_soon_and_later_if_each_breaks_before_its_first_event(rng):
    schedule, now, pauses = after_subscribing(PushSchedule(), 0.0, rng), 100.0, []
    for _ in range(6):
        schedule = after_break(schedule, now, rng)
        pauses.append(schedule.call_at - now)
        now = schedule.call_at
        schedule = after_subscribing(schedule, now, rng)
    assert pauses[0] <= 1
    assert min(pauses[4:]) >= 5


def test_a_call_without_an_answer_may_be_what_the_next_one_is_refused_for(rng):
    refused = after_refusal(after_call(PushSchedule(), 10.0, rng), 12.0, rng)
    assert refused.call_at == 15.0
    assert refused.taken == ()


def _silent(schedule, now, rng):
    return after_silence(after_subscribing(schedule, now - 30.0, rng))


@pytest.mark.parametrize("fails", [after_call, after_break, after_refusal, after_taking, _silent])
def test_a_shard_is_given_up_after_a_minute_without_an_event_since_the_first_failure(rng, fails):
    failed = fails(PushSchedule(), 100.0, rng)
    since = failed.failing_since
    subscribed = after_subscribing(fails(failed, 150.0, rng), 155.0, rng)
    assert not is_given_up(subscribed, since + 59.0, is_trial=False)
    assert is_given_up(subscribed, since + 60.0, is_trial=False)
    assert not is_given_up(after_event(subscribed, 159.0), 1000.0, is_trial=False)


def test_a_trial_ends_with_its_first_failure(rng):
    subscribed = after_subscribing(PushSchedule(), 100.0, rng)
    assert not is_given_up(subscribed, 120.0, is_trial=True)
    assert is_given_up(after_break(subscribed, 120.0, rng), 120.0, is_trial=True)


def test_a_subscription_that_is_renewed_is_not_silent(rng):
    schedule = after_event(after_subscribing(PushSchedule(), 0.0, rng), 269.0)
    assert schedule.idle_until == schedule.renew_at < schedule.silent_from


def test_shards_come_back_to_fan_out_after_five_minutes_and_not_all_at_once(rng):
    times = [tried_again_at(1000.0, rng) for _ in range(100)]
    assert 1300 <= min(times) < 1305
    assert 1325 < max(times) <= 1330


def test_a_consumer_that_needs_a_person_is_asked_for_every_ten_minutes_and_otherwise_every_minute():
    assert consumer_again_at(0.0, needs_a_person=True) == 600.0
    assert consumer_again_at(0.0, needs_a_person=False) == 60.0
