"""The page that is asked for ahead: it saves the way to Kinesis, and changes nothing about what is delivered when."""

import random
from itertools import pairwise

import pytest

from pykcl.errors import IteratorExpired, ShardGone, TemporaryError, Throttled
from pykcl.events import FailureStarted, LeaseLost, LossReason, RetentionAlmostExceeded
from pykcl.interfaces import Fetched
from pykcl.testing.fleet import RecordingProcessor
from pykcl.testing.runtime import SimulatedRuntime, Simulation
from pykcl.worker.held_leases import Loss
from pykcl.worker.prefetch import MemoryBudget, Prefetcher

SHARD = "shardId-000000000000"
MIB = 1024 * 1024
WAY = 0.1
"""Seconds that a read takes."""


class Watch:
    """What one worker asks of Kinesis, and when. fails: what to raise instead of the page, by the number of the read.

    at_batch: what to do when the processor begins a batch, by its number. ways: seconds that a read takes, by its number.
    """

    def __init__(self, fleet, name, fails=()):
        self.fleet, self.name, self.fails = fleet, name, dict(fails)
        self.sent, self.ahead = [], 0
        self.at_batch, self.ways = {}, {}
        self.waits = fleet.simulation.runtime(name).event
        self.begun = self.finished = self.answered = 0

    def look_at(self, worker):
        _, stream = worker._adapters
        self.worker, self.fetch = worker, stream.fetch
        stream.fetch = self

    def __call__(self, shard_id, iterator, limit):
        self.sent.append(self.fleet.simulation.now)
        self.ahead += self.begun > self.finished
        assert self.answered - self.begun <= 1, "a second page ahead"
        number = len(self.sent)
        self.waits().wait(self.ways.get(number, WAY))
        if number in self.fails:
            raise self.fails[number]
        page = self.fetch(shard_id, iterator, limit)
        self.answered += bool(page.records)
        return page

    def works(self, seconds):
        """A processor that takes so long for each batch."""

        def behaviour(batch):
            self.begun += 1
            self.at_batch.get(self.begun, lambda: None)()
            self.waits().wait(seconds)
            self.finished += 1

        return lambda: RecordingProcessor(self.name, self.fleet.ledger, behaviour)

    @property
    def is_all_given_back(self):
        gate = self.gate
        return gate._free == self.worker.config.max_buffered_bytes


def start(fleet, name="w1", seconds=1.0, fails=(), **options):
    watch = Watch(fleet, name, fails)
    options = {"max_records": 5, "max_buffered_bytes": 256 * MIB, **options}
    worker = fleet.worker(name, processor=watch.works(seconds), **options)
    watch.look_at(worker)
    worker.start()
    watch.gate = worker._manager._context.memory
    return watch


def in_order(fleet, name="w1"):
    numbers = [record.sequence_number for who, record in fleet.ledger.delivered if who == name]
    return numbers == sorted(numbers, key=int) and len(set(numbers)) == len(numbers)


def test_a_slow_processor_never_waits_for_kinesis_and_gets_everything_in_order_and_once(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet)
    fleet.wait(lambda: watch.begun)
    began = fleet.simulation.now
    fleet.wait_delivered(put)
    took = fleet.simulation.now - began
    assert 10.0 <= took < 10.0 + 3 * WAY, "ten pages of a second, and not ten ways"
    assert watch.ahead >= 7
    assert in_order(fleet)
    assert fleet.ledger.duplicates == 0


def test_a_page_ahead_comes_no_sooner_than_the_shard_allows(new_fleet):
    fleet = new_fleet(shards=1, limits=True)
    fleet.put(50)
    watch = start(fleet, seconds=0.25)
    fleet.wait(lambda: len(watch.sent) > 9)
    pauses = [later - earlier for earlier, later in pairwise(watch.sent)]
    assert watch.ahead > 4
    assert min(pauses) > 0.2 + WAY - 0.001


def test_a_quick_processor_has_no_page_asked_for_ahead_and_no_thread_more(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet, seconds=0.1)
    fleet.wait_delivered(put)
    assert watch.ahead == 0
    assert not [task.name for task in fleet.simulation.unfinished("w1") if task.name.endswith("-ahead")]


