"""The small parts: the buffer gate, the life cycle's table, pace, start positions, events."""

import logging
from types import SimpleNamespace

import pytest

from pykcl.config import Config
from pykcl.errors import LeaseLost
from pykcl.event_dispatch import EventFan
from pykcl.events import DataLost, LeaseTaken, TroubleBegan
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.lease import Lease, PykclMetadata, first_read
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_creation import CreationReason, LeaseCreation
from pykcl.planning.lifecycle import FINAL, TABLE, Signal, State, next_state
from pykcl.planning.read_schedule import backoff
from pykcl.runtime import SystemRuntime
from pykcl.status import Activity
from pykcl.testing.fleet import STREAM
from pykcl.testing.simulation import Deadlock, Simulation
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.prefetch import MemoryBudget
from pykcl.worker.processor_calls import ProcessorCalls
from pykcl.worker.shard_sync import create_lease

NOW = StartPosition("LATEST")


def _never():
    return False


def test_the_gate_never_hands_out_more_than_its_limit():
    with Simulation(seed=4) as simulation:
        runtime = simulation.runtime("w")
        gate = MemoryBudget(100, runtime)
        held, peak, done = [], [], []

        def reader():
            for _ in range(5):
                assert gate.reserve(40, give_up=_never, timeout=1000.0)
                held.append(40)
                peak.append(sum(held))
                runtime.event().wait(1.0)
                held.remove(40)
                gate.release(40)
            done.append(1)

        for number in range(6):
            runtime.spawn(f"reader-{number}", reader)
        simulation.run_until(lambda: len(done) == 6, 1000)
        assert max(peak) == 80


def test_the_gate_serves_first_come_first_served_so_that_large_ones_are_not_starved():
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("w")
        gate = MemoryBudget(100, runtime)
        assert gate.reserve(60, give_up=_never, timeout=0.0)
        order = []

        def want(size):
            assert gate.reserve(size, give_up=_never, timeout=1000.0)
            order.append(size)

        runtime.spawn("large", lambda: want(90))
        simulation.sleep(1)
        runtime.spawn("small", lambda: want(10))
        simulation.sleep(1)
        assert order == []
        gate.release(60)
        simulation.run_until(lambda: len(order) == 2, 10)
        assert order[0] == 90


def test_who_gives_up_waiting_leaves_the_queue_and_lets_the_next_one_in():
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("w")
        gate = MemoryBudget(100, runtime)
        assert gate.reserve(60, give_up=_never, timeout=0.0)
        results = []
        stop = runtime.event()
        runtime.spawn("large", lambda: results.append(gate.reserve(90, give_up=stop.is_set, timeout=1000.0)))
        simulation.sleep(1)
        runtime.spawn("small", lambda: results.append(gate.reserve(30, give_up=_never, timeout=1000.0)))
        simulation.sleep(1)
        stop.set()
        simulation.run_until(lambda: len(results) == 2, 10)
        assert results == [False, True]
        assert not gate.reserve(50, give_up=_never, timeout=2.0)


def test_every_working_state_can_be_left_and_every_state_can_be_reached():
    assert {state for state, _ in TABLE} == set(State) - FINAL
    assert set(TABLE.values()) == set(State) - {State.ACQUIRING}


def test_every_state_that_holds_the_lease_knows_what_to_do_when_it_is_lost():
    holding = set(State) - FINAL - {State.ACQUIRING, State.LOSING}
    assert all((state, Signal.LEASE_LOST) in TABLE for state in holding)


def test_a_transition_that_is_not_in_the_table_cannot_happen():
    with pytest.raises(ValueError, match="releasing cannot meet 'started'"):
        next_state(State.RELEASING, Signal.STARTED)


def test_back_off_grows_and_is_bounded():
    rng = Simulation().rng
    assert all(backoff(n, rng, first=0.1, longest=30.0) <= 30.0 for n in range(1, 2000))
    assert backoff(1, rng) <= 0.1
    assert backoff(8, rng) >= 0.1 * 2**7 / 2


@pytest.mark.parametrize(
    ("checkpoint", "note", "start", "expected"),
    [
        ("TRIM_HORIZON", None, NOW, ReadFrom("TRIM_HORIZON")),
        ("LATEST", None, NOW, ReadFrom("LATEST")),
        ("LATEST", PykclMetadata(latest_from=77), NOW, ReadFrom("AT_TIMESTAMP", at_millis=77)),
        ("AT_TIMESTAMP", None, StartPosition("AT_TIMESTAMP", 5), ReadFrom("AT_TIMESTAMP", at_millis=5)),
        ("AT_TIMESTAMP", None, NOW, ReadFrom("TRIM_HORIZON")),
        ("123", None, NOW, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number="123")),
    ],
)
def test_where_the_new_holder_of_a_lease_opens_the_shard(checkpoint, note, start, expected):
    lease = Lease("shardId-0", Checkpoint(checkpoint), metadata=note)
    assert first_read(lease, start) == expected


