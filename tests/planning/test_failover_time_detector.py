"""A peer with another failover time is told by the rhythm of its counters; a peer with ours never is, whatever happens."""

import random
from bisect import bisect_right

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.planning.peer_anomalies import FailoverTimeDetector

OURS = 10.0
EPSILON = 0.025


class JavaLease:
    """One lease of a Java worker over time: what its row says at each moment.

    checkpoints: mean seconds between two of them, 0 for none. pauses: (from, until) in which the worker stands still;
    afterwards it catches up at once, as a fixed rate does.
    """

    def __init__(
        self, rng, key, failover, *, seconds, checkpoints=0.0, pauses=(), rate=1.0, metadata=None, phase=None
    ):
        self.key, self.metadata = key, metadata
        writes = []
        period = (failover / 3 - EPSILON) / rate
        at = rng.uniform(0, period) if phase is None else phase
        while at < seconds:
            late = next((until for since, until in pauses if since <= at < until), at)
            writes.append((late + rng.uniform(0, 0.05), False))
            at += period
        at = rng.expovariate(1 / checkpoints) if checkpoints else seconds
        while at < seconds:
            writes.append((at, True))
            at += rng.expovariate(1 / checkpoints)
        self.writes = sorted(writes)
        self.times = [at for at, _ in self.writes]
        self.marks = []
        marked = 0
        for _, is_checkpoint in self.writes:
            marked += is_checkpoint
            self.marks.append(marked)

    def at(self, time, owner="j1"):
        count = bisect_right(self.times, time)
        marked = self.marks[count - 1] if count else 0
        return Lease(self.key, Checkpoint(str(1000 + marked)), 100 + count, owner, metadata=self.metadata)


def watch(rng, leases, *, seconds, ours=OURS, between=(0.9, 1.1), stale=0.0, slow=0.0, worker="me"):
    """What is told while all of it is scanned. stale, slow: how probable an old answer or a long pause is."""
    rhythm, told, now = FailoverTimeDetector(ours), [], 1.0
    while now < seconds:
        shown = [
            lease.at(now - (rng.uniform(0.1, 2.0) if rng.random() < stale else rng.uniform(0, 0.05)))
            for lease in leases
        ]
        told += rhythm.observe(shown, now, worker=worker)
        now += rng.uniform(5, 25) if rng.random() < slow else rng.uniform(*between)
    return told


def some_pauses(rng, seconds, failover):
    """As long as a worker can stand still without losing its leases."""
    at, found = rng.uniform(5, 60), []
    while at < seconds:
        found.append((at, at + rng.uniform(0.5, failover)))
        at = found[-1][1] + rng.uniform(failover / 3, 60)
    return found


@pytest.mark.parametrize("theirs", [2.0, 3.0, 5.0, 6.0])
def test_a_shorter_fail_over_time_is_told_once_with_its_length(theirs):
    rng = random.Random(1)
    leases = [JavaLease(rng, f"shardId-{n}", theirs, seconds=400) for n in range(3)]
    (told,) = watch(rng, leases, seconds=400)
    assert (told.owner, told.is_faster) == ("j1", True)
    assert told.failover_time == pytest.approx(theirs, rel=0.15)


@pytest.mark.parametrize("theirs", [17.0, 20.0, 30.0, 60.0])
def test_a_longer_fail_over_time_is_told_once_with_its_length(theirs):
    rng = random.Random(2)
    leases = [JavaLease(rng, f"shardId-{n}", theirs, seconds=800) for n in range(3)]
    (told,) = watch(rng, leases, seconds=800)
    assert (told.owner, told.is_faster) == ("j1", False)
    assert told.failover_time == pytest.approx(theirs, rel=0.15)


def test_one_idle_lease_tells_while_the_others_are_busy():
    rng = random.Random(3)
    busy = [JavaLease(rng, f"shardId-{n}", 5.0, seconds=400, checkpoints=1.0) for n in range(4)]
    assert not watch(rng, busy, seconds=400)
    idle = JavaLease(rng, "shardId-9", 5.0, seconds=400)
    assert [told.is_faster for told in watch(rng, [*busy, idle], seconds=400)] == [True]


def test_a_peer_that_checkpoints_often_is_not_taken_for_a_fast_one():
    rng = random.Random(4)
    for every in (0.2, 1.0, 3.0, 8.0, 20.0):
        assert not watch(
            rng, [JavaLease(rng, "shardId-0", OURS, seconds=900, checkpoints=every)], seconds=900
        )


