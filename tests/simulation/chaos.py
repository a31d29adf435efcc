"""Actions that only the project's own simulations take: those of operators, other applications and Java workers."""

from __future__ import annotations

import random
from collections.abc import Callable

from pykcl.testing.simulation.chaos import Chaos, Producer
from tests.simulation.faults import family
from tests.simulation.lease_table_actions import Foreigners, Operators
from tests.simulation.world import CheckedFleet, CheckedWorld


class FleetChaos(Chaos):
    """Chaos with all kinds of faults."""

    foreign: type[Foreigners] = Foreigners

    def __init__(
        self, world: CheckedWorld, fleet: CheckedFleet, producer: Producer, rng: random.Random
    ) -> None:
        self.foreigners, self._operators = self.foreign(world, fleet), Operators(world, fleet)
        self._start_java = fleet.start_java
        super().__init__(world, fleet, producer, rng)

    def actions(self) -> dict[str, Callable[[random.Random], bool]]:
        found = {
            **super().actions(),
            "F13.foreign": self.foreigners.visit_another_table,
            "F15": self.foreigners.put_rows,
            "F15.deleted": self._operators.delete_row,
            "F15.counter": self._operators.put_counter_back,
            "F15.checkpoint": self._operators.move_checkpoint,
            "F15.reset": self._operators.move_checkpoint_and_counter,
            "F15.ranges": self._operators.drop_ranges,
            "F20": self._start_java,
            "F25": self._pause,
        }
        return dict(sorted(found.items(), key=lambda entry: family(entry[0])))

    def _pause(self, rng: random.Random) -> bool:
        """Pause some shards of a worker, or all and those that come, and resume them later."""
        host = self._any_host(rng)
        if host is None:
            return False
        worker, seconds = host.worker, rng.choice([0.0, 1.0, rng.uniform(0, 60)])
        shards = None if rng.random() < 0.3 else [key for key in worker.leases if rng.random() < 0.5]

        def resume() -> None:
            self._world.simulation.sleep(seconds)
            worker.resume(shards)

        worker.pause(shards)
        self._world.simulation.spawn(f"resume-{host.name}", "operator", resume)
        return True
