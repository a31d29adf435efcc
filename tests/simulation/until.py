"""Simulations of runs that end by themselves: what arrived before the end is delivered, nothing else is, and every
worker that is left ends because the run is over."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

from pykcl.events import Event, StopReason, WorkerStopping
from pykcl.testing.runtime import EPOCH_MILLIS
from pykcl.testing.simulation.delivery import Position, ShardRecords
from pykcl.testing.simulation.guarantees import Guarantee
from tests.simulation.quiescence import FleetQuiescence
from tests.simulation.world import CheckedFleet, CheckedWorld

_EARLIEST, _LATEST = 20.0, 300.0
"""Seconds from the beginning to the end of the run; the faults last for one to five minutes."""
_OVER_SECONDS = 400.0
"""From the end of the run, or of the faults, until every worker has ended."""


class RecordsOfRun(ShardRecords):
    """ShardRecords of which those that arrive at or after `until`, epoch milliseconds, are owed to nobody, and are
    given to nobody: a batch with one of them has a record that is not next."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self._until = until

    def add(self, position: Position, arrived_at: int) -> None:
        if arrived_at < self._until:
            super().add(position, arrived_at)


class UntilWorld(CheckedWorld):
    """CheckedWorld of a run with an end. until: epoch milliseconds.

    over: hosts whose worker has begun to stop because the run is over. on_over: called with each.
    """

    def _create_checkers(self) -> None:
        rng = random.Random(f"{self.simulation.seed}/until")
        self.until = EPOCH_MILLIS + int((self.simulation.now + rng.uniform(_EARLIEST, _LATEST)) * 1000)
        self.options["until"] = datetime.fromtimestamp(self.until / 1000, tz=UTC)
        if self.options["initial_position"] == "LATEST":
            # The end may have passed before the first worker is ready, and such a start is refused.
            self.options["initial_position"] = "TRIM_HORIZON"
        self.record_log.shards = defaultdict(lambda: RecordsOfRun(self.until))
        self.over: set[str] = set()
        self.on_over: Callable[[str], None] = lambda host: None
        super()._create_checkers()

    def _heard(self, host: str, event: Event) -> None:
        super()._heard(host, event)
        if isinstance(event, WorkerStopping) and event.reason is StopReason.RUN_OVER:
            self._is_over_for(host)

    def _is_over_for(self, host: str) -> None:
        owed = self.record_log.owed()
        is_early = self.kinesis_millis() < self.until
        self.violations.expect(
            not owed and not is_early,
            Guarantee.ALL_DELIVERED,
            f"the run is over for {host}: owed {owed}, before its end: {is_early}",
        )
        self.over.add(host)
        self.on_over(host)


class UntilFleet(CheckedFleet):
    """CheckedFleet whose hosts wait for the end of their worker once the run is over, as `Worker.run` does."""

    _world: UntilWorld

    def __init__(self, world: UntilWorld, wanted: int) -> None:
        super().__init__(world, wanted)
        world.on_over = self._run_is_over

    def _run_is_over(self, name: str) -> None:
        host = self.alive.get(name)
        if host is not None:
            host.ask_to_stop()


class UntilQuiescence(FleetQuiescence):
    """The rest of a run: it ends, and is over for whoever comes later."""

    _world: UntilWorld
    _fleet: UntilFleet

    def run(self) -> None:
        """Raises GuaranteeBroken."""
        self._heal()
        world = self._world
        self._wait(lambda: world.kinesis_millis() >= world.until, _LATEST)
        self._everybody_ends()
        batches = world.delivery.batches
        self._producer.put_on_every_shard()
        self._fleet.start()
        self._everybody_ends()
        world.violations.expect(
            world.delivery.batches == batches,
            Guarantee.NO_GAP,
            "records were delivered after the run was over",
        )
        self._rows_are_those_of_the_run()
        self._owners_of_deleted_rows_report_expired_shards()
        self._losses_were_reported()

    def _everybody_ends(self) -> None:
        """Check that all hosts end, each because the run is over."""
        names = set(self._fleet.alive)
        self._expect_soon(
            lambda: not self._fleet.alive,
            _OVER_SECONDS + 2 * self._patience(),
            Guarantee.STOP,
            lambda: (
                f"the run is not over for {sorted(self._fleet.alive)}: owed {self._world.record_log.owed()}, "
                f"not ended {sorted(filter(self._is_active, self._world.rows()))}"
            ),
        )
        others = sorted(names - self._world.over)
        self._world.violations.expect(not others, Guarantee.STOP, f"ended otherwise: {others}")
        self._world.violations.check()

    def _rows_are_those_of_the_run(self) -> None:
        """Check that each open shard has a row, and each row ended and kept the mark of the run."""
        world, rows = self._world, self._world.rows()
        missing = self._unleased()
        active = sorted(filter(self._is_active, rows))
        mark = {"N": str(world.until)}
        unmarked = sorted(key for key, row in rows.items() if row["pykcl"]["M"].get("until") != mark)
        world.violations.expect(
            not missing and not active,
            Guarantee.ALL_DELIVERED,
            f"the run is over: {missing} have no lease, {active} have not ended",
        )
        world.violations.expect(
            not unmarked, Guarantee.FOREIGN_KEPT, f"rows without the end of the run: {unmarked}"
        )
        world.violations.check()
