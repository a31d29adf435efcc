"""pykcl workers in fleets that a real Java KCL 3.x leader runs. Numbers are those of the acceptance list (C)."""

from itertools import cycle, islice

import pytest
from native_fleet import (
    LEADER_ROUND,
    VERSION,
    Load,
    errors_of,
    everybody_works,
    follower,
    has_ended,
    hot,
    leader_of_all,
    native,
    rest,
    shares,
)

HAND_OVER = 3.0
"""Seconds for which a lease that is handed over to pykcl may be unread."""
EXPIRY = 2 * LEADER_ROUND + 5.0 + LEADER_ROUND / 2
"""Seconds until a dead worker's leases are read: two rounds, the failover time, and the new owner's discovery."""
MAX_MOVED = 2
"""Leases that may change hands while nothing is done and the load is even, in five minutes."""
SLACK = 10.0
"""Seconds for a machine that is busy with other things."""


@pytest.mark.timeout(5400)
def test_c2_c3_c6_leases_are_shared_by_load_and_handed_over_without_a_duplicate(java, fleet, led, long):
    java(VERSION)
    with fleet(shards=12, aggregated=0.0) as run, Load(run, 8) as load:
        first = native(run, "j1")
        run.wait_until_started(first)  # it makes the table and its index, and the leases within half a minute
        second, p1, p2 = native(run, "j2"), follower(run, "p1"), follower(run, "p2")
        run.wait_until_started(second, p1, p2)
        # Two minutes of the acceptance list; the leader balances every half a minute.
        run.wait_for("equal shares", lambda: run.all_begun() and equal(run), 120 + 6 * SLACK)
        rested = rest(run, 300 if long else 60)
        # Whose lease becomes hot: each side in turn.
        for owner in islice(cycle((p1, second)), 20 if long else 1):
            relieved(run, load, owner)
            run.wait_for("equal shares again", lambda: run.all_begun() and equal(run), 240)
        load.stop()
        run.wait_until_delivered()
        _, figures = led(run, "2 Java 3.5.1 + 2 pykcl, 12 shards, hot shards", rest=rested)
        assert errors_of(first, second) == []
    assert figures.at_rest[0] <= MAX_MOVED
    handed = [change for change in figures.changes if change[0] == "assigned"]
    assert any(pair.startswith("pykcl →") for _, pair, _, _ in handed), "its others went while one was hot"
    assert sum(repeated for *_, repeated in handed) == 0
    unread = [seconds for _, pair, seconds, _ in handed if pair.endswith("→ pykcl")]
    assert max(unread, default=0) <= HAND_OVER + SLACK


def equal(run):
    return all(2 <= count <= 4 for count in shares(run).values())


def relieved(run, load, owner):
    """Make one of its leases hot, and wait until whoever has that lease has fewer others."""
    shard = run.leases_of(owner)[0]
    with hot(load, shard):
        run.wait_for(
            f"fewer others beside {shard}, hot with {owner.worker}", lambda: has_fewer(run, shard), 240
        )


def has_fewer(run, shard):
    """True if everybody else works on more leases than the owner of that one."""
    counts = shares(run)
    owner = run.rows.rows[shard].owner
    return run.all_begun() and counts[owner] < min(
        count for worker, count in counts.items() if worker != owner
    )


@pytest.mark.timeout(900)
def test_c2_c4_c8_pykcl_follows_a_java_leader(java, fleet, led):
    java(VERSION)
    with fleet(shards=6, rate=60, aggregated=0.0) as run:
        first = leader_of_all(run)
        run.producer.start()
        second, p1, p2 = native(run, "j2"), follower(run, "p1"), follower(run, "p2")
        run.wait_until_started(second, p1, p2)
        everybody_works(run, first, second, p1, p2)
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(40)
            run.wait_for("the end of a parent", lambda: has_ended(run) and run.all_begun())
        run.kill(second)
        run.wait_for("the leases of j2 with others", run.all_begun)
        third = native(run, "j3")
        run.terminate(p1)
        run.wait_for("the leases of p1 with others", run.all_begun)
        run.wait_until_started(third)
        everybody_works(run, first, third, p2)
        run.kill(p2)
        run.wait_for("the leases of p2 with Java", run.all_begun)
        p3 = follower(run, "p3")
        run.wait_until_started(p3)
        everybody_works(run, first, third, p3)
        run.producer.stop()
        run.wait_until_delivered()
        _, figures = led(run, "2 Java 3.5.1 + 2 pykcl, a split, a merge, deaths of all but the leader")
        assert errors_of(first, second, third) == []
    unread = {"killed": EXPIRY, "expired": EXPIRY, "terminated": LEADER_ROUND + LEADER_ROUND / 2}
    late = [
        (cause, pair, seconds)
        for cause, pair, seconds, _ in figures.changes
        if seconds > unread.get(cause, HAND_OVER + LEADER_ROUND / 2) + SLACK
        and not pair.startswith("Java leader")
    ]
    assert late == []
    assert {(cause, pair.partition(" ")[0]) for cause, pair, _, _ in figures.changes} >= {
        ("killed", "Java"), ("killed", "pykcl"), ("terminated", "pykcl"),
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_c5_the_leases_of_a_dead_leader_are_read_again_within_a_minute(java, fleet, led):
    java(VERSION)
    with fleet(shards=4, rate=60, aggregated=0.0) as run:
        leader = leader_of_all(run)
        run.producer.start()
        p1 = follower(run, "p1", leader="never")
        run.wait_until_started(p1)
        everybody_works(run, leader, p1)
        run.kill(leader)
        run.wait_for("all leases with p1", run.all_begun, 200)
        run.producer.stop()
        run.wait_until_delivered()
        _, figures = led(run, "Java 3.5.1 + pykcl, the leader dies", leaders=["j1"])
    assert max(unread_after_death(figures)) <= 60 + 5 + SLACK


@pytest.mark.long
@pytest.mark.timeout(900)
def test_c5_without_pykcl_the_leases_of_a_dead_leader_wait_for_its_lock(java, fleet, led):
    java(VERSION)
    with fleet(shards=4, rate=60, aggregated=0.0) as run:
        leader = leader_of_all(run)
        run.producer.start()
        second = native(run, "j2")
        run.wait_until_started(second)
        everybody_works(run, leader, second)
        run.kill(leader)
        run.wait_for("all leases with j2", run.all_begun, 300)
        run.producer.stop()
        run.wait_until_delivered()
        _, figures = led(run, "2 Java 3.5.1, the leader dies", leaders=["j1"])
    # Its last heartbeat may be half a minute old, and a follower may have seen that one late.
    assert min(unread_after_death(figures)) >= 90


def unread_after_death(figures):
    return [seconds for cause, pair, seconds, _ in figures.changes if pair.startswith("Java leader")]
