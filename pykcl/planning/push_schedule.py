"""Push schedule: when a shard is subscribed to, when its subscription is given up for another one, or for polling.

Of enhanced fan-out Kinesis answers one SubscribeToShard call a second for each consumer and shard. One within five
seconds of a successful one is refused, a later one takes the subscription over, and each subscription ends after five
minutes (API reference, SubscribeToShard).

With `fanout-or-polling` a shard is polled once its subscriptions have failed for a minute. They are tried again every
five minutes: one failure ends a trial. Where there is no consumer, all shards are polled, and it is asked for again.

Times are of a monotonic clock, in seconds. Those of calls count from the answer: Kinesis counted the call at some
moment before it, so that no delay on the way brings two calls closer together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Final

from pykcl.planning.read_schedule import backoff

CALL_INTERVAL: Final = 1.0
TAKEOVER: Final = 5.0
"""Age of a subscription from which on another call takes it over."""
SILENCE: Final = 30.0
"""Kinesis reports progress every few seconds also where nothing is written. A subscription that says nothing for so
long is broken, though the lease is renewed all the while."""
_RENEWED_AFTER: Final = (270.0, 295.0)
"""Before it ends by itself, and spread: a hundred shards that began together do not call in the same second."""
GIVEN_UP_AFTER: Final = 60.0
"""Seconds without an event since the first failure, after which a shard is polled."""
TRIED_AGAIN_AFTER: Final = (300.0, 330.0)
CONSUMER_AGAIN_AFTER: Final = 600.0
REGISTERED_EVERY: Final = 60.0
"""Whoever deletes a consumer may do so again and again, and each one is billed."""
_JITTER: Final = 1.0
_LONGEST_PAUSE: Final = 10.0
_CONTESTED: Final = 3
_CONTESTED_WITHIN: Final = 60.0


@dataclass(frozen=True, slots=True)
class PushSchedule:
    """Schedule of the subscriptions to one shard.

    call_at: the next call comes no sooner. failures: calls and subscriptions that failed since the last event.
    failing_since: time of the first thing since then that went wrong; inf: nothing did. refused_at: time of the first
    refused call while nothing was subscribed to; inf: there is none. subscribed_at: time of the last call that has
    begun a subscription, or may have. heard_at: time of the last event, or of the call that none has followed yet.
    renew_at: from then on the subscription is renewed once nothing of it waits. taken: times within a minute at which
    another subscription of the consumer has taken over.
    """

    call_at: float = -inf
    failures: int = 0
    failing_since: float = inf
    refused_at: float = inf
    subscribed_at: float = -inf
    heard_at: float = -inf
    renew_at: float = inf
    taken: tuple[float, ...] = ()

    @property
    def idle_until(self) -> float:
        """The time until which a subscription without events is left alone."""
        return min(self.renew_at, self.silent_from)

    @property
    def silent_from(self) -> float:
        """The time from which on a subscription without events is silent."""
        return self.heard_at + SILENCE

    @property
    def is_contested(self) -> bool:
        """True where another application seems to use the same consumer, and not only the last owner of the lease."""
        return len(self.taken) >= _CONTESTED


def after_call(schedule: PushSchedule, now: float, rng: Random) -> PushSchedule:
    """Return the schedule after a call that failed; the calls of another application may be why."""
    failures = schedule.failures + 1
    pause = backoff(failures, rng, first=2 * CALL_INTERVAL, longest=_LONGEST_PAUSE)
    # It may have begun a subscription, though no answer came.
    return replace(
        schedule,
        call_at=now + pause,
        failures=failures,
        failing_since=min(schedule.failing_since, now),
        subscribed_at=now,
    )


def after_subscribing(schedule: PushSchedule, now: float, rng: Random) -> PushSchedule:
    """Return the schedule after a successful call."""
    return PushSchedule(
        call_at=now + CALL_INTERVAL,
        failures=schedule.failures,
        failing_since=schedule.failing_since,
        subscribed_at=now,
        heard_at=now,
        renew_at=now + rng.uniform(*_RENEWED_AFTER),
        taken=_recent(schedule, now),
    )


def after_event(schedule: PushSchedule, now: float) -> PushSchedule:
    """Return the schedule after an event."""
    return replace(schedule, heard_at=now, failures=0, failing_since=inf)


def after_silence(schedule: PushSchedule) -> PushSchedule:
    """Return the schedule after a subscription that was ended because it said nothing."""
    return replace(schedule, failing_since=min(schedule.failing_since, schedule.heard_at))


def after_break(schedule: PushSchedule, now: float, rng: Random) -> PushSchedule:
    """Return the schedule after a subscription that failed: soon, but for one that follows another without an event."""
    failures = schedule.failures + 1
    pause = backoff(failures, rng, first=CALL_INTERVAL, longest=_LONGEST_PAUSE)
    return replace(
        schedule,
        call_at=max(schedule.call_at, now + pause),
        failures=failures,
        failing_since=min(schedule.failing_since, now),
    )


def after_refusal(schedule: PushSchedule, now: float, rng: Random) -> PushSchedule:
    """Return the schedule after a call that was refused for another subscription.

    It may be one of this reader's own, which knows when that is old enough. A new owner of a lease asks every second:
    the subscription of the last one is five seconds old at most. Otherwise it is somebody else's.
    """
    schedule = replace(schedule, failing_since=min(schedule.failing_since, now))
    if now < schedule.subscribed_at + TAKEOVER + CALL_INTERVAL:
        return replace(schedule, call_at=max(now + CALL_INTERVAL, schedule.subscribed_at + TAKEOVER))
    first = min(schedule.refused_at, now)
    if schedule.subscribed_at == -inf and now < first + TAKEOVER + CALL_INTERVAL:
        return replace(schedule, refused_at=first, call_at=now + CALL_INTERVAL + rng.random() * _JITTER)
    return after_taking(schedule, now, rng)


def after_taking(schedule: PushSchedule, now: float, rng: Random) -> PushSchedule:
    """Return the schedule after a subscription that another one has taken over."""
    pause = TAKEOVER + rng.random() * _JITTER
    return replace(
        schedule,
        call_at=now + pause,
        failing_since=min(schedule.failing_since, now),
        taken=(*_recent(schedule, now), now),
    )


def _recent(schedule: PushSchedule, now: float) -> tuple[float, ...]:
    return tuple(at for at in schedule.taken if at > now - _CONTESTED_WITHIN)


def is_given_up(schedule: PushSchedule, now: float, *, is_trial: bool) -> bool:
    """Return True once the shard is better polled. is_trial: it was until this subscription, of which no event came."""
    return now - schedule.failing_since >= (0.0 if is_trial else GIVEN_UP_AFTER)


def tried_again_at(now: float, rng: Random) -> float:
    """Return the time from which on a polled shard is subscribed to again; spread, as renewals are."""
    return now + rng.uniform(*TRIED_AGAIN_AFTER)


def consumer_again_at(now: float, *, needs_a_person: bool) -> float:
    """Return the time from which on a consumer that could not be found or registered is asked for again."""
    return now + (CONSUMER_AGAIN_AFTER if needs_a_person else REGISTERED_EVERY)
