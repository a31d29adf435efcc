"""The thread that reads for all shards at rest: it saves waking up, and changes nothing about what is delivered when."""

import random
from functools import partial
from itertools import pairwise

import pytest

from pykcl.errors import IteratorExpired, TemporaryError, Throttled
from pykcl.events import LossReason
from pykcl.interfaces import Fetched, PageStatus
from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.planning.read_schedule import PollWindow
from pykcl.testing.fleet import RecordingProcessor
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation.service_faults import SlowPage
from pykcl.worker.held_leases import Loss
from pykcl.worker.idle_reads import MAX_UNDER_WAY, IdlePoll, IdleShardPoller
from pykcl.worker.prefetch import MemoryBudget
from pykcl.worker.shard_reader import ShardReader

SHARD = "shardId-000000000000"
MIB = 1024 * 1024


class Post:
    """What one worker asks its stream for: by `ask`, by `fetch`. delays: seconds until an asked page of a shard is there.

    never_ready: shards whose pages are there only for who waits for them. refused: shards that cannot be asked.
    """

    def __init__(self, fleet, worker):
        _, self.stream = worker._adapters
        self.fleet, self.worker = fleet, worker
        self.runtime = fleet.simulation.runtime(worker.worker_id)
        self.asked, self.fetched, self.under_way, self.most = [], [], 0, 0
        self.delays, self.never_ready, self.refused, self.fails = {}, set(), set(), {}
        self._fetch = self.stream.fetch
        self.stream.fetch = self.fetch
        self.stream.request_page = self.request_page
        self.stream.wait_for_any = self.wait_for_any

    def now(self):
        return self.fleet.simulation.now

    def fetch(self, shard_id, iterator, limit):
        self.fetched.append((self.now(), shard_id))
        return self._fetch(shard_id, iterator, limit)

    def request_page(self, shard_id, iterator, limit):
        if shard_id in self.refused:
            return None
        self.asked.append((self.now(), shard_id))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return SlowPage(
            partial(self.answer, shard_id, iterator, limit),
            self.runtime,
            self.now,
            there_at=self.now() + self.delays.get(shard_id, 0.0),
            never_ready=shard_id in self.never_ready,
        )

    def answer(self, shard_id, iterator, limit):
        self.under_way -= 1
        if shard_id in self.fails:
            raise self.fails.pop(shard_id)
        return self._fetch(shard_id, iterator, limit)

    def wait_for_any(self, asked, timeout):
        soonest = min((page.there_at for page in asked), default=0.0)
        self.runtime.event().wait(max(0.0, min(timeout, soonest - self.now())))

    def pauses(self, shard=SHARD, since=0.0):
        times = sorted(at for at, of in self.asked + self.fetched if of == shard and at >= since)
        return [round(later - earlier, 3) for earlier, later in pairwise(times)]

    @property
    def is_all_given_back(self):
        return self.worker._manager._context.memory._free == self.worker.config.max_buffered_bytes


def start(fleet, name="w1", **options):
    worker = fleet.worker(name, **options)
    post = Post(fleet, worker)
    worker.start()
    fleet.wait(lambda: len(worker.leases) == len(fleet.open_shards()) and worker.wait_ready(1))
    return post


@pytest.fixture
def reads_by_own_threads(monkeypatch):
    """Of which shards a page was taken in by their own threads."""
    seen, read = [], ShardReader.read

    def watched(self, give_up):
        seen.append(self._shard_id)
        return read(self, give_up)

    monkeypatch.setattr(ShardReader, "read", watched)
    return seen


def test_shards_at_rest_are_read_together_and_their_own_threads_sleep(new_fleet, reads_by_own_threads):
    fleet = new_fleet(shards=8)
    post = start(fleet)
    fleet.simulation.sleep(10)
    reads_by_own_threads.clear()
    since = fleet.simulation.now
    fleet.simulation.sleep(60)
    assert reads_by_own_threads == []
    asked = [(at, shard) for at, shard in post.asked if at >= since]
    assert len({at for at, _ in asked}) <= 70, "one round a second, and not one for each shard"
    assert len(asked) >= 8 * 55
    assert set(post.pauses(since=since)) <= {0.9 + 0.001 * ms for ms in range(151)} | {1.0}
    assert post.is_all_given_back


