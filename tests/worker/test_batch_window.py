"""batch_window: records wait for others over several reads, within bounds, and are dropped by a stop."""

import pytest

from pykcl import Config, ConfigError
from pykcl.local.errors import AwsError
from pykcl.model.record import PlainRecords
from pykcl.testing import records, run_processor
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.runtime import Simulation
from pykcl.worker.batch_window import MOST_BYTES, BatchWindow
from pykcl.worker.prefetch import MemoryBudget

SHARD = "shardId-000000000000"


@pytest.fixture
def sizes():
    return []


@pytest.fixture
def started(new_fleet, sizes):
    """started(**options): a fleet with one shard and a worker that notes (time, size) of its batches."""

    def start(**options):
        fleet = new_fleet(shards=1)
        note = lambda batch: sizes.append((fleet.simulation.now, len(batch)))  # noqa: E731
        fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, note), **options)
        fleet.wait(lambda: fleet.ledger.calls, what="the start")
        fleet.simulation.sleep(2)
        return fleet

    return start


def drip(fleet, count, every=1.0):
    put = []
    for _ in range(count):
        put += fleet.put(1)
        fleet.simulation.sleep(every)
    return put


def test_records_of_several_reads_are_one_batch_when_there_are_enough(started, sizes):
    fleet = started(batch_size=4, batch_window=60.0)
    put = drip(fleet, 8)
    fleet.wait_delivered(put)
    assert [size for _, size in sizes] == [4, 4]
    assert fleet.ledger.by("w1") == put


def test_the_window_of_the_first_record_ends_the_wait(started, sizes):
    fleet = started(batch_size=100, batch_window=10.0)
    began = fleet.simulation.now
    put = drip(fleet, 5)
    fleet.wait_delivered(put)
    ((at, size),) = sizes
    assert size == 5
    assert 10.0 <= at - began <= 12.0


def test_a_window_is_kept_while_kinesis_fails(started, sizes):
    fleet = started(batch_size=100, batch_window=10.0)
    put = drip(fleet, 2)

    def fail(operation, stream, shard):
        raise AwsError("InternalFailure", "down")

    fleet.kinesis.fault = fail
    fleet.wait_delivered(put, 30)
    assert [size for _, size in sizes] == [2]


def test_a_stop_drops_what_is_gathered_and_the_next_owner_reads_it_again(started, sizes):
    fleet = started(batch_size=100, batch_window=300.0)
    put = drip(fleet, 3)
    fleet.workers["w1"].stop()
    assert sizes == []
    assert fleet.rows()[SHARD].checkpoint.is_sentinel
    fleet.start("w2")
    fleet.wait_delivered(put)


def test_the_end_of_a_shard_delivers_what_is_gathered(started, sizes):
    fleet = started(batch_size=100, batch_window=300.0)
    put = drip(fleet, 3)
    fleet.kinesis.split(STREAM, SHARD)
    fleet.wait(lambda: fleet.rows()[SHARD].is_ended, what="the end of the shard")
    assert [size for _, size in sizes] == [3]
    assert fleet.ledger.by("w1") == put


def test_what_a_failure_leaves_comes_again_and_nothing_is_lost():
    calls = []

    def process(self, batch):
        calls.append(len(batch))
        if len(calls) == 1:
            raise ValueError

    kind = type("Fails", (RecordingProcessor,), {"process_records": process, "__init__": lambda self: None})
    for name in ("initialize", "lease_lost", "shard_ended", "shutdown_requested"):
        setattr(kind, name, lambda self, argument: None)
    inputs = records(*map(str, range(10)), partition_key="k")
    for end in ("shard_end", "crash", "lease_lost"):
        calls.clear()
        result = run_processor(kind, inputs, end=end, batch_size=4, batch_window=5.0, max_records=3)
        assert result.lost == 0
        assert {record.text() for record in result.delivered} == set(map(str, range(10)))
        assert max(calls) == 4


def test_gathered_bytes_stay_taken_from_the_memory_until_they_are_delivered_or_dropped():
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w")
        memory = MemoryBudget(1000, runtime)
        window = BatchWindow(3, 60.0, memory.release, runtime)
        assert memory.reserve(500, give_up=lambda: True, timeout=0.0)
        window.add(page(2))
        assert window.reserve(500) == 200
        memory.release(300)
        assert not memory.reserve(801, give_up=lambda: True, timeout=0.0)
        window.add(page(2))
        assert len(window.take()) == 3
        window.give_back()
        # One record is left.
        assert not memory.reserve(901, give_up=lambda: True, timeout=0.0)
        memory.release(window.clear())
        assert memory.reserve(1000, give_up=lambda: True, timeout=0.0)


def test_so_many_bytes_are_enough():
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w")
        window = BatchWindow(100, 60.0, MemoryBudget(1, runtime).release, runtime)
        window.add(page(1, MOST_BYTES - 1))
        assert not window.is_due
        window.add(page(1, 1))
        assert window.is_due


def page(count, size=100):
    numbers = [str(1000 + number) for number in range(count)]
    return PlainRecords([b"x" * size] * count, ["k"] * count, numbers, [0.0] * count, SHARD, STREAM)


@pytest.mark.parametrize("window", [-1, 301, "60", True])
def test_a_window_that_cannot_be_is_refused(window):
    with pytest.raises(ConfigError, match="batch_window"):
        Config(application="orders-app", stream="orders", batch_window=window)


# -- the pace ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch_window": 3.0}, {"checkpoint_mode": "ack"}], ids=str)
def test_a_worker_delivers_no_more_records_a_second_than_it_may_over_all_its_shards(new_fleet, options):
    fleet, seen = new_fleet(shards=3), []
    put = fleet.put(300)

    def note(batch):
        seen.append((fleet.simulation.now, len(batch)))
        for record in batch if batch.acks is not None else ():
            batch.ack(record)

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, note),
        max_records_per_second=20,
        **options,
    )
    fleet.wait_delivered(put)
    assert max(size for _, size in seen) <= 20
    for index, (first, _) in enumerate(seen):
        during = [size for at, size in seen[index:] if at < first + 5.0]
        assert sum(during) <= 5 * 20 + 20, (
            "five seconds' records, and the batch that began in the last of them"
        )
    seconds = seen[-1][0] - seen[0][0]
    assert 14.0 <= seconds <= 20.0
    assert fleet.ledger.duplicates == 0


def test_a_shard_that_waits_for_its_turn_is_released_at_once_by_a_stop(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(10)
    worker = fleet.start("w1", max_records_per_second=0.01)
    fleet.wait(lambda: fleet.ledger.delivered)
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now < began + 2.0
    assert set(fleet.owners().values()) == {None}
    assert len(fleet.ledger.delivered) == 1
