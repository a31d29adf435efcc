"""How often workers read their shards: from a Kinesis that enforces its limits, in simulated time."""

from itertools import pairwise

import pytest

from pykcl.errors import Throttled
from pykcl.events import FailureStarted
from pykcl.testing.fleet import STREAM, Ledger, RecordingProcessor

SHARD = "shardId-000000000000"
MIB = 1024 * 1024


class Reads:
    """Every read of one worker: (when it was sent, shard, whether it was answered). delay: most seconds of a way."""

    def __init__(self, fleet, worker, delay=0.0):
        _, stream = worker._adapters
        self.fleet, self.fetch, self.seen, self.delay = fleet, stream.fetch, [], delay
        self.runtime = fleet.simulation.runtime("network")
        stream.fetch = self

    def __call__(self, shard_id, iterator, limit):
        sent = self.fleet.simulation.now
        self.travel()
        try:
            return self.request_page(sent, shard_id, iterator, limit)
        finally:
            self.travel()

    def travel(self):
        if self.delay:
            self.runtime.event().wait(self.fleet.simulation.rng.uniform(0.1, 1.0) * self.delay)

    def request_page(self, sent, shard_id, iterator, limit):
        try:
            page = self.fetch(shard_id, iterator, limit)
        except Throttled:
            self.seen.append((sent, shard_id, False))
            raise
        self.seen.append((sent, shard_id, True))
        return page

    def times(self, since=0.0, shard=SHARD):
        return [sent for sent, of, _ in self.seen if of == shard and sent >= since]

    def pauses(self, since=0.0, shard=SHARD):
        times = self.times(since, shard)
        return [round(later - earlier, 3) for earlier, later in pairwise(times)]

    @property
    def refused(self):
        return sum(not answered for _, _, answered in self.seen)


def start(fleet, name="w1", delay=0.0, **options):
    worker = fleet.worker(name, **options)
    reads = Reads(fleet, worker, delay)
    worker.start()
    return reads


def fill(fleet, count, size):
    """A backlog of `count` records of `size` bytes, put at no faster than the shard takes them."""
    payloads = []
    for number in range(count):
        payloads.append(f"{number:08d}".encode().ljust(size, b"."))
        fleet.kinesis.put_record(STREAM, payloads[-1], "k")
        fleet.simulation.sleep(1.1 * max(size / MIB, 0.001))
    fleet.simulation.sleep(2)
    return payloads


