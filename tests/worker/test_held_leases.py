"""What counts as held: for the application, for listeners, and under one identifier used twice."""

from botocore.exceptions import ReadTimeoutError

from pykcl.events import (
    LeaseTaken,
    LossReason,
)
from pykcl.planning.lifecycle import State
from pykcl.testing.fleet import RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.worker.held_leases import Loss
from pykcl.worker.lease_worker import LeaseWorker


def _shard(number):
    return f"shardId-{number:012}"


def _held_up(fleet, name, shard, **options):
    """Start a worker whose processor waits at that shard; return the event that lets it go on."""
    go_on = fleet.simulation.runtime(name).event()

    def wait(batch):
        if batch.shard_id == shard:
            go_on.wait()

    fleet.start(name, processor=lambda: RecordingProcessor(name, fleet.ledger, wait), **options)
    return go_on


def _silent(*operations):
    """A fault: DynamoDB takes these requests and does not answer. Its list tells which came."""
    came = []

    def fault(operation, params):
        if operation not in operations:
            return None
        came.append(params)
        return Fault(before=ReadTimeoutError(endpoint_url="-"), delay=2.0)

    return fault, came


def test_a_lease_is_told_of_before_it_counts_as_held(new_fleet):
    fleet = new_fleet(shards=3)
    seen = []

    class Watching(list):
        def append(self, entry):
            name, event = entry
            if isinstance(event, LeaseTaken):
                seen.append((event.shard, event.shard in fleet.workers[name]._held.snapshot()))
            super().append(entry)

    fleet.events = Watching()
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker._held) == 3)
    assert sorted(seen) == [(_shard(number), False) for number in range(3)]
    assert sorted(worker._held.snapshot()) == [_shard(number) for number in range(3)]


def test_before_the_start_nothing_is_held_and_nothing_is_done(new_fleet):
    worker = new_fleet().worker("w1")
    assert worker.activities == {}
    assert worker._held.snapshot() == {}
    assert worker._held.version == 0


def test_activities_name_the_state_or_the_method_that_runs_for_each_lease(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.put(10)
    go_on = _held_up(fleet, "w1", _shard(0))
    worker = fleet.workers["w1"]
    fleet.wait(
        lambda: worker.activities == {_shard(0): "process_records", _shard(1): "reading"},
        30,
        "one busy and one idle lease",
    )
    fleet.simulation.freeze("w1", 60)
    idle = next(each for each, _ in worker._manager.workers() if each.key == _shard(1))
    for state in State:
        idle.state = state
        assert worker.activities == {_shard(0): "process_records", _shard(1): state.value}
    idle.state = State.READING
    go_on.set()
    worker.stop(grace=90.0)
    assert worker.activities.keys() == set(worker.leases)


def test_activities_survive_a_call_that_returns_at_that_very_moment(new_fleet, monkeypatch):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait(lambda: worker.leases)
    answers = iter([("process_records", 1.0)])
    monkeypatch.setattr(LeaseWorker, "busy", property(lambda _: next(answers, None)))
    fleet.simulation.freeze("w1", 60)
    assert worker.activities == {_shard(0): "process_records"}


def test_a_lease_is_valid_without_a_lock_as_long_as_it_is_believed(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", failover_time=10.0)
    fleet.wait(lambda: len(worker._held) == 1)
    before = worker._held.version
    held = worker._held.snapshot()[_shard(0)]
    assert held.is_valid_unlocked()
    copy = worker._held.snapshot()
    copy.clear()
    assert worker._held.snapshot(), "a copy is handed out"
    fleet.dynamodb.fault, _ = _silent("UpdateItem")
    deadline = held.deadline
    runtime = fleet.simulation.runtime("w1")
    while runtime.monotonic() < deadline - 0.5:
        assert held.is_valid_unlocked()
        fleet.simulation.sleep(0.25)
    fleet.simulation.sleep(0.6)
    assert not held.is_valid_unlocked()
    assert held.is_in_doubt
    fleet.dynamodb.fault = None
    fleet.wait(held.is_valid_unlocked, 30, "the end of the doubt")
    assert worker._held.snapshot()[_shard(0)] is held
    worker.stop()
    assert worker._held.version > before


def test_what_was_released_or_lost_is_no_longer_valid_without_a_lock(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker._held) == 2)
    first, second = (worker._held.snapshot()[_shard(number)] for number in range(2))
    first.lose(Loss.of(LossReason.OTHER))
    assert (first.is_valid_unlocked(), second.is_valid_unlocked()) == (False, True)
    worker.stop()
    assert not second.is_valid_unlocked()
    assert worker._held.snapshot() == {}


def test_two_processes_with_one_worker_identifier_do_not_both_believe_in_a_lease(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    workers = [fleet.worker("twin"), fleet.worker("twin")]
    for worker in workers:
        worker.start()
    fleet.wait_delivered(put)
    fleet.simulation.sleep(60)
    before = len(fleet.ledger.delivered)
    more = fleet.put(20)
    fleet.wait_delivered(more)
    fleet.simulation.sleep(30)
    assert len(fleet.ledger.delivered) == before + len(more), (
        "each record once: one of the twins holds each lease"
    )
