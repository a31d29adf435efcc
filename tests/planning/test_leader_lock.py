"""The lock of the leader, as one worker sees it or holds it."""

import pytest

from pykcl.model.fleet_rows import LeaderLock
from pykcl.model.lease import ForeignRow
from pykcl.planning.leader_lock import AMONG_PYKCL, BESIDE_JAVA, HeldLock, LeaderWatch, lease_seconds


def lock(version, *, released=False, owner="j1", millis="120000"):
    item = {
        "leaseKey": {"S": "Leader"},
        "ownerName": {"S": owner},
        "recordVersionNumber": {"S": version},
        "leaseDuration": {"S": millis},
    }
    return ForeignRow("Leader", "LEADER", item=item | ({"isReleased": {"S": "1"}} if released else {}))


def watched(*reads):
    """A watch after reads of (seconds, row or None)."""
    (now, row), *rest = reads
    watch = LeaderWatch.first([row] if row else [], now)
    for now, row in rest:
        watch = watch.observe([row] if row else [], now)
    return watch


@pytest.mark.parametrize(
    ("reads", "absent"),
    [
        ([(0, lock("1")), (30, lock("2")), (90, lock("3"))], False),
        ([(0, lock("1")), (60, lock("1"))], False),
        ([(0, lock("1")), (61, lock("1"))], True),
        # What happened since the last read is no evidence.
        ([(0, lock("1"))], False),
        ([(0, None), (15, None), (30, None)], False),
        ([(0, None), (15, None), (30, None), (31, None)], True),
        # Somebody may have led in between, and deleted the lock.
        ([(0, None), (21, None), (41, None)], False),
        ([(0, lock("1", released=True)), (31, lock("1", released=True))], True),
        ([(0, lock("1")), (61, lock("1")), (62, lock("2"))], False),
        ([(0, lock("1")), (40, None), (60, None)], False),
    ],
)
def test_a_fleet_is_without_a_leader_once_its_lock_has_missed_two_heartbeats(reads, absent):
    assert watched(*reads).is_absent is absent


RELEASED = lock("1", released=True)


@pytest.mark.parametrize(
    ("reads", "equal", "fallback"),
    [
        # Java takes a free lock at its next read, half a minute later at the latest.
        ([(0, None)], True, False),
        ([(second, None) for second in range(0, 60, 5)], True, False),
        ([(second, None) for second in range(0, 61, 5)], True, True),
        ([(0, RELEASED)], True, False),
        ([(0, RELEASED), (60, RELEASED)], True, True),
        # Never before the duration that its row names; Java needs two more reads.
        ([(0, lock("1")), (119, lock("1"))], False, False),
        ([(0, lock("1")), (120, lock("1"))], True, False),
        ([(0, lock("1")), (209, lock("1"))], True, False),
        ([(0, lock("1")), (210, lock("1"))], True, True),
        ([(0, lock("1")), (119, lock("2")), (200, lock("2"))], False, False),
        ([(0, lock("1", millis="30000")), (29, lock("1", millis="30000"))], False, False),
        ([(0, lock("1", millis="30000")), (30, lock("1", millis="30000"))], True, False),
        ([(0, lock("1", millis="3600000")), (3599, lock("1", millis="3600000"))], False, False),
        # A row may hold any number: a leader needs time for its heartbeat.
        ([(0, lock("1", millis="0")), (19, lock("1", millis="0"))], False, False),
        ([(0, lock("1", millis="0")), (20, lock("1", millis="0"))], True, False),
    ],
)
def test_a_lock_may_be_taken_once_its_version_was_the_same_for_the_duration_of_its_row(
    reads, equal, fallback
):
    watch = watched(*reads)
    assert watch.may_be_taken("equal") is equal
    assert watch.may_be_taken("fallback") is fallback
    assert not watch.may_be_taken("never")


def test_a_dead_leader_among_pykcl_workers_is_missed_after_two_of_its_heartbeats():
    brief = lock("1", millis="30000")
    assert not watched((0, brief), (15, brief)).is_absent
    assert watched((0, brief), (16, brief)).is_absent


@pytest.mark.parametrize(("seconds", "until", "beat"), [(BESIDE_JAVA, 90.0, 30.0), (AMONG_PYKCL, 22.5, 7.5)])
def test_a_lock_is_believed_for_less_than_it_says_from_before_it_was_sent(seconds, until, beat):
    held = HeldLock(LeaderLock("me", "v", seconds), 100.0)
    assert held.is_believed(100.0 + until - 0.1)
    assert not held.is_believed(100.0 + until)
    assert held.next_heartbeat == 100.0 + beat


def test_a_lock_is_believed_no_longer_than_one_that_may_be_in_its_place():
    held = HeldLock(LeaderLock("me", "v", BESIDE_JAVA), 100.0)
    brief = held.may_become(HeldLock(LeaderLock("me", "w", AMONG_PYKCL), 130.0))
    assert (brief.believed_until, brief.lock, brief.next_heartbeat) == (152.5, held.lock, 130.0)
    # Nor longer than the first of several, each of which may be there.
    assert brief.may_become(HeldLock(LeaderLock("me", "x", AMONG_PYKCL), 131.0)).believed_until == 152.5
    assert held.may_become(HeldLock(LeaderLock("me", "w", BESIDE_JAVA), 130.0)).believed_until == 190.0


def test_the_lock_lasts_as_long_as_java_s_beside_anybody_who_may_be_java():
    assert lease_seconds({"p1", "p2"}, {"p1", "p2"}) == AMONG_PYKCL
    assert lease_seconds({"p1", "j1"}, {"p1", "p2"}) == BESIDE_JAVA
    assert lease_seconds({"p1"}, ()) == BESIDE_JAVA