def test_who_is_caught_up_has_no_page_asked_for_ahead_for_it_would_miss_what_comes_meanwhile(new_fleet):
    fleet = new_fleet(shards=1)
    watch = start(fleet, max_records=1000)
    for _ in range(10):
        fleet.put(3)
        fleet.simulation.sleep(2)
    assert watch.ahead == 0
    assert watch.finished >= 5


def test_nothing_is_asked_for_ahead_where_the_buffer_is_scarce(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet, max_buffered_bytes=28 * MIB)
    fleet.wait_delivered(put)
    assert watch.ahead == 0
    assert in_order(fleet)


def test_a_page_ahead_is_in_no_checkpoint_and_is_thrown_away_when_the_lease_is_lost(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet)
    fleet.wait(lambda: watch.ahead >= 3 and watch.answered > watch.begun)
    (row,) = fleet.rows().values()
    done = [record.sequence_number for _, record in fleet.ledger.delivered]
    assert row.checkpoint.sequence_number == done[-1]
    asked, begun = len(watch.sent), watch.begun
    (lease_worker,) = [found for found, _ in watch.worker._manager.workers()]
    lease_worker.revoke(Loss.of(LossReason.OTHER))
    fleet.wait(lambda: (fleet.ledger.calls[-1][1]) == "lease_lost", 30)
    assert watch.begun == begun, "what was read ahead is not delivered"
    assert watch.is_all_given_back
    assert len(watch.sent) <= asked + 1
    fleet.wait_delivered(put)


def test_a_stop_leaves_no_thread_and_no_bytes_and_the_next_worker_goes_on_behind_the_checkpoint(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet)
    fleet.wait(lambda: watch.ahead >= 3)
    watch.worker.stop()
    assert fleet.simulation.unfinished("w1") == []
    assert watch.is_all_given_back
    start(fleet, "w2")
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0
    assert in_order(fleet, "w2")


@pytest.mark.parametrize("how", ["stops", "loses the lease"])
def test_who_stops_or_loses_the_lease_before_the_page_ahead_was_asked_for_does_not_ask_for_it(new_fleet, how):
    fleet = new_fleet(shards=1)
    fleet.put(50)
    watch = start(fleet)

    def leave():
        (lease_worker,) = [found for found, _ in watch.worker._manager.workers()]
        assert [task for task in fleet.simulation.unfinished("w1") if task.name.endswith("-ahead")]
        if how == "stops":
            lease_worker.request_stop()
        else:
            lease_worker.revoke(Loss.of(LossReason.OTHER))

    watch.at_batch[2] = leave
    fleet.wait(lambda: watch.begun == 2)
    fleet.simulation.sleep(0.9)
    assert len(watch.sent) == 2