def test_a_record_wakes_the_thread_of_its_shard_and_of_no_other(new_fleet, reads_by_own_threads):
    fleet = new_fleet(shards=4)
    start(fleet)
    fleet.simulation.sleep(10)
    reads_by_own_threads.clear()
    put = fleet.put(1)
    began = fleet.simulation.now
    fleet.wait_delivered(put)
    assert fleet.simulation.now - began <= 1.2
    assert len(set(reads_by_own_threads)) == 1


def test_everything_is_delivered_in_order_and_once_while_shards_rest_and_wake_up(new_fleet):
    fleet = new_fleet(shards=4, limits=True)
    post = start(fleet)
    put = []
    for _ in range(200):
        put += fleet.put(fleet.simulation.rng.randrange(4))
        fleet.simulation.sleep(fleet.simulation.rng.uniform(0.0, 1.0))
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0
    for shard in fleet.open_shards():
        numbers = [
            int(record.sequence_number) for _, record in fleet.ledger.delivered if record.shard_id == shard
        ]
        assert numbers == sorted(numbers)
        assert min(post.pauses(shard)[3:]) >= 0.2
    post.worker.stop()
    assert post.is_all_given_back
    assert fleet.simulation.unfinished("w1") == []


def test_a_slow_answer_delays_no_other_shard(new_fleet):
    fleet = new_fleet(shards=3)
    post = start(fleet)
    fleet.simulation.sleep(10)
    slow, *others = fleet.open_shards()
    post.delays[slow] = 30.0
    since = fleet.simulation.now
    fleet.simulation.sleep(25)
    for shard in others:
        assert max(post.pauses(shard, since)) <= 1.4
    assert len(post.pauses(slow, since)) <= 2
    post.delays.clear()
    put = fleet.put(30)
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("how", ["never_ready", "refused"])
def test_what_the_shared_thread_cannot_do_the_shards_own_thread_does(new_fleet, how):
    fleet = new_fleet(shards=2)
    post = start(fleet)
    getattr(post, how).add(SHARD)
    for _ in range(20):
        put = fleet.put(3)
        fleet.wait_delivered(put, 2)
    assert fleet.ledger.duplicates == 0
    assert min(post.pauses()) >= 0.2