def test_a_backlog_of_large_records_is_read_at_two_mebibytes_a_second_and_never_refused(new_fleet):
    fleet = new_fleet(shards=1, limits=True)
    put = fill(fleet, 64, MIB // 2)
    reads = start(fleet, max_records=6)
    fleet.wait(lambda: reads.seen)
    began = fleet.simulation.now
    fleet.wait_delivered(put)
    took = fleet.simulation.now - began
    assert reads.refused == 0
    assert 14 <= took <= 17, "32 MiB at 2 MiB a second; the last page need not be waited for"


@pytest.mark.parametrize("delay", [0.05, 0.4])
def test_no_delay_on_the_way_brings_reads_closer_together_than_the_shard_allows(new_fleet, delay):
    fleet = new_fleet(shards=1, limits=True)
    put = fill(fleet, 32, MIB // 2)
    reads = start(fleet, delay=delay, max_records=2)
    fleet.wait_delivered(put)
    assert reads.refused == 0


def test_a_backlog_of_small_records_is_read_five_times_a_second_and_never_refused(new_fleet):
    fleet = new_fleet(shards=1, limits=True)
    put = fill(fleet, 300, 100)
    reads = start(fleet, max_records=10)
    fleet.wait_delivered(put)
    assert reads.refused == 0
    assert set(reads.pauses()[:25]) == {0.2}


def test_what_a_processor_takes_is_not_waited_for_once_more(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(40)
    waits = fleet.simulation.runtime("w1").event

    def behaviour(batch):
        waits().wait(3.0)

    reads = start(
        fleet, max_records=5, processor=lambda: RecordingProcessor("w1", fleet.ledger, behaviour=behaviour)
    )
    fleet.wait_delivered(put)
    # The third page on is asked for ahead: not later, and none sooner than 0.2 s after the one before it was there.
    times = reads.times()
    assert times[6] - times[0] <= 6 * 3.0
    assert min(reads.pauses()) == 0.2


def test_a_shard_that_is_caught_up_is_read_less_the_longer_nothing_comes_and_at_once_more_when_it_does(
    new_fleet,
):
    fleet = new_fleet(shards=1)
    reads = start(fleet)
    fleet.wait(lambda: len(reads.seen) >= 6)
    assert reads.pauses()[:5] == [0.5, 1.0, 1.0, 1.0, 1.0]
    since = fleet.simulation.now
    while fleet.simulation.now < since + 5:
        fleet.put(1)
        fleet.simulation.sleep(0.1)
    assert set(reads.pauses(since + 1.1)) == {0.25}


@pytest.mark.parametrize("idle_time_between_reads", [0.2, 3.0])
def test_idle_time_is_the_pause_of_a_shard_that_is_caught_up_with_records_and_without(
    new_fleet, idle_time_between_reads
):
    fleet = new_fleet(shards=1)
    reads = start(fleet, idle_time_between_reads=idle_time_between_reads)
    fleet.wait(lambda: len(reads.seen) >= 4)
    since = fleet.simulation.now
    while fleet.simulation.now < since + 12:
        fleet.put(1)
        fleet.simulation.sleep(0.05)
    assert set(reads.pauses()) == {idle_time_between_reads}


def test_a_refused_read_slows_its_shard_down_and_no_other_and_is_told_of(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.put(5000)
    reads = start(fleet, max_records=5)
    fleet.wait(lambda: len(reads.times()) > 5)
    inner, left, other = reads.fetch, [3], fleet.open_shards()[1]

    def refusing(shard_id, iterator, limit):
        if shard_id == SHARD and left[0]:
            left[0] -= 1
            raise Throttled("ProvisionedThroughputExceededException")
        return inner(shard_id, iterator, limit)

    since = fleet.simulation.now
    reads.fetch = refusing
    fleet.simulation.sleep(12)
    assert [event.what for event in fleet.happened(FailureStarted)] == ["reading"]
    assert max(reads.pauses(since)) >= 1.4, "about an eighth of the rate"
    assert set(reads.pauses(since, other)) == {0.2}
    fleet.simulation.sleep(60)
    assert set(reads.pauses(fleet.simulation.now - 5)) == {0.2}, "and it recovers"
    assert fleet.ledger.duplicates == 0


def test_several_applications_that_are_behind_share_a_shard_and_none_of_them_starves(new_fleet):
    fleet = new_fleet(shards=1, limits=True)
    fill(fleet, 3000, 100)
    applications, reads = {}, {}
    for name in ("a", "b", "c"):
        applications[name] = Ledger()
        reads[name] = start(
            fleet,
            name,
            delay=0.015,
            table_name=f"table-{name}",
            max_records=2,
            processor=lambda name=name: RecordingProcessor(name, applications[name]),
        )
    fleet.simulation.sleep(120)
    since = fleet.simulation.now
    fleet.simulation.sleep(120)
    answered = {
        name: sum(at >= since and done for at, _, done in found.seen) for name, found in reads.items()
    }
    refused = sum(at >= since and not done for found in reads.values() for at, _, done in found.seen)
    assert sum(answered.values()) > 0.6 * 5 * 120, "most of the shard's rate is used"
    assert min(answered.values()) > 0.5 * max(answered.values()), (
        "and nobody has much more of it than another"
    )
    assert refused < 0.15 * sum(answered.values()), "few reads are asked for in vain"
    assert all(ledger.duplicates == 0 for ledger in applications.values())
