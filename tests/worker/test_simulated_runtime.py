"""The simulation that these tests run in: deadlocks are found, and equal seeds are equal courses."""

import pytest

from pykcl.testing.runtime import Deadlock, Simulation


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
