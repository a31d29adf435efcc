"""The bytes that a process may hold: never more than the limit, first come, first served."""

from types import SimpleNamespace

from pykcl.testing.runtime import Simulation
from pykcl.worker.prefetch import MemoryBudget, UnreadBytes


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


def test_bytes_that_have_come_unasked_count_against_the_limit_and_nothing_is_reserved_while_they_exceed_it():
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("w")
        gate = MemoryBudget(100, runtime)
        pushed = SimpleNamespace(held_bytes=0, poll=None, close=None)
        unread = UnreadBytes(pushed, gate, runtime.lock())
        pushed.held_bytes = 130
        unread.update()
        unread.update()
        assert not gate.reserve(1, give_up=_never, timeout=2.0)
        began = simulation.now
        assert gate.reserve(0, give_up=_never, timeout=2.0), "who takes nothing waits, and goes on"
        assert simulation.now - began == 2.0
        pushed.held_bytes = 40
        unread.update()
        assert gate.reserve(60, give_up=_never, timeout=0.0)
        unread.close()
        unread.update()
        assert gate.reserve(40, give_up=_never, timeout=0.0)
        assert not gate.reserve(1, give_up=_never, timeout=0.0)