@pytest.mark.parametrize(
    "error",
    [Throttled("t"), IteratorExpired("i"), TemporaryError("x")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_trouble_it_would_have_been_and_nothing_is_lost(new_fleet, error):
    fleet = new_fleet(shards=1)
    post = start(fleet)
    put = []
    for _ in range(10):
        put += fleet.put(3)
        post.fails[SHARD] = error
        fleet.simulation.sleep(2)
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0
    post.worker.stop()
    assert post.is_all_given_back


def test_who_loses_the_lease_is_not_read_for_any_more(new_fleet):
    fleet = new_fleet(shards=2)
    post = start(fleet)
    fleet.simulation.sleep(5)
    post.delays[SHARD] = 0.2
    fleet.wait(lambda: post.asked[-1][1] == SHARD)
    (lease_worker,) = [found for found, _ in post.worker._manager.workers() if found.key == SHARD]
    lease_worker.revoke(Loss.of(LossReason.OTHER))
    asked = len(post.pauses())
    fleet.wait(lambda: ("w1", "lease_lost", SHARD) in fleet.ledger.calls, 1)
    assert len(post.pauses()) == asked
    assert post.is_all_given_back


def test_no_shard_is_read_once_the_worker_has_stopped(new_fleet):
    fleet = new_fleet(shards=4)
    post = start(fleet)
    fleet.simulation.sleep(5)
    post.delays.update(dict.fromkeys(fleet.open_shards(), 0.1))
    fleet.wait(lambda: post.under_way)
    post.worker.stop()
    stopped = fleet.simulation.now
    assert fleet.simulation.unfinished("w1") == []
    fleet.simulation.sleep(10)
    assert all(at <= stopped for at, _ in post.asked + post.fetched)
    assert post.is_all_given_back


def test_a_shared_thread_that_hangs_is_a_matter_of_seconds_for_who_is_left_there(new_fleet):
    fleet = new_fleet(shards=3)
    post = start(fleet)
    fleet.simulation.sleep(10)
    hung = post.runtime.event()
    post.stream.wait_for_any = lambda asked, timeout: hung.wait()
    fleet.simulation.sleep(2)
    began = fleet.simulation.now
    put = fleet.put(30)
    fleet.wait_delivered(put)
    assert fleet.simulation.now - began <= 7
    put = fleet.put(30)
    fleet.wait_delivered(put, 3)
    assert fleet.ledger.duplicates == 0
    hung.set()
    post.worker.stop()
    assert post.is_all_given_back


def test_empty_batches_are_delivered_where_they_are_wanted(new_fleet):
    fleet = new_fleet(shards=1)
    empty = []

    def note(batch):
        empty.append(len(batch))

    start(fleet, processor=lambda: RecordingProcessor("w1", fleet.ledger, note), call_with_empty_batches=True)
    fleet.simulation.sleep(10)
    assert len(empty) >= 9


def test_a_checkpoint_that_is_owed_is_written_though_nothing_comes_any_more(new_fleet):
    fleet = new_fleet(shards=1)
    start(fleet, checkpoint_mode="interval", checkpoint_interval=7.0)
    put = fleet.put(1)
    fleet.wait_delivered(put)
    number = fleet.ledger.delivered[-1][1].sequence_number
    fleet.wait(lambda: fleet.rows()[SHARD].checkpoint.sequence_number == number, 9)


def test_how_far_behind_a_shard_is_stays_known_while_its_thread_sleeps(new_fleet):
    fleet = new_fleet(shards=1)
    post = start(fleet)
    fleet.simulation.sleep(60)
    (lease,) = post.worker.status().leases
    assert lease.millis_behind_latest == 0
    assert lease.lag_age <= 1.1


def test_a_stream_that_cannot_be_asked_is_read_by_its_shards_threads(new_fleet):
    class Plain:
        def __init__(self, stream):
            self._stream = stream

        def __getattr__(self, name):
            if name in ("request_page", "wait_for_any", "max_pending_pages"):
                raise AttributeError(name)
            return getattr(self._stream, name)

    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    table, stream = worker._adapters
    worker._adapters = (table, Plain(stream))
    worker.start()
    put = fleet.put(20)
    fleet.wait_delivered(put)
    assert not [task for task in fleet.simulation.unfinished("w1") if task.name == "pykcl-reads"]
    worker.stop()


def test_a_pause_that_is_configured_is_kept_while_a_thread_sleeps(new_fleet):
    fleet = new_fleet(shards=3)
    post = start(fleet, idle_time_between_reads=0.7)
    since = fleet.simulation.now
    fleet.simulation.sleep(60)
    for shard in fleet.open_shards():
        assert min(post.pauses(shard, since)) >= 0.7
        assert max(post.pauses(shard, since + 5)) <= 0.75


def test_so_many_at_a_time_and_no_more(new_fleet):
    fleet = new_fleet(shards=40)
    post = start(fleet)
    post.delays.update(dict.fromkeys(fleet.open_shards(), 0.02))
    fleet.simulation.sleep(20)
    assert post.most == MAX_UNDER_WAY
    assert {shard for _, shard in post.asked} == set(fleet.open_shards())
    for shard in fleet.open_shards():
        assert max(post.pauses(shard, fleet.simulation.now - 10)) <= 1.3


def test_who_cannot_be_asked_in_time_for_the_crowd_reads_by_itself(new_fleet):
    """60 shards whose answers take a fifth of a second: at sixteen a time the last ones would wait for most of one."""
    fleet = new_fleet(shards=60)
    post = start(fleet, failover_time=60)
    fleet.simulation.sleep(10)
    post.delays.update(dict.fromkeys(fleet.open_shards(), 0.2))
    since = fleet.simulation.now
    fleet.simulation.sleep(30)
    assert [at for at, _ in post.fetched if at >= since]
    for shard in fleet.open_shards():
        assert max(post.pauses(shard, since)) <= 1.6


def test_a_page_that_was_waited_for_counts_from_when_it_was_asked_for(new_fleet):
    class Times:
        def __init__(self):
            self.seen = []

        def take(self, label, values):
            self.seen += [value for measure, value in values if measure is catalog.GET_RECORDS.time]

        def forget(self, shard):
            pass

    fleet, times = new_fleet(shards=1), Times()
    worker = fleet.worker("w1", metrics_level="DETAILED")
    worker._metering.meter._sinks, worker._metering.meter.is_on = (times,), True
    worker._metering.meter._is_detailed = True
    post = Post(fleet, worker)
    worker.start()
    fleet.wait(lambda: len(post.asked) > 3)
    post.delays[SHARD] = 0.4
    times.seen.clear()
    fleet.simulation.sleep(10)
    assert times.seen
    assert all(taken >= 399 for taken in times.seen[2:] if taken > 100)
    assert max(times.seen) < 500


def test_no_more_at_a_time_than_the_stream_has_connections_for(new_fleet):
    fleet = new_fleet(shards=12)
    post = start(fleet)
    post.stream.max_pending_pages = 5
    fleet.simulation.sleep(5)
    post.most = 0
    since = fleet.simulation.now
    fleet.simulation.sleep(20)
    assert post.most == 5
    assert not [at for at, _ in post.fetched if at >= since], "nobody else has to ask"


class Deck:
    """A stream whose pages come, fail, are slow, or cannot be asked for, as chance has it."""

    name, max_pending_pages = "orders", 16

    def __init__(self, simulation, runtime):
        self.simulation, self.runtime = simulation, runtime
        self.rng, self.served = simulation.rng, []

    def request_page(self, shard_id, iterator, limit):
        self.simulation.switch()
        if self.rng.random() < 0.1:
            return None
        there_at = self.simulation.now + self.rng.choice([0.0, 0.0, 0.1, 0.4])
        return SlowPage(
            partial(self.page, iterator),
            self.runtime,
            lambda: self.simulation.now,
            there_at=there_at,
            never_ready=self.rng.random() < 0.1,
        )

    def wait_for_any(self, asked, timeout):
        self.runtime.event().wait(min(timeout, 0.05))

    def page(self, iterator):
        self.simulation.switch()
        self.served.append(iterator)
        if self.rng.random() < 0.1:
            raise Throttled("t")
        return Fetched([], f"{iterator}+", 0, (), 5 * MIB)


@pytest.mark.parametrize("seed", range(300))
def test_however_the_threads_meet_each_iterator_is_served_once_and_every_byte_is_given_back(seed):
    rng = random.Random(seed)
    with Simulation(seed=seed) as simulation:
        runtime = simulation.runtime("w")
        memory = MemoryBudget(100 * MIB, runtime)
        deck = Deck(simulation, runtime)
        poller = IdleShardPoller(deck, runtime, memory, Meter(runtime), limit=10, on_fatal=lambda error: None)
        poller.start()
        ended = []

        def lease_worker(shard):
            wake = runtime.event()
            for number in range(6):
                went_on = []

                def on_empty_page(answer, went_on=went_on):
                    if rng.random() < 0.3:
                        return None
                    went_on.append(answer[0].next_iterator)
                    at = runtime.monotonic() + 0.2
                    return answer[0].next_iterator, PollWindow(at, at, at)

                now = runtime.monotonic()
                due = now + rng.choice([0.0, 0.2])
                first = f"{shard}/{number}/"
                poll = IdlePoll(
                    shard, first, PollWindow(due, due, due), lambda: rng.random() < 0.95, on_empty_page, wake
                )
                poller.delegate(poll)
                until = now + rng.choice([0.1, 1.0, 3.0])
                while (left := poller.time_left(poll)) > 0 and runtime.monotonic() < until:
                    wake.clear()
                    wake.wait(min(left, 0.3))
                if rng.random() < 0.3:
                    poller.drop(poll)
                    continue
                try:
                    found = poller.reclaim(poll)
                except Throttled:
                    continue
                if isinstance(found, tuple):
                    memory.release(5 * MIB)
                elif found is not None:
                    if found.poll() is not PageStatus.READY and rng.random() < 0.5:
                        found.drop()
                        continue
                    try:
                        found.page()
                    except Throttled:
                        continue
                else:
                    current = went_on[-1] if went_on else first
                    simulation.sleep(1)
                    assert current not in deck.served, "who is told that nobody asks asks itself"
            ended.append(shard)

        for number in range(4):
            runtime.spawn(f"lease-{number}", partial(lease_worker, f"s{number}"))
        simulation.run_until(lambda: len(ended) == 4, 120, "the end")
        poller.stop()
        simulation.sleep(5)
        assert simulation.unfinished("w") == []
        assert memory._free == 100 * MIB
        assert len(deck.served) == len(set(deck.served)), "no iterator is asked for twice"
