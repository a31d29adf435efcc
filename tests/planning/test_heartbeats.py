"""Which heartbeats are sent together."""

import random
from math import inf

import pytest

from pykcl.planning.read_schedule import heartbeat_slack, heartbeats_due


@pytest.mark.parametrize(
    ("left", "now", "soonest"),
    [
        ({}, "", inf),
        ({"a": 2.0, "b": 0.1}, "", 0.1),
        ({"a": 0.0}, "a", inf),
        ({"a": 2.0, "b": -0.1, "c": 0.4}, "bc", 2.0),
        ({"a": 0.6, "b": 0.0}, "b", 0.6),
        ({"a": 0.5, "b": -3.0, "c": -4.0}, "cba", inf),
    ],
    ids=["none", "none is due", "one", "one goes along", "one is too far away", "the latest first"],
)  # fmt: skip
def test_who_is_nearly_due_goes_along_with_who_is(left, now, soonest):
    assert heartbeats_due(left, 0.5) == (tuple(now), soonest)


@pytest.mark.parametrize("seed", range(20))
def test_leases_come_together_and_none_of_them_costs_more_heartbeats_for_it(seed):
    rng, interval = random.Random(seed), 5.0
    give = heartbeat_slack(interval)
    due = {lease: rng.uniform(0.0, interval) for lease in range(40)}
    sent, rounds, now = dict.fromkeys(due, 0), [], 0.0
    while now < 600:
        found, soonest = heartbeats_due({lease: at - now for lease, at in due.items()}, give)
        for lease in found:
            # One behind the other, each takes a moment.
            due[lease] = now + interval + 0.001 * found.index(lease)
            sent[lease] += 1
        rounds.append(now)
        now += max(0.0, min(soonest, min(due.values()) - now))
    assert len({at for at in rounds if at >= 590}) <= 40
    assert max(sent.values()) <= 600 / interval + 2
    assert min(sent.values()) >= 600 / interval - 1