def test_events_are_one_log_line_with_keys_and_foreign_text_quoted(caplog):
    caplog.set_level(logging.DEBUG, "pykcl")
    EventFan().emit(LeaseTaken(shard="shardId-1", reason="expired", from_owner="evil\nname", counter=7))
    (record,) = caplog.records
    assert record.message == "lease taken shard=shardId-1 reason=expired from_owner='evil\\nname' counter=7"
    assert record.levelno == logging.INFO


def test_a_listener_that_raises_is_left_out_and_the_others_go_on(caplog):
    heard = []

    def broken(event):
        raise RuntimeError("CANARY")

    fan = EventFan([broken, heard.append])
    event = DataLost(shard="shardId-1", checkpoint="5:0", resumed_at="9:0")
    fan.emit(event)
    fan.emit(event)
    assert heard == [event, event]
    assert caplog.text.count("listener raised") == 1
    assert "CANARY" not in caplog.text


def test_trouble_is_told_when_it_begins_and_when_it_ends():
    with Simulation() as simulation:
        heard = []
        trouble = FailureTracker(EventFan([heard.append]), simulation.runtime("w"))
        for _ in range(3):
            trouble.failed(Activity.READING, ValueError("why"))
        for _ in range(3):
            trouble.worked(Activity.READING)
        assert [type(event).__name__ for event in heard] == ["TroubleBegan", "TroubleEnded"]
        assert heard[0] == TroubleBegan(what="reading", cause="why")


def test_the_simulation_reports_a_deadlock_and_is_the_same_for_the_same_seed():
    with Simulation() as simulation, pytest.raises(Deadlock, match="main"):
        simulation.runtime("w").event().wait(None)

    def course(seed):
        with Simulation(seed) as simulation:
            runtime, seen = simulation.runtime("w"), []
            for number in range(4):
                runtime.spawn(
                    str(number), lambda n=number: [seen.append(n) or simulation.switch() for _ in range(5)]
                )
            simulation.run_until(lambda: len(seen) == 20, 100)
            return tuple(seen)

    assert course(5) == course(5)
    assert len({course(seed) for seed in range(8)}) > 1


def test_a_lease_worker_waits_for_parents_whose_rows_have_not_ended_whatever_its_plan_said(new_fleet):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1")._connect()
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    child = fleet.open_shards()[0]
    for key, parents in ((parent, ()), (child, (parent,))):
        lease = Lease(key, Checkpoint("TRIM_HORIZON"), parents=parents)
        create_lease(context, LeaseCreation(lease, CreationReason.START))
    plan = Acquisition(fleet.rows()[child], "unowned")
    worker = LeaseWorker(LeaseScope(context, plan, iterator=None, on_change=lambda: None))
    runtime = fleet.simulation.runtime("w1")
    runtime.spawn("child", worker.run)
    fleet.simulation.sleep(5)
    assert worker.state is State.WAITING_FOR_PARENTS
    assert not fleet.ledger.calls
    plan = Acquisition(fleet.rows()[parent], "unowned")
    parents_scope = LeaseScope(context, plan, iterator=None, on_change=worker.nudge)
    runtime.spawn("parent", LeaseWorker(parents_scope).run)
    fleet.simulation.run_until(lambda: worker.state is State.READING, 8)
    assert fleet.rows()[parent].is_ended
    worker.request_stop()
    fleet.simulation.run_until(lambda: worker.is_final, 10)


def test_the_lease_is_looked_at_behind_the_last_wait_before_a_call():
    # 1) The worker looks: the lease is held. 2) It waits for a lock. 3) A heartbeat is refused. 4) The batch is delivered.
    lost, called = [], []

    def check():
        if lost:
            raise LeaseLost("another worker took it")

    class LossWhileWaiting:
        def __enter__(self):
            lost.append(True)

        def __exit__(self, *_):
            pass

    class LosingRuntime(SystemRuntime):
        def lock(self):
            return LossWhileWaiting()

    context = SimpleNamespace(
        runtime=LosingRuntime(), config=Config(application="orders-app", stream="orders")
    )
    calls = ProcessorCalls(context, "s1", check, _never)
    with pytest.raises(LeaseLost):
        calls.until_it_returns("process_records", called.append, "a batch")
    assert called == []
    assert calls.busy is None