def test_a_request_that_is_under_way_delays_no_hand_over_and_is_over_when_the_stop_is(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(50)
    watch = start(fleet)
    watch.ways[5] = 6.0
    fleet.wait(lambda: len(watch.sent) == 5)
    fleet.simulation.runtime("operator").spawn("stop", watch.worker.stop)
    fleet.wait(lambda: set(fleet.owners().values()) == {None}, 3, "the release")
    assert [task.name for task in fleet.simulation.unfinished("w1") if task.name.endswith("-ahead")]
    fleet.wait(lambda: not fleet.simulation.unfinished("operator"), 10, "the end of the stop")
    assert fleet.simulation.unfinished("w1") == []
    assert watch.is_all_given_back


def test_who_is_killed_with_a_page_ahead_costs_the_batch_in_hand_and_no_other(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet)
    fleet.wait(lambda: watch.ahead >= 3 and watch.answered > watch.begun)
    fleet.simulation.kill("w1")
    start(fleet, "w2")
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0, "the batch in hand had not returned, so it had not counted"


@pytest.mark.parametrize(
    "error",
    [Throttled("t"), IteratorExpired("i"), TemporaryError("x"), ShardGone("g")],
    ids=lambda error: type(error).__name__,
)
def test_a_page_ahead_that_fails_is_the_trouble_it_would_have_been_and_nothing_is_lost(new_fleet, error):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    watch = start(fleet, fails={5: error})
    fleet.wait_delivered(put)
    assert watch.ahead > 3
    assert in_order(fleet)
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("seed", range(300))
def test_however_the_two_threads_meet_each_page_comes_once_and_every_byte_is_given_back(seed):
    rng = random.Random(seed)
    with Simulation(seed=seed) as simulation:
        runtime, network = simulation.runtime("w"), simulation.runtime("w").event
        gate = MemoryBudget(100 * MIB, runtime)
        asked = []

        def ask(iterator):
            asked.append(iterator)
            simulation.switch()
            network().wait(rng.choice([0.0, 0.0, 0.3]))
            if rng.random() < 0.2:
                raise Throttled("t")
            return Fetched([], None, 1, (), 5 * MIB), runtime.monotonic()

        ahead = Prefetcher(SHARD, ask, gate, runtime)
        for number in range(8):
            iterator, due = f"i{number}", rng.choice([0.0, 0.2])
            ahead.start(iterator, due, lambda: rng.random() < 0.9)
            for _ in range(rng.randrange(3)):
                simulation.switch()
            simulation.sleep(rng.choice([0.0, 0.1, 0.2, 0.5]))
            what = rng.choice(["take", "take", "take", "other", "drop", "close"])
            if what == "take":
                try:
                    answer = ahead.take(iterator)
                except Throttled:
                    assert asked.count(iterator) == 1
                    continue
                if answer is not None:
                    assert asked.count(iterator) == 1
                    gate.release(answer[0].body_bytes)
                else:
                    simulation.sleep(1)
                    assert asked.count(iterator) == 0, "who is told that nobody asks asks itself"
            elif what == "other":
                assert ahead.take("another iterator") is None
            elif what == "drop":
                ahead.drop()
            else:
                ahead.close()
                assert simulation.unfinished("w") == []
        ahead.close()
        simulation.sleep(5)
        assert gate._free == 100 * MIB


def test_a_page_is_read_without_its_thread_where_no_thread_can_be_started(new_fleet, monkeypatch):
    fleet = new_fleet(shards=1)
    put = fleet.put(200)
    refused = []

    def spawn(runtime, name, body, _spawn=SimulatedRuntime.spawn):
        if name.endswith("-ahead"):
            refused.append(name)
            raise TemporaryError("can't start new thread")
        return _spawn(runtime, name, body)

    monkeypatch.setattr(SimulatedRuntime, "spawn", spawn)
    watch = start(fleet, max_records=10)
    fleet.wait_delivered(put)
    assert refused
    assert fleet.ledger.duplicates == 0
    assert not fleet.happened(LeaseLost)
    assert not fleet.happened(FailureStarted)
    fleet.workers["w1"].stop()
    assert watch.is_all_given_back


def test_what_is_reserved_to_spare_leaves_half_and_never_passes_who_waits():
    with Simulation(seed=1) as simulation:
        gate = MemoryBudget(100, simulation.runtime("w"))
        assert gate.try_reserve(50)
        assert not gate.try_reserve(1)
        assert gate.reserve(50, give_up=lambda: False, timeout=0.0)
        simulation.runtime("w").spawn(
            "waits", lambda: gate.reserve(90, give_up=lambda: False, timeout=1000.0)
        )
        simulation.sleep(1)
        gate.release(85)
        assert not gate.try_reserve(1)


def test_a_shard_that_retention_nearly_overtakes_is_opened_anew_for_each_page_and_read_once_for_it(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(50)
    fleet.simulation.sleep(22 * 3600)
    watch = start(fleet)
    fleet.wait_delivered(put)
    assert fleet.happened(RetentionAlmostExceeded)
    assert watch.ahead == 0, "an iterator would step over what was trimmed meanwhile"
    assert len(watch.sent) <= 15, "so a page that it brought would be thrown away, and read again"