def test_a_worker_of_pykcl_is_not_listened_to():
    rng = random.Random(5)
    metadata = PykclMetadata(owner="j1")
    assert not watch(rng, [JavaLease(rng, "shardId-0", 3.0, seconds=400, metadata=metadata)], seconds=400)
    # The metadata of the owner before says nothing about this one.
    metadata = PykclMetadata(owner="p1")
    assert watch(rng, [JavaLease(rng, "shardId-0", 3.0, seconds=400, metadata=metadata)], seconds=400)


def test_what_we_hold_ourselves_is_not_listened_to():
    rng = random.Random(6)
    assert not watch(rng, [JavaLease(rng, "shardId-0", 3.0, seconds=400)], seconds=400, worker="j1")


def test_a_slow_lease_says_nothing_while_another_of_the_same_owner_beats_our_time():
    rng = random.Random(7)
    leases = [JavaLease(rng, "shardId-0", 30.0, seconds=900), JavaLease(rng, "shardId-1", OURS, seconds=900)]
    assert not watch(rng, leases, seconds=900)


def test_a_peer_that_misses_heartbeats_unevenly_is_not_taken_for_a_slow_one():
    for seed in range(30):
        rng = random.Random(seed)
        lease = JavaLease(rng, "shardId-0", OURS, seconds=900)
        kept = [write for write in lease.writes if rng.random() < 0.5]
        lease.times, lease.marks = [at for at, _ in kept], [0] * len(kept)
        assert not watch(rng, [lease], seconds=900), seed


def test_a_single_window_is_not_believed_however_many_leases_say_the_same():
    rng = random.Random(8)
    leases = [JavaLease(rng, f"shardId-{n}", 4.0, seconds=70) for n in range(4)]
    for lease in leases:
        later = JavaLease(rng, lease.key, OURS, seconds=400)
        lease.times += [at for at in later.times if at > 70]
        lease.marks = [0] * len(lease.times)
    assert not watch(rng, leases, seconds=400)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    ours=st.sampled_from([3.0, 10.0, 30.0]),
    checkpoints=st.sampled_from([0.0, 0.5, 3.0, 15.0, 60.0]),
    stale=st.sampled_from([0.0, 0.05, 0.5]),
    slow=st.sampled_from([0.0, 0.02, 0.3]),
    pausing=st.booleans(),
    rate=st.sampled_from([0.9, 1.0, 1.1]),
)
def test_a_peer_with_our_fail_over_time_is_never_told_of(seed, ours, checkpoints, stale, slow, pausing, rate):
    rng = random.Random(seed)
    seconds = 40 * ours
    pauses = some_pauses(rng, seconds, ours) if pausing else ()
    busyness = [checkpoints, 0.0, checkpoints]
    leases = [
        JavaLease(rng, f"shardId-{n}", ours, seconds=seconds, checkpoints=busy, pauses=pauses, rate=rate)
        for n, busy in enumerate(busyness)
    ]
    shortest = min(1.0, ours / 3)
    told = watch(
        rng,
        leases,
        seconds=seconds,
        ours=ours,
        between=(0.9 * shortest, 1.1 * shortest),
        stale=stale,
        slow=slow,
    )
    assert not told


@settings(max_examples=40)
@example(seed=67108863, theirs=2.0, checkpoints=30.0, stale=0.0, slow=0.05)
@given(
    seed=st.integers(0, 2**32),
    theirs=st.sampled_from([2.0, 4.0, 6.0, 18.0, 25.0, 40.0]),
    checkpoints=st.sampled_from([0.0, 30.0, 120.0]),
    stale=st.sampled_from([0.0, 0.2]),
    slow=st.sampled_from([0.0, 0.05]),
)
def test_what_is_told_of_another_rhythm_is_never_the_wrong_way_round(seed, theirs, checkpoints, stale, slow):
    rng = random.Random(seed)
    leases = [JavaLease(rng, f"shardId-{n}", theirs, seconds=500, checkpoints=checkpoints) for n in range(2)]
    for told in watch(rng, leases, seconds=500, stale=stale, slow=slow):
        assert told.is_faster == (theirs < OURS)
        assert told.failover_time == pytest.approx(theirs, rel=0.1)
