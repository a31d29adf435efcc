"""A fleet to which everything happens at random: faults, reshards, deaths, slow and failing processors."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from fleet_invariants import Invariant, Watch
from random_faults import RandomFaults
from random_processor import RandomProcessor

from pykcl.errors import StopTimedOut
from pykcl.events import DataLost, LeaseTaken
from pykcl.model.aggregation import aggregate
from pykcl.model.checkpoint import Checkpoint
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import SimTask, Simulation

MOST_WORKERS, MOST_SHARDS = 4, 8
SHUTDOWN_GRACE, STOP_MARGIN = 25.0, 6.0
DELIVERY_SECONDS, BALANCE_SECONDS, REST_SECONDS, QUIET_SECONDS = 400.0, 120.0, 30.0, 60.0


def run_random_fleet(seed: int) -> None:
    """One fleet from birth through chaos to rest. Raises InvariantBroken."""
    with Simulation(seed=seed) as simulation:
        RandomFleet(simulation, seed).run()


class Changes(list[Change]):
    """The log of the lease table, which shows every write to someone at once."""

    def __init__(self, seen: Callable[[Change], None]) -> None:
        super().__init__()
        self._seen = seen

    def append(self, change: Change) -> None:
        super().append(change)
        self._seen(change)


class RandomFleet:
    """The seed decides the options, the faults and what happens next."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self.simulation = simulation
        # Not the simulation's generator: so the story does not depend on how often its threads switch.
        self.rng = rng = random.Random(seed * 7919 + 1)
        self.options = _random_options(rng)
        self.fleet = Fleet(simulation, shards=rng.randint(1, 4))
        self.watch = Watch(self.fleet.kinesis, by_hand=self.options["checkpoint"] == "manual")
        self.faults = RandomFaults(rng, simulation)
        self.fleet.dynamodb.fault = self.faults.of_dynamodb
        self.fleet.kinesis.fault = self.faults.of_kinesis
        self.fleet.dynamodb.changes = Changes(self._row_changed)
        self._starts: dict[str, SimTask] = {}
        self._alive: set[str] = set()
        self._frozen_until: dict[str, float] = {}
        self._records = 0

    def run(self) -> None:
        self.put_records()
        self.start_worker()
        steps = self.rng.randint(20, 50)
        for _ in range(steps):
            self._something_happens()
            self.simulation.sleep(self.rng.choice([0.05, 0.5, 2, 8, 20]) * self.rng.random())
            self.watch.check()
        self.put_records()
        self._heal()
        self._expect_delivery()
        self._expect_rest()
        self._expect_clean_end()

    # -- what may happen ---------------------------------------------------------------------------------------

    def _something_happens(self) -> None:
        happenings = {
            self.put_records: 35,
            self.start_worker: 10,
            self.stop_worker: 5,
            self.kill_worker: 5,
            self.freeze_worker: 5,
            self.split: 8,
            self.merge: 6,
            self.fleet.dynamodb.deliver_postponed: 6,
            self.nothing: 20,
        }
        (happening,) = self.rng.choices(list(happenings), list(happenings.values()))
        happening()

    def nothing(self) -> None:
        """Time alone passes."""

    def put_records(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self._records += 1
            key = f"k{self.rng.randint(0, 50)}"
            # Alone and not aggregated, or several in one Kinesis record.
            count = self.rng.choice([1, 1, 1, self.rng.randint(1, 6)])
            data = [f"{self._records}.{number}".encode() for number in range(count)]
            blob = data[0]
            if count > 1:
                (packed,) = aggregate((key, None, part) for part in data)
                blob, key = packed.data, packed.partition_key
            put = self.fleet.kinesis.put_record(STREAM, blob, key)
            positions = [Checkpoint(put.sequence_number, number) for number in range(count)]
            self.watch.put[put.shard_id] += positions

    def start_worker(self) -> None:
        if len(self._alive) >= MOST_WORKERS:
            return
        name = f"w{len(self._starts) + 1}"
        make = partial(RandomProcessor, self.watch, self.faults)
        worker = self.fleet.worker(name, processor=make, **self.options)
        self._starts[name] = self.simulation.spawn(f"{name}-start", name, worker.start)
        self._alive.add(name)

    def stop_worker(self) -> None:
        name = self._any_worker()
        if name and self._starts[name].finished:
            self._stop(name)

    def kill_worker(self) -> None:
        name = self._any_worker()
        if name:
            self.simulation.kill(name)
            self._alive.discard(name)

    def freeze_worker(self) -> None:
        name = self._any_worker()
        if name:
            seconds = self.rng.uniform(1, 40)
            self.simulation.freeze(name, seconds)
            self._frozen_until[name] = self.simulation.now + seconds

    def split(self) -> None:
        shards = self.fleet.open_shards()
        if len(shards) < MOST_SHARDS:
            self.fleet.kinesis.split(STREAM, self.rng.choice(shards))

    def merge(self) -> None:
        shards = [shard for shard in self.fleet.kinesis.list_shards(STREAM, operation=None) if shard.is_open]
        shards.sort(key=lambda shard: int(shard.hash_range.starting_hash_key))
        if len(shards) > 1:
            left = self.rng.randrange(len(shards) - 1)
            self.fleet.kinesis.merge(STREAM, shards[left].shard_id, shards[left + 1].shard_id)

    def _any_worker(self) -> str | None:
        now = self.simulation.now
        moving = sorted(name for name in self._alive if self._frozen_until.get(name, 0) <= now)
        return self.rng.choice(moving) if moving else None

    def _stop(self, name: str) -> None:
        """CLEAN_STOP: in time, and unless the worker said that it could not, without threads left."""
        self._alive.discard(name)
        began, in_time = self.simulation.now, True
        try:
            self.fleet.workers[name].stop()
        except StopTimedOut:
            in_time = False
        took = self.simulation.now - began
        self.watch.expect(
            took <= SHUTDOWN_GRACE + STOP_MARGIN, Invariant.CLEAN_STOP, f"{name} took {took:.1f} s"
        )
        self.simulation.sleep(0.01)
        left = [task.name for task in self.simulation.unfinished(name)]
        self.watch.expect(not (left and in_time), Invariant.CLEAN_STOP, f"{name} left {left}")

    def _row_changed(self, change: Change) -> None:
        self.watch.row_changed(change, self.fleet.dynamodb.tables[TABLE].rows)

    # -- the end -----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.faults.healed = True
        self.fleet.dynamodb.deliver_postponed()
        for name in sorted(self._alive):
            failure = self.fleet.workers[name].failure
            self.watch.expect(failure is None, Invariant.NO_FALSE_ALARM, f"{name} failed: {failure!r}")
        while len(self._alive) < 2:
            self.start_worker()

    def _expect_delivery(self) -> None:
        self._expect_soon(
            lambda: not self.watch.all_undelivered(),
            DELIVERY_SECONDS,
            Invariant.ALL_DELIVERED,
            lambda: f"owed {self.watch.all_undelivered()}, owners {self.fleet.owners()}",
        )

    def _expect_rest(self) -> None:
        # A worker that still stands frozen loses its leases and fetches its share when it wakes up.
        awake_at = max(self._frozen_until.values(), default=0.0)
        self.simulation.sleep(max(0.0, awake_at - self.simulation.now))
        # A lease that a failing processor gave back is left alone by its worker for as long as it was retried.
        patience = BALANCE_SECONDS + 2 * self.options["retry_for"]
        self._expect_soon(
            self._is_balanced, patience, Invariant.COMES_TO_REST, lambda: str(self.fleet.load())
        )
        self.simulation.sleep(REST_SECONDS)
        taken = len(self.fleet.happened(LeaseTaken))
        self.simulation.sleep(QUIET_SECONDS)
        moved = self.fleet.happened(LeaseTaken)[taken:]
        self.watch.expect(not moved, Invariant.COMES_TO_REST, f"moved without need: {moved[:3]}")
        unleased = set(self.fleet.open_shards()) - set(self.fleet.rows())
        self.watch.expect(not unleased, Invariant.COMES_TO_REST, f"open shards without a lease: {unleased}")
        self.watch.check()

    def _expect_clean_end(self) -> None:
        for name in sorted(self._alive):
            self._stop(name)
        owned = {key: owner for key, owner in self.fleet.owners().items() if owner is not None}
        self.watch.expect(not owned, Invariant.CLEAN_STOP, f"still owned: {owned}")
        lost = self.fleet.happened(DataLost)
        self.watch.expect(not lost, Invariant.NO_FALSE_ALARM, f"{lost[:3]}")
        self.watch.check()

    def _is_balanced(self) -> bool:
        load = self.fleet.load()
        held = [load[name] for name in self._alive]
        return load.keys() <= self._alive and max(held) - min(held) <= 1

    def _expect_soon(
        self, condition: Callable[[], bool], seconds: float, invariant: Invariant, what: Callable[[], str]
    ) -> None:
        """Raises InvariantBroken at once for whatever is broken meanwhile."""
        deadline = self.simulation.now + seconds
        while not condition() and self.simulation.now < deadline:
            self.simulation.sleep(0.25)
            self.watch.check()
        self.watch.expect(condition(), invariant, what())
        self.watch.check()


def _random_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "start": "TRIM_HORIZON",
        "checkpoint": rng.choice(["auto", "auto", "interval", "manual"]),
        "checkpoint_interval": rng.choice([0.5, 5.0]),
        "max_records": rng.choice([2, 5, 10_000]),
        "cleanup_interval": rng.choice([3.0, 20.0]),
        "shard_sync_interval": rng.choice([5.0, 30.0]),
        "retry_for": rng.choice([5.0, 30.0]),
        "parent_poll_interval": rng.choice([0.5, 2.0]),
        "max_leases_to_steal_at_one_time": rng.choice([1, 3]),
        "shutdown_grace": SHUTDOWN_GRACE,
    }
    if options["checkpoint"] != "interval":
        del options["checkpoint_interval"]
    return options
